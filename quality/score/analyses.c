#include "quality/score/analyses.h"

#include "quality/score/kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ANSWER_MAX: tokens of an answer that are analysed. ROWS_MAX: rows of them that are compared,
 * spread evenly. */
enum { ANSWER_MAX = 512, ROWS_MAX = 64, LAYERS_MAX = 4096, HEAD_DIM_MAX = 256 };

static const uint32_t heavy_steps[HEAVY_STEPS - 1] = {1, 300, 500};

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* ---- the arithmetic -------------------------------------------------------------------------- */

static double cosine(double product, double a, double b)
{
    return a > 0 && b > 0 ? product / sqrt(a * b) : NAN;
}

bool analysis_change(const double *weights, uint32_t n, const float *values, uint32_t head_dim,
                     const uint64_t *kept, uint32_t n_choosable, row_change *out)
{
    double y[HEAD_DIM_MAX] = {0}, left[HEAD_DIM_MAX] = {0};
    double mass = 0, all_squares = 0, kept_squares = 0;
    for (uint32_t j = 0; j < n; j++) {
        double a = weights[j];
        if (a == 0) continue;
        bool stays = j >= n_choosable || kept_has(kept, j);
        const float *v = values + (size_t)j * head_dim;
        for (uint32_t d = 0; d < head_dim; d++) y[d] += a * (double)v[d];
        all_squares += a * a;
        if (!stays) continue;
        for (uint32_t d = 0; d < head_dim; d++) left[d] += a * (double)v[d];
        kept_squares += a * a;
        mass += a;
    }
    if (mass <= 0) return false;
    double yy = 0, ll = 0, yl = 0, gap = 0;
    for (uint32_t d = 0; d < head_dim; d++) {
        double l = left[d] / mass;
        yy += y[d] * y[d];
        ll += l * l;
        yl += y[d] * l;
        gap += (y[d] - l) * (y[d] - l);
    }
    /* The weights that stay grow by 1 / mass and so gain 1 - mass in sum; those that go lose as
     * much. Rescaling leaves the cosine as it is. */
    out->attention_l1 = 2 * fmax(1 - mass, 0);
    out->attention_cosine = cosine(kept_squares, kept_squares, all_squares);
    out->loss = yy > 0 ? sqrt(gap / yy) : NAN;
    out->output_cosine = cosine(yl, yy, ll);
    return true;
}

typedef struct ranked {
    double sum;
    uint32_t token;
} ranked;

static int by_sum(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->sum != y->sum) return x->sum > y->sum ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

bool analysis_heavy(const double *sums, uint32_t n, double share, bool *heavy)
{
    uint32_t n_heavy = (uint32_t)ceil(share * n);
    ranked *order = malloc((n + 1) * sizeof *order);
    if (!order) return false;
    for (uint32_t j = 0; j < n; j++) order[j] = (ranked){sums[j], j};
    qsort(order, n, sizeof *order, by_sum);
    memset(heavy, 0, n * sizeof *heavy);
    for (uint32_t i = 0; i < n_heavy && i < n; i++) heavy[order[i].token] = true;
    free(order);
    return true;
}

/* ---- the state of one analysis --------------------------------------------------------------- */

typedef struct look {
    const analysis_input *in;
    probe_shape shape;
    analysis *out;
    uint32_t *tokens; /* prompt, then answer */
    uint32_t n;
    double *weights, *sums; /* [n] */
    bool *heavy;            /* [n] */
    kept_sets kept;         /* empty for the full cache */
} look;

static float *row_of(const look *l, uint32_t row)
{
    return l->out->values + row * l->shape.n_layers;
}

/* Tokens of an answer that were fed to the model: all but the last, unless it is the only one. */
static uint32_t fed_tokens(size_t n_answer)
{
    size_t n = n_answer > 1 ? n_answer - 1 : n_answer;
    return n < ANSWER_MAX ? (uint32_t)n : ANSWER_MAX;
}

/* Shows the probe the prompt with an answer; it keeps queries from the prompt's last row on. */
static status show(look *l, const step_sample *answer, size_t n_answer, error *err)
{
    const analysis_input *in = l->in;
    l->n = in->n_prompt;
    for (uint32_t i = 0; i < fed_tokens(n_answer); i++) l->tokens[l->n++] = answer[i].token;
    return model_probe_run(in->probe, l->tokens, l->n, in->n_prompt - 1, err);
}

