/* An engine over the null backend, with a tokenizer of its own. */
#ifndef CLI_BENCH_NULL_ENGINE_H
#define CLI_BENCH_NULL_ENGINE_H

#include "cli/bench/null_backend.h"
#include "engine/engine.h"

enum { NULL_VOCAB = 4096 };

typedef struct null_engine_options {
    pkv_geometry geometry;
    uint32_t running;      // sequences at once
    uint32_t tokens;       // of prompt and output of a request, together
    uint32_t max_requests; // waiting and running
    /* One of the requests may have this many tokens, and methods of retention may measure. */
    uint32_t long_tokens;
    uint32_t prefill_chunk, step_us;
    uint32_t ring_capacity; // 0 = the engine's default
    bool prefix_cache;
} null_engine_options;

typedef struct null_engine {
    tokenizer *tokenizer;
    backend backend;
    engine *engine;
} null_engine;

/* On failure nothing is left. *out must not move. */
status null_engine_create(const null_engine_options *options, null_engine *out, error *err);
void null_engine_destroy(null_engine *n);

#endif
