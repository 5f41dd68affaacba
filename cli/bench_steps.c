/* Prefill and decode of whole models: rounds of steps, each followed by a
 * measurement of this machine's limits. */
#include "cli/bench_model.h"
#include "cli/bench_sched.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ROUND_US =
        300 * 1000, /* a round of decoding takes at least this long, or ROUND_STEPS_MAX steps */
    ROUND_STEPS_MAX = 64,
};

/* ---- one measurement ------------------------------------------------------------------------- */

/* What a round moved and computed, and the limits measured right after it. */
typedef struct work {
    double bytes, flops;
} work;

typedef struct row {
    double tokens_s, ms, gb_s, read_share, gflop_s, fma_share;
} row;

typedef struct rounds {
    double tokens_s[BENCH_ROUNDS_MAX], ms[BENCH_ROUNDS_MAX], gb_s[BENCH_ROUNDS_MAX],
        read_share[BENCH_ROUNDS_MAX], gflop_s[BENCH_ROUNDS_MAX], fma_share[BENCH_ROUNDS_MAX];
    size_t n;
} rounds;

static status add_round(bench *b, rounds *r, double seconds, double tokens, uint32_t n_steps,
                        work w, error *err)
{
    kern_limits limits;
    status st = kern_measure_limits(b->kernels, &limits);
    if (!status_ok(st)) return error_set(err, st.code, "limits: %s", status_text(st.code));
    size_t i = r->n++;
    r->tokens_s[i] = tokens / seconds;
    r->ms[i] = seconds * 1e3 / n_steps;
    r->gb_s[i] = w.bytes / seconds / 1e9;
    r->gflop_s[i] = w.flops / seconds / 1e9;
    r->read_share[i] = r->gb_s[i] / limits.read_gb_s;
    r->fma_share[i] = r->gflop_s[i] / limits.fma_gflop_s;
    return STATUS_IS_OK;
}

static row medians(rounds *r)
{
    return (row){bench_median(r->tokens_s, r->n), bench_median(r->ms, r->n),
                 bench_median(r->gb_s, r->n),     bench_median(r->read_share, r->n),
                 bench_median(r->gflop_s, r->n),  bench_median(r->fma_share, r->n)};
}

void bench_print_head(const bench *b)
{
    if (!b->as_json)
        printf("%-8s %5s %7s %9s %9s %7s %7s %8s %7s\n", "what", "batch", "tokens", "tokens/s",
               "step ms", "GB/s", "of read", "GFLOP/s", "of FMA");
}

static void print_row(bench *b, const char *what, uint32_t batch, uint32_t tokens, const row *r)
{
    if (!b->as_json) {
        printf("%-8s %5u %7u %9.1f %9.2f %7.2f %5.0f %% %8.1f %5.0f %%\n", what, batch, tokens,
               r->tokens_s, r->ms, r->gb_s, 100 * r->read_share, r->gflop_s, 100 * r->fma_share);
        fflush(stdout);
    }
    bench_start_row(b, what);
    strbuf_printf(&b->json,
                  ",\"batch\":%u,\"tokens\":%u,\"tokens_s\":%.6g,\"step_ms\":%.6g,\"gb_s\":%.6g,"
                  "\"read_share\":%.4g,\"gflop_s\":%.6g,\"fma_share\":%.4g}",
                  batch, tokens, r->tokens_s, r->ms, r->gb_s, r->read_share, r->gflop_s,
                  r->fma_share);
}

/* ---- what a step moves and computes ---------------------------------------------------------- */

/* Weights that every row multiplies: all but an embedding that is only looked up. */
static double weight_bytes(const bench *b)
{
    const model_config *c = &b->model.config;
    double embedding = (double)c->vocab_size * c->hidden * dtype_bytes(b->model.kv_type);
    return (double)b->model.facts.weight_bytes - (c->tied_embeddings ? 0 : embedding);
}

/* Multiplications and additions of one row, the head's left out. */
static double layer_flops(const bench *b)
{
    const model_config *c = &b->model.config;
    double attention = (double)c->hidden * c->head_dim * (2.0 * c->n_heads + 2.0 * c->n_kv_heads);
    return 2.0 * c->n_layers * (attention + 3.0 * c->hidden * c->ffn);
}

