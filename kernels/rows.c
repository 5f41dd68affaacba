/* Row operations, op level: rows over the pool, few rows on the calling thread. */
#include "kernels/context.h"

#include <assert.h>

/* Elements of a piece: a few microseconds of work, more than it costs to hand out. A single piece
 * runs on the calling thread. */
#define PIECE_ELEMENTS 16384

static size_t grain(size_t d) { return d < PIECE_ELEMENTS ? PIECE_ELEMENTS / d : 1; }

typedef struct norm_job {
    const kern_isa *isa;
    const float *x, *weight;
    float *sum; /* x, written, when delta is added to it */
    const float *delta;
    float eps;
    size_t d;
    float *out;
} norm_job;

static void norm_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const norm_job *j = ctx;
    for (size_t i = from; i < to; i++) {
        size_t at = i * j->d;
        if (j->delta)
            j->isa->add_rmsnorm(j->sum + at, j->delta + at, j->weight, j->eps, j->d, j->out + at);
        else j->isa->rmsnorm(j->x + at, j->weight, j->eps, j->d, j->out + at);
    }
}

void kern_rmsnorm(kern_context *kc, const float *x, const float *weight, float eps, size_t m,
                  size_t d, float *out)
{
    assert(d > 0);
    norm_job job = {.isa = &kc->isa, .x = x, .weight = weight, .eps = eps, .d = d, .out = out};
    thread_pool_for(kc->pool, m, grain(d), norm_rows, &job);
}

void kern_add_rmsnorm(kern_context *kc, float *x, const float *delta, const float *weight,
                      float eps, size_t m, size_t d, float *out)
{
    assert(d > 0);
    norm_job job = {&kc->isa, x, weight, x, delta, eps, d, out};
    thread_pool_for(kc->pool, m, grain(d), norm_rows, &job);
}

typedef struct heads_job {
    const kern_isa *isa;
    float *x;
    size_t row_stride;
    const float *weight;
    float eps;
    size_t n_heads, head_dim;
} heads_job;

static void norm_heads(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const heads_job *j = ctx;
    for (size_t i = from; i < to; i++)
        for (size_t h = 0; h < j->n_heads; h++) {
            float *x = j->x + i * j->row_stride + h * j->head_dim;
            j->isa->rmsnorm(x, j->weight, j->eps, j->head_dim, x);
        }
}

void kern_rmsnorm_heads(kern_context *kc, float *x, size_t row_stride, const float *weight,
                        float eps, size_t m, size_t n_heads, size_t head_dim)
{
    assert(head_dim > 0);
    heads_job job = {&kc->isa, x, row_stride, weight, eps, n_heads, head_dim};
    thread_pool_for(kc->pool, m, grain(n_heads * head_dim), norm_heads, &job);
}

typedef struct swiglu_job {
    const kern_isa *isa;
    const float *gate_up;
    size_t d;
    float *out;
} swiglu_job;

static void swiglu_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const swiglu_job *j = ctx;
    for (size_t i = from; i < to; i++) {
        const float *gate = j->gate_up + i * 2 * j->d;
        j->isa->swiglu(gate, gate + j->d, j->d, j->out + i * j->d);
    }
}

void kern_swiglu(kern_context *kc, const float *gate_up, size_t m, size_t d, float *out)
{
    assert(d > 0);
    swiglu_job job = {&kc->isa, gate_up, d, out};
    thread_pool_for(kc->pool, m, grain(d), swiglu_rows, &job);
}

typedef struct geglu_job {
    const kern_isa *isa;
    float *gate_up;
    size_t d;
    float *out;
} geglu_job;

/* gelu(g) = g sigmoid(z) with z = g s, s = sqrt(8 / pi) (1 + 0.044715 g^2): silu(z) / s. */
static void geglu_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const float slope = 1.5957691216057308f, cubic = 0.044715f;
    const geglu_job *j = ctx;
    for (size_t i = from; i < to; i++) {
        float *gate = j->gate_up + i * 2 * j->d, *up = gate + j->d;
        for (size_t k = 0; k < j->d; k++) {
            float s = slope * (1.0f + cubic * gate[k] * gate[k]);
            gate[k] *= s;
            up[k] /= s;
        }
        j->isa->swiglu(gate, up, j->d, j->out + i * j->d);
    }
}

void kern_geglu(kern_context *kc, float *gate_up, size_t m, size_t d, float *out)
{
    assert(d > 0);
    geglu_job job = {&kc->isa, gate_up, d, out};
    thread_pool_for(kc->pool, m, grain(d), geglu_rows, &job);
}

typedef struct rope_job {
    const kern_isa *isa;
    float *x;
    size_t row_stride;
    const float *cos_sin;
    size_t n_heads, head_dim;
} rope_job;

static void rope_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const rope_job *j = ctx;
    for (size_t i = from; i < to; i++)
        j->isa->rope(j->x + i * j->row_stride, j->cos_sin + i * j->head_dim, j->n_heads,
                     j->head_dim);
}

void kern_rope(kern_context *kc, float *x, size_t row_stride, const float *cos_sin, size_t m,
               size_t n_heads, size_t head_dim)
{
    assert(head_dim > 0 && head_dim % 2 == 0);
    rope_job job = {&kc->isa, x, row_stride, cos_sin, n_heads, head_dim};
    thread_pool_for(kc->pool, m, grain(n_heads * head_dim), rope_rows, &job);
}
