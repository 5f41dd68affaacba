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
