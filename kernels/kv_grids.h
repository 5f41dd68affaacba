/* kernels, private: quantises and reads pages whose elements lie on grids (kernels.h: int4, int2).
 * A word is two bf16 side by side along the summed axis: a pair of dims of one slot in K, a pair of
 * slots of one dim in V. So K and V go through the same functions. Nothing is contracted, so all
 * ISAs give the same bits. */
#ifndef KERNELS_KV_GRIDS_H
#define KERNELS_KV_GRIDS_H

#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <float.h>

enum { GRID_MOST = 32 }; /* elements that share a grid */

#define GRID_NAN 0x7fc07fc0u

/* One grid. It is stored as one word, the scale in the low half, the zero in the high half. */
typedef struct kv_grid {
    float scale, zero;
} kv_grid;

QUANT_INLINE kv_grid grid_of(uint32_t stored)
{
    return (kv_grid){quant_float(stored << 16), quant_float(stored & 0xffff0000u)};
}

QUANT_INLINE uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Rounds to bf16, halves away from zero. */
QUANT_INLINE uint32_t grid_round(float x) { return (float_bits(x) + 0x8000u) & 0xffff0000u; }

/* The stored grid of bf16 values that span [min, max]. The caller orders NaNs. */
QUANT_INLINE uint32_t grid_make(float min, float max, unsigned top)
{
    float range = max - min;
    if (!(range <= FLT_MAX)) return GRID_NAN;
    uint32_t zero = float_bits(min) & 0xffff0000u;
    if (range < QUANT_SMALLEST) return zero;
    return zero | (float_bits(range / (float)top) + 0xffffu) >> 16;
}

/* q [n] = x [n] on the grid. */
QUANT_INLINE void grid_quantize(uint32_t stored, const float *x, unsigned n, unsigned top,
                                uint8_t *q)
{
    kv_grid g = grid_of(stored);
    memset(q, 0, n);
    if (!(g.scale > 0.0f)) return;
    float inverse = 1.0f / g.scale;
    for (unsigned i = 0; i < n; i++)
        q[i] =
            (uint8_t)(int32_t)quant_round(quant_clamp((x[i] - g.zero) * inverse, 0.0f, (float)top));
}

/* An integer that sorts as the float does; its own inverse. NaNs sort beyond the infinities. */
QUANT_INLINE int32_t grid_order(uint32_t bits)
{
    int32_t b;
    memcpy(&b, &bits, sizeof b);
    return b ^ ((b >> 31) & 0x7fffffff);
}

/* Returns the grid of x [n], n a multiple of 8, and sets q to x on it. */
QUANT_INLINE uint32_t grid_fit(const float *x, unsigned n, unsigned top, uint8_t *q)
{
    int32_t min = INT32_MAX, max = INT32_MIN;
    for (unsigned i = 0; i < n; i++) {
        int32_t order = grid_order(float_bits(x[i]));
        min = order < min ? order : min;
        max = order > max ? order : max;
    }
    float low = quant_float((uint32_t)grid_order((uint32_t)min));
    float high = quant_float((uint32_t)grid_order((uint32_t)max));
    uint32_t stored = grid_make(low, high, top);
    grid_quantize(stored, x, n, top, q);
    return stored;
}

/* Quantises n words. The integers of the low halves come first in a byte, at `shift`. shift 0: the
 * bytes are written; else they are added to. */
QUANT_INLINE void grid_pack_words(const uint8_t *words, unsigned n, unsigned bits, unsigned shift,
                                  uint8_t *bytes, uint32_t grids[2])
{
    float x[2][GRID_MOST];
    uint8_t q[2][GRID_MOST];
    uint32_t w[GRID_MOST];
    memcpy(w, words, n * sizeof *w);
    for (unsigned i = 0; i < n; i++) {
        x[0][i] = quant_float(w[i] << 16);
        x[1][i] = quant_float(w[i] & 0xffff0000u);
    }
    for (int half = 0; half < 2; half++)
        grids[half] = grid_fit(x[half], n, (1u << bits) - 1, q[half]);
    for (unsigned i = 0; i < n; i++) {
        unsigned pair = (unsigned)q[0][i] | (unsigned)q[1][i] << bits;
        bytes[i] = (uint8_t)(shift == 0 ? pair : bytes[i] | pair << shift);
    }
}

