/* Two steps in flight: when the second is planned before the first has brought its tokens, when the
 * first is awaited, and what happens to rows that are discarded. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- steps ----------------------------------------------------------------------------------- */

/* The plans in flight, the oldest first; the fixture itself holds one step. */
static const step_plan *flight[2];
static uint32_t n_flight;

static fixture *begin_ahead(sched_options options)
{
    n_flight = 0;
    options.max_in_flight = 2;
    return begin(options);
}

/* Delivers the posted events and plans. "": nothing to do, or a result is awaited. */
static const char *plan(fixture *f)
{
    const step_plan *p = sched_step(f->s, f->now_us, f->events, f->n_events);
    f->n_events = 0;
    assert_null(sched_check_integrity(f->s));
    if (sched_plan_empty(p)) return "";
    assert_true(n_flight < 2);
    flight[n_flight++] = p;
    return trace_of(f, p);
}

/* Posts the result of the oldest step, before later events. */
static void result(fixture *f, status st)
{
    assert_true(n_flight > 0);
    f->plan = flight[0];
    flight[0] = flight[--n_flight];
    answer(f, st);
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
}

static void fine(fixture *f) { result(f, STATUS_IS_OK); }

/* Steps until nothing is in flight or to be done. */
static void drain(fixture *f)
{
    while (n_flight > 0) {
        fine(f);
        plan(f);
    }
}

/* Two prompts are done, a step of both is in flight, and the next one is planned ahead of it. */
static void run_two(fixture *f, sched_request *a, sched_request *b)
{
    *a = request(f, 1, 0, 30, 20);
    *b = request(f, 2, 100, 8, 20);
    add(f, a);
    add(f, b);
    assert_string_equal(plan(f), "1@0+30* 2@0+8*");
    assert_string_equal(plan(f), ""); /* its result forks the choices */
    fine(f);
    assert_string_equal(plan(f), "1@30+1* 2@8+1*");
    assert_string_equal(plan(f), "1@31+1*<1 2@9+1*<2");
}

/* ---- planned ahead --------------------------------------------------------------------------- */

static void one_step_is_always_behind(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    assert_string_equal(plan(f), ""); /* two in flight is the limit */
    assert_int_equal(flight[0]->step + 1, flight[1]->step);
    assert_int_equal(flight[0]->tokens[0], 500);
    assert_int_equal(flight[1]->tokens[0], 0);
    assert_int_equal(flight[1]->seqs[0].sample_index, 2);
    assert_int_equal(flight[1]->n_opens, 0);
    for (uint32_t i = 0; i < 10; i++) {
        fine(f);
        plan(f);
        assert_int_equal(n_flight, 2);
        assert_int_equal(flight[1]->seqs[1].position, 10 + i);
        assert_int_equal(flight[1]->seqs[1].sample_index, 3 + i);
        assert_int_equal(flight[1]->seqs[1].token_from, 2);
        assert_int_equal(describe(f, 1, 0).output_tokens, 2 + i);
    }
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.steps, 13);
    assert_int_equal(stats.steps_ahead, 11);
    end(f, 1, 0);
    end(f, 2, 0);
    plan(f);
    drain(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void one_in_flight_unless_asked_for_more(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 30, 20);
    add(f, &a);
    step(f);
    assert_string_equal(step(f), "1@30+1*");
    step_in_flight(f); /* step_in_flight expects an empty plan */
    assert_int_equal(sched_get_stats(f->s).steps_ahead, 0);
    finish(f);
}

/* Shares of the step before are found by their own index, also after a sequence left. */
static void a_leaving_sequence_changes_the_index(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "2@10+1*<2");
    fine(f);
    assert_string_equal(plan(f), "2@11+1*<1");
    finish(f);
}

/* ---- discarded rows -------------------------------------------------------------------------- */

/* Request 1 draws a stop token in the step that is collected: its row in the next step is
 * discarded. */
