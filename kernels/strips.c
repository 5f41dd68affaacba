#include "kernels/strips.h"

#include <string.h>

/* Copies a strip of a bf16 tile. */
static void copy_strip(const kern_kv_shape *shape, const uint8_t *tile, size_t slot, uint8_t *k,
                       uint8_t *v)
{
    const kern_kv_shape bf16 = kern_kv_wide(shape);
    const size_t word = 2 * sizeof(uint16_t), strip = KERN_STRIP * word;
    const uint8_t *keys, *values;
    kern_strip_in_page(&bf16, tile, slot, &keys, &values);
    for (size_t r = 0; r < shape->head_dim / 2; r++)
        memcpy(k + r * strip, keys + r * shape->page_tokens * word, strip);
    memcpy(v, values, KERN_STRIP / 2 * shape->head_dim * word);
}

void kern_widen_strips(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                       size_t from, size_t to, uint8_t *wide, kern_attn_strips *k,
                       kern_attn_strips *v)
{
    const size_t word = 2 * sizeof(uint16_t);
    const size_t bytes = kern_wide_bytes(shape->head_dim) / (2 * KERN_BLOCK_STRIPS);
    k->step = KERN_STRIP * word;
    v->step = shape->head_dim * word;
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        size_t strip = from - from % KERN_BLOCK_STRIPS + t;
        uint8_t *to_k = wide + t * bytes, *to_v = to_k + KERN_BLOCK_STRIPS * bytes;
        if (strip < from || strip >= to) { /* never read, but prefetched: points to the first */
            to_k = wide + from % KERN_BLOCK_STRIPS * bytes;
            to_v = to_k + KERN_BLOCK_STRIPS * bytes;
        } else {
            size_t page = strip * KERN_STRIP / shape->page_tokens;
            size_t slot = strip * KERN_STRIP % shape->page_tokens;
            const uint8_t *tile = kern_wide_tile(pages, page);
            if (tile) copy_strip(shape, tile, slot, to_k, to_v);
            else
                isa->kv_strip[shape->format](
                    shape, pages->tiles + (size_t)pages->pages[page] * pages->page_stride,
                    (uint32_t)slot, to_k, to_v);
        }
        k->at[t] = k->next[t] = to_k;
        v->at[t] = v->next[t] = to_v;
    }
}

kern_block kern_block_of(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                         size_t block, size_t n_slots, uint8_t *wide)
{
    if (!kern_kv_has_grids(shape->format))
        return kern_block_at(shape, pages->page_stride, pages->pages, pages->tiles, block, n_slots);
    kern_block b = {0};
    size_t left = n_slots - block * KERN_BLOCK, first = block * KERN_BLOCK_STRIPS;
    b.n_slots = left < KERN_BLOCK ? (uint32_t)left : KERN_BLOCK;
    b.n_strips = (b.n_slots + KERN_STRIP - 1) / KERN_STRIP;
    kern_widen_strips(isa, shape, pages, first, first + b.n_strips, wide, &b.k, &b.v);
    return b;
}

kern_block kern_block_at(const kern_kv_shape *shape, size_t page_stride, const uint32_t *pages,
                         const uint8_t *tiles, size_t block, size_t n_slots)
{
    kern_block b;
    size_t first = block * KERN_BLOCK, left = n_slots - first;
    b.n_slots = left < KERN_BLOCK ? (uint32_t)left : KERN_BLOCK;
    b.n_strips = (b.n_slots + KERN_STRIP - 1) / KERN_STRIP;
    kern_strip_steps(shape, &b.k, &b.v);
    for (uint32_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        size_t strip = block * KERN_BLOCK_STRIPS + (t < b.n_strips ? t : 0);
        kern_strip_at(shape, page_stride, pages, tiles, strip, &b.k.at[t], &b.v.at[t]);
        size_t next = strip + KERN_BLOCK_STRIPS;
        if (next * KERN_STRIP < n_slots) {
            kern_strip_at(shape, page_stride, pages, tiles, next, &b.k.next[t], &b.v.next[t]);
        } else {
            b.k.next[t] = b.k.at[t];
            b.v.next[t] = b.v.at[t];
        }
    }
    if (shape->format == KERN_KV_INT8) kern_strip_scales(shape, &b.k, &b.v);
    return b;
}

