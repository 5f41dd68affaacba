/* Selections of retention that the scheduler hands out: what its sequence and others do meanwhile.
 * Plans are read as traces. Tables are 2, so a selection among n tokens is one among 2 n slots. */
#include "tests/unit/scheduler_flight.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Every selection is handed out; one step changes tables of 8 * `slots` slots. */
static fixture *begin_handing_out(uint64_t slots)
{
    sched_options o = small_options();
    o.hand_out_slots = slots;
    return begin(o);
}

static void give_back(fixture *f, sched_selection *x)
{
    post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
}

static sched_selection *take_only(fixture *f)
{
    sched_selection *x = sched_next_selection(f->s);
    assert_non_null(x);
    assert_null(sched_next_selection(f->s));
    return x;
}

/* Request 1 has computed its prompt of 40 tokens, and its selection is out. */
static sched_selection *select_in_one(fixture *f, sched_request *a, uint32_t n)
{
    *a = retained(f, 1, 0, 40, 20, 8, 24);
    a->n = n;
    add(f, a);
    assert_string_equal(step(f), n == 1 ? "1@0+40*m8" : "1@0+40*2m8");
    step(f);
    sched_selection *x = take_only(f);
    assert_int_equal(sched_selection_request(x), 1);
    return x;
}

/* Pages of a sequence that is over are given up one by one, a row of its tables in each step. */
static void give_up_all(fixture *f)
{
    for (uint32_t used = used_pages(f); used > 0; used = used_pages(f)) {
        step(f);
        assert_true(used_pages(f) < used);
    }
}

/* The selection is back, and the three pages of the prompt are split, one in each step. */
static void split_pages(fixture *f)
{
    for (int i = 0; i < 3; i++) {
        step(f);
        assert_true(describe(f, 1, 0).selecting);
        assert_true(describe(f, 1, 0).report.kept_tokens == 40);
    }
}

static void others_go_on(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(64), *here = begin(small_options());
    sched_request a, b;
    for (int i = 0; i < 2; i++) {
        fixture *g = i == 0 ? here : f;
        a = retained(g, 1, 0, 40, 20, 8, 24);
        b = request(g, 2, 100, 8, 20);
        add(g, &b);
        step(g);
        add(g, &a);
        assert_string_equal(step(g), "2@8+1* 1@0+40*m8");
    }
    assert_string_equal(step(here), "2@9+1* 1@40+1*");
    assert_string_equal(step(f), "2@9+1*"); /* 1 waits */
    sched_selection *x = take_only(f);
    assert_int_equal(f->holders, 1);
    assert_string_equal(step(f), "2@10+1*");
    assert_true(describe(f, 1, 0).selecting);
    assert_int_equal(describe(f, 1, 0).report.kept_tokens, 40);
    sched_selection_run(x);
    assert_int_equal(f->holders, 0);
    assert_string_equal(step(f), "2@11+1*");
    give_back(f, x);
    assert_string_equal(step(f), "2@12+1* 1@40+1*");
    assert_false(describe(f, 1, 0).selecting);
    sched_choice_info there = describe(here, 1, 0), info = describe(f, 1, 0);
    assert_true(info.report.pages_dropped > 0);
    assert_int_equal(info.report.pages_dropped, there.report.pages_dropped);
    assert_true(info.report.kept_tokens == there.report.kept_tokens);
    assert_int_equal(sched_get_stats(f->s).selections_handed_out, 1);
    finish(here);
    finish(f);
}

static void short_ones_stay(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(129); /* 2 tables of up to 64 slots */
    sched_request a = retained(f, 1, 0, 40, 20, 8, 24);
    add(f, &a);
    step(f);
    assert_string_equal(step(f), "1@40+1*");
    assert_null(sched_next_selection(f->s));
    finish(f);
}

/* Its pages are read until it is given back. */
static void an_abort_does_not_wait(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a;
    sched_selection *x = select_in_one(f, &a, 1);
    end(f, 1, 0);
    step(f);
    assert_true(used_pages(f) > 0);
    assert_int_equal(f->holders, 1);
    sched_selection_run(x); /* it was cancelled */
    assert_int_equal(f->holders, 0);
    give_back(f, x);
    give_up_all(f);
    assert_int_equal(sched_get_stats(f->s).running, 0);
    finish(f);
}

static void an_abort_of_the_same_call_hands_nothing_out(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a = retained(f, 1, 0, 40, 20, 8, 24);
    add(f, &a);
    step(f);
    end(f, 1, 0);
    step(f);
    assert_null(sched_next_selection(f->s));
    assert_int_equal(f->holders, 0);
    give_up_all(f);
    finish(f);
}

