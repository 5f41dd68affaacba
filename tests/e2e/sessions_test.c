/* Sessions of the demo model: a turn that continues from retained pages gives the tokens and
 * logprobs that the same sequence gives in one request, wherever the pages were in between. A
 * session that cannot continue reports why, and the turn is answered as without a session. */
#include "tests/e2e/house.h"

enum { PROMPT = 200, FIRST = 24, SECOND = 24, BLOCK = 32768, MOST = 2048 };

static const setting usual = {.kv_type = KERN_KV_BF16,
                              .prefill_chunk = 512,
                              .layers_per_group = 1,
                              .heads_per_group = 4,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .kv_bytes = 2000 * (uint64_t)BLOCK,
                              .swap_bytes = 200 * (uint64_t)BLOCK,
                              .prefix_cache = true,
                              .max_sessions = 8};

typedef struct answer {
    uint32_t n;
    uint32_t tokens[MOST];
    float logprobs[MOST];
    retention_report report;
    engine_usage usage;
} answer;

/* The request of a turn. */
typedef struct turn {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t outputs;
    const char *retention; // JSON, or NULL
    const char *session;
    const char *identity, *salt;
    uint32_t n;
} turn;

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

static engine_stream *submit(house *h, const turn *t)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s = NULL;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = (uint32_t *)(uintptr_t)t->tokens;
    r.n_prompt_token_ids = t->n_tokens;
    r.max_tokens = t->outputs;
    r.ignore_eos = true;
    r.logprobs = 0;
    r.n = t->n ? t->n : 1;
    r.retention = t->retention ? json_loads(t->retention, 0, NULL) : NULL;
    r.session = copy(t->session);
    r.identity = copy(t->identity);
    r.cache_salt = copy(t->salt);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("%s: %s", t->retention ? t->retention : "full", err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    *a = (answer){0};
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.choice != 0) continue;
        if (out.has_token) {
            a->tokens[a->n] = out.sample.token;
            a->logprobs[a->n++] = out.sample.logprob;
        }
        if (out.report) a->report = *out.report;
        if (out.finish != ENGINE_FINISH_NONE) a->usage = out.usage;
    }
    a->report.kept_json = NULL; /* it belongs to the stream */
    engine_stream_release(s);
}

static void ask(house *h, const turn *t, answer *a) { read_answer(submit(h, t), a); }

/* Compares tokens and logprobs with the whole answer from `at` on. */
static void assert_same(const char *what, const answer *whole, uint32_t at, const answer *part)
{
    for (uint32_t i = 0; i < part->n; i++)
        if (whole->tokens[at + i] != part->tokens[i] ||
            memcmp(&whole->logprobs[at + i], &part->logprobs[i], sizeof(float)) != 0)
            fail_msg("%s: token %u is %u (%g), not %u (%g)", what, i, part->tokens[i],
                     part->logprobs[i], whole->tokens[at + i], whole->logprobs[at + i]);
}

static void make_prompt(uint64_t seed, uint32_t *tokens)
{
    rng random = rng_seed(seed);
    for (uint32_t i = 0; i < PROMPT; i++) tokens[i] = rng_below(&random, 1000);
}

/* ---- turn 2 is the same sequence ------------------------------------------------------------- */

typedef struct method {
    /* Turn 2 has room for everything: nothing more is dropped. */
    const char *first, *second;
    /* Or it selects again at every token: turn 2 begins at one of the first request's
     * selections. */
    bool decodes;
} method;

static const method methods[] = {
    {NULL, NULL, false},
    {"{\"method\":\"full\"}", "{\"method\":\"full\"}", false},
    {"{\"method\":\"chunkkv\",\"ratio\":0.3,\"window\":16}",
     "{\"method\":\"chunkkv\",\"ratio\":1,\"window\":16}", false},
    {"{\"method\":\"chunkkv\",\"ratio\":0.3,\"window\":16,\"reuse_layers\":2}",
     "{\"method\":\"chunkkv\",\"ratio\":1,\"window\":16,\"reuse_layers\":2}", false},
    {"{\"method\":\"chunkkv\",\"ratio\":0.3,\"unit\":\"chunk\",\"chunk\":10}",
     "{\"method\":\"chunkkv\",\"ratio\":1,\"unit\":\"chunk\",\"chunk\":10}", false},
    {"{\"method\":\"snapkv\",\"ratio\":0.3,\"scope\":\"layer\"}",
     "{\"method\":\"snapkv\",\"ratio\":1,\"scope\":\"layer\"}", false},
    {"{\"method\":\"truncate\",\"tokens\":900}", "{\"method\":\"truncate\",\"tokens\":900}", false},
    {"{\"method\":\"streaming\",\"tokens\":64}", "{\"method\":\"streaming\",\"tokens\":64}", true},
    {"{\"method\":\"tova\",\"tokens\":64}", "{\"method\":\"tova\",\"tokens\":64}", true},
    {"{\"method\":\"h2o\",\"tokens\":64,\"scope\":\"layer\"}",
     "{\"method\":\"h2o\",\"tokens\":64,\"scope\":\"layer\"}", true},
};
enum { METHODS = sizeof methods / sizeof methods[0] };

