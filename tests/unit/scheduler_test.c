/* Small scenarios, their plans as readable traces:
 *
 *   "1@0+16 2.1@40+1*"    request 1 computes 16 tokens from position 0; choice 1 of request 2
 * computes one at 40 and samples. *3 = draws three times, m32 = measures the last 32 rows, L =
 * logits. */
#include "scheduler/scheduler.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEQS_MAX = 8, PAGES_MAX = 64 };

typedef struct test_heap {
    long blocks, calls;
    long fail_at; // the call that fails, -1 = none
} test_heap;

static void *heap_resize(void *ctx, void *ptr, size_t size)
{
    test_heap *h = ctx;
    if (size == 0) {
        h->blocks -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (h->calls++ == h->fail_at) return NULL;
    void *got = realloc(ptr, size);
    h->blocks += !ptr && got;
    return got;
}

typedef struct fixture {
    test_heap heap;
    allocator alloc;
    sched *s;
    int64_t now_us;
    sched_event events[16];
    size_t n_events;
    const step_plan *plan; // in flight
    step_result result;
    step_seq_result seqs[SEQS_MAX];
    step_sample samples[SEQS_MAX];
    float measures[8 * PAGES_MAX];
    char trace[512];
} fixture;

static sched_options small_options(void)
{
    return (sched_options){
        .geometry = {.page_tokens = 16,
                     .n_layers = 2,
                     .n_kv_heads = 1,
                     .layers_per_group = 1,
                     .heads_per_group = 1},
        .n_pages = 201,
        .max_seqs = 4,
        .prefill_chunk = 40,
        .max_model_len = 1000,
        .max_requests = 8,
        .prefix_cache = true,
    };
}

static fixture *begin(sched_options options)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->heap.fail_at = -1;
    f->alloc = (allocator){heap_resize, &f->heap};
    options.alloc = &f->alloc;
    error err;
    assert_true(status_ok(sched_create(&options, &f->s, &err)));
    return f;
}

static void finish(fixture *f)
{
    assert_null(sched_check_integrity(f->s));
    sched_destroy(f->s);
    assert_int_equal(f->heap.blocks, 0);
    free(f);
}

/* ---- requests: prompts count up from `first`, so that equal beginnings hit
 * ------------------------------------------ */

static sched_request request(uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new)
{
    static uint32_t prompts[64][1024];
    uint32_t *prompt = prompts[id % 64];
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = first + i;
    const retention_preset *full = retention_find("full");
    sched_request r = {.id = id,
                       .prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_new_tokens = max_new,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .policy = full->defaults};
    r.policy.preset = full;
    return r;
}

static sched_request retained(uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new,
                              uint32_t window, uint32_t budget)
{
    sched_request r = request(id, first, n_prompt, max_new);
    r.policy = retention_find("chunkkv")->defaults;
    r.policy.preset = retention_find("chunkkv");
    r.policy.window = window;
    r.policy.tokens = budget;
    r.policy.ratio = 0;
    return r;
}

static void post(fixture *f, sched_event event) { f->events[f->n_events++] = event; }

static void add(fixture *f, const sched_request *r)
{
    error err;
    if (!status_ok(sched_check(f->s, r, &err))) fail_msg("%s", err.text);
    post(f, (sched_event){.kind = SCHED_ADD, .add = r});
}

static void end(fixture *f, uint64_t id, uint32_t choice)
{
    post(f, (sched_event){.kind = SCHED_END, .request = id, .choice = choice});
}

/* ---- steps
 * --------------------------------------------------------------------------------------------------------------
 */

/* Page i scores i, so that the last pages stay; samples are 500, 501, … by choice. */
static void answer(fixture *f, status st)
{
    uint32_t n_samples = 0;
    for (uint32_t i = 0; i < 8 * PAGES_MAX; i++) f->measures[i] = (float)(i % PAGES_MAX);
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
        const step_seq *q = &f->plan->seqs[i];
        f->seqs[i] =
            (step_seq_result){.samples = f->samples + n_samples, .n_samples = q->n_samples};
        for (uint32_t j = 0; j < q->n_samples; j++)
            f->samples[n_samples++].token = 500 + q->choice + j;
        if (q->measure.kind != MEASURE_NONE)
            f->seqs[i].measure = (measure_result){f->measures, 2, 1, PAGES_MAX};
    }
    f->result = (step_result){.step = f->plan->step,
                              .status = st,
                              .seqs = f->seqs,
                              .n_seqs = f->plan->n_seqs,
                              .checksum = f->plan->checksum,
                              .measure_us = 3000};
    f->plan = NULL;
}

