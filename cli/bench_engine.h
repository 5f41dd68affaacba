/* The parts of `octavo bench engine` (private to it): each measures one thing, prints its row and
 * adds it to the JSON. */
#ifndef CLI_BENCH_ENGINE_H
#define CLI_BENCH_ENGINE_H

#include "cli/bench_seqs.h"
#include "kernels/kernels.h"

enum { BENCH_ROUNDS_MAX = 64 };

typedef struct bench_flags {
    const char *shape, *batch, *context, *prefill, *out;
    uint32_t retention_tokens, rounds;
    bool json;
} bench_flags;

typedef struct bench {
    const bench_flags *flags;
    loaded_model model;
    bench_seqs seqs;
    thread_pool *pool;
    kern_context *kernels; // for the limits alone
    strbuf json;           // rows
    size_t n_rows;
} bench;

extern const char bench_engine_name[]; // for messages

/* Begins a row of the JSON: {"what": "decode" */
void bench_start_row(bench *b, const char *what);

/* bench_steps.c */
status bench_decode(bench *b, uint32_t batch, uint32_t context, double *tokens_s, error *err);
/* n_rounds 0: once, without a warm-up. */
status bench_prefill(bench *b, uint32_t tokens, uint32_t n_rounds, double *ms, error *err);
status bench_retention(bench *b, error *err);

/* bench_memory.c */
uint64_t bench_resident_bytes(void);
/* loaded: resident bytes after loading. */
status bench_memory(bench *b, uint64_t loaded, error *err);

#endif
