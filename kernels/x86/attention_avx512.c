/* Attention's inner loops for AVX-512 (F, BW, VL, DQ): a strip is one vector. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx512.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The two rows of a pair, 16 lanes each. */
INLINE void load_pair(dtype t, const uint8_t *p, size_t half, __m512 *a, __m512 *b)
{
    if (t == DTYPE_F32) {
        *a = _mm512_loadu_ps(p);
        *b = _mm512_loadu_ps(p + half);
        return;
    }
    __m512i w = _mm512_loadu_si512(p);
    if (t == DTYPE_BF16) {
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));
        return;
    }
    const __m512i split =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    w = _mm512_permutexvar_epi16(split, w);
    *a = _mm512_cvtph_ps(_mm512_castsi512_si256(w));
    *b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(w, 1));
}

INLINE void prefetch_pair(dtype t, const uint8_t *p, size_t half)
{
    _mm_prefetch(p, _MM_HINT_T1);
    if (t == DTYPE_F32) _mm_prefetch(p + half, _MM_HINT_T1);
}

/* ---- q . k: n rows x `strips` strips --------------------------------------------------------- */

INLINE void scores_tile(dtype t, unsigned n, unsigned strips, const kern_attn_strips *k,
                        uint32_t first, const float *q, uint32_t head_dim, float *s)
{
    __m512 acc[KERN_ATTN_ROWS][4];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < strips; i++) acc[r][i] = _mm512_setzero_ps();
    const uint8_t *const *at = k->at + first;
    size_t off = 0, step = k->step, half = k->half;
    /* Prefetches the next block from all its strips in turn, a share for each tile of this block,
     * because memory answers four streams faster than one. */
    const unsigned n_groups = KERN_BLOCK_STRIPS / strips;
    size_t ahead = first / strips * (head_dim / 2 / n_groups) * step;
    unsigned group = 0;
    for (uint32_t d = 0; d < head_dim; d += 2, q += 2, off += step) {
        __m512 a[4], b[4];
        for (unsigned i = 0; i < strips; i++) {
            load_pair(t, at[i] + off, half, &a[i], &b[i]);
            prefetch_pair(t, k->next[group * strips + i] + ahead, half);
        }
        group = (group + 1) % n_groups;
        if (group == 0) ahead += step;
        for (unsigned r = 0; r < n; r++) {
            __m512 x = _mm512_set1_ps(q[r * KERN_ATTN_Q_STRIDE]);
            for (unsigned i = 0; i < strips; i++) acc[r][i] = _mm512_fmadd_ps(x, a[i], acc[r][i]);
        }
        for (unsigned r = 0; r < n; r++) {
            __m512 x = _mm512_set1_ps(q[r * KERN_ATTN_Q_STRIDE + 1]);
            for (unsigned i = 0; i < strips; i++) acc[r][i] = _mm512_fmadd_ps(x, b[i], acc[r][i]);
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < strips; i++)
            _mm512_storeu_ps(s + r * KERN_BLOCK + (first + i) * KERN_STRIP, acc[r][i]);
}

/* Few rows take more strips at once: 8 chains or more hide the latency of an FMA. */
INLINE unsigned width(unsigned n) { return n <= 5 ? 4 : 2; }

INLINE void scores_rows(dtype t, unsigned n, const kern_attn_strips *k, uint32_t from, uint32_t to,
                        const float *q, uint32_t head_dim, float *s)
{
    for (; from + width(n) <= to; from += width(n))
        scores_tile(t, n, width(n), k, from, q, head_dim, s);
    for (; from < to; from++) scores_tile(t, n, 1, k, from, q, head_dim, s);
}

/* ---- p . v: n rows x `vectors` of 16 dims ---------------------------------------------------- */

/* The line of the next block to prefetch beside slots j and j + 1: one of each strip in turn. */
INLINE const uint8_t *next_values(const kern_attn_strips *v, uint32_t j)
{
    return v->next[j / 2 % KERN_BLOCK_STRIPS] + j / (2 * KERN_BLOCK_STRIPS) * v->step;
}

