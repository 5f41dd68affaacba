/* Sessions kept on disk: their bytes, and that a turn goes on from them when the engine that made
 * them has forgotten them or is gone. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { FIRST = 40, OUTPUT = 8, MORE = 10, SEVEN = 7 };

typedef struct kept {
    fixture f; /* the first member, since the fixture's teardown is used */
    char dir[64];
    disk_records *records;
} kept;

static void open_records(kept *k)
{
    error err = {{0}};
    const disk_records_options o = {.dir = k->dir, .most = 8};
    if (!status_ok(disk_records_open(&o, &k->records, &err))) fail_msg("%s", err.text);
    k->f.options.sessions = k->records;
}

static int setup(void **state)
{
    fixture *plain = fixture_create();
    kept *k = calloc(1, sizeof *k);
    k->f = *plain;
    free(plain);
    fixture *f = &k->f;
    snprintf(k->dir, sizeof k->dir, "%s/octavo-recall-XXXXXX", P_tmpdir);
    if (!mkdtemp(k->dir)) return -1;
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    f->options.backend = &f->backend;
    f->options.stop_ids = &f->eos;
    f->options.alloc = &f->alloc;
    f->options.max_sessions = 8;
    f->model.script[0] = SEVEN;
    f->model.n_script = 1;
    open_records(k);
    *state = k;
    return 0;
}

static void stop(kept *k)
{
    engine_destroy(k->f.engine);
    k->f.engine = NULL;
    k->f.model.n_plans = 0;
    disk_records_close(k->records);
    k->records = NULL;
}

static int teardown(void **state)
{
    kept *k = *state;
    char folder[96], dir[sizeof k->dir];
    stop(k);
    memcpy(dir, k->dir, sizeof dir);
    snprintf(folder, sizeof folder, "%s/sessions", dir);
    fixture_teardown(state);
    DIR *at = opendir(folder);
    for (const struct dirent *e; at && (e = readdir(at)) != NULL;)
        if (e->d_name[0] != '.') unlinkat(dirfd(at), e->d_name, 0);
    if (at) closedir(at);
    rmdir(folder);
    return rmdir(dir);
}

/* Turn `turn` of a conversation whose every answer is OUTPUT sevens. */
static engine_request turn_of(uint32_t turn, const char *identity, const char *session,
                              const char *retention)
{
    char json[256];
    snprintf(json, sizeof json,
             "{\"ignore_eos\": true, \"max_tokens\": 8, \"session\": \"%s\"%s%s}", session,
             retention ? ", \"retention\": " : "", retention ? retention : "");
    engine_request r = request(json);
    r.n_prompt_token_ids = FIRST + turn * (OUTPUT + MORE);
    r.prompt_token_ids = malloc(r.n_prompt_token_ids * sizeof *r.prompt_token_ids);
    for (uint32_t i = 0; i < r.n_prompt_token_ids; i++) {
        bool answered = i >= FIRST && (i - FIRST) % (OUTPUT + MORE) < OUTPUT;
        r.prompt_token_ids[i] = answered ? SEVEN : 100 + i;
    }
    r.identity = strdup(identity);
    return r;
}

static retention_report report_of(fixture *f, const engine_request *r)
{
    engine_stream *stream;
    engine_output out;
    error err = {{0}};
    retention_report report = {0};
    if (!status_ok(engine_submit(f->engine, r, NULL, NULL, &stream, &err)))
        fail_msg("%s", err.text);
    while (engine_stream_wait(stream, &out))
        if (out.finish != ENGINE_FINISH_NONE) report = *out.report;
    engine_stream_release(stream);
    report.kept_json = NULL; /* it was the stream's */
    return report;
}

static void expect_turn(kept *k, uint32_t turn, const char *identity, const char *session,
                        const char *retention, const char *note)
{
    engine_request r = turn_of(turn, identity, session, retention);
    retention_report report = report_of(&k->f, &r);
    if (strcmp(report.session, note) != 0)
        fail_msg("turn %u of %s: '%s', not '%s'", turn, session, report.session, note);
    engine_request_destroy(&r);
}

static void restart(kept *k)
{
    stop(k);
    open_records(k);
    fixture_start(&k->f);
}

static const char chunkkv[] = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 8}";
static const char streaming[] = "{\"method\": \"streaming\", \"ratio\": 0.5}";

