/* Pages of long sequences that change hands a portion in each step (private to scheduler/). */
#ifndef SCHEDULER_PORTIONS_H
#define SCHEDULER_PORTIONS_H

#include "scheduler/sched_internal.h"

/* ---- leave.c ---- */
/* Closes the tables of a running sequence, or only a portion of long ones: then it is `leaving`,
 * and the call is made again in the next step. Afterwards its pages are parked (q->parked), in the
 * host tier (q->swap), or given up, which they also are where memory is out or its tables come
 * back. STATUS_NO_PAGES: the host tier has no room, and nothing has changed. */
status sched_leave(sched *s, sched_seq *q, pkv_way way);
/* It leaves to the host tier once that has room, for which the next steps try again. */
void sched_leave_later(sched *s, sched_seq *q);
/* Whether its tables are long, and another sequence has had the portion of this step. */
bool sched_leave_waits(const sched *s, const sched_seq *q);
/* The tables of a waiting sequence were opened in this slot, or only a portion of long ones: then
 * it is `arriving`, and sched_arrive is called in each step until it is not. */
void sched_has_opened(sched *s, sched_seq *q, uint32_t slot);
/* Opens a portion. An error changes nothing. */
status sched_arrive(sched *s, sched_seq *q);
/* The most pages of one long sequence that a step changes. */
uint32_t sched_portion(const sched *s);
/* Closes all that is left of its tables; `way` is none that may lack room. */
void sched_leave_all(sched *s, sched_seq *q, pkv_way way);
const char *sched_leave_check(const sched *s);

/* ---- hit.c ---- */
/* The tables of a waiting sequence were opened with a portion of a hit of `to` tokens, which takes
 * `taken` of the available pages; the most that a hit may have are `most` tokens. */
void sched_hit_begin(sched *s, sched_seq *q, uint32_t to, uint32_t most, uint64_t taken);
/* Takes another portion. After the last one the sequence has blocks loaded, or computes. */
void sched_hit_go_on(sched *s, sched_seq *q);
/* It takes no more of its hit. */
void sched_hit_stop(sched *s, sched_seq *q);
const char *sched_hit_check(const sched *s);

/* ---- away.c: pages of sequences without a slot ---- */
/* A step begins: it has a portion of pages for all of these. */
void sched_away_begin(sched *s);
/* Discards a parked or swapped sequence, whose pages come free in this step as far as its portion
 * goes, else in later ones. */
void sched_discard(sched *s, uint32_t number);
/* Moves the parked pages of an idle session or of a waiting sequence to the host tier, in this step
 * or in later ones. Nothing else is being moved (sched_away_frees). STATUS_NO_PAGES: the tier has
 * no room. */
status sched_move_session(sched *s, sched_session *session);
status sched_move_seq(sched *s, sched_seq *q);
/* If these parked pages, of an idle session that the sequence continues, are being moved, they are
 * the sequence's now. */
void sched_moves_to(sched *s, uint32_t parked, sched_seq *q);
/* Whether more pages of the pool come free in later steps. */
bool sched_away_frees(const sched *s);
/* False when there is nothing to go on with, or memory is out. */
bool sched_away_go_on(sched *s);
/* Another portion in a step in which nothing runs. False when there is none. */
bool sched_away_again(sched *s);
const char *sched_away_check(const sched *s);

#endif