static const char *trace_of(fixture *f, const step_plan *plan)
{
    char *at = f->trace, *stop = f->trace + sizeof f->trace;
    *at = '\0';
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        at += snprintf(at, (size_t)(stop - at), "%s%d", i ? " " : "", (int)q->request);
        if (q->choice > 0) at += snprintf(at, (size_t)(stop - at), ".%u", q->choice);
        at += snprintf(at, (size_t)(stop - at), "@%u+%u", q->position, q->n_tokens);
        if (q->n_samples > 0) at += snprintf(at, (size_t)(stop - at), "*");
        if (q->n_samples > 1) at += snprintf(at, (size_t)(stop - at), "%u", q->n_samples);
        if (q->measure.kind != MEASURE_NONE)
            at += snprintf(at, (size_t)(stop - at), "m%u", q->measure.rows);
        if (q->want_logits) at += snprintf(at, (size_t)(stop - at), "L");
    }
    return f->trace;
}

/* Delivers the result of the step in flight with the posted events behind it, and plans. */
static const char *step(fixture *f)
{
    sched_event events[17];
    size_t n = 0;
    if (f->plan) {
        answer(f, STATUS_IS_OK);
        events[n++] = (sched_event){.kind = SCHED_RESULT, .result = &f->result};
    }
    for (size_t i = 0; i < f->n_events; i++) events[n++] = f->events[i];
    f->n_events = 0;
    const step_plan *plan = sched_step(f->s, f->now_us, events, n);
    assert_null(sched_check_integrity(f->s));
    if (!sched_plan_empty(plan)) f->plan = plan;
    return trace_of(f, plan);
}

/* Gives the posted events while the step is in flight. */
static void step_in_flight(fixture *f)
{
    assert_non_null(f->plan);
    const step_plan *plan = sched_step(f->s, f->now_us, f->events, f->n_events);
    f->n_events = 0;
    assert_true(sched_plan_empty(plan));
    assert_null(sched_check_integrity(f->s));
}

static uint32_t used_pages(fixture *f) { return sched_get_stats(f->s).pages.used; }

static sched_choice_info describe(fixture *f, uint64_t id, uint32_t choice)
{
    sched_choice_info info;
    assert_true(status_ok(sched_describe(f->s, id, choice, &info)));
    return info;
}

/* ---- prompts in chunks, decodes beside them
 * ------------------------------------------------------------------------------ */

static void prompts_go_in_chunks(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 100, 5), b = request(2, 200, 30, 2);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    assert_int_equal(f->plan->n_opens, 1);
    add(f, &b);
    /* 40 tokens for one prompt, and what is left of 40 + 4 for the next. */
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
    assert_non_null(f->plan); /* the tables of 1 are closed */
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
    sched_request a = request(1, 0, 10, 5), b = request(2, 100, 10, 5), c = request(3, 200, 10, 5);
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
    sched_request a = request(1, 700, 3, 5);
    add(f, &a);
    step(f);
    assert_int_equal(f->plan->n_tokens, 3);
    assert_memory_equal(f->plan->tokens, a.prompt, 3 * sizeof(uint32_t));
    assert_string_equal(step(f), "1@3+1*");
    assert_int_equal(f->plan->tokens[0], 500);
    assert_int_equal(f->plan->seqs[0].sample_index, 1);
    finish(f);
}

/* ---- retention
 * ------------------------------------------------------------------------------------------------------------
 */

