/* Prefill and decode of whole models: rounds of steps, each followed by a measurement of this
 * machine's limits. */
#include "cli/bench/bench_model.h"
#include "cli/bench/bench_sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUND_US = 300 * 1000, /* shortest round of decoding, unless ROUND_STEPS_MAX come first */
    ROUND_STEPS_MAX = 64,
    WARM_TOKENS = 512, /* of a prompt, at most, before its rounds */
};

/* ---- one measurement ------------------------------------------------------------------------- */

/* The figures of a round, in the order of their names in the JSON; a row gives their medians. */
typedef enum field {
    TOKENS_S,
    STEP_MS,
    GB_S,
    GFLOP_S,
    READ_LIMIT, /* the limits, measured right after the round */
    FMA_LIMIT,
    INT_LIMIT,
    READ_SHARE,
    FMA_SHARE,
    INT_SHARE,
    LIMIT_TOKENS_S, /* tokens/s at these limits */
    /* The share that the round's fastest step reached. Limits are the best of many short
     * measurements; where other tenants take bandwidth for part of every second, a whole round
     * does not compare with them. */
    BEST_READ_SHARE,
    FIELDS,
} field;

static const char *const field_names[FIELDS] = {
    "tokens_s",          "step_ms",         "gb_s",       "gflop_s",   "read_limit_gb_s",
    "fma_limit_gflop_s", "int_limit_gop_s", "read_share", "fma_share", "int_share",
    "limit_tokens_s",    "best_read_share",
};

typedef struct rounds {
    double values[FIELDS][BENCH_ROUNDS_MAX];
    size_t n;
} rounds;

typedef struct row {
    double of[FIELDS];
} row;

/* Seconds at the limits: reading or computing, whichever takes longer. */
static double least_s(double bytes, double gb_s, double operations, double gop_s)
{
    double read = bytes / gb_s, compute = operations / gop_s;
    return (read > compute ? read : compute) / 1e9;
}

/* Whether a CPU multiplies weights that are not quantised as integers of 16 bits. */
static bool has_block_floats(const bench *b)
{
    return !b->model.gpu && !b->model.options.quant_bits &&
           kern_block_floats(b->kernels, b->model.options.weight_type).bits;
}

/* The limit of products with weights that are not quantised: bf16 may have instructions of its own,
 * or is multiplied as integers. */
static double float_gflop_s(const bench *b, const kern_limits *limits)
{
    const dtype type = b->model.options.weight_type;
    if (has_block_floats(b)) return limits->pair_gop_s;
    return type == DTYPE_BF16 ? limits->dot_gflop_s : limits->fma_gflop_s;
}

/* The limit of products with the weights. */
static double product_gop_s(const bench *b, const kern_limits *limits)
{
    return b->model.options.quant_bits ? limits->int_gop_s : float_gflop_s(b, limits);
}

static double attention_gop_s(const bench *b, const kern_limits *limits)
{
    if (b->model.gpu) return limits->fma_gflop_s; /* a GPU has one limit for all products */
    return kern_attention_limit(b->kernels, b->model.kv_type, limits).gop_s;
}

double bench_least_s(const bench *b, const bench_work *w, const kern_limits *limits)
{
    return least_s(w->weight_bytes, limits->read_gb_s, w->weight_flops, product_gop_s(b, limits)) +
           least_s(w->kv_bytes, limits->read_gb_s, w->attention_flops, attention_gop_s(b, limits));
}

static void add_work(bench_work *sum, const bench_work *w)
{
    sum->weight_bytes += w->weight_bytes;
    sum->kv_bytes += w->kv_bytes;
    sum->weight_flops += w->weight_flops;
    sum->attention_flops += w->attention_flops;
}

