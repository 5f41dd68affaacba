#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

status sched_check_pressure(const retention_policy *p, error *err)
{
    if (retention_selects(p) && sched_keeps_pages(p) && !retention_has_sums(p) &&
        !retention_wants_novelty(p))
        return STATUS_IS_OK;
    return error_set(
        err, STATUS_INVALID,
        "%s cannot be used under pressure: it has to drop whole pages by what one row attends to, "
        "as chunkkv does by default",
        p->preset->name);
}

static bool options_valid(const sched_options *o, error *err)
{
    if (o->max_seqs == 0 || o->prefill_chunk == 0 || o->max_model_len < 2 || o->max_requests == 0) {
        error_set(err, STATUS_INVALID,
                  "max_seqs, prefill_chunk and max_requests must be at least 1, max_model_len 2");
        return false;
    }
    if (o->max_model_len > INT32_MAX || o->max_logical_len > INT32_MAX ||
        o->prefill_chunk > INT32_MAX || o->max_seqs > 1u << 16 || o->max_requests > 1u << 24) {
        error_set(err, STATUS_LIMIT,
                  "at most 65,536 sequences, 16,777,216 requests and 2^31 - 1 tokens");
        return false;
    }
    if (o->pressure && !status_ok(sched_check_pressure(o->pressure, err))) return false;
    if (o->policy != SCHED_FCFS && o->policy != SCHED_PRIORITY) {
        error_set(err, STATUS_INVALID, "scheduling_policy: must be fcfs or priority");
        return false;
    }
    if (o->max_sessions > 1u << 20) {
        error_set(err, STATUS_LIMIT, "max_sessions: at most 1,048,576");
        return false;
    }
    return true;
}

static bool work_create(const sched *s, sched_work *w)
{
    const sched_options *o = &s->options;
    w->seqs = alloc_zeroed(&s->alloc, o->max_seqs, sizeof *w->seqs);
    w->planned = alloc_zeroed(&s->alloc, o->max_seqs, sizeof *w->planned);
    w->keeps_all = alloc_zeroed(&s->alloc, o->max_seqs, sizeof *w->keeps_all);
    w->opens = alloc_zeroed(&s->alloc, o->max_seqs, sizeof *w->opens);
    w->tokens = alloc_zeroed(&s->alloc, (size_t)o->max_seqs + o->prefill_chunk, sizeof *w->tokens);
    w->plan = (step_plan){
        .seqs = w->seqs, .opens = w->opens, .tokens = w->tokens, .ended_notes = w->ended_notes};
    return w->seqs && w->planned && w->keeps_all && w->opens && w->tokens;
}

static void work_destroy(const allocator *a, sched_work *w)
{
    alloc_free(a, w->seqs);
    alloc_free(a, w->planned);
    alloc_free(a, w->keeps_all);
    alloc_free(a, w->opens);
    alloc_free(a, w->tokens);
}

static uint32_t map_size(const sched_options *o)
{
    /* Room for live requests and those that ended in the last call, at most half full. */
    uint32_t size = 16;
    while (size < 4 * o->max_requests) size *= 2;
    return size;
}

/* With the whole budget of a step at least one row can be computed. */
static uint32_t usable_cost(const sched_options *o)
{
    uint64_t most = (uint64_t)o->prefill_chunk * PLAIN_ROW_COST;
    uint32_t cost = o->logit_row_cost < PLAIN_ROW_COST ? PLAIN_ROW_COST : o->logit_row_cost;
    return cost < most ? cost : (uint32_t)most;
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
    s->options.logit_row_cost = usable_cost(options);
    if (options->max_logical_len < options->max_model_len)
        s->options.max_logical_len = options->max_model_len;
    if (!options->prefix_cache || options->lost_most == 0) s->options.has_block = NULL;
    s->alloc = *a;
    s->groups = pkv_groups(&options->geometry);
    s->page_tokens = options->geometry.page_tokens;
    s->map_mask = map_size(options) - 1;
    s->n_free_slots = s->running.capacity = options->max_seqs;
    s->depth = options->max_in_flight < 2 ? 1 : SCHED_MOST_IN_FLIGHT;

    size_t n = options->max_seqs;
    s->map = alloc_zeroed(a, (size_t)s->map_mask + 1, sizeof *s->map);
    s->running.seqs = alloc_zeroed(a, n, sizeof *s->running.seqs);
    s->free_slots = alloc_zeroed(a, n, sizeof *s->free_slots);
    s->fates = alloc_zeroed(a, n, sizeof *s->fates);
    bool has_works = true, has_idle = sched_idle_create(s);
    for (uint32_t i = 0; i < s->depth; i++) has_works &= work_create(s, &s->works[i]);
    status st = pkv_create(&(pkv_options){.geometry = options->geometry,
                                          .n_pages = options->n_pages,
                                          .n_host_pages = options->n_host_pages,
                                          .max_seqs = options->max_seqs,
                                          .prefix_cache = options->prefix_cache,
                                          .lost_most = options->lost_most,
                                          .alloc = a,
                                          .on_block = options->on_block,
                                          .on_block_ctx = options->on_block_ctx},
                           &s->kv);
    if (status_ok(st) &&
        !(s->map && s->running.seqs && s->free_slots && s->fates && has_idle && has_works)) {
        st = status_make(STATUS_NO_MEMORY, NULL);
    }
    if (!status_ok(st)) {
        sched_destroy(s);
        return error_set(err, st.code, "scheduler: %s", status_text(st.code));
    }
    s->even_pages = pkv_even_pages(&options->geometry, options->n_pages - 1);
    for (uint32_t i = 0; i < options->max_seqs; i++) s->free_slots[i] = options->max_seqs - 1 - i;
    *out = s;
    return STATUS_IS_OK;
}