/* Reads a strip of K. A pair of dims is 16 slots in a row, each with its two dims; f32: two rows of
 * 16. */
static void read_keys(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                      uint32_t strip, float *out)
{
    for (uint32_t d = 0; d < shape->head_dim; d += 2, out += 2 * KERN_STRIP) {
        const uint8_t *row = b->k.at[strip] + d / 2 * b->k.step;
        if (shape->format == KERN_KV_F32) {
            memcpy(out, row, KERN_STRIP * sizeof *out);
            memcpy(out + KERN_STRIP, row + b->k.half, KERN_STRIP * sizeof *out);
            continue;
        }
        float pairs[2 * KERN_STRIP];
        isa->widen[shape->format](row, 2 * KERN_STRIP, pairs);
        for (uint32_t i = 0; i < KERN_STRIP; i++) {
            out[i] = pairs[2 * i];
            out[KERN_STRIP + i] = pairs[2 * i + 1];
        }
    }
}

/* Reads a strip of V. A pair of slots is all dims in a row, each with its two slots; f32: two
 * rows. */
static void read_values(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                        uint32_t strip, float *out)
{
    float pairs[2 * KERN_HEAD_DIM_MAX];
    uint32_t dim = shape->head_dim;
    for (uint32_t i = 0; i < KERN_STRIP; i += 2) {
        const uint8_t *row = b->v.at[strip] + i / 2 * b->v.step;
        if (shape->format == KERN_KV_F32) {
            const float *first = (const float *)row, *second = (const float *)(row + b->v.half);
            for (uint32_t d = 0; d < dim; d++) {
                out[d * KERN_STRIP + i] = first[d];
                out[d * KERN_STRIP + i + 1] = second[d];
            }
            continue;
        }
        isa->widen[shape->format](row, 2 * (size_t)dim, pairs);
        for (uint32_t d = 0; d < dim; d++)
            memcpy(out + d * KERN_STRIP + i, pairs + 2 * d, 2 * sizeof *out);
    }
}

/* int8: multiplies the strip's slots by their scales. */
static void scale_slots(const uint8_t *scales, uint32_t head_dim, float *strip)
{
    uint16_t bits[KERN_STRIP];
    float scale[KERN_STRIP];
    memcpy(bits, scales, sizeof bits);
    for (uint32_t i = 0; i < KERN_STRIP; i++) scale[i] = bf16_to_f32(bits[i]);
    for (uint32_t d = 0; d < head_dim; d++, strip += KERN_STRIP)
        for (uint32_t i = 0; i < KERN_STRIP; i++) strip[i] *= scale[i];
}

void kern_block_keys(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                     float *out)
{
    size_t size = (size_t)shape->head_dim * KERN_STRIP;
    for (uint32_t t = 0; t < b->n_strips; t++, out += size) {
        read_keys(isa, shape, b, t, out);
        if (shape->format == KERN_KV_INT8) scale_slots(b->k.scales[t], shape->head_dim, out);
    }
}

void kern_block_values(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                       float *out)
{
    size_t size = (size_t)shape->head_dim * KERN_STRIP;
    for (uint32_t t = 0; t < b->n_strips; t++, out += size) {
        read_values(isa, shape, b, t, out);
        if (shape->format == KERN_KV_INT8) scale_slots(b->v.scales[t], shape->head_dim, out);
    }
}

kern_attn_strips kern_block_strips(const float *block, uint32_t head_dim)
{
    kern_attn_strips s = {.half = KERN_STRIP * sizeof(float),
                          .step = 2 * KERN_STRIP * sizeof(float)};
    for (uint32_t t = 0; t < KERN_BLOCK_STRIPS; t++)
        s.at[t] = s.next[t] = (const uint8_t *)(block + (size_t)t * head_dim * KERN_STRIP);
    return s;
}
