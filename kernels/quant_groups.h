/* kernels, private: quantises one group of weights, in lanes of eight that the compiler turns into
 * each ISA's registers. Nothing here is contracted, so all ISAs give the same bits. */
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
    QUANT_GROUP_MAX = 128,
    QUANT_TRIES = 10,   /* scales that are tried for 4 bits */
    QUANT_TRIES_8 = 16, /* for 8 bits; more tries gain nothing measurable */
    /* Columns of a group of block floats, the largest |w|, and the largest |x| beside it. The sum
     * of a group's products stays below 2^31. */
    QUANT_GROUP_12 = 64,
    QUANT_MOST_12 = 2047,
    QUANT_X_MOST_12 = 16383,
};

#define QUANT_FIRST_TRY 7.0f      /* value of the largest weight in the first try */
#define QUANT_TRY_STEP  0.25f     /* what each further try adds to it, up to 8 */
#define QUANT_SMALLEST  0x1p-100f /* below it a group is zeros: its inverse might be infinite */

/* Rounds |x| < 2^22 to the nearest integer, ties to even. */
QUANT_INLINE float quant_round(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

QUANT_INLINE float quant_clamp(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* The bits of the largest |w|. As integers, the bits of infinity and NaN are above all others. */
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

/* True when a group has no usable scale: it is all zeros or not finite. *scale says which. */
QUANT_INLINE bool quant_special(uint32_t largest, unsigned group, int8_t *q, uint16_t *scale)
{
    bool finite = largest < 0x7f800000u;
    if (finite && quant_float(largest) >= QUANT_SMALLEST) return false;
    memset(q, 0, group);
    *scale = finite ? 0 : 0xffff; /* NaN, with a sign and without */
    return true;
}

/* Sets the scale at which the group's largest |x| becomes `most`, and returns its inverse: 0 for a
 * group of zeros or one that is not finite. */
QUANT_INLINE float quant_scale_of(uint32_t largest, float most, float *scale)
{
    float max = quant_float(largest);
    bool finite = largest < 0x7f800000u, some = finite && max >= QUANT_SMALLEST;
    *scale = some ? max / most : finite ? 0.0f : NAN;
    return some ? most / max : 0.0f;
}

/* A stored scale as f32. For 4 bits it is a bf16; for 8 and 12 bits it is never negative, and is
 * an f32 without its sign and its last 15 bits. */
QUANT_INLINE float quant_scale(unsigned bits, uint16_t scale)
{
    return quant_float((uint32_t)scale << (bits == 4 ? 16 : 15));
}

QUANT_INLINE void quant_write(const float *w, unsigned group, float inverse, float low, float high,
                              int8_t *q)
{
    for (unsigned i = 0; i < group; i++)
        q[i] = (int8_t)(int32_t)quant_round(quant_clamp(w[i] * inverse, low, high));
}

/* Quantises K or V of one token and head. The largest |x| becomes 127 or -127 even though the scale
 * is rounded, so reading back and writing again gives the same bits. */
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
/* quant_sum_lanes of a vector, in the same order. */
QUANT_INLINE float quant_sum_vector(__m256 v)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* Squared errors of u / 256 * inverses[i] / 32768 as integers, in units of 1 / 65536. The scaled u
 * is rounded to 16 bits first, so the sums are exact and their order changes nothing. */
#if defined(__AVX2__)
QUANT_INLINE void quant_try_8(const int16_t *u, unsigned group, const int16_t *inverses, int32_t *e)
{
    __m256i sums[8];
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) {
        const __m256i by = _mm256_set1_epi16(inverses[t]);
        sums[t] = _mm256_setzero_si256();
        for (unsigned i = 0; i < group; i += 16) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(u + i));
            v = _mm256_slli_epi16(_mm256_mulhrs_epi16(v, by), 8);
            v = _mm256_srai_epi16(v, 8);
            sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(v, v));
        }
    }
    __m256i a = _mm256_hadd_epi32(sums[0], sums[1]), b = _mm256_hadd_epi32(sums[2], sums[3]);
    __m256i c = _mm256_hadd_epi32(sums[4], sums[5]), d = _mm256_hadd_epi32(sums[6], sums[7]);
    a = _mm256_hadd_epi32(a, b);
    c = _mm256_hadd_epi32(c, d);
    b = _mm256_permute2x128_si256(a, c, 0x20);
    d = _mm256_permute2x128_si256(a, c, 0x31);
    _mm256_storeu_si256((__m256i *)(void *)e, _mm256_add_epi32(b, d));
}
#else
QUANT_INLINE void quant_try_8(const int16_t *u, unsigned group, const int16_t *inverses, int32_t *e)
{
    for (int t = 0; t < 8; t++) {
        e[t] = 0;
        for (unsigned i = 0; i < group; i++) {
            int v = (u[i] * inverses[t] + (1 << 14)) >> 15;
            e[t] += (int8_t)v * (int8_t)v;
        }
    }
}
#endif

/* q = w * by, rounded to the nearest. */
#if defined(__AVX2__)
QUANT_INLINE void quant_to_16(const float *w, unsigned group, float by, int16_t *q)
{
    for (unsigned i = 0; i < group; i += 16) {
        __m256 a = _mm256_mul_ps(_mm256_loadu_ps(w + i), _mm256_set1_ps(by));
        __m256 b = _mm256_mul_ps(_mm256_loadu_ps(w + i + 8), _mm256_set1_ps(by));
        __m256i v = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
        v = _mm256_permute4x64_epi64(v, 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + i), v);
    }
}
#else
QUANT_INLINE void quant_to_16(const float *w, unsigned group, float by, int16_t *q)
{
    for (unsigned i = 0; i < group; i++) q[i] = (int16_t)(int32_t)quant_round(w[i] * by);
}
#endif

