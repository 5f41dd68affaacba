/* Preemption by swap: which sequences are swapped out and which are computed again, and the
 * results. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sched_options with_tier(uint32_t blocks, uint32_t host_pages)
{
    sched_options o = small_options();
    o.prefill_chunk = 100;
    o.n_pages = 1 + 2 * blocks;
    o.n_host_pages = host_pages;
    o.prefix_cache = false;
    return o;
}

static uint32_t host_used(const fixture *f) { return sched_get_stats(f->s).pages.host_used; }

static size_t copies(const fixture *f, pkv_move_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; f->plan && i < f->plan->deltas.n_moves; i++)
        n += f->plan->deltas.moves[i].kind == kind;
    return n;
}

/* 1 has dropped 4 of its 12 pages, and 2 wants more than the 7 blocks that are left. */
static void make_pages_short(fixture *f)
{
    sched_request a = retained(f, 1, 0, 90, 30, 32, 64), b = request(f, 2, 500, 40, 30);
    b.priority = -1;
    add(f, &a);
    assert_string_equal(step(f), "1@0+90*m32");
    assert_string_equal(step(f), "1@90+1*");
    assert_int_equal(used_pages(f), 2 * 4);
    add(f, &b);
    assert_string_equal(step(f), "1@91+1*"); /* one more block is reserved for 1 */
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    assert_string_equal(step(f), "2@0+40*");
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    for (int i = 0; i < 8; i++) step(f);
    assert_string_equal(f->trace, "2@47+1*");
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    assert_string_equal(step(f), "2@48+1*");
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = 0});
}

static void a_sequence_that_has_dropped_is_swapped(void **state)
{
    (void)state;
    fixture *f = begin(with_tier(7, 8));
    make_pages_short(f);
    assert_int_equal(copies(f, PKV_MOVE_OUT), 8);
    assert_int_equal(host_used(f), 8);
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.swaps_out, 1);
    assert_int_equal(stats.swapped_tokens, 92);
    assert_int_equal(stats.logical_tokens, 49); /* 2 alone holds pages */
    assert_int_equal(stats.kept_tokens, 49);
    assert_int_equal(describe(f, 1, 0).report.kept_tokens, 60);
    assert_string_equal(step(f), "2@49+1*");
    end(f, 2, 0);
    assert_string_equal(step(f), "1@92+1*"); /* no row is computed again */
    assert_int_equal(copies(f, PKV_MOVE_IN), 8);
    assert_int_equal(f->plan->n_opens, 1);
    assert_int_equal(f->plan->seqs[0].sample_index, 3);
    stats = sched_get_stats(f->s);
    assert_int_equal(stats.swaps_in, 1);
    assert_int_equal(stats.swapped_tokens, 0);
    assert_int_equal(stats.replayed_tokens, 0);
    assert_int_equal(host_used(f), 0);
    assert_int_equal(used_pages(f), 2 * 4);
    assert_string_equal(step(f), "1@93+1*");
    finish(f);
}

static void a_full_tier_means_replay(void **state)
{
    (void)state;
    fixture *f = begin(with_tier(7, 7));
    make_pages_short(f);
    assert_int_equal(host_used(f), 0);
    assert_int_equal(sched_get_stats(f->s).swaps_refused, 1);
    end(f, 2, 0);
    assert_string_equal(step(f), "1@0+90m32");
    assert_string_equal(step(f), "1@90+3*");
    assert_int_equal(sched_get_stats(f->s).replayed_tokens, 90);
    finish(f);
}

static void what_ended_leaves_the_tier(void **state)
{
    (void)state;
    fixture *f = begin(with_tier(7, 8));
    make_pages_short(f);
    end(f, 1, 0);
    step_in_flight(f); /* at once: the step in flight reads none of its pages */
    assert_int_equal(host_used(f), 0);
    assert_int_equal(sched_get_stats(f->s).swapped_tokens, 0);
    assert_int_equal(describe(f, 1, 0).report.kept_tokens, 60);
    assert_string_equal(step(f), "2@49+1*");
    finish(f);
}

/* 1 has dropped no page. Its `prompt` tokens are swapped or computed again. */
static void expect_choice(uint32_t prompt, bool swapped)
{
    uint32_t blocks = prompt / 16 + 3;
    fixture *f = begin(with_tier(blocks, 1000));
    sched_request a = request(f, 1, 0, prompt, 30), b = request(f, 2, 500, 31, 30);
    b.priority = -1;
    add(f, &a);
    step(f);
    step(f);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    add(f, &b);
    for (int i = 0; i < 40 && sched_get_stats(f->s).preemptions == 0; i++) step(f);
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    assert_int_equal(sched_get_stats(f->s).swaps_out, swapped);
    finish(f);
}

static void short_ones_are_computed_again(void **state)
{
    (void)state;
    expect_choice(50, false);
    expect_choice(63, false);
    expect_choice(64, true);
    expect_choice(90, true);
}

