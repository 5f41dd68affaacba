/* The bytes behind page numbers (private to model/): one block of equal pages, each its group's
 * tiles layer by layer, head by head (kernels.h says what a tile is). With tensor parallelism a
 * rank stores its own heads' slice of every page, or, where the cells of its heads are a share of
 * all, the pages of that share. */
#ifndef MODEL_CPU_KV_STORE_H
#define MODEL_CPU_KV_STORE_H

#include "backend/backend.h"
#include "kernels/kernels.h"
#include "paged_kv/log.h"

#include <string.h>

typedef struct kv_store {
    kern_kv_shape shape;
    pkv_geometry geometry;
    uint32_t first_head; // this rank's KV heads: first_head .. + n_heads
    uint32_t n_heads;
    uint32_t heads_in_page; // this rank's heads in one page
    size_t tile_bytes;
    size_t page_bytes;
    uint32_t n_pages;      // page 0 included
    uint32_t n_cells;      // numbers of cells of the pool, at least n_pages
    uint32_t n_host_cells; // and of the host tier
    pkv_cells cells;       // those of the pool that are stored here
    pkv_cells host_cells;
    uint8_t *data;              // [cells.n, page_bytes]
    uint8_t *host;              // [host_cells.n, page_bytes]: the tier of swapped sequences
    struct kv_filling *filling; // formats with grids: pages read as bf16 (kv_filling.h)
    struct kv_tier *tier;       // pools larger than memory (kv_tier.h); NULL: all is in memory
    uint32_t n_frames;          // pages that the tier has in memory at once
    step_end ended;             // how the step in hand failed (kv_hold.h)
    uint32_t residual_pages;    // full pages before its own that a row reads as bf16
    /* Running sums of retention, one f32 for each slot of each tile, beside K and V. They move with
     * their slots. They are only reserved addresses until a measure asks for them. */
    size_t page_sums; // floats of a page
    float *sums;      // [cells.n, page_sums]
    float *host_sums; // [host_cells.n, page_sums]
    bool has_sums;    // a plan has asked for sums: until then all are 0 and need no moves
    /* Representatives of blocks (retrieve.h), beside the K and V of the block's first page. A mark
     * says of which block's representative a tile is a part; 0: of none. They are only reserved
     * addresses until a plan asks for retrieval or a block comes from disk, and NULL where no plan
     * may. */
    size_t page_tiles;
    size_t page_vectors;      // elements of one vector for each tile of a page
    uint16_t *vectors;        // [cells.n, page_vectors] sums or largest values, bf16
    uint16_t *smallest;       // [cells.n, page_vectors] smallest values, where blocks have boxes
    uint64_t *marks;          // [cells.n, page_tiles]
    uint64_t representatives; // made so far: each has a number
    bool has_marks;           // a plan has asked for retrieval: until then all marks are 0
} kv_store;

static inline void kv_store_layout(kv_store *s, kern_kv_format format, const pkv_geometry *geometry,
                                   uint32_t head_dim, uint32_t first_head, uint32_t n_heads)
{
    *s = (kv_store){.shape = {format, geometry->page_tokens, head_dim},
                    .geometry = *geometry,
                    .first_head = first_head,
                    .n_heads = n_heads};
    s->heads_in_page = n_heads < geometry->heads_per_group ? n_heads : geometry->heads_per_group;
    s->tile_bytes = kern_kv_tile_bytes(&s->shape);
    s->page_bytes = s->tile_bytes * geometry->layers_per_group * s->heads_in_page;
    s->page_tiles = (size_t)geometry->layers_per_group * s->heads_in_page;
    s->page_sums = s->page_tiles * s->shape.page_tokens;
    s->page_vectors = s->page_tiles * head_dim;
}

/* Makes pages multiples of what a file is read in: there may be bytes behind the last tile. Comes
 * before kv_store_set_pool. */
static inline void kv_store_align(kv_store *s, size_t bytes)
{
    s->page_bytes = (s->page_bytes + bytes - 1) / bytes * bytes;
}

/* Sets how many cells the pool has. */
static inline void kv_store_set_pool(kv_store *s, uint32_t n_pages)
{
    s->n_pages = n_pages;
    s->n_cells = pkv_cell_count(&s->geometry, n_pages - 1);
    s->cells = pkv_cells_of(&s->geometry, n_pages - 1, s->first_head, s->n_heads);
}

static inline void kv_store_set_host(kv_store *s, uint32_t n_host_pages)
{
    s->n_host_cells = pkv_cell_count(&s->geometry, n_host_pages);
    s->host_cells = pkv_cells_of(&s->geometry, n_host_pages, s->first_head, s->n_heads);
}

/* A page that is stored here. */
static inline uint8_t *kv_store_page(const kv_store *s, uint32_t cell)
{
    return s->data + (size_t)(cell - s->cells.first) * s->page_bytes;
}
static inline uint8_t *kv_store_host_page(const kv_store *s, uint32_t cell)
{
    return s->host + (size_t)(cell - s->host_cells.first) * s->page_bytes;
}

