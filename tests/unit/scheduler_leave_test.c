/* Tables that are closed or opened in portions: what the sequence and others do meanwhile. A page
 * of all groups is 2 cells, and a step takes one such page away. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Pools of so many blocks; a portion of one page is one for 4 slots. */
static sched_options in_portions(uint32_t blocks, uint32_t host_blocks)
{
    sched_options o = small_options();
    o.prefill_chunk = 200;
    o.n_pages = 1 + 2 * blocks;
    o.n_host_pages = 2 * host_blocks;
    o.prefix_cache = false;
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    o.hand_out_slots = 4;
    return o;
}

/* Request 1 has 51 tokens in 4 pages and ends, beside request 2, which goes on. */
static void end_one(fixture *f, bool finished)
{
    sched_request a = request(f, 1, 0, 50, 9), b = request(f, 2, 500, 10, 40);
    a.session[0] = finished ? 7 : 0;
    a.session[1] = finished ? 7 : 0;
    add(f, &a);
    add(f, &b);
    step(f);
    step(f);
    if (finished) finish_choice(f, 1);
    else end(f, 1, 0);
}

static uint32_t idle_sessions(const fixture *f) { return sched_get_stats(f->s).sessions_idle; }

static void pages_come_free_one_by_one(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    end_one(f, false);
    for (uint32_t left = 4; left-- > 0;) {
        step(f);
        assert_true(strncmp(f->trace, "2@", 2) == 0);
        assert_int_equal(used_pages(f), 2 * (left + 1));
    }
    end(f, 2, 0);
    step(f);
    step(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void count_saved(void *ctx, const sched_saved *saved)
{
    uint32_t *n = ctx;
    assert_int_equal(saved->n_tokens, 51);
    assert_int_equal(saved->n_turns, 1);
    assert_int_equal(saved->turns[0].end, 51);
    assert_int_equal(saved->tokens[50], 500);
    ++*n;
}

/* What is kept of it elsewhere is told at once. */
static void a_session_is_parked_page_by_page(void **state)
{
    (void)state;
    uint32_t n_saved = 0;
    sched_options o = in_portions(40, 0);
    o.on_session = count_saved;
    o.on_session_ctx = &n_saved;
    fixture *f = begin(o);
    end_one(f, true);
    for (uint32_t left = 4; left-- > 0;) {
        assert_int_equal(idle_sessions(f), 0);
        step(f);
        assert_int_equal(n_saved, 1);
        assert_true(strncmp(f->trace, "2@", 2) == 0);
        assert_int_equal(used_pages(f), 2 * 5);
    }
    assert_int_equal(idle_sessions(f), 1);
    end(f, 2, 0);
    step(f);
    finish(f);
}

/* Tokens that the fixture's backend drew, and new ones. */
static sched_request second_turn(fixture *f)
{
    sched_request r = request(f, 3, 0, 72, 4);
    for (uint32_t i = 50; i < 52; i++) ((uint32_t *)r.prompt)[i] = 500;
    r.session[0] = r.session[1] = 7;
    return r;
}

/* Request 3 goes on from 4 parked pages, beside request 2. */
static void comes_back(fixture *f)
{
    sched_request c = second_turn(f);
    add(f, &c);
    for (int i = 0; i < 3; i++) {
        step(f);
        assert_string_equal(describe(f, 3, 0).report.session, "continued");
        assert_true(strncmp(f->trace, "2@", 2) == 0);
        assert_null(strstr(f->trace, "3@"));
    }
    assert_non_null(strstr(step(f), "3@51+21*"));
}

static void a_session_comes_back_page_by_page(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    end_one(f, true);
    while (idle_sessions(f) == 0) step(f);
    comes_back(f);
    finish(f);
}

static void the_next_turn_does_not_wait(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    end_one(f, true);
    step(f);
    assert_int_equal(idle_sessions(f), 0);
    comes_back(f); /* the rest of its pages was parked at once */
    finish(f);
}

/* Request 4, which ends at the same time and ranks behind it, has the portions first. */
static void a_session_that_waits_for_its_portion_is_told_and_not_busy(void **state)
{
    (void)state;
    uint32_t n_saved = 0;
    sched_options o = in_portions(40, 0);
    o.on_session = count_saved;
    o.on_session_ctx = &n_saved;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 50, 9), b = request(f, 2, 500, 10, 40);
    sched_request d = request(f, 4, 1000, 60, 9);
    a.session[0] = a.session[1] = 7;
    add(f, &a);
    add(f, &b);
    add(f, &d);
    step(f);
    step(f);
    finish_choice(f, 1);
    end(f, 4, 0);
    step(f);
    assert_int_equal(n_saved, 1);
    assert_int_equal(idle_sessions(f), 0);
    sched_request c = second_turn(f);
    add(f, &c);
    step(f);
    assert_string_equal(describe(f, 3, 0).report.session, "continued");
    finish(f);
}

static void a_request_may_end_before_its_tables_are_back(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    end_one(f, true);
    while (idle_sessions(f) == 0) step(f);
    sched_request c = second_turn(f);
    add(f, &c);
    step(f);
    assert_true(describe(f, 3, 0).arriving);
    end(f, 3, 0);
    step(f);
    assert_false(describe(f, 3, 0).arriving); /* its report is of all its tables */
    for (int i = 0; i < 5; i++) step(f);
    assert_int_equal(used_pages(f), 2 * 2);
    assert_int_equal(idle_sessions(f), 0);
    finish(f);
}

static void a_session_may_be_deleted_between_portions(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    end_one(f, true);
    step(f);
    post(f, (sched_event){.kind = SCHED_FORGET, .session = {7, 7}});
    for (int i = 0; i < 8; i++) step(f); /* they are parked, then given up */
    assert_int_equal(idle_sessions(f), 0);
    assert_int_equal(used_pages(f), 2 * 2); /* of request 2 */
    sched_request c = second_turn(f);
    add(f, &c);
    step(f);
    assert_string_equal(describe(f, 3, 0).report.session, "");
    finish(f);
}

/* Requests 1 and 2 have 7 pages each; the pool has 15. Both grow until 2 has to give way. */
static void press(fixture *f)
{
    sched_request a = request(f, 1, 0, 100, 60), b = request(f, 2, 500, 100, 60);
    a.priority = -1;
    add(f, &a);
    add(f, &b);
    for (int i = 0; i < 40 && used_pages(f) <= 2 * 15; i++) {
        step(f);
        if (!strstr(f->trace, "2@")) return;
    }
    fail_msg("none was preempted");
}

static void others_wait_for_a_victim(uint32_t host_blocks)
{
    fixture *f = begin(in_portions(15, host_blocks));
    press(f);
    uint32_t used = used_pages(f), n_steps = 0;
    assert_int_equal(describe(f, 2, 0).preemptions, 0); /* it is leaving */
    sched_request c = request(f, 3, 2000, 10, 4);
    c.priority = 1;
    add(f, &c);
    for (; describe(f, 2, 0).preemptions == 0; n_steps++) {
        step(f);
        assert_true(strncmp(f->trace, "1@", 2) == 0);
        assert_null(strstr(f->trace, "3@")); /* 2 goes before it */
        assert_true(used_pages(f) < used);
        used = used_pages(f);
    }
    assert_true(n_steps >= 4);
    assert_int_equal(describe(f, 2, 0).preemptions, 1);
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.swaps_out, host_blocks > 0);
    assert_int_equal(stats.pages.host_used, host_blocks > 0 ? 2 * 7 : 0);
    end(f, 1, 0);
    for (int i = 0; i < 200 && describe(f, 2, 0).output_tokens < 60; i++) step(f);
    assert_int_equal(describe(f, 2, 0).output_tokens, 60);
    assert_int_equal(sched_get_stats(f->s).pages.host_used, 0);
    finish(f);
}

