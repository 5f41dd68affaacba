#include "model/cpu/experts.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 16 }; /* in one piece of a thread's work */

/* The experts of each row, ascending, with their weights; and the same sorted by expert. */
struct experts {
    forward_options o;
    uint32_t n, of_row; /* all experts; experts of one row */
    size_t ffn;         /* this rank's width of an expert */
    float *logits;      /* [max_rows, n] */
    uint32_t *chosen;   /* [max_rows, of_row] */
    float *weights;     /* [max_rows, of_row] */
    uint32_t *first;    /* [n + 1]: expert i has entries first[i] .. first[i + 1] */
    uint32_t *rows;     /* [max_rows * of_row] row of each entry */
    float *shares;      /* [max_rows * of_row] weight of each entry */
    float *in, *part;   /* [max_rows, hidden] one expert's input and output */
    float *switches;    /* [max_rows] logits of the shared expert's weight */
};

status experts_create(const forward_options *options, experts **out)
{
    const model_config *c = options->config;
    experts *e = calloc(1, sizeof *e);
    if (!e) return status_make(STATUS_NO_MEMORY, "experts");
    size_t rows = options->max_rows, entries = rows * c->experts_per_token;
    e->o = *options;
    e->n = c->n_experts;
    e->of_row = c->experts_per_token;
    e->ffn = options->weights->slice.n_expert_ffn;
    e->logits = alloc_zeroed(NULL, rows, e->n * sizeof *e->logits);
    e->chosen = alloc_zeroed(NULL, entries, sizeof *e->chosen);
    e->weights = alloc_zeroed(NULL, entries, sizeof *e->weights);
    e->first = alloc_zeroed(NULL, (size_t)e->n + 1, sizeof *e->first);
    e->rows = alloc_zeroed(NULL, entries, sizeof *e->rows);
    e->shares = alloc_zeroed(NULL, entries, sizeof *e->shares);
    e->in = alloc_zeroed(NULL, rows, c->hidden * sizeof *e->in);
    e->part = alloc_zeroed(NULL, rows, c->hidden * sizeof *e->part);
    e->switches = alloc_zeroed(NULL, rows, sizeof *e->switches);
    if (!e->logits || !e->chosen || !e->weights || !e->first || !e->rows || !e->shares || !e->in ||
        !e->part || !e->switches) {
        experts_destroy(e);
        return status_make(STATUS_NO_MEMORY, "experts");
    }
    *out = e;
    return STATUS_IS_OK;
}

void experts_destroy(experts *e)
{
    if (!e) return;
    free(e->logits);
    free(e->chosen);
    free(e->weights);
    free(e->first);
    free(e->rows);
    free(e->shares);
    free(e->in);
    free(e->part);
    free(e->switches);
    free(e);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Turns logits into probabilities, in place. */
static void softmax(float *x, uint32_t n)
{
    float max = x[0], sum = 0.0f;
    for (uint32_t i = 1; i < n; i++) max = fmaxf(max, x[i]);
    for (uint32_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - max);
    for (uint32_t i = 0; i < n; i++) x[i] /= sum;
}

/* Sets out to the indices of the k largest of p [n], ascending. Among equals the lowest index wins;
 * NaNs are taken last. */
static void choose_experts(const float *p, uint32_t n, uint32_t k, uint32_t *out)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = held; /* out [held] stays sorted by p, descending */
        while (at > 0 && (p[i] > p[out[at - 1]] || (isnan(p[out[at - 1]]) && !isnan(p[i])))) at--;
        if (at == k) continue;
        if (held < k) held++;
        memmove(out + at + 1, out + at, (held - 1 - at) * sizeof *out);
        out[at] = i;
    }
    for (uint32_t i = 1; i < k; i++) {
        uint32_t one = out[i], at = i;
        for (; at > 0 && out[at - 1] > one; at--) out[at] = out[at - 1];
        out[at] = one;
    }
}

static void route_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    experts *e = ctx;
    for (size_t row = from; row < to; row++) {
        float *p = e->logits + row * e->n, *weights = e->weights + row * e->of_row, sum = 0.0f;
        uint32_t *chosen = e->chosen + row * e->of_row;
        softmax(p, e->n);
        choose_experts(p, e->n, e->of_row, chosen);
        for (uint32_t i = 0; i < e->of_row; i++) sum += weights[i] = p[chosen[i]];
        for (uint32_t i = 0; e->o.config->expert_norm && i < e->of_row; i++) weights[i] /= sum;
    }
}

