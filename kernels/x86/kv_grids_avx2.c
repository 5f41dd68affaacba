/* Pages whose elements lie on grids, for AVX2: quantises whole tiles, reads strips as bf16. */
#include "kernels/kv_grids.h"

#include <immintrin.h>

/* 8 values of integers on a grid, prepared so that cutting off the low half rounds them to bf16. */
QUANT_INLINE __m256i on_grid(__m256i q, __m256 scale, __m256 zero)
{
    __m256 x = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(q), scale), zero);
    return _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
}

QUANT_INLINE void words_avx2(const uint8_t *bytes, unsigned n, unsigned bits, unsigned shift,
                             kv_grid first, kv_grid second, uint8_t *words)
{
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1), top = _mm256_set1_epi32(-65536);
    const __m256 scales[2] = {_mm256_set1_ps(first.scale), _mm256_set1_ps(second.scale)};
    const __m256 zeros[2] = {_mm256_set1_ps(first.zero), _mm256_set1_ps(second.zero)};
    for (unsigned i = 0; i < n; i += 8) {
        __m256i q = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + i)));
        q = _mm256_srli_epi32(q, (int)shift);
        __m256i low = on_grid(_mm256_and_si256(q, mask), scales[0], zeros[0]);
        __m256i high =
            on_grid(_mm256_and_si256(_mm256_srli_epi32(q, (int)bits), mask), scales[1], zeros[1]);
        __m256i word = _mm256_or_si256(_mm256_srli_epi32(low, 16), _mm256_and_si256(high, top));
        _mm256_storeu_si256((__m256i *)(words + 4 * (size_t)i), word);
    }
}

#define FOR_BITS(BITS)                                                                             \
    static void pack_##BITS(const kern_kv_shape *s, const void *wide, void *tile)                  \
    {                                                                                              \
        grid_pack(s, BITS, wide, tile);                                                            \
    }                                                                                              \
    static void strip_##BITS(const kern_kv_shape *s, const void *tile, uint32_t slot, uint8_t *k,  \
                             uint8_t *v)                                                           \
    {                                                                                              \
        grid_strip(s, BITS, tile, slot, k, v, words_avx2);                                         \
    }

FOR_BITS(4)
FOR_BITS(2)

void kern_kv_grids_fill_avx2(kern_isa *isa)
{
    isa->kv_pack[KERN_KV_INT4] = pack_4;
    isa->kv_pack[KERN_KV_INT2] = pack_2;
    isa->kv_strip[KERN_KV_INT4] = strip_4;
    isa->kv_strip[KERN_KV_INT2] = strip_2;
}