static void an_ended_sequence_has_a_discarded_row(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    uint64_t generated = sched_get_stats(f->s).generated_tokens;
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "2@10+1*<2");
    sched_choice_info info = describe(f, 1, 0);
    assert_int_equal(info.output_tokens, 2);
    assert_int_equal(info.report.logical_tokens, 31); /* the row planned ahead does not count */
    assert_int_equal(used_pages(f), 2 * 3);           /* its row is still in flight */
    fine(f);
    assert_string_equal(plan(f), "2@11+1*<1");
    assert_int_equal(used_pages(f), 2 * 1);
    assert_int_equal(describe(f, 2, 0).output_tokens, 3);
    assert_int_equal(sched_get_stats(f->s).generated_tokens, generated + 3);
    finish(f);
}

static void an_abort_between_two_steps(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2"); /* both steps were planned ahead */
    end(f, 1, 0);
    assert_string_equal(plan(f), "");
    assert_int_equal(describe(f, 1, 0).report.logical_tokens, 31);
    fine(f);
    assert_string_equal(plan(f), "2@11+1*<2");
    fine(f);
    assert_string_equal(plan(f), "2@12+1*<1");
    assert_int_equal(used_pages(f), 2 * 1);
    assert_int_equal(describe(f, 2, 0).output_tokens, 4);
    finish(f);
}

/* A page that was taken for a discarded row is freed with it. */
static void a_row_in_vain_takes_no_page(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = request(f, 1, 0, 31, 20);
    add(f, &a);
    plan(f);
    fine(f);
    assert_string_equal(plan(f), "1@31+1*");
    assert_int_equal(used_pages(f), 2 * 2);
    assert_string_equal(plan(f), "1@32+1*<1");
    assert_int_equal(used_pages(f), 2 * 3);
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "");
    assert_int_equal(used_pages(f), 2 * 2);
    drain(f);
    assert_int_equal(used_pages(f), 0);
    assert_int_equal(sched_get_stats(f->s).pages.cached, 2 * 2); /* blocks of known tokens */
    finish(f);
}

/* A turn has ended while its discarded row is in flight. */
static fixture *begin_turn(void)
{
    sched_options o = small_options();
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    fixture *f = begin_ahead(o);
    sched_request a = of_session(request(f, 1, 0, 30, 9), 7);
    add(f, &a);
    plan(f);
    fine(f);
    assert_string_equal(plan(f), "1@30+1*");
    assert_string_equal(plan(f), "1@31+1*<1");
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "");
    return f;
}

static sched_request next_turn(fixture *f)
{
    sched_request b = of_session(request(f, 2, 0, 51, 4), 7);
    ((uint32_t *)b.prompt)[30] = 500;
    return b;
}

/* A session ends where it would without steps ahead. */
static void a_session_has_no_row_in_vain(void **state)
{
    (void)state;
    fixture *f = begin_turn();
    assert_string_equal(describe(f, 1, 0).report.session, "stored");
    fine(f);
    plan(f);
    drain(f);
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_idle, 1);
    assert_int_equal(stats.logical_tokens, 31);
    sched_request b = next_turn(f);
    add(f, &b);
    assert_string_equal(plan(f), "2@31+20*");
    drain(f);
    finish(f);
}

