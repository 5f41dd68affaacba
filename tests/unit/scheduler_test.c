/* The contents of a step: chunks, windows, prefix hits, in small scenarios. Plans are read as
 * traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- prompts in chunks, decodes beside them -------------------------------------------------- */

static void prompts_go_in_chunks(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 100, 5), b = request(f, 2, 200, 30, 2);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    assert_int_equal(f->plan->n_opens, 1);
    add(f, &b);
    /* 40 tokens for one prompt, and the rest of 40 + 4 for the next. */
    assert_string_equal(step(f), "1@40+40 2@0+4");
    assert_string_equal(step(f), "1@80+20* 2@4+24");
    assert_string_equal(step(f), "1@100+1* 2@28+2*");
    assert_string_equal(step(f), "1@101+1* 2@30+1*");
    /* Request 2 has its 2 tokens: it waits for its END. */
    assert_string_equal(step(f), "1@102+1*");
    end(f, 2, 0);
    assert_string_equal(step(f), "1@103+1*");
    assert_int_equal(describe(f, 2, 0).output_tokens, 2);
    end(f, 1, SCHED_ALL_CHOICES);
    assert_string_equal(step(f), "");
    assert_non_null(f->plan); /* the plan closes the tables of 1 */
    step(f);
    assert_null(f->plan);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void better_priority_goes_first(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 2;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 5), b = request(f, 2, 100, 10, 5),
                  c = request(f, 3, 200, 10, 5);
    c.priority = -1;
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "3@0+10* 1@0+10*"); /* 2 slots */
    end(f, 3, 0);
    assert_string_equal(step(f), "1@10+1* 2@0+10*");
    finish(f);
}

static void tokens_of_the_plan_are_the_requests(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 700, 3, 5);
    add(f, &a);
    step(f);
    assert_int_equal(f->plan->n_tokens, 3);
    assert_memory_equal(f->plan->tokens, a.prompt, 3 * sizeof(uint32_t));
    assert_string_equal(step(f), "1@3+1*");
    assert_int_equal(f->plan->tokens[0], 500);
    assert_int_equal(f->plan->seqs[0].sample_index, 1);
    finish(f);
}

/* ---- retention ------------------------------------------------------------------------------- */

static void a_window_is_in_one_step(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = retained(f, 1, 0, 100, 5, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    assert_string_equal(step(f), "1@40+28"); /* ends where the window begins */
    assert_string_equal(step(f), "1@68+32*m32");
    assert_int_equal(used_pages(f), 2 * 7);
    assert_string_equal(step(f), "1@100+1*");
    /* 4 of 7 pages stay in each of 2 groups: 3 full ones and the last with 4 tokens, then one more
     * token. */
    assert_int_equal(used_pages(f), 2 * 4);
    sched_choice_info info = describe(f, 1, 0);
    assert_int_equal(info.report.pages_dropped, 6);
    assert_int_equal(info.report.logical_tokens, 101);
    assert_float_equal(info.report.kept_tokens, 53, 0);
    assert_float_equal(info.report.scoring_ms, 3, 1e-9);
    assert_string_equal(info.report.method, "chunkkv");
    finish(f);
}

static void a_window_waits_for_room(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 80, 5), b = retained(f, 2, 200, 40, 5, 32, 64);
    add(f, &a);
    add(f, &b);
    assert_string_equal(step(f), "1@0+40 2@0+4");
    /* The 4 tokens that are left end where b's window begins; its 32 rows must then be in one
     * step. They are within the budget, so nothing is measured. */
    assert_string_equal(step(f), "1@40+40* 2@4+4");
    assert_string_equal(step(f), "1@80+1* 2@8+32*");
    finish(f);
}

static void a_window_that_does_not_fit_is_left_for_the_next_step(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 70, 5), b = retained(f, 2, 200, 40, 5, 40, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    add(f, &b);
    assert_string_equal(step(f), "1@40+30*"); /* 14 are left, but all 40 rows of b are its window */
    assert_string_equal(step(f), "1@70+1* 2@0+40*");
    finish(f);
}

static void a_short_prompt_is_not_measured(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = retained(f, 1, 0, 10, 5, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    assert_string_equal(step(f), "1@10+1*");
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 0);
    finish(f);
}

/* ---- prefix hits ----------------------------------------------------------------------------- */

