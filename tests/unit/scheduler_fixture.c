#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *heap_resize(void *ctx, void *ptr, size_t size)
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

sched_options small_options(void)
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
        .policy = SCHED_PRIORITY,
        .prefix_cache = true,
    };
}

fixture *begin(sched_options options)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->heap.fail_at = -1;
    f->alloc = (allocator){heap_resize, &f->heap};
    options.alloc = &f->alloc;
    f->geometry = options.geometry;
    error err;
    assert_true(status_ok(sched_create(&options, &f->s, &err)));
    return f;
}

void finish(fixture *f)
{
    assert_null(sched_check_integrity(f->s));
    sched_destroy(f->s);
    assert_int_equal(f->heap.blocks, 0);
    free(f);
}

/* ---- requests: prompts count up from `first`, so that equal beginnings hit ------------------- */

sched_request request(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new)
{
    uint32_t *prompt = f->prompts[id % FIXTURE_PROMPTS];
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

sched_request retained(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new,
                       uint32_t window, uint32_t budget)
{
    sched_request r = request(f, id, first, n_prompt, max_new);
    r.policy = retention_find("chunkkv")->defaults;
    r.policy.preset = retention_find("chunkkv");
    r.policy.window = window;
    r.policy.tokens = budget;
    r.policy.ratio = 0;
    return r;
}

sched_request with_policy(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt,
                          uint32_t max_new, const char *text)
{
    sched_request r = request(f, id, first, n_prompt, max_new);
    retention_limits limits = {f->geometry, 1000, 0};
    json_t *json;
    error err;
    if (!status_ok(json_read_text("policy", text, strlen(text), &json, &err)) ||
        !status_ok(retention_parse(json, &limits, &r.policy, &err)))
        fail_msg("%s", err.text);
    json_decref(json);
    return r;
}

sched_request of_session(sched_request r, uint64_t key)
{
    r.session[0] = key;
    return r;
}

void post(fixture *f, sched_event event)
{
    assert_true(f->n_events < FIXTURE_EVENTS);
    f->events[f->n_events++] = event;
}

void add(fixture *f, const sched_request *r)
{
    error err;
    if (!status_ok(sched_check(f->s, r, &err))) fail_msg("%s", err.text);
    post(f, (sched_event){.kind = SCHED_ADD, .add = r});
}

void end(fixture *f, uint64_t id, uint32_t choice)
{
    post(f, (sched_event){.kind = SCHED_END, .request = id, .choice = choice});
}

void finish_choice(fixture *f, uint64_t id)
{
    post(f, (sched_event){.kind = SCHED_END, .request = id, .finished = true});
}

/* ---- steps ----------------------------------------------------------------------------------- */

void answer(fixture *f, status st)
{
    uint32_t n_samples = 0;
    for (uint32_t i = 0; i < 4 * FIXTURE_SLOTS; i++)
        f->measures[i] = (float)(i % FIXTURE_SLOTS) + (i / FIXTURE_SLOTS % 2 ? f->second_more : 0);
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
        const step_seq *q = &f->plan->seqs[i];
        f->seqs[i] =
            (step_seq_result){.samples = f->samples + n_samples, .n_samples = q->n_samples};
        for (uint32_t j = 0; j < q->n_samples; j++)
            f->samples[n_samples++].token = 500 + q->choice + j;
        if (q->measure.kind != MEASURE_NONE && (!q->measure.silent || q->measure.beside))
            f->seqs[i].measure = (measure_result){.values = f->measures,
                                                  .n_layers = f->geometry.n_layers,
                                                  .n_kv_heads = f->geometry.n_kv_heads,
                                                  .stride = FIXTURE_SLOTS,
                                                  .q_heads = 1,
                                                  .holders = &f->holders};
    }
    f->result = (step_result){.step = f->plan->step,
                              .status = st,
                              .seqs = f->seqs,
                              .n_seqs = f->plan->n_seqs,
                              .checksum = f->plan->checksum,
                              .measure_us = 3000};
    f->plan = NULL;
}

const char *trace_of(fixture *f, const step_plan *plan)
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
        if (q->n_embeds) at += snprintf(at, (size_t)(stop - at), "e%u", q->n_embeds);
        if (q->n_layers) at += snprintf(at, (size_t)(stop - at), "/%u", q->n_layers);
        if (q->token_from) at += snprintf(at, (size_t)(stop - at), "<%u", q->token_from);
    }
    return f->trace;
}

const char *step(fixture *f)
{
    sched_event events[FIXTURE_EVENTS + 1];
    size_t n = 0;
    if (f->plan) {
        answer(f, STATUS_IS_OK);
        events[n++] = (sched_event){.kind = SCHED_RESULT, .result = &f->result};
    }
    for (size_t i = 0; i < f->n_events; i++) events[n++] = f->events[i];
    f->n_events = 0;
    const step_plan *plan = sched_step(f->s, f->now_us, events, n);
    const char *wrong = sched_check_integrity(f->s);
    if (wrong) fail_msg("%s", wrong);
    if (!sched_plan_empty(plan)) f->plan = plan;
    return trace_of(f, plan);
}

void step_in_flight(fixture *f)
{
    assert_non_null(f->plan);
    const step_plan *plan = sched_step(f->s, f->now_us, f->events, f->n_events);
    f->n_events = 0;
    assert_true(sched_plan_empty(plan));
    assert_null(sched_check_integrity(f->s));
}

uint32_t used_pages(fixture *f) { return sched_get_stats(f->s).pages.used; }

sched_choice_info describe(fixture *f, uint64_t id, uint32_t choice)
{
    sched_choice_info info;
    assert_true(status_ok(sched_describe(f->s, id, choice, &info)));
    return info;
}
