/* kernels, private: the table of inner loops, one for each context.
 *
 * The reference fills every entry; each ISA up to the one in use then overwrites what it does
 * better (context.c lists the ISAs and their fill functions). So a missing fast version is a slower
 * operation, never a missing one, and a new ISA is one file for each operation and one row.
 *
 * The functions work on one piece and know nothing of threads: op level (matmul.c, rows.c,
 * attention.c) cuts the work, keeps the scratch and handles edges. Arrays of KERN_DTYPES are
 * indexed by dtype, those of KERN_KV_FORMATS by format. */
#ifndef KERNELS_ISA_H
#define KERNELS_ISA_H

#include "kernels/attention.h"
#include "kernels/kernels.h"

enum {
    KERN_DTYPES = 3,
    KERN_QUANTS = 3,       /* 8, 4 and 12 bits: their arrays are indexed by kern_quant_index */
    KERN_TILE_ROWS = 24,   /* most rows that any ISA's matmul tile takes */
    KERN_COSINE_ROWS = 32, /* rows that are f32 at a time */
};

static inline unsigned kern_quant_index(kern_quant q)
{
    return q.bits == 8 ? 0 : q.bits == 4 ? 1 : 2;
}

/* The lines that a tile prefetches while it computes. In each round (64 bytes of every panel) it
 * prefetches the line at `at`, then one line for each further panel, `stride` bytes apart. Then
 * `at` moves by `step`. */
typedef struct kern_ahead {
    const uint8_t *at;
    size_t stride, step;
} kern_ahead;

/* acc [panels][rows][16] f32 += x [k][rows] f32 times panels of w, panel i starting at w + i *
 * w_stride bytes: for each element one chain of fused multiply-adds over k ascending. */
typedef void (*kern_tile_fn)(const void *w, size_t w_stride, size_t k, const float *x, float *acc,
                             const kern_ahead *ahead);

/* ---- quantised: the packed x of a tile lies group by group, each
 *     wide      q of all rows, 16 bits each; scale [rows] f32. x beside weights of 12 bits is wide
 *     narrow    q of all rows, 8 bits each; scale [rows] f32, start [rows] int32
 * start is the value that a tile begins a group's sums with: a tile that reads weights as q +
 * offset starts with -offset times the sum of x's integers. Each ISA has its own order of q, its
 * own starts and its own width of x. The bits that the integers use, wide ones too, depend on the
 * precision alone. */
static inline size_t kern_quant_x_bytes(bool wide, unsigned group)
{
    return wide ? (size_t)2 * group + 4 : (size_t)group + 8;
}

/* Quantises `groups` groups of x, as row r of a tile of `rows`. */
typedef void (*kern_quant_x_fn)(const float *x, size_t groups, unsigned group, size_t rows,
                                size_t r, uint8_t *out);

/* The bytes of two groups of a panel with their scales. */
static inline size_t kern_quant_bytes(kern_quant q)
{
    return 64 + (size_t)2 * q.group * KERN_PANEL * q.bits / 8;
}

/* The contract of kern_tile_fn, with k a multiple of two groups. */
typedef void (*kern_quant_tile_fn)(const void *w, size_t w_stride, size_t k, unsigned group,
                                   const void *x, float *acc, const kern_ahead *ahead);

/* A kern_quant_tile_fn of one panel in two functions: the first unpacks the panel's k columns, and
 * the second reads them unpacked, from 64-byte aligned scratch: for each group 64 bytes of scales,
 * then its weights in 8 bits (of 4) or 16 (of 8 and 12). */
typedef void (*kern_unpacking_tile_fn)(const uint8_t *w, uint8_t *unpacked, size_t k,
                                       unsigned group, const void *x, float *acc,
                                       const kern_ahead *ahead);
typedef void (*kern_unpacked_tile_fn)(uint8_t *unpacked, size_t k, unsigned group, const void *x,
                                      float *acc, const kern_ahead *ahead);

/* ---- blocks, for ISAs whose instructions sum more than one product at a time. x is cut into tiles
 * of R rows; the last tile has zeros where rows are missing. A tile of x is laid out by units of
 * columns:
 *     bf16        [k / 32][parts][R][32]. Standard precision has one part, x rounded; high
 *                 precision has two, x rounded and the rounded remainder.
 *     quantised   group by group as above, with R rows
 * One call multiplies some tiles with a piece of some panels. */
enum { KERN_DOT_ROWS = 16 };

typedef struct kern_dot_block {
    const uint8_t *w;
    const uint8_t *next; /* the weights of the next call; its panels lie w_stride apart too */
    size_t w_stride, panels;
    size_t k; /* columns; quantised: whole pairs of groups */
    unsigned group;
    const uint8_t *x;             /* tile t at x + t * x_stride bytes */
    size_t x_stride, tiles, rows; /* rows: R */
    float *acc;                   /* [panels][tiles][R][16] f32 sums; the call adds to them */
} kern_dot_block;