/* Gets the greedy answer of FIRST + SECOND tokens in one request; then the same in two turns. The
 * prompt of the second turn contains `more` tokens of the answer, so that it continues from tokens
 * whose K and V the session does not have. */
static void one_sequence_in_two(house *h, const method *m, uint32_t more, void (*between)(house *h))
{
    uint32_t tokens[PROMPT + FIRST + SECOND];
    answer whole, first, second;
    char what[256];
    snprintf(what, sizeof what, "%s, %u more", m->first ? m->first : "no retention", more);
    make_prompt(7, tokens);
    turn t = {tokens, PROMPT, FIRST + SECOND, .retention = m->first};
    ask(h, &t, &whole);
    t.outputs = FIRST;
    t.session = "s";
    ask(h, &t, &first);
    assert_same(what, &whole, 0, &first);
    assert_string_equal(first.report.session, "stored");
    if (between) between(h);
    memcpy(tokens + PROMPT, whole.tokens, (FIRST + more) * sizeof *tokens);
    t.n_tokens = PROMPT + FIRST + more;
    t.outputs = SECOND - more;
    t.retention = m->second;
    ask(h, &t, &second);
    assert_string_equal(second.report.session, "continued");
    assert_int_equal(second.usage.prompt_tokens, PROMPT + FIRST + more);
    assert_same(what, &whole, FIRST + more, &second);
    if (m->first) assert_true(second.report.kept_tokens == whole.report.kept_tokens);
}

static void a_turn_continues_the_sequence(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < METHODS; i++) {
        house h = open_house(&usual);
        one_sequence_in_two(&h, &methods[i], 0, NULL);
        close_house(&h);
        if (methods[i].decodes) continue;
        h = open_house(&usual);
        one_sequence_in_two(&h, &methods[i], 20, NULL);
        close_house(&h);
    }
}

/* Runs another request that takes nearly the whole pool: the idle session's pages go to the host
 * tier. */
static void crowd_out(house *h)
{
    uint32_t tokens[900];
    answer a;
    for (uint32_t i = 0; i < 900; i++) tokens[i] = (i * 37 + 11) % 1000;
    engine_stats before = engine_get_stats(h->engine);
    assert_int_equal(before.sched.sessions_idle, 1);
    ask(h, &(turn){tokens, 900, .outputs = 20}, &a);
    engine_stats after = engine_get_stats(h->engine);
    assert_int_equal(after.sched.sessions_idle, 0);
    assert_int_equal(after.sched.sessions_swapped, 1);
}

static void a_session_may_be_swapped_out(void **state)
{
    (void)state;
    setting s = usual;
    s.kv_bytes = 60 * (uint64_t)BLOCK; /* the crowd takes 58 of 59 */
    for (uint32_t i = 0; i < METHODS; i++) {
        house h = open_house(&s);
        one_sequence_in_two(&h, &methods[i], methods[i].decodes ? 0 : 5, crowd_out);
        close_house(&h);
    }
}

/* Without a host tier the session is dropped, which the next turn's report says. */
static void without_a_tier_it_makes_room(void **state)
{
    (void)state;
    setting s = usual;
    s.kv_bytes = 60 * (uint64_t)BLOCK;
    s.swap_bytes = 0;
    house h = open_house(&s);
    uint32_t tokens[900];
    answer a;
    make_prompt(3, tokens);
    turn t = {tokens, PROMPT, FIRST, .session = "s"};
    ask(&h, &t, &a);
    assert_string_equal(a.report.session, "stored");
    for (uint32_t i = 0; i < 900; i++) tokens[i] = (i * 37 + 11) % 1000;
    ask(&h, &(turn){tokens, 900, .outputs = 20}, &a);
    engine_stats stats = engine_get_stats(h.engine);
    assert_int_equal(stats.sched.sessions_idle + stats.sched.sessions_swapped, 0);
    assert_int_equal(stats.sched.sessions_expired, 1);
    close_house(&h);
}

/* ---- budgets of later turns ------------------------------------------------------------------ */

