/* Means with their uncertainty (private to quality/). Prompts of one document share their context:
 * they are resampled together, and count for less than as many independent prompts. */
#ifndef QUALITY_REPORT_STATS_H
#define QUALITY_REPORT_STATS_H

#include <stddef.h>
#include <stdint.h>

/* A prompt's value; values of one cluster follow each other. */
typedef struct stat_value {
    uint32_t cluster;
    float value;
} stat_value;

typedef struct stat_mean {
    size_t n, n_clusters;
    double mean, low, high; // low and high: 95 % interval
} stat_mean;

/* Wilson's interval for values that are 0 or 1; the number of prompts is divided by the design
 * effect of the clusters. */
stat_mean stat_wilson(const stat_value *values, size_t n);
/* Percentiles of the means of 2,000 resamples of the clusters; NaN with a single cluster, or when
 * memory is out. */
stat_mean stat_bootstrap(const stat_value *values, size_t n, uint64_t seed);

#endif
