/* Watches the backend: steps that are stuck or fail as a whole, and how the backend is made again.
 *
 * The engine thread begins and ends each call into the backend under watch.lock. During the call it
 * touches neither streams nor scheduler, so the watchdog, while it holds the lock, may tell and
 * fail the streams in place of the engine thread, and may interrupt the backend, which cannot be
 * destroyed meanwhile. The watchdog marks the step abandoned. The engine thread sees the mark when
 * the backend returns, and discards the result, also that of a step in flight behind it. */
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

static void keep_trouble(engine *e, const char *text)
{
    pthread_mutex_lock(&e->stats_lock);
    snprintf(e->trouble, sizeof e->trouble, "%s", text);
    pthread_mutex_unlock(&e->stats_lock);
}

static void log_trouble(engine *e, const char *text)
{
    keep_trouble(e, text);
    if (e->o.on_trouble) e->o.on_trouble(e->o.on_trouble_ctx, text);
}

/* Makes engine_submit refuse requests from now on. The state tells whether trying again can
 * help. */
static void lose_backend(engine *e)
{
    atomic_store(&e->state, e->o.restart ? ENGINE_RESTARTING : ENGINE_BROKEN);
}

/* ---- the watchdog ---------------------------------------------------------------------------- */

/* Fails all requests, also those that wait, because the backend will be made again; interrupts the
 * backend. The lock is held. */
static void abandon_step(engine *e, int64_t now_us)
{
    step_watch *w = &e->watch;
    char text[160];
    w->abandoned = true;
    w->abandoned_us = now_us;
    snprintf(text, sizeof text, "step %llu was stuck: %u sequences, %lld ms so far",
             (unsigned long long)w->step, w->n_seqs, (long long)((now_us - w->started_us) / 1000));
    log_trouble(e, text);
    lose_backend(e);
    slots_fail_all(e, STATUS_UNAVAILABLE, text);
    if (e->backend.ops->interrupt) e->backend.ops->interrupt(e->backend.ctx);
}

/* The backend does not react to its interruption: fails all requests that wait for it. If the
 * backend returns after all, it is made again as usual. Called again and again with the lock held,
 * since prepare threads may still add requests. */
static void give_up_backend(engine *e)
{
    if (atomic_exchange(&e->state, ENGINE_BROKEN) != ENGINE_BROKEN)
        log_trouble(
            e, "the stuck step does not end: all requests that waited for the backend have failed");
    slots_refuse_added(e, 0);
}