/* A client that reads the end of a turn may send the next turn before the discarded row is done. */
static void the_next_turn_may_come_at_once(void **state)
{
    (void)state;
    fixture *f = begin_turn();
    sched_request b = next_turn(f);
    fine(f);
    add(f, &b);
    assert_string_equal(plan(f), "2@31+20*");
    assert_int_equal(sched_get_stats(f->s).sessions_ignored, 0);
    drain(f);
    finish(f);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void a_failed_step_takes_the_next_one_along(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    result(f, status_make(STATUS_IO, "x"));
    assert_string_equal(plan(f), ""); /* the step behind it is awaited, and discarded */
    fine(f);
    assert_string_equal(plan(f), "1@16+15* 2@0+9*");
    assert_int_equal(flight[0]->n_opens, 2);
    assert_int_equal(flight[0]->seqs[0].sample_index, 1);
    assert_int_equal(describe(f, 1, 0).output_tokens, 1);
    fine(f);
    assert_string_equal(plan(f), "1@31+1* 2@9+1*");
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    finish(f);
}

static void a_failed_step_that_was_planned_ahead(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2");
    result(f, status_make(STATUS_IO, "x"));
    end(f, 2, 0);
    assert_string_equal(plan(f), "");
    fine(f);
    assert_string_equal(plan(f), "1@16+16*");
    assert_int_equal(flight[0]->seqs[0].sample_index, 2);
    assert_int_equal(used_pages(f), 2 * 2);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*");
    finish(f);
}

/* ---- awaited --------------------------------------------------------------------------------- */

static void an_arrival_is_not_kept_waiting(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    fine(f);
    add(f, &c);
    assert_string_equal(plan(f), "");
    fine(f);
    assert_string_equal(plan(f), "1@32+1* 2@10+1* 3@0+10*");
    finish(f);
}

/* A request that cannot start does not make steps wait, until an event could let it start. */
static void a_sequence_that_cannot_start_is_passed(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 2;
    fixture *f = begin_ahead(o);
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    add(f, &c);
    fine(f);
    assert_string_equal(plan(f), ""); /* the new request is not examined yet */
    fine(f);
    assert_string_equal(plan(f), "1@32+1* 2@10+1*");
    assert_string_equal(plan(f), "1@33+1*<1 2@11+1*<2");
    fine(f);
    assert_string_equal(plan(f), "1@34+1*<1 2@12+1*<2");
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "");
    fine(f);
    assert_string_equal(plan(f), "2@13+1* 3@0+10*");
    finish(f);
}

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

/* The selection after a row, and the rows that it measures, come from steps of their own. */
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
        if (measures) assert_int_equal(n_flight, 1);
        if (n_flight == 2) assert_int_equal(flight[1]->seqs[0].measure.kind, MEASURE_NONE);
        ahead += n_flight == 2;
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
        if (n_flight == 2) { /* neither row in flight is the last before a point */
            uint32_t at = flight[1]->seqs[0].position;
            assert_true(retention_next_point(&a.policy, 20, at - 1) > at + 1);
            ahead++;
        }
        if (used_pages(f) > most) most = used_pages(f);
        fine(f);
    }
    assert_true(ahead > 10);
    assert_in_range(most, 1, 2 * 4);
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
    fine(f);
    assert_string_equal(plan(f), "1@30+1* 2@14+17*");
    fine(f);
    assert_string_equal(plan(f), "1@31+1* 2@31+1*");
    assert_string_equal(plan(f), ""); /* both need a third block; the pool has 5 */
    assert_int_equal(used_pages(f), 2 * 4);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*");
    assert_int_equal(describe(f, 2, 0).preemptions, 1);
    assert_string_equal(plan(f), ""); /* 2 might start now: it was not examined yet */
    fine(f);
    assert_string_equal(plan(f), "1@33+1*");
    assert_string_equal(plan(f), "1@34+1*<1");
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
    assert_string_equal(plan(f), ""); /* its token is known, and the next row comes */
    fine(f);
    assert_string_equal(plan(f), "1@32+1* 2@12+1*");
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_step_is_always_behind),
        cmocka_unit_test(one_in_flight_unless_asked_for_more),
        cmocka_unit_test(a_leaving_sequence_changes_the_index),
        cmocka_unit_test(an_ended_sequence_has_a_discarded_row),
        cmocka_unit_test(an_abort_between_two_steps),
        cmocka_unit_test(a_row_in_vain_takes_no_page),
        cmocka_unit_test(a_session_has_no_row_in_vain),
        cmocka_unit_test(the_next_turn_may_come_at_once),
        cmocka_unit_test(a_failed_step_takes_the_next_one_along),
        cmocka_unit_test(a_failed_step_that_was_planned_ahead),
        cmocka_unit_test(an_arrival_is_not_kept_waiting),
        cmocka_unit_test(a_sequence_that_cannot_start_is_passed),
        cmocka_unit_test(the_last_token_is_the_last),
        cmocka_unit_test(a_retention_point_is_awaited),
        cmocka_unit_test(a_point_without_measures_is_awaited),
        cmocka_unit_test(pages_that_are_short_are_awaited),
        cmocka_unit_test(a_paused_sequence_has_no_row),
    };
    return cmocka_run_group_tests_name("scheduler, steps ahead", tests, NULL, NULL);
}
