/* Takes a step's result: appends its tokens, and begins the retention selections that its measures
 * allow (select.c). */
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

/* Begins the selection that the rows up to q->computed allow, if any. keeps_all was
 * found when the step was planned: the tables may have further rows by now. */
static status select_at(sched *s, sched_seq *q, const sched_stop *stop, bool keeps_all,
                        const measure_result *measures)
{
    if (q->drop_planned) {
        q->pressure_drops[q->n_pressure_drops++] = q->computed;
        s->stats.pressure_drops++;
    } else if (stop->at != q->computed || stop->kind == STOP_TURN) {
        return STATUS_IS_OK;
    }
    if (keeps_all) return STATUS_IS_OK;
    if (q->drop_planned || stop->kind == STOP_PRESSURE_DROP)
        return sched_select(s, q, &s->pressure, q->computed, measures);
    return sched_select(s, q, &stop->turn->policy, stop->turn->n_prompt, measures);
}

static void add_token(sched_seq *q, uint32_t token)
{
    assert(q->n_tokens < q->entry->n_prompt + q->entry->max_new_tokens);
    q->tokens[q->n_tokens++] = token;
}

/* Copies tokens, counters and flags of `from`, but not its number and what was asked of it
 * alone. */
static void copy_line(sched_seq *to, const sched_seq *from)
{
    memcpy(to->tokens, from->tokens, from->n_tokens * sizeof *to->tokens);
    to->n_tokens = from->n_tokens;
    to->computed = from->computed;
    to->furthest = from->furthest;
    to->selected = from->selected;
    to->preemptions = from->preemptions;
    to->pages_dropped = from->pages_dropped;
    to->budget_raised = from->budget_raised;
    to->scoring_us = from->scoring_us;
    to->reading = from->reading;
}

/* A child with running sums needs pages of its own: its sums part from its parent's, unless its
 * first token is its last. It leaves the pages that are set aside for selections after the step in
 * flight. */
static status fork_tables(sched *s, const sched_seq *parent, const sched_seq *child, uint32_t slot)
{
    bool unshares = child->entry->has_sums && child->entry->max_new_tokens > 1;
    uint64_t need = pkv_seq_copy_cost(s->kv, parent->slot) + s->lasting + s->passing;
    if (unshares && (s->n_in_flight > 0 || s->n_selecting > 0) && need > pkv_available(s->kv))
        return status_make(STATUS_NO_PAGES, NULL);
    RETURN_IF_ERROR(pkv_seq_fork(s->kv, parent->slot, slot, child->entry->n_positions));
    if (!unshares) return STATUS_IS_OK;
    status st = pkv_seq_unshare(s->kv, slot);
    if (!status_ok(st)) pkv_seq_close(s->kv, slot);
    return st;
}

/* Parks the pages of the prompt for a child that waits for a slot. With running sums it cannot: the
 * running children would add to the shared sums. Such a child has no pages, and is replayed when it
 * starts. */
static bool park_child(sched *s, const sched_seq *parent, sched_seq *child)
{
    return !child->entry->has_sums &&
           status_ok(pkv_seq_fork_parked(s->kv, parent->slot, &child->parked));
}

/* The child has got the tables that its parent has. */
static void add_copy(sched *s, const sched_seq *parent, sched_seq *child)
{
    child->kept = parent->kept;
    sched_add_kept(s, pkv_seq_length(s->kv, parent->slot), child->kept);
}

static void fork_child(sched *s, const sched_seq *parent, sched_seq *child, bool invalid)
{
    bool has_slot = s->n_free_slots > 0;
    if (!invalid && has_slot &&
        status_ok(fork_tables(s, parent, child, s->free_slots[s->n_free_slots - 1]))) {
        add_copy(s, parent, child);
        sched_seq_start(s, child);
        return;
    }
    /* Without memory or pages the child is replayed. */
    if (invalid || has_slot || !park_child(s, parent, child)) child->computed = 0;
    else add_copy(s, parent, child);
    child->state = SEQ_WAITING;
    sched_list_insert(&s->waiting, child);
}

/* The draws of the choices lie behind their copies of the prompt, which they get when they are
 * forked: perhaps later, after the selection that the draws came with. */
static void keep_draws(const sched_entry *e, const step_sample *samples)
{
    for (uint32_t i = 0; i < e->n; i++)
        if (!e->seqs[i].ended) e->seqs[i].tokens[e->n_prompt] = samples[i].token;
}