/* T is the whole length: the second selection is made over what the first one left. */
static void each_turn_keeps_its_share(void **state)
{
    (void)state;
    static const char ratio[] = "{\"method\":\"chunkkv\",\"ratio\":0.3,\"window\":16}";
    house h = open_house(&usual);
    uint32_t tokens[PROMPT + 5 * 60];
    answer a;
    make_prompt(11, tokens);
    for (uint32_t i = PROMPT; i < PROMPT + 5 * 60; i++) tokens[i] = (i * 7) % 900;
    uint32_t n = PROMPT;
    for (uint32_t i = 0; i < 5; i++) {
        ask(&h, &(turn){tokens, n, 10, .retention = ratio, .session = "s"}, &a);
        assert_string_equal(a.report.session, i ? "continued" : "stored");
        assert_int_equal(a.report.logical_tokens, n + 9);
        uint32_t budget = (uint32_t)(0.3 * n + 1e-6) / 16 * 16;
        /* A partial last page counts as a whole one. */
        assert_true(a.report.kept_tokens <= budget + 9 && a.report.kept_tokens > budget - 16);
        memcpy(tokens + n, a.tokens, 10 * sizeof *tokens);
        n += 60;
    }
    close_house(&h);
}

/* ---- sessions that do not continue ----------------------------------------------------------- */

static void expect_ignored(house *h, const turn *t, const char *reason)
{
    turn plain = *t;
    answer with, without;
    plain.session = NULL;
    ask(h, t, &with);
    ask(h, &plain, &without);
    if (strncmp(with.report.session, "ignored: ", 9) != 0 || !strstr(with.report.session, reason))
        fail_msg("\"%s\" is not ignored for \"%s\"", with.report.session, reason);
    assert_int_equal(with.n, without.n);
    assert_same(reason, &without, 0, &with);
}

static void reasons_are_reported(void **state)
{
    (void)state;
    static const char half[] = "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":16}";
    house h = open_house(&usual);
    uint32_t tokens[PROMPT], other[PROMPT];
    answer a;
    make_prompt(21, tokens);
    make_prompt(22, other);
    ask(&h, &(turn){tokens, 120, FIRST, .retention = half, .session = "s"}, &a);
    assert_string_equal(a.report.session, "stored");
    expect_ignored(&h, &(turn){other, PROMPT, 8, .retention = half, .session = "s"},
                   "does not extend the session");
    expect_ignored(&h, &(turn){tokens, 100, 8, .retention = half, .session = "s"},
                   "does not extend the session");
    expect_ignored(&h, &(turn){tokens, PROMPT, 8, .retention = half, .session = "s", .n = 2},
                   "n is above 1");
    static const char cut[] = "{\"method\":\"truncate\",\"tokens\":60}";
    expect_ignored(&h, &(turn){tokens, PROMPT, 8, .retention = cut, .session = "other"},
                   "the method cuts the prompt");
    close_house(&h);
}

static void two_turns_at_once_are_one_too_many(void **state)
{
    (void)state;
    house h = open_house(&usual);
    uint32_t tokens[PROMPT];
    answer first, second, alone;
    make_prompt(31, tokens);
    turn t = {tokens, PROMPT, 200, .session = "s"};
    shut_gate(&h); /* neither may have ended when the other arrives */
    engine_stream *running = submit(&h, &t);
    await_prepared(&h); /* with two prepare threads the second could overtake */
    t.outputs = 8;
    engine_stream *late = submit(&h, &t);
    open_gate(&h);
    read_answer(late, &second);
    assert_string_equal(second.report.session, "ignored: busy");
    read_answer(running, &first);
    assert_string_equal(first.report.session, "stored");
    t.session = NULL;
    ask(&h, &t, &alone);
    assert_same("beside a running turn", &alone, 0, &second);
    close_house(&h);
}

static void an_aborted_turn_ends_the_session(void **state)
{
    (void)state;
    static const char half[] = "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":16}";
    house h = open_house(&usual);
    uint32_t tokens[PROMPT + FIRST];
    answer a, fresh;
    make_prompt(41, tokens);
    turn t = {tokens, PROMPT, FIRST, .retention = half, .session = "s"};
    ask(&h, &t, &a);
    memcpy(tokens + PROMPT, a.tokens, FIRST * sizeof *tokens);
    t.n_tokens += FIRST;
    t.outputs = 500;
    engine_stream *running = submit(&h, &t);
    engine_output out;
    for (uint32_t i = 0; i < 3; i++) assert_true(engine_stream_wait(running, &out));
    engine_stream_abort(running);
    read_answer(running, &a);
    assert_int_equal(engine_get_stats(h.engine).sched.sessions_idle, 0);
    /* The same turn again starts without a session. */
    t.outputs = 8;
    ask(&h, &t, &a);
    assert_string_equal(a.report.session, "stored");
    t.session = NULL;
    ask(&h, &t, &fresh);
    assert_same("after an aborted turn", &fresh, 0, &a);
    close_house(&h);
}

