/* kernels: the arithmetic of a forward pass on one machine's CPU.
 *
 * What     matrix products on packed weights, RMSNorm, RoPE, SwiGLU, paged attention with page
 *          mass, KV writes and moves. Each operation has a plain C reference and faster versions
 *          for each ISA, behind one table (isa.h) that is filled when a context is made.
 * Owner    a context owns its scratch; matrices and buffers belong to the caller.
 * Threads  operations run on the context's thread pool; one operation at a time for each context.
 * Shapes   row-major, given beside each argument; activations are f32.
 * Invariance   the value of an output row never depends on how many rows are computed with it, on
 *          how the work is cut, or on which thread does it: each output element has one order of
 *          summation. It may differ between ISAs.
 * Errors   arguments are the caller's duty (asserted); only creation can fail, and attention for
 *          want of scratch. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/kv_format.h"

typedef struct kern_context kern_context;

/* How exactly activations enter a product.
 *
 * standard   Activations are rounded once, to the type that the dot product instructions read, as
 *            other engines do. x is bf16 beside bf16 weights (on ISAs with bf16 dot products) and
 *            8-bit integers with a scale for each group beside 8- and 4-bit weights, 15-bit ones
 *            beside block floats. Attention over bf16 pages rounds q and p to bf16 where the ISA
 *            has attn_dots (isa.h).
 * high       Activations keep 16 bits or more wherever weights have 8 or more. Twice the
 *            instructions buy an error that only comparisons with f32 can tell.
 *
 * The bits of a row depend on the precision, never on how many rows are computed with it. */
typedef enum kern_precision {
    KERN_PRECISION_STANDARD,
    KERN_PRECISION_HIGH,
} kern_precision;

typedef struct kern_options {
    thread_pool *pool; /* borrowed; must outlive the context */
    const char *isa;   /* "ref", "avx2", "avx512", … or NULL for the fastest here */
    kern_precision precision;
} kern_options;

status kern_create(const kern_options *options, kern_context **out, error *err);
void kern_destroy(kern_context *kc);
const char *kern_isa_name(const kern_context *kc);
/* The names of all ISAs in the table, slow to fast; *available tells whether this CPU runs it. */
size_t kern_isa_count(void);
const char *kern_isa_at(size_t i, bool *available);

/* ---- storage order -----------------------------------------------------------------------------
 * Two-byte operands of a product are stored in pairs along the axis that is summed over, because
 * that is what dot-product instructions (AVX512-BF16, AMX) read, and on AVX2 a shift and a mask
 * turn one load into two f32 vectors. kern_pair is 2 for bf16 and f16, 1 for f32. */
static inline unsigned kern_pair(dtype t) { return t == DTYPE_F32 ? 1u : 2u; }

/* ---- matrices -----------------------------------------------------------------------------------
 * A weight matrix W [n, k], packed once: panels of KERN_PANEL rows of W,
 *     data[n / 16][k / pair][16][pair]
 * n padded to 16 and k to pair with zeros.
 *
 * A quantised weight is an integer q times a 16-bit scale. Each row has one scale for every `group`
 * columns. A panel stores its groups in pairs, each pair behind one line of their scales. Columns
 * lie as integer dot products read them: a quad is four columns of one row side by side.
 *     scales [2][16], then for each group:
 *     8 bits    [group / 4][16][4]     q in [-127, 127]
 *     4 bits    [group / 8][16][4]     q + 8 in [0, 15]; low halves a quad, high halves the next
 *     12 bits   [group / 8][6][32]     q in [-2047, 2047], below
 * A 4-bit weight's scale is a bf16. That of 8 and of 12 bits is never negative, so it is bits 30 to
 * 15 of an f32: the sign bit becomes one more bit of fraction. k is padded with zeros to two
 * groups. Zeroed memory is a matrix of zeros.
 *
 * Weights of 12 bits are block floats (block floating point): a group's scale is the power of two
 * at which its largest |w| is from 1024 up. A bf16 of at least an eighth of the group's largest
 * keeps its bits, and a smaller one is off by a 2,048th of that largest at most. Groups have 64
 * columns. Only "ref" multiplies them, and contexts whose kern_block_floats gives them.
 *
 * Eight columns of block floats are four pairs in six runs of 32 bytes. The first run has bits 8 to
 * 11 of pair 0 in the low halves of its bytes and those of pair 1 in the high halves, the second
 * likewise those of pairs 2 and 3. The other four have bits 0 to 7 of a pair each. A run has both
 * columns of rows 0 to 3, then those of rows 8 to 11, 4 to 7 and 12 to 15, because AVX2 interleaves
 * the bytes of each half of a register.
 *
 * A matrix of e4m3 floats (is_float) is for GPUs, which make their own order of it; no product here
 * takes it. It is its bytes [n][k], then at the next multiple of 16 bytes f32 scales [n][groups],
 * with a group for each `group` columns, or one of all columns where that is 0. */
