#include "model/cpu/kv_moves.h"

#include <assert.h>

enum { SLOTS_AT_ONCE = 16, HEAD_DIM_MOST = 256 };

/* Sets cos_sin to the rotation by `by` positions, backwards when negative. */
static void rope_shift(const rope_config *rope, uint32_t head_dim, int32_t by, float *cos_sin)
{
    float inv_freq[HEAD_DIM_MOST / 2];
    rope_frequencies(rope, head_dim, inv_freq);
    rope_angles(inv_freq, head_dim, by < 0 ? 0u - (uint32_t)by : (uint32_t)by, cos_sin);
    for (uint32_t i = head_dim / 2; by < 0 && i < head_dim; i++) cos_sin[i] = -cos_sin[i];
}

/* Moves n slots of one tile and rotates their keys, unless cos_sin is NULL. */
static void move_tile(kern_context *kc, const float *cos_sin, kv_place to, uint32_t dst_slot,
                      kv_place from, uint32_t src_slot, uint32_t n)
{
    float k[SLOTS_AT_ONCE * HEAD_DIM_MOST], v[SLOTS_AT_ONCE * HEAD_DIM_MOST];
    uint32_t dim = from.shape->head_dim;
    for (uint32_t i = 0; i < n; i++) {
        kern_kv_read(kc, from.shape, from.tiles, src_slot + i, k + (size_t)i * dim,
                     v + (size_t)i * dim);
    }
    /* All keys rotate by the same angles, so they pass as heads of one row. */
    if (cos_sin) kern_rope(kc, k, (size_t)n * dim, cos_sin, 1, n, dim);
    for (uint32_t i = 0; i < n; i++) {
        kern_kv_write(kc, to.shape, to.tiles, dst_slot + i, k + (size_t)i * dim,
                      v + (size_t)i * dim);
    }
}

void kv_move_slots(kern_context *kc, const rope_config *rope, const pkv_move *m, uint32_t n_tiles,
                   kv_place to, kv_place from)
{
    float cos_sin[HEAD_DIM_MOST];
    assert(from.shape->head_dim <= HEAD_DIM_MOST);
    if (m->rotate != 0) rope_shift(rope, from.shape->head_dim, m->rotate, cos_sin);
    for (uint32_t t = 0; t < n_tiles; t++) {
        for (uint32_t i = 0; i < m->n_slots; i += SLOTS_AT_ONCE) {
            uint32_t n = m->n_slots - i < SLOTS_AT_ONCE ? m->n_slots - i : SLOTS_AT_ONCE;
            move_tile(kc, m->rotate != 0 ? cos_sin : NULL, to, m->dst_slot + i, from,
                      m->src_slot + i, n);
        }
        to.tiles += to.tile_bytes;
        from.tiles += from.tile_bytes;
    }
}

void kv_move_rotated(const kv_store *s, kern_context *kc, const rope_config *rope,
                     const pkv_move *m)
{
    kv_place to = {&s->shape, kv_store_page(s, m->dst_page), s->tile_bytes};
    kv_place from = {&s->shape, kv_store_page(s, m->src_page), s->tile_bytes};
    kv_move_slots(kc, rope, m, s->geometry.layers_per_group * s->heads_in_page, to, from);
}

size_t kv_block_bytes(const kv_store *s)
{
    const pkv_geometry *g = &s->geometry;
    return pkv_groups(g) / pkv_shares(g) * pkv_shares_of(g, s->n_heads) * s->page_bytes;
}

static void read_slots(const kv_store *s, uint32_t cell, uint32_t n_slots, uint8_t *to)
{
    const uint8_t *from = kv_store_page(s, cell);
    memset(to, 0, s->page_bytes);
    for (size_t t = 0; t < s->page_tiles; t++)
        kern_kv_move(&s->shape, to + t * s->tile_bytes, 0, from + t * s->tile_bytes, 0, n_slots);
}

void kv_read_cells(const kv_store *s, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                   uint8_t *to)
{
    bool whole = n_slots == s->geometry.page_tokens;
    for (uint32_t i = 0; i < n; i++, to += s->page_bytes) {
        if (whole) memcpy(to, kv_store_page(s, cells[i]), s->page_bytes);
        else read_slots(s, cells[i], n_slots, to);
    }
}

void kv_write_cells(const kv_store *s, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    for (uint32_t i = 0; i < n; i++, from += s->page_bytes) {
        memcpy(kv_store_page(s, cells[i]), from, s->page_bytes);
        /* Whether any page has marks is for the thread of the steps to know. */
        if (s->marks) memset(kv_store_page_marks(s, cells[i]), 0, s->page_tiles * sizeof *s->marks);
    }
}
