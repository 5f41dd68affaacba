/* Scores of blocks for AVX2. */
#include "kernels/isa.h"

#include <immintrin.h>

enum { AHEAD = 12, LINE = 64 }; /* blocks whose vectors are prefetched: pages lie anywhere */

static inline __m256 load(const uint16_t *v)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)v));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline void add_products(const float *x, const uint16_t *v, size_t n, __m256 lanes[2])
{
    for (size_t d = 0; d < n; d += 16)
        for (size_t u = 0; u < 2; u++)
            lanes[u] =
                _mm256_fmadd_ps(_mm256_loadu_ps(x + d + 8 * u), load(v + d + 8 * u), lanes[u]);
}

static inline float sum_of(const __m256 lanes[2])
{
    __m256 eight = _mm256_add_ps(lanes[0], lanes[1]);
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
        __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        prefetch(v->first + next, v->head_dim);
        if (v->second) prefetch(v->second + next, v->head_dim);
        add_products(folded, v->first + at, v->head_dim, lanes);
        if (v->second) add_products(folded + v->head_dim, v->second + at, v->head_dim, lanes);
        out[i] = sum_of(lanes);
    }
}

void kern_block_scores_fill_avx2(kern_isa *isa) { isa->block_scores = block_scores; }
