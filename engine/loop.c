/* The engine thread: inbox -> events -> plan -> backend -> tokens -> streams. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- inbox ----------------------------------------------------------------------------------- */

bool inbox_put(engine *e, int kind, engine_stream *s)
{
    inbox *in = &e->inbox;
    atomic_fetch_add(&s->references, 1);
    pthread_mutex_lock(&in->lock);
    if (in->n == in->capacity) {
        size_t capacity = in->capacity ? 2 * in->capacity : 64;
        inbox_item *grown = alloc_resize(e->o.alloc, in->items, capacity, sizeof *grown);
        if (grown) {
            in->items = grown;
            in->capacity = capacity;
        }
    }
    bool ok = in->n < in->capacity;
    if (ok) {
        in->items[in->n].kind = kind;
        in->items[in->n++].stream = s;
        pthread_cond_signal(&in->arrived);
    }
    pthread_mutex_unlock(&in->lock);
    if (!ok) stream_unref(s);
    return ok;
}

/* Swaps the inbox's items for the empty ones drained last; waits for some when there is nothing
 * else to do. False when the engine stops. */
static bool drain(engine *e, bool wait)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    while (wait && in->n == 0 && !in->stop) pthread_cond_wait(&in->arrived, &in->lock);
    inbox_item *items = in->items;
    size_t n = in->n, capacity = in->capacity;
    in->items = e->drained;
    in->capacity = e->drained_capacity;
    in->n = 0;
    e->drained = items;
    e->n_drained = n;
    e->drained_capacity = capacity;
    bool stop = in->stop;
    pthread_mutex_unlock(&in->lock);
    return !stop;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A few kilobytes without which nothing could go on: growing fails only where malloc never does. */