/* ---- evictions ------------------------------------------------------------------------------- */

static double norm1(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += fabs((double)x[i]);
    return sum;
}

typedef struct change_sums {
    row_change sum;
    size_t n, n_outputs;
    double cache, lost; /* 1-norms of K and V */
} change_sums;

/* Evicted K and V read as zeros, so their 1-norm is the L1 distance to what was there. */
static void add_cache(const look *l, uint32_t layer, uint32_t head, const uint64_t *kept,
                      change_sums *sums)
{
    uint32_t dim = l->shape.head_dim, end = l->in->n_prompt;
    const float *k = model_probe_keys(l->in->probe, layer, head);
    const float *v = model_probe_values(l->in->probe, layer, head);
    for (uint32_t j = model_probe_first_seen(l->in->probe, layer, end - 1); j < end; j++) {
        double size = norm1(k + (size_t)j * dim, dim) + norm1(v + (size_t)j * dim, dim);
        sums->cache += size;
        if (!kept_has(kept, j)) sums->lost += size;
    }
}

/* A head whose values are all zeros has no output to compare. */
static void add_change(change_sums *s, const row_change *c)
{
    s->sum.attention_l1 += c->attention_l1;
    s->sum.attention_cosine += c->attention_cosine;
    s->n++;
    if (isnan(c->loss) || isnan(c->output_cosine)) return;
    s->sum.loss += c->loss;
    s->sum.output_cosine += c->output_cosine;
    s->n_outputs++;
}

static void compare_rows(look *l, uint32_t layer, uint32_t head, const uint64_t *kept,
                         change_sums *sums)
{
    const analysis_input *in = l->in;
    uint32_t group = l->shape.n_heads / l->shape.n_kv_heads, answer = l->n - in->n_prompt;
    const float *values = model_probe_values(in->probe, layer, head / group);
    for (uint32_t i = 0; i < l->out->n_rows; i++) {
        uint32_t row = in->n_prompt + (uint32_t)((uint64_t)i * answer / l->out->n_rows);
        row_change change;
        model_probe_weights(in->probe, layer, head, row, l->weights);
        if (analysis_change(l->weights, row + 1, values, l->shape.head_dim, kept, in->n_prompt,
                            &change))
            add_change(sums, &change);
    }
}

static void put_mean(look *l, uint32_t row, uint32_t layer, double sum, double n)
{
    if (n > 0) row_of(l, row)[layer] = (float)(sum / n);
}

static void compare_layer(look *l, uint32_t layer)
{
    change_sums s = {0};
    uint32_t group = l->shape.n_heads / l->shape.n_kv_heads;
    for (uint32_t h = 0; h < l->shape.n_kv_heads; h++) {
        const kept_table *t = kept_table_of(&l->kept, layer, h);
        if (!t) return;
        add_cache(l, layer, h, t->bits, &s);
        for (uint32_t g = 0; g < group; g++) compare_rows(l, layer, h * group + g, t->bits, &s);
    }
    put_mean(l, ANALYSIS_KV_L1, layer, s.lost, s.cache);
    put_mean(l, ANALYSIS_ATTENTION_L1, layer, s.sum.attention_l1, (double)s.n);
    put_mean(l, ANALYSIS_ATTENTION_COSINE, layer, s.sum.attention_cosine, (double)s.n);
    put_mean(l, ANALYSIS_LOSS, layer, s.sum.loss, (double)s.n_outputs);
    put_mean(l, ANALYSIS_OUTPUT_COSINE, layer, s.sum.output_cosine, (double)s.n_outputs);
}

static status compare_full(look *l, error *err)
{
    RETURN_IF_ERROR(show(l, l->in->full, l->in->n_full, err));
    uint32_t answer = l->n - l->in->n_prompt;
    l->out->n_rows = answer < ROWS_MAX ? answer : ROWS_MAX;
    for (uint32_t layer = 0; layer < l->shape.n_layers; layer++) compare_layer(l, layer);
    return STATUS_IS_OK;
}