static void hits_are_capped(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 64, 1);
    add(f, &a);
    assert_string_equal(step(f), "1@0+64*");
    end(f, 1, 0);
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).pages.cached, 2 * 4);

    sched_request full = request(f, 2, 0, 64, 1), drops = retained(f, 3, 0, 64, 1, 30, 48),
                  logits = request(f, 4, 0, 64, 1), salted = request(f, 5, 0, 64, 1);
    logits.want_logits = true;
    salted.salt = 1;
    add(f, &full);
    assert_string_equal(step(f), "2@48+16*"); /* one token must be computed */
    end(f, 2, 0);
    add(f, &drops);
    assert_string_equal(step(f), "3@32+32*m30"); /* and 30 rows must be measured */
    assert_int_equal(describe(f, 3, 0).cached_tokens, 32);
    end(f, 3, 0);
    add(f, &logits);
    assert_string_equal(step(f), "4@0+64*L");
    end(f, 4, 0);
    add(f, &salted);
    assert_string_equal(step(f), "5@0+64*");
    finish(f);
}

static void what_follows_a_drop_is_not_shared(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    fixture *f = begin(o);
    sched_request a = retained(f, 1, 0, 64, 40, 16, 32);
    add(f, &a);
    assert_string_equal(step(f), "1@0+64*m16");
    for (int i = 0; i < 33; i++) step(f);
    end(f, 1, 0);
    step(f);
    /* The prompt's blocks were computed before any drop; the output's were not. */
    sched_request b = request(f, 2, 0, 97, 1);
    for (uint32_t i = 64; i < 97; i++) ((uint32_t *)b.prompt)[i] = 500;
    add(f, &b);
    assert_string_equal(step(f), "2@64+33*");
    finish(f);
}

/* ---- rows of logits -------------------------------------------------------------------------- */

static void logits_are_rationed(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_logit_rows = 8;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 5), b = request(f, 2, 200, 20, 5),
                  c = request(f, 3, 400, 10, 5), d = retained(f, 4, 600, 40, 5, 9, 16);
    a.want_logits = b.want_logits = d.want_logits = true;
    assert_int_equal(sched_check(f->s, &d, NULL).code, STATUS_INVALID); /* 9 rows are measured */
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "1@0+8L 3@0+10*"); /* b waits for logits rows, c does not */
    assert_string_equal(step(f), "3@10+1* 1@8+2*L 2@0+6L");
    assert_string_equal(step(f), "1@10+1* 3@11+1* 2@6+8L");
    finish(f);
}

/* A row with logits counts as 4 of the 44 that a step has for 40 prompt tokens and 4 decodes. */
static sched_options costly_logits(void)
{
    sched_options o = small_options();
    o.logit_row_cost = 400;
    return o;
}

static void rows_with_logits_count_for_what_they_cost(void **state)
{
    (void)state;
    fixture *f = begin(costly_logits());
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 200, 61, 5),
                  c = request(f, 3, 400, 30, 5);
    b.want_logits = true;
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    add(f, &b);
    assert_string_equal(step(f), "1@10+1* 2@0+10L"); /* takes 1 + 40 */
    add(f, &c);
    assert_string_equal(step(f), "1@11+1* 2@10+10L 3@0+3"); /* has what b leaves */
    assert_string_equal(step(f), "1@12+1* 2@20+10L 3@3+3");
    end(f, 3, 0);
    end(f, 1, 0);
    assert_string_equal(step(f), "2@30+31*L"); /* no other waits for the end of this step */
    assert_string_equal(step(f), "2@61+1*");
    finish(f);
}

/* Two prompts that lack one row each do not get both into the same step. */
static void a_last_row_with_logits_is_no_decode(void **state)
{
    (void)state;
    sched_options o = costly_logits();
    o.logit_row_cost = 4000;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 5, 30), b = request(f, 2, 200, 2, 5),
                  c = request(f, 3, 400, 2, 5);
    b.want_logits = c.want_logits = true;
    add(f, &a);
    assert_string_equal(step(f), "1@0+5*");
    add(f, &b);
    assert_string_equal(step(f), "1@5+1* 2@0+1L");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2});
    add(f, &c);
    assert_string_equal(step(f), "1@6+1* 3@0+1L");
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 2});
    assert_string_equal(step(f), "1@7+1* 2@1+1*L");
    assert_string_equal(step(f), "1@8+1* 2@2+1* 3@1+1*L");
    finish(f);
}

/* The prompt that waits lacks tokens of the step and not pages, so the sequence whose reader sleeps
 * keeps its own. */
