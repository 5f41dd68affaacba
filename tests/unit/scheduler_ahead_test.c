/* Two steps in flight: what the second has although the first has not brought its tokens, and what
 * happens to rows that are discarded. Plans are read as traces. */
#include "tests/unit/scheduler_flight.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- planned ahead --------------------------------------------------------------------------- */

static void one_step_is_always_behind(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b;
    run_two(f, &a, &b);
    assert_int_equal(flight[0]->step + 1, flight[1]->step);
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
    assert_int_equal(stats.steps_ahead, 12);
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

/* ---- selections ------------------------------------------------------------------------------ */

/* A policy that selects pages after every token: only the token that begins a page beyond the
 * budget is measured and awaited, others are planned ahead. */
static void pages_are_selected_where_one_is_begun(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a =
        with_policy(f, 1, 0, 30, 60, "{\"method\": \"tova\", \"unit\": \"page\", \"tokens\": 48}");
    char due[32];
    add(f, &a);
    assert_string_equal(plan(f), "1@0+30*");
    for (uint32_t at = 30; at < 80; at++) {
        bool begins = at % 16 == 0 && at >= 48;
        snprintf(due, sizeof due, "1@%u+1*%s%s", at, begins ? "m1" : "",
                 at % 16 == 1 && at > 48 ? "" : "<1");
        assert_string_equal(plan(f), due);
        if (n_flight < 2) continue;
        fine(f);
        if (!begins) continue;
        assert_string_equal(plan(f), ""); /* the selection is awaited */
        fine(f);
    }
    sched_choice_info info = describe(f, 1, 0);
    assert_int_equal(info.report.pages_dropped, 2 * 2);
    finish(f);
}

/* Sums of all rows: nothing comes back of rows behind which no page is given up. */
static void sums_of_pages_are_silent_until_one_is_begun(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = with_policy(
        f, 1, 0, 30, 120,
        "{\"method\": \"h2o\", \"unit\": \"page\", \"scope\": \"layer\", \"tokens\": 96}");
    add(f, &a);
    plan(f);
    for (uint32_t at = 30; at < 130; at++) {
        bool begins = at % 16 == 0 && at >= 96;
        plan(f);
        const step_seq *share = &flight[n_flight - 1]->seqs[0];
        assert_int_equal(share->position, at);
        assert_int_equal(share->measure.kind, MEASURE_MASS);
        assert_int_equal(share->measure.sum, MEASURE_SUM_ADD);
        assert_int_equal(share->measure.silent, !begins);
        if (n_flight < 2) continue;
        fine(f);
        if (!begins) continue;
        assert_string_equal(plan(f), "");
        fine(f);
    }
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

/* ---- arrivals and prompts -------------------------------------------------------------------- */

static void an_arrival_starts_beside_decodes(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    fine(f);
    add(f, &c);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2 3@0+10*");
    assert_int_equal(flight[1]->n_opens, 1);
    fine(f);
    assert_string_equal(plan(f), "1@33+1*<1 2@11+1*<2 3@10+1*<3");
    finish(f);
}

static void chunks_of_a_prompt_follow_each_other(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 100, 20);
    run_two(f, &a, &b);
    add(f, &c);
    fine(f);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2 3@0+40");
    fine(f);
    assert_string_equal(plan(f), "1@33+1*<1 2@11+1*<2 3@40+40");
    assert_int_equal(flight[1]->tokens[2], 240);
    fine(f);
    assert_string_equal(plan(f), "1@34+1*<1 2@12+1*<2 3@80+20*");
    fine(f);
    assert_string_equal(plan(f), "1@35+1*<1 2@13+1*<2 3@100+1*<3");
    finish(f);
}

/* The client leaves while two chunks are in flight: neither counts, and their pages come free. */
static void an_abort_between_two_chunks(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a = request(f, 1, 0, 100, 20);
    add(f, &a);
    assert_string_equal(plan(f), "1@0+40");
    assert_string_equal(plan(f), "1@40+40");
    assert_int_equal(used_pages(f), 2 * 5);
    end(f, 1, 0);
    assert_string_equal(plan(f), "");
    assert_int_equal(describe(f, 1, 0).report.logical_tokens, 40);
    assert_int_equal(used_pages(f), 2 * 3);
    fine(f);
    assert_string_equal(plan(f), "");
    drain(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* A failed step takes along what follows from it, and nothing else. */
static void an_arrival_outlives_a_failed_step(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    fine(f);
    add(f, &c);
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2 3@0+10*");
    result(f, status_make(STATUS_IO, "x"));
    assert_string_equal(plan(f), ""); /* nothing is planned behind a failure */
    fine(f);
    assert_string_equal(plan(f), "3@10+1* 1@16+16* 2@0+10*");
    assert_int_equal(describe(f, 3, 0).output_tokens, 1);
    assert_int_equal(describe(f, 1, 0).output_tokens, 2);
    finish(f);
}

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
    assert_string_equal(plan(f), "1@32+1*<1 2@10+1*<2");
    fine(f);
    finish_choice(f, 1);
    assert_string_equal(plan(f), "2@11+1*<2"); /* a row of 1 is in flight in its slot */
    fine(f);
    assert_string_equal(plan(f), "2@12+1*<1 3@0+10*");
    finish(f);
}

/* A request that waits takes the slot of an idle one, unless that has a row in flight. */
static void an_idle_sequence_gives_way(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 2;
    fixture *f = begin_ahead(o);
    sched_request a, b, c = request(f, 3, 200, 10, 20);
    run_two(f, &a, &b);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1});
    add(f, &c);
    fine(f);
    assert_string_equal(plan(f), "2@10+1*<2");
    f->now_us += 2000000; /* its reader sleeps */
    fine(f);
    assert_string_equal(plan(f), "2@11+1*<1 3@0+10*");
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    assert_int_equal(describe(f, 1, 0).output_tokens, 3);
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
        cmocka_unit_test(pages_are_selected_where_one_is_begun),
        cmocka_unit_test(sums_of_pages_are_silent_until_one_is_begun),
        cmocka_unit_test(a_failed_step_takes_the_next_one_along),
        cmocka_unit_test(a_failed_step_that_was_planned_ahead),
        cmocka_unit_test(an_arrival_starts_beside_decodes),
        cmocka_unit_test(chunks_of_a_prompt_follow_each_other),
        cmocka_unit_test(an_abort_between_two_chunks),
        cmocka_unit_test(an_arrival_outlives_a_failed_step),
        cmocka_unit_test(a_sequence_that_cannot_start_is_passed),
        cmocka_unit_test(an_idle_sequence_gives_way),
    };
    return cmocka_run_group_tests_name("scheduler, steps ahead", tests, NULL, NULL);
}
