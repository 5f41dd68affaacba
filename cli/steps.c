/* The loop around sched_step and a backend. */
#include "cli/steps.h"

enum { EVENTS_MAX = 256 };

status steps_create(loaded_model *m, uint32_t max_model_len, bool prefix_cache, steps *out,
                    error *err)
{
    const backend_info *info = m->backend.ops->info(m->backend.ctx);
    sched_options o = {
        .geometry = info->geometry,
        .n_pages = info->n_pages,
        .n_host_pages = info->n_host_pages,
        .max_seqs = m->max_batch,
        .prefill_chunk = m->prefill_chunk,
        .max_model_len = max_model_len,
        .max_requests = EVENTS_MAX - 1,
        .max_logit_rows = info->max_logit_rows,
        .logit_row_cost = info->logit_row_cost,
        .lacks = info->lacks,
        .prefix_cache = prefix_cache,
        .salt = info->identity,
    };
    *out = (steps){.backend = &m->backend};
    return sched_create(&o, &out->sched, err);
}

void steps_destroy(steps *s)
{
    sched_destroy(s->sched);
    *s = (steps){0};
}

status steps_next(steps *s, const sched_event *events, size_t n_events, error *err)
{
    sched_event all[EVENTS_MAX];
    size_t n = 0;
    if (s->result) all[n++] = (sched_event){.kind = SCHED_RESULT, .result = s->result};
    for (size_t i = 0; i < n_events && n < EVENTS_MAX; i++) all[n++] = events[i];
    s->result = NULL;
    int64_t start = clock_now_us();
    s->plan = sched_step(s->sched, start, all, n);
    s->schedule_us = clock_now_us() - start;
    if (sched_plan_empty(s->plan)) return STATUS_IS_OK;
    status st = s->backend->ops->submit(s->backend->ctx, s->plan);
    if (status_ok(st)) st = s->backend->ops->collect(s->backend->ctx, &s->result);
    if (status_ok(st)) st = s->result->status;
    return status_ok(st)
               ? st
               : error_set(err, st.code, "step %llu: %s", (unsigned long long)s->plan->step,
                           st.message ? st.message : status_text(st.code));
}

status steps_drain(steps *s, error *err)
{
    do RETURN_IF_ERROR(steps_next(s, NULL, 0, err));
    while (s->result);
    return STATUS_IS_OK;
}
