/* Attention over int8 pages in 16-bit integers, for AVX2. K and V are widened as they are loaded, q
 * and p are 16-bit integers, and sums over a block are exact in 32 bits. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx2.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { ROWS_MAX = 6 }; /* 6 rows x 2 vectors, 2 of K or V, a pair and a product: 16 registers */

/* sums [n][2] += the pairs at p (16 slots of K, or 16 dims of V) times the pairs at x, rows of x S
 * bytes apart. Written in assembly because gcc copies or spills the sums in every round. */
#define ROW(R, S)                                                                                  \
    "vpbroadcastd " #R "*" S "(%[x]), %[t]\n\t"                                                    \
    "vpmaddwd %[a0], %[t], %[u]\n\t"                                                               \
    "vpmaddwd %[a1], %[t], %[t]\n\t"                                                               \
    "vpaddd %[u], %[s" #R "0], %[s" #R "0]\n\t"                                                    \
    "vpaddd %[t], %[s" #R "1], %[s" #R "1]\n\t"
#define ROWS_1(S) ROW(0, S)
#define ROWS_2(S) ROWS_1(S) ROW(1, S)
#define ROWS_3(S) ROWS_2(S) ROW(2, S)
#define ROWS_4(S) ROWS_3(S) ROW(3, S)
#define ROWS_5(S) ROWS_4(S) ROW(4, S)
#define ROWS_6(S) ROWS_5(S) ROW(5, S)
#define SUM(R)    [s##R##0] "+&x"(sums[2 * R]), [s##R##1] "+&x"(sums[2 * R + 1])
#define SUMS_1    SUM(0)
#define SUMS_2    SUMS_1, SUM(1)
#define SUMS_3    SUMS_2, SUM(2)
#define SUMS_4    SUMS_3, SUM(3)
#define SUMS_5    SUMS_4, SUM(4)
#define SUMS_6    SUMS_5, SUM(5)
#define PRODUCTS(N, S)                                                                             \
    __asm__ volatile("vpmovsxbw (%[p]), %[a0]\n\tvpmovsxbw 16(%[p]), %[a1]\n\t" ROWS_##N(S)        \
                     : SUMS_##N, [a0] "=&x"(a0), [a1] "=&x"(a1), [t] "=&x"(t), [u] "=&x"(u)        \
                     : [p] "r"(p), [x] "r"(x)                                                      \
                     : "memory")
#define Q_STRIDE "1088"
#define P_STRIDE "128"
_Static_assert(KERN_ATTN_INT_STRIDE * sizeof(int16_t) == 1088 &&
                   KERN_BLOCK * sizeof(int16_t) == 128,
               "Q_STRIDE, P_STRIDE");

INLINE void add_pair(unsigned n, bool scores, __m256i *sums, const uint8_t *p, const int16_t *x)
{
    __m256i a0, a1, t, u;
#define CASE(N)                                                                                    \
    if (n == N && scores) PRODUCTS(N, Q_STRIDE);                                                   \
    else if (n == N) PRODUCTS(N, P_STRIDE);
    KERN_ATTN_EACH_6(CASE)
#undef CASE
}

/* Adds four pairs and prefetches the next block meanwhile: one line of each of its strips, because
 * memory answers four streams faster than one. */
INLINE void add_pairs_4(unsigned n, bool scores, __m256i *sums, const uint8_t *p, size_t step,
                        const int16_t *x, const uint8_t *const *next, size_t ahead)
{
    for (unsigned i = 0; i < 4; i++, p += step, x += 2) {
        _mm_prefetch((const char *)next[i] + ahead, _MM_HINT_T1);
        add_pair(n, scores, sums, p, x);
    }
}

/* Loads 8 bf16 scales as f32. */
INLINE __m256 load_scales(const uint8_t *scales)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)scales));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

INLINE float max_bits(__m256i x)
{
    __m128i q = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0x4e));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(q));
}

/* ---- q --------------------------------------------------------------------------------------- */

/* Quantises one row of q. The largest magnitude is found among bits as integers, where infinities
 * and NaNs are above all numbers. */
