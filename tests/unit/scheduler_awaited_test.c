/* Two steps in flight: what is left out of the second because it depends on the result of the
 * first, and when the first is awaited. Plans are read as traces. */
#include "tests/unit/scheduler_flight.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void the_last_token_is_the_last(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = request(f, 1, 0, 30, 3), b = request(f, 2, 100, 8, 4);
    add(f, &a);
    add(f, &b);
    plan(f);
    fine(f);
    assert_string_equal(plan(f), "1@30+1* 2@8+1*");
    assert_string_equal(plan(f), "1@31+1*<1 2@9+1*<2"); /* draws the third token of 1 */
    fine(f);
    assert_string_equal(plan(f), "2@10+1*<2");
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "");
    assert_int_equal(describe(f, 1, 0).output_tokens, 3);
    assert_int_equal(used_pages(f), 2 * 1); /* none of its rows is in flight any more */
    fine(f);
    finish_choice(f, 2);
    plan(f);
    drain(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* A selection follows the row in flight: what is kept of it decides what the next row reads. */
static void a_retention_point_is_awaited(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = with_policy(f, 1, 0, 40, 60,
                                  "{\"method\": \"snapkv-decode\", \"tokens\": 30, \"window\": 3, "
                                  "\"interval\": 8}");
    add(f, &a);
    uint32_t ahead = 0, measured = 0;
    for (uint32_t i = 0; i < 60; i++) {
        while (*plan(f)) continue;
        bool measures = flight[0]->seqs[0].measure.kind != MEASURE_NONE;
        if (n_flight == 2) { /* no point follows the row in flight */
            uint32_t at = flight[1]->seqs[0].position;
            assert_true(retention_next_point(&a.policy, 40, at - 1) > at);
            ahead++;
        }
        measured += measures;
        fine(f);
    }
    assert_true(ahead >= 10 && measured >= 10);
    assert_true(describe(f, 1, 0).report.kept_tokens < 60);
    assert_true(describe(f, 1, 0).report.pages_dropped > 0);
    finish(f);
}

/* A point that measures nothing: it shows only where tables are cut. */
static void a_point_without_measures_is_awaited(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = with_policy(f, 1, 0, 20, 60,
                                  "{\"method\": \"streaming\", \"tokens\": 40, \"sinks\": 4, "
                                  "\"window\": 12, \"interval\": 8}");
    add(f, &a);
    uint32_t most = 0, ahead = 0;
    for (uint32_t i = 0; i < 55; i++) {
        while (*plan(f)) continue;
        if (n_flight == 2) { /* no point follows the row in flight */
            uint32_t at = flight[1]->seqs[0].position;
            assert_true(retention_next_point(&a.policy, 20, at - 1) > at);
            ahead++;
        }
        if (used_pages(f) > most) most = used_pages(f);
        fine(f);
    }
    assert_true(ahead > 10);
    assert_in_range(most, 1, 2 * 4);
    finish(f);
}

/* Seven sequences draw their first tokens in the step in flight, and the next one has their rows
 * beside the prompts of the last requests. */
static fixture *begin_seven(void)
{
    sched_options o = small_options();
    o.max_seqs = 12;
    o.max_requests = 12;
    o.prefill_chunk = 80;
    fixture *f = begin_ahead(o);
    sched_request seven[7];
    for (uint32_t i = 0; i < 7; i++) {
        seven[i] = request(f, 1 + i, 100 * i, 4, 20);
        add(f, &seven[i]);
    }
    plan(f);
    return f;
}

/* How many shares of the request the newest step has. */
static uint32_t shares_of(uint64_t request)
{
    const step_plan *p = flight[n_flight - 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) n += p->seqs[i].request == request;
    return n;
}

static void one_of_many_is_left_out(void **state)
{
    (void)state;
    fixture *f = begin_seven();
    sched_request a = retained(f, 8, 900, 64, 20, 4, 32);
    add(f, &a);
    plan(f);
    assert_int_equal(flight[1]->n_seqs, 8);
    assert_int_equal(flight[1]->seqs[7].measure.rows, 4);
    fine(f);
    plan(f); /* a selection follows the prompt */
    assert_int_equal(flight[1]->n_seqs, 7);
    assert_int_equal(shares_of(8), 0);
    fine(f);
    plan(f);
    assert_int_equal(flight[1]->n_seqs, 8);
    assert_int_equal(shares_of(8), 1);
    assert_true(describe(f, 8, 0).report.kept_tokens < 64);
    finish(f);
}

/* A selection follows each token of the last request: it has as many rows as the others. */
static void one_that_is_always_awaited_keeps_pace(void **state)
{
    (void)state;
    fixture *f = begin_seven();
    sched_request a = with_policy(f, 8, 900, 4, 20,
                                  "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"full\"},"
                                  "\"decode\":{\"beta1\":3,\"beta2\":2,\"scope\":\"layer\"}}");
    uint32_t rows[2] = {0};
    add(f, &a);
    plan(f);
    for (int i = 0; i < 14; i++) {
        fine(f);
        if (plan(f)[0] == '\0') continue; /* the result in flight is awaited */
        rows[0] += shares_of(1);
        rows[1] += shares_of(8);
    }
    assert_true(rows[0] >= 6);
    assert_in_range(rows[1], rows[0] - 2, rows[0]);
    finish(f);
}

/* Where more than one share in eight would be left out, the step is awaited. */
static void two_of_nine_are_awaited(void **state)
{
    (void)state;
    fixture *f = begin_seven();
    sched_request a = retained(f, 8, 900, 30, 20, 4, 16), b = retained(f, 9, 950, 30, 20, 4, 16);
    add(f, &a);
    add(f, &b);
    plan(f);
    assert_int_equal(flight[1]->n_seqs, 9);
    fine(f);
    assert_string_equal(plan(f), "");
    fine(f);
    plan(f);
    assert_int_equal(n_flight, 1);
    assert_int_equal(flight[0]->n_seqs, 9);
    finish(f);
}

static void a_fork_is_left_out(void **state)
{
    (void)state;
    fixture *f = begin_seven();
    sched_request a = request(f, 8, 900, 30, 20);
    a.n = 3;
    add(f, &a);
    plan(f);
    assert_int_equal(flight[1]->seqs[7].n_samples, 3);
    fine(f);
    plan(f);
    assert_int_equal(flight[1]->n_seqs, 7);
    fine(f);
    plan(f);
    assert_int_equal(shares_of(8), 3);
    assert_int_equal(flight[1]->n_opens, 2);
    finish(f);
}

/* The mask of a draw depends on the draw before. */
static void a_masked_draw_is_awaited(void **state)
{
    (void)state;
    fixture *f = begin_seven();
    sched_request a = request(f, 8, 900, 30, 20);
    a.masked = true;
    add(f, &a);
    plan(f);
    assert_int_equal(flight[1]->seqs[7].n_samples, 1);
    for (int i = 0; i < 6; i++) { // it is left out of one step, and then the result is awaited
        fine(f);
        if (!*plan(f)) continue;
        for (uint32_t k = 0; k < flight[n_flight - 1]->n_seqs; k++) {
            const step_seq *s = &flight[n_flight - 1]->seqs[k];
            if (s->request == 8) assert_int_equal(s->token_from, 0);
        }
    }
    assert_in_range(describe(f, 8, 0).output_tokens, 2, 5);
    finish(f);
}

static void pooled_states_are_awaited(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    c.pooling = POOLING_SUM;
    fine(f);
    add(f, &c);
    plan(f);
    assert_int_equal(flight[1]->seqs[2].pooling, POOLING_SUM);
    fine(f);
    assert_string_equal(plan(f), "");
    finish(f);
}

/* Logits of rows come with the result: no step is behind one that has them. */
static void a_step_with_logits_is_awaited(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    c.want_logits = true;
    fine(f);
    add(f, &c);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2 3@0+10*L");
    fine(f);
    assert_string_equal(plan(f), "");
    fine(f);
    assert_string_equal(plan(f), "1@33+1* 2@11+1* 3@10+1*");
    finish(f);
}

static void pages_that_are_short_are_awaited(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 5;
    o.prefix_cache = false;
    fixture *f = begin_ahead(o);
    sched_request a = request(f, 1, 0, 30, 30), b = request(f, 2, 100, 31, 30);
    add(f, &a);
    add(f, &b);
    assert_string_equal(plan(f), "1@0+30* 2@0+14");
    assert_string_equal(plan(f), "1@30+1*<1 2@14+17*");
    fine(f);
    assert_string_equal(plan(f), "1@31+1*<1 2@31+1*<2");
    assert_int_equal(used_pages(f), 2 * 4);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*<1"); /* both need a third block; the pool has 5 */
    assert_int_equal(used_pages(f), 2 * 5);
    fine(f);
    assert_string_equal(plan(f), ""); /* 2 gives way when no row of it is in flight */
    fine(f);
    assert_string_equal(plan(f), "1@33+1*");
    assert_int_equal(describe(f, 2, 0).preemptions, 1);
    assert_int_equal(describe(f, 2, 0).output_tokens, 2);
    assert_string_equal(plan(f), "1@34+1*<1");
    finish(f);
}

/* A selection gathers what stays in fresh pages. They are set aside until the result of its step is
 * in, also from the rows of the step planned ahead of that result. */
static void pages_of_a_selection_stay_free(void **state)
{
    (void)state;
    enum { CHUNK = 120, STEPS = 17 };
    sched_options o = small_options();
    o.max_seqs = o.max_requests = 8;
    o.prefill_chunk = CHUNK;
    o.max_model_len = 3000;
    o.prefix_cache = false;
    o.n_pages = 1 + 2 * (7 * 3 + (CHUNK * STEPS + 15) / 16); /* three pages for each of the seven */
    fixture *f = begin_ahead(o);
    sched_request seven[7], last;
    for (uint32_t i = 0; i < 7; i++) {
        seven[i] = request(f, 1 + i, 100 * i, 15, 40);
        add(f, &seven[i]);
    }
    plan(f);
    last = with_policy(f, 8, 0, CHUNK * STEPS, 20,
                       "{\"method\": \"snapkv\", \"tokens\": 24, \"window\": 4}");
    add(f, &last);
    plan(f);
    for (uint32_t i = 1; i < STEPS; i++) {
        fine(f);
        plan(f);
    }
    assert_int_equal(flight[1]->seqs[7].measure.rows, 4);
    fine(f);
    plan(f); /* each of the seven needs its third page, and one does not get it */
    assert_int_equal(flight[1]->n_seqs, 6);
    fine(f);
    plan(f);
    assert_int_equal(describe(f, 8, 0).preemptions, 0);
    assert_true(describe(f, 8, 0).report.kept_tokens < 30);
    drain(f);
    finish(f);
}

/* A row that is discarded would stay in the running sums of the pages that a session keeps. */
static void a_draw_is_awaited_for_the_sums_of_a_session(void **state)
{
    (void)state;
    static const char policy[] =
        "{\"method\": \"h2o\", \"tokens\": 64, \"sinks\": 4, \"window\": 16}";
    sched_options o = small_options();
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    fixture *f = begin_ahead(o);
    sched_request a = of_session(with_policy(f, 1, 0, 20, 30, policy), 7);
    sched_request b = with_policy(f, 2, 100, 20, 30, policy);
    add(f, &a);
    assert_string_equal(plan(f), "1@0+20*m20");
    assert_string_equal(plan(f), "");
    finish_choice(f, 1);
    drain(f);
    add(f, &b);
    assert_string_equal(plan(f), "2@0+20*m20");
    assert_string_equal(plan(f), "2@20+1*m1<1");
    finish(f);
}

static void a_paused_sequence_has_no_row(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1});
    fine(f);
    assert_string_equal(plan(f), "2@10+1*<2");
    fine(f);
    assert_string_equal(plan(f), "2@11+1*<1");
    assert_int_equal(describe(f, 1, 0).output_tokens, 3); /* both of its rows count */
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1});
    fine(f);
    assert_string_equal(plan(f), "1@32+1* 2@12+1*<1"); /* the token of 1 is known */
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_token_is_the_last),
        cmocka_unit_test(a_retention_point_is_awaited),
        cmocka_unit_test(a_point_without_measures_is_awaited),
        cmocka_unit_test(one_of_many_is_left_out),
        cmocka_unit_test(one_that_is_always_awaited_keeps_pace),
        cmocka_unit_test(two_of_nine_are_awaited),
        cmocka_unit_test(a_fork_is_left_out),
        cmocka_unit_test(a_masked_draw_is_awaited),
        cmocka_unit_test(pooled_states_are_awaited),
        cmocka_unit_test(a_step_with_logits_is_awaited),
        cmocka_unit_test(pages_that_are_short_are_awaited),
        cmocka_unit_test(pages_of_a_selection_stay_free),
        cmocka_unit_test(a_draw_is_awaited_for_the_sums_of_a_session),
        cmocka_unit_test(a_paused_sequence_has_no_row),
    };
    return cmocka_run_group_tests_name("scheduler, awaited steps", tests, NULL, NULL);
}
