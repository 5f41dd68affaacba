/* Sequences that take a long hit of the prefix cache in portions: with a table for each head it has
 * millions of pages. Between two portions the sequence has computed what it has taken, so that it
 * may end or be preempted like others; but it has no share of a step. Blocks that leave the cache
 * meanwhile are computed. */
#include "scheduler/portions.h"

void sched_hit_begin(sched *s, sched_seq *q, uint32_t to, uint32_t most, uint64_t taken)
{
    q->hit_to = to;
    q->hit_most = most;
    q->hit_owed = taken;
    s->n_hitting++;
}

void sched_hit_stop(sched *s, sched_seq *q)
{
    if (q->hit_to == 0) return;
    q->hit_to = 0;
    s->n_hitting--;
}

/* The hit is over; it may have become shorter than it was when the sequence started. */
static void end_hit(sched *s, sched_seq *q)
{
    bool began;
    sched_hit_stop(s, q);
    sched_set_aside(s);
    if (!status_ok(sched_load_begin(s, q, q->hit_most, &began))) sched_replay(s, q);
}

void sched_hit_go_on(sched *s, sched_seq *q)
{
    sched_entry *e = q->entry;
    uint64_t before = pkv_available(s->kv), taken;
    uint32_t n = 0;
    /* The rest of the hit is computed if memory is out. */
    (void)pkv_seq_hit_more(s->kv, q->slot, q->tokens, q->hit_to, sched_portion(s), &n);
    taken = before - pkv_available(s->kv);
    q->hit_owed -= taken < q->hit_owed ? taken : q->hit_owed;
    uint64_t kept = n * sched_token_kept(s, q);
    q->kept += kept;
    sched_add_kept(s, n, kept);
    q->computed += n;
    if (q->furthest < q->computed) q->furthest = q->computed;
    if (e->first_planned_us < 0 && !e->was_handed) e->cached_tokens += n;
    if (n == 0 || q->computed >= q->hit_to) end_hit(s, q);
}

const char *sched_hit_check(const sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->running.n; i++) {
        const sched_seq *q = s->running.seqs[i];
        if (q->hit_to == 0) continue;
        n++;
        if (q->arriving || q->leaving || q->planned > 0 || q->listed > 0 || q->selecting ||
            q->loading)
            return "a sequence that takes its hit in portions is in use";
        if (q->hit_owed > (uint64_t)s->groups * (q->hit_to / s->page_tokens))
            return "a hit is owed more pages than it has";
        if (q->computed >= q->hit_to || pkv_seq_length(s->kv, q->slot) != q->computed)
            return "a hit that is taken in portions is not that of its sequence's tokens";
    }
    return n == s->n_hitting ? NULL : "sequences that take hits in portions are miscounted";
}