/* The layout of a tile of integers of `bits`. */
typedef struct grid_tile {
    unsigned rows; /* rows of words in a byte */
    size_t tokens, dim, value_grids;
    size_t values_at, key_grids_at, value_grids_at;
} grid_tile;

QUANT_INLINE grid_tile grid_tile_of(const kern_kv_shape *s, unsigned bits)
{
    grid_tile t = {.rows = 4 / bits,
                   .tokens = s->page_tokens,
                   .dim = s->head_dim,
                   .value_grids = kern_kv_value_grids(s)};
    t.values_at = t.tokens * t.dim * bits / 8;
    t.key_grids_at = 2 * t.values_at;
    t.value_grids_at = t.key_grids_at + kern_kv_key_grids(s) * KERN_GRID_BYTES;
    return t;
}

QUANT_INLINE void grid_pack(const kern_kv_shape *s, unsigned bits, const void *wide, void *tile)
{
    const grid_tile t = grid_tile_of(s, bits);
    const uint8_t *words = wide;
    uint8_t *keys = tile, *values = keys + t.values_at;
    uint8_t *key_grids = keys + t.key_grids_at, *value_grids = keys + t.value_grids_at;
    uint32_t grids[2];
    for (size_t r = 0; r < t.dim / 2; r++)
        for (size_t i = 0; i < t.tokens; i += GRID_MOST, words += GRID_MOST * 4) {
            grid_pack_words(words, GRID_MOST, bits, (unsigned)(r % t.rows) * 2 * bits,
                            keys + r / t.rows * t.tokens + i, grids);
            memcpy(key_grids + (i / GRID_MOST * t.dim + 2 * r) * 4, grids, sizeof grids);
        }
    for (size_t r = 0; r < t.tokens / 2; r++)
        for (size_t d = 0, n; d < t.dim; d += n, words += n * 4) {
            n = t.dim - d < GRID_MOST ? t.dim - d : GRID_MOST;
            grid_pack_words(words, (unsigned)n, bits, (unsigned)(r % t.rows) * 2 * bits,
                            values + r / t.rows * t.dim + d, grids);
            for (size_t half = 0; half < 2; half++)
                memcpy(value_grids + ((2 * r + half) * t.value_grids + d / GRID_MOST) * 4,
                       &grids[half], 4);
        }
}

/* Reads one row of n words from n bytes, at `shift`; n is a multiple of 8. */
typedef void (*grid_words_fn)(const uint8_t *bytes, unsigned n, unsigned bits, unsigned shift,
                              kv_grid first, kv_grid second, uint8_t *words);

QUANT_INLINE uint32_t grid_stored(const uint8_t *grids, size_t i)
{
    uint32_t stored;
    memcpy(&stored, grids + i * KERN_GRID_BYTES, sizeof stored);
    return stored;
}

QUANT_INLINE void grid_strip(const kern_kv_shape *s, unsigned bits, const void *tile, size_t slot,
                             uint8_t *k, uint8_t *v, grid_words_fn to_words)
{
    const grid_tile t = grid_tile_of(s, bits);
    const uint8_t *keys = tile, *values = keys + t.values_at;
    const uint8_t *key_grids = keys + t.key_grids_at + slot / GRID_MOST * t.dim * KERN_GRID_BYTES;
    const uint8_t *value_grids = keys + t.value_grids_at;
    for (size_t r = 0; r < t.dim / 2; r++, k += KERN_STRIP * 4)
        to_words(keys + r / t.rows * t.tokens + slot, KERN_STRIP, bits,
                 (unsigned)(r % t.rows) * 2 * bits, grid_of(grid_stored(key_grids, 2 * r)),
                 grid_of(grid_stored(key_grids, 2 * r + 1)), k);
    for (size_t r = slot / 2; r < slot / 2 + KERN_STRIP / 2; r++)
        for (size_t d = 0, n; d < t.dim; d += n, v += n * 4) {
            size_t grid = 2 * r * t.value_grids + d / GRID_MOST;
            n = t.dim - d < GRID_MOST ? t.dim - d : GRID_MOST;
            to_words(values + r / t.rows * t.dim + d, (unsigned)n, bits,
                     (unsigned)(r % t.rows) * 2 * bits, grid_of(grid_stored(value_grids, grid)),
                     grid_of(grid_stored(value_grids, grid + t.value_grids)), v);
        }
}

#endif
