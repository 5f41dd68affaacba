/* Attention over int8 pages in 16-bit integers, for AVX-512 with VNNI. A strip is one vector. It
 * gives the bits of attention_int8_avx2.c. */
#include "kernels/isa.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { ROWS_MAX = 12 }; /* 12 rows x 2 vectors, 2 of K or V, a pair */

/* Loads 16 slots of K, or 16 dims of V, each with its pair. */
INLINE __m512i load_pairs(const uint8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512i broadcast_pair(const int16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* sums += products of pairs. Written in assembly because gcc copies or spills the sums of a tile in
 * every round; the emulation knows the intrinsic alone. */
INLINE __m512i add_products(__m512i sums, __m512i x, __m512i a)
{
#ifdef __AVX512VNNI__
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(a));
    return sums;
#else
    return _mm512_dpwssd_epi32(sums, x, a);
#endif
}

/* Loads 16 bf16 scales as f32. */
INLINE __m512 load_scales(const uint8_t *scales)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)scales));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

/* Prefetches a line of the next block beside a tile of n rows. A tile with fewer rows than those of
 * prefill waits for memory: its lines go to the first-level cache. */
INLINE void prefetch_beside(unsigned n, const uint8_t *line)
{
    if (n < ROWS_MAX) _mm_prefetch((const char *)line, _MM_HINT_T0);
    else _mm_prefetch((const char *)line, _MM_HINT_T1);
}

/* ---- q . k ----------------------------------------------------------------------------------- */

INLINE void scores_tile(unsigned n, unsigned strips, const kern_attn_strips *k, uint32_t strip,
                        const int16_t *q, const kern_attn_row *rows, uint32_t head_dim, float *s)
{
    __m512i sums[ROWS_MAX][2];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < strips; i++) sums[r][i] = _mm512_setzero_si512();
    /* The calls for one block prefetch the next block together, a line of each of its strips in
     * turn, because memory answers four streams faster than two. */
    const unsigned n_groups = KERN_BLOCK_STRIPS / strips;
    size_t off = 0, ahead = strip / strips * (head_dim / 2 / n_groups) * k->step;
    unsigned group = 0;
    for (uint32_t d = 0; d < head_dim; d += 2, q += 2, off += k->step) {
        __m512i a[2];
        for (unsigned i = 0; i < strips; i++) {
            a[i] = load_pairs(k->at[strip + i] + off);
            prefetch_beside(n, k->next[group * strips + i] + ahead);
        }
        group = (group + 1) % n_groups;
        if (group == 0) ahead += k->step;
        for (unsigned r = 0; r < n; r++) {
            __m512i x = broadcast_pair(q + r * KERN_ATTN_INT_STRIDE);
            for (unsigned i = 0; i < strips; i++) sums[r][i] = add_products(sums[r][i], x, a[i]);
        }
    }
    for (unsigned i = 0; i < strips; i++) {
        __m512 scale = load_scales(k->scales[strip + i]);
        for (unsigned r = 0; r < n; r++)
            _mm512_storeu_ps(s + r * KERN_BLOCK + (strip + i) * KERN_STRIP,
                             _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][i]),
                                           _mm512_mul_ps(scale, _mm512_set1_ps(rows[r].q_scale))));
    }
}

static void scores(const kern_attn_strips *k, uint32_t from, uint32_t to, const int16_t *q,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *s)
{
#define ROWS(N)                                                                                    \
    case N:                                                                                        \
        for (; from + 2 <= to; from += 2) scores_tile(N, 2, k, from, q, rows, head_dim, s);        \
        if (from < to) scores_tile(N, 1, k, from, q, rows, head_dim, s);                           \
        break;
    switch (n) {
        KERN_ATTN_EACH_12(ROWS)
    }
#undef ROWS
}

/* ---- p . v ----------------------------------------------------------------------------------- */

typedef struct weights {
    _Alignas(64) int16_t q[ROWS_MAX][KERN_BLOCK];
    float scale[ROWS_MAX];
} weights;

/* Bit j: the row sees slot j of the block. */
INLINE uint64_t seen(const kern_attn_row *row)
{
    uint64_t under = row->hi < 64 ? (UINT64_C(1) << row->hi) - 1 : ~UINT64_C(0);
    return under & (~UINT64_C(0) << row->lo);
}

/* Quantises p of one row. `all`: the row sees the whole block. The largest is found among bits as
 * integers, where a NaN is above all numbers. */