/* w: the work of all n_steps. best_s: seconds of the fastest one. */
static status add_round(bench *b, rounds *r, double seconds, double best_s, double tokens,
                        uint32_t n_steps, const bench_work *w, error *err)
{
    kern_limits limits;
    RETURN_IF_ERROR(bench_limits(b, &limits, err));
    double gb_s = (w->weight_bytes + w->kv_bytes) / seconds / 1e9;
    double gflop_s = (w->weight_flops + w->attention_flops) / seconds / 1e9;
    const double now[FIELDS] = {
        [TOKENS_S] = tokens / seconds,
        [STEP_MS] = seconds * 1e3 / n_steps,
        [GB_S] = gb_s,
        [GFLOP_S] = gflop_s,
        [READ_LIMIT] = limits.read_gb_s,
        [FMA_LIMIT] = float_gflop_s(b, &limits),
        [INT_LIMIT] = limits.int_gop_s,
        [READ_SHARE] = gb_s / limits.read_gb_s,
        [FMA_SHARE] = gflop_s / float_gflop_s(b, &limits),
        [INT_SHARE] = gflop_s / limits.int_gop_s,
        [LIMIT_TOKENS_S] = tokens / bench_least_s(b, w, &limits),
        [BEST_READ_SHARE] = gb_s * seconds / n_steps / best_s / limits.read_gb_s,
    };
    for (int i = 0; i < FIELDS; i++) r->values[i][r->n] = now[i];
    r->n++;
    return STATUS_IS_OK;
}

static row medians(rounds *r)
{
    row out;
    for (int i = 0; i < FIELDS; i++) out.of[i] = bench_median(r->values[i], r->n);
    return out;
}

/* The name of the limit of products, as `octavo bench kernels` has it. */
static const char *rate_head(const bench *b)
{
    if (b->model.options.quant_bits) return "of int";
    if (has_block_floats(b)) return "of int16";
    return b->model.options.weight_type == DTYPE_BF16 ? "of dot" : "of FMA";
}

void bench_print_head(const bench *b)
{
    if (!b->as_json)
        printf("%-8s %5s %7s %9s %9s %7s %7s %8s %8s %8s\n", "what", "batch", "tokens", "tokens/s",
               "step ms", "GB/s", "of read", b->model.options.quant_bits ? "GOP/s" : "GFLOP/s",
               rate_head(b), "of limit");
}

static void print_line(const bench *b, const char *what, uint32_t batch, uint32_t tokens,
                       const row *r)
{
    field rate_share = b->model.options.quant_bits ? INT_SHARE : FMA_SHARE;
    if (b->as_json) return;
    printf("%-8s %5u %7u %9.1f %9.2f %7.2f %5.0f %% %8.1f %6.0f %% %6.0f %%\n", what, batch, tokens,
           r->of[TOKENS_S], r->of[STEP_MS], r->of[GB_S], 100 * r->of[READ_SHARE], r->of[GFLOP_S],
           100 * r->of[rate_share], 100 * r->of[TOKENS_S] / r->of[LIMIT_TOKENS_S]);
    fflush(stdout);
}

/* Begins a row of the JSON, which the caller ends. */
static void put_row(bench *b, const char *what, uint32_t batch, uint32_t tokens, const row *r)
{
    bench_report_row(&b->report, what);
    strbuf_printf(&b->report.rows, ",\"batch\":%u,\"tokens\":%u", batch, tokens);
    for (int i = 0; i < FIELDS; i++)
        strbuf_printf(&b->report.rows, ",\"%s\":%.6g", field_names[i], r->of[i]);
}

static void print_row(bench *b, const char *what, uint32_t batch, uint32_t tokens, const row *r)
{
    print_line(b, what, batch, tokens, r);
    if (b->n_points < BENCH_POINTS_MAX)
        b->points[b->n_points++] = (bench_point){.is_prefill = strcmp(what, "prefill") == 0,
                                                 .batch = batch,
                                                 .tokens = tokens,
                                                 .tokens_s = r->of[TOKENS_S],
                                                 .limit_tokens_s = r->of[LIMIT_TOKENS_S]};
    put_row(b, what, batch, tokens, r);
    strbuf_putc(&b->report.rows, '}');
}

/* ---- what a step moves and computes ---------------------------------------------------------- */

/* Weight bytes that a step reads: all but an embedding that is only looked up. */
static double weight_bytes(const bench *b)
{
    const model_config *c = &b->model.config;
    double embedding =
        (double)c->vocab_size * c->hidden * dtype_bytes(b->model.options.weight_type);
    return (double)b->model.facts.weight_bytes - (c->tied_embeddings ? 0 : embedding);
}

