/* Shared by benches of whole models: a loaded model, sequences whose step plans the bench writes,
 * the machine's limits, and rows of JSON beside what is printed. */
#ifndef CLI_BENCH_BENCH_MODEL_H
#define CLI_BENCH_BENCH_MODEL_H

#include "cli/bench/bench_gpu.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/bench_seqs.h"
#include "cli/bench/bench_shape.h"
#include "kernels/kernels.h"

enum { BENCH_ROUNDS_MAX = 64, BENCH_POINTS_MAX = 2 * BENCH_LIST_MAX * BENCH_LIST_MAX };

/* A row that was measured, for drawings. */
typedef struct bench_point {
    bool is_prefill;
    uint32_t batch, tokens;
    double tokens_s, limit_tokens_s; // medians
} bench_point;

typedef struct bench {
    const char *title; // the model's folder or the shape's name
    uint32_t rounds;
    bool as_json;
    const char *out; // a file for the JSON, or NULL
    loaded_model model;
    bench_seqs seqs;
    thread_pool *pool;
    kern_context *kernels; // measures the limits; NULL with a GPU,
    bench_gpu gpu;         // which measures its own
    bench_report report;
    bench_point points[BENCH_POINTS_MAX]; // [n_points]; rows beyond are left out
    size_t n_points;
} bench;

/* Opens flags->dir, or `shape` when it is not NULL; the caller has set b's first fields. On failure
 * nothing is left open. */
status bench_open(bench *b, const model_flags *flags, const char *shape, error *err);
void bench_close(bench *b);
/* Writes the report to stdout when asked for, and to the file. Once. */
status bench_write(bench *b, error *err);
/* Measures the machine's present limits. A GPU's read limit is its copy rate; one limit serves all
 * its products. */
status bench_limits(bench *b, kern_limits *out, error *err);

/* ---- bench_steps.c: rounds of steps, each followed by a measurement of the limits ---- */
void bench_print_head(const bench *b);
status bench_decode(bench *b, uint32_t batch, uint32_t context, double *tokens_s, error *err);
/* Times decoding with what a method of retention measures of each generated token, beside steps
 * that are not measured. Selections are not made. */
status bench_decode_measured(bench *b, uint32_t batch, uint32_t context, const char *method,
                             const retention_policy *policy, error *err);
/* Times n_rounds prefills of n prompts of `tokens` tokens together, behind a short one that warms
 * caches and pages. */
status bench_prefill(bench *b, uint32_t n, uint32_t tokens, uint32_t n_rounds, double *ms,
                     error *err);

/* Bytes that a step reads and operations that it computes. */
typedef struct bench_work {
    double weight_bytes, kv_bytes;
    double weight_flops, attention_flops;
} bench_work;

/* The work of a decode step: `batch` sequences draw one token each over `context` slots. */
bench_work bench_decode_work(const bench *b, double batch, double context);
/* Seconds that the work takes at the limits: the products, then attention, each at whichever of
 * bytes and operations takes longer. */
double bench_least_s(const bench *b, const bench_work *w, const kern_limits *limits);

/* ---- bench_launches.c ---- */
/* Times the launches of a decode step on a GPU, one by one and as a graph: means of the rounds. */
status bench_launches(bench *b, uint32_t batch, uint32_t context, error *err);

/* ---- bench_memory.c ---- */
uint64_t bench_resident_bytes(void);
/* loaded: resident bytes after loading. */
status bench_memory(bench *b, uint64_t loaded, error *err);

#endif
