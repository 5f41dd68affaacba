/* Attention's inner loops for AVX2, FMA and F16C: a strip is two vectors. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx2.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { ROWS_MAX = 6 }; /* 6 rows x 2 vectors, 2 of K or V, a broadcast and a mask: 16 registers */

/* 8 lanes of the first (which = 0) or the second row of the pair at p, in lane_order. One load is
 * written in assembly, because gcc would load once for both rows, into registers that it lacks. */
INLINE __m256 load_half(dtype t, const uint8_t *p, size_t half, int which)
{
    if (t == DTYPE_F32) return _mm256_loadu_ps((const float *)(p + (which ? half : 0)));
    __m256 a;
    if (t == DTYPE_F16) {
        __m256 left = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
        __m256 right = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1));
        a = which ? _mm256_shuffle_ps(left, right, 0xdd) : _mm256_shuffle_ps(left, right, 0x88);
    } else if (which == 0) {
        __asm__("vmovdqu %[p], %[a]\n\tvpslld $16, %[a], %[a]"
                : [a] "=x"(a)
                : [p] "m"(*(const __m256i_u *)p));
    } else {
        __m256i w = _mm256_loadu_si256((const __m256i *)p);
        a = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)));
    }
    return a;
}

/* Converts between the order of memory and the order of load_half's lanes, either way. */
INLINE __m256 lane_order(dtype t, __m256 v)
{
    if (t != DTYPE_F16) return v;
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}

/* sums [m] += a [m] * x, in place; m is even. Written in assembly because gcc, short of registers,
 * computes into the register of x and spills sums in every round. s0 is written before a1 is read,
 * so nothing may share its register, even where values are known to be equal. */
INLINE void add_product(unsigned m, __m256 *sums, const __m256 *a, const float *x)
{
    __m256 all;
    __asm__("vbroadcastss %[x], %[all]\n\t"
            "vfmadd231ps %[a0], %[all], %[s0]\n\t"
            "vfmadd231ps %[a1], %[all], %[s1]"
            : [s0] "+&x"(sums[0]), [s1] "+x"(sums[1]), [all] "=&x"(all)
            : [a0] "x"(a[0]), [a1] "x"(a[1]), [x] "m"(*x));
    for (unsigned i = 2; i < m; i++) sums[i] = _mm256_fmadd_ps(all, a[i], sums[i]);
}

INLINE void prefetch_pair(dtype t, const uint8_t *p, size_t half)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
    if (t == DTYPE_F32) _mm_prefetch((const char *)p + half, _MM_HINT_T1);
}

/* ---- 3 to 6 rows, two vectors ---------------------------------------------------------------- */

/* sums [n][2] += the pair at p (16 lanes of two rows) times x [n][2], rows of x S bytes apart.
 * Written in assembly because gcc spills or copies some of the sums in every round. */

#define ROW(R, S, O)                                                                               \
    "vbroadcastss " #R "*" S "+" O "(%[x]), %[t]\n\t"                                              \
    "vfmadd231ps %[a0], %[t], %[s" #R "0]\n\t"                                                     \
    "vfmadd231ps %[a1], %[t], %[s" #R "1]\n\t"
#define ROWS_3(S, O) ROW(0, S, O) ROW(1, S, O) ROW(2, S, O)
#define ROWS_4(S, O) ROWS_3(S, O) ROW(3, S, O)
#define ROWS_5(S, O) ROWS_4(S, O) ROW(4, S, O)
#define ROWS_6(S, O) ROWS_5(S, O) ROW(5, S, O)
#define SUM(R)       [s##R##0] "+&x"(sums[2 * R]), [s##R##1] "+&x"(sums[2 * R + 1])
#define SUMS_3       SUM(0), SUM(1), SUM(2)
#define SUMS_4       SUMS_3, SUM(3)
#define SUMS_5       SUMS_4, SUM(4)
#define SUMS_6       SUMS_5, SUM(5)

#define EVEN_BF16                                                                                  \
    "vmovdqu (%[p]), %[a0]\n\tvmovdqu 32(%[p]), %[a1]\n\t"                                         \
    "vpslld $16, %[a0], %[a0]\n\tvpslld $16, %[a1], %[a1]\n\t"
#define ODD_BF16                                                                                   \
    "vmovdqa %[odd], %[a0]\n\tvpand 32(%[p]), %[a0], %[a1]\n\tvpand (%[p]), %[a0], %[a0]\n\t"
