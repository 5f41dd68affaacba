/* The engine thread: inbox -> events -> plan -> backend -> choices end -> readers are told. */
#include "engine/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a result -------------------------------------------------------------------------------- */

/* Pauses the stream's sequences until its reader makes room, when the ring has too little room for
 * n_due tokens and another step of every choice beside the steps that may be planned already. */
static void pause_if_full(engine *e, engine_stream *s, uint32_t n_due)
{
    if (s->paused) return;
    pthread_mutex_lock(&s->lock);
    bool full = s->limit - s->count < n_due + (1 + engine_in_flight(e)) * s->n_alive;
    if (full) s->resume_wanted = true;
    pthread_mutex_unlock(&s->lock);
    if (!full) return;
    s->paused = true;
    slots_add_event(
        e, (sched_event){.kind = SCHED_PAUSE, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

/* Keeps the sample for tell_all, because the backend reuses its result at the next submit. */
static untold_token *keep_token(engine *e, engine_stream *s, uint32_t choice,
                                const step_sample *sample)
{
    untold_token *u = &e->untold[e->n_untold++];
    u->stream = s;
    u->choice = choice;
    u->in_ring = false;
    u->sample.token = sample->token;
    u->sample.logprob = sample->logprob;
    u->sample.rank = sample->rank;
    u->sample.n_top = sample->n_top;
    memcpy(u->sample.top_ids, sample->top_ids, sample->n_top * sizeof *sample->top_ids);
    memcpy(u->sample.top_logprobs, sample->top_logprobs,
           sample->n_top * sizeof *sample->top_logprobs);
    return u;
}

/* Takes the tokens that the form forces behind the drawn one, which is told before them, and gives
 * them to the scheduler. Tokens that could end the choice, and those whose logprobs are asked for,
 * are drawn as any other. The request has one choice, so that its sequence is that choice's. */
static void take_forced(engine *e, engine_stream *s, untold_token *drawn)
{
    choice_state *c = &s->choices[0];
    const engine_request *r = &s->request;
    const uint32_t *tokens;
    bool may = r->n == 1 && r->n_stop == 0 && r->logprobs < 0 && engine_in_flight(e) == 1;
    uint32_t n = may ? form_forced(e, s, 0, &tokens) : 0;
    if (n > 0) n = forced_count(n, stream_room(s), s->max_new_tokens - c->n_tokens);
    if (n == 0) return;
    tell_token(e, drawn);
    for (uint32_t i = 0; i < n && !s->failed; i++) {
        untold_token u = {.stream = s, .sample = {.token = tokens[i], .logprob = NAN}};
        c->n_tokens++;
        (void)form_take(e, s, 0, tokens[i], ENGINE_FINISH_NONE);
        if (!s->failed) tell_token(e, &u);
    }
    slots_add_event(
        e, (sched_event){.kind = SCHED_FORCED, .request = s->id, .forced = tokens, .n_forced = n});
}

/* Weights are finite, which was checked when they were loaded, but a model may overflow with finite
 * ones, or its memory may be damaged. A token that was drawn nevertheless would look like an
 * answer. The damage may lie in K and V that others would find in the prefix cache. */
void loop_fail_undefined(engine *e, engine_stream *s, const char *what, const char *where)
{
    char text[256];
    snprintf(text, sizeof text,
             "%s: the model's %s are not finite (NaN or infinity) in step %llu, so there is no "
             "answer",
             where, what, (unsigned long long)e->collected->step);
    engine_count_undefined(e);
    s->undefined = true;
    slots_fail_stream(e, s, status_make(STATUS_INTERNAL, text));
}

/* Returns whether the token must still go into the ring. With stop strings it goes there at once,
 * because only its text shows whether it ends the choice. */
static bool take_token(engine *e, engine_stream *s, uint32_t choice, const step_sample *sample)
{
    choice_state *c = &s->choices[choice];
    if (c->finish != ENGINE_FINISH_NONE || s->failed) return false;
    if (s->request.score_only) { /* the draw is not asked for, so it may be undefined */
        slots_end_choice(e, s, choice, ENGINE_FINISH_LENGTH);
        return false;
    }
    if (sample->undefined) {
        char where[64];
        snprintf(where, sizeof where, "output token %u of choice %u", c->n_tokens + 1, choice);
        loop_fail_undefined(e, s, "logits", where);
        return false;
    }
    hand_note_first(s, sample);
    untold_token *u = keep_token(e, s, choice, sample);
    u->finish =
        choice_take(c, &s->request, s->stop_ids, s->n_stop_ids, s->max_new_tokens, sample->token);
    u->finish = form_take(e, s, choice, sample->token, u->finish);
    if (u->finish == ENGINE_FINISH_NONE && !s->failed) take_forced(e, s, u);
    if (s->request.n_stop > 0) tell_token(e, u);
    if (u->finish != ENGINE_FINISH_NONE && !s->failed) slots_end_choice(e, s, choice, u->finish);
    return !u->in_ring;
}

/* Whether a selection reads what the share measures. */
static bool share_selects(const engine *e, const step_plan *plan, uint32_t share)
{
    const measure_spec *m = &plan->seqs[share].measure;
    return m->kind != MEASURE_NONE && !m->silent && !sched_measured_for_map(e->sched, share);
}

void loop_take_first(engine *e, engine_stream *s, const step_sample *sample)
{
    choice_state *c = &s->choices[0];
    if (c->finish != ENGINE_FINISH_NONE || s->failed) return;
    untold_token u = {.stream = s, .sample = *sample};
    e->now_us = clock_now_us();
    u.finish =
        choice_take(c, &s->request, s->stop_ids, s->n_stop_ids, s->max_new_tokens, sample->token);
    u.finish = form_take(e, s, 0, sample->token, u.finish);
    if (u.finish == ENGINE_FINISH_NONE && !s->failed) take_forced(e, s, &u);
    if (!u.in_ring && !s->failed) tell_token(e, &u);
    if (s->failed) return;
    if (u.finish != ENGINE_FINISH_NONE) slots_end_choice(e, s, 0, u.finish);
    else stream_notify(s);
    pause_if_full(e, s, 0);
}

static void take_scores(engine *e, engine_stream *s, uint32_t n_rows, const step_sample *scores)
{
    char where[64];
    uint32_t first = s->scores.n_rows + 1; /* the token after the last row is none of the prompt */
    for (uint32_t i = 0; i < n_rows && first + i < s->n_tokens; i++) {
        if (!isnan(scores[i].logprob)) continue;
        snprintf(where, sizeof where, "the score of prompt token %u", first + i);
        loop_fail_undefined(e, s, "logits", where);
        return;
    }
    if (!prompt_take_scores(s, n_rows, scores))
        slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "prompt logprobs"));
}

static void take_pooled(engine *e, engine_stream *s, uint32_t n_rows, const float *values)
{
    uint32_t n = e->info.hidden;
    for (uint32_t i = 0; i < n; i++) {
        if (isfinite(values[i])) continue;
        loop_fail_undefined(e, s, "hidden states", "the pooled prompt");
        return;
    }
    if (!prompt_take_pooled(s, n_rows, values, n))
        slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "pooled hidden states"));
}

