/* Finds the blocks that a swapped sequence had published and that are still in the prefix cache
 * when it comes back: their pages are taken back instead of being copied. */
#include "paged_kv/pool.h"
#include "paged_kv/prefix.h"
#include "paged_kv/table.h"

resident_at resident_blocks(const pkv *p, const pkv_seq *s, const uint32_t *tokens)
{
    resident_at last = {0};
    if (s->sealed || s->unshared) return last;
    last.block = prefix_walk(p, tokens, s->published * p->geometry.page_tokens, s->salt, &last.n);
    return last;
}

/* ---- a walk over all of them ----------------------------------------------------------------- */

/* How many of a table's pages begin below token `below`, the compacted ones included. The bases of
 * the pages behind these ascend. */
static uint32_t pages_below(const pkv_seq *s, uint32_t table, uint32_t below)
{
    const uint32_t *bases = seq_bases(s, table);
    uint32_t first = s->tables[table].slot_pages, end = s->tables[table].n_pages;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (bases[middle] < below) first = middle + 1;
        else end = middle;
    }
    return first;
}

void each_resident(pkv *p, const pkv_seq *s, resident_at *at, uint32_t most, resident_fn *fn,
                   void *ctx)
{
    uint32_t size = p->geometry.page_tokens, *next = p->cursors;
    for (uint32_t g = 0; g < s->groups; g++) next[g] = pages_below(s, g, at->n * size);
    for (uint32_t seen = 0; at->block != 0 && seen < most;) {
        const pkv_block *b = &p->blocks[at->block];
        uint32_t base = --at->n * size, table = 0;
        at->block = b->parent;
        if (b->grain > s->grain) continue;
        uint32_t parts = s->groups / groups_at(p, b->grain);
        for (uint32_t node = b->first_node; node != 0; node = p->pool.nodes[node].block_next) {
            for (uint32_t end = table + parts; table < end; table++) {
                const uint32_t *bases = seq_bases(s, table);
                uint32_t *i = &next[table], first = s->tables[table].slot_pages;
                while (*i > first && bases[*i - 1] > base) --*i;
                if (*i == first || bases[*i - 1] != base) continue;
                fn(p, ctx, table, --*i,
                   node_inside(&p->pool, node, s->grain, layer_of(p, s->grain, table),
                               table % p->pool.n_heads));
            }
        }
        seen += s->groups < most - seen ? s->groups : most - seen;
    }
}

/* ---- what the sequence costs ----------------------------------------------------------------- */

/* Sums of a swapped sequence's cells: those that it would take, and those in use already. */
enum { TAKEN, IN_USE };

/* Moves the cells of a resident page that are in use from TAKEN to IN_USE. */
static void add_used(pkv *p, uint32_t table, uint32_t node)
{
    const pkv_tree *t = &p->pool;
    pkv_grain grain = node_grain(t, node);
    uint32_t cells = cells_in(t, grain), used = cells_with(t, node, COVER_USED);
    if (used == cells && grain != PKV_HEAD) {
        shares_add_all(p, TAKEN, -(int64_t)(cells / t->n_shares));
        shares_add_all(p, IN_USE, cells / t->n_shares);
        return;
    }
    uint32_t layers = grain == PKV_ALL ? t->n_layers : 1,
             heads = grain == PKV_HEAD ? 1 : t->n_heads;
    for (uint32_t i = 0; used > 0 && i < layers * heads; i++) {
        uint32_t head = grain == PKV_HEAD ? table % t->n_heads : i % heads;
        bool in_use =
            cells_with(t, node_inside(t, node, PKV_HEAD, i / heads, head), COVER_USED) > 0;
        shares_add(p, TAKEN, head, -(int64_t)in_use);
        shares_add(p, IN_USE, head, in_use);
    }
}

static void count_resident(pkv *p, void *ctx, uint32_t table, uint32_t index, uint32_t node)
{
    (void)index;
    pkv_swap_cost *cost = ctx;
    uint32_t cells = cells_in(&p->pool, node_grain(&p->pool, node));
    uint32_t cached = cells - cells_with(&p->pool, node, COVER_USED);
    cost->fresh -= cells;
    cost->cached_pages += cached;
    add_used(p, table, node);
    cost->parked_pages += cells_parked(p, node);
}