#define EVEN_F32 "vmovups (%[p]), %[a0]\n\tvmovups 32(%[p]), %[a1]\n\t"
#define ODD_F32  "vmovups (%[p], %[h]), %[a0]\n\tvmovups 32(%[p], %[h]), %[a1]\n\t"
#define HALF_F16(I)                                                                                \
    "vcvtph2ps (%[p]), %[a0]\n\tvcvtph2ps 16(%[p]), %[t]\n\t"                                      \
    "vshufps $" I ", %[t], %[a0], %[a0]\n\t"                                                       \
    "vcvtph2ps 32(%[p]), %[a1]\n\tvcvtph2ps 48(%[p]), %[t]\n\t"                                    \
    "vshufps $" I ", %[t], %[a1], %[a1]\n\t"

#define PRODUCTS(N, S, EVEN, ODD, MORE)                                                            \
    __asm__ volatile(EVEN ROWS_##N(S, "0") ODD ROWS_##N(S, "4")                                    \
                     : SUMS_##N, [a0] "=&x"(a0), [a1] "=&x"(a1), [t] "=&x"(all)                    \
                     : [p] "r"(p), [x] "r"(x), MORE                                                \
                     : "memory")
#define EACH_TYPE(N, S)                                                                            \
    if (t == DTYPE_F32) PRODUCTS(N, S, EVEN_F32, ODD_F32, [h] "r"(half));                          \
    else if (t == DTYPE_F16) PRODUCTS(N, S, HALF_F16("0x88"), HALF_F16("0xdd"), "r"(half));        \
    else PRODUCTS(N, S, EVEN_BF16, ODD_BF16, [odd] "m"(*(const __m256i *)odd_lanes))
#define Q_STRIDE "1088"
#define P_STRIDE "256"
_Static_assert(KERN_ATTN_Q_STRIDE * sizeof(float) == 1088 && KERN_BLOCK * sizeof(float) == 256,
               "Q_STRIDE, P_STRIDE");

#define ODD 0xffff0000u
static const _Alignas(32) uint32_t odd_lanes[8] = {ODD, ODD, ODD, ODD, ODD, ODD, ODD, ODD};

INLINE void add_pair(dtype t, unsigned n, bool scores, __m256 *sums, const uint8_t *p, size_t half,
                     const float *x)
{
    __m256 a0, a1, all;
#define CASE(N)                                                                                    \
    if (n == N && scores) {                                                                        \
        EACH_TYPE(N, Q_STRIDE);                                                                    \
    } else if (n == N) {                                                                           \
        EACH_TYPE(N, P_STRIDE);                                                                    \
    }
    CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
}

/* Adds four pairs and prefetches the next block meanwhile: one line of each of its strips, because
 * memory answers four streams faster than one. */
INLINE void add_pairs_4(dtype t, unsigned n, bool scores, __m256 *sums, const uint8_t *p,
                        size_t step, size_t half, const float *x, const uint8_t *const *next,
                        size_t ahead)
{
    for (unsigned i = 0; i < 4; i++, p += step, x += 2) {
        prefetch_pair(t, next[i] + ahead, half);
        add_pair(t, n, scores, sums, p, half, x);
    }
}

/* ---- q . k: n rows x `strips` strips --------------------------------------------------------- */

INLINE void scores_tile(dtype t, unsigned n, unsigned strips, const kern_attn_strips *k,
                        uint32_t first, const float *q, uint32_t head_dim, float *s)
{
    __m256 acc[ROWS_MAX][8];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2 * strips; i++) acc[r][i] = _mm256_setzero_ps();
    const uint8_t *const *at = k->at + first;
    size_t off = 0, step = k->step, half = k->half;
    /* Prefetches the next block from all its strips in turn, a share for each tile of this block,
     * because memory answers four streams faster than one. */
    const unsigned n_groups = KERN_BLOCK_STRIPS / strips;
    size_t ahead = first / strips * (head_dim / 2 / n_groups) * step;
    unsigned group = 0;
    for (uint32_t d = 0; d < head_dim; d += 2, q += 2, off += step) {
        for (unsigned i = 0; i < strips; i++)
            prefetch_pair(t, k->next[group * strips + i] + ahead, half);
        group = (group + 1) % n_groups;
        if (group == 0) ahead += step;
        for (int which = 0; which < 2; which++) {
            __m256 a[8];
            for (unsigned i = 0; i < 2 * strips; i++)
                a[i] = load_half(t, at[i / 2] + off + i % 2 * 32, half, which);
            for (unsigned r = 0; r < n; r++)
                add_product(2 * strips, acc[r], a, q + r * KERN_ATTN_Q_STRIDE + which);
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2 * strips; i++)
            _mm256_storeu_ps(s + r * KERN_BLOCK + first * KERN_STRIP + i * 8,
                             lane_order(t, acc[r][i]));
}

