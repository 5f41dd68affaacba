#include "model/kv_moves.h"

#include <assert.h>

enum { SLOTS_AT_ONCE = 16, HEAD_DIM_MOST = 256 };

/* Cosines and sines of a turn by so many positions, backwards when negative. */
static void turn(const rope_config *rope, uint32_t head_dim, int32_t by, float *cos_sin)
{
    float inv_freq[HEAD_DIM_MOST / 2];
    rope_frequencies(rope, head_dim, inv_freq);
    rope_angles(inv_freq, head_dim, by < 0 ? 0u - (uint32_t)by : (uint32_t)by, cos_sin);
    for (uint32_t i = head_dim / 2; by < 0 && i < head_dim; i++) cos_sin[i] = -cos_sin[i];
}

static void move_tile(const kern_kv_shape *shape, kern_context *kc, const float *cos_sin,
                      uint8_t *dst, uint32_t dst_slot, const uint8_t *src, uint32_t src_slot,
                      uint32_t n)
{
    float k[SLOTS_AT_ONCE * HEAD_DIM_MOST], v[SLOTS_AT_ONCE * HEAD_DIM_MOST];
    uint32_t dim = shape->head_dim;
    for (uint32_t i = 0; i < n; i++) {
        kern_kv_read(kc, shape, src, src_slot + i, k + (size_t)i * dim, v + (size_t)i * dim);
    }
    /* All turn by one angle, as the heads of one row do. */
    kern_rope(kc, k, (size_t)n * dim, cos_sin, 1, n, dim);
    for (uint32_t i = 0; i < n; i++) {
        kern_kv_write(kc, shape, dst, dst_slot + i, k + (size_t)i * dim, v + (size_t)i * dim);
    }
}

void kv_move_rotated(const kv_store *s, kern_context *kc, const rope_config *rope,
                     const pkv_move *m)
{
    float cos_sin[HEAD_DIM_MOST];
    assert(s->shape.head_dim <= HEAD_DIM_MOST);
    turn(rope, s->shape.head_dim, m->rotate, cos_sin);
    uint8_t *dst = s->data + m->dst_page * s->page_bytes;
    const uint8_t *src = s->data + m->src_page * s->page_bytes;
    uint32_t tiles = s->geometry.layers_per_group * s->heads_in_page;
    for (uint32_t t = 0; t < tiles; t++) {
        for (uint32_t i = 0; i < m->n_slots; i += SLOTS_AT_ONCE) {
            uint32_t n = m->n_slots - i < SLOTS_AT_ONCE ? m->n_slots - i : SLOTS_AT_ONCE;
            move_tile(&s->shape, kc, cos_sin, dst + t * s->tile_bytes, m->dst_slot + i,
                      src + t * s->tile_bytes, m->src_slot + i, n);
        }
    }
}