/* Adds slots [from, to), both even. */
INLINE void values_tile(dtype t, unsigned n, unsigned vectors, const kern_attn_strips *v,
                        uint32_t from, uint32_t to, const float *p, const float *fix,
                        uint32_t head_dim, float *o, size_t dim)
{
    __m512 acc[KERN_ATTN_ROWS][4];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++)
            acc[r][i] = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + dim + i * 16),
                                      _mm512_set1_ps(fix[r]));
    size_t step = v->step, half = v->half;
    for (uint32_t j = from; j < to;) {
        uint32_t strip = j / KERN_STRIP, stop = (strip + 1) * KERN_STRIP;
        if (stop > to) stop = to;
        size_t off = j % KERN_STRIP / 2 * step + dim * 4;
        for (; j < stop; j += 2, off += step) {
            const uint8_t *next = next_values(v, j) + dim * 4;
            __m512 a[4], b[4];
            for (unsigned i = 0; i < vectors; i++) {
                load_pair(t, v->at[strip] + off + i * 64, half, &a[i], &b[i]);
                prefetch_pair(t, next + i * 64, half);
            }
            for (unsigned r = 0; r < n; r++) {
                __m512 x = _mm512_set1_ps(p[r * KERN_BLOCK + j]);
                for (unsigned i = 0; i < vectors; i++)
                    acc[r][i] = _mm512_fmadd_ps(x, a[i], acc[r][i]);
            }
            for (unsigned r = 0; r < n; r++) {
                __m512 x = _mm512_set1_ps(p[r * KERN_BLOCK + j + 1]);
                for (unsigned i = 0; i < vectors; i++)
                    acc[r][i] = _mm512_fmadd_ps(x, b[i], acc[r][i]);
            }
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++)
            _mm512_storeu_ps(o + r * head_dim + dim + i * 16, acc[r][i]);
}

INLINE void values_rows(dtype t, unsigned n, const kern_attn_strips *v, uint32_t from, uint32_t to,
                        const float *p, const float *fix, uint32_t head_dim, float *o)
{
    size_t dim = 0;
    for (; dim + width(n) * 16 <= head_dim; dim += width(n) * 16)
        values_tile(t, n, width(n), v, from, to, p, fix, head_dim, o, dim);
    for (; dim < head_dim; dim += 16) values_tile(t, n, 1, v, from, to, p, fix, head_dim, o, dim);
}

/* Adds one slot; its partner in the pair must not be used. */
INLINE void values_slot(dtype t, unsigned n, const kern_attn_strips *v, uint32_t j, const float *p,
                        const float *fix, uint32_t head_dim, float *o)
{
    const uint8_t *row = v->at[j / KERN_STRIP] + j % KERN_STRIP / 2 * v->step;
    for (unsigned r = 0; r < n; r++, p += KERN_BLOCK, o += head_dim)
        for (size_t dim = 0; dim < head_dim; dim += 16) {
            __m512 a, b, acc = _mm512_mul_ps(_mm512_loadu_ps(o + dim), _mm512_set1_ps(fix[r]));
            load_pair(t, row + dim * 4, v->half, &a, &b);
            acc = _mm512_fmadd_ps(_mm512_set1_ps(p[j]), j % 2 ? b : a, acc);
            _mm512_storeu_ps(o + dim, acc);
        }
}

INLINE void scores(dtype t, const kern_attn_strips *k, uint32_t from, uint32_t to, const float *q,
                   uint32_t n, uint32_t head_dim, float *s)
{
#define ROWS(N)                                                                                    \
    case N: scores_rows(t, N, k, from, to, q, head_dim, s); break;
    switch (n) {
        KERN_ATTN_EACH_12(ROWS)
    }
#undef ROWS
}

INLINE void values(dtype t, const kern_attn_strips *v, uint32_t from, uint32_t to, const float *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o)
{
    float fix[KERN_ATTN_ROWS];
    for (unsigned r = 0; r < n; r++) fix[r] = rows[r].fix;
    if (from % 2 == 1) {
        values_slot(t, n, v, from++, p, fix, head_dim, o);
        for (unsigned r = 0; r < n; r++) fix[r] = 1.0f;
    }
    uint32_t even = to & ~1u;
    if (from < even) {
#define ROWS(N)                                                                                    \
    case N: values_rows(t, N, v, from, even, p, fix, head_dim, o); break;
        switch (n) {
            KERN_ATTN_EACH_12(ROWS)
        }
#undef ROWS
        for (unsigned r = 0; r < n; r++) fix[r] = 1.0f;
    }
    if (from < to && to % 2 == 1) values_slot(t, n, v, even, p, fix, head_dim, o);
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* The lanes of strip i that lie in [lo, hi). */
INLINE __mmask16 seen(uint32_t lo, uint32_t hi, unsigned i)
{
    uint64_t bits = (hi < 64 ? (UINT64_C(1) << hi) - 1 : ~UINT64_C(0)) & (~UINT64_C(0) << lo);
    return (__mmask16)(bits >> (i * KERN_STRIP));
}

/* The sum of each of four vectors, in one fixed tree. */
INLINE __m128 sum_each(const __m512 x[4])
{
    __m256 h[4];
    for (unsigned i = 0; i < 4; i++)
        h[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps(x[i], 1));
    __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    return _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}

/* Softmax of one row. `all`: the row sees the whole block. Either way the lanes that it sees go
 * through the same operations. */
INLINE void softmax_row(kern_attn_row *row, float *s, bool all)
{
    __m512 x[KERN_BLOCK_STRIPS];
    __mmask16 mask[KERN_BLOCK_STRIPS];
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) {
        mask[i] = all ? 0xffff : seen(row->lo, row->hi, i);
        x[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), mask[i], s + i * KERN_STRIP);
    }
    __m512 top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    __m512 sum = _mm512_load_ps(row->sum);
    row->fix = 1.0f;
    if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(row->max), _CMP_GT_OQ)) {
        float max = max_avx512(top);
        __m512 fix =
            exp2_avx512(_mm512_max_ps(_mm512_set1_ps(-200.0f), _mm512_set1_ps(row->max - max)));
        row->fix = _mm512_cvtss_f32(fix);
        row->max = max;
        sum = _mm512_mul_ps(sum, fix);
    }
    __m512 max = _mm512_set1_ps(row->max);
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) {
        x[i] = exp2_avx512(_mm512_sub_ps(x[i], max));
        if (!all) x[i] = _mm512_maskz_mov_ps(mask[i], x[i]);
        _mm512_storeu_ps(s + i * KERN_STRIP, x[i]);
        sum = _mm512_add_ps(sum, x[i]);
    }
    _mm512_store_ps(row->sum, sum);
    if (row->mass) _mm_storeu_ps(row->mass, sum_each(x));
}

