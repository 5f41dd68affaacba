/* Pages whose elements lie on grids, in plain C: whole tiles, strips of them, single slots. */
#include "kernels/kv_grids.h"

static void words_ref(const uint8_t *bytes, unsigned n, unsigned bits, unsigned shift,
                      kv_grid first, kv_grid second, uint8_t *words)
{
    const unsigned mask = (1u << bits) - 1;
    for (unsigned i = 0; i < n; i++) {
        unsigned q = (unsigned)bytes[i] >> shift;
        uint32_t low = grid_round((float)(q & mask) * first.scale + first.zero);
        uint32_t high = grid_round((float)(q >> bits & mask) * second.scale + second.zero);
        uint32_t word = low >> 16 | high;
        memcpy(words + 4 * (size_t)i, &word, sizeof word);
    }
}

/* ---- one slot -------------------------------------------------------------------------------- */

/* The integer at index `i` of row `summed` of the summed axis. */
static unsigned get_q(const uint8_t *bytes, size_t width, unsigned bits, size_t summed, size_t i)
{
    size_t in_byte = 8 / bits;
    return (unsigned)bytes[summed / in_byte * width + i] >> summed % in_byte * bits &
           ((1u << bits) - 1);
}

static void set_q(uint8_t *bytes, size_t width, unsigned bits, size_t summed, size_t i, unsigned q)
{
    size_t in_byte = 8 / bits, shift = summed % in_byte * bits;
    uint8_t *byte = bytes + summed / in_byte * width + i;
    *byte = (uint8_t)((*byte & ~(((1u << bits) - 1) << shift)) | q << shift);
}

static float value_of(kv_grid g, unsigned q)
{
    return quant_float(grid_round((float)q * g.scale + g.zero));
}

static void read_slot(const kern_kv_shape *s, unsigned bits, const void *tile, size_t slot,
                      float *k, float *v)
{
    const grid_tile t = grid_tile_of(s, bits);
    const uint8_t *keys = tile, *values = keys + t.values_at;
    for (size_t d = 0; d < t.dim; d++) {
        kv_grid of_k = grid_of(grid_stored(keys + t.key_grids_at, slot / GRID_MOST * t.dim + d));
        kv_grid of_v =
            grid_of(grid_stored(keys + t.value_grids_at, slot * t.value_grids + d / GRID_MOST));
        k[d] = value_of(of_k, get_q(keys, t.tokens, bits, d, slot));
        v[d] = value_of(of_v, get_q(values, t.dim, bits, slot, d));
    }
}

/* Whether x lies within half a step of the grid's range. */
static bool fits(kv_grid g, unsigned top, float x)
{
    float half = 0.5f * g.scale;
    return x >= g.zero - half && x <= g.zero + (float)top * g.scale + half;
}

/* Writes one element of a key on its grid. Where it does not fit, the grid is made again from the
 * values its slots read as. */
static void write_key(const grid_tile *t, unsigned bits, uint8_t *keys, size_t slot, size_t d,
                      float x)
{
    const unsigned top = (1u << bits) - 1;
    uint8_t *at = keys + t->key_grids_at + (slot / GRID_MOST * t->dim + d) * KERN_GRID_BYTES;
    uint8_t q[GRID_MOST];
    uint32_t stored = grid_stored(at, 0);
    kv_grid g = grid_of(stored);
    if (fits(g, top, x)) {
        grid_quantize(stored, &x, 1, top, q);
        set_q(keys, t->tokens, bits, d, slot, q[0]);
        return;
    }
    float of_slots[GRID_MOST];
    size_t first = slot / GRID_MOST * GRID_MOST;
    for (size_t i = 0; i < GRID_MOST; i++)
        of_slots[i] = value_of(g, get_q(keys, t->tokens, bits, d, first + i));
    of_slots[slot - first] = x;
    stored = grid_fit(of_slots, GRID_MOST, top, q);
    memcpy(at, &stored, sizeof stored);
    for (size_t i = 0; i < GRID_MOST; i++) set_q(keys, t->tokens, bits, d, first + i, q[i]);
}

static void write_slot(const kern_kv_shape *s, unsigned bits, void *tile, size_t slot,
                       const float *k, const float *v)
{
    const grid_tile t = grid_tile_of(s, bits);
    uint8_t *keys = tile, *values = keys + t.values_at, q[GRID_MOST];
    uint8_t *grids = keys + t.value_grids_at + slot * t.value_grids * KERN_GRID_BYTES;
    for (size_t d = 0; d < t.dim; d++)
        write_key(&t, bits, keys, slot, d, bf16_to_f32(bf16_from_f32(k[d])));
    for (size_t d = 0, n; d < t.dim; d += n, grids += KERN_GRID_BYTES) {
        float x[GRID_MOST];
        n = t.dim - d < GRID_MOST ? t.dim - d : GRID_MOST;
        for (size_t i = 0; i < n; i++) x[i] = bf16_to_f32(bf16_from_f32(v[d + i]));
        uint32_t stored = grid_fit(x, (unsigned)n, (1u << bits) - 1, q);
        memcpy(grids, &stored, sizeof stored);
        for (size_t i = 0; i < n; i++) set_q(values, t.dim, bits, slot, d + i, q[i]);
    }
}

#define FOR_BITS(BITS)                                                                             \
    static void pack_##BITS(const kern_kv_shape *s, const void *wide, void *tile)                  \
    {                                                                                              \
        grid_pack(s, BITS, wide, tile);                                                            \
    }                                                                                              \
    static void strip_##BITS(const kern_kv_shape *s, const void *tile, uint32_t slot, uint8_t *k,  \
                             uint8_t *v)                                                           \
    {                                                                                              \
        grid_strip(s, BITS, tile, slot, k, v, words_ref);                                          \
    }                                                                                              \
    static void read_##BITS(const kern_kv_shape *s, const void *tile, uint32_t slot, float *k,     \
                            float *v)                                                              \
    {                                                                                              \
        read_slot(s, BITS, tile, slot, k, v);                                                      \
    }                                                                                              \
    static void write_##BITS(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,    \
                             const float *v)                                                       \
    {                                                                                              \
        write_slot(s, BITS, tile, slot, k, v);                                                     \
    }

FOR_BITS(4)
FOR_BITS(2)

#define FILL(BITS)                                                                                 \
    isa->kv_pack[KERN_KV_INT##BITS] = pack_##BITS;                                                 \
    isa->kv_strip[KERN_KV_INT##BITS] = strip_##BITS;                                               \
    isa->kv_read[KERN_KV_INT##BITS] = read_##BITS;                                                 \
    isa->kv_write[KERN_KV_INT##BITS] = write_##BITS

void kern_kv_grids_fill_ref(kern_isa *isa)
{
    FILL(4);
    FILL(2);
}
