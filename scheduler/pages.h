/* How many pages and positions a sequence takes at most, and whether the rows of a selection can be
 * computed together (private to scheduler/). */
#ifndef SCHEDULER_PAGES_H
#define SCHEDULER_PAGES_H

#include "scheduler/sched_internal.h"

/* ---- check.c ---- */
/* Whether the rows that a turn's selection measures can be computed in one step, and measured. */
status sched_check_turn(const sched *s, const sched_turn *turn, error *err);

/* ---- pages.c ---- */
/* An upper bound of the pages that a sequence holds while it grows, whatever is measured. */
typedef struct sched_peak {
    uint64_t most;    // pages at any moment, as many in each share as in the one with most
    uint64_t held;    // at the end
    uint64_t even;    // at the end, as `most` counts
    uint64_t after;   // copies that the last selection on the way takes at most; 0 without one
    uint64_t passing; // fresh pages that one selection takes for a moment
} sched_peak;

/* Below, n_layers is sched_request's: a sequence that runs the first layers alone, 0 = all, takes
 * cells of these alone. */
/* KV groups in which a token of the sequence takes a slot. */
uint32_t sched_groups_of(const sched *s, uint32_t n_layers);
/* The grain that its tables begin with. */
pkv_grain sched_grain_of(const sched *s, uint32_t n_layers);
/* The peak while a sequence that holds `held` pages grows from logical length `from` to `to`. */
sched_peak sched_peak_of(const sched *s, uint32_t n_layers, const sched_turn *turns,
                         uint32_t n_turns, uint32_t from, uint64_t held, uint32_t to);
/* The most pages that a request holds at any moment when it has the pool for itself. */
uint64_t sched_peak_alone(const sched *s, uint32_t n_layers, const sched_turn *turns,
                          uint32_t n_turns, uint32_t max_new_tokens, uint32_t n);
/* Cells of a page of the tables that the policy selects in. */
uint32_t sched_cells_of(const sched *s, uint32_t n_layers, const retention_policy *policy);
/* Cells that must be available where one of these tables takes so many pages. */
uint64_t sched_passing_of(const sched *s, uint32_t n_layers, const retention_policy *policy,
                          uint64_t pages);
/* Whether every page of a table holds consecutive tokens, because selections drop whole pages. */
bool sched_keeps_pages(const retention_policy *policy);
/* Retention points in (from, to]: the first three and the last; UINT32_MAX where there is none. */
typedef struct sched_points {
    uint32_t first, second, third, last;
} sched_points;
sched_points sched_points_in(const sched_turn *turn, uint32_t from, uint32_t to);
const sched_turn *sched_turn_at(const sched_turn *turns, uint32_t length);
/* The request's own turn, with the fields of its policy that depend on the request filled in. */
sched_turn sched_turn_of(const sched_request *r);

/* ---- positions.c ---- */
/* How many positions a sequence takes while it grows to length `to`, at most: one more than its
 * largest. */
uint32_t sched_positions_of(const sched *s, const sched_turn *turns, uint32_t n_turns, uint32_t to);
/* " and max_tokens N" for a message, or "" where the client gave none. */
enum { SCHED_WORDS_BYTES = 32 };
const char *sched_length_words(const sched_request *r, char out[SCHED_WORDS_BYTES]);
/* Whether prompt and output are short enough for the policy, and the positions for the model. */
status sched_check_length(const sched *s, const sched_request *r, const sched_turn *turn,
                          error *err);

#endif