static bool reserve(void **items, size_t *capacity, size_t n, size_t size)
{
    if (n < *capacity) return true;
    size_t wanted = *capacity ? 2 * *capacity : 256;
    void *grown = alloc_resize(NULL, *items, wanted, size);
    if (!grown) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

static void add_event(engine *e, sched_event event)
{
    if (!reserve((void **)&e->events, &e->events_capacity, e->n_events, sizeof *e->events)) abort();
    e->events[e->n_events++] = event;
}

static engine_stream *find_stream(const engine *e, uint64_t id)
{
    engine_stream *s = e->slots[(uint32_t)id];
    return s && s->id == id ? s : NULL;
}

static bool is_known(const engine *e, const engine_stream *s)
{
    return s->id != 0 && find_stream(e, s->id) == s;
}

/* ---- choices end ----------------------------------------------------------------------------- */

static void end_choice(engine_stream *s, uint32_t choice, const sched_choice_info *info)
{
    const choice_state *c = &s->choices[choice];
    int64_t now = clock_now_us();
    choice_end end = {
        .finish = c->finish, .stop_token = c->stop_token, .stop_string = c->stop_string};
    end.usage = (engine_usage){s->n_tokens, c->n_tokens, info->cached_tokens};
    /* One that never ran was queued all its life. */
    end.timings.queue_us =
        info->queued_us < 0 ? now - s->submit_us : s->added_us - s->submit_us + info->queued_us;
    end.timings.ttft_us = c->first_token_us ? c->first_token_us - s->submit_us : 0;
    end.timings.total_us = now - s->submit_us;
    end.has_report = s->request.retention != NULL;
    end.report = info->report;
    end.report.scoring_ms += (double)s->selecting_us / 1000.0;
    stream_push_end(s, choice, &end);
}

/* The stream leaves the engine: its reader may still hold it. */
static void forget(engine *e, engine_stream *s)
{
    e->slots[(uint32_t)s->id] = NULL;
    e->free_slots[e->n_free_slots++] = (uint32_t)s->id;
    engine_count_out(e, s->failed ? ENGINE_FINISH_ERROR : s->choices[0].finish);
    stream_unref(s);
}

/* The choice is over: the scheduler hears it in the next step, and then its reader. */
static void finish_choice(engine *e, engine_stream *s, uint32_t choice, engine_finish finish)
{
    s->choices[choice].finish = finish;
    s->choices[choice].end_sent = true;
    add_event(e, (sched_event){.kind = SCHED_END, .request = s->id, .choice = choice});
    if (!reserve((void **)&e->ending, &e->ending_capacity, e->n_ending, sizeof *e->ending)) abort();
    e->ending[e->n_ending++] = (ending_choice){s, choice};
}

static void finish_all(engine *e, engine_stream *s, engine_finish finish)
{
    for (uint32_t i = 0; i < s->request.n; i++)
        if (!s->choices[i].end_sent) finish_choice(e, s, i, finish);
}

/* After the step that took their END: what the scheduler says about the choices that ended. */
static void take_ended(engine *e)
{
    for (size_t i = 0; i < e->n_ending; i++) {
        engine_stream *s = e->ending[i].stream;
        sched_choice_info info = {0};
        sched_describe(e->sched, s->id, e->ending[i].choice, &info);
        if (s->failed) free(info.report.kept_json); /* its reader has been told already */
        else end_choice(s, e->ending[i].choice, &info);
        if (--s->n_alive == 0) forget(e, s);
    }
    e->n_ending = 0;
}

/* ---- streams come in ------------------------------------------------------------------------- */

static void admit(engine *e, engine_stream *s)
{
    if (atomic_load(&s->aborted) || e->broken) {
        stream_fail(s, e->broken ? STATUS_INTERNAL : STATUS_ABORTED,
                    e->broken ? "the backend has failed" : "aborted before it began");
        engine_count_out(e, s->choices[0].finish);
        return;
    }
    uint32_t slot = e->free_slots[--e->n_free_slots];
    s->id = (uint64_t)++e->generation << 32 | slot;
    atomic_fetch_add(&s->references, 1);
    e->slots[slot] = s;
    s->added_us = clock_now_us();
    s->sched_request.id = s->id;
    add_event(e, (sched_event){.kind = SCHED_ADD, .add = &s->sched_request});
}

static void resume(engine *e, engine_stream *s)
{
    if (!is_known(e, s) || !s->paused) return;
    s->paused = false;
    add_event(e,
              (sched_event){.kind = SCHED_RESUME, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

static void take_inbox(engine *e)
{
    for (size_t i = 0; i < e->n_drained; i++) {
        engine_stream *s = e->drained[i].stream;
        switch (e->drained[i].kind) {
        case INBOX_ADD: admit(e, s); break;
        case INBOX_ABORT:
            if (is_known(e, s)) finish_all(e, s, ENGINE_FINISH_ABORT);
            break;
        case INBOX_RESUME: resume(e, s); break;
        }
        stream_unref(s);
    }
    e->n_drained = 0;
}

/* ---- tokens go out --------------------------------------------------------------------------- */

/* Too little room for another step of every choice: the sequence waits for its reader. */
static void pause_if_full(engine *e, engine_stream *s)
{
    if (s->paused) return;
    pthread_mutex_lock(&s->lock);
    bool full = s->capacity - s->count < 2 * s->n_alive;
    if (full) s->resume_wanted = true;
    pthread_mutex_unlock(&s->lock);
    if (!full) return;
    s->paused = true;
    add_event(e, (sched_event){.kind = SCHED_PAUSE, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

/* One request's trouble ends that request; the scheduler is told at the next step. */
static void fail_stream(engine *e, engine_stream *s, status st)
{
    if (s->failed) return;
    s->failed = true;
    finish_all(e, s, ENGINE_FINISH_ERROR);
    stream_fail(s, st.code, st.message ? st.message : status_text(st.code));
}

static void take_token(engine *e, engine_stream *s, uint32_t choice, const step_sample *sample)
{
    choice_state *c = &s->choices[choice];
    if (c->finish != ENGINE_FINISH_NONE || s->failed) return;
    strbuf_clear(&e->text);
    status st = choice_push(c, &s->request, s->stop_ids, s->n_stop_ids, s->max_new_tokens,
                            sample->token, &e->text);
    if (!status_ok(st)) {
        fail_stream(e, s, st);
        return;
    }
    if (c->first_token_us == 0) c->first_token_us = clock_now_us();
    ring_item item = {.choice = choice,
                      .has_token = true,
                      .token = sample->token,
                      .logprob = sample->logprob,
                      .rank = sample->rank,
                      .n_top = sample->n_top,
                      .text_bytes = (uint32_t)e->text.size};
    if (!stream_push(s, &item, sample, e->text.data ? e->text.data : "")) {
        fail_stream(e, s, status_make(STATUS_NO_MEMORY, "output text"));
        return;
    }
    if (c->finish != ENGINE_FINISH_NONE) finish_choice(e, s, choice, c->finish);
}

static void take_result(engine *e, const step_plan *plan, const step_result *result)
{
    add_event(e, (sched_event){.kind = SCHED_RESULT, .result = result});
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        engine_stream *s = find_stream(e, plan->seqs[i].request);
        if (!s) continue;
        if (!status_ok(result->status)) {
            fail_stream(e, s, result->status);
            continue;
        }
        if (plan->seqs[i].measure.kind != MEASURE_NONE) e->measured[e->n_measured++] = s;
        for (uint32_t j = 0; j < result->seqs[i].n_samples; j++)
            take_token(e, s, plan->seqs[i].choice + j, &result->seqs[i].samples[j]);
        if (!s->failed) pause_if_full(e, s);
    }
}

/* Selecting happens inside sched_step, which has no clock: the time of a step that selected is
 * shared by those it selected for. */
static void charge_selection(engine *e, int64_t us)
{
    for (uint32_t i = 0; i < e->n_measured; i++) e->measured[i]->selecting_us += us / e->n_measured;
    e->n_measured = 0;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void count_step(engine *e, const step_result *result, int64_t schedule_us)
{
    pthread_mutex_lock(&e->stats_lock);
    e->stats.sched = sched_get_stats(e->sched);
    e->stats.schedule_us += schedule_us;
    if (result) {
        e->stats.steps++;
        e->stats.compute_us += result->compute_us;
    }
    pthread_mutex_unlock(&e->stats_lock);
}

/* A backend that no longer agrees about the pages cannot go on: everybody is told, now and from now
 * on. */
static void break_down(engine *e, status st)
{
    e->broken = true;
    for (uint32_t i = 0; i < e->o.max_requests; i++) {
        engine_stream *s = e->slots[i];
        if (!s) continue;
        s->failed = true;
        stream_fail(s, STATUS_INTERNAL, st.message ? st.message : status_text(st.code));
        forget(e, s);
    }
}

static const step_result *run_plan(engine *e, const step_plan *plan)
{
    const step_result *result = NULL;
    status st = e->backend.ops->submit(e->backend.ctx, plan);
    if (status_ok(st)) st = e->backend.ops->collect(e->backend.ctx, &result);
    if (status_ok(st) && result->status.code == STATUS_INTERNAL) st = result->status;
    if (status_ok(st) && status_ok(result->status) && result->checksum != plan->checksum)
        st = status_make(STATUS_INTERNAL, "the backend's page tables differ from the scheduler's");
    if (status_ok(st)) return result;
    break_down(e, st);
    return NULL;
}

/* A request that the scheduler had no memory for is unknown to it. The ENDs that this adds for it
 * go with the events: nobody waits for them. */
static void take_added(engine *e)
{
    for (size_t i = 0, n = e->n_events; i < n; i++) {
        if (e->events[i].kind != SCHED_ADD) continue;
        engine_stream *s = find_stream(e, e->events[i].add->id);
        sched_choice_info info = {0};
        if (sched_describe(e->sched, s->id, 0, &info).code == STATUS_NOT_FOUND)
            fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
        free(info.report.kept_json);
    }
    e->n_events = 0;
}

/* One turn: what happened goes to the scheduler, its plan to the backend. False when there is
 * nothing to run. */
static bool turn(engine *e, const step_plan **plan, const step_result **result)
{
    if (*result) take_result(e, *plan, *result);
    take_inbox(e);
    if (e->broken) return false;
    int64_t start = clock_now_us();
    *plan = sched_step(e->sched, start, e->events, e->n_events);
    int64_t schedule_us = clock_now_us() - start;
    take_added(e);
    charge_selection(e, schedule_us);
    take_ended(e);
    *result = sched_plan_empty(*plan) ? NULL : run_plan(e, *plan);
    count_step(e, *result, schedule_us);
    return *result != NULL;
}

/* What the last drain brought comes first; nothing arrives any more, for every stream was released
 * before. */
static void stop_everything(engine *e)
{
    e->broken = true;
    take_inbox(e);
    break_down(e, status_make(STATUS_ABORTED, "the engine stops"));
}

void *engine_loop(void *arg)
{
    engine *e = arg;
    const step_plan *plan = NULL;
    const step_result *result = NULL;
    bool busy = false;
    while (drain(e, !busy)) busy = turn(e, &plan, &result);
    stop_everything(e);
    return NULL;
}