static void others_wait_while_it_is_swapped_out(void **state)
{
    (void)state;
    others_wait_for_a_victim(16);
}

static void others_wait_while_it_gives_up_its_pages(void **state)
{
    (void)state;
    others_wait_for_a_victim(0);
}

static void a_victim_may_end_between_portions(void **state)
{
    (void)state;
    for (uint32_t host_blocks = 0; host_blocks <= 16; host_blocks += 16) {
        fixture *f = begin(in_portions(15, host_blocks));
        press(f);
        step(f);
        end(f, 2, 0);
        for (int i = 0; i < 16; i++) step(f); /* to the tier, then out of it */
        sched_stats stats = sched_get_stats(f->s);
        assert_int_equal(stats.pages.host_used, 0);
        assert_int_equal(stats.swapped_tokens, 0);
        assert_int_equal(stats.preemptions, 0);
        assert_true(used_pages(f) <= 2 * 9);
        finish(f);
    }
}

/* ---- hits of the prefix cache ---------------------------------------------------------------- */

/* n steps in which request 3 takes a block and computes nothing. */
static void take_blocks(fixture *f, uint32_t n)
{
    uint32_t before = used_pages(f);
    for (uint32_t i = 0; i < n; i++) {
        step(f);
        assert_true(strncmp(f->trace, "2@", 2) == 0);
        assert_null(strstr(f->trace, "3@"));
        assert_true(describe(f, 3, 0).arriving);
    }
    assert_int_equal(used_pages(f), before + 2 * n);
}