enum { KERN_PANEL = 16, KERN_GROUP_MIN = 32, KERN_GROUP_MAX = 128 };

typedef struct kern_quant {
    uint8_t bits;  /* 8, 4; 12: block floats; 0 = not quantised */
    uint8_t group; /* 32, 64 or 128 */
} kern_quant;

typedef struct kern_matrix {
    dtype type; /* unless quantised */
    size_t n;   /* rows of W = outputs */
    size_t k;   /* columns of W = inputs */
    void *data; /* kern_matrix_size, 64-byte aligned, owned by the caller */
    kern_quant quant;
    bool is_float; /* quant.bits is 8 */
} kern_matrix;

/* The block floats as which a context multiplies matrices of `type` fastest, in standard precision:
 * AVX2 adds products of 16-bit integers at more than the rate of f32. bits 0: as they are. */
kern_quant kern_block_floats(const kern_context *kc, dtype type);
/* Gives the kern_block_floats of a context that would be made with these options, here or on a CPU
 * that has their ISA; their pool is unused. */
status kern_block_floats_of(const kern_options *options, dtype type, kern_quant *out, error *err);

/* Bytes of the data of a matrix that is not quantised. */
size_t kern_matrix_bytes(dtype type, size_t n, size_t k);
/* Bytes of the data of any matrix; reads every field but `data`. */
size_t kern_matrix_size(const kern_matrix *w);
/* The number of scales of a row of e4m3 floats, and the scales of row 0. */
static inline size_t kern_float_groups(const kern_matrix *w)
{
    return w->quant.group ? (w->k + w->quant.group - 1) / w->quant.group : 1;
}
static inline float *kern_float_scales(const kern_matrix *w)
{
    return (float *)(void *)((uint8_t *)w->data + (w->n * w->k + 15) / 16 * 16);
}
/* Packs rows [row0, row0 + rows) of w from src [rows, w->k] of src_type, with src_stride elements
 * between rows; src may be unaligned. Converts when the types differ, or quantises: the values of a
 * group alone decide its scale, so the bits are the same on every ISA. Runs on the pool. The caller
 * zeroes rows that are never packed. row0 may be any row. */
void kern_matrix_pack(kern_context *kc, kern_matrix *w, size_t row0, size_t rows, const void *src,
                      dtype src_type, size_t src_stride);
/* out [k] = row `row` of w: the embedding lookup of tied weights. */
void kern_matrix_row(const kern_context *kc, const kern_matrix *w, size_t row, float *out);

/* y [m, n] = x [m, k] * W^T (+ bias [n] when not NULL). Strides in elements. Each y is summed over
 * k in ascending order in f32, whatever m is.
 *
 * With bf16 weights, on ISAs that have dot products of bf16, standard precision rounds x to bf16
 * once. High precision splits x into the sum of two bf16: x rounded, and the remainder rounded.
 * Each step adds the products of the first part, then those of the second. The order of sums is the
 * instruction's: "avx512bf16" takes each pair of columns at once; "amx" sums the even and the odd
 * columns of each 32 from `first` on and adds both to y. Denormals count as zeros.
 *
 * With a quantised W, x becomes integers too, with an f32 scale for each row and group: 8 bits, or
 * 16 in high precision beside 8-bit weights, or 15 beside block floats, in [-16383, 16383]. The sum
 * of a group is exact (below 2^31), and y is one chain of fused multiply-adds over the groups, the
 * same on every ISA:
 *     y = fma((float)sum(q_w * q_x), scale_w * scale_x, y) */
