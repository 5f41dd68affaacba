/* The geometry of page tables, fixed when the engine starts: KV groups, grains, shares, windows,
 * and which cells a page of a table has. paged_kv.h explains these words, and includes this header,
 * so that other modules include paged_kv.h alone. */
#ifndef PAGED_KV_GEOMETRY_H
#define PAGED_KV_GEOMETRY_H

#include "base/base.h"

enum { PKV_WINDOW_WORDS = 16 }; // layers beyond these bits have no window
/* Pages of the pool or the host tier, at most, so that cells and runs together have 32-bit
 * numbers. */
enum { PKV_PAGES_MOST = 1 << 30 };

typedef struct pkv_geometry {
    uint32_t page_tokens; // multiple of 16, at most 256
    uint32_t n_layers;
    uint32_t n_kv_heads;       // KV heads of the whole model
    uint32_t layers_per_group; // the last group may be short
    uint32_t heads_per_group;  // divides n_kv_heads
    /* Parts of the head groups with cells of their own, because different ranks store them; divides
     * the number of head groups. 0 = 1. */
    uint32_t n_shares;
    /* Layers whose bit is set (bit i = layer i) read the last `window` positions alone. Layers that
     * share a table have equal bits. 0 = every layer reads all. */
    uint32_t window;
    uint64_t window_layers[PKV_WINDOW_WORDS];
} pkv_geometry;

static inline uint32_t pkv_layer_groups(const pkv_geometry *g)
{
    return (g->n_layers + g->layers_per_group - 1) / g->layers_per_group;
}
static inline uint32_t pkv_head_groups(const pkv_geometry *g)
{
    return g->n_kv_heads / g->heads_per_group;
}
static inline uint32_t pkv_groups(const pkv_geometry *g)
{
    return pkv_layer_groups(g) * pkv_head_groups(g);
}
static inline uint32_t pkv_group_of(const pkv_geometry *g, uint32_t layer, uint32_t kv_head)
{
    return layer / g->layers_per_group * pkv_head_groups(g) + kv_head / g->heads_per_group;
}

static inline uint32_t pkv_shares(const pkv_geometry *g) { return g->n_shares ? g->n_shares : 1; }
/* How many shares hold the cells of n_heads KV heads that follow one another: those of a rank. */
static inline uint32_t pkv_shares_of(const pkv_geometry *g, uint32_t n_heads)
{
    uint32_t n = (uint32_t)((uint64_t)n_heads * pkv_shares(g) / g->n_kv_heads);
    return n > 0 ? n : 1;
}
/* The shares that suit tensor parallelism over n_ranks: one for each rank with heads of its own,
 * or one where a cell holds heads of several ranks. */
uint32_t pkv_shares_for(const pkv_geometry *g, uint32_t n_ranks);

/* The number of last positions that a layer reads; 0 = all. */
static inline uint32_t pkv_window_of(const pkv_geometry *g, uint32_t layer)
{
    bool has = layer / 64 < PKV_WINDOW_WORDS && (g->window_layers[layer / 64] >> layer % 64 & 1);
    return has ? g->window : 0;
}

/* The layer groups, and their layers, whose tables take tokens of the first n_layers; 0 = all. */
static inline uint32_t pkv_filled_groups(const pkv_geometry *g, uint32_t n_layers)
{
    if (n_layers == 0 || n_layers > g->n_layers) n_layers = g->n_layers;
    return (n_layers + g->layers_per_group - 1) / g->layers_per_group;
}
static inline uint32_t pkv_filled_layers(const pkv_geometry *g, uint32_t n_layers)
{
    uint32_t n = pkv_filled_groups(g, n_layers) * g->layers_per_group;
    return n < g->n_layers ? n : g->n_layers;
}

/* How finely a sequence's tables are cut: one table for all, one for each layer group, or one for
 * each layer group and head group, which is the geometry's own and the finest. Table numbers are 0;
 * the layer group; the KV group. */
typedef enum pkv_grain { PKV_ALL, PKV_LAYER, PKV_HEAD } pkv_grain;

/* The coarsest grain with the same tables: a model of one layer, or of one head, has fewer. */
pkv_grain pkv_grain_fit(const pkv_geometry *g, pkv_grain grain);
/* The geometry whose groups are the tables of a grain. */
pkv_geometry pkv_geometry_at(const pkv_geometry *g, pkv_grain grain);

/* Numbers of cells of the pool or the host tier with so many usable pages of the finest grain:
 * n_pages - 1 of the pool, or n_host_pages. A backend has memory for that many. */
uint32_t pkv_cell_count(const pkv_geometry *g, uint32_t usable);
/* A page of a table is a run of cells, named by its first. This many numbers behind it is the cell
 * of a layer group and a head group, in a table that has both. The cells of share i of n are the
 * i-th n-th of all numbers. */
uint32_t pkv_cell_offset(const pkv_geometry *g, uint32_t usable, pkv_grain grain,
                         uint32_t layer_group, uint32_t head_group);
/* The cells of the shares that hold n_heads KV heads from first_head on: what their rank stores. */
typedef struct pkv_cells {
    uint32_t first, n;
} pkv_cells;
pkv_cells pkv_cells_of(const pkv_geometry *g, uint32_t usable, uint32_t first_head,
                       uint32_t n_heads);
/* How many of the usable pages one sequence can have, as many from each share: what pkv_available
 * says of an empty pool. Fewer than all, where the pool does not end with a whole run. */
uint32_t pkv_even_pages(const pkv_geometry *g, uint32_t usable);
static inline bool pkv_has_cell(pkv_cells r, uint32_t cell) { return cell - r.first < r.n; }
/* Whether a table of the grain may hold the page: it is the first cell of a run. */
bool pkv_is_page(const pkv_geometry *g, uint32_t usable, pkv_grain grain, uint32_t page);

status pkv_geometry_check(const pkv_geometry *g, error *err);

#endif