INLINE void quantize_row(const kern_attn_row *row, const float *p, const __m512 *scales, bool all,
                         int16_t *q, float *scale)
{
    const uint64_t mask = all ? ~UINT64_C(0) : seen(row);
    __m512 w[KERN_BLOCK_STRIPS];
    const __m512i low = _mm512_set1_epi32(0x7fffffff); /* all bits but the sign's */
    __m512i top = _mm512_setzero_si512();
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) {
        w[i] = _mm512_mul_ps(_mm512_loadu_ps(p + i * KERN_STRIP), scales[i]);
        if (!all) w[i] = _mm512_maskz_mov_ps((__mmask16)(mask >> i * KERN_STRIP), w[i]);
        __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(w[i]), low);
        top = _mm512_max_epi32(top, magnitude);
    }
    int bits = _mm512_reduce_max_epi32(top);
    float max;
    memcpy(&max, &bits, sizeof max);
    const bool zeros = max < KERN_ATTN_INT_SMALLEST;
    const __m512 inverse = _mm512_set1_ps(zeros ? 0.0f : KERN_ATTN_INT_MAX / max);
    *scale = zeros ? 0.0f : max / KERN_ATTN_INT_MAX;
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], inverse));
        _mm256_storeu_si256((__m256i *)(q + i * KERN_STRIP), _mm512_cvtepi32_epi16(whole));
    }
}

/* Adds `vectors` times 16 dims of slots [from, to), both even. */
INLINE void values_tile(unsigned n, unsigned vectors, const kern_attn_strips *v, uint32_t from,
                        uint32_t to, const weights *w, const kern_attn_row *rows, uint32_t head_dim,
                        float *o, size_t dim)
{
    __m512i sums[ROWS_MAX][2];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++) sums[r][i] = _mm512_setzero_si512();
    for (uint32_t j = from; j < to; j += 2) {
        size_t off = j % KERN_STRIP / 2 * v->step + dim * 2;
        __m512i a[2];
        const uint8_t *next = v->next[j / 2 % KERN_BLOCK_STRIPS] + dim * 2;
        prefetch_beside(n, next + j / (2 * KERN_BLOCK_STRIPS) * v->step);
        for (unsigned i = 0; i < vectors; i++)
            a[i] = load_pairs(v->at[j / KERN_STRIP] + off + i * 32);
        for (unsigned r = 0; r < n; r++) {
            __m512i x = broadcast_pair(&w->q[r][j]);
            for (unsigned i = 0; i < vectors; i++) sums[r][i] = add_products(sums[r][i], x, a[i]);
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++) {
            float *to_o = o + r * head_dim + dim + i * 16;
            __m512 before = _mm512_mul_ps(_mm512_loadu_ps(to_o), _mm512_set1_ps(rows[r].fix));
            _mm512_storeu_ps(to_o, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][i]),
                                                   _mm512_set1_ps(w->scale[r]), before));
        }
}

INLINE void values_rows(unsigned n, const kern_attn_strips *v, uint32_t from, uint32_t to,
                        const weights *w, const kern_attn_row *rows, uint32_t head_dim, float *o)
{
    size_t dim = 0;
    for (; dim + 32 <= head_dim; dim += 32)
        values_tile(n, 2, v, from, to, w, rows, head_dim, o, dim);
    if (dim < head_dim) values_tile(n, 1, v, from, to, w, rows, head_dim, o, dim);
}

static void values(const kern_attn_strips *v, uint32_t from, uint32_t to, const float *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o)
{
    weights w;
    __m512 scales[KERN_BLOCK_STRIPS];
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) scales[i] = load_scales(v->scales[i]);
    for (uint32_t r = 0; r < n; r++, p += KERN_BLOCK) {
        if (rows[r].lo == 0 && rows[r].hi == KERN_BLOCK)
            quantize_row(rows + r, p, scales, true, w.q[r], &w.scale[r]);
        else quantize_row(rows + r, p, scales, false, w.q[r], &w.scale[r]);
    }
    from &= ~1u;
    to = (to + 1) & ~1u;
#define ROWS(N)                                                                                    \
    case N: values_rows(N, v, from, to, &w, rows, head_dim, o); break;
    switch (n) {
        KERN_ATTN_EACH_12(ROWS)
    }
#undef ROWS
}

void kern_attention_fill_vnni(kern_isa *isa)
{
    isa->attn_int_rows = ROWS_MAX;
    isa->attn_int_scores = scores;
    isa->attn_int_values = values;
}
