/* Shares of a step plan: the rows of each sequence, what is drawn and measured behind them, and
 * what the caller gets of them. */
#include "scheduler/share.h"

uint32_t sched_share_draws(const sched_seq *q)
{
    if (q->entry->n_embeds) return 0;
    if (!seq_is_parent(q)) return 1;
    uint32_t n = q->entry->n;
    while (q->entry->seqs[n - 1].ended) n--;
    return n;
}

bool sched_share_wants_logits(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    uint32_t from = seq_from(q);
    return e->want_logits && from >= e->rows_sent && from < e->n_prompt;
}

/* Whether the caller gets the next row's embedding: it has not had it. */
static bool wants_embeds(const sched_seq *q)
{
    return q->entry->n_embeds > 0 && seq_from(q) >= q->entry->rows_sent;
}

/* How a share up to `to` is pooled: a prompt's rows are, and not those of a replay. */
static uint32_t pooling_of(const sched_seq *q, uint32_t to)
{
    const sched_entry *e = q->entry;
    uint32_t from = seq_from(q);
    if (from < e->rows_sent || from >= e->n_prompt) return POOLING_NONE;
    return e->pooling == POOLING_LAST && to < e->n_prompt ? POOLING_NONE : e->pooling;
}

void sched_share_open(sched_work *w, sched_seq *q)
{
    const sched_entry *e = q->entry;
    q->needs_open = false;
    q->n_uncounted = 0;
    w->opens[w->plan.n_opens++] = (step_open){
        .seq = q->slot,
        .choice = q->choice,
        .params = &e->params,
        .history = e->has_penalties ? q->tokens : NULL,
        .n_history = e->has_penalties ? q->n_tokens : 0,
        .n_prompt = e->n_prompt,
        .n_most = e->n_prompt + e->max_new_tokens,
    };
}

/* Whether rows up to `to` end where the policy selects, but its selection will give up nothing: it
 * needs no result then, and is not made. */
static bool keeps_all_at(const sched *s, const sched_seq *q, const sched_stop *stop, uint32_t to)
{
    return !q->drop_planned && stop->kind == STOP_POINT && stop->at == to &&
           retention_keeps_all(&stop->turn->policy, s->kv, q->slot, stop->turn->n_prompt);
}

/* The measures of a policy. A selection that is not made needs no values, but running sums add up
 * all rows. */
static measure_spec policy_measure(const sched_seq *q, const sched_turn *turn, uint32_t to,
                                   bool keeps_all)
{
    measure_spec spec = retention_measure_rows(&turn->policy, turn->n_prompt, seq_from(q), to);
    if (!keeps_all || spec.kind == MEASURE_NONE) return spec;
    if (spec.sum == MEASURE_SUM_STEP)
        return (measure_spec){.kind = MEASURE_NONE, .novelty = spec.novelty};
    spec.silent = true;
    return spec;
}

static measure_spec measure_of(const sched *s, const sched_seq *q, const sched_stop *stop,
                               uint32_t to, bool keeps_all)
{
    if (!q->drop_planned && !(stop->kind == STOP_PRESSURE_DROP && stop->at == to))
        return policy_measure(q, stop->turn, to, keeps_all);
    measure_spec spec = retention_measure_rows(&s->pressure, to, to - 1, to);
    if (spec.rows > 1) spec.rows = 1;
    return spec;
}

/* Whether the result of rows up to `to` decides what the sequence computes next, beside its token:
 * a selection, a fork or a mask that depends on the token follows them. Running sums cannot forget
 * a row, and a row behind a draw is discarded if the choice ends with that draw; so such a row
 * waits where the sums outlive the choice in a session. */
static bool is_awaited(const sched_seq *q, const sched_stop *stop, uint32_t to, bool keeps_all)
{
    const sched_entry *e = q->entry;
    bool draws = to == seq_known(q);
    return q->drop_planned || (stop->at == to && stop->kind != STOP_TURN && !keeps_all) ||
           (draws && (e->masked || (seq_is_parent(q) && e->n > 1) || (e->has_sums && e->claims)));
}

static void append_share(sched_work *w, sched_seq *q, const step_seq *share)
{
    w->planned[w->plan.n_seqs] = q;
    w->seqs[w->plan.n_seqs] = *share;
    w->plan.n_tokens += share->n_tokens;
    w->n_awaited += q->awaited;
    w->has_logits |= share->want_logits || share->want_scores || share->measure.novelty ||
                     share->pooling != POOLING_NONE;
    q->share = w->plan.n_seqs++;
    q->flying += share->n_tokens;
    q->planned = 0;
    q->listed++;
    q->entry->listed++;
}

/* Slots before those of generated tokens, of a share up to `to`, where they read by retrieval. */
static uint32_t prompt_slots(const sched *s, const sched_seq *q, uint32_t to)
{
    const sched_entry *e = q->entry;
    return e->retrieval.block_tokens ? e->n_prompt - sched_given_up(s, q, to) : 0;
}

/* How many tokens before `to` the backend's penalties do not count yet; they will, with the share
 * that computes them. */
static uint32_t count_uncounted(sched_seq *q, uint32_t to)
{
    uint32_t first = q->n_tokens - q->n_uncounted;
    if (q->n_uncounted == 0 || to <= first) return 0;
    q->n_uncounted = q->n_tokens - to;
    return to - first;
}

void sched_share_add(sched *s, sched_work *w, sched_seq *q, int64_t now_us)
{
    sched_entry *e = q->entry;
    uint32_t from = seq_from(q), to = from + q->planned, known = seq_known(q);
    sched_stop stop = sched_next_stop(q, from);
    uint32_t *tokens = w->tokens + w->plan.n_tokens;
    bool is_drawn_now = from == q->n_tokens;
    if (is_drawn_now) tokens[0] = 0;
    else memcpy(tokens, q->tokens + from, q->planned * sizeof *tokens);
    bool keeps_all = keeps_all_at(s, q, &stop, to);
    q->awaited = is_awaited(q, &stop, to, keeps_all);
    q->left_out = q->left_out && q->awaited;
    w->keeps_all[w->plan.n_seqs] = keeps_all;
    append_share(w, q,
                 &(step_seq){
                     .seq = q->slot,
                     .request = e->id,
                     .choice = q->choice,
                     .first_token = w->plan.n_tokens,
                     .n_tokens = q->planned,
                     .position = pkv_seq_next_position(s->kv, q->slot) - q->planned,
                     .n_samples = to == known ? sched_share_draws(q) : 0,
                     .sample_index = known - e->n_prompt,
                     .want_logits = sched_share_wants_logits(q) && !e->want_scores,
                     .want_scores = sched_share_wants_logits(q) ? e->want_scores : 0,
                     .next_token = to < q->n_tokens ? q->tokens[to] : 0,
                     .token_from = is_drawn_now ? 1 + q->share : 0,
                     .n_uncounted = count_uncounted(q, to),
                     .measure = measure_of(s, q, &stop, to, keeps_all),
                     .retrieval = e->retrieval,
                     .n_prompt = prompt_slots(s, q, to),
                     .note = e->note,
                     .embeds = wants_embeds(q) ? e->embeds : NULL,
                     .n_embeds = wants_embeds(q) ? e->n_embeds : 0,
                     .n_layers = e->n_layers,
                     .pooling = pooling_of(q, to),
                 });
    if (e->first_planned_us < 0) e->first_planned_us = now_us;
}