/* Its first token is its last one. */
static void a_finished_choice_needs_no_selection(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a = retained(f, 1, 0, 40, 1, 8, 24);
    add(f, &a);
    step(f);
    finish_choice(f, 1);
    step(f);
    assert_null(sched_next_selection(f->s));
    assert_int_equal(f->holders, 0);
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 0);
    assert_true(describe(f, 1, 0).report.kept_tokens == 40);
    assert_int_equal(sched_get_stats(f->s).selections_handed_out, 0);
    give_up_all(f);
    finish(f);
}

/* The report and the session of a choice that came to its end say what it keeps. */
static void a_finished_choice_is_selected_in_for_its_session(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.hand_out_slots = 1;
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    fixture *f = begin(o);
    sched_request a = of_session(retained(f, 1, 0, 40, 1, 8, 24), 9);
    add(f, &a);
    step(f);
    finish_choice(f, 1);
    step(f);
    assert_null(sched_next_selection(f->s));
    assert_int_equal(f->holders, 0);
    assert_true(describe(f, 1, 0).report.pages_dropped > 0);
    assert_string_equal(describe(f, 1, 0).report.session, "stored");
    for (int i = 0; i < 6 && sched_get_stats(f->s).sessions_idle == 0; i++) step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    assert_true(used_pages(f) < 2 * 3);
    finish(f);
}

static void choices_are_forked_afterwards(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a;
    sched_selection *x = select_in_one(f, &a, 2);
    assert_int_equal(sched_get_stats(f->s).running, 1);
    sched_selection_run(x);
    give_back(f, x);
    split_pages(f);
    assert_string_equal(step(f), ""); /* its second table follows */
    assert_string_equal(step(f), "1@40+1* 1.1@40+1*");
    assert_int_equal(sched_get_stats(f->s).generated_tokens, 2);
    assert_int_equal(describe(f, 1, 1).inherited_pages, describe(f, 1, 0).report.pages_dropped);
    finish(f);
}

static void a_choice_may_end_before_the_fork(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a;
    sched_selection *x = select_in_one(f, &a, 2);
    end(f, 1, 0);
    step(f);
    sched_selection_run(x);
    give_back(f, x);
    split_pages(f);
    step(f);
    assert_string_equal(step(f), "1.1@40+1*");
    end(f, 1, 1);
    step(f);
    give_up_all(f);
    finish(f);
}

/* A long selection is applied in portions: here a page is split, later a table changed, in each
 * step. */
static void it_is_applied_in_portions(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a, b = request(f, 2, 100, 8, 20);
    sched_selection *x = select_in_one(f, &a, 1);
    add(f, &b);
    assert_string_equal(step(f), "2@0+8*");
    sched_selection_run(x);
    give_back(f, x);
    split_pages(f);
    assert_string_equal(step(f), "2@11+1*");
    assert_true(describe(f, 1, 0).selecting);
    assert_true(describe(f, 1, 0).report.kept_tokens < 40);
    assert_string_equal(step(f), "1@40+1* 2@12+1*");
    assert_false(describe(f, 1, 0).selecting);
    finish(f);
}

/* Tables of which some pages are split are given up once all are, a page at a time, also before a
 * request is taken in. */
static void an_abort_between_portions(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) { /* 3 pages, then a table */
        fixture *f = begin_handing_out(1);
        sched_request a, b = request(f, 2, 100, 8, 20);
        sched_selection *x = select_in_one(f, &a, 1);
        sched_selection_run(x);
        give_back(f, x);
        for (int i = 0; i < n; i++) assert_string_equal(step(f), "");
        assert_true(describe(f, 1, 0).selecting);
        end(f, 1, 0);
        add(f, &b);
        assert_string_equal(step(f), "2@0+8*");
        uint32_t used = used_pages(f), n_steps = 0;
        for (; used > 2; used = used_pages(f), n_steps++) {
            step(f);
            assert_true(used - used_pages(f) <= 1);
        }
        assert_true(n_steps > 2);
        finish_choice(f, 2);
        step(f);
        step(f);
        assert_int_equal(used_pages(f), 0);
        finish(f);
    }
}

/* 2 tables of 6 pages: 3 of each are of the sequence that is selected in, which ranks last. */
static void others_wait_for_the_pages_it_gives_up(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 13;
    o.hand_out_slots = 1;
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = retained(f, 1, 0, 40, 20, 8, 24), b = request(f, 2, 100, 30, 40);
    b.priority = -1;
    add(f, &b);
    step(f);
    add(f, &a);
    assert_string_equal(step(f), "2@30+1* 1@0+40*m8");
    assert_string_equal(step(f), "2@31+1*");
    sched_selection *x = take_only(f);
    while (*step(f)) continue; /* until a row of 2 needs pages */
    assert_int_equal(used_pages(f), 12);
    step(f);
    assert_int_equal(sched_get_stats(f->s).preemptions, 0);
    sched_selection_run(x);
    give_back(f, x);
    split_pages(f);
    step(f); /* each table gives up pages in a step of its own */
    assert_non_null(strstr(step(f), "2@48+1*"));
    assert_int_equal(sched_get_stats(f->s).preemptions, 0);
    finish(f);
}