void kern_matmul(kern_context *kc, const kern_matrix *w, const float *bias, const float *x,
                 size_t x_stride, size_t m, float *y, size_t y_stride);
/* kern_matmul with columns [first, first + k) of W alone: x is [m, k]; first and k are even, and k
 * is above 0. */
void kern_matmul_columns(kern_context *kc, const kern_matrix *w, size_t first, size_t k,
                         const float *x, size_t x_stride, size_t m, float *y, size_t y_stride);
/* out [m, n / 2] = swiglu(x * W^T): the bits of kern_matmul followed by kern_swiglu. gate_up [m, n]
 * is scratch; with many rows the product is never written there as a whole. */
void kern_matmul_swiglu(kern_context *kc, const kern_matrix *w, const float *x, size_t x_stride,
                        size_t m, float *gate_up, float *out);

/* ---- rows ------------------------------------------------------------------------------------ */

/* out [m, d] = x / sqrt(mean(x^2) + eps) * weight [d]. out may be x. */
void kern_rmsnorm(kern_context *kc, const float *x, const float *weight, float eps, size_t m,
                  size_t d, float *out);
/* RMSNorm of each head of x [m, n_heads, head_dim], in place, row_stride elements between rows. */
void kern_rmsnorm_heads(kern_context *kc, float *x, size_t row_stride, const float *weight,
                        float eps, size_t m, size_t n_heads, size_t head_dim);
/* x [m, d] += delta [m, d], then out = rmsnorm(x). */
void kern_add_rmsnorm(kern_context *kc, float *x, const float *delta, const float *weight,
                      float eps, size_t m, size_t d, float *out);
/* out [m, d] = silu(gate) * up, where gate is gate_up[m, 0:d] and up is gate_up[m, d:2d]. */
void kern_swiglu(kern_context *kc, const float *gate_up, size_t m, size_t d, float *out);
/* kern_swiglu with GELU (tanh form) in place of silu. gate_up is overwritten. */
void kern_geglu(kern_context *kc, float *gate_up, size_t m, size_t d, float *out);
/* Rotates x [m, n_heads, head_dim] in place (row_stride elements between rows). The rotation is
 * half-split: element i turns with element i + head_dim / 2. cos_sin [m, head_dim] holds for each
 * row head_dim / 2 cosines, then as many sines. */
void kern_rope(kern_context *kc, float *x, size_t row_stride, const float *cos_sin, size_t m,
               size_t n_heads, size_t head_dim);

/* ---- KV pages -----------------------------------------------------------------------------------
 * A tile is the part of a page that belongs to one layer and one KV head:
 *     K  [head_dim / pair][page_tokens][pair]      (summed over head_dim in q . k)
 *     V  [page_tokens / pair][head_dim][pair]      (summed over slots in p . v)
 *     int8: then the scales of K [page_tokens] and of V [page_tokens], bf16
 *     int4, int2: then the grids of K [page_tokens / 32][head_dim] and of V
 *     [page_tokens][head_dim / 32, rounded up], each a bf16 scale and a bf16 zero
 * A page is its group's tiles, layer by layer, head by head. page_tokens is a multiple of 16 up to
 * 256, head_dim a multiple of 16 up to 256. A slot that was never written may hold anything, NaN
 * included: it never enters a result.
 *
 * int8: an element is q in [-127, 127] times the scale of its slot, the largest |k| (or |v|) of the
 * token / 127, rounded to bf16. So a slot's bytes depend on its token alone, and reading a slot and
 * writing it again keeps its bytes. A K or V that is not finite reads back as NaN, one below 2^-100
 * as zeros.
 *
 * int4, int2 (KIVI, arXiv 2402.02750): an element is q in [0, 15] or [0, 3] times the scale of its
 * grid, plus its zero, rounded to bf16. K has one grid for every 32 slots of a dim, V one for every
 * 32 dims of a slot. The zero is the smallest element of the grid; the scale is the span of the
 * elements / (2^bits - 1), rounded up. Low bits come first. page_tokens is a multiple of 32. While
 * a page fills, its tiles are kept as bf16; each is quantised as a whole when the page is full
 * (kern_kv_pack). An element that is not finite makes all elements of its grid read back as NaN. */
