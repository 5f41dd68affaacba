/* kernels, private: where the strips of a table lie (attention.h says what a strip is), and a block
 * of K or V as f32 in the order of K. */
#ifndef KERNELS_STRIPS_H
#define KERNELS_STRIPS_H

#include "kernels/isa.h"

static inline size_t kern_blocks_of(size_t slots) { return (slots + KERN_BLOCK - 1) / KERN_BLOCK; }

/* The strip that begins at `slot` of a page's tile: its K and its V. */
static inline void kern_strip_in_page(const kern_kv_shape *shape, const uint8_t *tile, size_t slot,
                                      const uint8_t **k, const uint8_t **v)
{
    kern_kv_facts facts = kern_kv_facts_of(shape->format);
    *k = tile + slot * facts.pair * facts.bits / 8;
    *v = tile + kern_kv_values_at(shape) + slot * shape->head_dim * facts.bits / 8;
}

/* Strip t of the table. */
static inline void kern_strip_at(const kern_kv_shape *shape, size_t page_stride,
                                 const uint32_t *pages, const uint8_t *tiles, size_t t,
                                 const uint8_t **k, const uint8_t **v)
{
    size_t page = t * KERN_STRIP / shape->page_tokens, slot = t * KERN_STRIP % shape->page_tokens;
    kern_strip_in_page(shape, tiles + (size_t)pages[page] * page_stride, slot, k, v);
}

/* Strips of K and of V, without their places. */
static inline void kern_strip_steps(const kern_kv_shape *shape, kern_attn_strips *k,
                                    kern_attn_strips *v)
{
    kern_kv_facts facts = kern_kv_facts_of(shape->format);
    size_t rows = 2 / facts.pair, pair_bytes = (size_t)facts.pair * facts.bits / 8;
    k->half = shape->page_tokens * pair_bytes;
    k->step = k->half * rows;
    v->half = shape->head_dim * pair_bytes;
    v->step = v->half * rows;
}

/* int8: the scales of strips whose places are known. A slot's pair of K has as many bytes as its
 * scale. */
static inline void kern_strip_scales(const kern_kv_shape *shape, kern_attn_strips *k,
                                     kern_attn_strips *v)
{
    for (uint32_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        k->scales[t] = k->at[t] + kern_kv_scales_at(shape);
        v->scales[t] = k->scales[t] + kern_kv_scale_bytes(shape);
    }
}

/* ---- formats with grids: strips are made as they are read, bf16 in scratch ------------------ */

typedef struct kern_pages {
    const uint32_t *pages;
    const uint8_t *tiles;
    size_t page_stride;
    const uint8_t *const *filling; /* bf16 tiles of the pages from first_filling on, or NULLs */
    size_t first_filling;
    size_t first_wide; /* pages from here on are read as their bf16 tiles, where they have any */
} kern_pages;

/* The first page that a row of page `own` reads in bf16. */
static inline size_t kern_first_wide(size_t own, size_t residual_pages)
{
    return own > residual_pages ? own - residual_pages : 0;
}

/* The bf16 tile that `page` is read as; NULL: it is read as it is stored. */
static inline const uint8_t *kern_wide_tile(const kern_pages *p, size_t page)
{
    return page >= p->first_wide ? p->filling[page - p->first_filling] : NULL;
}

/* Of one block. */
static inline size_t kern_wide_bytes(size_t head_dim)
{
    return 2 * KERN_BLOCK_STRIPS * head_dim * KERN_STRIP * sizeof(uint16_t);
}

/* Strips [from, to) of the table, all of one block, to `wide`; the block's others point to the
 * first. */
void kern_widen_strips(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                       size_t from, size_t to, uint8_t *wide, kern_attn_strips *k,
                       kern_attn_strips *v);

/* The strips of one block, those of a table of n_slots; the others point to the first, so that
 * whatever is fetched ahead is the table's. */
typedef struct kern_block {
    kern_attn_strips k, v;
    uint32_t n_slots, n_strips;
} kern_block;

kern_block kern_block_at(const kern_kv_shape *shape, size_t page_stride, const uint32_t *pages,
                         const uint8_t *tiles, size_t block, size_t n_slots);
/* The same of any format; what it is read as is kern_kv_wide(shape). wide [kern_wide_bytes]. */
kern_block kern_block_of(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                         size_t block, size_t n_slots, uint8_t *wide);

/* out [4 strips][head_dim][16 slots] f32 = the block's K or V; only its n_strips strips. shape is
 * what it is read as. */
void kern_block_keys(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                     float *out);
void kern_block_values(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                       float *out);
/* The same as K strips for attn_scores[KERN_KV_F32]. */
kern_attn_strips kern_block_strips(const float *block, uint32_t head_dim);

#endif