static void without_memory_it_is_made_at_once(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a = retained(f, 1, 0, 40, 20, 8, 24);
    add(f, &a);
    step(f);
    f->heap.fail_at = f->heap.calls;
    assert_string_equal(step(f), "1@40+1*");
    assert_null(sched_next_selection(f->s));
    assert_true(describe(f, 1, 0).report.pages_dropped > 0);
    finish(f);
}

/* Tables of one grain become finer when it is applied, which takes memory. */
static void without_memory_to_apply_it_the_sequence_is_replayed(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 2; n++) {
        fixture *f = begin_handing_out(1);
        sched_request a;
        sched_selection *x = select_in_one(f, &a, n);
        sched_selection_run(x);
        give_back(f, x);
        f->heap.fail_at = f->heap.calls;
        step(f);
        assert_int_equal(describe(f, 1, 0).preemptions, 1);
        f->heap.fail_at = -1;
        while (describe(f, 1, 0).output_tokens < 3 || describe(f, 1, n - 1).output_tokens < 3) {
            step(f);
            if ((x = sched_next_selection(f->s)) == NULL) continue;
            sched_selection_run(x);
            give_back(f, x);
        }
        assert_true(describe(f, 1, n - 1).report.kept_tokens < 40);
        finish(f);
    }
}

/* Its rows were committed before. */
static void a_failed_step_of_others_leaves_it(void **state)
{
    (void)state;
    fixture *f = begin_handing_out(1);
    sched_request a, b = request(f, 2, 100, 8, 20);
    sched_selection *x = select_in_one(f, &a, 1);
    add(f, &b);
    step(f);
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "2@0+8*");
    sched_selection_run(x);
    give_back(f, x);
    split_pages(f);
    step(f);
    assert_string_equal(step(f), "1@40+1* 2@12+1*");
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    finish(f);
}

/* What is not handed back, or not even handed out, goes with the scheduler. */
static void a_scheduler_can_be_destroyed_in_any_state(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        fixture *f = begin_handing_out(1);
        sched_request a = retained(f, 1, 0, 40, 20, 8, 24);
        add(f, &a);
        step(f);
        step(f);
        sched_cancel_selections(f->s);
        if (i > 0) sched_selection_run(take_only(f));
        sched_destroy(f->s);
        assert_int_equal(f->holders, 0);
        assert_int_equal(f->heap.blocks, 0);
        free(f);
    }
}

/* Two steps are in flight: the steps that are planned ahead go on without the sequence. */
static void steps_are_planned_ahead_meanwhile(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.hand_out_slots = 1;
    fixture *f = begin_ahead(o);
    sched_request b = request(f, 1, 100, 8, 20), a = retained(f, 2, 0, 36, 20, 4, 32);
    add(f, &b);
    add(f, &a);
    assert_string_equal(plan(f), "1@0+8* 2@0+36*m4");
    fine(f);
    assert_string_equal(plan(f), "1@8+1*");
    sched_selection *x = take_only(f);
    assert_string_equal(plan(f), "1@9+1*<1");
    sched_selection_run(x);
    give_back(f, x);
    assert_string_equal(plan(f), ""); /* two in flight, so that no table may change */
    assert_true(describe(f, 2, 0).report.kept_tokens == 36);
    static const char *const splitting[] = {"1@10+1*<1", "1@11+1*<1", "1@12+1*<1"};
    for (int i = 0; i < 3; i++) {
        fine(f);
        assert_string_equal(plan(f), splitting[i]);
        assert_true(describe(f, 2, 0).report.kept_tokens == 36);
    }
    fine(f);
    assert_string_equal(plan(f), "1@13+1*<1");
    assert_true(describe(f, 2, 0).report.kept_tokens < 36);
    fine(f);
    assert_string_equal(plan(f), "1@14+1*<1 2@36+1*");
    drain(f);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(short_ones_stay),
        cmocka_unit_test(an_abort_does_not_wait),
        cmocka_unit_test(an_abort_of_the_same_call_hands_nothing_out),
        cmocka_unit_test(a_finished_choice_needs_no_selection),
        cmocka_unit_test(a_finished_choice_is_selected_in_for_its_session),
        cmocka_unit_test(choices_are_forked_afterwards),
        cmocka_unit_test(a_choice_may_end_before_the_fork),
        cmocka_unit_test(it_is_applied_in_portions),
        cmocka_unit_test(an_abort_between_portions),
        cmocka_unit_test(others_wait_for_the_pages_it_gives_up),
        cmocka_unit_test(without_memory_it_is_made_at_once),
        cmocka_unit_test(without_memory_to_apply_it_the_sequence_is_replayed),
        cmocka_unit_test(a_failed_step_of_others_leaves_it),
        cmocka_unit_test(a_scheduler_can_be_destroyed_in_any_state),
        cmocka_unit_test(steps_are_planned_ahead_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
