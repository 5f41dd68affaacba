/* Attention over bf16 pages in bf16 dot products (AVX512-BF16), for the standard precision: q and p
 * are rounded to bf16, sums are f32. K and V already lie in pairs along the axis that is summed
 * over, which is what vdpbf16ps reads, so nothing is widened.
 *
 * Each score is one chain of vdpbf16ps over the pairs of dims ascending, each output one chain over
 * the pairs of slots ascending. A slot that a row does not see has p = 0 and adds an exact 0, so a
 * row's bits do not depend on the rows that share its tile. vdpbf16ps treats denormals as zeros. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx512.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS_MAX = 12,                        /* 12 rows x 2 vectors, 2 of K or V, a pair of q or p */
    P_STRIDE = KERN_BLOCK * 2,            /* a row of p overwrites its f32 scores */
    Q_STRIDE = KERN_ATTN_Q_STRIDE * 2,    /* a row of q lies in the space of its floats */
    PAIR_VECTORS = KERN_BLOCK_STRIPS / 2, /* vectors of 32 bf16 that a block's p fill */
    APART_BYTES = 256, /* from pair to pair of dims: pages of 64 tokens or more */
};

INLINE __m512bh load_pairs(const uint8_t *p) { return (__m512bh)_mm512_loadu_si512(p); }

INLINE __m512bh broadcast_pair(const uint16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Few rows take more vectors at once: 8 chains or more hide the latency of a dot product. */
INLINE unsigned width(unsigned n) { return n <= 6 ? 4 : 2; }

/* Prefetches a line of the next block beside a tile of n rows. A tile with fewer rows than those of
 * prefill waits for memory: its lines go to the first-level cache. */
INLINE void prefetch_beside(unsigned n, const uint8_t *line)
{
    if (n < ROWS_MAX) _mm_prefetch((const char *)line, _MM_HINT_T0);
    else _mm_prefetch((const char *)line, _MM_HINT_T1);
}

static void pack_query(const float *q, float scale, uint32_t head_dim, uint16_t *out)
{
    const __m512 factor = _mm512_set1_ps(scale);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(q + d), factor);
        __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(_mm512_setzero_ps(), x);
        _mm256_storeu_si256((__m256i *)(out + d), _mm512_castsi512_si256(pairs));
    }
}

/* ---- q . k: n rows x `strips` strips --------------------------------------------------------- */

INLINE void scores_tile(unsigned n, unsigned strips, const kern_attn_strips *k, uint32_t first,
                        const uint16_t *q, uint32_t head_dim, float *s)
{
    __m512 sums[ROWS_MAX][4];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < strips; i++) sums[r][i] = _mm512_setzero_ps();
    /* The calls for one block prefetch the next block together, a line of each of its strips in
     * turn, because memory answers four streams faster than two. In large pages a strip's lines lie
     * apart, and for few rows it is faster that each call prefetches its own strips. */
    const bool own = n < ROWS_MAX && k->step >= APART_BYTES;
    const unsigned n_groups = own ? 1 : KERN_BLOCK_STRIPS / strips;
    const uint8_t *const *next = k->next + (own ? first : 0);
    size_t off = 0, ahead = own ? 0 : first / strips * (head_dim / 2 / n_groups) * k->step;
    unsigned group = 0;
    for (uint32_t d = 0; d < head_dim; d += 2, q += 2, off += k->step) {
        __m512bh a[4];
        for (unsigned i = 0; i < strips; i++) {
            a[i] = load_pairs(k->at[first + i] + off);
            prefetch_beside(n, next[group * strips + i] + ahead);
        }
        if (++group == n_groups) {
            group = 0;
            ahead += k->step;
        }
        for (unsigned r = 0; r < n; r++) {
            __m512bh x = broadcast_pair(q + r * Q_STRIDE);
            for (unsigned i = 0; i < strips; i++)
                sums[r][i] = _mm512_dpbf16_ps(sums[r][i], x, a[i]);
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < strips; i++)
            _mm512_storeu_ps(s + r * KERN_BLOCK + (first + i) * KERN_STRIP, sums[r][i]);
}

INLINE void scores_rows(unsigned n, const kern_attn_strips *k, uint32_t from, uint32_t to,
                        const uint16_t *q, uint32_t head_dim, float *s)
{
    for (; from + width(n) <= to; from += width(n))
        scores_tile(n, width(n), k, from, q, head_dim, s);
    for (; from < to; from++) scores_tile(n, 1, k, from, q, head_dim, s);
}

