/* kernels, private: a group of x to integers, as kernels/ref/quant.c does it. Included by AVX-512
 * files only. */
#ifndef KERNELS_X86_QUANT_AVX512_H
#define KERNELS_X86_QUANT_AVX512_H

#include "kernels/quant_groups.h"

#include <immintrin.h>
#include <math.h>

static inline void quant_x_avx512(const float *x, unsigned group, int8_t *q, float *scale,
                                  int32_t *sum)
{
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (unsigned i = 0; i < group; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + i));
        max = _mm512_max_epi32(max, _mm512_and_si512(bits, size));
    }
    const uint32_t largest = (uint32_t)_mm512_reduce_max_epi32(max);
    const bool finite = largest < 0x7f800000u;
    *sum = 0;
    *scale = finite ? 0.0f : NAN;
    if (!finite || quant_float(largest) < QUANT_SMALLEST) {
        memset(q, 0, group);
        return;
    }
    *scale = quant_float(largest) / 127.0f;
    const __m512 inverse = _mm512_set1_ps(127.0f / quant_float(largest));
    __m512i total = _mm512_setzero_si512();
    for (unsigned i = 0; i < group; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
        total = _mm512_add_epi32(total, v);
        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtsepi32_epi8(v));
    }
    *sum = _mm512_reduce_add_epi32(total);
}

#endif
