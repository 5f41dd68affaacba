/* Requests of method `reform`, phase by phase, over the scripted backend: tokens whose ids have the
 * same remainder by EMBED_DIM have the same embedding. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

enum { TOKENS = 200, NEEDLE = 120, NEEDLE_ID = 565, OTHER = 60, OTHER_ID = 566 };
enum { OF_TOKEN = 2 * EMBED_DIM * 2 + 4 }; /* bytes that a token of a text takes */

static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 1}};

/* Every answer is "sure". */
static int setup(void **state)
{
    fixture *f = fixture_create();
    f->options.embed_heads = heads;
    f->options.n_embed_heads = 2;
    f->options.embed_memory = 1 << 20;
    f->options.max_logical_len = 1 << 20;
    f->options.max_sessions = 2;
    f->options.prefix_cache = false; /* all of an answer's prompt is seen */
    answer(f, "sure");
    *state = f;
    return 0;
}

/* Tokens of remainder 0, two of others, and a question of one token, the last one. */
static void fill_prompt(uint32_t *out, uint32_t question)
{
    for (uint32_t i = 0; i < TOKENS; i++) out[i] = 8 * (i % 60 + 1);
    out[NEEDLE] = NEEDLE_ID;
    out[OTHER] = OTHER_ID;
    out[TOKENS - 1] = question;
}

/* A request of 200 tokens, of which 24 are computed again. */
static const char *asked(uint32_t question, const char *more)
{
    static char json[8192];
    uint32_t tokens[TOKENS];
    size_t at = (size_t)snprintf(json, sizeof json, "{\"prompt_token_ids\":[");
    fill_prompt(tokens, question);
    for (uint32_t i = 0; i < TOKENS; i++)
        at += (size_t)snprintf(json + at, sizeof json - at, i ? ",%u" : "%u", tokens[i]);
    (void)snprintf(json + at, sizeof json - at,
                   "],\"max_tokens\":8,\"retention\":{\"method\":\"reform\",\"tokens\":48,"
                   "\"recurrent_chunk\":32,\"rows\":4,\"scope\":\"layer\",\"sinks\":4,\"window\":4,"
                   "\"gather_tokens\":24,\"gather_window\":3,\"query_tokens\":1,"
                   "\"report\":\"positions\"}%s}",
                   more);
    return json;
}

/* The gathered tokens around `at`: the first ones of equal scores, and the last ones. */
static void expect_drawn(const fixture *f, uint32_t question, uint32_t at)
{
    uint32_t all[TOKENS], n = 0, expected[24];
    fill_prompt(all, question);
    for (uint32_t i = 0; i < 17; i++) expected[n++] = all[i];
    for (uint32_t i = at - 1; i <= at + 1; i++) expected[n++] = all[i];
    for (uint32_t i = TOKENS - 4; i < TOKENS; i++) expected[n++] = all[i];
    assert_int_equal(f->model.n_drawn, n);
    assert_memory_equal(f->model.drawn, expected, sizeof expected);
}

/* A stream read to its end, and its report as JSON; *out is freed by the caller. */
static reading read_report(engine_stream *s, strbuf *out)
{
    reading r = {.stop_token = -1};
    engine_output o;
    while (engine_stream_wait(s, &o)) {
        memcpy(r.text + r.bytes, o.text, o.text_bytes);
        r.bytes += o.text_bytes;
        if (o.finish == ENGINE_FINISH_NONE) continue;
        r.ends++;
        r.finish = o.finish;
        r.usage = o.usage;
        if (o.error_text) snprintf(r.error_text, sizeof r.error_text, "%s", o.error_text);
        strbuf_clear(out);
        if (o.report) retention_report_json(o.report, out);
        strbuf_putc(out, '\0');
    }
    engine_stream_release(s);
    return r;
}

static size_t used_bytes(fixture *f) { return engine_get_stats(f->engine).embed_bytes; }

static void expect_in(const strbuf *report, const char *part)
{
    if (!strstr(report->data, part)) fail_msg("%s lacks %s", report->data, part);
}

/* ---- the path -------------------------------------------------------------------------------- */