/* Scores of 3 rows or more with one strip. */
INLINE void scores_strip(dtype t, unsigned n, const kern_attn_strips *k, uint32_t strip,
                         const float *q, uint32_t head_dim, float *s)
{
    __m256 sums[2 * ROWS_MAX];
    for (unsigned i = 0; i < 2 * n; i++) sums[i] = _mm256_setzero_ps();
    const uint8_t *const next[4] = {k->next[0], k->next[1], k->next[2], k->next[3]};
    const uint8_t *p = k->at[strip];
    const size_t step = k->step, half = k->half;
    size_t ahead = strip * (head_dim / 2 / KERN_BLOCK_STRIPS) * step;
    for (const float *end = q + head_dim; q < end; q += 8, p += 4 * step, ahead += step)
        add_pairs_4(t, n, true, sums, p, step, half, q, next, ahead);
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2; i++)
            _mm256_storeu_ps(s + r * KERN_BLOCK + strip * KERN_STRIP + i * 8,
                             lane_order(t, sums[2 * r + i]));
}

/* One or two rows take more strips (of 16 slots or 16 dims) at once, to hide the latency of an
 * FMA. */
INLINE unsigned width(unsigned n) { return n == 1 ? 4 : 2; }

INLINE void scores_rows(dtype t, unsigned n, const kern_attn_strips *k, uint32_t from, uint32_t to,
                        const float *q, uint32_t head_dim, float *s)
{
    if (n > 2) {
        for (; from < to; from++) scores_strip(t, n, k, from, q, head_dim, s);
        return;
    }
    for (; from + width(n) <= to; from += width(n))
        scores_tile(t, n, width(n), k, from, q, head_dim, s);
    for (; from < to; from++) scores_tile(t, n, 1, k, from, q, head_dim, s);
}

/* ---- p . v: n rows x `strips` of 16 dims ----------------------------------------------------- */

/* Adds slots [from, to), both even. Prefetches the next block as scores_tile does. */
INLINE void values_tile(dtype t, unsigned n, unsigned strips, const kern_attn_strips *v,
                        uint32_t from, uint32_t to, const float *p, const float *fix,
                        uint32_t head_dim, float *o, size_t dim)
{
    __m256 acc[ROWS_MAX][8];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2 * strips; i++)
            acc[r][i] = lane_order(t, _mm256_mul_ps(_mm256_loadu_ps(o + r * head_dim + dim + i * 8),
                                                    _mm256_set1_ps(fix[r])));
    const size_t step = v->step, half = v->half;
    unsigned next_strip = from / 2 % KERN_BLOCK_STRIPS;
    size_t ahead = from / (2 * KERN_BLOCK_STRIPS) * step + dim * 4;
    const float *x = p + from;
    for (uint32_t j = from; j < to;) {
        uint32_t strip = j / KERN_STRIP, stop = (strip + 1) * KERN_STRIP;
        if (stop > to) stop = to;
        const uint8_t *row = v->at[strip] + j % KERN_STRIP / 2 * step + dim * 4;
        for (; j < stop; j += 2, row += step, x += 2) {
            for (unsigned i = 0; i < strips; i++)
                prefetch_pair(t, v->next[next_strip] + ahead + i * 64, half);
            next_strip = (next_strip + 1) % KERN_BLOCK_STRIPS;
            if (next_strip == 0) ahead += step;
            for (int which = 0; which < 2; which++) {
                __m256 a[8];
                for (unsigned i = 0; i < 2 * strips; i++)
                    a[i] = load_half(t, row + i * 32, half, which);
                for (unsigned r = 0; r < n; r++)
                    add_product(2 * strips, acc[r], a, x + r * KERN_BLOCK + which);
            }
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2 * strips; i++)
            _mm256_storeu_ps(o + r * head_dim + dim + i * 8, lane_order(t, acc[r][i]));
}

