/* kernels, private: quantises a group of x, as kernels/ref/quant.c does. Included by AVX-512 files
 * only. */
#ifndef KERNELS_X86_QUANT_AVX512_H
#define KERNELS_X86_QUANT_AVX512_H

#include "kernels/quant_groups.h"

#include <immintrin.h>
#include <math.h>

static inline uint32_t quant_largest_avx512(const float *x, unsigned group)
{
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (unsigned i = 0; i < group; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + i));
        max = _mm512_max_epi32(max, _mm512_and_si512(bits, size));
    }
    return (uint32_t)_mm512_reduce_max_epi32(max);
}

static inline __m512i quant_integers_avx512(const float *x, float inverse)
{
    __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse));
    return _mm512_cvtps_epi32(v);
}

static inline void quant_x8_avx512(const float *x, unsigned group, int8_t *q, float *scale,
                                   int32_t *sum)
{
    const float inverse = quant_scale_of(quant_largest_avx512(x, group), 127.0f, scale);
    *sum = 0;
    if (inverse == 0.0f) {
        memset(q, 0, group);
        return;
    }
    __m512i total = _mm512_setzero_si512();
    for (unsigned i = 0; i < group; i += 16) {
        __m512i v = quant_integers_avx512(x + i, inverse);
        total = _mm512_add_epi32(total, v);
        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtsepi32_epi8(v));
    }
    *sum = _mm512_reduce_add_epi32(total);
}

#endif
