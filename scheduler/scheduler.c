#include "scheduler/sched_internal.h"

static bool options_valid(const sched_options *o, error *err)
{
    if (o->max_seqs == 0 || o->prefill_chunk == 0 || o->max_model_len < 2 || o->max_requests == 0) {
        error_set(err, STATUS_INVALID,
                  "max_seqs, prefill_chunk and max_requests must be at least 1, max_model_len 2");
        return false;
    }
    if (o->max_model_len > INT32_MAX || o->prefill_chunk > INT32_MAX || o->max_seqs > 1u << 16 ||
        o->max_requests > 1u << 24) {
        error_set(err, STATUS_LIMIT,
                  "at most 65,536 sequences, 16,777,216 requests and 2^31 - 1 tokens");
        return false;
    }
    const retention_policy *p = o->pressure;
    if (p && (!sched_keeps_pages(p) || retention_has_sums(p) || retention_wants_novelty(p))) {
        error_set(err, STATUS_INVALID,
                  "pressure_retention: %s cannot be used: it has to drop whole pages by what one "
                  "row attends to, as chunkkv does by default",
                  p->preset->name);
        return false;
    }
    if (o->max_sessions > 1u << 20) {
        error_set(err, STATUS_LIMIT, "max_sessions: at most 1,048,576");
        return false;
    }
    return true;
}

static uint32_t map_size(const sched_options *o)
{
    /* Live requests, and those that ended in the last call. At most half full. */
    uint32_t size = 16;
    while (size < 4 * o->max_requests) size *= 2;
    return size;
}

status sched_create(const sched_options *options, sched **out, error *err)
{
    *out = NULL;
    RETURN_IF_ERROR(pkv_geometry_check(&options->geometry, err));
    if (!options_valid(options, err)) return status_make(STATUS_INVALID, NULL);
    const allocator *a = options->alloc ? options->alloc : &allocator_default;
    sched *s = alloc_zeroed(a, 1, sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "scheduler: out of memory");
    s->options = *options;
    if (options->pressure) s->pressure = *options->pressure;
    s->options.pressure = NULL;
    s->alloc = *a;
    s->groups = pkv_groups(&options->geometry);
    s->page_tokens = options->geometry.page_tokens;
    s->map_mask = map_size(options) - 1;
    s->n_free_slots = s->running.capacity = options->max_seqs;

    size_t n = options->max_seqs;
    s->map = alloc_zeroed(a, (size_t)s->map_mask + 1, sizeof *s->map);
    s->running.seqs = alloc_zeroed(a, n, sizeof *s->running.seqs);
    s->free_slots = alloc_zeroed(a, n, sizeof *s->free_slots);
    s->plan_seqs = alloc_zeroed(a, n, sizeof *s->plan_seqs);
    s->planned = alloc_zeroed(a, n, sizeof *s->planned);
    s->opens = alloc_zeroed(a, n, sizeof *s->opens);
    s->spoilt = alloc_zeroed(a, n, sizeof *s->spoilt);
    s->sessions = alloc_zeroed(a, (size_t)options->max_sessions + 1, sizeof *s->sessions);
    s->plan_tokens = alloc_zeroed(a, n + options->prefill_chunk, sizeof *s->plan_tokens);
    status st = pkv_create(&(pkv_options){.geometry = options->geometry,
                                          .n_pages = options->n_pages,
                                          .n_host_pages = options->n_host_pages,
                                          .max_seqs = options->max_seqs,
                                          .prefix_cache = options->prefix_cache,
                                          .alloc = a,
                                          .on_block = options->on_block,
                                          .on_block_ctx = options->on_block_ctx},
                           &s->kv);
    if (status_ok(st) && !(s->map && s->running.seqs && s->free_slots && s->plan_seqs &&
                           s->planned && s->spoilt && s->sessions && s->opens && s->plan_tokens)) {
        st = status_make(STATUS_NO_MEMORY, NULL);
    }
    if (!status_ok(st)) {
        sched_destroy(s);
        return error_set(err, st.code, "scheduler: %s", status_text(st.code));
    }
    for (uint32_t i = 0; i < options->max_seqs; i++) s->free_slots[i] = options->max_seqs - 1 - i;
    s->plan.seqs = s->plan_seqs;
    s->plan.opens = s->opens;
    s->plan.tokens = s->plan_tokens;
    *out = s;
    return STATUS_IS_OK;
}

void sched_destroy(sched *s)
{
    if (!s) return;
    sched_entries_destroy(s);
    sched_sessions_destroy(s);
    pkv_destroy(s->kv);
    allocator a = s->alloc;
    alloc_free(&a, s->map);
    alloc_free(&a, s->running.seqs);
    alloc_free(&a, s->waiting.seqs);
    alloc_free(&a, s->free_slots);
    alloc_free(&a, s->plan_seqs);
    alloc_free(&a, s->planned);
    alloc_free(&a, s->spoilt);
    alloc_free(&a, s->sessions);
    alloc_free(&a, s->keep);
    alloc_free(&a, s->scratch);
    alloc_free(&a, s->opens);
    alloc_free(&a, s->plan_tokens);
    alloc_free(&a, s);
}

static void take_event(sched *s, const sched_event *event, int64_t now_us)
{
    sched_entry *e;
    switch (event->kind) {
    case SCHED_ADD:
        e = sched_entry_create(s, event->add, now_us);
        if (!e) return;
        e->seqs[0].state = SEQ_WAITING;
        sched_list_insert(&s->waiting, &e->seqs[0]);
        return;
    case SCHED_RESULT: sched_take_result(s, event->result); return;
    case SCHED_END:
        e = sched_entry_find(s, event->request);
        if (e) sched_entry_end(s, e, event->choice, event->finished);
        return;
    case SCHED_FLUSH: pkv_flush(s->kv); return;
    case SCHED_PAUSE:
    case SCHED_RESUME:
        e = sched_entry_find(s, event->request);
        if (e) sched_entry_pause(e, event->choice, event->kind == SCHED_PAUSE, now_us);
        return;
    }
}

const step_plan *sched_step(sched *s, int64_t now_us, const sched_event *events, size_t n_events)
{
    s->now_us = now_us;
    sched_entries_forget(s);
    /* None is gone on from after its time, however long nobody asked. */
    if (!s->in_flight) sched_sessions_expire(s);
    for (size_t i = 0; i < n_events; i++) take_event(s, &events[i], now_us);
    if (s->in_flight) return &s->idle_plan;
    sched_reap(s);
    sched_sessions_expire(s);
    sched_plan_step(s, now_us);
    s->in_flight = !sched_plan_empty(&s->plan);
    return &s->plan;
}
