#include "base/rng_blocks.h"

/* SSE2 is a part of every x86-64. Compilers find no way of their own to it, because a product of 32
 * by 32 bits takes every other lane. */
#ifdef __SSE2__
#include <emmintrin.h>

enum { GROUP = 4 };

static __m128i both(uint32_t v) { return _mm_set1_epi64x((int64_t)v); }

/* Four blocks in two pairs, whose chains of products overlap. Each number is the low half of a lane
 * of 64 bits; the upper half has what the last product left there, which no product reads. */
static void fill_group(uint64_t key, uint64_t lo, uint64_t hi, philox_block *out)
{
    const __m128i m0 = both(0xd2511f53u), m1 = both(0xcd9e8d57u);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    __m128i c0[2], c1[2], c2[2], c3[2];
    for (int j = 0; j < 2; j++) {
        c2[j] =
            _mm_set_epi64x((int64_t)(hi + 2 * (uint64_t)j + 1), (int64_t)(hi + 2 * (uint64_t)j));
        c3[j] = _mm_srli_epi64(c2[j], 32);
        c0[j] = both((uint32_t)lo);
        c1[j] = both((uint32_t)(lo >> 32));
    }
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < 2; j++) {
            __m128i p0 = _mm_mul_epu32(m0, c0[j]), p1 = _mm_mul_epu32(m1, c2[j]);
            c0[j] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(p1, 32), c1[j]), both(k0));
            c2[j] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(p0, 32), c3[j]), both(k1));
            c1[j] = p1;
            c3[j] = p0;
        }
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int j = 0; j < 2; j++) {
        __m128i low =
            _mm_unpacklo_epi64(_mm_unpacklo_epi32(c0[j], c1[j]), _mm_unpacklo_epi32(c2[j], c3[j]));
        __m128i high =
            _mm_unpacklo_epi64(_mm_unpackhi_epi32(c0[j], c1[j]), _mm_unpackhi_epi32(c2[j], c3[j]));
        _mm_storeu_si128((__m128i *)(void *)&out[2 * j], low);
        _mm_storeu_si128((__m128i *)(void *)&out[2 * j + 1], high);
    }
}
#else
enum { GROUP = 1 };

static void fill_group(uint64_t key, uint64_t lo, uint64_t hi, philox_block *out)
{
    *out = philox4x32(key, lo, hi);
}
#endif

void philox4x32_blocks(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, size_t n,
                       philox_block *out)
{
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) fill_group(key, counter_lo, counter_hi + i, out + i);
    for (; i < n; i++) out[i] = philox4x32(key, counter_lo, counter_hi + i);
}