/* A request's prompt is counted once, where its K and V were when it was first admitted. */
static void count_prompt(sched *s, const sched_entry *e)
{
    uint32_t cached = e->cached_tokens < e->n_prompt ? e->cached_tokens : e->n_prompt;
    uint32_t loaded = e->loaded_tokens < cached ? e->loaded_tokens : cached;
    s->stats.prompt_tokens += e->n_prompt;
    s->stats.prompt_hit_tokens += cached - loaded;
    s->stats.prompt_loaded_tokens += loaded;
}

/* If choice 0 has ended, the first living choice succeeds to the parent's slot. */
void sched_fork(sched *s, sched_seq *parent, bool invalid)
{
    sched_entry *e = parent->entry;
    sched_seq *successor = NULL;
    e->forked = true;
    for (uint32_t i = 0; i < e->n; i++) {
        sched_seq *q = &e->seqs[i];
        if (q->ended) continue;
        if (q != parent) copy_line(q, parent);
        if (!successor) successor = q;
    }
    if (successor != parent) { /* choice 0 has ended: the first living one takes its slot */
        sched_list_remove(&s->running, parent);
        parent->state = SEQ_GONE;
        successor->slot = parent->slot;
        successor->kept = parent->kept;
        parent->kept = 0;
        successor->state = SEQ_RUNNING;
        successor->needs_open = true;
        sched_list_insert(&s->running, successor);
    }
    for (uint32_t i = 0; i < e->n; i++) {
        sched_seq *q = &e->seqs[i];
        if (q->ended) continue;
        if (q != successor) {
            fork_child(s, successor, q, invalid);
            q->inherited_pages = successor->pages_dropped;
            q->inherited_us = successor->scoring_us;
        }
        q->n_tokens++;
        s->stats.generated_tokens++;
    }
    count_prompt(s, e);
    if (invalid) sched_replay(s, successor);
}

/* Keeps the novelty of the token after each row. Novelty of the first token is unknown and stays 0,
 * as if that token were certain. */
static void note_novelty(sched_seq *q, uint32_t from, uint32_t n_rows, const float *novelty)
{
    uint32_t n_prompt = q->entry->n_prompt;
    for (uint32_t i = 0; i < n_rows && from + i + 1 < n_prompt; i++)
        q->novelty[from + i + 1] = novelty[i];
}

/* How many of the first n tokens other requests may read. K and V of rows that read by retrieval
 * are not those of full attention, and a reading has none of some layers. */
static uint32_t publishable(const sched_entry *e, uint32_t n)
{
    if (e->n_embeds) return 0;
    return e->retrieval.block_tokens && n > e->n_prompt ? e->n_prompt : n;
}

/* Counts the share's rows that read by retrieval, those of a replay for the server alone. */
static void count_readings(sched *s, sched_seq *q, const step_seq *share,
                           const step_seq_result *result)
{
    uint32_t from = q->computed, to = from + share->n_tokens;
    if (from < q->entry->n_prompt) from = q->entry->n_prompt;
    for (uint32_t i = from; i < to && i - from < result->n_readings; i++) {
        const retrieval_reading *row = &result->readings[i - from];
        s->stats.retrieval_seen_tokens += row->context;
        s->stats.retrieval_read_tokens += (uint64_t)(retrieval_mean_tokens(row) + 0.5);
        s->stats.retrieval_audits += row->audits;
        s->stats.retrieval_missed += (uint64_t)((row->audits - row->recall_sum) * 1e6 + 0.5);
        if (i >= q->furthest) retrieval_add_reading(&q->reading, row);
    }
}

/* Takes the computed rows and begins the selection after them, if any. False when the selection
 * failed. */
static bool take_rows(sched *s, const sched_work *w, uint32_t i, const step_seq_result *result,
                      int64_t measure_us)
{
    static const measure_result no_measure = {0};
    sched_seq *q = w->planned[i];
    const step_seq *share = &w->seqs[i];
    watch_kind watch = i == w->watch_share ? w->watch : WATCH_NONE;
    sched_entry *e = q->entry;
    uint32_t from = q->computed, to = from + share->n_tokens;
    sched_stop stop = sched_next_stop(q, from);
    if (e->retrieval.block_tokens) count_readings(s, q, share, result);
    q->computed = to;
    q->flying -= share->n_tokens;
    q->awaited = q->awaited && q->flying > 0;
    if (from < q->furthest)
        s->stats.replayed_tokens += (to < q->furthest ? to : q->furthest) - from;
    if (to > q->furthest) q->furthest = to;
    if (share->want_logits || share->want_scores || share->pooling || share->n_embeds)
        e->rows_sent = to < e->n_prompt ? to : e->n_prompt;
    if (share->measure.kind != MEASURE_NONE && watch != WATCH_ALONE) q->scoring_us += measure_us;
    if (watch != WATCH_NONE) sched_watch_take(s, q, share, &result->measure);

    if (share->measure.novelty) note_novelty(q, from, share->n_tokens, result->novelty);

    /* Before the selection: these blocks were computed with everything kept. */
    if (!e->has_sums) pkv_seq_publish(s->kv, q->slot, q->tokens, publishable(e, to));
    status st = select_at(s, q, &stop, w->keeps_all[i],
                          watch == WATCH_ALONE ? &no_measure : &result->measure);
    q->drop_planned = false;
    return status_ok(st);
}

