/* scheduler, private: shares of a step plan. A share is what a step computes for one sequence. */
#ifndef SCHEDULER_SHARE_H
#define SCHEDULER_SHARE_H

#include "scheduler/sched_internal.h"

/* How many draws follow the last row of a share: a parent draws for all choices up to the last one
 * that has not ended, a reading for none. */
uint32_t sched_share_draws(const sched_seq *q);
/* Whether the next row's logits go to the caller: it is a prompt row, and not of a replay. */
bool sched_share_wants_logits(const sched_seq *q);
/* Adds to the plan that the backend opens a sampler for the sequence. */
void sched_share_open(sched_work *w, sched_seq *q);
/* Adds the sequence's share to the plan: the rows that it was given (sched_seq.planned), for which
 * it has the pages. */
void sched_share_add(sched *s, sched_work *w, sched_seq *q, int64_t now_us);

#endif
