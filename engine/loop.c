/* The engine thread: inbox -> events -> plan -> backend -> tokens -> streams. */
#include "engine/internal.h"

#include <stdlib.h>

/* ---- choices end ----------------------------------------------------------------------------- */

static choice_end make_end(const engine_stream *s, uint32_t choice, const sched_choice_info *info)
{
    const choice_state *c = &s->choices[choice];
    int64_t now = clock_now_us();
    choice_end end = {
        .finish = c->finish, .stop_token = c->stop_token, .stop_string = c->stop_string};
    end.usage = (engine_usage){s->n_tokens, c->n_tokens, info->cached_tokens};
    /* A request that never ran was queued all its life. */
    end.timings.queue_us =
        info->queued_us < 0 ? now - s->submit_us : s->added_us - s->submit_us + info->queued_us;
    end.timings.ttft_us = c->first_token_us ? c->first_token_us - s->submit_us : 0;
    end.timings.total_us = now - s->submit_us;
    end.has_report = s->has_report;
    end.report = info->report;
    end.report.scoring_ms += (double)s->selecting_us / 1000.0;
    return end;
}

static void count_end(engine *e, ending_choice *ending)
{
    engine_stream *s = ending->stream;
    sched_choice_info info = {0};
    status described = sched_describe(e->sched, s->id, ending->choice, &info);
    bool lacks_report = described.code == STATUS_NO_MEMORY && !s->failed;
    /* The request fails, because half a report would look like the whole one. */
    if (lacks_report) {
        s->choices[ending->choice].finish = ENGINE_FINISH_ERROR;
        stream_set_failure(s, STATUS_NO_MEMORY, "retention: its report: out of memory");
    }
    s->n_alive--;
    if (s->failed) { /* its reader got the error already */
        free(info.report.kept_json);
    } else {
        ending->end = make_end(s, ending->choice, &info);
        if (lacks_report) ending->end.error_code = STATUS_NO_MEMORY;
        metrics_choice(&e->counting, s, &s->choices[ending->choice], &ending->end, &info);
        engine_count_choice(e, ending->end.finish);
    }
    if (s->n_alive == 0)
        engine_count_out(e, s->failed ? ENGINE_FINISH_ERROR : s->choices[0].finish);
}

/* After the step that took their ENDs: collects what the scheduler says about the choices that
 * ended. Everything is counted before a reader gets its end, because the reader may ask for the
 * numbers next. */
static void take_ended(engine *e, int64_t begun_us)
{
    for (size_t i = 0; i < e->n_ending; i++) count_end(e, &e->ending[i]);
    metrics_publish(e);
    for (size_t i = 0; i < e->n_ending; i++) {
        engine_stream *s = e->ending[i].stream;
        if (!s->failed) stream_push_end(s, e->ending[i].choice, &e->ending[i].end);
        if (--s->n_untold == 0) slots_forget(e, s);
    }
    e->n_ending = 0;
    e->tell_us += clock_now_us() - begun_us;
}

/* ---- tokens go out --------------------------------------------------------------------------- */

/* Pauses the stream's sequences until its reader makes room, when the ring has too little room for
 * another step of every choice beside the steps that may be planned already. */