static void scores(const kern_attn_strips *k, uint32_t from, uint32_t to, const uint16_t *q,
                   uint32_t n, uint32_t head_dim, float *s)
{
#define ROWS(N)                                                                                    \
    case N: scores_rows(N, k, from, to, q, head_dim, s); break;
    switch (n) {
        KERN_ATTN_EACH_12(ROWS)
    }
#undef ROWS
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* 2^x for x <= 0, to be rounded to bf16: a relative error of 2^-13.7 before that. Minus infinity
 * gives 0, as in exp2_avx512. */
INLINE __m512 exp2_for_bf16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0x1.c3f76p-5f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.f0de1ap-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62f31ap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fff692p-1f));
    return _mm512_scalef_ps(p, n);
}

/* The sums of p over the two strips of a vector of bf16. */
INLINE void sum_strips(__m512i p, float *sums)
{
    __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(p, 16));
    __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(p, _mm512_set1_epi32((int)0xffff0000u)));
    __m512 pairs = _mm512_add_ps(even, odd);
    __m256 h = _mm256_hadd_ps(_mm512_castps512_ps256(pairs), _mm512_extractf32x8_ps(pairs, 1));
    h = _mm256_hadd_ps(h, h);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    _mm_storel_pi((__m64 *)sums, q);
}

/* Sets the maximum to a larger score, and rescales the sum so far to it. */
INLINE __m512 raise_max(kern_attn_row *row, __m512 top, __m512 sum)
{
    float max = max_avx512(top);
    __m512 fix =
        exp2_avx512(_mm512_max_ps(_mm512_set1_ps(-200.0f), _mm512_set1_ps(row->max - max)));
    row->fix = _mm512_cvtss_f32(fix);
    row->max = max;
    return _mm512_mul_ps(sum, fix);
}

/* Bit j: the row sees slot j of the block. */
INLINE uint64_t seen(const kern_attn_row *row)
{
    uint64_t under = row->hi < 64 ? (UINT64_C(1) << row->hi) - 1 : ~UINT64_C(0);
    return under & (~UINT64_C(0) << row->lo);
}

/* Softmax of one row. `all`: the row sees the whole block; either way the lanes that it sees go
 * through the same operations. The sum adds up p as rounded, which is what V is multiplied by, so
 * the weights add up to one. */
INLINE void softmax_row(kern_attn_row *row, float *s, bool all)
{
    const uint64_t mask = all ? ~UINT64_C(0) : seen(row);
    __m512 x[KERN_BLOCK_STRIPS];
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++)
        x[i] = all ? _mm512_loadu_ps(s + i * KERN_STRIP)
                   : _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY),
                                          (__mmask16)(mask >> i * KERN_STRIP), s + i * KERN_STRIP);
    __m512 top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    __m512 sum = _mm512_load_ps(row->sum);
    row->fix = 1.0f;
    if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(row->max), _CMP_GT_OQ))
        sum = raise_max(row, top, sum);
    const __m512 max = _mm512_set1_ps(row->max);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (unsigned i = 0; i < KERN_BLOCK_STRIPS; i++) {
        x[i] = exp2_for_bf16(_mm512_sub_ps(x[i], max));
        if (!all) x[i] = _mm512_maskz_mov_ps((__mmask16)(mask >> i * KERN_STRIP), x[i]);
    }
    for (unsigned i = 0; i < PAIR_VECTORS; i++) {
        __m512bh p = _mm512_cvtne2ps_pbh(x[2 * i + 1], x[2 * i]);
        _mm512_storeu_si512((uint16_t *)s + i * 2 * KERN_STRIP, (__m512i)p);
        sum = _mm512_dpbf16_ps(sum, p, ones);
        if (row->mass) sum_strips((__m512i)p, row->mass + 2 * i);
    }
    _mm512_store_ps(row->sum, sum);
}

static void softmax(kern_attn_row *rows, uint32_t n, float *s)
{
    for (uint32_t r = 0; r < n; r++, s += KERN_BLOCK) {
        if (rows[r].lo == 0 && rows[r].hi == KERN_BLOCK) {
            softmax_row(&rows[r], s, true);
        } else if (rows[r].lo < rows[r].hi) {
            softmax_row(&rows[r], s, false);
        } else {
            rows[r].fix = 1.0f;
            memset(s, 0, KERN_BLOCK * sizeof(uint16_t));
        }
    }
}

/* ---- p . v: n rows x `vectors` of 16 dims ---------------------------------------------------- */

/* The line of V to prefetch while slots j and j + 1 are attended to: the next block's strips take
 * turns. */
INLINE const uint8_t *next_values(const kern_attn_strips *v, uint32_t j, size_t dim)
{
    return v->next[j / 2 % KERN_BLOCK_STRIPS] + j / (2 * KERN_BLOCK_STRIPS) * v->step + dim * 4;
}

/* Strips whose V one call for few rows prefetches in turn, each from its beginning to its end: the
 * calls for one block share them. 0: the calls do not divide the strips. */
INLINE unsigned strips_in_turn(unsigned n, unsigned vectors, uint32_t head_dim)
{
    const uint32_t calls = head_dim / (vectors * 16);
    return n < ROWS_MAX && calls > 0 && KERN_BLOCK_STRIPS % calls == 0 ? KERN_BLOCK_STRIPS / calls
                                                                       : 0;
}

