/* Preemption by recompute: pages and slot are given up at once, the sequence goes back to its place
 * in the waiting list, and is later computed again from its tokens and recorded drops. */
#include "scheduler/sched_internal.h"

void sched_preempt(sched *s, sched_seq *q)
{
    sched_seq_stop(s, q, SEQ_WAITING);
    q->computed = q->planned = q->next_drop = 0;
    q->preemptions++;
    sched_list_insert(&s->waiting, q);
    s->n_preempted++;
    s->stats.preemptions++;
}

/* A reader that has been slow for so long will hardly mind that its tokens are computed again. */
enum { SLEEP_US = 1000000 };

static bool sleeps(const sched_seq *q, int64_t now_us)
{
    const sched_entry *e = q->entry;
    bool carrier = seq_is_carrier(q);
    uint32_t first = carrier ? 0 : q->choice, stop = carrier ? e->n : q->choice + 1;
    for (uint32_t i = first; i < stop; i++) {
        const sched_seq *c = &e->seqs[i];
        if (!c->ended && !(c->paused && now_us - c->paused_us >= SLEEP_US)) return false;
    }
    return true;
}

/* One that is idle makes no use of its pages now, and might not for as long as its reader sleeps:
 * those come first, whatever their rank. Then rank decides, so that the best always gets on. */
uint32_t sched_pick_victim(const sched *s)
{
    for (uint32_t i = s->running.n; i-- > 0;) {
        if (sched_seq_is_idle(s->running.seqs[i])) return i;
    }
    return s->running.n - 1;
}

bool sched_preempt_idle(sched *s, bool all, int64_t now_us)
{
    for (uint32_t i = s->running.n; i-- > 0;) {
        sched_seq *q = s->running.seqs[i];
        if (!sched_seq_is_idle(q) || !(all || sleeps(q, now_us))) continue;
        sched_preempt(s, q);
        return true;
    }
    return false;
}
