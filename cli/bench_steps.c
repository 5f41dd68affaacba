/* Prefill, decode and retention of `octavo bench engine`: rounds of steps, each followed by a
 * measurement of this machine's limits. */
#include "cli/bench_engine.h"
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

static void print_row(bench *b, const char *what, uint32_t batch, uint32_t tokens, const row *r)
{
    if (!b->flags->json) {
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

/* ---- decode ---------------------------------------------------------------------------------- */

static status decode_rounds(bench *b, uint32_t batch, uint32_t context, rounds *r, error *err)
{
    uint32_t held = context;
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err)); /* warm */
    held++;
    while (r->n < b->flags->rounds) {
        work w = {0, 0};
        uint32_t n_steps = 0;
        int64_t start = clock_now_us(), now = start;
        for (; now - start < ROUND_US && n_steps < ROUND_STEPS_MAX;
             n_steps++, now = clock_now_us()) {
            RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err));
            held++;
            w.bytes += weight_bytes(b) + batch * kv_bytes(b, held);
            w.flops += batch * (layer_flops(b) + head_flops(b) + attention_flops(b, held));
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

/* ---- retention ------------------------------------------------------------------------------- */

/* The last chunk of a prompt, whose pages before it are copies; with a policy it is measured and
 * selected. */
static status last_chunk(bench *b, uint32_t tokens, const retention_policy *policy, double *ms,
                         double *select_ms, error *err)
{
    uint32_t chunk = b->model.prefill_chunk < tokens ? b->model.prefill_chunk : tokens;
    const pkv_geometry *g = &b->seqs.info->geometry;
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, tokens - chunk, err));
    measure_spec spec = {0};
    if (policy) spec = retention_measure(policy);
    const step_result *result;
    int64_t start = clock_now_us();
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, chunk, true, policy ? &spec : NULL, &result, err));
    *ms = (double)(clock_now_us() - start) / 1e3;
    if (policy) {
        retention_selection sel = {.words = (tokens / g->page_tokens + 64) / 64};
        sel.keep = calloc((size_t)pkv_groups(g) * sel.words, sizeof *sel.keep);
        if (!sel.keep) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        start = clock_now_ns();
        status st =
            retention_select(policy, b->seqs.kv, 0, tokens, &result->seqs[0].measure, &sel, err);
        for (uint32_t i = 0; status_ok(st) && i < pkv_groups(g); i++)
            pkv_seq_drop(b->seqs.kv, 0, i, sel.keep + (size_t)i * sel.words);
        *select_ms = (double)(clock_now_ns() - start) / 1e6;
        free(sel.keep);
        RETURN_IF_ERROR(st);
    }
    return bench_seqs_close(&b->seqs, err);
}

static status parse_policy(const bench *b, retention_policy *out, error *err)
{
    json_t *json = json_pack("{s:s, s:f}", "method", "chunkkv", "ratio", 0.25);
    retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk};
    status st = retention_parse(json, &limits, out, err);
    json_decref(json);
    return st;
}

status bench_retention(bench *b, error *err)
{
    uint32_t tokens = b->flags->retention_tokens, n = b->flags->rounds;
    if (tokens > b->model.max_model_len) {
        fprintf(stderr, "%s: retention: left out: %u tokens are more than the model's %u\n",
                bench_engine_name, tokens, b->model.max_model_len);
        return STATUS_IS_OK;
    }
    retention_policy policy;
    RETURN_IF_ERROR(parse_policy(b, &policy, err));
    double whole_ms;
    RETURN_IF_ERROR(bench_prefill(b, tokens, 0, &whole_ms, err));
    double off[BENCH_ROUNDS_MAX], on[BENCH_ROUNDS_MAX], extra[BENCH_ROUNDS_MAX],
        select[BENCH_ROUNDS_MAX], unused;
    for (uint32_t i = 0; i < n; i++) {
        RETURN_IF_ERROR(last_chunk(b, tokens, NULL, &off[i], &unused, err));
        RETURN_IF_ERROR(last_chunk(b, tokens, &policy, &on[i], &select[i], err));
        extra[i] = on[i] - off[i] + select[i];
    }
    double extra_ms = bench_median(extra, n), select_ms = bench_median(select, n);
    double off_ms = bench_median(off, n), on_ms = bench_median(on, n);
    if (!b->flags->json)
        printf("retention: last chunk of %u tokens %.1f ms plain, %.1f ms measured; selection "
               "%.3f ms; in all %.2f ms = %.2f %% of this prefill\n",
               tokens, off_ms, on_ms, select_ms, extra_ms, 100 * extra_ms / whole_ms);
    bench_start_row(b, "retention");
    strbuf_printf(
        &b->json,
        ",\"tokens\":%u,\"prefill_ms\":%.6g,\"last_chunk_ms\":%.6g,\"measured_chunk_ms\":%.6g,"
        "\"select_ms\":%.6g,\"share_of_prefill\":%.4g}",
        tokens, whole_ms, off_ms, on_ms, select_ms, extra_ms / whole_ms);
    return STATUS_IS_OK;
}
