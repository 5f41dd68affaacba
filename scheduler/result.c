/* What a step brought: tokens, and the choices of retention that its measures allow. */
#include "scheduler/sched_internal.h"

static void apply_drop(sched *s, sched_seq *q, const drop_record *drop)
{
    if (drop->pages_dropped == 0) return;
    for (uint32_t g = 0; g < s->groups; g++) {
        pkv_seq_drop(s->kv, q->slot, g, drop->keep + (size_t)g * drop->words);
    }
}

/* Chooses what stays, and records it for replays. */
static void choose_drop(sched *s, sched_seq *q, const measure_result *measures)
{
    const sched_entry *e = q->entry;
    drop_record *drop = &q->drops[q->n_drops];
    assert(q->n_drops < e->max_drops && drop->length == q->computed);
    retention_selection choice = {.keep = drop->keep, .words = drop->words};
    /* It fails on a budget that sched_check refuses, so not here; keeping everything is then right.
     */
    if (status_ok(
            retention_select(&e->policy, s->kv, q->slot, e->n_prompt, measures, &choice, NULL))) {
        drop->pages_dropped = choice.pages_dropped;
    }
    apply_drop(s, q, drop);
    drop->pages_kept = pkv_seq_pages_held(s->kv, q->slot);
    q->pages_dropped += drop->pages_dropped;
    q->budget_raised |= choice.budget_raised;
    q->next_drop = ++q->n_drops;
}

static void add_token(sched_seq *q, uint32_t token)
{
    assert(q->n_tokens < q->entry->n_prompt + q->entry->max_new_tokens);
    q->tokens[q->n_tokens++] = token;
}

/* `to` becomes what `from` is, but for its number and what was asked of it alone. */
static void copy_line(const sched *s, sched_seq *to, const sched_seq *from)
{
    memcpy(to->tokens, from->tokens, from->n_tokens * sizeof *to->tokens);
    to->n_tokens = from->n_tokens;
    to->computed = from->computed;
    to->furthest = from->furthest;
    to->n_drops = from->n_drops;
    to->next_drop = from->next_drop;
    to->preemptions = from->preemptions;
    to->pages_dropped = from->pages_dropped;
    to->budget_raised = from->budget_raised;
    to->scoring_us = from->scoring_us;
    for (uint32_t d = 0; d < from->n_drops; d++) {
        uint64_t *keep = to->drops[d].keep;
        to->drops[d] = from->drops[d];
        to->drops[d].keep = keep;
        memcpy(keep, from->drops[d].keep, (size_t)s->groups * from->drops[d].words * sizeof *keep);
    }
}

static void fork_child(sched *s, const sched_seq *parent, sched_seq *child)
{
    const sched_entry *e = child->entry;
    uint32_t slot = s->free_slots[s->n_free_slots - 1];
    if (status_ok(pkv_seq_fork(s->kv, parent->slot, slot, e->n_prompt + e->max_new_tokens))) {
        sched_seq_start(s, child);
        return;
    }
    child->computed = child->next_drop = 0; /* no memory for its lists: a replay will do */
    child->state = SEQ_WAITING;
    sched_list_insert(&s->waiting, child);
}

/* The carrier's prompt is done and its drops are made: every choice goes on alone from its first
 * token. */
static void give_birth(sched *s, sched_seq *carrier, const step_sample *samples)
{
    sched_entry *e = carrier->entry;
    sched_seq *heir = NULL;
    s->reserved_slots -= e->n - 1;
    e->born = true;
    for (uint32_t i = 0; i < e->n; i++) {
        sched_seq *q = &e->seqs[i];
        if (q->ended) continue;
        if (q != carrier) copy_line(s, q, carrier);
        if (!heir) heir = q;
    }
    if (heir !=
        carrier) { /* choice 0 has ended: the first that lives takes its slot and its place */
        sched_list_remove(&s->running, carrier);
        carrier->state = SEQ_GONE;
        heir->slot = carrier->slot;
        heir->state = SEQ_RUNNING;
        heir->needs_open = true;
        sched_list_insert(&s->running, heir);
    }
    for (uint32_t i = 0; i < e->n; i++) {
        sched_seq *q = &e->seqs[i];
        if (q->ended) continue;
        if (q != heir) {
            fork_child(s, heir, q);
            q->inherited_pages = heir->pages_dropped;
            q->inherited_us = heir->scoring_us;
        }
        add_token(q, samples[i].token);
        s->stats.generated_tokens++;
    }
    s->stats.prompt_tokens += e->n_prompt;
}

static void take_share(sched *s, sched_seq *q, const step_seq *share, const step_seq_result *result,
                       int64_t measure_us)
{
    sched_entry *e = q->entry;
    uint32_t from = q->computed, to = from + q->planned;
    bool first = seq_is_carrier(q);
    q->computed = to;
    q->planned = 0;
    if (from < q->furthest)
        s->stats.replayed_tokens += (to < q->furthest ? to : q->furthest) - from;
    if (to > q->furthest) q->furthest = to;
    if (share->want_logits) e->logits_sent = to < e->n_prompt ? to : e->n_prompt;
    if (share->measure.kind != MEASURE_NONE) q->scoring_us += measure_us;

    /* Before the drop: these blocks were computed with everything kept. */
    pkv_seq_publish(s->kv, q->slot, q->tokens, to);
    if (q->next_drop < q->n_drops) {
        const drop_record *drop = &q->drops[q->next_drop];
        if (drop->length == to) {
            apply_drop(s, q, drop);
            q->next_drop++;
        }
    } else if (retention_next_point(&e->policy, e->n_prompt, from) == to) {
        choose_drop(s, q, &result->measure);
    }
    if (share->n_samples == 0) return;
    assert(result->n_samples == share->n_samples);
    if (first) {
        give_birth(s, q, result->samples);
    } else {
        add_token(q, result->samples[0].token);
        s->stats.generated_tokens++;
    }
}

void sched_take_result(sched *s, const step_result *r)
{
    assert(s->in_flight && r->step == s->plan.step);
    s->in_flight = false;
    uint32_t n_measured = 0;
    for (uint32_t i = 0; i < s->plan.n_seqs; i++) {
        n_measured += s->plan_seqs[i].measure.kind != MEASURE_NONE;
    }
    int64_t measure_us = n_measured > 0 ? r->measure_us / n_measured : 0;
    for (uint32_t i = 0; i < s->plan.n_seqs; i++) {
        sched_seq *q = s->planned[i];
        if (seq_is_over(q)) continue;
        if (status_ok(r->status)) take_share(s, q, &s->plan_seqs[i], &r->seqs[i], measure_us);
        else sched_replay(s, q); /* what the step did is unknown: its rows are computed again */
    }
}