static void take_share(engine *e, engine_stream *s, const step_seq *share, bool selects,
                       const step_seq_result *got)
{
    hand_note_rows(s);
    if (share->want_scores && !s->failed) {
        if (got->scores) take_scores(e, s, share->n_tokens, got->scores);
        else slots_fail_stream(e, s, status_make(STATUS_INTERNAL, "scores are missing"));
    }
    if (share->pooling && !s->failed) {
        if (got->pooled) take_pooled(e, s, share->n_tokens, got->pooled);
        else slots_fail_stream(e, s, status_make(STATUS_INTERNAL, "hidden states are missing"));
    }
    if (share->n_embeds && !s->failed) reform_take_rows(e, s, share, got);
    if (selects) e->measured[e->n_measured++] = s;
    if (s->request.progress && s->first_token_us == 0) e->prefilled[e->n_prefilled++] = s;
    uint32_t n_due = 0;
    for (uint32_t j = 0; j < got->n_samples; j++)
        n_due += take_token(e, s, share->choice + j, &got->samples[j]);
    if (!s->failed) pause_if_full(e, s, n_due);
}

/* The step behind one that failed may fail only because it takes draws from there. Requests that it
 * has alone are not at fault: the scheduler computes their rows again. Returns whether `result` is
 * that step's, and notes the step behind this one. */
static bool fails_behind(engine *e, const step_result *result)
{
    bool behind = result->step == e->behind_failed;
    e->behind_failed = !status_ok(result->status) && e->n_in_flight > 0 ? result->step + 1 : 0;
    return behind;
}

/* A failed step's status, as its requests get it. Plans are the engine's own: that a backend
 * refuses one says nothing about what a client has asked for. */
static status failure_of(const step_result *result)
{
    bool refused = result->status.code == STATUS_INVALID || result->status.code == STATUS_CORRUPT;
    return refused ? status_make(STATUS_INTERNAL, result->status.message) : result->status;
}

static void take_result(engine *e, const step_plan *plan, const step_result *result)
{
    bool behind = fails_behind(e, result);
    e->now_us = clock_now_us();
    e->steps++;
    e->compute_us += result->compute_us;
    backend_tier_add(&e->tier, &result->tier);
    if (plan->n_tokens > 0) metrics_observe(&e->counting, ENGINE_ITERATION_TOKENS, plan->n_tokens);
    slots_add_event(e, (sched_event){.kind = SCHED_RESULT, .result = result});
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *share = &plan->seqs[i];
        engine_stream *s = slots_find(e, share->request);
        if (!status_ok(result->status)) {
            if (s && !behind) slots_fail_stream(e, s, failure_of(result));
            continue;
        }
        if (s) take_share(e, s, share, share_selects(e, plan, i), &result->seqs[i]);
    }
}

/* Short selections happen inside sched_step, which has no clock: the time of a step with selections
 * is divided among the streams they were made for. */
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
            slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
        free(info.report.kept_json);
        session_release(s);
    }
    e->n_events = 0;
}

/* Nothing is in flight whose end would cause another step, and a request waits only for memory: it
 * fails, rather than wait for ever. The next iteration tells the scheduler. */
