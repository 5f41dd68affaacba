/* paged_kv, private: pages of the pool and references to them. */
#ifndef PAGED_KV_POOL_H
#define PAGED_KV_POOL_H

#include "paged_kv/state.h"

/* ---- pool.c ---- */

/* Whether n pages can be taken for a table of the grain, of free and of cached cells. */
bool tree_has(const pkv_tree *tree, pkv_grain grain, uint32_t table, uint64_t n);
static inline bool pool_has(const pkv *p, pkv_grain grain, uint32_t table, uint64_t n)
{
    return tree_has(&p->pool, grain, table, n);
}
/* Takes a page for a table with one reference; pool_has said that there is one. */
uint32_t pool_take(pkv *p, pkv_grain grain, uint32_t table);
/* Takes at least one and at most n pages, as many as lie in one run, each with one reference.
 * Returns how many. */
uint32_t pool_take_some(pkv *p, pkv_grain grain, uint32_t table, uint32_t n, uint32_t *pages);

/* Cells that a walk over a sequence's tables counts. At the finest grain they come from the shares
 * of their heads, so as many must be available as if each share had to give what the one that
 * gives most does: shares_even is the sum of that. */
enum { SUMS_MOST = 5 }; // of one walk
static inline void shares_clear(const pkv *p)
{
    memset(p->in_share, 0, (size_t)SUMS_MOST * p->pool.n_shares * sizeof *p->in_share);
}
static inline void shares_add(const pkv *p, uint32_t sum, uint32_t table, int64_t n)
{
    p->in_share[sum * p->pool.n_shares + table_share(&p->pool, table)] += n;
}
/* Adds to a sum n cells of each share. */
static inline void shares_add_all(const pkv *p, uint32_t sum, int64_t n)
{
    for (uint32_t s = 0; s < p->pool.n_shares; s++) p->in_share[sum * p->pool.n_shares + s] += n;
}
uint64_t shares_even(const pkv *p, uint32_t sum);
/* tree_add_refs in the pool or the host tier, for cells of one layer run or for one run. Cells
 * without a reference become cached when they are hashed, else free. */
void nodes_add_refs(pkv *p, pkv_tree *tree, const uint32_t *nodes, uint32_t n, uint32_t refs,
                    uint32_t parked);
/* Adds a reference to a node, or gives one up. */
static inline void node_ref(pkv *p, pkv_tree *tree, uint32_t node)
{
    nodes_add_refs(p, tree, &node, 1, 1, 0);
}
static inline void node_unref(pkv *p, pkv_tree *tree, uint32_t node)
{
    nodes_add_refs(p, tree, &node, 1, UINT32_MAX, 0);
}
/* tree_split_refs */
void nodes_split(pkv *p, pkv_tree *tree, const uint32_t *runs, uint32_t n, pkv_grain grain,
                 bool parked);
static inline void pool_ref(pkv *p, pkv_grain grain, uint32_t page)
{
    node_ref(p, &p->pool, node_of(&p->pool, grain, page));
}
static inline void pool_unref(pkv *p, pkv_grain grain, uint32_t page)
{
    node_unref(p, &p->pool, node_of(&p->pool, grain, page));
}
/* Fetches what a reference to a page changes: the pages of a long table may lie far apart. It is
 * always inline, because GCC drops calls of a function that only fetches. */
__attribute__((always_inline)) static inline void tree_expect(const pkv_tree *t, pkv_grain grain,
                                                              uint32_t page)
{
    uint32_t node = node_of(t, grain, page);
    __builtin_prefetch(&t->nodes[node].refs, 1);
    __builtin_prefetch(&t->nodes[node].watched, 1); /* perhaps in the next cache line */
    if (node < t->n_cells) node = node_above(t, node);
    __builtin_prefetch(run_at(t, node), 1);
    if (node >= tree_whole_at(t)) return;
    __builtin_prefetch(&t->links[t->n_whole + (size_t)(node - t->n_cells) * t->n_shares], 1);
}
__attribute__((always_inline)) static inline void pool_expect(const pkv *p, pkv_grain grain,
                                                              uint32_t page)
{
    tree_expect(&p->pool, grain, page);
}
enum { POOL_AHEAD = 12 }; // pages that are fetched ahead
/* Cells of a node that only parked sequences hold. */
static inline uint32_t cells_parked(const pkv *p, uint32_t node)
{
    return cells_with(&p->pool, node, COVER_USED) - cells_with(&p->pool, node, COVER_OPEN);
}
/* Enters a node into a block, or takes it out (0). */
void pool_hash(pkv *p, uint32_t node, uint32_t block);

/* ---- refs.c ---- */

/* Pages from .. to - 1 of tables first .. end - 1, which are of one layer. */
typedef struct table_rows {
    uint32_t first, end, from, to;
} table_rows;
/* The end of the rows in a table. */
static inline uint32_t rows_end(const pkv_seq *s, table_rows rows, uint32_t table)
{
    return s->tables[table].n_pages < rows.to ? s->tables[table].n_pages : rows.to;
}
/* The first table behind those of the layer of a table. */
static inline uint32_t layer_end(const pkv_tree *t, pkv_grain grain, uint32_t table)
{
    return grain == PKV_HEAD ? (table / t->n_heads + 1) * t->n_heads : table + 1;
}
/* nodes_add_refs for every page. The last pages go first, so that a block is reclaimed before its
 * parent. */
void rows_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, uint32_t refs,
                   uint32_t parked);
/* nodes_add_refs for every page of a sequence. */
void seq_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, uint32_t refs, uint32_t parked);

/* ---- shared.c ---- */

/* The count of a sequence without pages. */
static inline pkv_shared_count shared_none(const pkv *p)
{
    return (pkv_shared_count){.came = p->sharings, .as_of = p->sharing_changes};
}
/* Notes that nodes of the pool, which are cells of one layer run or one run, have got a reference
 * or lost one. */
void shared_note(pkv *p, const uint32_t *nodes, uint32_t n, bool more);
/* Cells of a sequence in pages that other tables hold too, as many from each share: their number,
 * which takes a look at every page, and an upper bound. */
uint64_t shared_count(const pkv *p, const pkv_seq *s);
uint64_t shared_most(const pkv *p, const pkv_seq *s);

#endif
