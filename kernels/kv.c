/* KV pages, op level: writes and reads one token of one head, and moves slots from tile to tile. */
#include "kernels/context.h"

#include <assert.h>
#include <string.h>

void kern_kv_write(const kern_context *kc, const kern_kv_shape *s, void *tile, uint32_t slot,
                   const float *k, const float *v)
{
    assert(slot < s->page_tokens);
    kc->isa.kv_write[s->format](s, tile, slot, k, v);
}

void kern_kv_read(const kern_context *kc, const kern_kv_shape *s, const void *tile, uint32_t slot,
                  float *k, float *v)
{
    assert(slot < s->page_tokens);
    kc->isa.kv_read[s->format](s, tile, slot, k, v);
}

void kern_kv_pack(const kern_context *kc, const kern_kv_shape *s, const void *wide, void *tile)
{
    assert(kern_kv_has_grids(s->format));
    kc->isa.kv_pack[s->format](s, wide, tile);
}

void kern_kv_unpack(const kern_context *kc, const kern_kv_shape *s, const void *tile, void *wide)
{
    uint8_t k[KERN_HEAD_DIM_MAX * KERN_STRIP * 2], v[sizeof k], *keys = wide;
    size_t strip = KERN_STRIP * 2 * sizeof(uint16_t), row = s->page_tokens * 2 * sizeof(uint16_t);
    size_t strip_bytes = s->head_dim / 2 * strip;
    uint8_t *values = keys + s->head_dim / 2 * row;
    for (uint32_t slot = 0; slot < s->page_tokens; slot += KERN_STRIP, values += strip_bytes) {
        kc->isa.kv_strip[s->format](s, tile, slot, k, v);
        for (size_t r = 0; r < s->head_dim / 2; r++)
            memcpy(keys + r * row + slot * 2 * sizeof(uint16_t), k + r * strip, strip);
        memcpy(values, v, strip_bytes);
    }
}

