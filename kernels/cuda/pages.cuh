/* kernels/cuda, private: finds the bytes of a sequence, a layer and a KV head. */
#ifndef KERNELS_CUDA_PAGES_CUH
#define KERNELS_CUDA_PAGES_CUH

#include "kernels/cuda/simt.cuh"

/* The table of one sequence, layer and KV head. */
struct table_view {
    const uint32_t *pages;
    uint32_t cell;   /* behind a page's first cell, the cell of this layer and head */
    uint8_t *tiles;  /* the tile in page 0, that cell counted in */
    uint32_t length; /* kept tokens */
};

static DEVICE table_view view_table(const gpu_pages &p, const gpu_tables &t, const gpu_layer &l,
                                    const gpu_seq &s, const uint32_t *lengths, uint32_t head)
{
    uint32_t head_group = l.first_head_group + head / l.heads_per_group, table = 0;
    table_view v;
    v.cell = head_group % p.run_heads;
    if (s.grain == GPU_GRAIN_ALL) v.cell += l.layer_group * p.layer_stride;
    else if (s.grain == GPU_GRAIN_LAYER) table = l.layer_group;
    else {
        table = l.layer_group * t.head_groups + head_group - t.first_head_group;
        if (s.grain == GPU_GRAIN_LIST) table = head;
        v.cell = 0;
    }
    v.pages = t.pages + ((size_t)s.table + table) * t.row;
    v.tiles =
        p.data + v.cell * p.page_bytes + (l.first_tile + head % l.heads_per_group) * p.tile_bytes;
    v.length = lengths[s.lengths + table];
    return v;
}

/* K of a slot; its V lies values_at bytes behind. */
static DEVICE uint8_t *key_at(const gpu_pages &p, const table_view &v, uint32_t slot,
                              size_t row_bytes)
{
    return v.tiles + v.pages[slot / p.page_tokens] * p.page_bytes +
           slot % p.page_tokens * row_bytes;
}

/* Index of a tile's running sums in gpu_pages.sums. */
static DEVICE size_t sums_at(const gpu_pages &p, uint32_t cell, uint32_t tile)
{
    return ((size_t)cell * p.n_tiles + tile) * p.page_tokens;
}

/* int8: the scales in a tile; those of K, then, page_tokens behind, those of V. */
static DEVICE uint16_t *scales_at(const gpu_pages &p, uint8_t *tile)
{
    return (uint16_t *)(tile + 2 * (size_t)p.page_tokens * p.head_dim);
}

/* The scale of a slot's elements of K (part 0) or V. */
template <class KV>
static DEVICE float kv_scale(const gpu_pages &, const table_view &, uint32_t, uint32_t)
{
    return 1.0f;
}
template <>
DEVICE float kv_scale<i8>(const gpu_pages &p, const table_view &v, uint32_t slot, uint32_t part)
{
    uint8_t *tile = v.tiles + v.pages[slot / p.page_tokens] * p.page_bytes;
    bf16 scale = {scales_at(p, tile)[part * p.page_tokens + slot % p.page_tokens]};
    return to_float(scale);
}

/* Calls WHAT(dims) with the head size, if kernels are compiled for it. */
#define FOR_DIM(head_dim, WHAT)                                                                    \
    switch (head_dim) {                                                                            \
    case 32: WHAT(32); break;                                                                      \
    case 64: WHAT(64); break;                                                                      \
    case 96: WHAT(96); break;                                                                      \
    case 128: WHAT(128); break;                                                                    \
    case 256: WHAT(256); break;                                                                    \
    default: break;                                                                                \
    }

#endif