typedef struct kern_dot_ops {
    size_t min_rows; /* fewer rows go by tiles; above 1 only if both give the same bits */
    bool x_wide;     /* quantised: x is wide */
    /* R for a product of m rows, at most KERN_DOT_ROWS. */
    size_t (*rows)(size_t m);
    /* Panels of a call (at most 16) with this many tiles of R rows. */
    size_t (*panels)(size_t rows, size_t tiles);
    size_t few_k, k;      /* columns of a call with one tile and with more; 0 = all */
    kern_quant_x_fn pack; /* bf16: `groups` counts units, group is 0 */
    /* Called before and after a thread runs blocks. May be NULL. */
    void (*begin)(size_t rows, unsigned group);
    void (*run)(const kern_dot_block *b);
    void (*end)(void);
} kern_dot_ops;

/* ---- attention in bf16 dot products, over bf16 pages and pages read as bf16. q and p are rounded
 * to bf16. A row of p overwrites the scores of that row, so both have the same stride in bytes. */
typedef struct kern_attn_dots {
    unsigned rows; /* most rows of a tile, <= KERN_ATTN_ROWS */
    /* out [head_dim] = q * scale. */
    void (*pack_query)(const float *q, float scale, uint32_t head_dim, uint16_t *out);
    /* The contract of attn_scores; q [n][2 * KERN_ATTN_Q_STRIDE]. */
    void (*scores)(const kern_attn_strips *k, uint32_t from, uint32_t to, const uint16_t *q,
                   uint32_t n, uint32_t head_dim, float *s);
    /* The contract of attn_softmax, except that every slot of the block gets a p: 0 where the row
     * does not see it. Sums are of the rounded p; a lane of a row's sum holds pairs of slots. */
    void (*softmax)(kern_attn_row *rows, uint32_t n, float *s);
    /* The contract of attn_values, with from and to even; p [n][2 * KERN_BLOCK]. V must be finite
     * in every slot that is not seen by all n rows. */
    void (*values)(const kern_attn_strips *v, uint32_t from, uint32_t to, const uint16_t *p,
                   const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o);
    /* out [KERN_BLOCK / 2][head_dim][2] = V of slots [lo, hi). In the first and the last pair a
     * slot outside that range becomes 0; other pairs stay unwritten. Returns whether all copied
     * values are finite. */
    bool (*seen_values)(const kern_attn_strips *v, uint32_t lo, uint32_t hi, uint32_t head_dim,
                        uint8_t *out);
} kern_attn_dots;

/* The places of blocks' vectors, in bf16 [head_dim]: block i has its vectors at page
 * pages[i * step], with `stride` elements from page to page. */
typedef struct kern_vectors {
    const uint16_t *first, *second; /* second may be NULL */
    size_t stride;
    uint32_t head_dim, step;
} kern_vectors;

