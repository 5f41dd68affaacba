/* The life of a request: preemption, choices, ends, refusals, memory. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- preemption ------------------------------------------------------------------------------ */

static void the_worst_gives_way(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 5; /* 5 blocks */
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 30, 30), b = request(f, 2, 100, 15, 30);
    b.priority = -1; /* arrives later, but ranks better */
    add(f, &a);
    assert_string_equal(step(f), "1@0+30*");
    add(f, &b);
    assert_string_equal(step(f), "1@30+1* 2@0+15*");
    assert_string_equal(step(f), "2@15+1* 1@31+1*");
    for (int i = 0; i < 15; i++) step(f);
    assert_string_equal(f->trace, "2@30+1* 1@46+1*");
    assert_string_equal(step(f), "2@31+1* 1@47+1*");
    assert_int_equal(used_pages(f), 2 * 5);
    /* Both want a third and fourth block, and none is free: 1 gives up its three. */
    assert_string_equal(step(f), "2@32+1*");
    assert_int_equal(used_pages(f), 2 * 3);
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    for (int i = 0; i < 11; i++) assert_int_equal(step(f)[0], '2');
    end(f, 2, 0);
    /* Its prompt and the 18 tokens it had are computed again; the last of them continues. */
    assert_string_equal(step(f), "1@0+40");
    assert_string_equal(step(f), "1@40+9*");
    assert_int_equal(f->plan->seqs[0].sample_index, 19);
    assert_string_equal(step(f), "1@49+1*");
    assert_int_equal(sched_get_stats(f->s).replayed_tokens, 48);
    finish(f);
}

static void admission_leaves_room(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 8;
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 40, 25), b = request(f, 2, 100, 65, 5),
                  c = request(f, 3, 200, 40, 5);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40*");
    add(f, &b);
    add(f, &c);
    /* 5 blocks are free, and b needs them all: the fourth of a would cost b its slot. c must not
     * pass b. */
    assert_string_equal(step(f), "1@40+1*");
    for (int i = 0; i < 9; i++) step(f);
    end(f, 2, 0);
    assert_string_equal(step(f),
                        "1@50+1* 3@0+40*"); /* 4 blocks are free, c needs 3: one is left for a */
    finish(f);
}

static void a_hit_uses_up_cached_pages(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    o.n_pages = 1 + 2 * 6;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 64, 1), b = request(f, 2, 500, 30, 20),
                  c = request(f, 3, 0, 74, 5);
    add(f, &a);
    assert_string_equal(step(f), "1@0+64*");
    end(f, 1, 0);
    add(f, &b);
    assert_string_equal(step(f), "2@0+30*");
    add(f, &c);
    /* 4 blocks are available, but c would hit just those, and has none for its fifth. */
    assert_string_equal(step(f), "2@30+1*");
    assert_int_equal(describe(f, 3, 0).preemptions, 0);
    end(f, 2, 0);
    assert_string_equal(step(f), "3@64+10*");
    finish(f);
}

static void a_replay_repeats_its_drop(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = retained(f, 1, 0, 90, 30, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+90*m32");
    for (int i = 0; i < 4; i++) step(f);
    assert_string_equal(f->trace, "1@93+1*");
    answer(f, status_make(STATUS_IO, NULL)); /* a failed step has the effect of a preemption */
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "1@0+90m32"); /* measured and selected again, without a draw */
    assert_int_equal(used_pages(f), 2 * 6);
    assert_string_equal(step(f), "1@90+4*");
    assert_int_equal(used_pages(f), 2 * 4);
    assert_int_equal(f->plan->seqs[0].sample_index, 4);
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 4);
    finish(f);
}

static void a_failed_step_loses_no_open(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 20, 5);
    a.n = 2;
    add(f, &a);
    assert_string_equal(step(f), "1@0+20*2");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 1});
    assert_string_equal(step(f), "1@20+1*");
    assert_int_equal(f->plan->n_opens, 0); /* choice 1 is forked, but has no rows in this step */
    answer(f, status_make(STATUS_NO_MEMORY, NULL)); /* how much the backend applied is unknown */
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = 1});
    step(f);
    assert_int_equal(f->plan->n_seqs, 2);
    assert_int_equal(f->plan->n_opens, 2);
    finish(f);
}

