/* Whether the pages of a sequence that waits fit beside those that running ones are owed (private
 * to scheduler/). Counts physical pages. */
#ifndef SCHEDULER_FITS_H
#define SCHEDULER_FITS_H

#include "scheduler/sched_internal.h"

/* The pages set aside for running sequences before a new one starts: those they take to compute
 * their known tokens, those they may grow by beyond, and those one of their selections takes for a
 * moment. */
typedef struct sched_owed {
    uint64_t lasting, growth, passing;
} sched_owed;

/* Adds pages that are owed for good. Of those that selections take for a moment the most count,
 * since one selection takes them at a time. */
void sched_owe(sched_owed *sum, uint64_t lasting, uint64_t passing);
/* Adds what a running sequence is owed: the pages to compute all its known tokens and, as growth,
 * to begin one block more, and a block for each choice that will be forked from it into a slot. */
void sched_owe_running(const sched *s, const sched_seq *q, sched_owed *sum);

/* The state that a waiting sequence starts from: a prefix hit, the session it continues, or its
 * pages in the host tier. */
typedef struct sched_beginning {
    uint32_t computed;
    uint32_t hit;     // tokens of `computed` that the prefix cache has
    uint32_t max_hit; // 0 where its pages are those of a session or in the host tier
    uint64_t held;    // pages of its tables, like all of these as many in each share
    uint64_t taken;   // pages that it takes at once from those available to new work
    uint64_t shared;  // pages of its tables that others hold too
    /* `taken` and `shared` if everything else that is parked is given up. */
    uint64_t taken_alone, shared_alone;
    uint64_t alone; // its own pages, if only parked sequences hold them
} sched_beginning;

/* Whether the sequence can have its pages beside those owed. Parked pages are given up for it where
 * that is enough. */
bool sched_has_pages(sched *s, const sched_seq *q, sched_beginning *b, const sched_owed *owed);
/* Compares what is remembered of a blocked sequence with a fresh look. */
const char *sched_blocked_check(const sched *s);

#endif