typedef struct kern_isa {
    const char *name;
    kern_precision precision; /* set before the fill functions run, which read it */

    /* ---- matmul ---- */
    /* Bytes that a lone tile of one row prefetches ahead in each of its streams; 0: as many as a
     * tile of more rows does. */
    unsigned row_ahead;
    unsigned tile_rows;                                 /* most rows of a tile, <= KERN_TILE_ROWS */
    uint8_t tile_panels[KERN_TILE_ROWS + 1];            /* panels of a tile with this many rows */
    kern_tile_fn tile[KERN_DTYPES][KERN_TILE_ROWS + 1]; /* tile_panels[rows] panels */
    kern_tile_fn tile1[KERN_DTYPES][KERN_TILE_ROWS + 1]; /* one panel */
    /* out [k][rows] = the transpose of x [rows, k], rows <= KERN_TILE_ROWS. May write up to
     * KERN_PANEL floats beyond it. */
    void (*pack_x)(const float *x, size_t x_stride, size_t rows, size_t k, float *out);
    const kern_dot_ops *bf16_block; /* NULL: products go by tiles */

    /* ---- matmul, quantised. Block floats (12 bits) are for the ISAs that prefer them, and for the
     * reference. ---- */
    kern_quant block_floats; /* kern_block_floats of bf16, from context.c's table; bits 0: none */
    const kern_dot_ops *quant_block[KERN_QUANTS]; /* NULL: products go by tiles */
    unsigned quant_rows; /* like tile_rows; quant_panels like tile_panels */
    uint8_t quant_panels[KERN_QUANTS][KERN_TILE_ROWS + 1];
    /* For a product of several tiles. A tile has at most quant_many_rows rows, in wider groups than
     * the smallest at most quant_rows, unless some tile would then have less than quant_many_least;
     * it takes quant_many panels, which is 1 or the value of quant_panels for that many rows. */
    uint8_t quant_many, quant_many_rows, quant_many_least;
    /* Bytes ahead that a lone tile prefetches, over all its streams. One row has row_ahead instead,
     * unless that is 0. */
    unsigned quant_ahead[KERN_QUANTS];
    kern_quant_tile_fn quant_tile[KERN_QUANTS][KERN_TILE_ROWS + 1];
    kern_quant_tile_fn quant_tile1[KERN_QUANTS][KERN_TILE_ROWS + 1];
    /* True: in a block of several tiles the first tile, from quant_unpacking, also writes the
     * weights to `unpacked`, and the other tiles, from quant_unpacked, read them there. Their
     * results have the bits of quant_tile1, and quant_many is 1. */
    bool quant_unpacks;
    kern_unpacking_tile_fn quant_unpacking[KERN_QUANTS][KERN_TILE_ROWS + 1];
    kern_unpacked_tile_fn quant_unpacked[KERN_QUANTS][KERN_TILE_ROWS + 1];
    bool quant_x_wide[KERN_QUANTS]; /* whether x of a tile is wide */
    kern_quant_x_fn quant_x[KERN_QUANTS];
    /* Quantises a group of weights to int8_t, or int16_t for 12 bits; returns the scale as it is
     * stored. */
    uint16_t (*quant_w[KERN_QUANTS])(const float *w, unsigned group, void *q);

    /* ---- rows: one row each; shapes as in kernels.h ---- */
    void (*rmsnorm)(const float *x, const float *weight, float eps, size_t d, float *out);
    void (*add_rmsnorm)(float *x, const float *delta, const float *weight, float eps, size_t d,
                        float *out);
    void (*swiglu)(const float *gate, const float *up, size_t d, float *out); /* out may be gate */
    void (*rope)(float *x, const float *cos_sin, size_t n_heads, size_t head_dim);

    /* ---- KV pages and attention ---- */
    void (*kv_write[KERN_KV_FORMATS])(const kern_kv_shape *s, void *tile, uint32_t slot,
                                      const float *k, const float *v);
    void (*kv_read[KERN_KV_FORMATS])(const kern_kv_shape *s, const void *tile, uint32_t slot,
                                     float *k, float *v);
    /* Formats with grids alone have these two. kv_pack is kern_kv_pack. kv_strip reads 16 slots of
     * a tile from `slot` on as bf16: k [head_dim / 2][16][2] and v [8][head_dim][2]. */
    void (*kv_pack[KERN_KV_FORMATS])(const kern_kv_shape *s, const void *wide, void *tile);
    void (*kv_strip[KERN_KV_FORMATS])(const kern_kv_shape *s, const void *tile, uint32_t slot,
                                      uint8_t *k, uint8_t *v);
    /* Formats with grids have no functions from here on: their strips are read as bf16.
     *
     * out [n] = n elements as f32, int8 ones without their scale; n is a multiple of 16. */
    void (*widen[KERN_KV_FORMATS])(const void *from, size_t n, float *out);
    unsigned attn_rows; /* rows of a tile, <= KERN_ATTN_ROWS */
    /* s [n][KERN_BLOCK] = q . k for strips [from, to); q [n][KERN_ATTN_Q_STRIDE]. */
    void (*attn_scores[KERN_KV_FORMATS])(const kern_attn_strips *k, uint32_t from, uint32_t to,
                                         const float *q, uint32_t n, uint32_t head_dim, float *s);
    /* Online softmax: s [n][KERN_BLOCK] becomes p inside [lo, hi) of each row; sets the row's max,
     * sum, fix and *mass. Rows that see nothing get fix = 1. */
    void (*attn_softmax)(kern_attn_row *rows, uint32_t n, float *s);
    /* o [n][head_dim] = o * fix + p . v over slots [from, to). */
    void (*attn_values[KERN_KV_FORMATS])(const kern_attn_strips *v, uint32_t from, uint32_t to,
                                         const float *p, const kern_attn_row *rows, uint32_t n,
                                         uint32_t head_dim, float *o);
    /* Attention over int8 pages with q [n][KERN_ATTN_INT_STRIDE] and p as 16-bit integers
     * (attention.h). Each slot of [from, to) is seen by some row. attn_int_rows = 0: int8 pages go
     * through the functions above. */
    unsigned attn_int_rows;
    /* out [head_dim] = q * scale as integers. Returns their scale: NaN when an element of q is not
     * finite. */
    float (*attn_int_query)(const float *q, float scale, uint32_t head_dim, int16_t *out);
    void (*attn_int_scores)(const kern_attn_strips *k, uint32_t from, uint32_t to, const int16_t *q,
                            const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *s);
    void (*attn_int_values)(const kern_attn_strips *v, uint32_t from, uint32_t to, const float *p,
                            const kern_attn_row *rows, uint32_t n, uint32_t head_dim, float *o);
    const kern_attn_dots *attn_dots; /* NULL: bf16 pages go through the functions above */

    /* ---- retrieval: out [n] = folded [1 or 2 vectors] . vectors of each block, summed as
     * kern_score_blocks says. pages has n_known blocks, at least n; the others are for
     * prefetching ---- */
    void (*block_scores)(const kern_vectors *v, const uint32_t *pages, size_t n, size_t n_known,
                         const float *folded, float *out);

    /* ---- cosines: n <= KERN_COSINE_ROWS rows ---- */
    /* out [n, stride] = rows [n, dim] of f16, padded with zeros to stride, the next multiple of 16;
     * squares [n] = the sum of each row's squares. */
    void (*widen_rows)(const uint16_t *rows, size_t n, size_t dim, size_t stride, float *out,
                       float *squares);
    /* out [n][16] = the products of each row with the 16 columns of question [dim][16]. */
    void (*row_products)(const float *rows, size_t stride, size_t n, const float *question,
                         size_t dim, float *out);

    /* ---- limits: `rounds` rounds of independent instructions in registers. Each returns the
     * operations done, two for a product and its sum; *sink keeps the compiler from dropping
     * them. ---- */
    double (*fma_burst)(size_t rounds, float *sink);  /* f32 */
    double (*dot_burst)(size_t rounds, float *sink);  /* bf16 dot products; NULL: none */
    double (*pair_burst)(size_t rounds, float *sink); /* 16-bit integers; NULL: none */
    double (*int_burst)(size_t rounds, float *sink);  /* 8-bit integers */
} kern_isa;

