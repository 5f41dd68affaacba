/* Tells the readers, after the next step was submitted: tokens go to the rings, then the choices
 * that ended get their ends, and the numbers are published. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- tokens ---------------------------------------------------------------------------------- */

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

void tell_token(engine *e, untold_token *token)
{
    engine_stream *s = token->stream;
    choice_state *c = &s->choices[token->choice];
    const step_sample *sample = &token->sample;
    status st = STATUS_IS_OK;
    strbuf_clear(&e->text);
    if (!s->texts) st = choice_text(c, &s->request, sample->token, &token->finish, &e->text);
    if (!status_ok(st)) {
        strbuf_destroy(&e->text); /* the buffer serves all streams: the next token makes it anew */
        slots_fail_stream(e, s, st);
        return;
    }
    clock_token(e, s, c);
    ring_item item = {.choice = token->choice,
                      .has_token = true,
                      .finish = token->finish,
                      .held = token->finish != ENGINE_FINISH_NONE,
                      .token = sample->token,
                      .logprob = sample->logprob,
                      .rank = sample->rank,
                      .n_top = sample->n_top,
                      .text_bytes = (uint32_t)e->text.size};
    token->in_ring = true;
    if (!stream_push(s, &item, sample, e->text.data ? e->text.data : ""))
        slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "output text"));
}

/* Readers are notified once all rings have their tokens. A thread that reads many streams then
 * wakes once for a step; it would keep up with the rings, and sleep between any two of them. A
 * choice's last token is held until its end is attached, which notifies too. */
static void tell_tokens(engine *e)
{
    for (uint32_t i = 0; i < e->n_untold; i++)
        if (!e->untold[i].in_ring && !e->untold[i].stream->failed) tell_token(e, &e->untold[i]);
    for (uint32_t i = 0; i < e->n_untold; i++) {
        const untold_token *u = &e->untold[i];
        if (u->finish == ENGINE_FINISH_NONE && !u->stream->failed) stream_notify(u->stream);
    }
    e->n_untold = 0;
}

/* ---- progress -------------------------------------------------------------------------------- */

void tell_progress(engine *e)
{
    enum { PAUSE_US = 100000 };
    for (uint32_t i = 0; i < e->n_prefilled; i++) {
        engine_stream *s = e->prefilled[i];
        engine_progress p = {.phase = s->reform ? reform_phase_name(s->reform) : "prefill"};
        if (s->failed || e->now_us - s->progress_us < PAUSE_US) continue;
        if (!sched_prompt_progress(e->sched, s->id, &p.computed_tokens, &p.total_tokens)) continue;
        s->progress_us = e->now_us;
        stream_push_progress(s, p);
    }
    e->n_prefilled = 0;
}

/* ---- ends ------------------------------------------------------------------------------------ */

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
    end.has_reading = s->retrieval.block_tokens > 0;
    end.reading = info->reading;
    return end;
}

static void count_end(engine *e, ending_choice *ending)
{
    engine_stream *s = ending->stream;
    sched_choice_info info = {0};
    (void)sched_describe(e->sched, s->id, ending->choice, &info);
    if (s->reform) reform_describe(e, s, &info);
    if (info.hands_over) hand_await(s);
    bool lacks_report = info.lacks_kept && !s->failed;
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

static void give_end(engine *e, ending_choice *ending)
{
    engine_stream *s = ending->stream;
    if (!s->failed) stream_push_end(s, ending->choice, &ending->end);
    if (--s->n_untold == 0) slots_forget(e, s);
}

static bool is_settled(const engine *e, const engine_stream *s)
{
    return session_is_kept(e, s) && hand_is_settled(s);
}

/* An end is told once its session is written, so that a client which was told of a stored session
 * finds it after a sudden end too; and once a prompt that is handed over can be fetched. */
void tell_late(engine *e, bool all)
{
    size_t n = e->n_late;
    e->n_late = 0;
    for (size_t i = 0; i < n; i++) {
        if (all || is_settled(e, e->late[i].stream)) give_end(e, &e->late[i]);
        else e->late[e->n_late++] = e->late[i];
    }
}

/* Collects what the scheduler says about the choices whose ENDs it has taken. Everything is counted
 * before a reader gets its end, because the reader may ask for the numbers next. */
static void tell_ends(engine *e)
{
    size_t n = e->n_ended;
    for (size_t i = 0; i < n; i++) count_end(e, &e->ending[i]);
    metrics_publish(e);
    for (size_t i = 0; i < n; i++) {
        if (is_settled(e, e->ending[i].stream)) give_end(e, &e->ending[i]);
        else e->late[e->n_late++] = e->ending[i];
    }
    /* Streams that failed while they were told have their ENDs in the next step's events. */
    e->n_ending -= n;
    e->n_ended = 0;
    if (e->n_ending > 0) memmove(e->ending, e->ending + n, e->n_ending * sizeof *e->ending);
}

void tell_all(engine *e)
{
    int64_t begun = clock_now_us();
    tell_tokens(e);
    tell_late(e, false);
    tell_ends(e);
    e->tell_us += clock_now_us() - begun;
}
