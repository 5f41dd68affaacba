/* What benches of whole models share: a loaded model, sequences with step plans by hand, the
 * machine's limits, and rows of JSON beside what is printed. */
#ifndef CLI_BENCH_MODEL_H
#define CLI_BENCH_MODEL_H

#include "cli/bench_gpu.h"
#include "cli/bench_seqs.h"
#include "cli/bench_shape.h"
#include "kernels/kernels.h"

enum { BENCH_ROUNDS_MAX = 64 };

typedef struct bench {
    const char *title; // the model's folder or the shape's name
    uint32_t rounds;
    bool as_json;
    const char *out; // a file for the JSON, or NULL
    loaded_model model;
    bench_seqs seqs;
    thread_pool *pool;
    kern_context *kernels; // for the limits alone; NULL with a GPU,
    bench_gpu gpu;         // which has its own
    strbuf json;           // rows
    size_t n_rows;
} bench;

/* Opens flags->dir, or the shape when it is not NULL; b's first fields are set. On failure nothing
 * is left open. */
status bench_open(bench *b, const model_flags *flags, const char *shape, error *err);
void bench_close(bench *b);
/* The rows to stdout when asked for, and to the file. */
status bench_write(bench *b, error *err);
/* What this machine can do now; a GPU reads what it copies, and has one rate for all products. */
status bench_limits(bench *b, kern_limits *out, error *err);
/* Begins a row of the JSON: {"what": "decode" */
void bench_start_row(bench *b, const char *what);

/* ---- bench_steps.c: rounds of steps, each beside the limits measured right after it ---- */
void bench_print_head(const bench *b);
status bench_decode(bench *b, uint32_t batch, uint32_t context, double *tokens_s, error *err);
/* n prompts of so many tokens together. n_rounds 0: once, without a warm-up. */
status bench_prefill(bench *b, uint32_t n, uint32_t tokens, uint32_t n_rounds, double *ms,
                     error *err);

/* What a step moves and computes. */
typedef struct bench_work {
    double weight_bytes, kv_bytes;
    double weight_flops, attention_flops;
} bench_work;

/* Of `batch` sequences that draw one token each over `context` slots. */
bench_work bench_decode_work(const bench *b, double batch, double context);
/* Seconds that it takes by bytes and operations: the products, then attention, each at the limit
 * that binds it. */
double bench_least_s(const bench *b, const bench_work *w, const kern_limits *limits);

/* ---- bench_memory.c ---- */
uint64_t bench_resident_bytes(void);
/* loaded: resident bytes after loading. */
status bench_memory(bench *b, uint64_t loaded, error *err);

#endif