static void sessions_are_ones_own(void **state)
{
    (void)state;
    house h = open_house(&usual);
    uint32_t tokens[PROMPT];
    answer a;
    make_prompt(51, tokens);
    ask(&h, &(turn){tokens, 100, FIRST, .session = "s", .identity = "alice"}, &a);
    memcpy(tokens + 100, a.tokens, FIRST * sizeof *tokens);
    ask(&h, &(turn){tokens, PROMPT, 8, .session = "s", .identity = "bob"}, &a);
    assert_string_equal(a.report.session, "stored");
    ask(&h, &(turn){tokens, PROMPT, 8, .session = "s", .identity = "alice", .salt = "x"}, &a);
    assert_string_equal(a.report.session, "stored");
    ask(&h, &(turn){tokens, PROMPT, 8, .session = "s", .identity = "alice"}, &a);
    assert_string_equal(a.report.session, "continued");
    close_house(&h);
}

/* ---- the end of a session -------------------------------------------------------------------- */

static void time_ends_it(void **state)
{
    (void)state;
    setting s = usual;
    s.session_ttl_us = 50000;
    house h = open_house(&s);
    uint32_t tokens[PROMPT];
    answer a;
    make_prompt(61, tokens);
    ask(&h, &(turn){tokens, PROMPT, FIRST, .session = "s"}, &a);
    assert_string_equal(a.report.session, "stored");
    engine_stats stats;
    do stats = engine_get_stats(h.engine);
    while (stats.sched.sessions_idle > 0);
    assert_int_equal(stats.sched.sessions_expired, 1);
    assert_int_equal(stats.sched.pages.used, 0);
    close_house(&h);
}

static void others_make_room(void **state)
{
    (void)state;
    setting s = usual;
    s.max_sessions = 2;
    house h = open_house(&s);
    static const char *const names[] = {"a", "b", "c"};
    uint32_t tokens[PROMPT];
    answer a;
    for (uint32_t i = 0; i < 3; i++) {
        make_prompt(71 + i, tokens);
        ask(&h, &(turn){tokens, 50, 4, .session = names[i]}, &a);
        assert_string_equal(a.report.session, "stored");
    }
    engine_stats stats = engine_get_stats(h.engine);
    assert_int_equal(stats.sched.sessions_idle, 2);
    assert_int_equal(stats.sched.sessions_expired, 1);
    memcpy(tokens + 50, a.tokens, 4 * sizeof *tokens);
    ask(&h, &(turn){tokens, 60, 4, .session = "c"}, &a);
    assert_string_equal(a.report.session, "continued");
    ask(&h, &(turn){tokens, 60, 4, .session = "a"}, &a);
    assert_string_equal(a.report.session, "stored");
    close_house(&h);
}

static void others_hit_what_a_session_holds(void **state)
{
    (void)state;
    static const char half[] = "{\"method\":\"chunkkv\",\"ratio\":0.25,\"window\":16}";
    house h = open_house(&usual);
    uint32_t tokens[PROMPT];
    answer first, hit;
    make_prompt(81, tokens);
    answer cold;
    ask(&h, &(turn){tokens, PROMPT, .outputs = 8}, &cold);
    engine_flush_cache(h.engine);
    ask(&h, &(turn){tokens, PROMPT, 8, .retention = half, .session = "s"}, &first);
    assert_string_equal(first.report.session, "stored");
    assert_true(first.report.pages_dropped > 0);
    ask(&h, &(turn){tokens, PROMPT, .outputs = 8}, &hit);
    assert_int_equal(hit.usage.cached_tokens, PROMPT / 16 * 16);
    assert_same("a hit beside a session", &cold, 0, &hit);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_continues_the_sequence),
        cmocka_unit_test(a_session_may_be_swapped_out),
        cmocka_unit_test(without_a_tier_it_makes_room),
        cmocka_unit_test(each_turn_keeps_its_share),
        cmocka_unit_test(reasons_are_reported),
        cmocka_unit_test(two_turns_at_once_are_one_too_many),
        cmocka_unit_test(an_aborted_turn_ends_the_session),
        cmocka_unit_test(sessions_are_ones_own),
        cmocka_unit_test(time_ends_it),
        cmocka_unit_test(others_make_room),
        cmocka_unit_test(others_hit_what_a_session_holds),
    };
    return cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
}