/* Operations of the layers for one row, the head's left out. */
static double layer_flops(const bench *b)
{
    const model_config *c = &b->model.config;
    double attention = (double)c->hidden * c->head_dim * (2.0 * c->n_heads + 2.0 * c->n_kv_heads);
    double ffn = 0.0;
    for (uint32_t l = 0; l < c->n_layers; l++)
        ffn += c->layers[l] & LAYER_SPARSE ? (double)c->experts_per_token * c->expert_ffn : c->ffn;
    return 2.0 * (c->n_layers * attention + 3.0 * c->hidden * ffn);
}

static double head_flops(const bench *b)
{
    return 2.0 * b->model.config.vocab_size * b->model.config.hidden;
}

/* Operations of attention for one row over `context` tokens. */
static double attention_flops(const bench *b, double context)
{
    const model_config *c = &b->model.config;
    return 4.0 * c->n_layers * c->n_heads * c->head_dim * context;
}

static double kv_bytes(const bench *b, double context)
{
    const model_config *c = &b->model.config;
    if (b->model.gpu) {
        uint32_t page = b->seqs.info->geometry.page_tokens;
        size_t tile = gpu_tile_bytes((gpu_kv_format)b->model.gpu_kv, page, c->head_dim);
        return (double)tile / page * c->n_layers * c->n_kv_heads * context;
    }
    kern_kv_facts facts = kern_kv_facts_of(b->model.kv_type);
    double slot = (double)c->head_dim * facts.bits / 8 + facts.scales;
    if (facts.group) slot += (double)c->head_dim * KERN_GRID_BYTES / facts.group;
    return 2.0 * c->n_layers * c->n_kv_heads * slot * context;
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

/* *held: the tokens of each sequence. */
static status decode_round(bench *b, uint32_t batch, const measure_spec *measure, uint32_t *held,
                           rounds *r, error *err)
{
    bench_work w = {0};
    uint32_t n_steps = 0;
    int64_t start = clock_now_us(), before = start, now = start, best = INT64_MAX;
    for (; now - start < ROUND_US && n_steps < ROUND_STEPS_MAX; n_steps++) {
        RETURN_IF_ERROR(bench_seqs_decode(&b->seqs, measure, err));
        before = now;
        now = clock_now_us();
        if (now - before < best) best = now - before;
        bench_work one = bench_decode_work(b, batch, ++*held);
        add_work(&w, &one);
    }
    RETURN_IF_ERROR(bench_seqs_settle(&b->seqs, err));
    double seconds = (double)(clock_now_us() - start) / 1e6;
    /* Where several steps are in flight, a step's own time is not known. */
    bool alone = b->seqs.info->max_in_flight == 1 && best > 0;
    double best_s = alone ? (double)best / 1e6 : seconds / n_steps;
    return add_round(b, r, seconds, best_s, (double)batch * n_steps, n_steps, &w, err);
}

static status decode_rounds(bench *b, uint32_t batch, uint32_t context, rounds *r, error *err)
{
    uint32_t held = context + 1;
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err)); /* warms up */
    while (r->n < b->rounds) RETURN_IF_ERROR(decode_round(b, batch, NULL, &held, r, err));
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
    *tokens_s = result.of[TOKENS_S];
    print_row(b, "decode", batch, context, &result);
    return STATUS_IS_OK;
}

/* ---- measured decode ------------------------------------------------------------------------- */

/* Rounds without and with a measure. */
typedef struct compared {
    rounds without, with;
    double more[BENCH_ROUNDS_MAX]; /* what it adds to a step of each round, as a share of it */
    double measure_ms;             /* that a measured step spends on it, where that is told apart */
} compared;

