/* Scores of blocks for AVX-512. */
#include "kernels/isa.h"

#include <immintrin.h>

enum { AHEAD = 12, LINE = 64 }; /* blocks whose vectors are prefetched: pages lie anywhere */

static inline __m512 load(const uint16_t *v)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)v));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline __m512 add_products(const float *x, const uint16_t *v, size_t n, __m512 lanes)
{
    for (size_t d = 0; d < n; d += 16)
        lanes = _mm512_fmadd_ps(_mm512_loadu_ps(x + d), load(v + d), lanes);
    return lanes;
}

static inline float sum_of(__m512 lanes)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline void prefetch(const uint16_t *v, size_t n)
{
    for (size_t b = 0; b < n * sizeof *v; b += LINE) _mm_prefetch((const char *)v + b, _MM_HINT_T0);
}

static void block_scores(const kern_vectors *v, const uint32_t *pages, size_t n, size_t n_known,
                         const float *folded, float *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = pages[i * v->step] * v->stride;
        size_t next = pages[(i + AHEAD < n_known ? i + AHEAD : i) * v->step] * v->stride;
        __m512 lanes = _mm512_setzero_ps();
        prefetch(v->first + next, v->head_dim);
        if (v->second) prefetch(v->second + next, v->head_dim);
        lanes = add_products(folded, v->first + at, v->head_dim, lanes);
        if (v->second)
            lanes = add_products(folded + v->head_dim, v->second + at, v->head_dim, lanes);
        out[i] = sum_of(lanes);
    }
}

void kern_block_scores_fill_avx512(kern_isa *isa) { isa->block_scores = block_scores; }