/* Adds slots [from, to), both even. */
INLINE void values_tile(unsigned n, unsigned vectors, const kern_attn_strips *v, uint32_t from,
                        uint32_t to, const uint16_t *p, const kern_attn_row *rows,
                        uint32_t head_dim, float *o, size_t dim)
{
    __m512 sums[ROWS_MAX][4];
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++)
            sums[r][i] = _mm512_mul_ps(_mm512_loadu_ps(o + r * head_dim + dim + i * 16),
                                       _mm512_set1_ps(rows[r].fix));
    const unsigned turn = strips_in_turn(n, vectors, head_dim);
    const unsigned shift = turn / 2; /* log2 of 1, 2, 4 */
    const size_t strip0 = dim / (vectors * 16) * turn;
    for (uint32_t j = from; j < to;) {
        uint32_t strip = j / KERN_STRIP, stop = (strip + 1) * KERN_STRIP;
        if (stop > to) stop = to;
        size_t off = j % KERN_STRIP / 2 * v->step + dim * 4;
        const uint8_t *at = v->at[strip] + off;
        for (; j < stop; j += 2, at += v->step) {
            const uint8_t *next =
                turn ? v->next[strip0 + (j / 2 & (turn - 1))] + (j / 2 >> shift) * vectors * 64
                     : next_values(v, j, dim);
            __m512bh a[4];
            for (unsigned i = 0; i < vectors; i++) {
                a[i] = load_pairs(at + i * 64);
                prefetch_beside(n, next + i * 64);
            }
            for (unsigned r = 0; r < n; r++) {
                __m512bh x = broadcast_pair(p + r * P_STRIDE + j);
                for (unsigned i = 0; i < vectors; i++)
                    sums[r][i] = _mm512_dpbf16_ps(sums[r][i], x, a[i]);
            }
        }
    }
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < vectors; i++)
            _mm512_storeu_ps(o + r * head_dim + dim + i * 16, sums[r][i]);
}

INLINE void values_rows(unsigned n, const kern_attn_strips *v, uint32_t from, uint32_t to,
                        const uint16_t *p, const kern_attn_row *rows, uint32_t head_dim, float *o)
{
    size_t dim = 0;
    for (; dim + width(n) * 16 <= head_dim; dim += width(n) * 16)
        values_tile(n, width(n), v, from, to, p, rows, head_dim, o, dim);
    for (; dim < head_dim; dim += 16) values_tile(n, 1, v, from, to, p, rows, head_dim, o, dim);
}

static void values(const kern_attn_strips *v, uint32_t from, uint32_t to, const uint16_t *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o)
{
#define ROWS(N)                                                                                    \
    case N: values_rows(N, v, from, to, p, rows, head_dim, o); break;
    switch (n) {
        KERN_ATTN_EACH_12(ROWS)
    }
#undef ROWS
}

/* ---- slots that are not seen ----------------------------------------------------------------- */

/* Whether a lane is infinite or NaN: these have all bits of the exponent set. */
INLINE bool has_no_number(__m512i pairs)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, exponent), exponent) != 0;
}

static bool seen_values(const kern_attn_strips *v, uint32_t lo, uint32_t hi, uint32_t head_dim,
                        uint8_t *out)
{
    bool finite = true;
    for (uint32_t j = lo & ~1u; j < hi; j += 2) {
        const uint8_t *from = v->at[j / KERN_STRIP] + j % KERN_STRIP / 2 * v->step;
        uint32_t bits = 0xffffffffu;
        if (j < lo) bits &= 0xffff0000u;
        if (j + 1 >= hi) bits &= 0x0000ffffu;
        const __m512i mask = _mm512_set1_epi32((int)bits);
        for (uint32_t d = 0; d < head_dim; d += 16) {
            __m512i pairs = _mm512_and_si512(_mm512_loadu_si512(from + d * 4), mask);
            finite = finite && !has_no_number(pairs);
            _mm512_storeu_si512(out + ((size_t)j / 2 * head_dim + d) * 4, pairs);
        }
    }
    return finite;
}

static const kern_attn_dots dots = {
    .rows = ROWS_MAX,
    .pack_query = pack_query,
    .scores = scores,
    .softmax = softmax,
    .values = values,
    .seen_values = seen_values,
};

void kern_attention_fill_bf16(kern_isa *isa)
{
    if (isa->precision == KERN_PRECISION_STANDARD) isa->attn_dots = &dots;
}

/* Removes the bf16 dot products. CPUs with AMX run vdpbf16ps at a third of the rate of FMA
 * (Sapphire Rapids: 64 and 195 GFLOP/s on a core), so f32 is faster there. */
void kern_attention_fill_amx(kern_isa *isa) { isa->attn_dots = NULL; }
