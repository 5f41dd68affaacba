/* Pages of long sequences that change hands in portions, one in each step (private to scheduler/).
 *
 * A portion is as many pages as sched_portion says, so that no other sequence waits long. In a step
 * one long sequence with a slot goes on by a portion: its tables are closed or opened (leave.c), or
 * it takes its hit (hit.c). All sequences without a slot together have another portion (away.c).
 * First portions, with which all this begins, are not counted. */
#ifndef SCHEDULER_PORTIONS_H
#define SCHEDULER_PORTIONS_H

#include "scheduler/sched_internal.h"

/* ---- leave.c ---- */
/* Closes the tables of a running sequence, or only a portion of long ones: then it is `leaving`,
 * and the call is made again in a later step (sched_leave_waits). Afterwards its pages are parked
 * (q->parked), in the host tier (q->swap), or given up. Where memory is out, or the sequence's own
 * tables are still coming back, they are given up whatever `way` says. STATUS_NO_PAGES: the host
 * tier has no room, and nothing has changed. */
status sched_leave(sched *s, sched_seq *q, pkv_way way);
/* Marks a sequence as leaving to the host tier, which has no room yet: later steps try again. */
void sched_leave_later(sched *s, sched_seq *q);
/* Whether its tables are long, and another sequence has had the portion of this step. */
bool sched_leave_waits(const sched *s, const sched_seq *q);
/* Notes that the tables of a waiting sequence were opened in this slot, or only a portion of long
 * ones: then it is `arriving`, and later steps call sched_arrive until it is not. */
void sched_has_opened(sched *s, sched_seq *q, uint32_t slot);
/* Opens another portion of its tables. An error changes nothing. */
status sched_arrive(sched *s, sched_seq *q);
/* The most pages of one long sequence that a step changes; UINT32_MAX where nothing is handed out
 * (sched_options.hand_out_slots). */
uint32_t sched_portion(const sched *s);
/* The most pages of long sequences that a step looks at, to count which of them others hold. */
uint32_t sched_look_portion(const sched *s);
/* The pages of the sequence that others hold too, counted on within what this step may still look
 * at: all of that for a sequence that waits for counts, else half, because a count that begins anew
 * in each step must not keep those behind it from theirs. */
pkv_shared sched_pages_shared(sched *s, const sched_seq *q);
/* Sets aside pages that a selection may take for good: a bound by pkv_seq_pages_shared. */
void sched_reserve_lasting(sched *s, uint64_t pages, uint64_t as_of);
/* Closes all that is left of its tables at once. `way` is not PKV_SWAP_OUT, which may lack room. */
void sched_leave_all(sched *s, sched_seq *q, pkv_way way);
const char *sched_leave_check(const sched *s);

/* ---- hit.c ---- */
/* Notes that the tables of a waiting sequence were opened with the first portion of a hit of `to`
 * tokens, the rest of which takes `taken` of the available pages, as far as is known. A hit may
 * have `most` tokens. */
void sched_hit_begin(sched *s, sched_seq *q, uint32_t to, uint32_t most, uint64_t taken);
/* Takes another portion of the hit. After the last one the sequence has the blocks behind its hit
 * loaded, or computes. */
void sched_hit_go_on(sched *s, sched_seq *q);
/* Ends the sequence's hit: it keeps what it has taken. */
void sched_hit_stop(sched *s, sched_seq *q);
const char *sched_hit_check(const sched *s);

/* ---- load.c ---- */
/* Takes pages for a prompt that is taken over, or lists their cells, as far as this step's portion
 * of away.c goes. False when there is none, or nothing of the portion. */
bool sched_load_take_some(sched *s);

/* ---- away.c: pages of sequences without a slot ---- */
/* Begins a step, in which all of these together have one portion of pages. */
void sched_away_begin(sched *s);
/* Discards the pages of a parked or swapped sequence by its number in the pool: as many as this
 * step's portion has left, and the others in later steps. */
void sched_discard(sched *s, uint32_t number);
/* Moves the parked pages of an idle session or of a waiting sequence to the host tier, in this step
 * or in later ones. Nothing else may be on its way there (sched_away_frees). STATUS_NO_PAGES: the
 * tier has no room. */
status sched_move_session(sched *s, sched_session *session);
status sched_move_seq(sched *s, sched_seq *q);
/* Notes that the parked pages of an idle session are the waiting sequence's now, which continues
 * the session, if they are being moved to the host tier. */
void sched_moves_to(sched *s, uint32_t parked, sched_seq *q);
/* Takes n pages off the portion of this step. */
void sched_away_spend(sched *s, uint32_t n);
/* Whether waiting for later steps may help who lacks pages: more pages of the pool are on their way
 * to come free, or this step's portion is used up. */
bool sched_away_frees(const sched *s);
/* Goes on with discards and with the move. False when nothing could be done: there is neither, the
 * portion is used up, or memory is out. */
bool sched_away_go_on(sched *s);
/* Takes another portion in a step in which nothing runs. False when no page is left that a sequence
 * may wait for. */
bool sched_away_again(sched *s);
const char *sched_away_check(const sched *s);

#endif