/* Adds 16 dims for 3 rows or more. */
INLINE void values_strips(dtype t, unsigned n, const kern_attn_strips *v, uint32_t from,
                          uint32_t to, const float *p, const float *fix, uint32_t head_dim,
                          float *o, size_t dim)
{
    __m256 sums[2 * ROWS_MAX];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2; i++)
            sums[2 * r + i] =
                lane_order(t, _mm256_mul_ps(_mm256_loadu_ps(o + r * head_dim + dim + i * 8),
                                            _mm256_set1_ps(fix[r])));
    const size_t step = v->step, half = v->half;
    const uint8_t *const next[4] = {v->next[0] + dim * 4, v->next[1] + dim * 4,
                                    v->next[2] + dim * 4, v->next[3] + dim * 4};
    const float *x = p + from;
    size_t ahead = from / 8 * step;
    if (to - from == KERN_BLOCK) { /* nearly all blocks: spares the branches below */
        for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++, x += KERN_STRIP, ahead += 2 * step) {
            const uint8_t *row = v->at[i] + dim * 4;
            add_pairs_4(t, n, false, sums, row, step, half, x, next, ahead);
            add_pairs_4(t, n, false, sums, row + 4 * step, step, half, x + 8, next, ahead + step);
        }
        from = to;
    }
    for (uint32_t j = from; j < to;) {
        uint32_t strip = j / KERN_STRIP, stop = (strip + 1) * KERN_STRIP;
        if (stop > to) stop = to;
        const uint8_t *row = v->at[strip] + j % KERN_STRIP / 2 * step + dim * 4;
        for (; j + 8 <= stop; j += 8, x += 8, row += 4 * step, ahead += step)
            add_pairs_4(t, n, false, sums, row, step, half, x, next, ahead);
        for (; j < stop; j += 2, x += 2, row += step) add_pair(t, n, false, sums, row, half, x);
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < 2; i++)
            _mm256_storeu_ps(o + r * head_dim + dim + i * 8, lane_order(t, sums[2 * r + i]));
}

INLINE void values_rows(dtype t, unsigned n, const kern_attn_strips *v, uint32_t from, uint32_t to,
                        const float *p, const float *fix, uint32_t head_dim, float *o)
{
    size_t dim = 0;
    if (n > 2) {
        for (; dim < head_dim; dim += 16)
            values_strips(t, n, v, from, to, p, fix, head_dim, o, dim);
        return;
    }
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
        for (size_t dim = 0; dim < head_dim; dim += 8) {
            __m256 acc = _mm256_mul_ps(_mm256_loadu_ps(o + dim), _mm256_set1_ps(fix[r]));
            __m256 a =
                j % 2 ? load_half(t, row + dim * 4, v->half, 1) : load_half(t, row + dim * 4, 0, 0);
            _mm256_storeu_ps(o + dim, _mm256_fmadd_ps(_mm256_set1_ps(p[j]), lane_order(t, a), acc));
        }
}

INLINE void scores(dtype t, const kern_attn_strips *k, uint32_t from, uint32_t to, const float *q,
                   uint32_t n, uint32_t head_dim, float *s)
{
#define ROWS(N)                                                                                    \
    case N: scores_rows(t, N, k, from, to, q, head_dim, s); break;
    switch (n) {
        KERN_ATTN_EACH_6(ROWS)
    }
#undef ROWS
}

INLINE void values(dtype t, const kern_attn_strips *v, uint32_t from, uint32_t to, const float *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o)
{
    float fix[ROWS_MAX];
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
            KERN_ATTN_EACH_6(ROWS)
        }
#undef ROWS
        for (unsigned r = 0; r < n; r++) fix[r] = 1.0f;
    }
    if (from < to && to % 2 == 1) values_slot(t, n, v, even, p, fix, head_dim, o);
}

/* ---- softmax --------------------------------------------------------------------------------- */

enum { VECTORS = KERN_BLOCK / 8 };

/* Ones in the lanes of vector i that lie in [lo, hi). */
INLINE __m256 seen(uint32_t lo, uint32_t hi, int i)
{
    __m256i slot =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * i));
    __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), slot);
    __m256i under = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), slot);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, under));
}

/* 2^x for x <= 0, -inf included; NaN stays NaN, below 2^-126 it is 0. Relative error 5e-7, 2^0
 * is 1. */
INLINE __m256 weight_of(__m256 x)
{
    const __m256 shift = _mm256_set1_ps(0x1.8p23f + 127.0f); /* leaves n + 127 in the low bits */
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    __m256 n = _mm256_add_ps(x, shift), f = _mm256_sub_ps(x, _mm256_sub_ps(n, shift));
    __m256 p = _mm256_set1_ps(0x1.23a608p-10f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3cbea8p-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c74322p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfa4ep-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e39ep-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23));
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, power));
}

