/* The keys of one KV head as a row reads them (private to model/). In formats with grids the row's
 * own page and the residual before it are read as bf16. */
#ifndef MODEL_CPU_KEY_VIEW_H
#define MODEL_CPU_KEY_VIEW_H

#include "model/cpu/kv_filling.h"

typedef struct key_view {
    const uint32_t *pages; // of the table
    const uint8_t *tiles;  // kv_store_tiles
    const uint8_t *const *filling;
    uint32_t first_filling, first_wide; // pages of the table; filling NULL: no page is wide
    size_t page_bytes;
} key_view;

/* The row of n_slots slots of the step's sequence `index`. */
static inline key_view key_view_of(const kv_store *store, const pkv_mirror *mirror,
                                   const forward_seq *seq, uint32_t index, uint32_t layer,
                                   uint32_t head, uint32_t n_slots)
{
    pkv_table_view table = pkv_mirror_table(mirror, seq->seq, kv_store_group(store, layer, head));
    return (key_view){
        .pages = table.pages,
        .tiles = kv_store_tiles(store, layer, head, table.offset),
        .filling = store->filling ? kv_filling_tiles(store->filling, index, head) : NULL,
        .first_filling = kv_store_first_wide(store, table.kept_tokens - seq->n_rows),
        .first_wide = kv_store_first_wide(store, n_slots - 1),
        .page_bytes = store->page_bytes,
    };
}

/* The tile of the table's page `page`; *wide says whether it is a bf16 tile beside the pool. */
static inline const uint8_t *key_view_tile(const key_view *v, uint32_t page, bool *wide)
{
    const uint8_t *tile =
        v->filling && page >= v->first_wide ? v->filling[page - v->first_filling] : NULL;
    *wide = tile != NULL;
    return tile ? tile : v->tiles + (size_t)v->pages[page] * v->page_bytes;
}

#endif
