/* The tree of runs (private to paged_kv): which cells are free, and where a free run is.
 *
 * A cell is a page of one KV group of the finest grain. The cells of the pool, and those of the
 * host tier, are cut into *runs*: a whole run has a cell for each of these groups, a layer run
 * those of one layer group.
 *
 * Shares. The head groups are cut into n_shares equal parts, because a rank of tensor parallelism
 * stores those of its own heads alone: the cells of a head come from its share, and a share's cells
 * have numbers that follow one another.
 *
 * Numbers. Cell (r, l, h) of whole run r, layer l and head h = s * in_share + i of share s has the
 * number ((s * n_layers + l) * n_whole + r) * in_share + i. A run's number, which tables hold, is
 * that of its first cell, and pkv_cell_offset leads from there to the cell of (l, h). So the cells
 * that one layer reads in whole runs lie in one part of the memory. Cell 0 is never handed out.
 *
 * Nodes. Runs and cells have one record each, at an index of their own: cells come first, then
 * layer runs, then whole runs. A node is *taken* while tables or a block hold it, and *used* while
 * tables hold it; it is *open* if not all of those are parked. All cells of a taken node are taken,
 * and so on. Holders of a run and holders of its parts may exist side by side, because a sequence
 * that went over to a finer grain shares its cells with one that did not.
 *
 * A run that is not taken but has taken parts is broken. Free parts are handed out from the broken
 * run that has the fewest, so that other runs drain and become whole again. A layer run is listed
 * once for each share. */
#ifndef PAGED_KV_TREE_H
#define PAGED_KV_TREE_H

#include "paged_kv/paged_kv.h"

/* Properties of cells that are counted. */
typedef enum cover { COVER_TAKEN, COVER_USED, COVER_OPEN, N_COVERS } cover;

typedef struct pkv_node {
    uint32_t refs;       // references of tables
    uint32_t parked;     // those of parked sequences among them
    uint32_t block;      // the block that holds it, 0 = not hashed
    uint32_t next, prev; // in the ring of cached nodes: the next newer and the next older one
    uint32_t block_next; // the block's node of the next group
    bool ringed;
    bool watched; // a block of the chain in pkv.watch holds it
} pkv_node;

typedef struct pkv_run {
    uint32_t below[N_COVERS]; // its cells that have the property by its parts
    uint32_t busy[N_COVERS];  // whole runs: layer runs with such a cell
} pkv_run;

/* A run in a list, by its index + 1. */
typedef struct run_link {
    uint32_t listed; // its free parts; 0 = it is in no list
    uint32_t prev, next;
} run_link;

/* Broken runs by their number of free parts. */
typedef struct run_lists {
    run_link *links; // of run i at i * stride
    uint32_t stride;
    uint32_t *heads; // [most + 1]
    uint32_t most;
    uint32_t lowest; // no run has fewer
} run_lists;

typedef struct pkv_tree {
    uint32_t n_layers, n_heads, n_whole; // layer groups, head groups, whole runs
    uint32_t n_shares, in_share;         // shares, head groups of each
    uint32_t n_cells;                    // numbers of cells: n_whole * n_layers * n_heads
    uint32_t n_reserved;                 // cells that are never handed out
    uint32_t touched;                    // whole runs from here on were never handed out
    pkv_node *nodes;                     // [n_cells + runs]
    pkv_run *runs;                       // by node index - n_cells
    uint32_t covered[N_COVERS];          // cells, reserved ones too
    uint32_t unused_wholes;              // whole runs without a used cell
    uint32_t unused_layers;              // layer runs without a used cell
    /* Cells of each share that have the property where no run around them has it: the others are as
     * many in each share. */
    uint32_t *loose[N_COVERS]; // [n_shares]
    run_link *links;           // of whole runs, then of each layer run in each share
    run_lists whole_lists;
    run_lists *layer_lists; // [n_shares]
} pkv_tree;

/* Sets the sizes alone, by which numbers of cells and nodes are computed. */
void tree_set_sizes(pkv_tree *t, const pkv_geometry *g, uint32_t usable);
static inline size_t tree_node_count(const pkv_tree *t)
{
    return t->n_cells + (size_t)t->n_whole * (t->n_layers + 1);
}
/* A tree with `usable` cells to hand out, which is above 0. */
status tree_create(pkv_tree *t, const allocator *a, const pkv_geometry *g, uint32_t usable);
void tree_destroy(pkv_tree *t, const allocator *a);
/* A free node of the grain, which the caller takes before it asks again; 0 when there is none. A
 * cell is one of the share. */
uint32_t tree_find_free(pkv_tree *t, pkv_grain grain, uint32_t share);
/* Takes free nodes of the grain with one reference each: at least one and at most n, as many as lie
 * in the run from which tree_find_free takes the first. Returns how many; 0 when there is none. */
uint32_t tree_take(pkv_tree *t, pkv_grain grain, uint32_t share, uint32_t n, uint32_t *nodes);

/* Sets the record of a node, and of those around it, that are taken for the first time. */
void tree_set_path(pkv_tree *t, uint32_t node);
/* A change of a node's refs, parked or block stands between these two, which begin with
 * tree_set_path. */
void tree_change_begin(pkv_tree *t, uint32_t node);
void tree_change_end(pkv_tree *t, uint32_t node);

/* Adds to the references of n nodes, and to those of parked sequences among them; a number below 0
 * wraps. The nodes are all cells of one layer run, or all runs, and their records are set. It comes
 * to the same as a change of each node, in a fraction of the time. */
