/* kernels, private: rows of x as bf16, for blocks of dot products. Included by files with
 * AVX512-BF16 only.
 *
 * Standard precision rounds x once. High precision writes x as the sum of two bf16, which keeps at
 * least 16 of the 24 bits of x, because for some models rounding x once moves the logits more than
 * rounding the weights does. */
#ifndef KERNELS_X86_PACK_BF16_H
#define KERNELS_X86_PACK_BF16_H

#include "kernels/isa.h"

#include <immintrin.h>
#include <math.h>

/* x less its rounding, exactly; 0 where the difference is NaN, so that infinities and NaNs of x
 * stay. */
static inline __m512 rest_of(__m512 x, __m256i rounded)
{
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
    __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(bits));
    __mmask16 finite =
        _mm512_cmp_ps_mask(_mm512_abs_ps(rest), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    return _mm512_maskz_mov_ps(finite, rest);
}

/* kern_dot_ops.pack of standard precision: units of 32 columns. */
static void pack_bf16_row(const float *x, size_t units, unsigned group, size_t rows, size_t r,
                          uint8_t *out)
{
    (void)group;
    out += r * 64;
    for (; units > 0; units--, x += 32, out += rows * 64) {
        __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* kern_dot_ops.pack of high precision. */
static void pack_bf16_row_high(const float *x, size_t units, unsigned group, size_t rows, size_t r,
                               uint8_t *out)
{
    (void)group;
    out += r * 64;
    for (; units > 0; units--, x += 32, out += 2 * rows * 64) {
        __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        low = rest_of(low, _mm512_castsi512_si256(rounded));
        high = rest_of(high, _mm512_extracti64x4_epi64(rounded, 1));
        _mm512_store_si512(out, rounded);
        _mm512_store_si512(out + rows * 64, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

#endif