static void softmax(kern_attn_row *rows, uint32_t n, float *s)
{
    for (uint32_t r = 0; r < n; r++, s += KERN_BLOCK) {
        if (rows[r].lo == 0 && rows[r].hi == KERN_BLOCK) softmax_row(&rows[r], s, true);
        else if (rows[r].lo < rows[r].hi) softmax_row(&rows[r], s, false);
        else rows[r].fix = 1.0f;
    }
}

/* ---- KV writes ------------------------------------------------------------------------------- */

/* 16 floats to 16 two-byte values, in the low halves of 32-bit lanes. */
INLINE __m512i narrow(dtype t, __m512 x)
{
    if (t == DTYPE_F16)
        return _mm512_cvtepu16_epi32(
            _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_srli_epi32(rounded, 16), nan, high, _mm512_set1_epi32(0x40));
}

INLINE void kv_write(dtype t, const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                     const float *v)
{
    /* Only this slot's bytes are stored: its neighbours may be written by other threads. */
    uint8_t *keys = (uint8_t *)tile + slot * 4;
    uint8_t *values = (uint8_t *)tile + kern_kv_values_at(s) + (size_t)(slot / 2) * s->head_dim * 4;
    size_t step = (size_t)s->page_tokens * 4;
    for (size_t d = 0; d < s->head_dim; d += 16) {
        /* A 32-bit lane: dims 2i and 2i + 1. */
        uint32_t word[8];
        _mm256_storeu_si256((__m256i *)word,
                            _mm512_cvtepi32_epi16(narrow(t, _mm512_loadu_ps(k + d))));
        for (size_t i = 0; i < 8; i++) memcpy(keys + (d / 2 + i) * step, &word[i], 4);
        __m512i x = narrow(t, _mm512_loadu_ps(v + d));
        if (slot % 2) x = _mm512_slli_epi32(x, 16);
        _mm512_mask_storeu_epi16(values + d * 4, slot % 2 ? 0xaaaaaaaau : 0x55555555u, x);
    }
}

#define FOR_TYPE(NAME, TYPE)                                                                       \
    static void scores_##NAME(const kern_attn_strips *k, uint32_t from, uint32_t to,               \
                              const float *q, uint32_t n, uint32_t head_dim, float *s)             \
    {                                                                                              \
        scores(TYPE, k, from, to, q, n, head_dim, s);                                              \
    }                                                                                              \
    static void values_##NAME(const kern_attn_strips *v, uint32_t from, uint32_t to,               \
                              const float *p, const kern_attn_row *rows, uint32_t n,               \
                              uint32_t head_dim, float *o)                                         \
    {                                                                                              \
        values(TYPE, v, from, to, p, rows, n, head_dim, o);                                        \
    }

FOR_TYPE(f32, DTYPE_F32)
FOR_TYPE(bf16, DTYPE_BF16)
FOR_TYPE(f16, DTYPE_F16)

static void kv_write_bf16(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                          const float *v)
{
    kv_write(DTYPE_BF16, s, tile, slot, k, v);
}

static void kv_write_f16(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                         const float *v)
{
    kv_write(DTYPE_F16, s, tile, slot, k, v);
}

#define FILL(NAME, TYPE)                                                                           \
    isa->attn_scores[TYPE] = scores_##NAME;                                                        \
    isa->attn_values[TYPE] = values_##NAME

void kern_attention_fill_avx512(kern_isa *isa)
{
    FILL(f32, KERN_KV_F32);
    FILL(bf16, KERN_KV_BF16);
    FILL(f16, KERN_KV_F16);
    isa->kv_write[KERN_KV_BF16] = kv_write_bf16;
    isa->kv_write[KERN_KV_F16] = kv_write_f16;
    isa->attn_rows = 12;
    isa->attn_softmax = softmax;
}