static float pack_query(const float *q, float scale, uint32_t head_dim, int16_t *out)
{
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(q + d), factor);
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    }
    const float max = max_bits(top);
    const bool zeros = !isfinite(max) || max < KERN_ATTN_INT_SMALLEST;
    const __m256 inverse = _mm256_set1_ps(KERN_ATTN_INT_MAX / max);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        __m256i whole[2];
        for (unsigned i = 0; i < 2; i++) {
            __m256 x = _mm256_mul_ps(_mm256_loadu_ps(q + d + 8 * i), factor);
            whole[i] =
                zeros ? _mm256_setzero_si256() : _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        }
        __m256i pair = _mm256_packs_epi32(whole[0], whole[1]);
        _mm256_storeu_si256((__m256i *)(out + d), _mm256_permute4x64_epi64(pair, 0xd8));
    }
    if (!isfinite(max)) return NAN;
    return zeros ? 0.0f : max / KERN_ATTN_INT_MAX;
}

/* ---- q . k ----------------------------------------------------------------------------------- */

INLINE void scores_tile(unsigned n, const kern_attn_strips *k, uint32_t strip, const int16_t *q,
                        const kern_attn_row *rows, uint32_t head_dim, float *s)
{
    __m256i sums[2 * ROWS_MAX];
    for (unsigned i = 0; i < 2 * n; i++) sums[i] = _mm256_setzero_si256();
    const uint8_t *const next[4] = {k->next[0], k->next[1], k->next[2], k->next[3]};
    const uint8_t *p = k->at[strip];
    const size_t step = k->step;
    size_t ahead = strip * (head_dim / 2 / KERN_BLOCK_STRIPS) * step;
    for (const int16_t *end = q + head_dim; q < end; q += 8, p += 4 * step, ahead += step)
        add_pairs_4(n, true, sums, p, step, q, next, ahead);
    for (unsigned i = 0; i < 2; i++) {
        __m256 scale = load_scales(k->scales[strip] + 16 * i);
        for (unsigned r = 0; r < n; r++)
            _mm256_storeu_ps(s + r * KERN_BLOCK + strip * KERN_STRIP + i * 8,
                             _mm256_mul_ps(_mm256_cvtepi32_ps(sums[2 * r + i]),
                                           _mm256_mul_ps(scale, _mm256_set1_ps(rows[r].q_scale))));
    }
}

static void scores(const kern_attn_strips *k, uint32_t from, uint32_t to, const int16_t *q,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *s)
{
#define ROWS(N)                                                                                    \
    case N:                                                                                        \
        for (; from < to; from++) scores_tile(N, k, from, q, rows, head_dim, s);                   \
        break;
    switch (n) {
        KERN_ATTN_EACH_6(ROWS)
    }
#undef ROWS
}

/* ---- p . v ----------------------------------------------------------------------------------- */

/* p of a block times the scales of V, as integers, with the factor that turns them back. 0 for
 * slots that the row does not see. */
typedef struct weights {
    _Alignas(32) int16_t q[ROWS_MAX][KERN_BLOCK];
    float scale[ROWS_MAX];
} weights;

/* Ones in the lanes of vector i that lie in [lo, hi). */
INLINE __m256 seen(uint32_t lo, uint32_t hi, int i)
{
    __m256i slot =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * i));
    __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), slot);
    __m256i under = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), slot);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, under));
}

enum { VECTORS = KERN_BLOCK / 8 };

INLINE __m256 weight_at(const kern_attn_row *row, const float *p, const float *scales, int i,
                        bool all)
{
    __m256 w = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * i), _mm256_loadu_ps(scales + 8 * i));
    return all ? w : _mm256_and_ps(w, seen(row->lo, row->hi, i));
}

/* The largest of a row, found among bits as integers, where a NaN is above all numbers. */
INLINE float largest(const kern_attn_row *row, const float *p, const float *scales, bool all)
{
    __m256i top[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < VECTORS; i++)
        top[i % 2] =
            _mm256_max_epu32(top[i % 2], _mm256_castps_si256(weight_at(row, p, scales, i, all)));
    return max_bits(_mm256_max_epu32(top[0], top[1]));
}

INLINE void round_row(const kern_attn_row *row, const float *p, const float *scales, float max,
                      bool all, int16_t *q)
{
    const bool zeros = max < KERN_ATTN_INT_SMALLEST;
    const __m256 inverse = _mm256_set1_ps(zeros ? 0.0f : KERN_ATTN_INT_MAX / max);
    for (int i = 0; i < VECTORS; i += 2) {
        __m256 w[2] = {weight_at(row, p, scales, i, all), weight_at(row, p, scales, i + 1, all)};
        __m256i pair = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(w[0], inverse)),
                                          _mm256_cvtps_epi32(_mm256_mul_ps(w[1], inverse)));
        _mm256_store_si256((__m256i *)(q + 8 * i), _mm256_permute4x64_epi64(pair, 0xd8));
    }
}

