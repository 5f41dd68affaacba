/* The engine's numbers for dashboards: plain structs, copied out by engine_get_metrics. Names are
 * the stems of Prometheus metrics; rpc/ iterates over the tables here. */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include <stdint.h>

typedef enum engine_histogram_id {
    ENGINE_TIME_TO_FIRST_TOKEN,
    ENGINE_INTER_TOKEN_LATENCY,
    ENGINE_TIME_PER_OUTPUT_TOKEN, // a choice's (total - TTFT) / (tokens - 1)
    ENGINE_E2E_LATENCY,
    ENGINE_QUEUE_TIME,   // submission to first planned
    ENGINE_PREFILL_TIME, // first planned to first token
    ENGINE_DECODE_TIME,  // first token to last
    ENGINE_INFERENCE_TIME,
    ENGINE_PROMPT_TOKENS, // per request
    ENGINE_COMPUTED_TOKENS,
    ENGINE_GENERATION_TOKENS,
    ENGINE_LONGEST_CHOICE,
    ENGINE_PARAMS_N,
    ENGINE_PARAMS_MAX_TOKENS,
    ENGINE_ITERATION_TOKENS, // per step
    ENGINE_HISTOGRAMS,
} engine_histogram_id;

enum { ENGINE_BUCKETS_MAX = 24 };

/* A histogram's row: the stem of its name, one line of help, its upper bounds (seconds or
 * tokens). */
typedef struct engine_histogram_info {
    const char *name; // "time_to_first_token_seconds"
    const char *help;
    const double *bounds; // [n_bounds], ascending; a last bucket holds the rest
    uint32_t n_bounds;    // <= ENGINE_BUCKETS_MAX
} engine_histogram_info;

engine_histogram_info engine_histogram_describe(engine_histogram_id id);

typedef struct engine_histogram {
    uint64_t counts[ENGINE_BUCKETS_MAX + 1]; // not cumulative
    uint64_t count;
    double sum;
} engine_histogram;

enum { ENGINE_METHODS_MAX = 64, ENGINE_FINISHES = 5 };

/* One retention method's counters, over requests that have a retention report. */
typedef struct engine_method_metrics {
    const char *method;     // the preset's name; NULL = an unused row, behind all used ones
    uint64_t pages_dropped; // page references given up, as in retention_report
    double scoring_seconds;
} engine_method_metrics;

typedef struct engine_metrics {
    engine_histogram histograms[ENGINE_HISTOGRAMS];
    uint64_t choices_finished[ENGINE_FINISHES]; // indexed by engine_finish
    engine_method_metrics methods[ENGINE_METHODS_MAX];
    uint64_t restarts;  // restarts of the backend
    uint64_t undefined; // requests that failed because the model's numbers are not finite
} engine_metrics;

#endif