/* The backend counts the tokens that it draws; where there are penalties, these come to it with the
 * shares that compute them. An open of the sequence that comes first has them in its history. */
void sched_take_forced(sched *s, sched_entry *e, const uint32_t *tokens, uint32_t n)
{
    sched_seq *q = e->seqs;
    if (q->ended) return;
    assert(e->n == 1 && e->forked && q->flying == 0);
    for (uint32_t i = 0; i < n; i++) add_token(q, tokens[i]);
    if (e->has_penalties) q->n_uncounted += n;
    s->stats.generated_tokens += n;
    s->stats.forced_tokens += n;
}

static void take_samples(sched *s, sched_seq *q, const step_seq *share,
                         const step_seq_result *result, bool invalid)
{
    if (share->n_samples > 0) assert(result->n_samples == share->n_samples);
    if (share->n_samples > 0 && seq_is_parent(q)) {
        keep_draws(q->entry, result->samples);
        if (q->selecting && q->entry->n > 1) sched_select_then_fork(q);
        else sched_fork(s, q, invalid);
        return;
    }
    if (share->n_samples > 0) {
        add_token(q, result->samples[0].token);
        s->stats.generated_tokens++;
    }
    if (invalid) sched_replay(s, q);
}

/* An ended sequence's pages are invalid after a failed step, so it leaves no session. It may have
 * rows in the next step too, and stays until then without a claim. */
static void forget_session(sched *s, sched_seq *q)
{
    q->stores = false;
    sched_session_unclaim(s, q->entry);
    q->entry->session_note = NULL;
    sched_describe_session(q->entry, &q->final);
}

/* Each share that its policy has measured has as much of the time. */
static int64_t measure_us_each(const sched_work *w, const step_result *r)
{
    uint32_t n_measured = 0;
    for (uint32_t i = 0; i < w->plan.n_seqs; i++)
        n_measured += w->seqs[i].measure.kind != MEASURE_NONE;
    n_measured -= w->watch == WATCH_ALONE;
    return n_measured > 0 ? r->measure_us / n_measured : 0;
}

/* Takes the oldest work out of flight. */
static const sched_work *take_work(sched *s)
{
    const sched_work *w = oldest_work(s);
    s->n_in_flight--;
    s->first = (s->first + 1) % s->depth;
    s->has_ended |= s->ended_listed;
    s->ended_listed = false;
    for (uint32_t i = 0; i < w->plan.n_seqs; i++) {
        w->planned[i]->listed--;
        w->planned[i]->entry->listed--;
    }
    return w;
}

/* All selections come first: forks may take the pages that were set aside for selections. */
void sched_take_result(sched *s, const step_result *r)
{
    assert(s->n_in_flight > 0 && r->step == oldest_work(s)->plan.step);
    const sched_work *w = take_work(s);
    int64_t measure_us = measure_us_each(w, r);
    bool ok = status_ok(r->status);
    s->failed = !ok && s->n_in_flight > 0;
    for (uint32_t i = 0; i < w->plan.n_seqs; i++) {
        sched_seq *q = w->planned[i];
        s->fates[i] = ROWS_DISCARDED;
        if (q->flying == 0 || (seq_is_over(q) && !q->stores)) continue;
        bool fine = ok && take_rows(s, w, i, &r->seqs[i], measure_us);
        s->fates[i] = fine ? ROWS_COMMITTED : ROWS_LOST;
    }
    for (uint32_t i = 0; i < w->plan.n_seqs; i++) {
        sched_seq *q = w->planned[i];
        bool invalid = s->fates[i] == ROWS_LOST;
        if (s->fates[i] == ROWS_DISCARDED) continue;
        if (seq_is_over(q)) {
            if (invalid) forget_session(s, q);
        } else if (ok) {
            take_samples(s, q, &w->seqs[i], &r->seqs[i], invalid);
        } else {
            sched_replay(s, q); /* the rows are computed again */
        }
    }
}