/* The rounds take turns, so that a slow moment of the machine does not hit one kind alone. */
static status measured_rounds(bench *b, uint32_t batch, uint32_t context,
                              const measure_spec *measure, compared *out, error *err)
{
    uint32_t held = context + 2;
    uint64_t n_steps = 0;
    int64_t us = 0;
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err)); /* warm up */
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, measure, NULL, err));
    for (uint32_t i = 0; i < b->rounds; i++) {
        RETURN_IF_ERROR(decode_round(b, batch, NULL, &held, &out->without, err));
        uint64_t step = b->seqs.step;
        int64_t before = b->seqs.measure_us;
        RETURN_IF_ERROR(decode_round(b, batch, measure, &held, &out->with, err));
        n_steps += b->seqs.step - step;
        us += b->seqs.measure_us - before;
        out->more[i] = out->with.values[STEP_MS][i] / out->without.values[STEP_MS][i] - 1.0;
    }
    out->measure_ms = (double)us / 1e3 / (double)n_steps;
    return STATUS_IS_OK;
}

status bench_decode_measured(bench *b, uint32_t batch, uint32_t context, const char *method,
                             const retention_policy *policy, error *err)
{
    compared c = {.measure_ms = 0};
    measure_spec measure = retention_measure_rows(policy, context, context, context + 1);
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, batch, context, err));
    status st = measured_rounds(b, batch, context, &measure, &c, err);
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    row result = medians(&c.with), without = medians(&c.without);
    double share = bench_median(c.more, b->rounds);
    double low = c.more[0], high = c.more[b->rounds - 1]; /* bench_median has sorted them */
    print_line(b, "measured", batch, context, &result);
    if (!b->as_json)
        printf("%23s %s adds %.2f %% to a step (%.2f to %.2f)\n", "", method, 100.0 * share,
               100.0 * low, 100.0 * high);
    put_row(b, "measured", batch, context, &result);
    strbuf_puts(&b->report.rows, ",\"method\":");
    strbuf_json_string(&b->report.rows, method, strlen(method));
    strbuf_printf(&b->report.rows,
                  ",\"without_ms\":%.6g,\"measure_ms\":%.6g,\"more\":%.6g,\"more_low\":%.6g,"
                  "\"more_high\":%.6g}",
                  without.of[STEP_MS], c.measure_ms, share, low, high);
    return STATUS_IS_OK;
}

/* ---- prefill --------------------------------------------------------------------------------- */

/* Computes n prompts in chunks; *w receives their work. */
static status prefill_once(bench *b, uint32_t n, uint32_t tokens, bench_work *w, error *err)
{
    uint32_t chunk = b->seqs.max_rows / n;
    if (chunk > b->model.prefill_chunk) chunk = b->model.prefill_chunk;
    for (uint32_t from = 0; from < tokens; from += chunk) {
        uint32_t some = tokens - from < chunk ? tokens - from : chunk;
        bool last = from + some == tokens;
        RETURN_IF_ERROR(bench_seqs_step(&b->seqs, some, last, NULL, NULL, err));
        bench_work one = {
            .weight_bytes = weight_bytes(b),
            .kv_bytes = n * kv_bytes(b, from + some),
            .weight_flops = (double)n * (some * layer_flops(b) + (last ? head_flops(b) : 0)),
            .attention_flops = (double)n * some * attention_flops(b, from + (some + 1) / 2.0),
        };
        add_work(w, &one);
    }
    return STATUS_IS_OK;
}

status bench_prefill(bench *b, uint32_t n, uint32_t tokens, uint32_t n_rounds, double *ms,
                     error *err)
{
    rounds r = {.n = 0};
    status st = bench_seqs_open(&b->seqs, n, 0, err);
    for (uint32_t i = 0; status_ok(st) && i <= n_rounds; i++) {
        bench_work w = {0};
        bool warm = i == 0; /* a short round, so that a long prompt is not computed twice */
        uint32_t some = warm && tokens > WARM_TOKENS ? WARM_TOKENS : tokens;
        int64_t start = clock_now_us();
        st = prefill_once(b, n, some, &w, err);
        int64_t us = clock_now_us() - start;
        if (status_ok(st)) st = bench_seqs_close(&b->seqs, err);
        if (status_ok(st)) st = bench_seqs_open(&b->seqs, n, 0, err);
        double seconds = (double)us / 1e6;
        if (status_ok(st) && !warm)
            st = add_round(b, &r, seconds, seconds, (double)n * tokens, 1, &w, err);
    }
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    row result = medians(&r);
    *ms = result.of[STEP_MS];
    print_row(b, "prefill", n, tokens, &result);
    return STATUS_IS_OK;
}