static void a_window_is_in_one_step(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = retained(1, 0, 100, 5, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    assert_string_equal(step(f), "1@40+28"); /* ends where the window begins */
    assert_string_equal(step(f), "1@68+32*m32");
    assert_int_equal(used_pages(f), 2 * 7);
    assert_string_equal(step(f), "1@100+1*");
    /* 4 of 7 pages stay in each of 2 groups: 3 full ones and the last with 4 tokens, then one token
     * more. */
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
    sched_request a = request(1, 0, 80, 5), b = retained(2, 200, 40, 5, 32, 64);
    add(f, &a);
    add(f, &b);
    assert_string_equal(step(f), "1@0+40 2@0+4");
    /* 4 tokens are left, which end where b's window begins; then its 32 rows have to go at once. */
    assert_string_equal(step(f), "1@40+40* 2@4+4");
    assert_string_equal(step(f), "1@80+1* 2@8+32*m32");
    finish(f);
}

static void a_window_that_does_not_fit_is_left_for_the_next_step(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 70, 5), b = retained(2, 200, 40, 5, 40, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    add(f, &b);
    assert_string_equal(step(f), "1@40+30*"); /* 14 are left, all 40 rows of b are its window */
    assert_string_equal(step(f), "1@70+1* 2@0+40*m40");
    finish(f);
}

static void a_short_prompt_is_all_window(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = retained(1, 0, 10, 5, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*m10");
    assert_string_equal(step(f), "1@10+1*");
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 0);
    finish(f);
}

/* ---- prefix hits
 * ------------------------------------------------------------------------------------------------------------
 */

static void hits_are_capped(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    fixture *f = begin(o);
    sched_request a = request(1, 0, 64, 1);
    add(f, &a);
    assert_string_equal(step(f), "1@0+64*");
    end(f, 1, 0);
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).pages.cached, 2 * 4);

    sched_request full = request(2, 0, 64, 1), drops = retained(3, 0, 64, 1, 30, 48),
                  logits = request(4, 0, 64, 1), salted = request(5, 0, 64, 1);
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
    sched_request a = retained(1, 0, 64, 40, 16, 32);
    add(f, &a);
    assert_string_equal(step(f), "1@0+64*m16");
    for (int i = 0; i < 33; i++) step(f);
    end(f, 1, 0);
    step(f);
    /* The prompt's blocks were computed with everything kept; the output's were not. */
    sched_request b = request(2, 0, 97, 1);
    for (uint32_t i = 64; i < 97; i++) ((uint32_t *)b.prompt)[i] = 500;
    add(f, &b);
    assert_string_equal(step(f), "2@64+33*");
    finish(f);
}

/* ---- preemption
 * --------------------------------------------------------------------------------------------------------------
 */

static void the_worst_gives_way(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 5; /* 5 blocks */
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = request(1, 0, 30, 30), b = request(2, 100, 15, 30);
    b.priority = -1; /* arrives later, and is better */
    add(f, &a);
    assert_string_equal(step(f), "1@0+30*");
    add(f, &b);
    assert_string_equal(step(f), "1@30+1* 2@0+15*");
    assert_string_equal(step(f), "2@15+1* 1@31+1*");
    for (int i = 0; i < 15; i++) step(f);
    assert_string_equal(f->trace, "2@30+1* 1@46+1*");
    assert_string_equal(step(f), "2@31+1* 1@47+1*");
    assert_int_equal(used_pages(f), 2 * 5);
    /* Both want a third and fourth block; there is none: 1 gives up its three. */
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
    sched_request a = request(1, 0, 40, 25), b = request(2, 100, 65, 5), c = request(3, 200, 40, 5);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40*");
    add(f, &b);
    add(f, &c);
    /* 5 blocks are free, b needs them all: the fourth of a would cost it its slot. c may not pass.
     */
    assert_string_equal(step(f), "1@40+1*");
    for (int i = 0; i < 9; i++) step(f);
    end(f, 2, 0);
    assert_string_equal(step(f),
                        "1@50+1* 3@0+40*"); /* 4 blocks are free, c needs 3: one is left for a */
    finish(f);
}