/* Quantises p of n rows; scales [KERN_BLOCK] are those of V. The largest of all rows are found
 * first, so that their latencies overlap. */
INLINE void quantize_rows(const kern_attn_row *rows, const float *p, const float *scales,
                          uint32_t n, bool all, weights *w)
{
    float max[ROWS_MAX];
    for (uint32_t r = 0; r < n; r++) max[r] = largest(rows + r, p + r * KERN_BLOCK, scales, all);
    for (uint32_t r = 0; r < n; r++) {
        round_row(rows + r, p + r * KERN_BLOCK, scales, max[r], all, w->q[r]);
        w->scale[r] = max[r] < KERN_ATTN_INT_SMALLEST ? 0.0f : max[r] / KERN_ATTN_INT_MAX;
    }
}

/* Adds 16 dims of slots [from, to), both even. */
INLINE void values_tile(unsigned n, const kern_attn_strips *v, uint32_t from, uint32_t to,
                        const weights *w, const kern_attn_row *rows, uint32_t head_dim, float *o,
                        size_t dim)
{
    __m256i sums[2 * ROWS_MAX];
    for (unsigned i = 0; i < 2 * n; i++) sums[i] = _mm256_setzero_si256();
    const size_t step = v->step;
    const uint8_t *const next[4] = {v->next[0] + dim * 2, v->next[1] + dim * 2,
                                    v->next[2] + dim * 2, v->next[3] + dim * 2};
    const int16_t *x = &w->q[0][from];
    size_t ahead = from / 8 * step;
    if (to - from == KERN_BLOCK) { /* nearly all blocks: spares the branches below */
        for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++, x += KERN_STRIP, ahead += 2 * step) {
            const uint8_t *p = v->at[i] + dim * 2;
            add_pairs_4(n, false, sums, p, step, x, next, ahead);
            add_pairs_4(n, false, sums, p + 4 * step, step, x + 8, next, ahead + step);
        }
        from = to;
    }
    for (uint32_t j = from; j < to;) {
        uint32_t strip = j / KERN_STRIP, stop = (strip + 1) * KERN_STRIP;
        if (stop > to) stop = to;
        const uint8_t *p = v->at[strip] + j % KERN_STRIP / 2 * step + dim * 2;
        for (; j + 8 <= stop; j += 8, x += 8, p += 4 * step, ahead += step)
            add_pairs_4(n, false, sums, p, step, x, next, ahead);
        for (; j < stop; j += 2, x += 2, p += step) add_pair(n, false, sums, p, x);
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2; i++) {
            float *to_o = o + r * head_dim + dim + i * 8;
            __m256 before = _mm256_mul_ps(_mm256_loadu_ps(to_o), _mm256_set1_ps(rows[r].fix));
            _mm256_storeu_ps(to_o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[2 * r + i]),
                                                   _mm256_set1_ps(w->scale[r]), before));
        }
}

static void values(const kern_attn_strips *v, uint32_t from, uint32_t to, const float *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o)
{
    weights w;
    float scales[KERN_BLOCK];
    for (uint32_t i = 0; i < KERN_BLOCK; i += 8)
        _mm256_storeu_ps(scales + i, load_scales(v->scales[i / KERN_STRIP] + i % KERN_STRIP * 2));
    bool all = true;
    for (uint32_t r = 0; r < n; r++) all = all && rows[r].lo == 0 && rows[r].hi == KERN_BLOCK;
    if (all) quantize_rows(rows, p, scales, n, true, &w);
    else quantize_rows(rows, p, scales, n, false, &w);
    from &= ~1u;
    to = (to + 1) & ~1u;
#define ROWS(N)                                                                                    \
    case N:                                                                                        \
        for (size_t dim = 0; dim < head_dim; dim += 16)                                            \
            values_tile(N, v, from, to, &w, rows, head_dim, o, dim);                               \
        break;
    switch (n) {
        KERN_ATTN_EACH_6(ROWS)
    }
#undef ROWS
}

void kern_attention_int8_fill_avx2(kern_isa *isa)
{
    isa->attn_int_rows = ROWS_MAX;
    isa->attn_int_query = pack_query;
    isa->attn_int_scores = scores;
    isa->attn_int_values = values;
}
