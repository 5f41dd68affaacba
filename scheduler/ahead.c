/* Plans the next step while one is in flight, so that the backend never waits for the scheduler:
 * each row takes its token from the draw of the step before (step_seq.token_from). A step is
 * planned ahead only where the result in flight can change nothing but tokens: every share of the
 * step in flight is one row and one draw of a sequence that goes on, no retention selection follows
 * a row of either step, the pages are available without any other sequence giving way, and no
 * waiting request could start. Otherwise the plan is empty until the result is in.
 *
 * What the result does change is repaired afterwards. If a sequence ended meanwhile, its extra row
 * is discarded (sched_forget_ahead, ROWS_DISCARDED). If the step in flight failed, all rows of the
 * step ahead of it are discarded. */
#include "scheduler/sched_internal.h"

static bool is_plain(const sched_work *w)
{
    for (uint32_t i = 0; i < w->plan.n_seqs && !w->ahead; i++) {
        const step_seq *share = &w->seqs[i];
        if (share->n_tokens != 1 || share->n_samples != 1 || share->want_logits ||
            share->want_scores || share->measure.kind != MEASURE_NONE ||
            seq_is_parent(w->planned[i]))
            return false;
    }
    return w->plan.n_seqs > 0;
}

/* A selection follows the row in flight or the row after it, or the row after it is measured. */
static bool is_chosen_for(const sched_seq *q)
{
    uint32_t from = q->computed + q->planned;
    sched_stop stop = sched_next_stop(q);
    if (stop.at <= from + 1) return true;
    return retention_measure_rows(&stop.turn->policy, stop.turn->n_prompt, from, from + 1).kind !=
           MEASURE_NONE;
}

typedef enum row_ahead { ROW_NONE, ROW_PLAIN, ROW_UNKNOWN } row_ahead;

static row_ahead next_row(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    if (q->planned > 0 && is_chosen_for(q)) return ROW_UNKNOWN;
    if (seq_is_over(q)) return ROW_NONE;
    /* An idle sequence gives way to a waiting one; one that is not idle has something to
     * compute. */
    if (q->planned == 0) return sched_seq_is_idle(q) && s->waiting.n == 0 ? ROW_NONE : ROW_UNKNOWN;
    bool draws_last = q->n_tokens + 1 == e->n_prompt + e->max_new_tokens;
    return q->paused || draws_last ? ROW_NONE : ROW_PLAIN;
}

/* Lists the sequences with a row in the next step. Returns how many, or 0 when that cannot be
 * told. */
static uint32_t list_rows(const sched *s, sched_seq **rows)
{
    uint32_t n = 0;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        row_ahead row = next_row(s, q);
        if (row == ROW_UNKNOWN) return 0;
        if (row == ROW_NONE) continue;
        pages += pkv_append_cost(s->kv, q->slot, 1);
        rows[n++] = q;
    }
    return pages <= pkv_available(s->kv) ? n : 0;
}

static void add_row(sched *s, sched_work *w, sched_seq *q)
{
    if (!status_ok(sched_append(s, q, 1))) return; /* no memory: it has no row */
    w->tokens[w->plan.n_tokens] = 0;
    sched_add_share(w, q,
                    (step_seq){
                        .seq = q->slot,
                        .request = q->entry->id,
                        .choice = q->choice,
                        .n_tokens = 1,
                        .position = pkv_seq_next_position(s->kv, q->slot) - 1,
                        .n_samples = 1,
                        .sample_index = q->n_tokens + 1 - q->entry->n_prompt,
                        .token_from = 1 + q->share,
                    });
    q->ahead = 1;
}

bool sched_plan_ahead(sched *s)
{
    sched_work *w = next_work(s);
    if (!is_plain(oldest_work(s)) || (s->waiting.n > 0 && !s->settled)) return false;
    uint32_t n = list_rows(s, w->planned);
    w->plan.n_seqs = w->plan.n_opens = w->plan.n_tokens = 0;
    w->ahead = true;
    /* Reading and writing w->planned at once is safe: share k comes from rows[k] or a later one. */
    for (uint32_t i = 0; i < n; i++) add_row(s, w, w->planned[i]);
    return w->plan.n_seqs > 0;
}

bool sched_forget_ahead(sched *s, sched_seq *q)
{
    if (seq_is_parent(q) || q->state != SEQ_RUNNING || s->n_in_flight == 0) return true;
    bool oldest = oldest_work(s)->ahead;
    uint32_t n = q->ahead + (oldest ? q->planned : 0);
    if (!status_ok(sched_cut(s, q, n))) return false;
    q->ahead = 0;
    if (oldest) q->planned = 0;
    return true;
}