/* Request 1 has left 4 blocks in the cache; request 2 goes on beside request 3, which hits them and
 * has taken one. */
static fixture *begin_hit_in(uint32_t blocks)
{
    sched_options o = in_portions(blocks, 0);
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 66, 1), b = request(f, 2, 500, 18, 40);
    add(f, &a);
    step(f);
    end(f, 1, 0);
    add(f, &b);
    step(f);
    while (used_pages(f) > 4) step(f);
    sched_request c = request(f, 3, 0, 66, 9);
    add(f, &c);
    take_blocks(f, 1);
    return f;
}

static fixture *begin_hit(void) { return begin_hit_in(40); }

static void a_hit_is_taken_block_by_block(void **state)
{
    (void)state;
    fixture *f = begin_hit();
    uint32_t computed, n_prompt;
    assert_true(sched_prompt_progress(f->s, 3, &computed, &n_prompt));
    assert_int_equal(computed, 16);
    take_blocks(f, 2);
    assert_true(sched_prompt_progress(f->s, 3, &computed, &n_prompt));
    assert_int_equal(computed, 48);
    assert_non_null(strstr(step(f), "3@64+2*"));
    assert_false(describe(f, 3, 0).arriving);
    assert_int_equal(describe(f, 3, 0).cached_tokens, 64);
    end(f, 2, 0);
    end(f, 3, 0);
    for (int i = 0; i < 8; i++) step(f);
    finish(f);
}

