/* A Llama forward pass in float64, one token after the other, that keeps the inputs of every
 * layer's attention. */
#ifndef TESTS_UNIT_MODEL_DENSE_H
#define TESTS_UNIT_MODEL_DENSE_H

#include "model/load/weights.h"
#include "model/rope.h"
#include "tests/unit/measure_naive.h"
#include "tests/unit/model_pass.h"

struct dense;
/* Clears seen[j] for each slot j <= t that row t does not read, of the KV head's n_slots. */
typedef void (*dense_reads_fn)(const struct dense *m, uint32_t layer, uint32_t kv_head, uint32_t t,
                               bool *seen);

typedef struct dense {
    const pass *pass;
    dense_reads_fn reads; /* NULL: every row reads everything */
    double *out;          /* [n, hidden] of the last layer */
    model_config config;
    thread_pool *pool;
    kern_context *kernels;
    model_weights weights;
    uint32_t n, position; /* tokens; RoPE position of the first */
    sequence *heads;      /* [layers, kv heads], as f32 pages hold them */
    float **unrotated;    /* [layers, kv heads] [n, q heads, head_dim] */
    float *inv_freq;
} dense;

static inline size_t dense_index(const dense *m, uint32_t layer, uint32_t head)
{
    return (size_t)layer * m->config.n_kv_heads + head;
}

/* y [m, w->n] = x [m, w->k] * W^T */
static inline void dense_product(const dense *m, const kern_matrix *w, const double *x, size_t rows,
                                 double *y)
{
    float *row = malloc(w->k * sizeof *row);
    for (size_t o = 0; o < w->n; o++) {
        kern_matrix_row(m->kernels, w, o, row);
        for (size_t t = 0; t < rows; t++) {
            double sum = 0;
            for (size_t i = 0; i < w->k; i++) sum += x[t * w->k + i] * row[i];
            y[t * w->n + o] = sum;
        }
    }
    free(row);
}

static inline void dense_norm(const dense *m, const double *x, const float *weight, double *out)
{
    size_t hidden = m->config.hidden;
    for (size_t t = 0; t < m->n; t++) {
        double square = 0;
        for (size_t i = 0; i < hidden; i++) square += x[t * hidden + i] * x[t * hidden + i];
        double scale = 1 / sqrt(square / (double)hidden + m->config.rms_eps);
        for (size_t i = 0; i < hidden; i++)
            out[t * hidden + i] = x[t * hidden + i] * scale * weight[i];
    }
}

/* out [head_dim] = x rotated to `position`. */
static inline void dense_rotate(const dense *m, uint32_t position, const double *x, double *out)
{
    float angles[256];
    rope_angles(m->inv_freq, m->config.head_dim, position, angles);
    rotate(angles, m->config.head_dim, x, out);
}

/* Splits one layer's q, k and v [n, width] by KV heads. */
static inline void dense_keep(dense *m, uint32_t layer, const double *qkv)
{
    const model_config *c = &m->config;
    uint32_t dim = c->head_dim, group = c->n_heads / c->n_kv_heads;
    size_t width = (size_t)(c->n_heads + 2 * c->n_kv_heads) * dim;
    double out[256];
    for (uint32_t h = 0; h < c->n_kv_heads; h++) {
        sequence *s = &m->heads[dense_index(m, layer, h)];
        size_t slots = (size_t)m->n * dim;
        *s = (sequence){{KERN_KV_F32, 16, dim}, m->n, group, NULL, NULL, NULL};
        s->k = malloc(slots * sizeof(float));
        s->v = malloc(slots * sizeof(float));
        s->q = malloc(slots * group * sizeof(float));
        float *raw = m->unrotated[dense_index(m, layer, h)] = malloc(slots * group * sizeof(float));
        for (uint32_t t = 0; t < m->n; t++) {
            const double *row = qkv + t * width, *k = row + (size_t)(c->n_heads + h) * dim;
            const double *v = k + (size_t)c->n_kv_heads * dim;
            dense_rotate(m, m->position + t, k, out);
            for (uint32_t d = 0; d < dim; d++) s->k[t * dim + d] = (float)out[d];
            for (uint32_t d = 0; d < dim; d++) s->v[t * dim + d] = (float)v[d];
            for (uint32_t g = 0; g < group; g++) {
                const double *q = row + (size_t)(h * group + g) * dim;
                size_t at = ((size_t)t * group + g) * dim;
                dense_rotate(m, m->position + t, q, out);
                for (uint32_t d = 0; d < dim; d++) s->q[at + d] = (float)out[d];
                for (uint32_t d = 0; d < dim; d++) raw[at + d] = (float)q[d];
            }
        }
    }
}

/* Leaves the attention a [t + 1] to the slots that the row reads. */
static inline void dense_mask(const dense *m, uint32_t layer, uint32_t kv_head, uint32_t t,
                              double *a)
{
    bool *seen = malloc(m->n);
    double sum = 0;
    memset(seen, true, m->n);
    m->reads(m, layer, kv_head, t, seen);
    for (uint32_t j = 0; j <= t; j++) sum += a[j] *= seen[j];
    for (uint32_t j = 0; j <= t; j++) a[j] /= sum;
    free(seen);
}