/* ---- heavy hitters --------------------------------------------------------------------------- */

/* The bin of a token among n. Prompt and answer are divided into bins of their own. */
static uint32_t bin_of(uint32_t token, uint32_t n_prompt, uint32_t n)
{
    if (token < n_prompt) return (uint32_t)((uint64_t)token * HEAVY_PROMPT_BINS / n_prompt);
    return HEAVY_PROMPT_BINS +
           (uint32_t)((uint64_t)(token - n_prompt) * HEAVY_ANSWER_BINS / (n - n_prompt));
}

/* Writes the mean of `of` over the tokens of each bin among [first, n) into rows [first_row, +
 * HEAVY_BINS). */
static void fill_bins(look *l, uint32_t first_row, uint32_t layer, uint32_t first, uint32_t n,
                      const double *of)
{
    double sum[HEAVY_BINS] = {0};
    uint32_t count[HEAVY_BINS] = {0};
    for (uint32_t j = first; j < n; j++) {
        uint32_t bin = bin_of(j, l->in->n_prompt, n);
        sum[bin] += of[j];
        count[bin]++;
    }
    for (uint32_t i = 0; i < HEAVY_BINS; i++)
        if (count[i]) row_of(l, first_row + i)[layer] = (float)(sum[i] / count[i]);
}

/* Writes the figures of the heavy hitters by l->sums at the step of `row` into slot `at`. */
static status note_step(look *l, uint32_t layer, uint32_t row, uint32_t at, error *err)
{
    uint32_t first = model_probe_first_seen(l->in->probe, layer, row), n = row + 1;
    uint32_t n_prompt = l->in->n_prompt, n_heavy = 0, of_answer = 0;
    if (!analysis_heavy(l->sums + first, n - first, HEAVY_SHARE, l->heavy + first))
        return out_of_memory(err);
    for (uint32_t j = first; j < n; j++) {
        n_heavy += l->heavy[j];
        of_answer += l->heavy[j] && j >= n_prompt;
        l->weights[j] = l->heavy[j];
    }
    row_of(l, ANALYSIS_ANSWER + at)[layer] = (float)of_answer / (float)n_heavy;
    row_of(l, ANALYSIS_SEEN + at)[layer] = (float)(n - n_prompt) / (float)(n - first);
    fill_bins(l, ANALYSIS_HEAVY + at * HEAVY_BINS, layer, first, n, l->weights);
    return STATUS_IS_OK;
}

/* Writes which share of the last step's heavy hitters (still in l->heavy) the method kept, and
 * where the kept tokens lie. */
static void note_kept(look *l, uint32_t layer)
{
    uint32_t n = l->n < l->in->n_logical ? l->n : l->in->n_logical, n_heavy = 0;
    uint32_t first = model_probe_first_seen(l->in->probe, layer, l->n - 1);
    double found = 0;
    memset(l->weights, 0, l->n * sizeof *l->weights);
    for (uint32_t j = first; j < n; j++) n_heavy += l->heavy[j];
    for (uint32_t h = 0; h < l->shape.n_kv_heads; h++) {
        const kept_table *t = kept_table_of(&l->kept, layer, h);
        if (!t) return;
        for (uint32_t j = first; j < n; j++) {
            if (!kept_has(t->bits, j)) continue;
            found += l->heavy[j];
            l->weights[j] += 1.0 / l->shape.n_kv_heads;
        }
    }
    if (n_heavy)
        row_of(l, ANALYSIS_HEAVY_KEPT)[layer] = (float)(found / l->shape.n_kv_heads / n_heavy);
    fill_bins(l, ANALYSIS_KEPT, layer, first, n, l->weights);
}

static status follow_layer(look *l, uint32_t layer, error *err)
{
    uint32_t from = l->in->n_prompt - 1;
    memset(l->sums, 0, l->n * sizeof *l->sums);
    for (uint32_t row = from; row < l->n; row++) {
        for (uint32_t head = 0; head < l->shape.n_heads; head++) {
            model_probe_weights(l->in->probe, layer, head, row, l->weights);
            for (uint32_t j = 0; j <= row; j++) l->sums[j] += l->weights[j];
        }
        for (uint32_t at = 0; at < HEAVY_STEPS - 1; at++)
            if (row - from + 1 == heavy_steps[at])
                RETURN_IF_ERROR(note_step(l, layer, row, at, err));
        if (row + 1 == l->n) RETURN_IF_ERROR(note_step(l, layer, row, HEAVY_STEPS - 1, err));
    }
    if (l->kept.n) note_kept(l, layer);
    return STATUS_IS_OK;
}