static void a_session_outlives_its_engine(void **state)
{
    kept *k = *state;
    fixture_start(&k->f);
    expect_turn(k, 0, "alice", "s", NULL, "stored");
    expect_turn(k, 0, "alice", "t", chunkkv, "stored");
    restart(k);
    expect_turn(k, 1, "bob", "s", NULL, "stored"); /* another's, of the same name */
    expect_turn(k, 1, "alice", "s", NULL, "continued");
    expect_turn(k, 1, "alice", "t", chunkkv, "continued");
    expect_turn(k, 2, "alice", "t", chunkkv, "continued");
    assert_int_equal(engine_get_stats(k->f.engine).sched.sessions_recalled, 2);
    restart(k);
    expect_turn(k, 3, "alice", "t", streaming, "ignored: made with another retention");
    expect_turn(k, 0, "alice", "s", NULL, "ignored: the prompt does not extend the session");
    expect_turn(k, 3, "alice", "t", chunkkv, "continued");
    expect_turn(k, 2, "bob", "s", NULL, "continued");
}

/* The report of a turn after a restart is that of a turn without one: the same was given up. */
static void selections_are_made_again(void **state)
{
    kept *k = *state;
    retention_report reports[2];
    for (int restarts = 0; restarts < 2; restarts++) {
        fixture_start(&k->f);
        char name[8];
        snprintf(name, sizeof name, "s%d", restarts);
        expect_turn(k, 0, "alice", name, chunkkv, "stored");
        if (restarts) restart(k);
        engine_request r = turn_of(1, "alice", name, chunkkv);
        reports[restarts] = report_of(&k->f, &r);
        engine_request_destroy(&r);
        stop(k);
        open_records(k);
    }
    assert_string_equal(reports[1].session, "continued");
    assert_int_equal(reports[0].pages_dropped, reports[1].pages_dropped);
    assert_int_equal(reports[0].logical_tokens, reports[1].logical_tokens);
    assert_true(reports[0].kept_tokens == reports[1].kept_tokens);
    assert_true(reports[0].pages_dropped > 0);
    fixture_start(&k->f);
}

/* Pages that others took are no end of a session that is on disk. */
static void a_session_outlives_its_pages(void **state)
{
    kept *k = *state;
    k->f.options.max_sessions = 1; /* in memory */
    fixture_start(&k->f);
    expect_turn(k, 0, "alice", "a", NULL, "stored");
    expect_turn(k, 0, "alice", "b", NULL, "stored");
    engine_stats stats = engine_get_stats(k->f.engine);
    assert_int_equal(stats.sched.sessions_idle, 1);
    assert_int_equal(stats.records.records, 2);
    expect_turn(k, 1, "alice", "a", NULL, "continued");
    assert_int_equal(engine_get_stats(k->f.engine).sched.sessions_recalled, 1);
}

/* An aborted turn leaves the session as it was before it. */
static void an_aborted_turn_is_no_turn(void **state)
{
    kept *k = *state;
    fixture_start(&k->f);
    expect_turn(k, 0, "alice", "s", NULL, "stored");
    engine_request r = turn_of(1, "alice", "s", NULL);
    engine_stream *stream;
    atomic_store(&k->f.model.hold, true);
    assert_true(status_ok(engine_submit(k->f.engine, &r, NULL, NULL, &stream, NULL)));
    while (!atomic_load(&k->f.model.collecting)) nap();
    engine_stream_release(stream);
    atomic_store(&k->f.model.hold, false);
    engine_request_destroy(&r);
    while (engine_get_stats(k->f.engine).n_live > 0) nap();
    expect_turn(k, 1, "alice", "s", NULL, "continued");
}

static bool has_added(engine *e)
{
    pthread_mutex_lock(&e->inbox.lock);
    bool has = e->inbox.added.first != NULL;
    pthread_mutex_unlock(&e->inbox.lock);
    return has;
}

/* A session is asked for while it is about to be forgotten: both are news of one turn of the engine
 * thread, and its record was read before. */
