/* Creation, submission and numbers. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */

static bool allocate(engine *e)
{
    const engine_options *o = &e->o;
    e->stop_ids = alloc_zeroed(o->alloc, o->n_stop_ids + 1, sizeof *e->stop_ids);
    e->slots = alloc_zeroed(o->alloc, o->max_requests, sizeof *e->slots);
    e->free_slots = alloc_zeroed(o->alloc, o->max_requests, sizeof *e->free_slots);
    e->untold = alloc_zeroed(o->alloc, step_most_draws(e->info.max_seqs), sizeof *e->untold);
    e->measured = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->measured);
    e->prefilled = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->prefilled);
    e->workers = alloc_zeroed(o->alloc, o->tokenizer_threads, sizeof *e->workers);
    e->selecting.waiting = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->selecting.waiting);
    e->readings = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->readings);
    e->inbox.selected = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->inbox.selected);
    e->selected = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->selected);
    e->inbox.loaded = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->inbox.loaded);
    e->loaded = alloc_zeroed(o->alloc, e->info.max_seqs, sizeof *e->loaded);
    if (!e->selecting.waiting || !e->inbox.selected || !e->selected) return false;
    if (!e->inbox.loaded || !e->loaded || !e->readings) return false;
    if (!e->stop_ids || !e->slots || !e->free_slots || !e->untold || !e->measured ||
        !e->prefilled || !e->workers)
        return false;
    if (o->n_stop_ids) memcpy(e->stop_ids, o->stop_ids, o->n_stop_ids * sizeof *e->stop_ids);
    for (uint32_t i = 0; i < o->max_requests; i++) e->free_slots[i] = o->max_requests - 1 - i;
    e->n_free_slots = o->max_requests;
    return true;
}

static bool start_threads(engine *e)
{
    session_watch(e);
    if (!status_ok(select_start(e)) || !status_ok(hand_start(e))) return false;
    if (pthread_create(&e->thread, NULL, engine_loop, e)) return false;
    e->thread_started = true;
    if (!status_ok(watch_start(e))) return false;
    for (; e->n_workers < e->o.tokenizer_threads; e->n_workers++)
        if (pthread_create(&e->workers[e->n_workers], NULL, prepare_loop, e)) return false;
    return true;
}