/* Sorts entries by expert, each expert's rows ascending. */
static void sort_entries(experts *e, uint32_t n_rows)
{
    size_t entries = (size_t)n_rows * e->of_row;
    memset(e->first, 0, ((size_t)e->n + 1) * sizeof *e->first);
    for (size_t i = 0; i < entries; i++) e->first[e->chosen[i] + 1]++;
    for (uint32_t i = 0; i < e->n; i++) e->first[i + 1] += e->first[i];
    for (size_t i = 0; i < entries; i++) {
        uint32_t at = e->first[e->chosen[i]]++;
        e->rows[at] = (uint32_t)(i / e->of_row);
        e->shares[at] = e->weights[i];
    }
    for (uint32_t i = e->n; i > 0; i--) e->first[i] = e->first[i - 1];
    e->first[0] = 0;
}

/* ---- one expert ------------------------------------------------------------------------------ */

typedef struct expert_job {
    experts *e;
    const float *x;
    float *out;
    uint32_t first; /* entry of the expert's first row */
} expert_job;

static void gather_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const expert_job *j = ctx;
    size_t hidden = j->e->o.config->hidden;
    for (size_t i = from; i < to; i++)
        memcpy(j->e->in + i * hidden, j->x + j->e->rows[j->first + i] * hidden,
               hidden * sizeof *j->x);
}

static void scatter_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const expert_job *j = ctx;
    size_t hidden = j->e->o.config->hidden;
    for (size_t i = from; i < to; i++) {
        const float *part = j->e->part + i * hidden;
        float share = j->e->shares[j->first + i];
        float *out = j->out + j->e->rows[j->first + i] * hidden;
        for (size_t d = 0; d < hidden; d++) out[d] += share * part[d];
    }
}

/* ---- the shared expert, which every row uses ------------------------------------------------- */

static void switch_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const expert_job *j = ctx;
    size_t hidden = j->e->o.config->hidden;
    for (size_t row = from; row < to; row++) {
        float share = 1.0f / (1.0f + expf(-j->e->switches[row]));
        float *out = j->out + row * hidden;
        for (size_t d = 0; d < hidden; d++) out[d] *= share;
    }
}

/* Sets out to the shared expert's weighted output, or to zeros when there is none. */
static void run_shared(experts *e, const layer_weights *w, const float *x, uint32_t n_rows,
                       float *wide, float *act, float *out)
{
    kern_context *kc = e->o.kernels;
    size_t hidden = e->o.config->hidden, ffn = e->o.weights->slice.n_shared_ffn;
    if (ffn == 0) {
        memset(out, 0, n_rows * hidden * sizeof *out);
        return;
    }
    expert_job job = {.e = e, .out = out};
    kern_matmul(kc, &w->shared_switch, NULL, x, hidden, n_rows, e->switches, 1);
    kern_matmul(kc, &w->gate_up, NULL, x, hidden, n_rows, wide, 2 * ffn);
    kern_swiglu(kc, wide, n_rows, ffn, act);
    kern_matmul(kc, &w->down, NULL, act, ffn, n_rows, out, hidden);
    thread_pool_for(e->o.pool, n_rows, ROWS_AT_ONCE, switch_range, &job);
}

status experts_run(experts *e, const layer_weights *w, const float *x, uint32_t n_rows, float *wide,
                   float *act, float *out)
{
    kern_context *kc = e->o.kernels;
    size_t hidden = e->o.config->hidden;
    kern_matmul(kc, &w->router, NULL, x, hidden, n_rows, e->logits, e->n);
    thread_pool_for(e->o.pool, n_rows, ROWS_AT_ONCE, route_range, e);
    sort_entries(e, n_rows);
    run_shared(e, w, x, n_rows, wide, act, out);
    for (uint32_t i = 0; i < e->n; i++) {
        uint32_t n = e->first[i + 1] - e->first[i];
        const ffn_weights *f = &w->experts[i];
        expert_job job = {e, x, out, e->first[i]};
        if (n == 0) continue;
        if (atomic_load_explicit(e->o.interrupted, memory_order_relaxed))
            return status_make(STATUS_INTERNAL, "interrupted");
        thread_pool_for(e->o.pool, n, ROWS_AT_ONCE, gather_range, &job);
        kern_matmul(kc, &f->gate_up, NULL, e->in, hidden, n, wide, 2 * e->ffn);
        kern_swiglu(kc, wide, n, e->ffn, act);
        kern_matmul(kc, &f->down, NULL, act, e->ffn, n, e->part, hidden);
        thread_pool_for(e->o.pool, n, ROWS_AT_ONCE, scatter_range, &job);
    }
    return STATUS_IS_OK;
}
