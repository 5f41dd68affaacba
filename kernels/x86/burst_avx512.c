/* The rate of AVX-512 without dot product instructions from registers alone (burst_avx2.c). */
#include "kernels/isa.h"

#include <immintrin.h>

enum { CHAINS = 24 };

static double fma_burst__avx512(size_t rounds, float *sink)
{
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    __m512 sums[CHAINS];
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_set1_ps((float)c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_fmadd_ps(sums[c], a, b);
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) *sink += _mm512_cvtss_f32(sums[c]);
    return 2.0 * 16 * CHAINS * (double)rounds;
}

/* The compiler sees lanes of 16 bits too: GCC 12 copies a __m512i, lanes of 64, to the stack at
 * each instruction of a chain. */
typedef int16_t sums_i16 __attribute__((vector_size(64)));

static double int_burst__avx512(size_t rounds, float *sink)
{
    const __m512i x = _mm512_set1_epi8(-3);
    sums_i16 sums[CHAINS];
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i16)_mm512_set1_epi16((int16_t)c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++)
            sums[c] = (sums_i16)_mm512_maddubs_epi16((__m512i)sums[c], x);
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++)
        *sink += (float)_mm_cvtsi128_si32(_mm512_castsi512_si128((__m512i)sums[c]));
    return 2.0 * 64 * CHAINS * (double)rounds;
}

void kern_burst_fill_avx512(kern_isa *isa)
{
    isa->fma_burst = fma_burst__avx512;
    isa->int_burst = int_burst__avx512;
}