static void init_locks(engine *e)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->inbox.lock, NULL);
    pthread_cond_init(&e->inbox.arrived, &monotonic);
    pthread_mutex_init(&e->prepare.lock, NULL);
    pthread_cond_init(&e->prepare.arrived, NULL);
    pthread_mutex_init(&e->selecting.lock, NULL);
    pthread_mutex_init(&e->forms.lock, NULL);
    pthread_cond_init(&e->selecting.arrived, NULL);
    pthread_cond_init(&e->selecting.done, NULL);
    pthread_mutex_init(&e->hands.lock, NULL);
    pthread_cond_init(&e->hands.arrived, NULL);
    pthread_cond_init(&e->hands.done, NULL);
    pthread_mutex_init(&e->stats_lock, NULL);
    pthread_rwlock_init(&e->sched_lock, NULL);
    pthread_mutex_init(&e->watch.lock, NULL);
    pthread_cond_init(&e->watch.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void destroy_locks(engine *e)
{
    pthread_cond_destroy(&e->watch.changed);
    pthread_mutex_destroy(&e->watch.lock);
    pthread_rwlock_destroy(&e->sched_lock);
    pthread_mutex_destroy(&e->stats_lock);
    pthread_cond_destroy(&e->hands.done);
    pthread_cond_destroy(&e->hands.arrived);
    pthread_mutex_destroy(&e->hands.lock);
    pthread_cond_destroy(&e->selecting.done);
    pthread_cond_destroy(&e->selecting.arrived);
    pthread_mutex_destroy(&e->selecting.lock);
    pthread_mutex_destroy(&e->forms.lock);
    pthread_cond_destroy(&e->prepare.arrived);
    pthread_mutex_destroy(&e->prepare.lock);
    pthread_cond_destroy(&e->inbox.arrived);
    pthread_mutex_destroy(&e->inbox.lock);
}

status engine_create(const engine_options *options, engine **out, error *err)
{
    engine *e = alloc_zeroed(options->alloc, 1, sizeof *e);
    if (!e) return error_set(err, STATUS_NO_MEMORY, "engine: out of memory");
    e->o = *options;
    e->backend = *options->backend;
    e->info = *e->backend.ops->info(e->backend.ctx);
    if (e->o.ring_capacity == 0) e->o.ring_capacity = 256;
    if (e->o.tokenizer_threads == 0) e->o.tokenizer_threads = 2;
    if (e->o.max_model_len == 0 || e->o.max_model_len > e->info.max_positions)
        e->o.max_model_len = e->info.max_positions;
    if (e->o.max_logical_len < e->o.max_model_len) e->o.max_logical_len = e->o.max_model_len;
    e->bytes_per_token = e->o.tokenizer ? tok_bytes_per_token(e->o.tokenizer) : 0;
    e->text_room = e->o.tokenizer ? tok_stream_room(e->o.tokenizer) : 0;
    metrics_init(&e->counting);
    init_locks(e);
    atomic_store(&e->next_seed, hash_mix64((uint64_t)clock_now_ns()));

    status s = allocate(e) && slots_make_room(e, 0)
                   ? retention_rules_make(&e->o, &e->info.geometry, &e->retention, err)
                   : error_set(err, STATUS_NO_MEMORY, "engine: out of memory");
    if (status_ok(s)) s = reform_start(e, err);
    if (status_ok(s)) s = disk_check(e, err);
    if (status_ok(s)) s = hand_check(e, err);
    if (status_ok(s)) s = engine_make_scheduler(e, &e->sched, err);
    if (status_ok(s) && !start_threads(e))
        s = error_set(err, STATUS_NO_MEMORY, "engine: cannot start its threads");
    if (!status_ok(s)) {
        engine_destroy(e);
        return s;
    }
    *out = e;
    return STATUS_IS_OK;
}

static void stop_flag(pthread_mutex_t *lock, pthread_cond_t *arrived, bool *stop)
{
    pthread_mutex_lock(lock);
    *stop = true;
    pthread_cond_broadcast(arrived);
    pthread_mutex_unlock(lock);
}

/* A stream may come back from a select thread when the engine thread takes nothing in any more. */
static void drop_inbox(engine *e)
{
    inbox_batch batch = inbox_drain_all(e, 0);
    for (engine_stream *s = batch.first, *next; s; s = next) {
        next = s->taken_next;
        stream_unref(s);
    }
    pages_want(e, &batch.looks);
    pages_drop(e);
}

void engine_destroy(engine *e)
{
    if (!e) return;
    stop_flag(&e->prepare.lock, &e->prepare.arrived, &e->prepare.stop);
    for (uint32_t i = 0; i < e->n_workers; i++) pthread_join(e->workers[i], NULL);
    if (e->o.transfer) transfer_cancel(e->o.transfer);
    stop_flag(&e->inbox.lock, &e->inbox.arrived, &e->inbox.stop);
    if (e->thread_started) pthread_join(e->thread, NULL);
    session_unwatch(e);
    select_stop(e);
    hand_stop(e);
    drop_inbox(e);
    watch_stop(e); /* last: only the watchdog ends a stuck step */
    sched_destroy(e->sched);
    reform_stop(e);
    const allocator *a = e->o.alloc;
    alloc_free(NULL, e->events);
    alloc_free(NULL, e->ending);
    alloc_free(NULL, e->late);
    alloc_free(a, e->untold);
    alloc_free(a, e->measured);
    alloc_free(a, e->prefilled);
    alloc_free(a, e->readings);
    alloc_free(a, e->slots);
    alloc_free(a, e->free_slots);
    alloc_free(a, e->stop_ids);
    alloc_free(a, e->workers);
    alloc_free(a, e->selecting.waiting);
    alloc_free(a, e->inbox.selected);
    alloc_free(a, e->selected);
    alloc_free(a, e->inbox.loaded);
    alloc_free(a, e->loaded);
    strbuf_destroy(&e->text);
    free(e->map);
    form_cache_destroy(&e->forms);
    destroy_locks(e);
    alloc_free(a, e);
}

/* ---- submission ------------------------------------------------------------------------------ */

status engine_submit(engine *e, const engine_request *r, engine_notify notify, void *ctx,
                     engine_stream **out, error *err)
{
    retention_policy policy;
    retrieval_spec retrieval;
    RETURN_IF_ERROR(engine_request_check(r, &e->info, e->o.chat, err));
    RETURN_IF_ERROR(retention_rules_apply(&e->retention, r, &policy, err));
    RETURN_IF_ERROR(reform_check(e, r, &policy, err));
    RETURN_IF_ERROR(retrieval_parse(r->retrieval, &e->info.geometry, &retrieval, err));
    RETURN_IF_ERROR(hand_check_request(e, r, err));
    RETURN_IF_ERROR(engine_check_state(e, err));
    /* Counting first keeps every later queue within max_requests. */
    if (atomic_fetch_add(&e->n_live, 1) >= e->o.max_requests) {
        atomic_fetch_sub(&e->n_live, 1);
        return error_set(err, STATUS_QUEUE_FULL, "%u requests are waiting or running already",
                         e->o.max_requests);
    }
    engine_stream *s = NULL;
    status st = stream_create(e, r, &s);
    if (status_ok(st)) {
        s->policy = policy;
        st = reform_create(e, s);
        if (status_ok(st)) st = hand_create(e, s);
    }
    if (!status_ok(st)) {
        stream_unref(s);
        atomic_fetch_sub(&e->n_live, 1);
        return error_set(err, st.code, "request: out of memory");
    }
    s->retrieval = retrieval;
    s->has_report = r->retention || r->session || e->retention.reports_standard;
    s->notify = notify;
    s->notify_ctx = ctx;
    s->arrival = atomic_fetch_add(&e->n_submitted, 1);
    prepare_put(e, s);
    *out = s;
    return STATUS_IS_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

engine_stats engine_get_stats(engine *e)
{
    pthread_mutex_lock(&e->stats_lock);
    engine_stats stats = e->stats;
    pthread_mutex_unlock(&e->stats_lock);
    stats.state = (engine_state)atomic_load(&e->state);
    if (e->o.disk) stats.disk = disk_count(e->o.disk);
    if (e->o.sessions) stats.records = disk_record_count(e->o.sessions);
    if (e->o.transfer) stats.transfer = transfer_count(e->o.transfer);
    if (e->o.embeddings) stats.embeddings = disk_record_count(e->o.embeddings);
    stats.embed_bytes = reform_store_used(&e->embeddings);
    stats.n_live = atomic_load(&e->n_live);
    stats.requests_prepared = atomic_load(&e->n_prepared);
    return stats;
}

void engine_get_metrics(engine *e, engine_metrics *out)
{
    pthread_mutex_lock(&e->stats_lock);
    *out = e->metrics;
    memcpy(out->choices_finished, e->choices_finished, sizeof e->choices_finished);
    out->undefined = e->n_undefined;
    pthread_mutex_unlock(&e->stats_lock);
}

/* ---- the cache ------------------------------------------------------------------------------- */

status engine_flush_cache(engine *e)
{
    if (atomic_load(&e->state) == ENGINE_BROKEN)
        return status_make(STATUS_UNAVAILABLE, "the backend has failed");
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.flush = true;
    pthread_cond_signal(&e->inbox.arrived);
    pthread_mutex_unlock(&e->inbox.lock);
    return STATUS_IS_OK;
}

status engine_forget_session(engine *e, const engine_request *r)
{
    inbox *in = &e->inbox;
    forgotten_session it;
    session_key(r, it.key);
    reform_store_forget(&e->embeddings, it.key);
    pthread_mutex_lock(&in->lock);
    bool waits = false;
    for (uint32_t i = 0; i < in->n_forgotten; i++)
        waits |= memcmp(in->forgotten[i].key, it.key, sizeof it.key) == 0;
    bool has_room = waits || in->n_forgotten < FORGETS_MOST;
    if (has_room && !waits) in->forgotten[in->n_forgotten++] = it;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
    return has_room ? STATUS_IS_OK : status_make(STATUS_QUEUE_FULL, NULL);
}

void engine_save_at_end(engine *e, int64_t until_us) { atomic_store(&e->save_until_us, until_us); }

void engine_backend_lost(engine *e, const char *why)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    in->lost = true;
    snprintf(in->lost_why, sizeof in->lost_why, "%s", why);
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}
