/* Preemption by recompute: pages and slot are given up at once, the sequence goes back to its place
 * in the waiting list, and is later computed again from its tokens and recorded drops. */
#include "scheduler/sched_internal.h"

void preempt(sched *s, sched_seq *q)
{
    seq_stop(s, q, SEQ_WAITING);
    q->computed = q->planned = q->next_drop = 0;
    q->preemptions++;
    list_insert(&s->waiting, q);
    s->n_preempted++;
    s->stats.preemptions++;
}

/* Index of the worst idle one in `running`, or running.n. */
static uint32_t worst_idle(const sched *s)
{
    for (uint32_t i = s->running.n; i-- > 0;) {
        if (seq_is_idle(s->running.seqs[i])) return i;
    }
    return s->running.n;
}

/* One that is idle makes no use of its pages now, and might not for as long as its reader sleeps:
 * those come first, whatever their rank. Then rank decides, so that the best always gets on. */
uint32_t pick_victim(const sched *s)
{
    uint32_t idle = worst_idle(s);
    return idle < s->running.n ? idle : s->running.n - 1;
}

bool preempt_idle(sched *s)
{
    uint32_t idle = worst_idle(s);
    if (idle == s->running.n) return false;
    preempt(s, s->running.seqs[idle]);
    return true;
}
