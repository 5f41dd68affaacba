/* The rate of vdpbf16ps from registers alone (burst_avx2.c). */
#include "kernels/isa.h"

#include <immintrin.h>

static double dot_burst__bf16(size_t rounds, float *sink)
{
    enum { CHAINS = 24 };
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 sums[CHAINS];
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_set1_ps((float)c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_dpbf16_ps(sums[c], ones, ones);
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) *sink += _mm512_cvtss_f32(sums[c]);
    return 2.0 * 32 * CHAINS * (double)rounds;
}

void kern_burst_fill_bf16(kern_isa *isa) { isa->dot_burst = dot_burst__bf16; }
