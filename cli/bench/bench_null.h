/* `octavo bench engine --backend null`: what the engine thread costs where the backend is as fast
 * as a GPU. Single calls first, then closed loops of requests through the whole engine. */
#ifndef CLI_BENCH_BENCH_NULL_H
#define CLI_BENCH_BENCH_NULL_H

#include "cli/bench/bench_shape.h"
#include "cli/model_flags.h"

typedef struct bench_null_flags {
    uint32_t step_us;
    const char *running; // a list
    uint32_t prompt_tokens, output_tokens;
    uint32_t layers, kv_heads;
    uint32_t seconds;
    uint32_t sessions, arrivals, long_tokens;
    const char *http, *grpc, *traces; // NULL = none
} bench_null_flags;

arg_group bench_null_group(bench_null_flags *target);

typedef struct bench_null_options {
    const bench_null_flags *flags;
    const model_flags *model; // pages, tables and the prefill chunk
    const bench_list *running;
    uint32_t rounds;
    bool as_json;    // the report goes to stdout instead of the tables
    const char *out; // a file for the report, or NULL
} bench_null_options;

status bench_null(const bench_null_options *options, error *err);

#endif
