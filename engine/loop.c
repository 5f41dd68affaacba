/* The engine thread: inbox -> events -> plan -> backend -> tokens -> streams. */
#include "engine/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---------------------------------------------------------------------------------- */

static bool reserve(void **items, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity) return true;
    size_t wanted = n > 2 * *capacity ? n : 2 * *capacity;
    void *grown = alloc_resize(NULL, *items, wanted, size);
    if (!grown) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

bool loop_make_room(engine *e, size_t n_more)
{
    /* Between two steps a choice ends at most once, and its request is added, paused and resumed at
     * most once. */
    enum { OF_A_CHOICE = 4, OF_ALL = 2 /* RESULT, FLUSH */ };
    size_t n = e->n_choices + n_more;
    return reserve((void **)&e->events, &e->events_capacity, OF_A_CHOICE * n + OF_ALL,
                   sizeof *e->events) &&
           reserve((void **)&e->ending, &e->ending_capacity, n, sizeof *e->ending);
}

static void add_event(engine *e, sched_event event)
{
    assert(e->n_events < e->events_capacity);
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

/* ---- numbers --------------------------------------------------------------------------------- */

void loop_publish(engine *e)
{
    sched_stats now = sched_get_stats(e->sched);
    sched_add_counters(&now, &e->sums);
    pthread_mutex_lock(&e->stats_lock);
    e->stats.sched = now;
    e->stats.steps = e->steps;
    e->stats.schedule_us = e->schedule_us;
    e->stats.compute_us = e->compute_us;
    e->metrics = e->counting;
    pthread_mutex_unlock(&e->stats_lock);
}

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

/* Removes the stream from the engine. Its reader may still hold it. */
static void forget(engine *e, engine_stream *s)
{
    e->slots[(uint32_t)s->id] = NULL;
    e->free_slots[e->n_free_slots++] = (uint32_t)s->id;
    e->n_choices -= s->request.n;
    stream_unref(s);
}

/* The choice is over: the scheduler is told with the next step, the reader after that step. */
static void finish_choice(engine *e, engine_stream *s, uint32_t choice, engine_finish finish)
{
    s->choices[choice].finish = finish;
    s->choices[choice].end_sent = true;
    bool finished = finish == ENGINE_FINISH_STOP || finish == ENGINE_FINISH_LENGTH;
    add_event(e, (sched_event){
                     .kind = SCHED_END, .request = s->id, .choice = choice, .finished = finished});
    assert(e->n_ending < e->ending_capacity);
    e->ending[e->n_ending++] = (ending_choice){.stream = s, .choice = choice};
}

static void finish_all(engine *e, engine_stream *s, engine_finish finish)
{
    for (uint32_t i = 0; i < s->request.n; i++)
        if (!s->choices[i].end_sent) finish_choice(e, s, i, finish);
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
static void take_ended(engine *e)
{
    for (size_t i = 0; i < e->n_ending; i++) count_end(e, &e->ending[i]);
    loop_publish(e);
    for (size_t i = 0; i < e->n_ending; i++) {
        engine_stream *s = e->ending[i].stream;
        if (!s->failed) stream_push_end(s, e->ending[i].choice, &e->ending[i].end);
        if (--s->n_untold == 0) forget(e, s);
    }
    e->n_ending = 0;
}

void loop_fail_all(engine *e, status_code code, const char *text)
{
    for (uint32_t i = 0; i < e->o.max_requests; i++) {
        engine_stream *s = e->slots[i];
        if (!s) continue;
        s->failed = true;
        engine_count_out(e, code == STATUS_ABORTED ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR);
        stream_fail(s, code, text);
        forget(e, s);
    }
    pthread_mutex_lock(&e->stats_lock);
    e->stats.sched.running = e->stats.sched.waiting = 0;
    pthread_mutex_unlock(&e->stats_lock);
}

/* ---- streams come in ------------------------------------------------------------------------- */

/* Fails a stream that the scheduler never saw. */
static void turn_away(engine *e, engine_stream *s, status_code code, const char *text)
{
    engine_count_out(e, code == STATUS_ABORTED ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR);
    stream_fail(s, code, text);
}

static void admit(engine *e, engine_stream *s)
{
    error err = {{0}};
    if (atomic_load(&s->aborted)) {
        turn_away(e, s, STATUS_ABORTED, "aborted before it began");
        return;
    }
    if (e->stopping) {
        turn_away(e, s, STATUS_ABORTED, "the engine stops");
        return;
    }
    status works = engine_check_state(e, &err);
    if (!status_ok(works)) {
        turn_away(e, s, works.code, err.text);
        return;
    }
    /* The request was checked against an earlier backend, which may have had more pages. */
    if (s->made_for != e->n_backends) {
        status st = sched_check(e->sched, &s->sched_request, &err);
        if (!status_ok(st)) {
            turn_away(e, s, st.code, err.text);
            return;
        }
    }
    if (!loop_make_room(e, s->request.n)) {
        turn_away(e, s, STATUS_NO_MEMORY, "request: out of memory");
        return;
    }
    e->n_choices += s->request.n;
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

static void take_inbox(engine *e, const inbox_batch *batch)
{
    if (batch->flush) add_event(e, (sched_event){.kind = SCHED_FLUSH});
    for (engine_stream *s = batch->first, *next; s; s = next) {
        next = s->taken_next;
        if (s->taken & INBOX_ADD) admit(e, s);
        if ((s->taken & INBOX_ABORT) && is_known(e, s)) finish_all(e, s, ENGINE_FINISH_ABORT);
        if (s->taken & INBOX_RESUME) resume(e, s);
        stream_unref(s);
    }
}

void loop_turn_away(engine *e, int64_t wait_us)
{
    inbox_batch batch = inbox_drain(e, wait_us);
    take_inbox(e, &batch);
    e->n_events = 0; /* only a flush can be here, and the next scheduler has nothing cached */
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
    add_event(e, (sched_event){.kind = SCHED_PAUSE, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

/* Fails this request alone; the scheduler is told with the next step. */
static void fail_stream(engine *e, engine_stream *s, status st)
{
    if (s->failed) return;
    s->failed = true;
    finish_all(e, s, ENGINE_FINISH_ERROR);
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
        finish_choice(e, s, choice, ENGINE_FINISH_LENGTH);
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
    if (c->finish != ENGINE_FINISH_NONE) finish_choice(e, s, choice, c->finish);
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
    add_event(e, (sched_event){.kind = SCHED_RESULT, .result = result});
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *share = &plan->seqs[i];
        engine_stream *s = find_stream(e, share->request);
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
        engine_stream *s = find_stream(e, e->events[i].add->id);
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
    engine_stream *s = id ? find_stream(e, *id) : NULL;
    if (s) fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
}

/* One iteration: passes what happened to the scheduler, and its plan to the backend. False when
 * there is nothing to run. */
static bool turn(engine *e, const inbox_batch *batch, const step_result **result)
{
    if (*result) take_result(e, e->collected, *result);
    take_inbox(e, batch);
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
    take_ended(e);
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
            take_inbox(e, &batch);
            break;
        }
        busy = turn(e, &batch, &result);
    }
    watch_drain(e);
    loop_fail_all(e, STATUS_ABORTED, "the engine stops");
    return NULL;
}