static double head_flops(const bench *b)
{
    return 2.0 * b->model.config.vocab_size * b->model.config.hidden;
}

/* Of one row over `context` tokens. */
static double attention_flops(const bench *b, double context)
{
    const model_config *c = &b->model.config;
    return 4.0 * c->n_layers * c->n_heads * c->head_dim * context;
}

static double kv_bytes(const bench *b, double context)
{
    const model_config *c = &b->model.config;
    return 2.0 * c->n_layers * c->n_kv_heads * c->head_dim * dtype_bytes(b->model.kv_type) *
           context;
}

bench_work bench_decode_work(const bench *b, double batch, double context)
{
    return (bench_work){
        .weight_bytes = weight_bytes(b),
        .kv_bytes = batch * kv_bytes(b, context),
        .weight_flops = batch * (layer_flops(b) + head_flops(b)),
        .attention_flops = batch * attention_flops(b, context),
    };
}

/* ---- decode ---------------------------------------------------------------------------------- */

static status decode_rounds(bench *b, uint32_t batch, uint32_t context, rounds *r, error *err)
{
    uint32_t held = context;
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err)); /* warm */
    held++;
    while (r->n < b->rounds) {
        work w = {0, 0};
        uint32_t n_steps = 0;
        int64_t start = clock_now_us(), now = start;
        for (; now - start < ROUND_US && n_steps < ROUND_STEPS_MAX;
             n_steps++, now = clock_now_us()) {
            RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err));
            held++;
            bench_work one = bench_decode_work(b, batch, held);
            w.bytes += one.weight_bytes + one.kv_bytes;
            w.flops += one.weight_flops + one.attention_flops;
        }
        RETURN_IF_ERROR(
            add_round(b, r, (double)(now - start) / 1e6, (double)batch * n_steps, n_steps, w, err));
    }
    return STATUS_IS_OK;
}

status bench_decode(bench *b, uint32_t batch, uint32_t context, double *tokens_s, error *err)
{
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, batch, context, err));
    rounds r = {.n = 0};
    status st = decode_rounds(b, batch, context, &r, err);
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    row result = medians(&r);
    *tokens_s = result.tokens_s;
    print_row(b, "decode", batch, context, &result);
    return STATUS_IS_OK;
}

/* ---- prefill --------------------------------------------------------------------------------- */

/* One prompt in chunks; *w receives its work. */
static status prefill_once(bench *b, uint32_t tokens, work *w, error *err)
{
    uint32_t chunk = b->model.prefill_chunk;
    for (uint32_t from = 0; from < tokens; from += chunk) {
        uint32_t n = tokens - from < chunk ? tokens - from : chunk;
        bool last = from + n == tokens;
        RETURN_IF_ERROR(bench_seqs_step(&b->seqs, n, last, NULL, NULL, err));
        w->bytes += weight_bytes(b) + kv_bytes(b, from + n);
        w->flops += n * (layer_flops(b) + attention_flops(b, from + (n + 1) / 2.0));
        if (last) w->flops += head_flops(b);
    }
    return STATUS_IS_OK;
}

status bench_prefill(bench *b, uint32_t tokens, uint32_t n_rounds, double *ms, error *err)
{
    rounds r = {.n = 0};
    status st = bench_seqs_open(&b->seqs, 1, 0, err);
    for (uint32_t i = 0; status_ok(st) && i <= n_rounds; i++) {
        work w = {0, 0};
        int64_t start = clock_now_us();
        st = prefill_once(b, tokens, &w, err);
        int64_t us = clock_now_us() - start;
        if (status_ok(st)) st = bench_seqs_close(&b->seqs, err);
        if (status_ok(st)) st = bench_seqs_open(&b->seqs, 1, 0, err);
        /* The first warms caches and pages, unless it is the only one. */
        if (status_ok(st) && (i || n_rounds == 0))
            st = add_round(b, &r, (double)us / 1e6, tokens, 1, w, err);
    }
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    row result = medians(&r);
    *ms = result.ms;
    print_row(b, "prefill", 1, tokens, &result);
    return STATUS_IS_OK;
}
