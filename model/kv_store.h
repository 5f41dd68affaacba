/* The bytes behind page numbers (private to model/): one block of equal pages, each its group's
 * tiles layer by layer, head by head (kernels.h says what a tile is). With tensor parallelism a
 * rank stores its own heads' slice of every page. */
#ifndef MODEL_KV_STORE_H
#define MODEL_KV_STORE_H

#include "kernels/kernels.h"
#include "paged_kv/paged_kv.h"

typedef struct kv_store {
    kern_kv_shape shape;
    pkv_geometry geometry;
    uint32_t first_head; // this rank's KV heads: first_head .. + n_heads
    uint32_t n_heads;
    uint32_t heads_in_page; // of this rank
    size_t tile_bytes;
    size_t page_bytes;
    uint32_t n_pages; // page 0 included
    uint8_t *data;    // [n_pages, page_bytes]
} kv_store;

static inline void kv_store_layout(kv_store *s, dtype type, const pkv_geometry *geometry,
                                   uint32_t head_dim, uint32_t first_head, uint32_t n_heads)
{
    *s = (kv_store){.shape = {type, geometry->page_tokens, head_dim},
                    .geometry = *geometry,
                    .first_head = first_head,
                    .n_heads = n_heads};
    s->heads_in_page = n_heads < geometry->heads_per_group ? n_heads : geometry->heads_per_group;
    s->tile_bytes = kern_kv_tile_bytes(&s->shape);
    s->page_bytes = s->tile_bytes * geometry->layers_per_group * s->heads_in_page;
}

/* Where the tiles of (layer, rank-local head) lie in page 0; page p's is p * page_bytes further. */
static inline uint8_t *kv_store_tiles(const kv_store *s, uint32_t layer, uint32_t head)
{
    size_t in_page =
        (size_t)(layer % s->geometry.layers_per_group) * s->heads_in_page + head % s->heads_in_page;
    return s->data + in_page * s->tile_bytes;
}

static inline uint32_t kv_store_group(const kv_store *s, uint32_t layer, uint32_t head)
{
    return pkv_group_of(&s->geometry, layer, s->first_head + head);
}

#endif
