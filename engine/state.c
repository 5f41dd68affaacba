/* What all files of an engine ask of it: whether its backend works, a scheduler for that backend,
 * and counts of what ended. */
#include "engine/internal.h"

#include <stdio.h>

/* A selection takes 2 to 5 ns a slot, so those below this many take less than a third of a
 * millisecond of the engine thread. One that is handed out costs its sequence at least a step. */
enum { HAND_OUT_SLOTS = 1 << 16 };

status engine_make_scheduler(engine *e, sched **out, error *err)
{
    sched_options so = {
        .geometry = e->info.geometry,
        .n_pages = e->info.n_pages,
        .n_host_pages = e->info.n_host_pages,
        .max_seqs = e->info.max_seqs,
        .prefill_chunk = e->o.prefill_chunk,
        .max_model_len = e->o.max_model_len,
        .max_logical_len = e->o.max_logical_len,
        .max_requests = e->o.max_requests,
        .max_logit_rows = e->info.max_logit_rows,
        .logit_row_cost = e->info.logit_row_cost,
        .lacks = e->info.lacks,
        .retrieves = e->info.retrieves,
        .note_bytes = e->info.note_bytes,
        .max_in_flight = engine_in_flight(e),
        .hand_out_slots = HAND_OUT_SLOTS,
        .policy = e->o.policy,
        .prefix_cache = e->o.prefix_cache,
        .salt = e->info.identity,
        .max_sessions = e->o.max_sessions,
        .session_ttl_us = e->o.session_ttl_us,
        .on_session = e->o.sessions ? session_keep : NULL,
        .on_session_ctx = e,
        .pressure = e->retention.has_pressure ? &e->retention.pressure : NULL,
        .alloc = e->o.alloc,
        .on_block = e->o.on_block,
        .on_block_ctx = e->o.on_block_ctx,
        .has_block = e->o.disk ? disk_has_block : NULL,
        .forget_blocks = e->o.disk ? disk_forget_blocks : NULL,
        .has_block_ctx = e->o.disk,
        .lost_most = e->o.disk ? disk_buffers(e->o.disk) : 0,
    };
    return sched_create(&so, out, err);
}

status engine_check_state(engine *e, error *err)
{
    char why[ENGINE_TROUBLE_BYTES];
    switch ((engine_state)atomic_load(&e->state)) {
    case ENGINE_WORKING: break;
    case ENGINE_RESTARTING:
        engine_get_trouble(e, why, sizeof why);
        return error_set(err, STATUS_UNAVAILABLE, "the backend is being restarted%s%s",
                         *why ? ": " : "", why);
    case ENGINE_BROKEN: return error_set(err, STATUS_UNAVAILABLE, "the backend has failed");
    }
    return STATUS_IS_OK;
}

void engine_get_trouble(engine *e, char *out, size_t size)
{
    bool works = atomic_load(&e->state) == ENGINE_WORKING;
    pthread_mutex_lock(&e->stats_lock);
    snprintf(out, size, "%s", works ? "" : e->trouble);
    pthread_mutex_unlock(&e->stats_lock);
}

void engine_count_out(engine *e, engine_finish how)
{
    pthread_mutex_lock(&e->stats_lock);
    e->stats.requests_aborted += how == ENGINE_FINISH_ABORT;
    e->stats.requests_failed += how == ENGINE_FINISH_ERROR;
    e->stats.requests_finished += how != ENGINE_FINISH_ABORT && how != ENGINE_FINISH_ERROR;
    pthread_mutex_unlock(&e->stats_lock);
    atomic_fetch_sub(&e->n_live, 1);
}

void engine_count_undefined(engine *e)
{
    pthread_mutex_lock(&e->stats_lock);
    e->n_undefined++;
    pthread_mutex_unlock(&e->stats_lock);
}

void engine_count_choice(engine *e, engine_finish how)
{
    pthread_mutex_lock(&e->stats_lock);
    e->choices_finished[how]++;
    pthread_mutex_unlock(&e->stats_lock);
}