typedef struct kern_kv_shape {
    kern_kv_format format;
    uint32_t page_tokens;
    uint32_t head_dim;
} kern_kv_shape;

/* Byte offset of V in a tile, byte offset of K's scales, and the bytes of K's (or V's) scales. */
static inline size_t kern_kv_values_at(const kern_kv_shape *s)
{
    return (size_t)s->page_tokens * s->head_dim * kern_kv_facts_of(s->format).bits / 8;
}
static inline size_t kern_kv_scales_at(const kern_kv_shape *s) { return 2 * kern_kv_values_at(s); }
static inline size_t kern_kv_scale_bytes(const kern_kv_shape *s)
{
    return (size_t)s->page_tokens * kern_kv_facts_of(s->format).scales;
}
/* Grids lie where int8 has its scales: K's first, then V's. */
enum { KERN_GRID_BYTES = 4 };
static inline size_t kern_kv_key_grids(const kern_kv_shape *s)
{
    size_t group = kern_kv_facts_of(s->format).group;
    return group ? s->page_tokens / group * s->head_dim : 0;
}
static inline size_t kern_kv_value_grids(const kern_kv_shape *s) /* grids of one slot */
{
    size_t group = kern_kv_facts_of(s->format).group;
    return group ? (s->head_dim + group - 1) / group : 0;
}
static inline size_t kern_kv_tile_bytes(const kern_kv_shape *s)
{
    size_t grids = kern_kv_key_grids(s) + s->page_tokens * kern_kv_value_grids(s);
    return kern_kv_scales_at(s) + 2 * kern_kv_scale_bytes(s) + grids * KERN_GRID_BYTES;
}
/* The shape that pages are read as: formats with grids are read as bf16. */
static inline kern_kv_shape kern_kv_wide(const kern_kv_shape *s)
{
    kern_kv_shape wide = *s;
    if (kern_kv_has_grids(s->format)) wide.format = KERN_KV_BF16;
    return wide;
}

/* Writes K and V of one token and head, k [head_dim] and v [head_dim], at `slot` of a tile. Not
 * threaded. In formats with grids the tile is full already and the token replaces another one;
 * where the key does not fit a dim's grid, the grid is made again from the values its slots read
 * as. */
void kern_kv_write(const kern_context *kc, const kern_kv_shape *s, void *tile, uint32_t slot,
                   const float *k, const float *v);
/* Reads one slot back as f32, for oracles, swaps and shifted rotations. Not threaded. */
void kern_kv_read(const kern_context *kc, const kern_kv_shape *s, const void *tile, uint32_t slot,
                  float *k, float *v);
/* Formats with grids: quantises a whole tile of shape kern_kv_wide(s), and the inverse. Not
 * threaded. */
void kern_kv_pack(const kern_context *kc, const kern_kv_shape *s, const void *wide, void *tile);
void kern_kv_unpack(const kern_context *kc, const kern_kv_shape *s, const void *tile, void *wide);
/* A tile from rows, and rows from a tile: K and V as GPUs keep them, K [page_tokens][head_dim],
 * then V likewise, then the scales, if any. For formats with pairs of elements, without grids. Not
 * threaded; nothing need be aligned, and the two do not overlap. */