/* Usage says where the prompt was at first. A step fails, so the request takes its hit again. */
static void a_hit_after_a_failed_step_is_not_counted_again(void **state)
{
    (void)state;
    fixture *f = begin_hit();
    uint32_t n_steps = 0;
    take_blocks(f, 2);
    assert_non_null(strstr(step(f), "3@64+2*"));
    answer(f, status_make(STATUS_NO_MEMORY, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    while (!strstr(step(f), "3@64+2*") && n_steps < 16) n_steps++;
    assert_in_range(n_steps, 3, 15); /* in portions */
    assert_int_equal(describe(f, 3, 0).cached_tokens, 64);
    end(f, 2, 0);
    end(f, 3, 0);
    for (int i = 0; i < 8; i++) step(f);
    finish(f);
}

static void blocks_that_leave_meanwhile_are_computed(void **state)
{
    (void)state;
    fixture *f = begin_hit();
    take_blocks(f, 1);
    post(f, (sched_event){.kind = SCHED_FLUSH});
    assert_non_null(strstr(step(f), "3@32+34*"));
    assert_int_equal(describe(f, 3, 0).cached_tokens, 32);
    end(f, 2, 0);
    end(f, 3, 0);
    for (int i = 0; i < 8; i++) step(f);
    finish(f);
}

/* Its usage says what it took of the hit. */
static void a_request_may_end_before_it_has_its_hit(void **state)
{
    (void)state;
    fixture *f = begin_hit();
    assert_int_equal(describe(f, 3, 0).cached_tokens, 16);
    take_blocks(f, 1);
    assert_int_equal(describe(f, 3, 0).cached_tokens, 32);
    end(f, 3, 0);
    assert_null(strstr(step(f), "3@"));
    assert_int_equal(describe(f, 3, 0).cached_tokens, 32);
    for (int i = 0; i < 3; i++) assert_null(strstr(step(f), "3@"));
    assert_int_equal(used_pages(f), 4);
    end(f, 2, 0);
    step(f);
    step(f);
    finish(f);
}

/* Once three blocks of the hit have been taken, 5 of 12 are in use. Request 4 can have 4 of the
 * others, beside one that is left of the hit, one for the tokens behind it, and one to grow by. */
static void others_start_beside_what_is_left_of_a_hit(void **state)
{
    (void)state;
    for (uint32_t blocks = 4; blocks <= 5; blocks++) {
        fixture *f = begin_hit_in(12);
        take_blocks(f, 1);
        sched_request d = request(f, 4, 2000, 16 * blocks - 4, 2);
        add(f, &d);
        assert_int_equal(strstr(step(f), "4@0+") != NULL, blocks == 4);
        assert_true(describe(f, 3, 0).arriving);
        for (uint64_t id = 2; id <= 4; id++) end(f, id, 0);
        for (int i = 0; i < 12; i++) step(f);
        finish(f);
    }
}

/* Pages that others hold take none of the pool: they are counted where it decides. */
static void a_hit_needs_no_pages_that_others_hold(void **state)
{
    (void)state;
    sched_options o = in_portions(8, 0);
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 66, 9), b = request(f, 2, 0, 66, 9);
    add(f, &a);
    step(f);
    step(f);
    add(f, &b);
    for (int i = 0; i < 3; i++) assert_null(strstr(step(f), "2@"));
    assert_non_null(strstr(step(f), "2@64+2*"));
    assert_int_equal(used_pages(f), 2 * 6);
    end(f, 1, 0);
    end(f, 2, 0);
    for (int i = 0; i < 12; i++) step(f);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_free_one_by_one),
        cmocka_unit_test(a_session_is_parked_page_by_page),
        cmocka_unit_test(a_session_comes_back_page_by_page),
        cmocka_unit_test(the_next_turn_does_not_wait),
        cmocka_unit_test(a_session_that_waits_for_its_portion_is_told_and_not_busy),
        cmocka_unit_test(a_request_may_end_before_its_tables_are_back),
        cmocka_unit_test(a_session_may_be_deleted_between_portions),
        cmocka_unit_test(others_wait_while_it_is_swapped_out),
        cmocka_unit_test(others_wait_while_it_gives_up_its_pages),
        cmocka_unit_test(a_victim_may_end_between_portions),
        cmocka_unit_test(a_hit_is_taken_block_by_block),
        cmocka_unit_test(a_hit_after_a_failed_step_is_not_counted_again),
        cmocka_unit_test(blocks_that_leave_meanwhile_are_computed),
        cmocka_unit_test(a_request_may_end_before_it_has_its_hit),
        cmocka_unit_test(others_start_beside_what_is_left_of_a_hit),
        cmocka_unit_test(a_hit_needs_no_pages_that_others_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