static void a_replay_repeats_its_drop(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 100;
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = retained(1, 0, 90, 30, 32, 64);
    add(f, &a);
    assert_string_equal(step(f), "1@0+90*m32");
    for (int i = 0; i < 4; i++) step(f);
    assert_string_equal(f->trace, "1@93+1*");
    answer(f,
           status_make(STATUS_IO, NULL)); /* the step failed: it is as if it had been preempted */
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "1@0+90"); /* nothing measured, nothing sampled */
    assert_int_equal(used_pages(f), 2 * 6);
    assert_string_equal(step(f), "1@90+4*");
    assert_int_equal(used_pages(f), 2 * 4);
    assert_int_equal(f->plan->seqs[0].sample_index, 4);
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 4);
    finish(f);
}

static void a_paused_one_gives_way_first(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 5;
    fixture *f = begin(o);
    sched_request a = request(1, 0, 40, 30), b = request(2, 100, 30, 30);
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
    sched_request a = request(1, 0, 10, 30), b = request(2, 100, 10, 30),
                  c = request(3, 200, 10, 30);
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
    sched_request a = request(1, 0, 10, 30), b = request(2, 100, 10, 30);
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    add(f, &b);
    assert_string_equal(step(f), "2@0+10*");
    finish(f);
}

/* ---- several choices
 * ------------------------------------------------------------------------------------------------------------
 */

static void choices_fork_at_the_prompts_end(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 20, 5), b = request(2, 100, 5, 5);
    a.n = 3;
    b.n = 2;
    a.params.repetition_penalty = 1.2f;
    add(f, &a);
    add(f, &b);
    /* Three slots of four are spoken for: 2 has to wait. */
    assert_string_equal(step(f), "1@0+20*3");
    assert_int_equal(f->plan->n_opens, 1);
    assert_int_equal(f->plan->opens[0].n_history, 20);
    assert_string_equal(step(f), "1@20+1* 1.1@20+1* 1.2@20+1*");
    assert_int_equal(f->plan->n_opens, 2);
    assert_int_equal(f->plan->opens[1].choice, 2);
    assert_int_equal(f->plan->opens[1].n_history, 21);
    assert_int_equal(f->plan->opens[1].history[20], 502);
    assert_int_equal(f->plan->opens[1].n_prompt, 20);
    assert_int_equal(f->plan->tokens[2], 502);
    /* One full page each group shared by all, a last page for each: two were copied. */
    assert_int_equal(used_pages(f), 2 * (1 + 3));
    assert_int_equal(f->plan->deltas.n_moves, 2 * 2);
    end(f, 1, 1);
    assert_string_equal(step(f), "1@21+1* 1.2@21+1* 2@0+5*2");
    finish(f);
}

static void another_choice_inherits(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 60, 5);
    a.n = 3;
    add(f, &a);
    assert_string_equal(step(f), "1@0+40");
    end(f, 1, 0);
    /* Choice 0 is gone; the prompt goes on for the others, which draw by their own numbers. */
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

/* ---- ends and failures
 * --------------------------------------------------------------------------------------------------------
 */