static void a_forgotten_session_is_not_recalled(void **state)
{
    kept *k = *state;
    fixture_start(&k->f);
    expect_turn(k, 0, "alice", "s", NULL, "stored");
    restart(k);
    engine_request other = turn_of(0, "alice", "other", NULL), r = turn_of(1, "alice", "s", NULL);
    engine_stream *busy, *stream;
    atomic_store(&k->f.model.hold, true);
    assert_true(status_ok(engine_submit(k->f.engine, &other, NULL, NULL, &busy, NULL)));
    while (!atomic_load(&k->f.model.collecting)) nap();
    for (int i = 0; i < FORGETS_MOST + 1; i++) /* one of them waits */
        assert_true(status_ok(engine_forget_session(k->f.engine, &r)));
    assert_true(status_ok(engine_submit(k->f.engine, &r, NULL, NULL, &stream, NULL)));
    while (!has_added(k->f.engine)) nap();
    atomic_store(&k->f.model.hold, false);
    engine_output out;
    char note[128] = "";
    while (engine_stream_wait(stream, &out))
        if (out.finish != ENGINE_FINISH_NONE)
            snprintf(note, sizeof note, "%s", out.report->session);
    assert_string_equal(note, "stored");
    engine_stream_release(stream);
    engine_stream_release(busy);
    engine_request_destroy(&r);
    engine_request_destroy(&other);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static retention_policy policy_of(const char *json)
{
    pkv_geometry geometry = {.page_tokens = 16,
                             .n_layers = 2,
                             .n_kv_heads = 2,
                             .layers_per_group = 1,
                             .heads_per_group = 1};
    retention_limits limits = {.geometry = geometry, .max_window = 512};
    retention_policy policy;
    error err = {{0}};
    json_t *parsed = json_loads(json, 0, NULL);
    if (!status_ok(retention_parse(parsed, &limits, &policy, &err))) fail_msg("%s", err.text);
    json_decref(parsed);
    return policy;
}

static void bytes_come_back(void **state)
{
    (void)state;
    uint32_t tokens[30], drops[2] = {5, 20};
    for (uint32_t i = 0; i < 30; i++) tokens[i] = i;
    sched_turn turns[2] = {{.n_prompt = 10, .end = 12, .policy = policy_of(chunkkv)},
                           {.n_prompt = 20, .end = 30, .policy = policy_of(streaming)}};
    sched_saved saved = {.salt = 9,
                         .turns = turns,
                         .n_turns = 2,
                         .pressure_drops = drops,
                         .n_pressure_drops = 2,
                         .tokens = tokens,
                         .n_tokens = 30};
    strbuf out = {0};
    recalled_session back = {0};
    assert_true(session_encode(&saved, &out));
    uint8_t *bytes = (uint8_t *)out.data;
    assert_true(session_decode(bytes, out.size, 30, &back));
    assert_int_equal(back.saved.salt, 9);
    assert_memory_equal(back.saved.tokens, tokens, sizeof tokens);
    assert_memory_equal(back.saved.pressure_drops, drops, sizeof drops);
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(back.turns[i].policy.preset, turns[i].policy.preset);
        assert_true(back.turns[i].policy.ratio == 0.5);
        assert_int_equal(back.turns[i].end, turns[i].end);
    }
    /* All of it, byte for byte. */
    strbuf again = {0};
    assert_true(session_encode(&back.saved, &again));
    assert_int_equal(again.size, out.size);
    assert_memory_equal(again.data, out.data, out.size);
    free(back.turns);
    for (size_t n = 0; n < out.size; n++) assert_false(session_decode(bytes, n, 30, &back));
    assert_false(session_decode(bytes, out.size, 29, &back)); /* a token of another vocabulary */
    /* Flipped bits give another session or none, and nothing else: sizes are those of the bytes. */
    for (size_t at = 0; at < out.size * 8; at++) {
        bytes[at / 8] ^= (uint8_t)(1 << at % 8);
        recalled_session other = {0};
        if (session_decode(bytes, out.size, 30, &other)) {
            assert_true(other.saved.n_turns == 2 && other.saved.n_tokens == 30);
            free(other.turns);
        }
        bytes[at / 8] ^= (uint8_t)(1 << at % 8);
    }
    strbuf_destroy(&out);
    strbuf_destroy(&again);
}

static void turns_must_follow_each_other(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt[2], end[2], drops[2];
        bool fits;
    } cases[] = {
        {{10, 20}, {12, 30}, {5, 20}, true},  {{10, 20}, {12, 29}, {5, 20}, false},
        {{10, 12}, {12, 30}, {5, 20}, false}, {{0, 20}, {12, 30}, {5, 20}, false},
        {{10, 31}, {12, 30}, {5, 20}, false}, {{10, 20}, {9, 30}, {5, 20}, false},
        {{10, 20}, {12, 30}, {5, 5}, false},  {{10, 20}, {12, 30}, {5, 31}, false},
        {{10, 20}, {12, 30}, {0, 20}, false},
    };
    uint32_t tokens[30] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sched_turn turns[2];
        for (int t = 0; t < 2; t++)
            turns[t] = (sched_turn){
                .n_prompt = cases[i].n_prompt[t], .end = cases[i].end[t], policy_of(chunkkv)};
        sched_saved saved = {.turns = turns,
                             .n_turns = 2,
                             .pressure_drops = cases[i].drops,
                             .n_pressure_drops = 2,
                             .tokens = tokens,
                             .n_tokens = 30};
        strbuf out = {0};
        recalled_session back = {0};
        assert_true(session_encode(&saved, &out));
        bool fits = session_decode((uint8_t *)out.data, out.size, 30, &back);
        assert_int_equal(fits, cases[i].fits);
        if (fits) free(back.turns);
        strbuf_destroy(&out);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_session_outlives_its_engine),
        TEST(selections_are_made_again),
        TEST(a_session_outlives_its_pages),
        TEST(an_aborted_turn_is_no_turn),
        TEST(a_forgotten_session_is_not_recalled),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(turns_must_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