static void a_paused_one_gives_way_first(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 5;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 40, 30), b = request(f, 2, 100, 30, 30);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40*");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = SCHED_ALL_CHOICES});
    assert_string_equal(step(f), "");
    add(f, &b);
    assert_string_equal(step(f), "2@0+30*");
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    step(f);
    step(f);
    assert_string_equal(step(f), "2@32+1*"); /* its third block: 1 still holds three of five */
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    post(f, (sched_event){.kind = SCHED_RESUME, .request = 1, .choice = 0});
    end(f, 2, 0);
    assert_string_equal(step(f), "1@32+9*"); /* two of its blocks are still cached */
    finish(f);
}

static void a_sleeping_reader_keeps_no_slot(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 2;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 100, 10, 30),
                  c = request(f, 3, 200, 10, 30);
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "1@0+10* 2@0+10*");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    assert_string_equal(step(f), "2@10+1*");
    f->now_us += 999999;
    assert_string_equal(step(f), "2@11+1*");
    f->now_us += 1;
    assert_string_equal(step(f), "2@12+1* 3@0+10*");
    finish(f);
}

static void only_idle_ones_run(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 1;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 100, 10, 30);
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    add(f, &b);
    assert_string_equal(step(f), "2@0+10*");
    finish(f);
}

/* ---- several choices ------------------------------------------------------------------------- */

static void choices_fork_at_the_prompts_end(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 20, 5), b = request(f, 2, 100, 5, 5);
    a.n = 3;
    b.n = 2;
    a.params.repetition_penalty = 1.2f;
    add(f, &a);
    add(f, &b);
    /* The five draws of forked choices exceed a step's limit: 2 has to wait. */
    assert_string_equal(step(f), "1@0+20*3");
    assert_int_equal(f->plan->n_opens, 1);
    assert_int_equal(f->plan->opens[0].n_history, 20);
    assert_string_equal(step(f), "1@20+1* 1.1@20+1* 1.2@20+1* 2@0+5*2");
    assert_int_equal(f->plan->n_opens, 3);
    assert_int_equal(f->plan->opens[1].choice, 2);
    assert_int_equal(f->plan->opens[1].n_history, 21);
    assert_int_equal(f->plan->opens[1].history[20], 502);
    assert_int_equal(f->plan->opens[1].n_prompt, 20);
    assert_int_equal(f->plan->tokens[2], 502);
    /* Each group has one full page shared by all, and a last page for each choice: two were
     * copied. */
    assert_int_equal(used_pages(f), 2 * (1 + 3 + 1));
    /* One move copies a page of both groups. */
    assert_int_equal(f->plan->deltas.n_moves, 2);
    end(f, 1, 1);
    /* The first choice of 2 has its prompt's slot, the second one the slot of 1.1. */
    assert_string_equal(step(f), "1@21+1* 1.2@21+1* 2@5+1* 2.1@5+1*");
    finish(f);
}

static void another_choice_inherits(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 60, 5);
    a.n = 3;
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    end(f, 1, 0);
    /* Choice 0 has ended; the prompt continues for the others, whose draws keep their choice
     * numbers. */
    assert_string_equal(step(f), "1@40+20*3");
    assert_string_equal(step(f), "1.1@60+1* 1.2@60+1*");
    assert_int_equal(f->plan->n_opens, 2);
    assert_int_equal(f->plan->opens[0].choice, 1);
    assert_int_equal(f->plan->tokens[0], 501);
    end(f, 1, 1);
    end(f, 1, 2);
    step(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* ---- ends and failures ----------------------------------------------------------------------- */

static void an_end_in_flight_waits_for_the_result(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 20, 5), b = request(f, 2, 100, 20, 5),
                  c = request(f, 1, 0, 20, 5);
    add(f, &a);
    add(f, &b);
    assert_string_equal(step(f), "1@0+20* 2@0+20*");
    end(f, 1, 0);
    end(f, 7, 0); /* unknown: ignored */
    step_in_flight(f);
    assert_int_equal(used_pages(f), 2 * 4); /* the backend uses the plan's tables until then */
    assert_int_equal(describe(f, 1, 0).output_tokens, 0);
    add(f, &c); /* its id is free again */
    assert_string_equal(step(f), "2@20+1* 1@0+20*");
    sched_choice_info info;
    end(f, 2, 0);
    step(f);
    step(f);
    assert_int_equal(sched_describe(f->s, 2, 0, &info).code, STATUS_NOT_FOUND);
    finish(f);
}

