/* Shared by the tests of attention and of measures: one KV head's K, V and Q, plain and in
 * pages. */
#ifndef TESTS_UNIT_KERNELS_TABLES_H
#define TESTS_UNIT_KERNELS_TABLES_H

#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a sequence of one KV head: plain K, V, Q and its pages ---- */

typedef struct sequence {
    kern_kv_shape shape;
    uint32_t n_slots, q_heads;
    float *k, *v; /* [n_slots, head_dim], as the pages hold them: rounded to the page type */
    float *q;     /* [n_slots, q_heads, head_dim] */
} sequence;

/* The pages of a sequence and their table. */
typedef struct layout {
    uint8_t *memory;
    uint32_t *pages;
    uint8_t *tiles;
    size_t page_stride;
} layout;

static inline float *random_floats(rng *r, size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = rng_normal(r) * scale;
    return x;
}

static inline float rounded(dtype t, float x)
{
    return t == DTYPE_F32    ? x
           : t == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x))
                             : f16_to_f32(f16_from_f32(x));
}

/* Rounds a row of K or V to the page format. */
static inline void round_row(kern_kv_format format, size_t n, float *x)
{
    if (format != KERN_KV_INT8) {
        for (size_t i = 0; i < n; i++) x[i] = rounded((dtype)format, x[i]);
        return;
    }
    float largest = 0.0f;
    for (size_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    float scale = rounded(DTYPE_BF16, largest / 127.0f);
    for (size_t i = 0; i < n; i++) x[i] = scale * rintf(x[i] * (1.0f / scale));
}

static inline sequence make_sequence(rng *r, kern_kv_format type, uint32_t page_tokens,
                                     uint32_t head_dim, uint32_t q_heads, uint32_t n_slots)
{
    sequence s = {{type, page_tokens, head_dim}, n_slots, q_heads, NULL, NULL, NULL};
    size_t n = (size_t)n_slots * head_dim;
    s.k = random_floats(r, n, 1.0f);
    s.v = random_floats(r, n, 1.0f);
    s.q = random_floats(r, n * q_heads, 1.5f);
    for (size_t i = 0; i < n; i += head_dim) {
        round_row(type, head_dim, s.k + i);
        round_row(type, head_dim, s.v + i);
    }
    return s;
}

static inline void free_sequence(sequence *s)
{
    free(s->k);
    free(s->v);
    free(s->q);
}

/* Puts the first n_slots of s in pages of random ids, `lead` bytes into pages of a random stride;
 * all other memory holds NaNs. */
static inline layout make_layout(const kern_context *kc, rng *r, const sequence *s,
                                 uint32_t n_slots)
{
    layout l = {0};
    size_t tile = kern_kv_tile_bytes(&s->shape), n_pages = n_slots / s->shape.page_tokens + 1;
    size_t pool_pages = n_pages + rng_below(r, 5), lead = tile * rng_below(r, 3);
    l.page_stride = tile * (1 + rng_below(r, 3)) + lead;
    size_t bytes = (l.page_stride * pool_pages + 63) / 64 * 64;
    l.memory = aligned_alloc(64, bytes);
    l.pages = malloc(pool_pages * sizeof *l.pages);
    assert_non_null(l.memory);
    assert_non_null(l.pages);
    memset(l.memory, 0xff, bytes);
    l.tiles = l.memory + lead;
    for (uint32_t p = 0; p < pool_pages; p++) l.pages[p] = p;
    for (uint32_t p = (uint32_t)pool_pages; p > 1; p--) {
        uint32_t other = rng_below(r, p), t = l.pages[p - 1];
        l.pages[p - 1] = l.pages[other];
        l.pages[other] = t;
    }
    for (uint32_t i = 0; i < n_slots; i++)
        kern_kv_write(kc, &s->shape, l.tiles + l.pages[i / s->shape.page_tokens] * l.page_stride,
                      i % s->shape.page_tokens, s->k + (size_t)i * s->shape.head_dim,
                      s->v + (size_t)i * s->shape.head_dim);
    return l;
}

static inline void free_layout(layout *l)
{
    free(l->memory);
    free(l->pages);
}

#endif