static status follow_prompt(look *l, error *err)
{
    RETURN_IF_ERROR(show(l, l->in->own, l->in->n_own, err));
    l->out->n_steps = l->n - l->in->n_prompt + 1;
    for (uint32_t layer = 0; layer < l->shape.n_layers; layer++)
        RETURN_IF_ERROR(follow_layer(l, layer, err));
    return STATUS_IS_OK;
}

/* ---- an analysis ----------------------------------------------------------------------------- */

static bool make_values(analysis *a, uint32_t n_layers)
{
    size_t n = (size_t)ANALYSIS_ROWS * n_layers;
    a->values = malloc(n * sizeof *a->values);
    for (size_t i = 0; a->values && i < n; i++) a->values[i] = NAN;
    a->n_layers = a->values ? n_layers : 0;
    return a->values != NULL;
}

static status look_at(look *l, error *err)
{
    const analysis_input *in = l->in;
    uint32_t most = in->n_prompt + ANSWER_MAX;
    l->tokens = malloc(most * sizeof *l->tokens);
    l->weights = calloc(most, sizeof *l->weights);
    l->sums = calloc(most, sizeof *l->sums);
    l->heavy = calloc(most, sizeof *l->heavy);
    if (!l->tokens || !l->weights || !l->sums || !l->heavy ||
        !make_values(l->out, l->shape.n_layers))
        return out_of_memory(err);
    memcpy(l->tokens, in->prompt, in->n_prompt * sizeof *l->tokens);
    if (!in->kept_json) return follow_prompt(l, err);
    RETURN_IF_ERROR(kept_sets_read(in->kept_json, most, &l->kept, err));
    RETURN_IF_ERROR(follow_prompt(l, err));
    return compare_full(l, err);
}

status analysis_run(const analysis_input *in, analysis *out, error *err)
{
    *out = (analysis){0};
    if (in->n_prompt == 0 || in->n_own == 0 || (in->kept_json && in->n_full == 0))
        return STATUS_IS_OK;
    look l = {.in = in, .shape = model_probe_shape(in->probe), .out = out};
    status st = look_at(&l, err);
    free(l.tokens);
    free(l.weights);
    free(l.sums);
    free(l.heavy);
    kept_sets_destroy(&l.kept);
    if (!status_ok(st)) analysis_destroy(out);
    return st;
}

void analysis_destroy(analysis *a)
{
    free(a->values);
    *a = (analysis){0};
}

/* ---- lines ----------------------------------------------------------------------------------- */

void analysis_write(const analysis *a, strbuf *out)
{
    strbuf_printf(out, "{\"layers\":%u,\"rows\":%u,\"steps\":%u,\"values\":[", a->n_layers,
                  a->n_rows, a->n_steps);
    for (size_t i = 0; i < (size_t)ANALYSIS_ROWS * a->n_layers; i++) {
        if (isnan(a->values[i])) strbuf_puts(out, i ? ",null" : "null");
        else strbuf_printf(out, i ? ",%.4g" : "%.4g", (double)a->values[i]);
    }
    strbuf_puts(out, "]}");
}

bool analysis_read(const json_t *json, analysis *out)
{
    *out = (analysis){0};
    json_int_t layers = json_integer_value(json_object_get(json, "layers"));
    const json_t *values = json_object_get(json, "values");
    if (layers <= 0 || layers > LAYERS_MAX ||
        json_array_size(values) != (size_t)ANALYSIS_ROWS * (size_t)layers)
        return true;
    if (!make_values(out, (uint32_t)layers)) return false;
    out->n_rows = (uint32_t)json_integer_value(json_object_get(json, "rows"));
    out->n_steps = (uint32_t)json_integer_value(json_object_get(json, "steps"));
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        if (json_is_number(v)) out->values[i] = (float)json_number_value(v);
    }
    return true;
}