static void a_costly_prompt_preempts_no_sequence_for_its_cost(void **state)
{
    (void)state;
    sched_options o = costly_logits();
    o.logit_row_cost = 1000;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 200, 110, 5),
                  c = request(f, 3, 400, 4, 5);
    c.want_logits = true;
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "2@0+40");
    f->now_us += 2000000;
    assert_string_equal(step(f), "2@40+40");
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = 0});
    assert_string_equal(step(f), "1@10+1* 3@0+1L 2@80+30*");
    finish(f);
}

static void scores_and_novelty_cost_as_much_as_logits(void **state)
{
    (void)state;
    fixture *f = begin(costly_logits());
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 200, 30, 5),
                  c = with_policy(
                      f, 3, 400, 400, 5,
                      "{\"method\":\"infinipot\",\"tokens\":300,\"window\":8,\"rows\":8}");
    b.want_scores = 1;
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    add(f, &b);
    assert_string_equal(step(f), "1@10+1* 2@0+10");
    end(f, 2, 0);
    add(f, &c);
    assert_string_equal(step(f), "1@11+1* 3@0+10");
    finish(f);
}

/* The rows of a window must be in one step. They wait for one that no other prompt has rows of. */
static void a_window_with_logits_may_exceed_the_budget(void **state)
{
    (void)state;
    fixture *f = begin(costly_logits());
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 200, 50, 5),
                  c = retained(f, 3, 400, 20, 5, 20, 32);
    c.want_logits = true;
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "1@10+1* 2@0+40");
    assert_string_equal(step(f), "1@11+1* 2@40+10*"); /* 33 are left, the window costs 80 */
    assert_string_equal(step(f), "1@12+1* 2@50+1* 3@0+20*L");
    finish(f);
}

/* Where a row costs more than a whole chunk, one is computed all the same. */
static void a_row_is_never_too_costly(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.logit_row_cost = UINT32_MAX;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 200, 3, 5);
    b.want_logits = true;
    add(f, &a);
    step(f);
    add(f, &b);
    assert_string_equal(step(f), "1@10+1* 2@0+1L");
    assert_string_equal(step(f), "1@11+1* 2@1+1L");
    assert_string_equal(step(f), "1@12+1* 2@2+1*L");
    finish(f);
}

static void what_a_device_cannot_measure_is_refused(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.lacks = MEASURES_SUMS;
    fixture *f = begin(o);
    error err;
    sched_request a = with_policy(f, 1, 0, 60, 5, "{\"method\":\"h2o\",\"tokens\":40}");
    assert_int_equal(sched_check(f->s, &a, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "retention.method: h2o needs running sums, which this device "
                                  "cannot measure");
    sched_request b = with_policy(f, 2, 0, 60, 5, "{\"method\":\"tova\",\"tokens\":40}");
    assert_true(status_ok(sched_check(f->s, &b, &err)));
    finish(f);
}

/* Requests may be tokenized in another order than they arrived. */
static void arrival_decides_among_equals(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 30, 5), b = request(f, 2, 200, 30, 5),
                  c = request(f, 3, 400, 30, 5);
    a.arrival = 3;
    b.arrival = 1;
    c.arrival = 2;
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "2@0+30* 3@0+14");
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_go_in_chunks),
        cmocka_unit_test(better_priority_goes_first),
        cmocka_unit_test(tokens_of_the_plan_are_the_requests),
        cmocka_unit_test(a_window_is_in_one_step),
        cmocka_unit_test(a_window_waits_for_room),
        cmocka_unit_test(a_window_that_does_not_fit_is_left_for_the_next_step),
        cmocka_unit_test(a_short_prompt_is_not_measured),
        cmocka_unit_test(hits_are_capped),
        cmocka_unit_test(what_follows_a_drop_is_not_shared),
        cmocka_unit_test(logits_are_rationed),
        cmocka_unit_test(rows_with_logits_count_for_what_they_cost),
        cmocka_unit_test(a_last_row_with_logits_is_no_decode),
        cmocka_unit_test(a_costly_prompt_preempts_no_sequence_for_its_cost),
        cmocka_unit_test(scores_and_novelty_cost_as_much_as_logits),
        cmocka_unit_test(a_window_with_logits_may_exceed_the_budget),
        cmocka_unit_test(a_row_is_never_too_costly),
        cmocka_unit_test(what_a_device_cannot_measure_is_refused),
        cmocka_unit_test(arrival_decides_among_equals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