/* Copies stored bits, so any value survives. */
void kern_kv_move(const kern_kv_shape *s, void *dst_tile, uint32_t dst_slot, const void *src_tile,
                  uint32_t src_slot, uint32_t n)
{
    assert(dst_slot + n <= s->page_tokens && src_slot + n <= s->page_tokens);
    assert(!kern_kv_has_grids(s->format));
    kern_kv_facts facts = kern_kv_facts_of(s->format);
    size_t pair = facts.pair, bytes = facts.bits / 8, scale = facts.scales;
    uint8_t *dst = dst_tile;
    const uint8_t *src = src_tile;
    /* K: a slot's pair of dims lies together, n slots in a row. */
    for (size_t row = 0; row < s->head_dim / pair; row++) {
        size_t at = row * s->page_tokens;
        memmove(dst + (at + dst_slot) * pair * bytes, src + (at + src_slot) * pair * bytes,
                n * pair * bytes);
    }
    dst += kern_kv_values_at(s);
    src += kern_kv_values_at(s);
    /* V: ascending, or descending when slots move up inside one tile. */
    bool up = dst_tile == src_tile && dst_slot > src_slot;
    for (uint32_t i = 0; i < n; i++) {
        size_t to = dst_slot + (up ? n - 1 - i : i), from = src_slot + (up ? n - 1 - i : i);
        for (size_t d = 0; d < s->head_dim; d++)
            memcpy(dst + ((to / pair * s->head_dim + d) * pair + to % pair) * bytes,
                   src + ((from / pair * s->head_dim + d) * pair + from % pair) * bytes, bytes);
    }
    dst += kern_kv_values_at(s);
    src += kern_kv_values_at(s);
    for (int of_v = 0; scale && of_v < 2; of_v++) {
        memmove(dst + dst_slot * scale, src + src_slot * scale, n * scale);
        dst += kern_kv_scale_bytes(s);
        src += kern_kv_scale_bytes(s);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* K: a matrix of pairs is transposed, `pair` bytes each. Both sides are multiples of 8. */
#define TRANSPOSE(NAME, PAIR)                                                                      \
    static void NAME(const uint8_t *from, size_t n_rows, size_t n_columns, uint8_t *to)            \
    {                                                                                              \
        enum { BLOCK = 8 };                                                                        \
        PAIR in[BLOCK][BLOCK], out[BLOCK][BLOCK];                                                  \
        for (size_t row = 0; row < n_rows; row += BLOCK)                                           \
            for (size_t column = 0; column < n_columns; column += BLOCK) {                         \
                for (size_t i = 0; i < BLOCK; i++)                                                 \
                    memcpy(in[i], from + ((row + i) * n_columns + column) * sizeof(PAIR),          \
                           sizeof in[i]);                                                          \
                for (size_t i = 0; i < BLOCK; i++)                                                 \
                    for (size_t j = 0; j < BLOCK; j++) out[i][j] = in[j][i];                       \
                for (size_t i = 0; i < BLOCK; i++)                                                 \
                    memcpy(to + ((column + i) * n_rows + row) * sizeof(PAIR), out[i],              \
                           sizeof out[i]);                                                         \
            }                                                                                      \
    }
TRANSPOSE(transpose_pairs_16, uint32_t) // of 16-bit elements
TRANSPOSE(transpose_pairs_8, uint16_t)
#undef TRANSPOSE

/* V: the rows of two slots lie side by side, element by element. */
#define INTERLEAVE(BITS)                                                                           \
    static void join_rows_##BITS(const uint8_t *from, size_t n, uint8_t *to)                       \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(to + 2 * i * (BITS / 8), from + i * (BITS / 8), BITS / 8);                      \
            memcpy(to + (2 * i + 1) * (BITS / 8), from + (n + i) * (BITS / 8), BITS / 8);          \
        }                                                                                          \
    }                                                                                              \
    static void part_rows_##BITS(const uint8_t *from, size_t n, uint8_t *to)                       \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(to + i * (BITS / 8), from + 2 * i * (BITS / 8), BITS / 8);                      \
            memcpy(to + (n + i) * (BITS / 8), from + (2 * i + 1) * (BITS / 8), BITS / 8);          \
        }                                                                                          \
    }
INTERLEAVE(16)
INTERLEAVE(8)
#undef INTERLEAVE

static bool is_wide(const kern_kv_shape *s)
{
    kern_kv_facts facts = kern_kv_facts_of(s->format);
    assert(facts.pair == 2 && !facts.group && (facts.bits == 16 || facts.bits == 8));
    return facts.bits == 16;
}

void kern_kv_from_rows(const kern_kv_shape *s, const void *rows, void *tile)
{
    bool wide = is_wide(s);
    const uint8_t *from = rows;
    uint8_t *to = tile;
    size_t half = kern_kv_values_at(s), two = half / s->page_tokens * 2;
    (wide ? transpose_pairs_16 : transpose_pairs_8)(from, s->page_tokens, s->head_dim / 2, to);
    for (size_t at = half; at < 2 * half; at += two)
        (wide ? join_rows_16 : join_rows_8)(from + at, s->head_dim, to + at);
    memcpy(to + 2 * half, from + 2 * half, 2 * kern_kv_scale_bytes(s));
}

void kern_kv_to_rows(const kern_kv_shape *s, const void *tile, void *rows)
{
    bool wide = is_wide(s);
    const uint8_t *from = tile;
    uint8_t *to = rows;
    size_t half = kern_kv_values_at(s), two = half / s->page_tokens * 2;
    (wide ? transpose_pairs_16 : transpose_pairs_8)(from, s->head_dim / 2, s->page_tokens, to);
    for (size_t at = half; at < 2 * half; at += two)
        (wide ? part_rows_16 : part_rows_8)(from + at, s->head_dim, to + at);
    memcpy(to + 2 * half, from + 2 * half, 2 * kern_kv_scale_bytes(s));
}