/* The index in a page of the tile of (layer, rank-local head). */
static inline size_t kv_store_tile(const kv_store *s, uint32_t layer, uint32_t head)
{
    return (size_t)(layer % s->geometry.layers_per_group) * s->heads_in_page +
           head % s->heads_in_page;
}

/* The first page of a table that the row in `slot` reads in bf16, in formats with grids. */
static inline uint32_t kv_store_first_wide(const kv_store *s, uint32_t slot)
{
    uint32_t own = slot / s->shape.page_tokens;
    return own > s->residual_pages ? own - s->residual_pages : 0;
}

/* The tile of (layer, head) that a table with this offset (pkv_table_view) has in page 0; the tile
 * in its page p is p * page_bytes further. Page 0 itself need not be stored here. */
static inline uint8_t *kv_store_tiles(const kv_store *s, uint32_t layer, uint32_t head,
                                      uint32_t offset)
{
    ptrdiff_t cells = (ptrdiff_t)offset - (ptrdiff_t)s->cells.first;
    return s->data + cells * (ptrdiff_t)s->page_bytes +
           kv_store_tile(s, layer, head) * s->tile_bytes;
}

/* Running sums [page_tokens], likewise; page p's are p * page_sums further. */
static inline float *kv_store_sums(const kv_store *s, uint32_t layer, uint32_t head,
                                   uint32_t offset)
{
    ptrdiff_t cells = (ptrdiff_t)offset - (ptrdiff_t)s->cells.first;
    return s->sums + cells * (ptrdiff_t)s->page_sums +
           kv_store_tile(s, layer, head) * s->shape.page_tokens;
}

/* Moves the running sums of a move's slots. The code that moves K and V calls it, and has checked
 * the page numbers. */
static inline void kv_store_move_sums(const kv_store *s, const pkv_move *m)
{
    if (!s->has_sums) return;
    bool in = m->kind == PKV_MOVE_IN, out = m->kind == PKV_MOVE_OUT;
    const float *src = in ? s->host_sums : s->sums;
    float *dst = out ? s->host_sums : s->sums;
    src += (m->src_page - (in ? s->host_cells : s->cells).first) * s->page_sums;
    dst += (m->dst_page - (out ? s->host_cells : s->cells).first) * s->page_sums;
    if (m->kind != PKV_MOVE_SLOTS) {
        memcpy(dst, src, s->page_sums * sizeof *dst);
        return;
    }
    for (size_t tile = 0; tile < s->page_sums; tile += s->shape.page_tokens)
        memmove(dst + tile + m->dst_slot, src + tile + m->src_slot, m->n_slots * sizeof *dst);
}

/* Whether the rank has heads of the group. Pages of other groups are only numbers here. */
static inline bool kv_store_is_ours(const kv_store *s, uint32_t group)
{
    uint32_t first = group % pkv_head_groups(&s->geometry) * s->geometry.heads_per_group;
    return first < s->first_head + s->n_heads &&
           s->first_head < first + s->geometry.heads_per_group;
}

/* Bytes beside a page that retrieval may write: two vectors and a mark for each tile. */
static inline size_t kv_store_retrieval_bytes(const kv_store *s)
{
    return 2 * s->page_vectors * sizeof *s->vectors + s->page_tiles * sizeof *s->marks;
}

/* One of the arrays of vectors, [head_dim] a tile, and marks, likewise; page p's are
 * p * page_vectors and p * page_tiles further. */
static inline uint16_t *kv_store_vectors(const kv_store *s, uint16_t *vectors, uint32_t layer,
                                         uint32_t head, uint32_t offset)
{
    ptrdiff_t cells = (ptrdiff_t)offset - (ptrdiff_t)s->cells.first;
    return vectors + cells * (ptrdiff_t)s->page_vectors +
           kv_store_tile(s, layer, head) * s->shape.head_dim;
}
static inline uint64_t *kv_store_marks(const kv_store *s, uint32_t layer, uint32_t head,
                                       uint32_t offset)
{
    ptrdiff_t cells = (ptrdiff_t)offset - (ptrdiff_t)s->cells.first;
    return s->marks + cells * (ptrdiff_t)s->page_tiles + kv_store_tile(s, layer, head);
}

/* The marks [page_tiles] of a page that is stored here. */
static inline uint64_t *kv_store_page_marks(const kv_store *s, uint32_t page)
{
    return s->marks + (size_t)(page - s->cells.first) * s->page_tiles;
}

/* The keys of a page change: its representatives are those of other keys. */
static inline void kv_store_forget(const kv_store *s, uint32_t page)
{
    if (!s->has_marks) return;
    memset(kv_store_page_marks(s, page), 0, s->page_tiles * sizeof *s->marks);
}

static inline uint32_t kv_store_group(const kv_store *s, uint32_t layer, uint32_t head)
{
    return pkv_group_of(&s->geometry, layer, s->first_head + head);
}

#endif
