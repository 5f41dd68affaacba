/* Lengths of requests whose positions close up: what bounds them, and that no row is ever planned
 * beyond that bound. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Keeps 64 tokens after every 80: positions up to 64 + 80. */
#define RECURRENT                                                                                  \
    "{\"method\": \"streaming-recurrent\", \"tokens\": 64, \"sinks\": 4, \"window\": 10, "         \
    "\"recurrent_chunk\": 80}"

static sched_options context_of(uint32_t max_model_len, uint32_t max_logical_len)
{
    sched_options o = small_options();
    o.max_model_len = max_model_len;
    o.max_logical_len = max_logical_len;
    o.prefill_chunk = 100;
    o.prefix_cache = false;
    return o;
}

static void refused(const fixture *f, const sched_request *r, const char *why)
{
    error err = {""};
    assert_int_equal(sched_check(f->s, r, &err).code, STATUS_LIMIT);
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
}

/* ---- what a request may be ------------------------------------------------------------------- */

static void positions_are_bounded_not_tokens(void **state)
{
    (void)state;
    fixture *f = begin(context_of(144, 100000));
    sched_request a = with_policy(f, 1, 0, 2000, 60, RECURRENT);
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    sched_request full = request(f, 2, 0, 2000, 60);
    refused(f, &full, "2000 tokens and max_tokens 60 make 2060; the maximum context length is 144");
    a.max_new_tokens = 81; /* 64 kept at the prompt's end, then the answer */
    refused(f, &a,
            "take 145 positions under retention method 'streaming-recurrent'; the maximum "
            "context length is 144");
    finish(f);

    f = begin(context_of(143, 100000));
    a = with_policy(f, 1, 0, 2000, 60, RECURRENT);
    refused(f, &a, "take 144 positions");
    a = with_policy(f, 1, 0, 100, 40, RECURRENT); /* no point at 80 + 80, one at its end */
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    finish(f);
}

static void the_logical_length_has_a_bound_of_its_own(void **state)
{
    (void)state;
    fixture *f = begin(context_of(200, 2000));
    sched_request a = with_policy(f, 1, 0, 1940, 60, RECURRENT);
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    a.max_new_tokens = 61;
    refused(f, &a,
            "1940 tokens and max_tokens 61 make 2001 over 1 choices; retention method "
            "'streaming-recurrent' may be given 2000 (--max-logical-len)");
    /* Each choice has a copy of the prompt in host memory. */
    a = with_policy(f, 1, 0, 940, 60, RECURRENT);
    a.n = 2;
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    a.n = 3;
    refused(f, &a, "make 3000 over 3 choices");
    a.n = 1;
    a.want_scores = 1;
    refused(f, &a, "prompt_logprobs: the prompt has 940 tokens");
    finish(f);

    f = begin(context_of(200, 0)); /* no bound is given: the context's */
    a = with_policy(f, 1, 0, 150, 51, RECURRENT);
    refused(f, &a, "may be given 200");
    finish(f);
}

static void a_pass_of_streaming_goes_on_for_ever(void **state)
{
    (void)state;
    fixture *f = begin(context_of(120, 100000));
    const char *in_cache = "{\"method\": \"streaming\", \"tokens\": 64, \"positions\": \"cache\"}";
    const char *original = "{\"method\": \"streaming\", \"tokens\": 64}";
    sched_request a = with_policy(f, 1, 0, 100, 50000, in_cache);
    sched_request b = with_policy(f, 2, 0, 100, 50000, original);
    sched_request c = with_policy(f, 3, 0, 121, 50000, in_cache);
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    refused(f, &b, "the maximum context length is 120");
    refused(f, &c, "take 121 positions"); /* its prompt is selected in at its end */
    finish(f);
}

/* ---- what is planned ------------------------------------------------------------------------- */

/* Runs the request alone and returns how many positions its rows took. */
static uint32_t positions_taken(const sched_options *o, const char *policy, uint32_t n_prompt,
                                uint32_t n_new)
{
    fixture *f = begin(*o);
    sched_request a = with_policy(f, 1, 0, n_prompt, n_new, policy);
    error err = {""};
    if (!status_ok(sched_check(f->s, &a, &err))) fail_msg("%s: %s", policy, err.text);
    uint32_t most = 0, rows = 0;
    add(f, &a);
    while (rows < n_prompt + n_new - 1) {
        step(f);
        for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
            const step_seq *q = &f->plan->seqs[i];
            if (q->position + q->n_tokens > most) most = q->position + q->n_tokens;
            rows += q->n_tokens;
        }
    }
    finish_choice(f, 1);
    step(f);
    finish(f);
    return most;
}