static void *watchdog(void *arg)
{
    engine *e = arg;
    step_watch *w = &e->watch;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        /* A step that begins during the sleep is due after it, so beginning a step need not wake
         * the watchdog. */
        int64_t now = clock_now_us(), due = now + e->o.step_timeout_us;
        if (w->started_us && !w->abandoned) {
            due = w->started_us + e->o.step_timeout_us;
            if (due <= now) {
                abandon_step(e, now);
                continue;
            }
        } else if (w->started_us && now - w->abandoned_us >= e->o.step_timeout_us) {
            give_up_backend(e);
        }
        struct timespec until = {due / 1000000, due % 1000000 * 1000};
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

status watch_start(engine *e)
{
    if (e->o.step_timeout_us <= 0) return STATUS_IS_OK;
    if (pthread_create(&e->watch.thread, NULL, watchdog, e))
        return status_make(STATUS_NO_MEMORY, "watchdog thread");
    e->watch.thread_started = true;
    return STATUS_IS_OK;
}

void watch_stop(engine *e)
{
    if (!e->watch.thread_started) return;
    pthread_mutex_lock(&e->watch.lock);
    e->watch.stop = true;
    pthread_cond_signal(&e->watch.changed);
    pthread_mutex_unlock(&e->watch.lock);
    pthread_join(e->watch.thread, NULL);
}

/* ---- another backend ------------------------------------------------------------------------- */

/* Whether the new backend suits the requests in the queues, which were checked against the old one,
 * and the blocks on disk and the records between servers, if there are any. Its pool may differ,
 * and a rank may come back on a machine of another instruction set. */
static bool is_alike(const backend_info *a, const backend_info *b, bool has_disk, bool has_transfer)
{
    if (has_transfer && (a->kv_identity != b->kv_identity || a->kv_kind != b->kv_kind))
        return false;
    if (has_disk && a->block_identity != b->block_identity) return false;
    return a->vocab_size == b->vocab_size && a->max_positions == b->max_positions &&
           a->max_rows == b->max_rows && a->max_seqs == b->max_seqs && a->lacks == b->lacks &&
           a->retrieves == b->retrieves && a->masks == b->masks && a->n_heads == b->n_heads &&
           a->head_dim == b->head_dim && a->max_in_flight == b->max_in_flight &&
           a->identity == b->identity && a->block_bytes == b->block_bytes &&
           memcmp(&a->geometry, &b->geometry, sizeof a->geometry) == 0;
}

/* Whether the backend failed too often within a minute to be made again. Notes this restart. */
static bool restarted_too_often(engine *e)
{
    int64_t now = clock_now_us(), *oldest = &e->restarts_us[e->n_restarts % RESTARTS_MAX];
    if (e->n_restarts >= RESTARTS_MAX && now - *oldest < RESTARTS_WITHIN_US) return true;
    *oldest = now;
    e->n_restarts++;
    return false;
}

/* Forgets that the previous backend was lost: reports from now on are about the next one. */
static void forget_loss(engine *e)
{
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.lost = false;
    pthread_mutex_unlock(&e->inbox.lock);
}

static bool is_stopping(engine *e)
{
    pthread_mutex_lock(&e->inbox.lock);
    bool stop = e->inbox.stop;
    pthread_mutex_unlock(&e->inbox.lock);
    return stop;
}

/* Clients see `why` alone, without the words that the log has around it. */
static void log_delay(engine *e, const char *why)
{
    char text[ENGINE_TROUBLE_BYTES];
    snprintf(text, sizeof text, "the backend cannot be made yet: %s", why);
    log_trouble(e, text);
    keep_trouble(e, why);
}

/* Tries until what the backend needs is there, memory among it; requests are refused meanwhile. */
static status restart_when_possible(engine *e, backend *fresh, error *err)
{
    char last_error[sizeof err->text] = "";
    for (;;) {
        if (is_stopping(e)) return error_set(err, STATUS_ABORTED, "the engine stops");
        forget_loss(e);
        status st = e->o.restart(e->o.restart_ctx, fresh, err);
        if (st.code != STATUS_UNAVAILABLE && st.code != STATUS_NO_MEMORY) return st;
        if (strcmp(last_error, err->text) != 0) {
            snprintf(last_error, sizeof last_error, "%s", err->text);
            log_delay(e, last_error);
        }
        slots_refuse_added(e, RESTART_PAUSE_US);
    }
}

/* was_lost: the backend was lost from outside (a rank is gone), which says nothing about the next
 * one, so it does not count as a restart. */
static status make_backend(engine *e, bool was_lost, error *err)
{
    if (!e->o.restart)
        return error_set(err, STATUS_UNAVAILABLE,
                         "the backend cannot be restarted: the engine has no restart function");
    if (!was_lost && restarted_too_often(e))
        return error_set(err, STATUS_UNAVAILABLE, "%d restarts within a minute were not enough",
                         RESTARTS_MAX);
    backend fresh = {0};
    RETURN_IF_ERROR(restart_when_possible(e, &fresh, err));
    const backend_info *info = fresh.ops->info(fresh.ctx);
    if (!is_alike(&e->info, info, e->o.disk, e->o.transfer))
        return error_set(err, STATUS_INTERNAL, "the new backend differs from the old one");
    e->backend = fresh;
    e->info.n_pages = info->n_pages;
    e->info.n_host_pages = info->n_host_pages;
    return STATUS_IS_OK;
}

static status make_anew(engine *e, bool was_lost, error *err)
{
    sched *fresh = NULL;
    select_cancel(e); /* selections read the backend's measures */
    disk_cancel(e);   /* loads write its pages */
    hand_cancel(e);   /* and copies read them */
    RETURN_IF_ERROR(make_backend(e, was_lost, err));
    RETURN_IF_ERROR(engine_make_scheduler(e, &fresh, err));
    sched_stats last = sched_get_stats(e->sched);
    sched_add_counters(&e->sums, &last);
    pthread_rwlock_wrlock(&e->sched_lock);
    sched *old = e->sched;
    e->sched = fresh;
    e->n_backends++;
    pthread_rwlock_unlock(&e->sched_lock);
    sched_destroy(old);
    e->counting.restarts++;
    if (e->o.on_block && e->o.prefix_cache)
        e->o.on_block(e->o.on_block_ctx, &(pkv_block_event){.kind = PKV_CLEARED});
    return STATUS_IS_OK;
}

/* Fails all requests. The reason is stored before the state changes, so that a client refused
 * because of the state can be told why. */
static void fail_requests(engine *e, const char *text)
{
    log_trouble(e, text);
    lose_backend(e);
    slots_fail_all(e, STATUS_UNAVAILABLE, text);
}

/* Makes the backend again. All its requests have been failed before. */
static void recover(engine *e, bool was_lost)
{
    error err = {{0}};
    char text[sizeof err.text + 64];
    int64_t start = clock_now_us();
    e->lost = false;
    bool fine = status_ok(make_anew(e, was_lost, &err));
    if (fine)
        snprintf(text, sizeof text, "the backend was restarted in %lld ms",
                 (long long)((clock_now_us() - start) / 1000));
    else snprintf(text, sizeof text, "the backend has failed and is not restarted: %s", err.text);
    atomic_store(&e->state, fine ? ENGINE_WORKING : ENGINE_BROKEN);
    log_trouble(e, text);
    if (fine) keep_trouble(e, "");
    metrics_publish(e);
}

void watch_lost(engine *e)
{
    char text[ENGINE_TROUBLE_BYTES];
    pthread_mutex_lock(&e->inbox.lock);
    snprintf(text, sizeof text, "the backend was lost: %s", e->inbox.lost_why);
    pthread_mutex_unlock(&e->inbox.lock);
    fail_requests(e, text);
    recover(e, true);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The whole step failed: fails all requests, because the backend is made again. */
static void fail_step(engine *e, const step_plan *plan, status st)
{
    char text[640];
    snprintf(text, sizeof text, "step %llu failed: %s", (unsigned long long)plan->step,
             st.message ? st.message : status_text(st.code));
    fail_requests(e, text);
}

/* Whether the backend can make no further step after this status; it is not a request's fault. */
static bool ends_backend(status s)
{
    return s.code == STATUS_INTERNAL || s.code == STATUS_UNAVAILABLE;
}

/* Notes that a call into the backend begins, for the oldest step in flight. Its time counts from
 * this call, even if the step ran before: nothing waited for the backend then. */
static void begin_backend_call(engine *e)
{
    step_watch *w = &e->watch;
    pthread_mutex_lock(&w->lock);
    w->started_us = clock_now_us();
    w->step = e->in_flight[0]->step;
    w->n_seqs = e->in_flight[0]->n_seqs;
    w->abandoned = false;
    pthread_mutex_unlock(&w->lock);
}

/* Notes that the call has ended. Returns whether its step was abandoned. */
static bool end_backend_call(engine *e)
{
    step_watch *w = &e->watch;
    pthread_mutex_lock(&w->lock);
    w->started_us = 0;
    bool abandoned = w->abandoned;
    pthread_mutex_unlock(&w->lock);
    return abandoned;
}

static status check_result(const step_plan *plan, const step_result *result)
{
    if (ends_backend(result->status)) return result->status;
    if (status_ok(result->status) && result->checksum != plan->checksum)
        return status_make(STATUS_INTERNAL,
                           "the backend's page tables differ from the scheduler's");
    return STATUS_IS_OK;
}

/* Nothing is in flight any more, and the backend is made again. `whose`: the step that the failure
 * belongs to. */
static void discard_steps(engine *e, const step_plan *whose, status st, bool abandoned)
{
    e->n_in_flight = 0;
    if (!abandoned) fail_step(e, whose, st);
    recover(e, !abandoned && st.code == STATUS_UNAVAILABLE);
}

bool watch_submit(engine *e, const step_plan *plan)
{
    e->in_flight[e->n_in_flight++] = plan;
    e->n_plans++;
    begin_backend_call(e);
    status st = e->backend.ops->submit(e->backend.ctx, plan);
    bool abandoned = end_backend_call(e);
    if (status_ok(st) && !abandoned) return true;
    discard_steps(e, plan, st, abandoned);
    return false;
}

const step_result *watch_collect(engine *e)
{
    const step_result *result = NULL;
    const step_plan *oldest = e->in_flight[0];
    begin_backend_call(e);
    status st = e->backend.ops->collect(e->backend.ctx, &result);
    bool abandoned = end_backend_call(e);
    if (status_ok(st)) st = check_result(oldest, result);
    if (!status_ok(st) || abandoned) {
        discard_steps(e, oldest, st, abandoned);
        return NULL;
    }
    e->collected = oldest;
    e->in_flight[0] = e->in_flight[--e->n_in_flight];
    return result;
}

void watch_drain(engine *e)
{
    while (e->n_in_flight > 0) watch_collect(e);
}
