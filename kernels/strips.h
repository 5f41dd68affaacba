/* kernels, private: where the strips of a table lie (attention.h defines a strip), and a block of K
 * or V as f32 in the order of K. */
#ifndef KERNELS_STRIPS_H
#define KERNELS_STRIPS_H

#include "kernels/isa.h"

static inline size_t kern_blocks_of(size_t slots) { return (slots + KERN_BLOCK - 1) / KERN_BLOCK; }

/* K and V of the strip that begins at `slot` of a page's tile. */
static inline void kern_strip_in_page(const kern_kv_shape *shape, const uint8_t *tile, size_t slot,
                                      const uint8_t **k, const uint8_t **v)
{
    kern_kv_facts facts = kern_kv_facts_of(shape->format);
    *k = tile + slot * facts.pair * facts.bits / 8;
    *v = tile + kern_kv_values_at(shape) + slot * shape->head_dim * facts.bits / 8;
}

/* K and V of strip t of the table. */
static inline void kern_strip_at(const kern_kv_shape *shape, size_t page_stride,
                                 const uint32_t *pages, const uint8_t *tiles, size_t t,
                                 const uint8_t **k, const uint8_t **v)
{
    size_t page = t * KERN_STRIP / shape->page_tokens, slot = t * KERN_STRIP % shape->page_tokens;
    kern_strip_in_page(shape, tiles + (size_t)pages[page] * page_stride, slot, k, v);
}

/* Sets the steps and halves of the strips of K and V; `at` stays unset. */
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

/* int8: sets the scales of strips whose `at` is set. A slot's pair of K has as many bytes as its
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
    const uint8_t *const *filling; /* bf16 tiles of pages from first_filling on; NULL: none */
    size_t first_filling;
    size_t first_wide; /* pages from here on are read as bf16 where they have a bf16 tile */
} kern_pages;

/* The first page that a row in page `own` reads as bf16. */
static inline size_t kern_first_wide(size_t own, size_t residual_pages)
{
    return own > residual_pages ? own - residual_pages : 0;
}

/* The bf16 tile of `page` to read; NULL: the page is read as stored. */
static inline const uint8_t *kern_wide_tile(const kern_pages *p, size_t page)
{
    return page >= p->first_wide ? p->filling[page - p->first_filling] : NULL;
}

/* Bytes of one block as bf16. */
static inline size_t kern_wide_bytes(size_t head_dim)
{
    return 2 * KERN_BLOCK_STRIPS * head_dim * KERN_STRIP * sizeof(uint16_t);
}

/* Reads strips [from, to) of the table, all in one block, into `wide` as bf16. The block's other
 * strips point to the first one. */
void kern_widen_strips(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                       size_t from, size_t to, uint8_t *wide, kern_attn_strips *k,
                       kern_attn_strips *v);

/* The strips of one block that lie in a table of n_slots. The block's other strips point to the
 * first one, so that prefetches stay inside the table. */
typedef struct kern_block {
    kern_attn_strips k, v;
    uint32_t n_slots, n_strips;
} kern_block;

kern_block kern_block_at(const kern_kv_shape *shape, size_t page_stride, const uint32_t *pages,
                         const uint8_t *tiles, size_t block, size_t n_slots);
/* kern_block_at for any format; the block then has the shape kern_kv_wide(shape). wide
 * [kern_wide_bytes]. */
kern_block kern_block_of(const kern_isa *isa, const kern_kv_shape *shape, const kern_pages *pages,
                         size_t block, size_t n_slots, uint8_t *wide);

/* out [4 strips][head_dim][16 slots] f32 = the block's K or V; only its n_strips strips are
 * written. shape is the shape that the block is read as. */
void kern_block_keys(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                     float *out);
void kern_block_values(const kern_isa *isa, const kern_kv_shape *shape, const kern_block *b,
                       float *out);
/* The block that kern_block_keys wrote, as K strips for attn_scores[KERN_KV_F32]. */
kern_attn_strips kern_block_strips(const float *block, uint32_t head_dim);

#endif