static void fail_starved(engine *e)
{
    const uint64_t *id = sched_starved(e->sched);
    engine_stream *s = id ? slots_find(e, *id) : NULL;
    if (s) slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "request: out of memory"));
}

static const step_plan *plan_step(engine *e)
{
    int64_t start = clock_now_us();
    const step_plan *plan = sched_step(e->sched, start, e->events, e->n_events);
    int64_t schedule_us = clock_now_us() - start;
    e->schedule_us += schedule_us;
    select_hand_out(e);
    hand_collect(e);
    disk_save_lost(e);
    session_delete_forgotten(e);
    take_added(e);
    reform_end_readings(e);
    e->n_ended = e->n_ending;
    form_mask_plan(e, plan); // may end streams, which the scheduler is told with the next step
    charge_selection(e, schedule_us);
    tell_progress(e);
    return plan;
}

/* Begins copies of K and V into pages and out of them. The moves of all plans have reached these
 * pages, unless `moves`: then those of the plan that was submitted last may not have.
 * hand_begin_copies waits for that; blocks on disk are for backends with one step in flight. */
static void begin_copies(engine *e, bool moves)
{
    if (!moves || engine_in_flight(e) > 1) disk_begin_loads(e);
    hand_begin_copies(e, moves);
}

/* One iteration: passes what happened to the scheduler, its plan to the backend, and tokens to
 * readers. Waits for a step unless one more may be planned while it runs. False when there is
 * nothing to run. */
static bool loop_once(engine *e, const inbox_batch *batch, const step_result **result)
{
    if (*result) take_result(e, e->collected, *result);
    slots_take_inbox(e, batch);
    select_take_back(e, batch->n_selected);
    disk_take_back(e, batch->n_loaded);
    hand_take_back(e, batch->handed);
    e->lost |= batch->lost;
    *result = NULL;
    if (atomic_load(&e->state) == ENGINE_BROKEN) {
        session_delete_forgotten(e);
        pages_drop(e);
        e->n_events = 0;
        return false;
    }
    const step_plan *plan = plan_step(e);
    bool is_new = !sched_plan_empty(plan);
    bool moves = plan->deltas.n_moves > 0;
    /* The scheduler has kept what it changed for the plan behind the one in flight. */
    bool keeps = !is_new && e->n_in_flight > 0;
    if (is_new && !watch_submit(e, plan)) return false;
    if (!keeps) begin_copies(e, moves);
    tell_all(e);
    pages_draw(e);
    if (e->n_in_flight == (is_new ? engine_in_flight(e) : 1)) *result = watch_collect(e);
    else if (!is_new && e->lost) watch_lost(e);
    else if (!is_new) fail_starved(e);
    /* A load writes pages of the backend, and there is none if it could not be made again. */
    bool broken = atomic_load(&e->state) == ENGINE_BROKEN;
    if (e->n_in_flight == 0 && !broken && !keeps) begin_copies(e, false);
    return *result || e->n_in_flight > 0 || e->n_events > 0;
}

enum { LOOK_US = 1000000 };

/* How long to wait for news. An idle session expires by the clock, which the scheduler sees only
 * when it is called. */
static int64_t longest_wait(engine *e)
{
    const sched_stats *now = &e->stats.sched;
    int64_t ttl = e->o.session_ttl_us;
    bool parked = ttl > 0 && now->sessions_idle + now->sessions_swapped > 0;
    e->tended_us = clock_now_us();
    if (!reform_store_tend(&e->embeddings, e->tended_us) && !parked) return -1;
    return ttl > 0 && ttl < LOOK_US ? ttl : LOOK_US;
}

/* Tends what longest_wait tends, at most once in LOOK_US, where steps follow one another and the
 * engine thread never waits. Returns 0. */
static int64_t tend_without_wait(engine *e)
{
    if (clock_now_us() - e->tended_us >= LOOK_US) (void)longest_wait(e);
    return 0;
}

/* Embeddings are written while blocks are; streams that are ended here leave some, too. */
static void save_at_end(engine *e)
{
    int64_t until = atomic_load(&e->save_until_us);
    if (until) reform_store_save(&e->embeddings, 0);
    disk_save_cached(e, until);
    slots_fail_all(e, STATUS_ABORTED, "the engine stops");
    if (until) reform_store_save(&e->embeddings, until);
}

void *engine_loop(void *arg)
{
    engine *e = arg;
    thread_set_name("oct-engine");
    const step_result *result = NULL;
    bool busy = false;
    for (;;) {
        inbox_batch batch =
            inbox_drain(e, busy ? tend_without_wait(e) : pages_wait(e, longest_wait(e)));
        e->stopping = batch.stop;
        if (batch.stop) {
            /* The last batch; no more follows, since every stream was released before. */
            slots_take_inbox(e, &batch);
            hand_drop(batch.handed);
            break;
        }
        busy = loop_once(e, &batch, &result);
    }
    pages_drop(e);
    watch_drain(e);
    select_cancel(e);
    disk_cancel(e);
    hand_cancel(e);
    save_at_end(e);
    return NULL;
}