/* Tries the smallest scale at which the largest weight still fits and the next larger ones, and
 * takes the one with the least squared error. */
QUANT_INLINE uint16_t quant_group_8(const float *w, unsigned group, int8_t *q)
{
    uint16_t scale;
    int16_t u[QUANT_GROUP_MAX], inverses[QUANT_TRIES_8];
    int32_t errors[QUANT_TRIES_8];
    float shares[QUANT_TRIES_8], best = INFINITY;
    uint32_t largest = quant_largest_bits(w, group), bits;
    if (quant_special(largest, group, q, &scale)) return scale;
    float max = quant_float(largest), exact = max / 127.0f;
    memcpy(&bits, &exact, sizeof bits);
    uint32_t first = (bits + 0x7fff) >> 15;
    for (uint32_t t = 0; t < QUANT_TRIES_8; t++) {
        shares[t] = exact / quant_float((first + t) << 15);
        float inverse = quant_round(shares[t] * 32768.0f);
        inverses[t] = (int16_t)(inverse < 32767.0f ? inverse : 32767.0f);
    }
    quant_to_16(w, group, 127.0f * 256.0f / max, u);
    for (int t = 0; t < QUANT_TRIES_8; t += 8) quant_try_8(u, group, inverses + t, errors + t);
    uint32_t chosen = 0;
    for (uint32_t t = 0; t < QUANT_TRIES_8; t++) {
        float e = (float)errors[t] / (shares[t] * shares[t]);
        chosen = e < best ? t : chosen;
        best = e < best ? e : best;
    }
    quant_to_16(w, group, 1.0f / quant_float((first + chosen) << 15), u);
    for (unsigned i = 0; i < group; i++) q[i] = (int8_t)u[i];
    return (uint16_t)(first + chosen);
}

/* ---- 12 bits --------------------------------------------------------------------------------- */

/* Block floating point: the scale is the power of two at which the largest |w| has 11 bits. So the
 * 8 bits of a bf16 stay exact down to an eighth of the group's largest. */
QUANT_INLINE uint16_t quant_group_12(const float *w, unsigned group, int16_t *q)
{
    const uint32_t largest = quant_largest_bits(w, group), exponent = largest >> 23;
    const bool finite = largest < 0x7f800000u;
    if (!finite || quant_float(largest) < QUANT_SMALLEST) {
        memset(q, 0, group * sizeof *q);
        return finite ? 0 : 0xffff;
    }
    /* At most 2048 before it is cut: the largest |w| may round up to 12 bits. */
    quant_to_16(w, group, quant_float((264 - exponent) << 23), q);
    for (unsigned i = 0; i < group; i++) {
        const int16_t v = q[i] < QUANT_MOST_12 ? q[i] : QUANT_MOST_12;
        q[i] = v > -QUANT_MOST_12 ? v : -QUANT_MOST_12;
    }
    return (uint16_t)((exponent - 10) << 8);
}

/* The byte of a row's first column in 32 bytes of a panel's pair of columns (kernels.h). */
QUANT_INLINE size_t quant_place_12(size_t row)
{
    return row / 4 % 2 * 16 + row / 8 * 8 + row % 4 * 2;
}

/* Writes a row's group into that of its panel. */
QUANT_INLINE void quant_put_12(const int16_t *q, unsigned group, size_t row, uint8_t *panel)
{
    uint8_t low[QUANT_GROUP_12], high[QUANT_GROUP_12];
    uint8_t *to = panel + quant_place_12(row);
    for (unsigned i = 0; i < group; i++) low[i] = (uint8_t)q[i];
    for (unsigned i = 0; i < group; i++) high[i] = (uint8_t)((uint16_t)q[i] >> 8 & 15);
    for (unsigned i = 0; i < group; i += 8, to += 192) {
        for (unsigned half = 0; half < 2; half++) {
            const uint8_t *h = high + i + 4 * half;
            to[32 * half] = (uint8_t)(h[0] | h[2] << 4);
            to[32 * half + 1] = (uint8_t)(h[1] | h[3] << 4);
        }
        for (unsigned pair = 0; pair < 4; pair++)
            memcpy(to + 64 + 32 * pair, low + i + 2 * pair, 2);
    }
}

/* The weight of column k of a group of a panel. */
QUANT_INLINE int quant_get_12(const uint8_t *panel, size_t k, size_t row)
{
    const uint8_t *at = panel + k / 8 * 192 + quant_place_12(row) + k % 2;
    const size_t pair = k % 8 / 2;
    const int high = at[32 * (pair / 2)] >> (pair % 2 * 4) & 15;
    return ((high ^ 8) - 8) * 256 + at[64 + 32 * pair];
}

/* ---- 4 bits ---------------------------------------------------------------------------------- */

/* For v = w * inverse rounded to q: returns how much of v's square q explains, <v, q>^2 / <q, q>.
 * The best scale for q is *fit times the scale that inverse belongs to. */
#if defined(__AVX2__)
QUANT_INLINE float quant_try_4(const float *w, unsigned group, float inverse, float *fit)
{
    /* Intrinsics, because compilers do not vectorise the loop below: ten times as slow. */
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

/* The largest weight gets the sign of the longer end of [-8, 7], so the scale may be negative. */
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