static void what_the_question_needs_is_read_again(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    reading r = read_report(submit(f, asked(NEEDLE_ID + 8, "")), &report);
    assert_string_equal(r.text, "sure");
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_int_equal(r.usage.prompt_tokens, TOKENS);
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS);
    expect_drawn(f, NEEDLE_ID + 8, NEEDLE);
    expect_in(&report, "\"method\": \"reform\", \"logical_tokens\": 202, \"kept_tokens\": 26,");
    expect_in(&report,
              "\"reform\": {\"layers_run\": 1, \"read_tokens\": 200, \"reused_tokens\": 0, "
              "\"reading_kept_tokens\": 48, \"gathered_tokens\": 23, "
              "\"recomputed_tokens\": 24, ");
    expect_in(&report, "\"kept\": [{\"layers\": [0, 1], \"heads\": [0, 1], \"ranges\": [[0, 17], "
                       "[119, 122], [196, 200]]}]");
    assert_null(strstr(report.data, "\"session\""));
    assert_int_equal(used_bytes(f), 0);
    strbuf_destroy(&report);
}

static void a_short_prompt_is_computed_whole(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    reading r = read_report(
        submit(f, "{\"prompt_token_ids\":[5,6,7],\"max_tokens\":8,\"session\":\"s\",\"retention\":"
                  "{\"method\":\"reform\",\"scope\":\"layer\",\"gather_tokens\":1024,\"rows\":4,"
                  "\"window\":16}}"),
        &report);
    assert_string_equal(r.text, "sure");
    assert_int_equal(f->model.n_drawn, 3);
    assert_int_equal(atomic_load(&f->model.embedded), 0);
    expect_in(&report, "\"reform\": {\"layers_run\": 0, \"read_tokens\": 0, ");
    expect_in(&report, "\"recomputed_tokens\": 3, ");
    expect_in(&report, "\"gather_tokens\": 1024}");
    expect_in(&report, "\"session\": \"ignored: the prompt is short enough to be computed\"");
    strbuf_destroy(&report);
}

/* The model has 2,048 positions, the prompt more tokens. The scripted measures have room for few
 * slots, and recency needs none. */
static void defaults_fit_the_model(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    for (int given = 0; given < 2; given++) {
        strbuf json = {0}, report = {0};
        strbuf_puts(&json, "{\"max_tokens\":8,\"prompt_token_ids\":[1");
        for (int i = 0; i < 2500; i++) strbuf_printf(&json, ",%d", 8 * (i % 60 + 1));
        strbuf_puts(&json, "],\"retention\":{\"method\":\"reform\",\"score\":\"recency\","
                           "\"scope\":\"layer\",\"query_tokens\":1");
        strbuf_puts(&json, given ? ",\"recurrent_chunk\":4096}}" : "}}");
        strbuf_putc(&json, '\0');
        if (given) {
            expect_refused(f, json.data, "recurrent_chunk");
        } else {
            assert_string_equal(read_report(submit(f, json.data), &report).text, "sure");
            expect_in(&report, "\"fields\": {\"tokens\": 1024, \"recurrent_chunk\": 512, "
                               "\"sinks\": 128, \"window\": 128, \"gather_tokens\": 1024}");
            expect_in(&report, "\"reading_kept_tokens\": 1024, \"gathered_tokens\": 1023, ");
        }
        strbuf_destroy(&report);
        strbuf_destroy(&json);
    }
}

static void choices_and_stops_are_those_of_an_ordinary_request(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    reading r = read_all(submit(f, asked(NEEDLE_ID, ",\"n\":3,\"stop\":\"re\"")));
    assert_int_equal(r.ends, 3);
    assert_string_equal(r.text, "su");
    assert_string_equal(r.stop_string, "re");
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS);
}