/* Shared blocks will still be there, so the sequence is computed again. */
static void shared_ones_are_computed_again(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        sched_options o = with_tier(24, 1000);
        o.prefix_cache = true;
        fixture *f = begin(o);
        sched_request a = request(f, 1, 0, 95, 30), b = request(f, 2, shared ? 0 : 800, 95, 30),
                      c = request(f, 3, 500, 190, 60);
        c.priority = -1;
        add(f, &a);
        step(f);
        step(f);
        add(f, &b);
        step(f);
        post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2, .choice = 0});
        step(f);
        add(f, &c);
        for (int i = 0; i < 80 && sched_get_stats(f->s).preemptions == 0; i++) step(f);
        sched_stats stats = sched_get_stats(f->s);
        if (shared) assert_int_equal(stats.swaps_out, 0);
        else assert_int_equal(stats.swaps_out, 1);
        finish(f);
    }
}

/* Its new rows may be garbage: it is replayed instead of copied. */
static void a_failed_step_is_replayed(void **state)
{
    (void)state;
    fixture *f = begin(with_tier(20, 100));
    sched_request a = retained(f, 1, 0, 90, 30, 32, 64);
    add(f, &a);
    step(f);
    assert_string_equal(step(f), "1@90+1*");
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "1@0+90m32");
    assert_int_equal(sched_get_stats(f->s).swaps_out, 0);
    finish(f);
}

/* Each choice is swapped by itself, on pages of its own. */
static void choices_are_swapped_alone(void **state)
{
    (void)state;
    fixture *f = begin(with_tier(14, 100));
    sched_request a = retained(f, 1, 0, 90, 20, 32, 64), b = request(f, 2, 500, 125, 60);
    a.n = 3;
    b.priority = -1;
    add(f, &a);
    assert_string_equal(step(f), "1@0+90*3m32");
    assert_string_equal(step(f), "1@90+1* 1.1@90+1* 1.2@90+1*");
    assert_int_equal(used_pages(f), 2 * 6); /* three blocks shared, three tails */
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = SCHED_ALL_CHOICES});
    add(f, &b);
    assert_string_equal(step(f), "2@0+100");
    assert_string_equal(step(f), "2@100+25*");
    for (int i = 0; i < 3; i++) step(f);
    assert_int_equal(host_used(f), 0);
    assert_string_equal(step(f), "2@128+1*");
    assert_int_equal(host_used(f), 2 * 4);
    assert_int_equal(used_pages(f), 2 * 14);
    for (int i = 0; i < 16; i++) step(f);
    assert_string_equal(f->trace, "2@144+1*");
    assert_int_equal(host_used(f), 2 * 8);
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    assert_int_equal(describe(f, 1, 1).preemptions, 1);
    end(f, 2, 0);
    end(f, 1, 2);
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = SCHED_ALL_CHOICES});
    assert_string_equal(step(f), "1@91+1* 1.1@91+1*");
    assert_int_equal(host_used(f), 0);
    assert_int_equal(used_pages(f), 2 * 8);
    finish(f);
}

static void memory_may_be_short(void **state)
{
    (void)state;
    long n_calls = 1;
    uint64_t swaps = 0;
    for (long i = 0; i < n_calls; i++) {
        fixture *f = begin(with_tier(9, 30));
        sched_request a = retained(f, 1, 0, 90, 20, 32, 64), b = request(f, 2, 200, 100, 30);
        b.priority = -1;
        long before = f->heap.calls;
        f->heap.fail_at = before + i;
        add(f, &a);
        step(f);
        step(f);
        add(f, &b);
        post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
        for (int k = 0; k < 12; k++) step(f);
        f->now_us += 2000000;
        for (int k = 0; k < 12; k++) step(f);
        post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = 0});
        end(f, 2, 0);
        for (int k = 0; k < 30; k++) step(f);
        sched_choice_info info;
        if (status_ok(sched_describe(f->s, 1, 0, &info))) assert_int_equal(info.output_tokens, 20);
        end(f, 1, 0);
        if (i == 0) n_calls = f->heap.calls - before;
        step(f);
        assert_int_equal(used_pages(f), 0);
        assert_int_equal(host_used(f), 0);
        swaps += sched_get_stats(f->s).swaps_in;
        finish(f);
    }
    assert_true(n_calls > 6);
    assert_true(swaps > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_that_has_dropped_is_swapped),
        cmocka_unit_test(a_full_tier_means_replay),
        cmocka_unit_test(what_ended_leaves_the_tier),
        cmocka_unit_test(short_ones_are_computed_again),
        cmocka_unit_test(shared_ones_are_computed_again),
        cmocka_unit_test(a_failed_step_is_replayed),
        cmocka_unit_test(choices_are_swapped_alone),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