static void a_waiting_request_can_end(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 1;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 20, 5), b = request(f, 2, 100, 20, 5),
                  c = request(f, 3, 200, 20, 5);
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "1@0+20*");
    end(f, 2, SCHED_ALL_CHOICES);
    step_in_flight(f);
    end(f, 1, 0);
    assert_string_equal(step(f), "3@0+20*");
    finish(f);
}

static void a_full_queue_takes_nothing(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_requests = 2;
    fixture *f = begin(o);
    sched_request r[3];
    for (uint32_t i = 0; i < 3; i++) {
        r[i] = request(f, 1 + i, 100 * i, 10, 5);
        add(f, &r[i]);
    }
    assert_string_equal(step(f), "1@0+10* 2@0+10*");
    sched_choice_info info;
    assert_int_equal(sched_describe(f->s, 3, 0, &info).code, STATUS_NOT_FOUND);
    finish(f);
}

static void impossible_requests_are_refused(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 800;
    o.max_model_len = 20000;
    fixture *f = begin(o);
    uint32_t *long_prompt = calloc(20000, sizeof *long_prompt);
    sched_request fits = request(f, 1, 0, 100, 5), r;
    struct {
        uint32_t n_prompt, max_new, n, window, tokens;
        const char *text; // NULL = accepted
    } cases[] = {
        {0, 5, 1, 0, 0, "prompt: has no tokens"},
        {10, 0, 1, 0, 0, "max_tokens: must be at least 1"},
        {10, 5, 0, 0, 0, "n: 0 is not in [1, 4]"},
        {10, 5, 5, 0, 0, "n: 5 is not in [1, 4]"},
        {19000, 1001, 1, 0, 0,
         "prompt: 19000 tokens and max_tokens 1001 make 20001; the maximum context length is "
         "20000"},
        {9990, 11, 1, 0, 0,
         "prompt: 9990 tokens and max_tokens 11 need 1,250 KV pages, the pool has 800: shorten "
         "them, or give the KV cache more memory"},
        /* The last token is never stored: 400 blocks of 16. */
        {6400, 1, 1, 0, 0, NULL},
        {6399, 2, 1, 0, 0, NULL},
        {6400, 2, 1, 0, 0, "need 802 KV pages"},
        /* Two full blocks are shared, and each choice has the rest of the third. */
        {40, 5, 4, 0, 0, NULL},
        {3200, 3201, 1, 0, 0, NULL},
        {3200, 1601, 2, 0, 0, NULL},
        {3200, 1602, 2, 0, 0, "need 804 KV pages"},
        /* After retention 10 pages of a group are left, with room for output. */
        {6400, 6400 - 160 + 1, 1, 32, 160, NULL},
        {6400, 6400 - 160 + 2, 1, 32, 160, "need 802 KV pages"},
        {6401, 1, 1, 32, 160, "need 802 KV pages"},
        {100, 5, 1, 41, 100, "retention.window: 41 rows do not fit in a prefill chunk of 40"},
        {100, 5, 1, 40, 40, "retention.tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r = fits;
        if (cases[i].window > 0) r = retained(f, 1, 0, 1, 1, cases[i].window, cases[i].tokens);
        r.prompt = long_prompt;
        r.n_prompt = cases[i].n_prompt;
        r.max_new_tokens = cases[i].max_new;
        r.n = cases[i].n;
        error err = {""};
        status st = sched_check(f->s, &r, &err);
        if (!cases[i].text != status_ok(st) || (cases[i].text && !strstr(err.text, cases[i].text)))
            fail_msg("case %zu: \"%s\"", i, err.text);
    }
    free(long_prompt);
    finish(f);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void steady_steps_allocate_nothing(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 100, 300), b = retained(f, 2, 200, 100, 300, 32, 64);
    a.n = 3;
    add(f, &a);
    add(f, &b);
    for (int i = 0; i < 20; i++) step(f);
    long calls = f->heap.calls;
    for (int i = 0; i < 250; i++) step(f);
    assert_int_equal(f->heap.calls, calls);
    assert_int_equal(describe(f, 1, 2).output_tokens, 267);
    finish(f);
}

static void creating_without_memory_fails(void **state)
{
    (void)state;
    status st = STATUS_IS_OK;
    for (long i = 0; i == 0 || !status_ok(st); i++) {
        test_heap heap = {.fail_at = i};
        allocator alloc = {heap_resize, &heap};
        sched_options o = small_options();
        o.alloc = &alloc;
        sched *s;
        error err;
        st = sched_create(&o, &s, &err);
        if (!status_ok(st)) {
            assert_int_equal(st.code, STATUS_NO_MEMORY);
            assert_null(s);
        }
        sched_destroy(s);
        assert_int_equal(heap.blocks, 0);
    }
}

/* Each allocation fails once: a request is refused, or it waits and continues later. */
static void out_of_memory_is_survived(void **state)
{
    (void)state;
    long n_calls = 1;
    for (long i = 0; i < n_calls; i++) {
        fixture *f = begin(small_options());
        sched_request a = request(f, 1, 0, 100, 20), b = retained(f, 2, 200, 100, 20, 32, 64);
        sched_choice_info info;
        long before = f->heap.calls;
        f->heap.fail_at = before + i;
        a.n = 3;
        add(f, &a);
        add(f, &b);
        for (int k = 0; k < 60; k++) step(f);
        for (uint32_t c = 0; c < 4; c++) {
            uint64_t id = c < 3 ? 1 : 2;
            status st = sched_describe(f->s, id, c % 3, &info);
            if (!status_ok(st)) continue;
            assert_int_equal(info.output_tokens, 20);
            end(f, id, c % 3);
        }
        if (i == 0) n_calls = f->heap.calls - before;
        step(f);
        assert_int_equal(used_pages(f), 0);
        finish(f);
    }
    assert_true(n_calls > 4);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    sched *s;
    error err;
    sched_options o = small_options();
    o.max_seqs = 0;
    assert_int_equal(sched_create(&o, &s, &err).code, STATUS_INVALID);
    o = small_options();
    o.geometry.heads_per_group = 3;
    assert_int_equal(sched_create(&o, &s, &err).code, STATUS_INVALID);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worst_gives_way),
        cmocka_unit_test(admission_leaves_room),
        cmocka_unit_test(a_hit_uses_up_cached_pages),
        cmocka_unit_test(a_replay_repeats_its_drop),
        cmocka_unit_test(a_failed_step_loses_no_open),
        cmocka_unit_test(a_paused_one_gives_way_first),
        cmocka_unit_test(a_sleeping_reader_keeps_no_slot),
        cmocka_unit_test(only_idle_ones_run),
        cmocka_unit_test(choices_fork_at_the_prompts_end),
        cmocka_unit_test(another_choice_inherits),
        cmocka_unit_test(an_end_in_flight_waits_for_the_result),
        cmocka_unit_test(a_waiting_request_can_end),
        cmocka_unit_test(a_full_queue_takes_nothing),
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(steady_steps_allocate_nothing),
        cmocka_unit_test(creating_without_memory_fails),
        cmocka_unit_test(out_of_memory_is_survived),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
