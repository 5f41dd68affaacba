/* Sessions and the engine's rules of retention, over the scripted backend: which session a request
 * means, what the report says, and the effect of the engine's defaults and limits. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

/* Every answer consists of sevens. */
static int setup(void **state)
{
    fixture *f = fixture_create();
    f->model.script[0] = 7;
    f->model.n_script = 1;
    *state = f;
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static engine_request asked_by(const char *identity, const char *salt, const char *session)
{
    return (engine_request){.identity = (char *)(uintptr_t)identity,
                            .cache_salt = (char *)(uintptr_t)salt,
                            .session = (char *)(uintptr_t)session};
}

static bool same_session(engine_request a, engine_request b)
{
    uint64_t x[2], y[2];
    session_key(&a, x);
    session_key(&b, y);
    return memcmp(x, y, sizeof x) == 0;
}

/* SHA-256 of three parts, each preceded by its length + 1 (0 = missing) in 8 little-endian
 * bytes. */
static void a_key_is_a_digest(void **state)
{
    (void)state;
    uint64_t key[2];
    engine_request r = asked_by("me", "salt", "chat-1");
    session_key(&r, key);
    assert_true(key[0] == 0x0d8e1521a7f2aaab && key[1] == 0x69628e1802fd0ac0);
    r = asked_by(NULL, NULL, "s");
    session_key(&r, key);
    assert_true(key[0] == 0x12bc89d9b9a42b03 && key[1] == 0xb6449410b4cba96a);
    r = asked_by("me", "salt", NULL);
    session_key(&r, key);
    assert_true(key[0] == 0 && key[1] == 0);
}

static void no_client_has_anothers_key(void **state)
{
    (void)state;
    engine_request mine = asked_by("me", "salt", "chat");
    assert_true(same_session(mine, asked_by("me", "salt", "chat")));
    assert_false(same_session(mine, asked_by("you", "salt", "chat")));
    assert_false(same_session(mine, asked_by("me", "pepper", "chat")));
    assert_false(same_session(mine, asked_by("me", "salt", "chat2")));
    assert_false(same_session(mine, asked_by(NULL, "salt", "chat")));
    assert_false(same_session(mine, asked_by("me", NULL, "chat")));
    /* The same characters split differently give another key. */
    assert_false(same_session(mine, asked_by("mes", "alt", "chat")));
    assert_false(same_session(mine, asked_by("me", "saltc", "hat")));
    assert_false(same_session(asked_by("", NULL, "chat"), asked_by(NULL, "", "chat")));
    assert_false(same_session(asked_by(NULL, NULL, "chat"), asked_by(NULL, "", "chat")));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void a_session_is_a_short_text(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    static const struct {
        const char *json, *text;
    } bad[] = {
        {"{\"session\": \"\"}", "t: session: must have 1 to 256 bytes"},
        {"{\"session\": 5}", "t: session: must be a string"},
        {"{\"session\": [\"a\"]}", "t: session: must be a string"},
        {"{\"session\": \"a\\u0000b\"}", "t: session: holds a NUL byte"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        engine_request r;
        error err = {{0}};
        json_t *tree = json_loads(bad[i].json, JSON_ALLOW_NUL, NULL);
        engine_request_init(&r, &defaults);
        assert_int_equal(engine_request_parse(tree, "t", NULL, &r, &err).code, STATUS_INVALID);
        assert_string_equal(err.text, bad[i].text);
        engine_request_destroy(&r);
        json_decref(tree);
    }
    char longest[ENGINE_SESSION_BYTES_MAX + 2];
    memset(longest, 's', sizeof longest);
    for (size_t n = ENGINE_SESSION_BYTES_MAX; n <= ENGINE_SESSION_BYTES_MAX + 1; n++) {
        engine_request r = request("{\"prompt\": \"a\", \"max_tokens\": 1}");
        engine_stream *s = NULL;
        error err = {{0}};
        r.session = calloc(1, n + 1);
        memcpy(r.session, longest, n);
        status st = engine_submit(f->engine, &r, NULL, NULL, &s, &err);
        engine_request_destroy(&r);
        assert_int_equal(st.code, n > ENGINE_SESSION_BYTES_MAX ? STATUS_INVALID : STATUS_OK);
        if (status_ok(st)) read_all(s);
        else assert_string_equal(err.text, "session: must have 1 to 256 bytes");
    }
    engine_request r = request("{\"prompt\": \"a\", \"max_tokens\": 1, \"session\": \"tab\\t\"}");
    error err = {{0}};
    assert_int_equal(engine_submit(f->engine, &r, NULL, NULL, NULL, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "session: holds a control character, 0x09");
    engine_request_destroy(&r);
}

/* ---- the engine's rules of retention --------------------------------------------------------- */

/* The report of a request's only choice; method NULL when it has none. */
static retention_report report_of(fixture *f, const engine_request *r)
{
    engine_stream *s = NULL;
    engine_output out;
    error err = {{0}};
    retention_report report = {0};
    if (!status_ok(engine_submit(f->engine, r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.report) report = *out.report;
    }
    engine_stream_release(s);
    return report;
}

static const char *method_of(fixture *f, const char *json)
{
    engine_request r = request(json);
    const char *method = report_of(f, &r).method;
    engine_request_destroy(&r);
    return method ? method : "";
}

#define PROMPT "\"prompt\": \"Juliet\", \"max_tokens\": 2"

static void a_default_is_for_requests_without_a_field(void **state)
{
    fixture *f = *state;
    f->options.retention = json_pack("{s:s, s:f}", "method", "chunkkv", "ratio", 0.5);
    fixture_start(f);
    json_decref((json_t *)(uintptr_t)f->options.retention); /* no longer borrowed */
    assert_string_equal(method_of(f, "{" PROMPT "}"), "chunkkv");
    assert_string_equal(method_of(f, "{" PROMPT ", \"retention\": {\"method\": \"full\"}}"),
                        "full");
}

static void full_is_reported_when_named(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    assert_string_equal(method_of(f, "{" PROMPT "}"), "");
    assert_string_equal(method_of(f, "{" PROMPT ", \"retention\": {\"method\": \"full\"}}"),
                        "full");
    assert_string_equal(method_of(f, "{" PROMPT ", \"session\": \"s\"}"), "full");
}

static void only_some_methods_may_be_named(void **state)
{
    fixture *f = *state;
    static const char *const allowed[] = {"full", "chunkkv"};
    f->options.retention = json_pack("{s:s, s:f}", "method", "chunkkv", "ratio", 0.5);
    f->options.retention_allow = allowed;
    f->options.n_retention_allow = 2;
    fixture_start(f);
    json_decref((json_t *)(uintptr_t)f->options.retention);
    assert_string_equal(method_of(f, "{" PROMPT "}"), "chunkkv");
    assert_string_equal(method_of(f, "{" PROMPT ", \"retention\": {\"method\": \"full\"}}"),
                        "full");
    assert_int_equal(
        expect_refused(f, "{" PROMPT ", \"retention\": {\"method\": \"tova\", \"ratio\": 0.5}}",
                       "retention.method: 'tova' is not allowed here (--retention-allow)"),
        STATUS_INVALID);
    assert_int_equal(expect_refused(f,
                                    "{" PROMPT
                                    ", \"retention\": {\"method\": \"full\", \"prefill\": "
                                    "{\"method\": \"tova\"}}}",
                                    "retention.prefill.method: 'tova' is not allowed here"),
                     STATUS_INVALID);
    expect_refused(f, "{" PROMPT ", \"retention\": {\"method\": \"nobody\"}}", "'nobody'");
    expect_refused(f, "{" PROMPT ", \"retention\": {}}", "retention.method");
}

static void bad_rules_make_no_engine(void **state)
{
    fixture *f = *state;
    static const char *const unknown[] = {"chunkkv", "nobody"}, *const snapkv[] = {"snapkv"};
    const struct {
        engine_options o;
        const char *text;
    } bad[] = {
        {{.retention = json_pack("{s:s, s:f}", "method", "chunkkv", "ratio", 0.5),
          .retention_allow = snapkv,
          .n_retention_allow = 1},
         "--retention: retention.method: 'chunkkv' is not allowed here (--retention-allow)"},
        {{.retention = json_pack("{s:s}", "method", "nobody")}, "--retention: retention.method:"},
        {{.retention = json_pack("{s:s}", "method", "chunkkv")}, "--retention: retention.ratio"},
        {{.pressure_retention = json_pack("{s:s, s:f}", "method", "chunkkv", "ratio", 2.0)},
         "--pressure-retention: retention"},
        {{.pressure_retention =
              json_pack("{s:s, s:s, s:f}", "method", "tova", "scope", "layer", "ratio", 0.5)},
         "--pressure-retention: tova cannot be used under pressure"},
        {{.retention_allow = unknown, .n_retention_allow = 2}, "--retention-allow: 'nobody'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error err = {{0}};
        engine *none = NULL;
        engine_options o = f->options;
        o.retention = bad[i].o.retention;
        o.pressure_retention = bad[i].o.pressure_retention;
        o.retention_allow = bad[i].o.retention_allow;
        o.n_retention_allow = bad[i].o.n_retention_allow;
        assert_int_equal(engine_create(&o, &none, &err).code, STATUS_INVALID);
        if (strncmp(err.text, bad[i].text, strlen(bad[i].text)) != 0)
            fail_msg("\"%s\", not \"%s\"", err.text, bad[i].text);
        /* The same without a backend. */
        assert_int_equal(engine_check_retention(&o, &f->model.info.geometry, &err).code,
                         STATUS_INVALID);
        json_decref((json_t *)(uintptr_t)o.retention);
        json_decref((json_t *)(uintptr_t)o.pressure_retention);
    }
}

/* As a default it would start a server that refuses every request that names no method. */
static void a_default_that_no_request_may_have_is_refused_at_the_start(void **state)
{
    static const struct {
        const char *policy;
        uint32_t n_heads, n_embed_heads;
        const char *text;
    } rows[] = {
        {"{\"method\":\"reform\",\"scope\":\"layer\",\"rows\":16}", 4, 0,
         "--retention: retention.method: 'reform' needs heads"},
        {"{\"method\":\"reform\",\"scope\":\"layer\",\"rows\":16}", 0, 2,
         "--retention: retention.method: 'reform' needs embeddings"},
        {"{\"method\":\"reform\",\"scope\":\"layer\",\"rows\":16,\"gather_tokens\":4096}", 4, 2,
         "--retention: retention.gather_tokens is 4096"},
        {"{\"method\":\"reform\",\"scope\":\"layer\",\"rows\":16}", 4, 2, NULL},
        {"{\"method\":\"full\"}", 4, 0, NULL},
    };
    static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 1}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        error err = {{0}};
        engine *e = NULL;
        json_t *policy = json_loads(rows[i].policy, 0, NULL);
        f->options.embed_heads = heads;
        f->model.info.n_heads = rows[i].n_heads;
        f->options.n_embed_heads = rows[i].n_embed_heads;
        f->options.retention = policy;
        status s = engine_create(&f->options, &e, &err);
        if (rows[i].text && (status_ok(s) || !strstr(err.text, rows[i].text)))
            fail_msg("row %zu: \"%s\"", i, err.text);
        if (!rows[i].text && !status_ok(s)) fail_msg("row %zu: %s", i, err.text);
        engine_destroy(e);
        json_decref(policy);
    }
    f->options.retention = NULL;
}

/* ---- sessions -------------------------------------------------------------------------------- */

enum { FIRST = 40, OUTPUT = 8, MORE = 10 };

static void with_sessions(fixture *f, uint32_t n, int64_t ttl_us)
{
    f->options.max_sessions = n;
    f->options.session_ttl_us = ttl_us;
    fixture_start(f);
}

/* Runs turn `turn` of a conversation whose every answer is OUTPUT sevens, and checks what the
 * report says of the session. */
static void run_turn(fixture *f, uint32_t turn, const char *identity, const char *salt,
                     const char *session, char out[96])
{
    engine_request r = request("{\"ignore_eos\": true, \"max_tokens\": 8}");
    r.n_prompt_token_ids = FIRST + turn * (OUTPUT + MORE);
    r.prompt_token_ids = malloc(r.n_prompt_token_ids * sizeof *r.prompt_token_ids);
    for (uint32_t i = 0; i < r.n_prompt_token_ids; i++) {
        bool answered = i >= FIRST && (i - FIRST) % (OUTPUT + MORE) < OUTPUT;
        r.prompt_token_ids[i] = answered ? 7 : 100 + i;
    }
    r.identity = identity ? strdup(identity) : NULL;
    r.cache_salt = salt ? strdup(salt) : NULL;
    r.session = session ? strdup(session) : NULL;
    memcpy(out, report_of(f, &r).session, 96);
    engine_request_destroy(&r);
}

static void a_turn_goes_on_from_the_last(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 4, 1000000000);
    run_turn(f, 0, NULL, NULL, "s", note);
    assert_string_equal(note, "stored");
    engine_stats before = engine_get_stats(f->engine);
    assert_int_equal(before.sched.sessions_idle, 1);
    assert_int_equal(before.sched.logical_tokens, FIRST + OUTPUT - 1);
    for (uint32_t turn = 1; turn < 4; turn++) {
        run_turn(f, turn, NULL, NULL, "s", note);
        assert_string_equal(note, "continued");
    }
    engine_stats after = engine_get_stats(f->engine);
    assert_int_equal(after.sched.sessions_idle, 1);
    assert_int_equal(after.sched.sessions_continued, 3);
    run_turn(f, 4, NULL, NULL, NULL, note);
    assert_string_equal(note, "");
}

/* Two sessions of bob do not push out the older one of alice. */
static void a_key_makes_room_for_itself(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 2, 1000000000);
    run_turn(f, 0, "alice", NULL, "s", note);
    run_turn(f, 0, "bob", NULL, "s", note);
    run_turn(f, 0, "bob", NULL, "t", note);
    assert_string_equal(note, "stored");
    run_turn(f, 1, "alice", NULL, "s", note);
    assert_string_equal(note, "continued");
    run_turn(f, 1, "bob", NULL, "t", note);
    assert_string_equal(note, "continued");
}

static void sessions_are_ones_own(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 4, 1000000000);
    run_turn(f, 0, "alice", NULL, "s", note);
    assert_string_equal(note, "stored");
    run_turn(f, 1, "bob", NULL, "s", note);
    assert_string_equal(note, "stored");
    run_turn(f, 1, "alice", "pepper", "s", note);
    assert_string_equal(note, "stored");
    run_turn(f, 1, "alice", NULL, "t", note);
    assert_string_equal(note, "stored");
    run_turn(f, 1, "alice", NULL, "s", note);
    assert_string_equal(note, "continued");
}

static void a_session_ends_while_nothing_happens(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 4, 20000);
    run_turn(f, 0, NULL, NULL, "s", note);
    assert_string_equal(note, "stored");
    while (engine_get_stats(f->engine).sched.sessions_idle > 0) nap();
    engine_stats stats = engine_get_stats(f->engine);
    assert_int_equal(stats.sched.sessions_expired, 1);
    assert_int_equal(stats.sched.logical_tokens, 0);
    assert_int_equal(stats.sched.pages.used, 0);
    run_turn(f, 1, NULL, NULL, "s", note);
    assert_string_equal(note, "stored");
}

