/* Servers over a bench's engine, so that clients in other processes put load on it. */
#ifndef CLI_BENCH_BENCH_FRONT_H
#define CLI_BENCH_BENCH_FRONT_H

#include "engine/engine.h"

typedef struct bench_front_options {
    engine *engine;
    const tokenizer *tokenizer;
    const char *http, *grpc; // "host:port", port 0 = any free one; NULL = off
    const char *traces;      // rpc_options.otlp_traces_endpoint
    uint32_t vocab_size, max_model_len, page_tokens, n_pages, n_blocks;
    uint32_t max_batch, max_requests;
} bench_front_options;

typedef struct bench_front bench_front;

/* Listens, and says on stderr where. STATUS_UNSUPPORTED in a build without servers. */
status bench_front_open(const bench_front_options *options, bench_front **out, error *err);
void bench_front_close(bench_front *f);

#endif
