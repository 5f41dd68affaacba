/* Planning a step while another one is in flight: what plan.c must leave, and what is undone.
 *
 * The backend never waits for the scheduler: where it takes two steps, the next one is planned
 * while one is in flight, from all that is known. Decodes take their tokens from the draws in
 * flight (step_seq.token_from), prompts go on with their next chunks, requests are admitted. Only
 * the result of a step makes these wait for the step after:
 *
 *   - a sequence that is `awaited`: a selection, a fork or a mask follows its rows in flight. It
 *     alone is left out, unless such sequences are many (LEFT_OUT_ONE_IN), because a step without
 *     them costs more tokens than the wait for the result, or it was left out for its last rows
 *     too. A selection that gives up nothing, whatever is measured, does not count
 *     (retention_keeps_all): a policy by pages gives up pages only where one is begun, though it
 *     may select after every token.
 *   - all sequences, behind a step with the logits, scores or pooled states of its rows (the
 *     backend computes and sends those when the result is collected), and behind a step planned
 *     ahead of one that failed.
 *   - a sequence that lacks pages. None is preempted for it while a step is in flight, so the step
 *     after is planned with none in flight.
 *
 * A row that was planned ahead of a draw is discarded if its choice ended with that draw. */
#include "scheduler/sched_internal.h"

/* The most shares of a step in flight, one in so many, whose sequences a step planned ahead of its
 * result leaves out. Awaiting a result costs the time in which the scheduler works, which is some
 * hundredths of a step; leaving out an eighth of the sequences costs an eighth of its tokens. */
enum { LEFT_OUT_ONE_IN = 8 };

/* A sequence of the step would be left out again and again, since its rows are always awaited. */
static bool leaves_out_again(const sched_work *w)
{
    bool again = false;
    for (uint32_t i = 0; w->n_awaited > 0 && i < w->plan.n_seqs; i++)
        again |= w->planned[i]->awaited && w->planned[i]->left_out;
    return again;
}

bool sched_may_plan_ahead(sched *s)
{
    const sched_work *w = oldest_work(s);
    return !s->failed && !s->lacks_pages && !w->has_logits &&
           w->n_awaited * LEFT_OUT_ONE_IN <= w->plan.n_seqs && !leaves_out_again(w);
}

/* Rows of the sequence in flight that were planned ahead. */
static uint32_t rows_ahead(sched *s, const sched_seq *q)
{
    if (s->n_in_flight > 0 && oldest_work(s)->ahead) return q->flying;
    if (s->n_in_flight < 2 || q->flying == 0) return 0;
    const sched_work *w = &s->works[(s->first + 1) % s->depth];
    bool has_share = q->share < w->plan.n_seqs && w->planned[q->share] == q;
    return has_share ? w->seqs[q->share].n_tokens : 0;
}

bool sched_forget_ahead(sched *s, sched_seq *q)
{
    if (q->state != SEQ_RUNNING) return true;
    uint32_t n = rows_ahead(s, q);
    if (!status_ok(sched_cut(s, q, n))) return false;
    q->flying -= n;
    return true;
}
