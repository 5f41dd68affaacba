/* Drives a scheduler as the engine thread does, on invented results: every draw gives token 1.
 * Times what the engine thread pays for a step: sched_step, and a backend's mirror of the page
 * tables. */
#ifndef CLI_BENCH_BENCH_DRIVE_H
#define CLI_BENCH_BENCH_DRIVE_H

#include "scheduler/scheduler.h"

/* ---- the mirror that a backend keeps --------------------------------------------------------- */

typedef struct bench_mirror {
    pkv_mirror *tables;
    pkv_geometry geometry;
    uint32_t *lengths; // [max_seqs, groups], of the plan's sequences
} bench_mirror;

status bench_mirror_create(const pkv_geometry *geometry, uint32_t n_pages, uint32_t max_seqs,
                           bench_mirror *out);
void bench_mirror_destroy(bench_mirror *m);
/* Does what a GPU's host does before a step starts: applies the plan's words, compares checksums,
 * and lists how many tokens every table of the plan's sequences keeps. */
status bench_mirror_apply(bench_mirror *m, const step_plan *plan);

/* ---- the scheduler --------------------------------------------------------------------------- */

typedef struct bench_drive {
    sched *sched;
    uint32_t depth; // steps in flight
    const step_plan *in_flight[2];
    uint32_t n_in_flight;
    step_seq_result *seqs; // [max_seqs]
    step_sample sample;
    step_result result;
    sched_request *requests; // [room], by id - 1
    uint64_t n_requests, room;
    retention_policy policy; // full
    sched_event *events;     // of the next turn
    size_t n_events, most_events;
    bench_mirror mirror;        // NULL tables: none
    const step_plan *plan;      // of the last turn; may be empty
    int64_t step_ns, mirror_ns; // of the last turn
} bench_drive;

/* room: requests that will ever be added. */
status bench_drive_create(const sched_options *options, uint64_t room, bool with_mirror,
                          bench_drive *out, error *err);
void bench_drive_destroy(bench_drive *d);
/* Adds a request to the next turn. The prompt is borrowed until that turn. session 0 = none. */
status bench_drive_add(bench_drive *d, const uint32_t *prompt, uint32_t n_prompt, uint32_t max_new,
                       uint64_t session, error *err);
/* One turn of the engine's loop: one call of sched_step. A request ends with its last token. */
status bench_drive_turn(bench_drive *d, error *err);
/* Turns until every running sequence decodes one token in a step and n of them run. */
status bench_drive_settle(bench_drive *d, uint32_t n, error *err);
/* Turns until nothing is left to do. */
status bench_drive_finish(bench_drive *d, error *err);

#endif