static inline void dense_attend(const dense *m, uint32_t layer, double *out)
{
    const model_config *c = &m->config;
    uint32_t dim = c->head_dim, group = c->n_heads / c->n_kv_heads;
    double *a = doubles(m->n);
    for (uint32_t h = 0; h < c->n_heads; h++) {
        const sequence *s = &m->heads[dense_index(m, layer, h / group)];
        for (uint32_t t = 0; t < m->n; t++) {
            double *o = out + ((size_t)t * c->n_heads + h) * dim;
            attention_row(s, s->q + ((size_t)t * group + h % group) * dim, t + 1, 1, a);
            if (m->reads) dense_mask(m, layer, h / group, t, a);
            memset(o, 0, dim * sizeof *o);
            for (uint32_t j = 0; j <= t; j++)
                for (uint32_t d = 0; d < dim; d++) o[d] += a[j] * s->v[(size_t)j * dim + d];
        }
    }
    free(a);
}

static inline void dense_layer(dense *m, uint32_t layer, double *x)
{
    const model_config *c = &m->config;
    const layer_weights *w = &m->weights.layers[layer];
    size_t n = m->n, hidden = c->hidden, ffn = c->ffn;
    double *normed = doubles(n * hidden), *delta = doubles(n * hidden);
    double *qkv = doubles(n * w->qkv.n), *attn = doubles(n * w->o.k);
    double *up = doubles(n * 2 * ffn), *act = doubles(n * ffn);
    dense_norm(m, x, w->attn_norm, normed);
    dense_product(m, &w->qkv, normed, n, qkv);
    dense_keep(m, layer, qkv);
    dense_attend(m, layer, attn);
    dense_product(m, &w->o, attn, n, delta);
    for (size_t i = 0; i < n * hidden; i++) x[i] += delta[i];
    dense_norm(m, x, w->ffn_norm, normed);
    dense_product(m, &w->gate_up, normed, n, up);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < ffn; i++) {
            double gate = up[t * 2 * ffn + i];
            act[t * ffn + i] = gate / (1 + exp(-gate)) * up[t * 2 * ffn + ffn + i];
        }
    dense_product(m, &w->down, act, n, delta);
    for (size_t i = 0; i < n * hidden; i++) x[i] += delta[i];
    free(normed);
    free(delta);
    free(qkv);
    free(attn);
    free(up);
    free(act);
}

static inline dense dense_run_reading(const pass *p, const uint32_t *tokens, uint32_t n,
                                      uint32_t position, dense_reads_fn reads)
{
    dense m = {.pass = p, .reads = reads, .n = n, .position = position};
    error err = {{0}};
    assert_true(
        status_ok(model_config_load(p->dir, &p->override, p->override != NULL, &m.config, &err)));
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &m.pool)));
    assert_true(
        status_ok(kern_create(&(kern_options){.pool = m.pool, .isa = "ref"}, &m.kernels, &err)));
    weights_options wanted = {.dir = p->dir,
                              .config = &m.config,
                              .dummy = p->override != NULL,
                              .type = DTYPE_F32,
                              .kernels = m.kernels,
                              .size = 1};
    if (!status_ok(weights_load(&wanted, &m.weights, &err))) fail_msg("%s", err.text);
    size_t heads = (size_t)m.config.n_layers * m.config.n_kv_heads, hidden = m.config.hidden;
    m.heads = calloc(heads, sizeof *m.heads);
    m.unrotated = calloc(heads, sizeof *m.unrotated);
    m.inv_freq = calloc(m.config.head_dim / 2, sizeof *m.inv_freq);
    rope_frequencies(&m.config.rope, m.config.head_dim, m.inv_freq);
    double *x = doubles(n * hidden);
    float *row = malloc(hidden * sizeof *row);
    for (uint32_t t = 0; t < n; t++) {
        kern_matrix_row(m.kernels, &m.weights.embed, tokens[t], row);
        for (size_t i = 0; i < hidden; i++) x[t * hidden + i] = row[i];
    }
    for (uint32_t l = 0; l < m.config.n_layers; l++) dense_layer(&m, l, x);
    free(row);
    m.out = x;
    return m;
}

static inline dense dense_run(const pass *p, const uint32_t *tokens, uint32_t n, uint32_t position)
{
    return dense_run_reading(p, tokens, n, position, NULL);
}

/* Logits [n, vocab_size] of all rows; malloc'd. */
static inline double *dense_logits(const dense *m)
{
    size_t n = m->n;
    double *normed = doubles(n * m->config.hidden), *logits = doubles(n * m->weights.head.n);
    dense_norm(m, m->out, m->weights.norm, normed);
    dense_product(m, &m->weights.head, normed, n, logits);
    free(normed);
    return logits;
}

static inline void dense_free(dense *m)
{
    for (size_t i = 0; i < (size_t)m->config.n_layers * m->config.n_kv_heads; i++) {
        free_sequence(&m->heads[i]);
        free(m->unrotated[i]);
    }
    free(m->out);
    free(m->heads);
    free(m->unrotated);
    free(m->inv_freq);
    weights_destroy(&m->weights);
    kern_destroy(m->kernels);
    thread_pool_destroy(m->pool);
}

#endif
