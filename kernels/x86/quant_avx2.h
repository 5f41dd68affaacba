/* Quantised matrix product, AVX2: what tiles of weights as they are stored (quant_avx2.c) and tiles
 * of unpacked weights (quant_unpacked_avx2.c) share. */
#ifndef KERNELS_X86_QUANT_AVX2_H
#define KERNELS_X86_QUANT_AVX2_H

#include "kernels/isa.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,
    RUN = 32, /* columns of a run that begins with 0: 8 products of 15 * 127 * 2 stay below 2^15 */
    LONG_RUN = 64, /* columns of a run that begins with x's part: it ends within 32 * 8 * 127 */
};

/* Columns whose products with 4-bit weights are summed in 16 bits before they are added up in
 * 32. */
INLINE size_t run_of(const size_t group) { return group <= LONG_RUN ? group : RUN; }

/* Stops the compiler from keeping a tile's sums of f32 on the stack too, where each group would
 * store them a second time. */
#define SUMS_STAY_IN_MEMORY() __asm__ volatile("" ::: "memory")

/* sums [2] += v [2] * the pair of x, in place. Written in assembly because gcc copies sums from
 * register to register, a fifth of all instructions. */
INLINE void add_pair(__m256i sums[2], const __m256i v[2], const int16_t *x)
{
    __m256i pair, product;
    __asm__("vpbroadcastd %[x], %[pair]\n\t"
            "vpmaddwd %[v0], %[pair], %[product]\n\t"
            "vpmaddwd %[v1], %[pair], %[pair]\n\t"
            "vpaddd %[product], %[s0], %[s0]\n\t"
            "vpaddd %[pair], %[s1], %[s1]"
            : [s0] "+x"(sums[0]), [s1] "+x"(sums[1]), [pair] "=&x"(pair), [product] "=&x"(product)
            : [v0] "x"(v[0]), [v1] "x"(v[1]), [x] "m"(*(const int32_t *)(const void *)x));
}

/* sums [2] += v [2], bytes of w, times a quad of x, in 16 bits and in place, in assembly as
 * add_pair. */
INLINE void add_quad(__m256i sums[2], const __m256i v[2], const int8_t *x)
{
    __m256i quad, product;
    __asm__("vpbroadcastd %[x], %[quad]\n\t"
            "vpmaddubsw %[quad], %[v0], %[product]\n\t"
            "vpmaddubsw %[quad], %[v1], %[quad]\n\t"
            "vpaddw %[product], %[s0], %[s0]\n\t"
            "vpaddw %[quad], %[s1], %[s1]"
            : [s0] "+x"(sums[0]), [s1] "+x"(sums[1]), [quad] "=&x"(quad), [product] "=&x"(product)
            : [v0] "x"(v[0]), [v1] "x"(v[1]), [x] "m"(*(const int32_t *)(const void *)x));
}

/* v [2] = a pair of columns of block floats in 16 bits, 8 outputs each. Bits 0 to 7 are the 32
 * bytes at `low`, bits 8 to 11 the upper or the lower halves of those at `high`. */
INLINE void load_pair_12(const uint8_t *low, const uint8_t *high, const bool upper, __m256i v[2])
{
    const __m256i half = _mm256_set1_epi8(15);
    const __m256i signs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
    __m256i top = _mm256_load_si256((const __m256i *)(const void *)high);
    top = _mm256_and_si256(upper ? _mm256_srli_epi16(top, 4) : top, half);
    top = _mm256_shuffle_epi8(signs, top);
    const __m256i bytes = _mm256_load_si256((const __m256i *)(const void *)low);
    v[0] = _mm256_unpacklo_epi8(bytes, top);
    v[1] = _mm256_unpackhi_epi8(bytes, top);
}

/* The stored scales of 8 outputs as f32. Those of 8 and 12 bits keep a bit of the mantissa where
 * bf16 has the sign. */
INLINE __m256 scales_of(const int bits, const uint8_t *scales)
{
    __m128i half = _mm_load_si128((const __m128i *)(const void *)scales);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), bits == 4 ? 16 : 15));
}

/* acc [8] += sums, scaled. */
INLINE void add_scaled(__m256i sums, __m256 w_scales, float x_scale, float *acc)
{
    __m256 by = _mm256_mul_ps(w_scales, _mm256_set1_ps(x_scale));
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), by, _mm256_loadu_ps(acc)));
}

void kern_quant_unpacked_fill_avx2(kern_isa *isa);

#endif
