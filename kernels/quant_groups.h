/* kernels, private: one group of weights to integers, in lanes of eight that every ISA compiles to
 * its own registers. Nothing here is contracted, so all give the same bits. */
#ifndef KERNELS_QUANT_GROUPS_H
#define KERNELS_QUANT_GROUPS_H

#include "base/base.h"

#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define QUANT_INLINE static inline __attribute__((always_inline))

enum {
    QUANT_LANES = 8,
    QUANT_TRIES = 10,  /* scales that 4 bits choose from */
    QUANT_TRIES_8 = 8, /* ... and 8 bits: more gain nothing that can be told from luck */
};

#define QUANT_FIRST_TRY 7.0f      /* the largest weight becomes so much, ... */
#define QUANT_TRY_STEP  0.25f     /* ... and so much more in each further try, cut at 8 */
#define QUANT_SMALLEST  0x1p-100f /* below it a group is zeros: its inverse might be infinite */

/* To the nearest integer, even ones first, of |x| < 2^22. */
QUANT_INLINE float quant_round(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

QUANT_INLINE float quant_clamp(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* The bits of the largest |w|: those of infinity and NaN are above all others. */
QUANT_INLINE uint32_t quant_largest_bits(const float *w, unsigned group)
{
    int32_t lanes[QUANT_LANES] = {0}, max = 0;
    for (unsigned i = 0; i < group; i += QUANT_LANES)
        for (unsigned l = 0; l < QUANT_LANES; l++) {
            int32_t bits;
            memcpy(&bits, w + i + l, sizeof bits);
            bits &= 0x7fffffff;
            lanes[l] = bits > lanes[l] ? bits : lanes[l];
        }
    for (unsigned l = 0; l < QUANT_LANES; l++) max = lanes[l] > max ? lanes[l] : max;
    return (uint32_t)max;
}

QUANT_INLINE float quant_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* True when a group has no scale to be found: it is zeros, or not finite, which *scale then says.
 */
QUANT_INLINE bool quant_special(uint32_t largest, unsigned group, int8_t *q, uint16_t *scale)
{
    bool finite = largest < 0x7f800000u;
    if (finite && quant_float(largest) >= QUANT_SMALLEST) return false;
    memset(q, 0, group);
    *scale = finite ? 0 : 0x7fc0; /* NaN */
    return true;
}

QUANT_INLINE void quant_write(const float *w, unsigned group, float inverse, float low, float high,
                              int8_t *q)
{
    for (unsigned i = 0; i < group; i++)
        q[i] = (int8_t)(int32_t)quant_round(quant_clamp(w[i] * inverse, low, high));
}

/* K or V of one token and head. To the nearest scale, the largest becomes 127 or -127 whichever way
 * that went: what is read back and written again stays the same bits. */
QUANT_INLINE uint16_t quant_kv_8(const float *x, unsigned head_dim, int8_t *q)
{
    uint16_t scale;
    uint32_t largest = quant_largest_bits(x, head_dim);
    if (quant_special(largest, head_dim, q, &scale)) return scale;
    scale = bf16_from_f32(quant_float(largest) / 127.0f);
    quant_write(x, head_dim, 1.0f / bf16_to_f32(scale), -127.0f, 127.0f, q);
    return scale;
}

QUANT_INLINE float quant_sum_lanes(const float *v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

#if defined(__AVX2__)
/* The same sum in the same order. */
QUANT_INLINE float quant_sum_vector(__m256 v)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

/* Square error of v = w * inverse as integers, in units of that scale's square. */
#if defined(__AVX2__)
QUANT_INLINE float quant_try_8(const float *w, unsigned group, float inverse)
{
    const __m256 by = _mm256_set1_ps(inverse), magic = _mm256_set1_ps(0x1.8p23f);
    __m256 square = _mm256_setzero_ps();
    for (unsigned i = 0; i < group; i += QUANT_LANES) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(w + i), by);
        __m256 e = _mm256_sub_ps(v, _mm256_sub_ps(_mm256_add_ps(v, magic), magic));
        square = _mm256_add_ps(square, _mm256_mul_ps(e, e));
    }
    return quant_sum_vector(square);
}
#else
QUANT_INLINE float quant_try_8(const float *w, unsigned group, float inverse)
{
    float lanes[QUANT_LANES] = {0};
    for (unsigned i = 0; i < group; i += QUANT_LANES)
        for (unsigned l = 0; l < QUANT_LANES; l++) {
            float v = w[i + l] * inverse, e = v - quant_round(v);
            lanes[l] += e * e;
        }
    return quant_sum_lanes(lanes);
}
#endif

/* The smallest bf16 at which the largest weight still fits, or one of those that follow: which of
 * them the weights happen to lie near the steps of. */
QUANT_INLINE uint16_t quant_group_8(const float *w, unsigned group, int8_t *q)
{
    uint16_t scale;
    uint32_t largest = quant_largest_bits(w, group), bits;
    if (quant_special(largest, group, q, &scale)) return scale;
    float exact = quant_float(largest) / 127.0f, best = INFINITY;
    memcpy(&bits, &exact, sizeof bits);
    uint16_t first = (uint16_t)((bits + 0xffff) >> 16);
    scale = first;
    for (uint16_t i = 0; i < QUANT_TRIES_8; i++) {
        float size = bf16_to_f32((uint16_t)(first + i));
        float e = quant_try_8(w, group, 1.0f / size) * (size / exact) * (size / exact);
        scale = e < best ? (uint16_t)(first + i) : scale;
        best = e < best ? e : best;
    }
    quant_write(w, group, 1.0f / bf16_to_f32(scale), -127.0f, 127.0f, q);
    return scale;
}

/* Integers q of v = w * inverse explain <v, q>^2 / <q, q> of v's square, at *fit times the scale
 * that inverse is of. */
#if defined(__AVX2__)
QUANT_INLINE float quant_try_4(const float *w, unsigned group, float inverse, float *fit)
{
    /* Compilers leave the lanes below apart: ten times as slow. */
    const __m256 by = _mm256_set1_ps(inverse), magic = _mm256_set1_ps(0x1.8p23f);
    const __m256 low = _mm256_set1_ps(-8.0f), high = _mm256_set1_ps(7.0f);
    __m256 vq = _mm256_setzero_ps(), qq = vq;
    for (unsigned i = 0; i < group; i += QUANT_LANES) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(w + i), by);
        __m256 q = _mm256_min_ps(_mm256_max_ps(v, low), high);
        q = _mm256_sub_ps(_mm256_add_ps(q, magic), magic);
        vq = _mm256_add_ps(vq, _mm256_mul_ps(v, q));
        qq = _mm256_add_ps(qq, _mm256_mul_ps(q, q));
    }
    float explained = quant_sum_vector(vq);
    *fit = explained / quant_sum_vector(qq);
    return explained * *fit;
}
#else
QUANT_INLINE float quant_try_4(const float *w, unsigned group, float inverse, float *fit)
{
    float vq[QUANT_LANES] = {0}, qq[QUANT_LANES] = {0};
    for (unsigned i = 0; i < group; i += QUANT_LANES)
        for (unsigned l = 0; l < QUANT_LANES; l++) {
            float v = w[i + l] * inverse, q = quant_round(quant_clamp(v, -8.0f, 7.0f));
            vq[l] += v * q;
            qq[l] += q * q;
        }
    *fit = quant_sum_lanes(vq) / quant_sum_lanes(qq);
    return quant_sum_lanes(vq) * *fit;
}
#endif

/* The end of [-8, 7] that reaches further is the largest weight's: the scale may be negative. */
QUANT_INLINE uint16_t quant_group_4(const float *w, unsigned group, int8_t *q)
{
    uint16_t special;
    uint32_t largest = quant_largest_bits(w, group);
    if (quant_special(largest, group, q, &special)) return special;
    float signed_largest = quant_float(largest);
    for (unsigned i = 0; i < group; i++)
        if (w[i] == -quant_float(largest)) signed_largest = w[i];
    float best = -1.0f, best_scale = 0.0f;
    for (int i = 0; i < QUANT_TRIES; i++) {
        float fit, top = QUANT_FIRST_TRY + QUANT_TRY_STEP * (float)i;
        float explained = quant_try_4(w, group, -top / signed_largest, &fit) / (top * top);
        best_scale = explained > best ? fit * (signed_largest / -top) : best_scale;
        best = explained > best ? explained : best;
    }
    uint16_t scale = bf16_from_f32(best_scale);
    quant_write(w, group, 1.0f / bf16_to_f32(scale), -8.0f, 7.0f, q);
    return scale;
}

#endif
