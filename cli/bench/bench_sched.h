/* The cost of scheduling without a model: results are invented, only sched_step and the page tables
 * work. */
#ifndef CLI_BENCH_BENCH_SCHED_H
#define CLI_BENCH_BENCH_SCHED_H

#include "scheduler/scheduler.h"

typedef struct bench_sched_cost {
    double us_per_seq_step; // time of sched_step with n_running decoding, for each of them
    double ns_per_page;     // append and close of pages, for each page
} bench_sched_cost;

/* Medians over `rounds`. */
status bench_sched(const pkv_geometry *geometry, uint32_t n_running, uint32_t rounds,
                   bench_sched_cost *out, error *err);

/* The median of v [n] (reorders it). */
double bench_median(double *v, size_t n);

#endif
