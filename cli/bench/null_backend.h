/* A backend that computes nothing: a step takes a fixed time on a timer, as a step of a GPU does,
 * and draws invented tokens. What a GPU's host does for a step before it starts, with the page
 * tables, is done on the engine thread and timed apart. Values of measures are invented too. Two
 * steps may be in flight. */
#ifndef CLI_BENCH_NULL_BACKEND_H
#define CLI_BENCH_NULL_BACKEND_H

#include "backend/backend.h"

typedef struct null_options {
    pkv_geometry geometry;
    uint32_t n_pages, max_seqs, max_rows;
    uint32_t vocab_size, max_positions;
    int64_t step_us; // 0 = a step is over when it was submitted
} null_options;

/* Sums since null_backend_create. */
typedef struct null_numbers {
    int64_t now_ns;    // when they were read
    uint64_t steps;    // submitted, with rows
    uint64_t in_time;  // steps that were submitted before the step in front of them had ended
    uint64_t rows;     // tokens of all steps
    int64_t mirror_ns; // work with the page tables, in submit
    int64_t waited_ns; // collect's waiting for the end of a step
    int64_t thread_ns; // processor time of the thread that submits, at its last submit
    /* The longest time between two calls of the backend since null_backend_hold ended. */
    int64_t longest_turn_ns;
} null_numbers;

status null_backend_create(const null_options *options, backend *out, error *err);
/* Any thread. */
null_numbers null_backend_numbers(const backend *b);
/* While it is held, no step ends. Any thread. */
void null_backend_hold(const backend *b, bool held);

#endif