void resident_count_begin(const pkv *p, const pkv_seq *s, pkv_swap_cost *cost)
{
    *cost = (pkv_swap_cost){.held = s->held, .fresh = s->held};
    cost->held_even = (uint32_t)seq_held_evenly(p, s);
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t n_pages = s->tables[g].n_pages;
        if (s->grain == PKV_HEAD) shares_add(p, TAKEN, g, n_pages);
        else shares_add_all(p, TAKEN, (int64_t)n_pages * (cells_of(p, s) / p->pool.n_shares));
    }
}

void resident_count_some(pkv *p, const pkv_seq *s, resident_at *at, uint32_t most,
                         pkv_swap_cost *cost)
{
    each_resident(p, s, at, most, count_resident, cost);
}

void resident_count_end(const pkv *p, pkv_swap_cost *cost)
{
    cost->uneven = (uint32_t)(shares_even(p, TAKEN) - cost->fresh - cost->cached_pages);
    cost->shared_even = (uint32_t)shares_even(p, IN_USE);
}

/* ---- rows of a sequence that comes in portions ----------------------------------------------- */

/* A block may leave the cache between two portions: then its pages are copied. A parent leaves
 * after its children. */

status resident_chain(const pkv *p, resident_at last, resident_block **chain)
{
    *chain = NULL;
    if (last.block == 0) return STATUS_IS_OK;
    resident_block *blocks = alloc_resize(&p->alloc, NULL, last.n, sizeof *blocks);
    if (!blocks) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t b = last.block; b != 0; b = p->blocks[b].parent)
        blocks[--last.n] = (resident_block){
            .block = b, .generation = p->blocks[b].generation, .node = p->blocks[b].first_node};
    *chain = blocks;
    return STATUS_IS_OK;
}

void resident_free(const pkv *p, pkv_arriving *x)
{
    alloc_free(&p->alloc, x->chain);
    x->chain = NULL;
}

/* The node of a table's page that begins at token `base`; 0 = it is not resident. */
static uint32_t find_node(const pkv *p, pkv_arriving *x, const pkv_seq *from, uint32_t table,
                          uint32_t base)
{
    uint32_t b = base / p->geometry.page_tokens;
    if (b >= x->n_chain || base % p->geometry.page_tokens != 0) return 0;
    resident_block *at = &x->chain[b];
    const pkv_block *block = &p->blocks[at->block];
    if (block->generation != at->generation || block->grain > from->grain) return 0;
    uint32_t wanted = table / (from->groups / groups_at(p, block->grain));
    if (at->at > wanted) { /* these rows were asked for before, when the pool lacked pages */
        at->node = block->first_node;
        at->at = 0;
    }
    for (; at->at < wanted; at->at++) at->node = p->pool.nodes[at->node].block_next;
    return node_inside(&p->pool, at->node, from->grain, layer_of(p, from->grain, table),
                       table % p->pool.n_heads);
}

void resident_find(pkv *p, pkv_seq *s, const pkv_seq *from, table_rows rows)
{
    for (uint32_t g = rows.first; g < rows.end; g++) {
        uint32_t *pages = seq_pages(s, g), end = rows_end(from, rows, g);
        const uint32_t *bases = seq_bases(from, g);
        for (uint32_t i = rows.from; i < end; i++) {
            uint32_t node = 0;
            if (i >= from->tables[g].slot_pages)
                node = find_node(p, &s->arriving, from, g, bases[i]);
            pages[i] = node != 0 ? page_of(&p->pool, node) : 0;
        }
    }
}

void resident_take(pkv *p, const pkv_seq *s, const pkv_seq *from, table_rows rows)
{
    for (uint32_t g = rows.first; g < rows.end; g++) {
        const uint32_t *pages = seq_pages(s, g);
        for (uint32_t i = rows.from, end = rows_end(from, rows, g); i < end; i++) {
            if (pages[i] == 0) continue;
            node_ref(p, &p->pool, node_of(&p->pool, from->grain, pages[i]));
            p->counts.pages_retaken += cells_of(p, from);
        }
    }
}
