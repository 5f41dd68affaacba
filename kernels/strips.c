#include "kernels/strips.h"

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
    return b;
}

static float widen(dtype t, const uint16_t *h, size_t i)
{
    return t == DTYPE_BF16 ? bf16_to_f32(h[i]) : f16_to_f32(h[i]);
}

void kern_block_keys(const kern_kv_shape *shape, const kern_block *b, float *out)
{
    uint32_t dim = shape->head_dim;
    for (uint32_t t = 0; t < b->n_strips; t++, out += (size_t)dim * KERN_STRIP)
        for (uint32_t d = 0; d < dim; d++) {
            const uint8_t *row = b->k.at[t] + d / 2 * b->k.step;
            const float *floats = (const float *)(row + d % 2 * b->k.half);
            const uint16_t *halves = (const uint16_t *)row + d % 2;
            float *to = out + d * KERN_STRIP;
            for (uint32_t i = 0; i < KERN_STRIP; i++)
                to[i] = shape->type == DTYPE_F32 ? floats[i] : widen(shape->type, halves, 2 * i);
        }
}

void kern_block_values(const kern_kv_shape *shape, const kern_block *b, float *out)
{
    uint32_t dim = shape->head_dim;
    for (uint32_t t = 0; t < b->n_strips; t++, out += (size_t)dim * KERN_STRIP)
        for (uint32_t i = 0; i < KERN_STRIP; i++) {
            const uint8_t *row = b->v.at[t] + i / 2 * b->v.step;
            const float *floats = (const float *)(row + i % 2 * b->v.half);
            const uint16_t *halves = (const uint16_t *)row + i % 2;
            for (uint32_t d = 0; d < dim; d++)
                out[d * KERN_STRIP + i] =
                    shape->type == DTYPE_F32 ? floats[d] : widen(shape->type, halves, 2 * d);
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