/* The instructions that attention over pages of a format multiplies with. */
typedef enum kern_attn_way {
    KERN_ATTN_BY_FMA,
    KERN_ATTN_BY_DOTS, /* attn_dots */
    KERN_ATTN_BY_INTS, /* attn_int_* */
} kern_attn_way;

static inline kern_attn_way kern_attention_way(const kern_isa *isa, kern_kv_format format)
{
    if (format == KERN_KV_INT8 && isa->attn_int_rows > 0) return KERN_ATTN_BY_INTS;
    const bool bf16 = format == KERN_KV_BF16 || kern_kv_has_grids(format);
    return bf16 && isa->attn_dots ? KERN_ATTN_BY_DOTS : KERN_ATTN_BY_FMA;
}

/* Fills the table of an ISA, by its name or NULL for the fastest here. */
status kern_isa_find(const char *name, kern_isa *out, error *err);

/* One function for each operation and ISA; the list in context.c calls them slow to fast. */
void kern_matmul_fill_ref(kern_isa *isa);
void kern_quant_fill_ref(kern_isa *isa);
void kern_rows_fill_ref(kern_isa *isa);
void kern_attention_fill_ref(kern_isa *isa);
void kern_kv_grids_fill_ref(kern_isa *isa);
void kern_block_scores_fill_ref(kern_isa *isa);
void kern_cosines_fill_ref(kern_isa *isa);
#if defined(__x86_64__)
void kern_matmul_fill_avx2(kern_isa *isa);
void kern_matmul_fill_avx512(kern_isa *isa);
void kern_quant_fill_avx2(kern_isa *isa);
void kern_quant_fill_vnni(kern_isa *isa);
void kern_matmul_fill_bf16(kern_isa *isa);
void kern_matmul_fill_amx(kern_isa *isa);
void kern_quant_fill_amx(kern_isa *isa);
void kern_rows_fill_avx2(kern_isa *isa);
void kern_kv_fill_avx2(kern_isa *isa);
void kern_kv_grids_fill_avx2(kern_isa *isa);
void kern_block_scores_fill_avx2(kern_isa *isa);
void kern_block_scores_fill_avx512(kern_isa *isa);
void kern_cosines_fill_avx2(kern_isa *isa);
void kern_cosines_fill_avx512(kern_isa *isa);
void kern_rows_fill_avx512(kern_isa *isa);
void kern_attention_fill_avx2(kern_isa *isa);
void kern_attention_int8_fill_avx2(kern_isa *isa);
void kern_attention_fill_vnni(kern_isa *isa);
void kern_attention_fill_bf16(kern_isa *isa);
void kern_attention_fill_amx(kern_isa *isa);
void kern_attention_fill_avx512(kern_isa *isa);
void kern_burst_fill_avx2(kern_isa *isa);
void kern_burst_fill_avx512(kern_isa *isa);
void kern_burst_fill_vnni(kern_isa *isa);
void kern_burst_fill_bf16(kern_isa *isa);
void kern_burst_fill_amx(kern_isa *isa);
#endif

#endif