/* Softmax of one row. `all`: the row sees the whole block. Either way the lanes that it sees go
 * through the same operations. */
INLINE void softmax_row(kern_attn_row *row, float *s, bool all)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 top = none;
    for (int i = 0; i < VECTORS; i++) {
        __m256 x = _mm256_loadu_ps(s + 8 * i);
        if (!all) x = _mm256_blendv_ps(none, x, seen(row->lo, row->hi, i));
        top = _mm256_max_ps(top, x);
    }
    __m256 sum[2] = {_mm256_load_ps(row->sum), _mm256_load_ps(row->sum + 8)};
    row->fix = 1.0f;
    if (_mm256_movemask_ps(_mm256_cmp_ps(top, _mm256_set1_ps(row->max), _CMP_GT_OQ))) {
        float max = max_avx2(top);
        __m256 fix = exp2_avx2(_mm256_set1_ps(row->max - max));
        row->fix = _mm256_cvtss_f32(fix);
        row->max = max;
        sum[0] = _mm256_mul_ps(sum[0], fix);
        sum[1] = _mm256_mul_ps(sum[1], fix);
    }
    __m256 max = _mm256_set1_ps(row->max);
    for (int i = 0; i < VECTORS; i++) {
        __m256 x = weight_of(_mm256_sub_ps(_mm256_loadu_ps(s + 8 * i), max));
        if (!all) x = _mm256_and_ps(x, seen(row->lo, row->hi, i));
        _mm256_storeu_ps(s + 8 * i, x);
        sum[i % 2] = _mm256_add_ps(sum[i % 2], x);
    }
    _mm256_store_ps(row->sum, sum[0]);
    _mm256_store_ps(row->sum + 8, sum[1]);
    if (!row->mass) return;
    __m256 h[KERN_BLOCK_STRIPS];
    for (int i = 0; i < KERN_BLOCK_STRIPS; i++)
        h[i] = _mm256_add_ps(_mm256_loadu_ps(s + 16 * i), _mm256_loadu_ps(s + 16 * i + 8));
    __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    _mm_storeu_ps(row->mass, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
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

/* 8 floats to 8 two-byte values. */
INLINE __m128i narrow(dtype t, __m256 x)
{
    if (t == DTYPE_F16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i w = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

INLINE void kv_write(dtype t, const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                     const float *v)
{
    /* Only this slot's bytes are stored: its neighbours may be written by other threads. */
    uint8_t *keys = (uint8_t *)tile + slot * 4;
    uint8_t *values = (uint8_t *)tile + kern_kv_values_at(s) +
                      (size_t)(slot / 2) * s->head_dim * 4 + slot % 2 * 2;
    size_t step = (size_t)s->page_tokens * 4;
    for (size_t d = 0; d < s->head_dim; d += 8) {
        uint32_t pairs[4];
        uint16_t halves[8];
        _mm_storeu_si128((__m128i *)pairs, narrow(t, _mm256_loadu_ps(k + d)));
        _mm_storeu_si128((__m128i *)halves, narrow(t, _mm256_loadu_ps(v + d)));
        for (size_t i = 0; i < 4; i++) memcpy(keys + (d / 2 + i) * step, &pairs[i], 4);
        for (size_t i = 0; i < 8; i++) memcpy(values + (d + i) * 4, &halves[i], 2);
    }
}

static void widen_bf16(const void *from, size_t n, float *out)
{
    const uint16_t *halves = from;
    for (size_t i = 0; i < n; i += 8) {
        __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(halves + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)));
    }
}

static void widen_f16(const void *from, size_t n, float *out)
{
    const uint16_t *halves = from;
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + i))));
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

void kern_attention_fill_avx2(kern_isa *isa)
{
    FILL(f32, KERN_KV_F32);
    FILL(bf16, KERN_KV_BF16);
    FILL(f16, KERN_KV_F16);
    isa->kv_write[KERN_KV_BF16] = kv_write_bf16;
    isa->kv_write[KERN_KV_F16] = kv_write_f16;
    isa->widen[KERN_KV_BF16] = widen_bf16;
    isa->widen[KERN_KV_F16] = widen_f16;
    isa->attn_rows = ROWS_MAX;
    isa->attn_softmax = softmax;
    kern_attention_int8_fill_avx2(isa);
}