void kern_kv_from_rows(const kern_kv_shape *s, const void *rows, void *tile);
void kern_kv_to_rows(const kern_kv_shape *s, const void *tile, void *rows);
/* Copies n slots of one tile to another. Formats with grids have no such copy. Not threaded. */
void kern_kv_move(const kern_kv_shape *s, void *dst_tile, uint32_t dst_slot, const void *src_tile,
                  uint32_t src_slot, uint32_t n);

/* ---- paged attention --------------------------------------------------------------------------
 * One item = one sequence and one KV head of one layer. Its query rows are new tokens, already
 * written to their pages; row i sits at table slot first_slot + i and sees slots [0, first_slot +
 * i] (the last `window` of them when window > 0). The online softmax steps by 64 slots, anchored at
 * slot 0, so neither batch mates nor page_tokens change a bit of an output.
 *
 * In standard precision, over bf16 pages and formats with grids, ISAs whose bf16 dot products are
 * fast ("avx512bf16") round q to bf16 after scaling, and p. Sums of p and the mass are those of the
 * rounded p. Measures (measure.h) stay f32.
 *
 * Formats with grids: a row reads its own page, which may still be filling, as bf16. It reads the
 * residual_pages pages before its own as bf16 too, where their bf16 tiles still exist, and every
 * other page as stored. Rows of measures read the same way. */
typedef struct kern_attn_item {
    const uint32_t *pages; // [ceil((first_slot + n_rows) / page_tokens)] page ids in table order
    const uint8_t *tiles;  // tile of page p at tiles + p * page_stride
    // Formats with grids: bf16 tiles (kern_kv_wide) of the pages from first_filling on, which is at
    // or before the start of the first row's residual. A NULL entry: the page is read as stored.
    const uint8_t *const *filling;
    uint32_t first_filling, residual_pages;
    uint32_t first_slot;
    uint32_t n_rows;
    uint32_t window; // 0 = all
    const float *q;  // row i, head h at q + i * q_stride + h * head_dim
    float *out;      // row i, head h at out + i * out_stride + h * head_dim
    /* Attention mass, by which retention selects pages: each page's softmax mass of the last
     * mass_rows rows, summed in f32 over q heads, then over rows, both ascending. NULL: not asked
     * for. */
    float *mass;        // [number of pages]
    uint32_t mass_rows; // 1 to n_rows
} kern_attn_item;

typedef struct kern_attn_batch {
    kern_kv_shape shape;
    size_t page_stride; // bytes of a page
    uint32_t q_heads;   // query heads for each KV head
    float scale;
    size_t q_stride; // elements between query rows
    size_t out_stride;
    const kern_attn_item *items;
    size_t n_items;
} kern_attn_batch;

/* STATUS_NO_MEMORY when scratch for the mass cannot grow. Allocates nothing for a batch no larger
 * than one seen before. */
status kern_attention(kern_context *kc, const kern_attn_batch *batch);

/* ---- this machine's limits, measured ---- */

typedef struct kern_limits {
    double read_gb_s; /* all threads, interleaved streams, larger than the caches */
    /* All threads, operands in registers, the fastest instruction that the context's ISA has for
     * the type. A multiplication and an addition are two operations. */
    double fma_gflop_s; /* f32 FMA */
    double dot_gflop_s; /* bf16: vdpbf16ps or tdpbf16ps, f32 FMA where that is faster */
    double pair_gop_s;  /* 16-bit integers: vpmaddwd or vpdpwssd; 0 where the ISA has neither */
    double int_gop_s;   /* 8-bit integers: vpmaddubsw, vpdpbusd or tdpbssd */
} kern_limits;

/* The first call maps and fills 512 MiB to read, which the context owns until it is destroyed: a
 * bench measures again and again. */
status kern_measure_limits(kern_context *kc, kern_limits *out);

typedef struct kern_limit {
    const char *name; /* "fma", "dot" or "int16" */
    double gop_s;
} kern_limit;

/* The limit among `limits` that bounds attention of this context over pages of that format. */
kern_limit kern_attention_limit(const kern_context *kc, kern_kv_format format,
                                const kern_limits *limits);

#endif