static void a_reason_is_given(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 4, 1000000000);
    run_turn(f, 2, NULL, NULL, "s", note);
    run_turn(f, 1, NULL, NULL, "s", note); /* a shorter prompt */
    if (strncmp(note, "ignored: ", 9) != 0) fail_msg("\"%s\"", note);
    engine_request r = request("{" PROMPT ", \"session\": \"s\", \"n\": 2, \"temperature\": 1}");
    retention_report report = report_of(f, &r);
    engine_request_destroy(&r);
    if (strncmp(report.session, "ignored: ", 9) != 0) fail_msg("\"%s\"", report.session);
    assert_true(engine_get_stats(f->engine).sched.sessions_ignored >= 2);
}

static void without_room_there_are_none(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 0, 1000000000);
    run_turn(f, 0, NULL, NULL, "s", note);
    if (strncmp(note, "ignored: ", 9) != 0) fail_msg("\"%s\"", note);
    assert_int_equal(engine_get_stats(f->engine).sched.sessions_idle, 0);
}

/* An aborted answer is no turn: the session is unchanged or gone, never in between. */
static void an_aborted_turn_leaves_nothing(void **state)
{
    fixture *f = *state;
    char note[96];
    with_sessions(f, 4, 1000000000);
    atomic_store(&f->model.hold_at, 3);
    engine_request r = request("{" PROMPT ", \"session\": \"s\"}");
    r.max_tokens = 100;
    engine_stream *s = NULL;
    error err = {{0}};
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    while (!atomic_load(&f->model.hold)) nap();
    engine_stream_abort(s);
    atomic_store(&f->model.hold, false);
    reading got = read_all(s);
    assert_int_equal(got.finish, ENGINE_FINISH_ABORT);
    engine_stats stats = engine_get_stats(f->engine);
    assert_int_equal(stats.sched.sessions_idle, 0);
    run_turn(f, 0, NULL, NULL, "s", note);
    assert_string_equal(note, "stored");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_a_digest),
        cmocka_unit_test(no_client_has_anothers_key),
        CASE(a_session_is_a_short_text),
        CASE(a_default_is_for_requests_without_a_field),
        CASE(full_is_reported_when_named),
        CASE(only_some_methods_may_be_named),
        CASE(bad_rules_make_no_engine),
        CASE(a_default_that_no_request_may_have_is_refused_at_the_start),
        CASE(a_turn_goes_on_from_the_last),
        CASE(a_key_makes_room_for_itself),
        CASE(sessions_are_ones_own),
        CASE(a_session_ends_while_nothing_happens),
        CASE(a_reason_is_given),
        CASE(without_room_there_are_none),
        CASE(an_aborted_turn_leaves_nothing),
    };
    int failures = cmocka_run_group_tests_name("engine and sessions", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}