/* The chat template writes tokens behind the question, which are kept but find nothing. */
static void the_last_user_message_is_the_question(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf json = {0}, report = {0};
    strbuf_puts(&json, "{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 300; i++) strbuf_printf(&json, "%d + %d. ", i, i * i % 7);
    strbuf_puts(&json, "\"},{\"role\":\"assistant\",\"content\":\"Hm.\"},{\"role\":\"user\","
                       "\"content\":[{\"type\":\"text\",\"text\":\" What is 5? \\n\"}]}],"
                       "\"retention\":{\"method\":\"reform\",\"tokens\":48,\"recurrent_chunk\":32,"
                       "\"rows\":4,\"scope\":\"layer\",\"sinks\":4,\"window\":4,"
                       "\"gather_tokens\":100,\"gather_window\":3}}");
    strbuf_putc(&json, '\0');
    engine_stream *s = submit(f, json.data);
    engine_output o;
    assert_true(engine_stream_wait(s, &o)); /* prepared long ago */
    const reform_run *run = s->reform;
    tok_ids question = {0};
    assert_true(status_ok(tok_encode(f->tokenizer, "What is 5?", 10, false, &question, NULL)));
    assert_int_equal(run->n_question, question.n);
    assert_memory_equal(s->tokens + run->question, question.ids, question.n * sizeof *question.ids);
    assert_true(run->question + run->n_question < s->n_tokens);
    tok_ids_destroy(&question);
    assert_string_equal(read_report(s, &report).text, "ure");
    expect_in(&report, "\"recomputed_tokens\": 100");
    strbuf_destroy(&report);
    strbuf_destroy(&json);
}

/* Nothing of a reading is hit by ordinary requests; what is computed again is. */
static void the_prefix_cache_has_what_was_computed_again(void **state)
{
    fixture *f = *state;
    f->options.prefix_cache = true;
    fixture_start(f);
    reading r = read_all(submit(f, asked(NEEDLE_ID, "")));
    assert_int_equal(r.usage.cached_tokens, 0);
    uint32_t all[TOKENS];
    fill_prompt(all, NEEDLE_ID);
    strbuf json = {0};
    strbuf_puts(&json, "{\"max_tokens\":8,\"prompt_token_ids\":[");
    for (uint32_t i = 0; i < TOKENS; i++) strbuf_printf(&json, i ? ",%u" : "%u", all[i]);
    strbuf_append(&json, "]}", sizeof "]}");
    r = read_all(submit(f, json.data));
    assert_int_equal(r.usage.cached_tokens, 16); /* a block of the answer's prompt is the same */
    r = read_all(submit(f, asked(OTHER_ID, "")));
    assert_int_equal(r.usage.cached_tokens, 16);
    strbuf_destroy(&json);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static void the_next_question_of_a_session_reads_only_itself(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    expect_in(&report, "\"session\": \"stored\"");
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS);
    /* The first and last 4 of what it has, before the question. */
    reading r = read_report(submit(f, asked(OTHER_ID, ",\"session\":\"s\"")), &report);
    assert_string_equal(r.text, "sure");
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS + 4 + 4 + 1);
    expect_drawn(f, OTHER_ID, OTHER);
    expect_in(&report, "\"read_tokens\": 1, \"reused_tokens\": 199, ");
    expect_in(&report, "\"session\": \"continued\"");
    /* The same question again has nothing to read. */
    read_report(submit(f, asked(OTHER_ID, ",\"session\":\"s\"")), &report);
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS + 4 + 4 + 1);
    expect_drawn(f, OTHER_ID, OTHER);
    expect_in(&report, "\"read_tokens\": 0, \"reused_tokens\": 200, ");
    strbuf_destroy(&report);
}

static void nobody_else_has_a_session(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"t\"")), &report);
    expect_in(&report, "\"reused_tokens\": 0, ");
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\",\"cache_salt\":\"x\"")), &report);
    expect_in(&report, "\"reused_tokens\": 0, ");
    /* Two are kept, and "s" was the first. */
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    expect_in(&report, "\"reused_tokens\": 0, ");
    strbuf_destroy(&report);
}

static status make_again(void *ctx, backend *out, error *err)
{
    fixture *f = ctx;
    (void)err;
    f->model.n_plans = 0; /* plans in flight went with the old backend */
    *out = f->backend;
    return STATUS_IS_OK;
}

