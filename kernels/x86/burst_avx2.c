/* The rate of AVX2 from registers alone, the limit that speeds are compared with. 12 chains
 * keep two pipes of latency 5 busy and leave registers for the operands. */
#include "kernels/isa.h"

#include <immintrin.h>

enum { CHAINS = 12 };

static double fma_burst__avx2(size_t rounds, float *sink)
{
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    __m256 sums[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_set1_ps((float)c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_fmadd_ps(sums[c], a, b);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) *sink += _mm256_cvtss_f32(sums[c]);
    return 2.0 * 8 * CHAINS * (double)rounds;
}

/* The compiler sees the lanes that the instruction gives: GCC 12 copies a vector of other lanes,
 * such as a __m256i, to the stack at each instruction of a chain. */
typedef int16_t sums_i16 __attribute__((vector_size(32)));
typedef int32_t sums_i32 __attribute__((vector_size(32)));

/* Each product is an operand of the next one; a sum would take an instruction of its own. */
static double int_burst__avx2(size_t rounds, float *sink)
{
    const __m256i x = _mm256_set1_epi8(-3);
    sums_i16 sums[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i16)_mm256_set1_epi16((int16_t)c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            sums[c] = (sums_i16)_mm256_maddubs_epi16((__m256i)sums[c], x);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) *sink += (float)_mm256_extract_epi16((__m256i)sums[c], 0);
    return 2.0 * 32 * CHAINS * (double)rounds;
}

static double pair_burst__avx2(size_t rounds, float *sink)
{
    const __m256i x = _mm256_set1_epi16(-3);
    sums_i32 sums[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i32)_mm256_set1_epi32(c);
    for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sums[c] = (sums_i32)_mm256_madd_epi16((__m256i)sums[c], x);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) *sink += (float)_mm256_extract_epi32((__m256i)sums[c], 0);
    return 2.0 * 16 * CHAINS * (double)rounds;
}

void kern_burst_fill_avx2(kern_isa *isa)
{
    isa->fma_burst = fma_burst__avx2;
    isa->pair_burst = pair_burst__avx2;
    isa->int_burst = int_burst__avx2;
}