void sched_destroy(sched *s)
{
    if (!s) return;
    sched_selections_destroy(s);
    sched_loads_destroy(s);
    sched_exports_destroy(s);
    sched_entries_destroy(s);
    sched_sessions_destroy(s);
    pkv_destroy(s->kv);
    allocator a = s->alloc;
    alloc_free(&a, s->map);
    alloc_free(&a, s->running.seqs);
    alloc_free(&a, s->waiting.seqs);
    alloc_free(&a, s->free_notes);
    alloc_free(&a, s->ended_notes);
    alloc_free(&a, s->free_slots);
    alloc_free(&a, s->fates);
    alloc_free(&a, s->keep);
    alloc_free(&a, s->scratch);
    for (uint32_t i = 0; i < s->depth; i++) work_destroy(&a, &s->works[i]);
    alloc_free(&a, s);
}

static void take_event(sched *s, const sched_event *event, int64_t now_us)
{
    sched_entry *e;
    switch (event->kind) {
    case SCHED_ADD:
        /* The request may continue a session whose last sequence has ended and is not reaped. */
        if (s->n_in_flight < s->depth) {
            sched_reap(s);
            sched_reap_session(s, event->add->session);
        }
        e = sched_entry_create(s, event->add, now_us);
        if (!e) return;
        e->seqs[0].state = SEQ_WAITING;
        sched_list_insert(&s->waiting, &e->seqs[0]);
        return;
    case SCHED_RESULT: sched_take_result(s, event->result); return;
    case SCHED_END:
        e = sched_entry_find(s, event->request);
        if (e && event->distrusted) sched_distrust(s, e, event->choice);
        if (e) sched_entry_end(s, e, event->choice, event->finished);
        return;
    case SCHED_FORCED:
        e = sched_entry_find(s, event->request);
        if (e) sched_take_forced(s, e, event->forced, event->n_forced);
        return;
    case SCHED_SELECTED: sched_take_selection(s, event->selection); return;
    case SCHED_LOADED: sched_take_load(s, event->load, event->n_loaded); return;
    case SCHED_EXPORTED: sched_take_export(s, event->exported); return;
    case SCHED_FLUSH: pkv_flush(s->kv); return;
    case SCHED_FORGET: sched_session_forget(s, event->session); return;
    case SCHED_PAUSE:
    case SCHED_RESUME:
        e = sched_entry_find(s, event->request);
        if (e) sched_entry_pause(e, event->choice, event->kind == SCHED_PAUSE, now_us);
        return;
    }
}

/* Pages that are given up or looked at in portions are nothing that a backend runs. So where
 * nothing runs, no later call is sure: all portions are made in this one, until something can
 * run. */
static const step_plan *plan_step(sched *s, int64_t now_us)
{
    for (;;) {
        sched_plan_step(s, now_us);
        if (s->n_in_flight > 0 && next_work(s)->plan.n_seqs == 0)
            return &s->idle_plan; /* the deltas go with the next plan */
        const step_plan *plan = sched_close_plan(s);
        if (!sched_plan_empty(plan) || s->n_in_flight > 0) return plan;
        bool looks = s->looks;
        if (!sched_away_again(s) && !looks) return plan;
        sched_go_on(s);
    }
}

/* A step: forgets what ended before the last call, takes the events in order, applies selections,
 * gives up what has ended, and plans, also behind a step in flight (ahead.c). */
const step_plan *sched_step(sched *s, int64_t now_us, const sched_event *events, size_t n_events)
{
    /* Where two steps may be in flight, the backend is done with a plan's deltas before the next
     * plan is made, so tables may change at any time. */
    bool may_touch = s->n_in_flight == 0 || s->depth > 1;
    s->now_us = now_us;
    s->is_starved = s->has_left = false;
    sched_away_begin(s);
    sched_entries_forget(s);
    /* A session never continues after its time, however long no call was made. */
    if (may_touch) sched_sessions_expire(s);
    for (size_t i = 0; i < n_events; i++) take_event(s, &events[i], now_us);
    if (s->n_in_flight == s->depth) return &s->idle_plan;
    sched_apply_selections(s);
    sched_apply_loads(s);
    sched_reap(s);
    (void)sched_away_go_on(s);
    sched_go_on(s);
    sched_sessions_expire(s);
    if (s->n_in_flight > 0 && !sched_may_plan_ahead(s)) return &s->idle_plan;
    if (s->running.n > 0) (void)pkv_gather(s->kv); /* it only saves time */
    return plan_step(s, now_us);
}

pkv_lost sched_take_lost(sched *s) { return pkv_take_lost(s->kv); }
pkv_lost sched_tell_cached(sched *s, uint32_t *cursor) { return pkv_tell_cached(s->kv, cursor); }