static uint32_t count_sessions(fixture *f)
{
    reform_store *s = &f->engine->embeddings;
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->n_sessions;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* Requests in flight fail with a backend, but what sessions have of their texts stays. */
static void embeddings_outlive_a_backend(void **state)
{
    fixture *f = *state;
    f->options.restart = make_again;
    f->options.restart_ctx = f;
    f->model.failure = status_make(STATUS_INTERNAL, "the rank is gone");
    fixture_start(f);
    strbuf report = {0};
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    /* A step of the second reading itself fails: with two in flight, the first request's answer may
     * have one more step, which would fail alone, without a request. */
    atomic_store(&f->model.fail_reading, true);
    reading r = read_report(submit(f, asked(OTHER_ID, ",\"session\":\"s\"")), &report);
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    while (engine_get_stats(f->engine).n_live > 0) nap();
    while (engine_get_stats(f->engine).state != ENGINE_WORKING) nap();
    while (count_sessions(f) == 0) nap(); /* the failed stream is given up */
    r = read_report(submit(f, asked(OTHER_ID + 8, ",\"session\":\"s\"")), &report);
    assert_string_equal(r.text, "sure");
    expect_drawn(f, OTHER_ID + 8, OTHER);
    expect_in(&report, "\"read_tokens\": 1, \"reused_tokens\": 199, ");
    strbuf_destroy(&report);
}

static void forget(fixture *f)
{
    engine_request r = request("{\"prompt\":\"x\",\"session\":\"s\"}");
    assert_true(status_ok(engine_forget_session(f->engine, &r)));
    engine_request_destroy(&r);
}

static void a_deleted_session_is_read_anew(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    forget(f);
    assert_int_equal(used_bytes(f), 0);
    atomic_store(&f->model.hold, true);
    engine_stream *s = submit(f, asked(NEEDLE_ID, ",\"session\":\"s\""));
    while (used_bytes(f) == 0) nap();
    forget(f); /* while it is read */
    atomic_store(&f->model.hold, false);
    read_report(s, &report);
    expect_in(&report, "\"reused_tokens\": 0, ");
    assert_int_equal(used_bytes(f), 0);
    strbuf_destroy(&report);
}

static bool all_are_taken(engine *e)
{
    pthread_mutex_lock(&e->prepare.lock);
    bool none = !e->prepare.first;
    pthread_mutex_unlock(&e->prepare.lock);
    return none;
}

/* The one tokenizer thread is busy with another request meanwhile. */
static void a_deletion_reaches_a_request_that_waits_for_tokens(void **state)
{
    fixture *f = *state;
    f->options.tokenizer_threads = 1;
    fixture_start(f);
    strbuf report = {0};
    pthread_rwlock_wrlock(&f->engine->sched_lock); /* held up where requests are checked */
    engine_stream *busy = submit(f, "{\"prompt\":\"What is that?\",\"max_tokens\":8}");
    while (!all_are_taken(f->engine)) nap();
    engine_stream *s = submit(f, asked(NEEDLE_ID, ",\"session\":\"s\""));
    forget(f);
    pthread_rwlock_unlock(&f->engine->sched_lock);
    assert_string_equal(read_all(busy).text, "sure");
    assert_string_equal(read_report(s, &report).text, "sure");
    assert_int_equal(count_sessions(f), 0);
    assert_int_equal(used_bytes(f), 0);
    strbuf_destroy(&report);
}

/* Reads a request of this client in this session, and returns what its report says of it. */
static bool is_continued(fixture *f, const char *identity, const char *session)
{
    strbuf report = {0};
    char more[64];
    error err = {{0}};
    engine_stream *s = NULL;
    snprintf(more, sizeof more, ",\"session\":\"%s\"", session);
    engine_request r = request(asked(NEEDLE_ID, more));
    r.identity = strdup(identity);
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    assert_string_equal(read_report(s, &report).text, "sure");
    bool continued = strstr(report.data, "\"session\": \"continued\"");
    strbuf_destroy(&report);
    return continued;
}

/* Three sessions are kept, or memory has room for three. */
static void no_client_pushes_out_the_session_of_another(void **state)
{
    fixture *f = *state;
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        f->options.max_sessions = by_bytes ? 8 : 3;
        if (by_bytes) f->options.embed_memory = 4 * TOKENS * OF_TOKEN - 1;
        fixture_start(f);
        assert_false(is_continued(f, "ann", "s"));
        assert_false(is_continued(f, "bob", "s"));
        assert_false(is_continued(f, "bob", "t"));
        assert_false(is_continued(f, "bob", "u"));
        assert_true(is_continued(f, "ann", "s"));
        assert_true(is_continued(f, "bob", "u"));
        assert_int_equal(count_sessions(f), 3);
        if (by_bytes) return;
        engine_destroy(f->engine);
    }
}

/* ---- ends in every phase --------------------------------------------------------------------- */

