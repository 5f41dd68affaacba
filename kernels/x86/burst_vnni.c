/* The rates of vpdpbusd (unsigned times signed bytes) and of vpdpwssd (16 bits) from registers
 * alone (burst_avx2.c). */
#include "kernels/isa.h"

#include <immintrin.h>

/* The compiler sees lanes of 32 bits too: GCC 12 copies a __m512i, lanes of 64, to the stack and
 * back at each instruction of a chain. */
typedef int32_t sums_i32 __attribute__((vector_size(64)));

enum { CHAINS = 24 };

static double int_burst__vnni(size_t rounds, float *sink)
{
    const __m512i w = _mm512_set1_epi8(125), x = _mm512_set1_epi8(-3);
    sums_i32 sums[CHAINS];
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i32)_mm512_set1_epi32(c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++)
            sums[c] = (sums_i32)_mm512_dpbusd_epi32((__m512i)sums[c], w, x);
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++)
        *sink += (float)_mm_cvtsi128_si32(_mm512_castsi512_si128((__m512i)sums[c]));
    return 2.0 * 64 * CHAINS * (double)rounds;
}

static double pair_burst__vnni(size_t rounds, float *sink)
{
    const __m512i w = _mm512_set1_epi16(125), x = _mm512_set1_epi16(-3);
    sums_i32 sums[CHAINS];
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i32)_mm512_set1_epi32(c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++)
            sums[c] = (sums_i32)_mm512_dpwssd_epi32((__m512i)sums[c], w, x);
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++)
        *sink += (float)_mm_cvtsi128_si32(_mm512_castsi512_si128((__m512i)sums[c]));
    return 2.0 * 32 * CHAINS * (double)rounds;
}

void kern_burst_fill_vnni(kern_isa *isa)
{
    isa->int_burst = int_burst__vnni;
    isa->pair_burst = pair_burst__vnni;
}