/* The bound is exact where a method keeps tokens, and the answer's last token has no row. */
static void the_bound_is_what_is_taken(void **state)
{
    (void)state;
    rng random = rng_seed(19);
    static const char *const methods[] = {"streaming-recurrent", "h2o-recurrent", "tova-recurrent"};
    for (int i = 0; i < 300; i++) {
        char policy[256];
        uint32_t tokens = 20 + rng_below(&random, 100), chunk = 10 + rng_below(&random, 150);
        snprintf(policy, sizeof policy,
                 "{\"method\": \"%s\", \"tokens\": %u, \"sinks\": %u, \"window\": %u, "
                 "\"recurrent_chunk\": %u}",
                 methods[i % 3], tokens, rng_below(&random, 8), 1 + rng_below(&random, 9), chunk);
        sched_options o = context_of(1000, 100000);
        o.prefill_chunk = 200; /* h2o measures 128 rows at once */
        uint32_t n_prompt = 1 + rng_below(&random, 900), n_new = 2 + rng_below(&random, 60);
        uint32_t taken = positions_taken(&o, policy, n_prompt, n_new);

        fixture *f = begin(o);
        sched_request a = with_policy(f, 1, 0, n_prompt, n_new, policy);
        sched_need need = sched_need_of(&f->geometry, 0, &a.policy, n_prompt, n_new);
        uint32_t more = need.positions - taken; /* the last token's position, where it is largest */
        if (more > 1)
            fail_msg("%s: %u + %u tokens: %u positions, the bound is %u", policy, n_prompt, n_new,
                     taken, need.positions);
        finish(f);
    }
}

/* Whatever the model, a default takes no position that it has not, nor does an answer of half of
 * them. */
static void defaults_take_no_more_positions_than_there_are(void **state)
{
    (void)state;
    static const uint32_t positions[] = {8, 100, 1000, 1024, 4096, 40960, 131072};
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 2,
                                   .n_kv_heads = 2,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1};
    size_t n;
    uint32_t tried = 0;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n; i++) {
        if (!presets[i].defaults.contiguous) continue;
        json_t *json = json_pack("{s:s}", "method", presets[i].name);
        for (size_t k = 0; k < sizeof positions / sizeof *positions; k++) {
            uint32_t most = positions[k];
            const retention_limits limits = {g, 512, most};
            retention_policy p;
            error err;
            if (!status_ok(retention_parse(json, &limits, &p, &err))) fail_msg("%s", err.text);
            for (uint32_t n_prompt = 1; n_prompt < 9 * most; n_prompt += 1 + most / 5, tried++)
                assert_in_range(sched_need_of(&g, 0, &p, n_prompt, most / 2).positions, 1,
                                n_prompt <= most / 2 ? n_prompt + most / 2 : most);
        }
        json_decref(json);
    }
    assert_true(tried > 5 * 7 * 30);
}

/* ---- turns of a session ---------------------------------------------------------------------- */

static const char *run_turn(fixture *f, uint64_t id, uint32_t n_prompt, uint32_t n_new)
{
    static char note[96];
    sched_request a = of_session(with_policy(f, id, 0, n_prompt, n_new, RECURRENT), 1);
    for (uint32_t i = 0; i < n_prompt; i++) ((uint32_t *)a.prompt)[i] = i < 100 ? i : 500;
    assert_true(status_ok(sched_check(f->s, &a, NULL)));
    add(f, &a);
    step(f);
    snprintf(note, sizeof note, "%s", describe(f, id, 0).report.session);
    for (int i = 0; i < 400 && describe(f, id, 0).output_tokens < n_new; i++) {
        for (uint32_t k = 0; k < f->plan->n_seqs; k++) {
            const step_seq *q = &f->plan->seqs[k];
            assert_in_range(q->position + q->n_tokens, 1, 144);
        }
        step(f);
    }
    finish_choice(f, id);
    step(f);
    return note;
}

/* 64 tokens are kept of the prompt, and all 41 of the answer. Then up to 79 more may come before
 * the next selection, but only 39 have positions. */
static void a_session_that_outgrows_the_context_begins_anew(void **state)
{
    (void)state;
    sched_options o = context_of(144, 100000);
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    fixture *f = begin(o);
    assert_string_equal(run_turn(f, 1, 100, 42), "");
    assert_string_equal(run_turn(f, 2, 180, 42), "continued"); /* 141 + 19, then a selection */
    assert_string_equal(run_turn(f, 3, 300, 42), "continued"); /* 221 + 19 */
    /* 341 + 59 to the next one: 164 positions. */
    assert_string_equal(run_turn(f, 4, 480, 42),
                        "restarted: its positions would exceed the context");
    assert_string_equal(run_turn(f, 5, 540, 42), "continued"); /* 521 + 19, the prompt's end */
    finish(f);
}

/* Idle sessions remember their tokens in host memory: of the context's length as many as there may
 * be, of longer ones fewer. */
static void long_sessions_make_room_for_each_other(void **state)
{
    (void)state;
    sched_options o = context_of(144, 1000);
    o.max_sessions = 3;
    o.session_ttl_us = 1000000;
    fixture *f = begin(o);
    for (uint64_t id = 1; id <= 4; id++) {
        sched_request a = of_session(with_policy(f, id, 0, id < 4 ? 340 : 660, 1, RECURRENT), id);
        add(f, &a);
        step(f);
        for (int i = 0; i < 20 && describe(f, id, 0).output_tokens == 0; i++) step(f);
        finish_choice(f, id);
        step(f);
        static const uint32_t left[] = {1, 2, 2, 2}; /* at most 1,000 tokens */
        assert_int_equal(sched_get_stats(f->s).sessions_idle, left[id - 1]);
    }
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_are_bounded_not_tokens),
        cmocka_unit_test(the_logical_length_has_a_bound_of_its_own),
        cmocka_unit_test(a_pass_of_streaming_goes_on_for_ever),
        cmocka_unit_test(the_bound_is_what_is_taken),
        cmocka_unit_test(defaults_take_no_more_positions_than_there_are),
        cmocka_unit_test(a_session_that_outgrows_the_context_begins_anew),
        cmocka_unit_test(long_sessions_make_room_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