static void an_end_in_flight_waits_for_the_result(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 20, 5), b = request(2, 100, 20, 5), c = request(1, 0, 20, 5);
    add(f, &a);
    add(f, &b);
    assert_string_equal(step(f), "1@0+20* 2@0+20*");
    end(f, 1, 0);
    end(f, 7, 0); /* unknown: ignored */
    step_in_flight(f);
    assert_int_equal(used_pages(f), 2 * 4); /* the plan's tables are the backend's until then */
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
    sched_request a = request(1, 0, 20, 5), b = request(2, 100, 20, 5), c = request(3, 200, 20, 5);
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
        r[i] = request(1 + i, 100 * i, 10, 5);
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
    sched_request fits = request(1, 0, 100, 5), r;
    struct {
        uint32_t n_prompt, max_new, n, window, tokens;
        const char *text; // NULL = accepted
    } cases[] = {
        {0, 5, 1, 0, 0, "prompt: has no tokens"},
        {10, 0, 1, 0, 0, "max_tokens: must be at least 1"},
        {10, 5, 0, 0, 0, "n: 0 is not in [1, 4]"},
        {10, 5, 5, 0, 0, "n: 5 is not in [1, 4]"},
        {19000, 1001, 1, 0, 0,
         "prompt of 19,000 tokens + max_tokens 1001 is more than the context limit of 20,000 "
         "tokens"},
        {9990, 11, 1, 0, 0,
         "needs 1,250 KV pages, the pool has 800: shorten the prompt or max_tokens, or give the KV "
         "cache more memory"},
        /* The last token is never stored: 400 blocks of 16. */
        {6400, 1, 1, 0, 0, NULL},
        {6399, 2, 1, 0, 0, NULL},
        {6400, 2, 1, 0, 0, "needs 802 KV pages"},
        /* Two full blocks shared, and for each choice the rest of the third. */
        {40, 5, 4, 0, 0, NULL},
        {3200, 3201, 1, 0, 0, NULL},
        {3200, 1601, 2, 0, 0, NULL},
        {3200, 1602, 2, 0, 0, "needs 804 KV pages"},
        /* After retention 10 pages of a group are left, and there is room for output. */
        {6400, 6400 - 160 + 1, 1, 32, 160, NULL},
        {6400, 6400 - 160 + 2, 1, 32, 160, "needs 802 KV pages"},
        {6401, 1, 1, 32, 160, "needs 802 KV pages"},
        {100, 5, 1, 41, 100, "retention.window: 41 rows do not fit in a prefill chunk of 40"},
        {100, 5, 1, 40, 40, "retention.tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r = fits;
        if (cases[i].window > 0) r = retained(1, 0, 1, 1, cases[i].window, cases[i].tokens);
        r.prompt = long_prompt;
        r.n_prompt = cases[i].n_prompt;
        r.max_new_tokens = cases[i].max_new;
        r.n = cases[i].n;
        error err = {""};
        status st = sched_check(f->s, &r, &err);
        if (!cases[i].text != status_ok(st) ||
            (cases[i].text && strncmp(err.text, cases[i].text, strlen(cases[i].text)) != 0))
            fail_msg("case %zu: \"%s\"", i, err.text);
    }
    free(long_prompt);
    finish(f);
}

/* ---- memory
 * ----------------------------------------------------------------------------------------------------------------------
 */

static void steady_steps_allocate_nothing(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(1, 0, 100, 300), b = retained(2, 200, 100, 300, 32, 64);
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

static void out_of_memory_is_survived(void **state)
{
    (void)state;
    long n_calls = 1;
    for (long i = 0; i < n_calls; i++) {
        test_heap heap = {.fail_at = i};
        allocator alloc = {heap_resize, &heap};
        sched_options o = small_options();
        o.alloc = &alloc;
        sched *s = NULL;
        error err;
        status st = sched_create(&o, &s, &err);
        if (status_ok(st)) {
            /* Requests are refused or wait; what was taken in gets on once there is memory. */
            sched_request a = request(1, 0, 20, 5);
            sched_event event = {.kind = SCHED_ADD, .add = &a};
            sched_step(s, 0, &event, 1);
            assert_null(sched_check_integrity(s));
            n_calls = heap.calls > n_calls ? heap.calls : n_calls;
        } else {
            assert_int_equal(st.code, STATUS_NO_MEMORY);
            assert_null(s);
            n_calls = i + 2;
        }
        sched_destroy(s);
        assert_int_equal(heap.blocks, 0);
    }
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
        cmocka_unit_test(prompts_go_in_chunks),
        cmocka_unit_test(better_priority_goes_first),
        cmocka_unit_test(tokens_of_the_plan_are_the_requests),
        cmocka_unit_test(a_window_is_in_one_step),
        cmocka_unit_test(a_window_waits_for_room),
        cmocka_unit_test(a_window_that_does_not_fit_is_left_for_the_next_step),
        cmocka_unit_test(a_short_prompt_is_all_window),
        cmocka_unit_test(hits_are_capped),
        cmocka_unit_test(what_follows_a_drop_is_not_shared),
        cmocka_unit_test(the_worst_gives_way),
        cmocka_unit_test(admission_leaves_room),
        cmocka_unit_test(a_replay_repeats_its_drop),
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
        cmocka_unit_test(out_of_memory_is_survived),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