static void pause_if_full(engine *e, engine_stream *s)
{
    if (s->paused) return;
    pthread_mutex_lock(&s->lock);
    bool full = s->limit - s->count < (1 + engine_in_flight(e)) * s->n_alive;
    if (full) s->resume_wanted = true;
    pthread_mutex_unlock(&s->lock);
    if (!full) return;
    s->paused = true;
    slots_add_event(
        e, (sched_event){.kind = SCHED_PAUSE, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

/* Fails this request alone; the scheduler is told with the next step. */
static void fail_stream(engine *e, engine_stream *s, status st)
{
    if (s->failed) return;
    s->failed = true;
    slots_end_stream(e, s, ENGINE_FINISH_ERROR);
    stream_fail(s, st.code, st.message ? st.message : status_text(st.code));
}

static void clock_token(engine *e, engine_stream *s, choice_state *c)
{
    int64_t now = e->now_us;
    if (s->first_token_us == 0) {
        s->first_token_us = now;
        metrics_observe(&e->counting, ENGINE_TIME_TO_FIRST_TOKEN,
                        (double)(now - s->submit_us) / 1e6);
    }
    if (c->first_token_us == 0) c->first_token_us = now;
    else
        metrics_observe(&e->counting, ENGINE_INTER_TOKEN_LATENCY,
                        (double)(now - c->last_token_us) / 1e6);
    s->last_token_us = c->last_token_us = now;
}

static void take_token(engine *e, engine_stream *s, uint32_t choice, const step_sample *sample)
{
    choice_state *c = &s->choices[choice];
    if (c->finish != ENGINE_FINISH_NONE || s->failed) return;
    if (s->request.score_only) {
        slots_end_choice(e, s, choice, ENGINE_FINISH_LENGTH);
        return;
    }
    strbuf_clear(&e->text);
    status st = choice_push(c, &s->request, s->stop_ids, s->n_stop_ids, s->max_new_tokens,
                            sample->token, &e->text);
    if (!status_ok(st)) {
        strbuf_destroy(&e->text); /* the buffer serves all streams: the next token makes it anew */
        fail_stream(e, s, st);
        return;
    }
    clock_token(e, s, c);
    ring_item item = {.choice = choice,
                      .has_token = true,
                      .held = c->finish != ENGINE_FINISH_NONE,
                      .token = sample->token,
                      .logprob = sample->logprob,
                      .rank = sample->rank,
                      .n_top = sample->n_top,
                      .text_bytes = (uint32_t)e->text.size};
    if (!stream_push(s, &item, sample, e->text.data ? e->text.data : "")) {
        fail_stream(e, s, status_make(STATUS_NO_MEMORY, "output text"));
        return;
    }
    if (c->finish != ENGINE_FINISH_NONE) slots_end_choice(e, s, choice, c->finish);
}

static void take_share(engine *e, engine_stream *s, const step_seq *share,
                       const step_seq_result *got)
{
    if (share->want_scores && !s->failed) {
        if (!got->scores) fail_stream(e, s, status_make(STATUS_INTERNAL, "scores are missing"));
        else if (!prompt_take_scores(s, share->n_tokens, got->scores))
            fail_stream(e, s, status_make(STATUS_NO_MEMORY, "prompt logprobs"));
    }
    if (share->measure.kind != MEASURE_NONE && !share->measure.silent)
        e->measured[e->n_measured++] = s;
    for (uint32_t j = 0; j < got->n_samples; j++)
        take_token(e, s, share->choice + j, &got->samples[j]);
    if (!s->failed) pause_if_full(e, s);
}

static void take_result(engine *e, const step_plan *plan, const step_result *result)
{
    e->now_us = clock_now_us();
    e->steps++;
    e->compute_us += result->compute_us;
    if (plan->n_tokens > 0) metrics_observe(&e->counting, ENGINE_ITERATION_TOKENS, plan->n_tokens);
    slots_add_event(e, (sched_event){.kind = SCHED_RESULT, .result = result});
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *share = &plan->seqs[i];
        engine_stream *s = slots_find(e, share->request);
        if (!status_ok(result->status)) {
            if (s) fail_stream(e, s, result->status);
            continue;
        }
        if (s) take_share(e, s, share, &result->seqs[i]);
    }
}

/* Selections happen inside sched_step, which has no clock: the time of a step with selections is
 * divided among the streams they were made for. */
static void charge_selection(engine *e, int64_t us)
{
    for (uint32_t i = 0; i < e->n_measured; i++) e->measured[i]->selecting_us += us / e->n_measured;
    e->n_measured = 0;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* After sched_step: fails requests that the scheduler had no memory for, which are therefore
 * unknown to it. The ENDs added for them are dropped with the other events, since an unknown id
 * needs none. */
static void take_added(engine *e)
{
    for (size_t i = 0, n = e->n_events; i < n; i++) {
        if (e->events[i].kind != SCHED_ADD) continue;
        engine_stream *s = slots_find(e, e->events[i].add->id);
        sched_choice_info info = {0};
        if (sched_describe(e->sched, s->id, 0, &info).code == STATUS_NOT_FOUND)
            fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
        free(info.report.kept_json);
    }
    e->n_events = 0;
}

/* Nothing is in flight whose end would cause another step, and a request waits only for memory: it
 * fails, rather than wait for ever. The next iteration tells the scheduler. */
static void fail_starved(engine *e)
{
    const uint64_t *id = sched_starved(e->sched);
    engine_stream *s = id ? slots_find(e, *id) : NULL;
    if (s) fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
}

/* One iteration: passes what happened to the scheduler, and its plan to the backend. False when
 * there is nothing to run. */
static bool loop_once(engine *e, const inbox_batch *batch, const step_result **result)
{
    int64_t begun = clock_now_us();
    if (*result) take_result(e, e->collected, *result);
    e->tell_us += clock_now_us() - begun;
    slots_take_inbox(e, batch);
    e->lost |= batch->lost;
    *result = NULL;
    if (atomic_load(&e->state) == ENGINE_BROKEN) {
        e->n_events = 0;
        return false;
    }
    int64_t start = clock_now_us();
    const step_plan *plan = sched_step(e->sched, start, e->events, e->n_events);
    int64_t schedule_us = clock_now_us() - start;
    e->schedule_us += schedule_us;
    take_added(e);
    charge_selection(e, schedule_us);
    take_ended(e, clock_now_us());
    if (!sched_plan_empty(plan) || e->n_in_flight > 0) *result = watch_run(e, plan);
    else if (e->lost) watch_lost(e);
    else fail_starved(e);
    return *result || e->n_in_flight > 0 || e->n_events > 0;
}

/* How long to wait for news. An idle session expires by the clock, which the scheduler sees only
 * when it is called. */
static int64_t longest_wait(const engine *e)
{
    enum { LOOK_US = 1000000 };
    const sched_stats *now = &e->stats.sched;
    if (now->sessions_idle + now->sessions_swapped == 0) return -1;
    return e->o.session_ttl_us > 0 && e->o.session_ttl_us < LOOK_US ? e->o.session_ttl_us : LOOK_US;
}

void *engine_loop(void *arg)
{
    engine *e = arg;
    thread_set_name("oct-engine");
    const step_result *result = NULL;
    bool busy = false;
    for (;;) {
        inbox_batch batch = inbox_drain(e, busy ? 0 : longest_wait(e));
        e->stopping = batch.stop;
        if (batch.stop) {
            /* The last batch; no more follows, since every stream was released before. */
            slots_take_inbox(e, &batch);
            break;
        }
        busy = loop_once(e, &batch, &result);
    }
    watch_drain(e);
    slots_fail_all(e, STATUS_ABORTED, "the engine stops");
    return NULL;
}