static void wait_for_rows(fixture *f, uint32_t n)
{
    while (atomic_load(&f->model.embedded) < n) nap();
}

/* The tokens read until then are there for the session's next request. */
static void an_aborted_reading_leaves_what_it_read(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    strbuf report = {0};
    atomic_store(&f->model.hold_at, 4);
    engine_stream *s = submit(f, asked(NEEDLE_ID, ",\"session\":\"s\",\"n\":2"));
    wait_for_rows(f, 96);
    while (!atomic_load(&f->model.hold)) nap();
    engine_stream_abort(s);
    atomic_store(&f->model.hold, false);
    assert_int_equal(read_report(s, &report).finish, ENGINE_FINISH_ABORT);
    expect_in(&report, "\"method\": \"reform\"");
    while (count_sessions(f) == 0) nap(); /* the engine holds the stream a little longer */
    uint32_t had = atomic_load(&f->model.embedded);
    assert_true(had < TOKENS);
    reading r = read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    assert_string_equal(r.text, "sure");
    expect_in(&report, "\"session\": \"continued\"");
    expect_drawn(f, NEEDLE_ID, NEEDLE);
    assert_int_equal(atomic_load(&f->model.embedded), TOKENS + 4 + 4);
    strbuf_destroy(&report);
}

/* Its session's time passes although no further request wakes the engine. */
static void what_was_read_does_not_wait_for_the_reader(void **state)
{
    fixture *f = *state;
    engine_output o;
    f->options.session_ttl_us = 100000;
    fixture_start(f);
    atomic_store(&f->model.hold_at, 4);
    engine_stream *s = submit(f, asked(NEEDLE_ID, ",\"session\":\"s\""));
    while (!atomic_load(&f->model.hold)) nap();
    engine_stream_abort(s);
    atomic_store(&f->model.hold, false);
    while (engine_stream_wait(s, &o)) continue;
    while (used_bytes(f) > 0) nap();
    engine_stream_release(s);
}

/* The engine may hold a stream a little longer than its reader. */
static void wait_for_room(fixture *f)
{
    while (used_bytes(f) > 0) nap();
}

static void a_step_that_fails_ends_the_request_alone(void **state)
{
    fixture *f = *state;
    f->model.failure = status_make(STATUS_NO_MEMORY, "no room");
    fixture_start(f);
    uint32_t reading_failed = 0, answers_failed = 0;
    for (uint32_t step = 1; step <= 16; step++) {
        strbuf report = {0};
        uint32_t before = atomic_load(&f->model.embedded);
        atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + step);
        reading r = read_report(submit(f, asked(NEEDLE_ID, "")), &report);
        bool failed = r.finish == ENGINE_FINISH_ERROR; /* else the step had no rows */
        if (failed) assert_non_null(strstr(r.error_text, "no room"));
        else assert_string_equal(r.text, "sure");
        bool was_read = atomic_load(&f->model.embedded) - before >= TOKENS;
        reading_failed += failed && !was_read;
        answers_failed += failed && was_read;
        strbuf_destroy(&report);
        wait_for_room(f);
    }
    assert_true(reading_failed > 4);
    assert_true(answers_failed > 1);
    atomic_store(&f->model.fail_at, 0);
    assert_string_equal(read_all(submit(f, asked(NEEDLE_ID, ""))).text, "sure");
}

static void released_at_once_it_leaves_nothing(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    for (uint32_t i = 0; i < 40; i++) {
        engine_stream *s = submit(f, asked(NEEDLE_ID, ""));
        for (uint32_t naps = 0; naps < i % 8; naps++) nap();
        engine_stream_release(s);
    }
    assert_string_equal(read_all(submit(f, asked(NEEDLE_ID, ""))).text, "sure");
    wait_for_room(f);
}

