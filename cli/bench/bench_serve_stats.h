/* Samples, their percentiles, and when requests arrive (private to `octavo bench serve`). Pure. */
#ifndef CLI_BENCH_BENCH_SERVE_STATS_H
#define CLI_BENCH_BENCH_SERVE_STATS_H

#include "base/base.h"

typedef struct samples {
    double *values;
    size_t n, capacity;
    bool failed; // out of memory: some samples are missing
} samples;

void samples_add(samples *s, double value);
void samples_sort(samples *s);
/* The percentile p in [0, 100] of sorted samples, linear between the two nearest; 0 without
 * samples. */
double samples_percentile(const samples *s, double p);
double samples_mean(const samples *s);
double samples_std(const samples *s); // of a population
void samples_destroy(samples *s);

/* Seconds to the next arrival at `rate` a second: a gamma of mean 1 / rate whose shape is
 * `burstiness`: 1 = Poisson arrivals, less = burstier. */
double arrival_gap(rng *r, double rate, double burstiness);

#endif
