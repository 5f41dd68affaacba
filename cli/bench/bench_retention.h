/* The parts of `octavo bench retention` (private to it and to `octavo bench retrieval`). */
#ifndef CLI_BENCH_BENCH_RETENTION_H
#define CLI_BENCH_BENCH_RETENTION_H

#include "cli/bench/bench_model.h"

/* A method as the command line names it: "chunkkv", or "chunkkv={\"reuse_layers\":2}". */
typedef struct bench_method {
    const char *text;
    retention_policy policy;
    retrieval_spec retrieval; // block_tokens 0: generated tokens read all that the policy keeps
} bench_method;

/* bench_retention.c: reads what `flag` names: "chunkkv", "chunkkv:0.2", or
 * "chunkkv={\"reuse_layers\":2}". ratio: the share kept where the text gives no budget. */
status bench_read_method(const char *flag, const char *text, double ratio,
                         const retention_limits *limits, retention_policy *out, error *err);
/* bench_retention.c: reads what --retrieval names: "quest", "quest:4096", or
 * "quest={\"second_block_count\":32}". */
status bench_read_retrieval(const char *text, const pkv_geometry *geometry, retrieval_spec *out,
                            error *err);

/* bench_retention_cost.c: what measuring, selecting and giving up pages add to a prefill of
 * `tokens`, for each method. */
status bench_cost(bench *b, uint32_t tokens, const bench_method *methods, size_t n, error *err);

/* bench_retention_mass.c: pages of one prompt in every layer, with random keys and values. */
typedef struct bench_mass bench_mass;
status bench_mass_create(bench *b, uint32_t tokens, bench_mass **out, error *err);
void bench_mass_destroy(bench_mass *m);
/* Milliseconds that page mass as in `spec` adds to the attention of the measured rows, summed over
 * the layers that `spec` measures. */
status bench_mass_time(bench_mass *m, const measure_spec *spec, double *ms, error *err);

/* bench_depth.c: how many sequences of `context` tokens fit under a method into a pool that holds
 * `n_full` of them whole, and how fast all of them decode, beside what bytes and operations
 * predict. A retrieval keeps everything, so it is timed with as many as fit whole. */
status bench_depth(bench *b, uint32_t context, uint32_t n_full, const bench_method *methods,
                   size_t n, error *err);

#endif