static void clients_have_readings_at_once(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    enum { CLIENTS = 12 };
    engine_stream *s[CLIENTS];
    for (uint32_t i = 0; i < CLIENTS; i++)
        s[i] = submit(f, i % 3 ? asked(i % 2 ? NEEDLE_ID : OTHER_ID, "")
                               : "{\"prompt\":\"What is that?\",\"max_tokens\":8}");
    for (uint32_t i = 0; i < CLIENTS; i++) assert_string_equal(read_all(s[i]).text, "sure");
    assert_int_equal(used_bytes(f), 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static const char *with(const char *field, const char *more)
{
    static char json[8192];
    snprintf(json, sizeof json, "%s", asked(NEEDLE_ID, more));
    const char *name = strchr(field, ':');
    char key[64];
    snprintf(key, sizeof key, "\"%.*s\":", (int)(name - field), field);
    char *at = strstr(json, key), *end = at + strcspn(at, ",}");
    char rest[8192];
    snprintf(rest, sizeof rest, "%s", end);
    snprintf(at, sizeof json - (size_t)(at - json), "%s%s%s", key, name + 1, rest);
    return json;
}

static void errors_name_the_field(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    expect_refused(f, with("gather_tokens:2048", ""), "retention.gather_tokens is 2048");
    expect_refused(f, with("gather_tokens:8", ""), "retention.gather_tokens is 8");
    expect_refused(f, with("gather_window:4", ""), "retention.gather_window is 4: must be odd");
    expect_refused(f, with("query_tokens:20", ""), "retention.query_tokens: the question");
    expect_refused(f, with("query_tokens:null", ""), "retention.query_tokens: must be given");
    expect_refused(f, with("query_tokens:1,\"exit_layer\":3", ""), "retention.exit_layer is 3");
    expect_refused(f, with("query_tokens:1,\"score\":\"novelty\"", ""), "retention.score");
    expect_refused(f, asked(NEEDLE_ID, ",\"prompt_logprobs\":1"), "prompt_logprobs");
    expect_refused(f,
                   "{\"prompt\":\"x\",\"retention\":{\"method\":\"h2o-recurrent\","
                   "\"gather_tokens\":9}}",
                   "retention.gather_tokens is not available for method 'h2o-recurrent'");
}

static void embeddings_have_a_bound(void **state)
{
    fixture *f = *state;
    f->options.embed_memory = TOKENS * OF_TOKEN - 1;
    fixture_start(f);
    assert_int_equal(expect_refused(f, asked(NEEDLE_ID, ""), "--embed-memory"), STATUS_LIMIT);
    engine_destroy(f->engine);

    f->options.embed_memory = 2 * TOKENS * OF_TOKEN - 1;
    fixture_start(f);
    strbuf report = {0};
    read_report(submit(f, asked(NEEDLE_ID, ",\"session\":\"s\"")), &report);
    assert_int_equal(used_bytes(f), TOKENS * OF_TOKEN);
    atomic_store(&f->model.hold, true);
    engine_stream *s = submit(f, asked(NEEDLE_ID, "")); /* the session makes room */
    while (count_sessions(f) > 0) nap();
    assert_int_equal(expect_refused(f, asked(NEEDLE_ID, ""), "other requests have"),
                     STATUS_QUEUE_FULL);
    atomic_store(&f->model.hold, false);
    assert_string_equal(read_report(s, &report).text, "sure");
    strbuf_destroy(&report);
}

/* Weights that overflow: the tokens would be gathered by nothing. */
static void embeddings_that_are_not_finite_end_the_request(void **state)
{
    fixture *f = *state;
    engine_metrics m;
    strbuf report = {0};
    fixture_start(f);
    reading r = read_report(submit(f, asked(UNDEFINED, "")), &report);
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_non_null(strstr(r.error_text,
                           "the reading of the prompt: the model's embeddings are not "
                           "finite (NaN or infinity) in step "));
    engine_get_metrics(f->engine, &m);
    assert_int_equal(m.undefined, 1);
    while (used_bytes(f) > 0) nap(); /* the engine thread lets go last */
    strbuf_destroy(&report);
}

/* A request that other requests leave no room for costs no session its text. */
static void no_session_goes_in_vain(void **state)
{
    fixture *f = *state;
    f->options.embed_memory = 2 * TOKENS * OF_TOKEN + TOKENS / 2 * OF_TOKEN;
    fixture_start(f);
    uint32_t few[TOKENS / 4] = {1, 2, 3};
    reform_text text = {.n = 0};
    reform_claim claim = {.key = {1, 2}};
    reform_store *s = &f->engine->embeddings;
    reform_store_claim(s, &claim);
    assert_true(status_ok(reform_store_reserve(s, &text, TOKENS / 4, NULL)));
    memcpy(text.tokens, few, sizeof few);
    text.n = TOKENS / 4;
    reform_store_keep(s, &claim, &text);
    reform_text held[2] = {{.n = 0}};
    error err = {{0}};
    assert_true(status_ok(reform_store_reserve(s, &held[0], 2 * TOKENS, NULL)));
    assert_int_equal(reform_store_reserve(s, &held[1], TOKENS, &err).code, STATUS_QUEUE_FULL);
    assert_int_equal(count_sessions(f), 1);
    assert_int_equal(used_bytes(f), (2 * TOKENS + TOKENS / 4) * OF_TOKEN);
    assert_true(status_ok(reform_store_reserve(s, &held[1], TOKENS / 2, &err)));
    assert_int_equal(count_sessions(f), 0);
    reform_store_release(s, &held[0]);
    reform_store_release(s, &held[1]);
    assert_int_equal(used_bytes(f), 0);
}

static void a_model_without_heads_or_embeddings_is_refused(void **state)
{
    fixture *f = *state;
    f->options.n_embed_heads = 0;
    fixture_start(f);
    expect_refused(f, asked(NEEDLE_ID, ""), "octavo heads finds them");
    engine_destroy(f->engine);
    f->model.info.n_heads = 0;
    fixture_start(f);
    expect_refused(f, asked(NEEDLE_ID, ""), "the scripted backend does not compute");
}

static engine_stream *submit_telling(fixture *f)
{
    engine_stream *s = NULL;
    error err = {{0}};
    engine_request r = request(asked(NEEDLE_ID, ""));
    r.progress = true;
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

/* Which phase a slow reader sees is chance, but never an earlier one than before. */
static void progress_names_the_phases(void **state)
{
    static const char *const phases[] = {"read", "gather", "recompute"};
    fixture *f = *state;
    engine_output o;
    size_t phase = 0, seen = 0;
    atomic_store(&f->model.hold_at, 3);
    fixture_start(f);
    engine_stream *s = submit_telling(f);
    while (!atomic_load(&f->model.hold)) nap(); /* the first steps have been told */
    while (engine_stream_wait(s, &o)) {
        atomic_store(&f->model.hold, false);
        if (!o.progress.phase) continue;
        while (phase < 3 && strcmp(phases[phase], o.progress.phase) != 0) phase++;
        if (seen++ == 0) assert_int_equal(phase, 0);
        assert_in_range(phase, 0, 2);
        assert_int_equal(o.progress.total_tokens, phase == 0   ? TOKENS
                                                  : phase == 1 ? TOKENS - 1
                                                               : 24);
        assert_true(o.progress.computed_tokens < o.progress.total_tokens);
    }
    assert_true(seen > 0);
    engine_stream_release(s);
}

static int run_all(uint32_t in_flight)
{
    fixture_in_flight = in_flight;
#define PHASED(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        PHASED(what_the_question_needs_is_read_again),
        PHASED(a_short_prompt_is_computed_whole),
        PHASED(defaults_fit_the_model),
        PHASED(choices_and_stops_are_those_of_an_ordinary_request),
        PHASED(the_last_user_message_is_the_question),
        PHASED(the_prefix_cache_has_what_was_computed_again),
        PHASED(the_next_question_of_a_session_reads_only_itself),
        PHASED(nobody_else_has_a_session),
        PHASED(embeddings_outlive_a_backend),
        PHASED(a_deleted_session_is_read_anew),
        PHASED(a_deletion_reaches_a_request_that_waits_for_tokens),
        PHASED(no_client_pushes_out_the_session_of_another),
        PHASED(an_aborted_reading_leaves_what_it_read),
        PHASED(what_was_read_does_not_wait_for_the_reader),
        PHASED(a_step_that_fails_ends_the_request_alone),
        PHASED(released_at_once_it_leaves_nothing),
        PHASED(clients_have_readings_at_once),
        PHASED(errors_name_the_field),
        PHASED(embeddings_have_a_bound),
        PHASED(embeddings_that_are_not_finite_end_the_request),
        PHASED(no_session_goes_in_vain),
        PHASED(a_model_without_heads_or_embeddings_is_refused),
        PHASED(progress_names_the_phases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every test with one step in flight, and with two. */
int main(void) { return run_all(1) + run_all(2); }