void tree_add_refs(pkv_tree *t, const uint32_t *nodes, uint32_t n, uint32_t refs, uint32_t parked);

/* Gives up one reference to each run for one to each of its nodes of a finer grain, so that the
 * same cells are used as before. The runs are all whole ones, or a single one. It comes to the same
 * as a change of each node, in a fraction of the time. */
void tree_split_refs(pkv_tree *t, const uint32_t *runs, uint32_t n, pkv_grain grain, bool parked);

static inline uint32_t tree_free(const pkv_tree *t) { return t->n_cells - t->covered[COVER_TAKEN]; }
static inline uint32_t tree_used(const pkv_tree *t)
{
    return t->covered[COVER_USED] - t->n_reserved;
}

static inline uint32_t tree_layer_runs(const pkv_tree *t) { return t->n_whole * t->n_layers; }
static inline uint32_t tree_whole_at(const pkv_tree *t) // node index of whole run 0
{
    return t->n_cells + tree_layer_runs(t);
}
static inline uint32_t cell_share(const pkv_tree *t, uint32_t cell)
{
    return cell / (t->n_cells / t->n_shares);
}
static inline uint32_t head_share(const pkv_tree *t, uint32_t head) { return head / t->in_share; }
/* Cells of a share that are free or cached. */
uint32_t tree_available_in(const pkv_tree *t, uint32_t share);
/* Cells without the property, if every share is asked for as many. */
uint32_t tree_without(const pkv_tree *t, cover k);
static inline pkv_grain node_grain(const pkv_tree *t, uint32_t node)
{
    return node < t->n_cells ? PKV_HEAD : node < tree_whole_at(t) ? PKV_LAYER : PKV_ALL;
}
/* The node that a table of the grain means by `page`, and the other way round. */
static inline uint32_t node_of(const pkv_tree *t, pkv_grain grain, uint32_t page)
{
    if (grain == PKV_HEAD) return page;
    return page / t->in_share + (grain == PKV_LAYER ? t->n_cells : tree_whole_at(t));
}
static inline uint32_t page_of(const pkv_tree *t, uint32_t node)
{
    if (node < t->n_cells) return node;
    return (node - (node < tree_whole_at(t) ? t->n_cells : tree_whole_at(t))) * t->in_share;
}
/* Whether a table of the grain may hold the page: it is the first cell of a run. */
static inline bool tree_is_page(const pkv_tree *t, pkv_grain grain, uint32_t page)
{
    uint32_t n = grain == PKV_LAYER ? tree_layer_runs(t) : t->n_whole;
    return grain == PKV_HEAD ? page < t->n_cells
                             : page % t->in_share == 0 && page / t->in_share < n;
}
/* The run around a cell or layer run. */
static inline uint32_t node_above(const pkv_tree *t, uint32_t node)
{
    return node < t->n_cells ? t->n_cells + node / t->in_share % tree_layer_runs(t)
                             : tree_whole_at(t) + (node - t->n_cells) % t->n_whole;
}
/* Part i of a run: layer i of a whole run, head i of a layer run. */
static inline uint32_t node_part(const pkv_tree *t, uint32_t run, uint32_t i)
{
    if (run >= tree_whole_at(t)) return t->n_cells + i * t->n_whole + (run - tree_whole_at(t));
    uint32_t place = head_share(t, i) * tree_layer_runs(t) + (run - t->n_cells);
    return place * t->in_share + i % t->in_share;
}
static inline uint32_t cell_head(const pkv_tree *t, uint32_t cell)
{
    return cell_share(t, cell) * t->in_share + cell % t->in_share;
}
static inline uint32_t cell_layer(const pkv_tree *t, uint32_t cell)
{
    return cell / t->in_share % tree_layer_runs(t) / t->n_whole;
}
/* pkv_cell_offset. */
static inline uint32_t tree_offset(const pkv_tree *t, pkv_grain grain, uint32_t layer,
                                   uint32_t head)
{
    if (grain == PKV_HEAD) return 0;
    return node_part(t, t->n_cells + (grain == PKV_ALL ? layer * t->n_whole : 0), head);
}
static inline pkv_run *run_at(const pkv_tree *t, uint32_t node)
{
    return &t->runs[node - t->n_cells];
}
static inline uint32_t cells_in(const pkv_tree *t, pkv_grain grain)
{
    return grain == PKV_HEAD ? 1 : grain == PKV_LAYER ? t->n_heads : t->n_heads * t->n_layers;
}
/* The node of (layer, head) of a finer grain inside a node, or the node itself. */
uint32_t node_inside(const pkv_tree *t, uint32_t node, pkv_grain grain, uint32_t layer,
                     uint32_t head);
/* From a page of grain `from` to the page of grain `to` inside it that is of (layer, head). */
uint32_t tree_inside(const pkv_tree *t, pkv_grain from, pkv_grain to, uint32_t layer,
                     uint32_t head);
/* Whether the layer run has taken cells and is not taken itself, nor the run around it. */
bool tree_layer_is_broken(const pkv_tree *t, uint32_t layer);
/* Cells of the node that have the property, by whatever holds them. */
uint32_t cells_with(const pkv_tree *t, uint32_t node, cover k);
/* Whether anything but one reference of a table holds some cell of the node. */
bool node_is_common(const pkv_tree *t, uint32_t node);
/* Whether a block holds the node or a run around it. */
bool node_is_hashed(const pkv_tree *t, uint32_t node);
/* Whether more than one reference of tables holds some cell of the node. */
bool node_is_shared(const pkv_tree *t, uint32_t node);

#endif
