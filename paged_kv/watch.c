/* Questions that are asked again and again, for a sequence that waits for pages. A lookup in the
 * prefix cache: the chain that it found, with counts that follow every change of its pages. The
 * pages of a parked sequence: what was seen, until a change. */
#include "paged_kv/pool.h"
#include "paged_kv/prefix.h"

static void count_node(pkv *p, uint32_t node, uint32_t one)
{
    const pkv_tree *t = &p->pool;
    if (!t->nodes[node].watched) return;
    p->watch.has_cost = false;
    uint32_t used = cells_with(t, node, COVER_USED);
    p->watch.cached_pages += one * (cells_in(t, node_grain(t, node)) - used);
    p->watch.parked_pages += one * cells_parked(p, node);
}

/* Counts the parts of a run: a holder of the run holds them too. Parts of which none was ever taken
 * are unset. */
static void count_parts(pkv *p, uint32_t run, uint32_t one)
{
    const pkv_tree *t = &p->pool;
    if (run < t->n_cells || run_at(t, run)->below[COVER_TAKEN] == 0) return;
    uint32_t n = run < tree_whole_at(t) ? t->n_heads : t->n_layers;
    for (uint32_t i = 0; i < n; i++) {
        count_node(p, node_part(t, run, i), one);
        count_parts(p, node_part(t, run, i), one);
    }
}

/* What was seen of a parked sequence may no longer be true when parked sequences alone hold some
 * cell of the run, before the change or after it. Otherwise open sequences hold every cell before
 * and after, so each page is shared and none comes free. */
static void forget_sight(pkv *p, uint32_t whole)
{
    if (cells_with(&p->pool, whole, COVER_USED) != cells_with(&p->pool, whole, COVER_OPEN))
        p->sight.parked = 0;
}

void watch_count(pkv *p, const uint32_t *nodes, uint32_t n, uint32_t one)
{
    uint32_t node = nodes[0];
    p->changes++;
    if (p->watch.last != 0) count_parts(p, node, one);
    for (uint32_t i = 0; p->watch.last != 0 && i < n; i++) count_node(p, nodes[i], one);
    while (node < tree_whole_at(&p->pool)) {
        node = node_above(&p->pool, node);
        if (p->watch.last != 0) count_node(p, node, one);
    }
    forget_sight(p, node);
}

/* Adds the nodes of a block to those that are counted, or takes them away. */
static void watch_block(pkv *p, uint32_t b, bool watched)
{
    for (uint32_t node = p->blocks[b].first_node; node != 0;
         node = p->pool.nodes[node].block_next) {
        count_node(p, node, UINT32_MAX);
        p->pool.nodes[node].watched = watched;
        count_node(p, node, 1);
    }
}

void watch_forget(pkv *p)
{
    for (uint32_t b = p->watch.last; b != 0; b = p->blocks[b].parent) watch_block(p, b, false);
    p->watch = (prefix_watch){0};
}

void watch_remove(pkv *p, uint32_t b)
{
    if (b != p->watch.last) return;
    watch_block(p, b, false);
    p->watch.last = p->blocks[b].parent;
    p->watch.n_blocks--;
}

pkv_hit pkv_lookup_again(pkv *p, uint64_t key, const uint32_t *tokens, uint32_t max_tokens,
                         uint64_t salt)
{
    prefix_watch *w = &p->watch;
    uint32_t size = p->geometry.page_tokens, n_max = p->prefix_cache ? max_tokens / size : 0;
    assert(key != 0);
    if (w->key != key || w->max_tokens != max_tokens) {
        watch_forget(p);
        w->key = key;
        w->max_tokens = max_tokens;
    }
    while (w->n_blocks < n_max) {
        const uint32_t *of_block = tokens + (size_t)w->n_blocks * size;
        uint64_t hash = prefix_hash(p, p->blocks[w->last].hash, of_block, salt);
        uint32_t b = prefix_find(p, w->last, hash, of_block, salt);
        if (b == 0) break;
        watch_block(p, b, true);
        w->last = b;
        w->n_blocks++;
    }
    return (pkv_hit){.tokens = w->n_blocks * size,
                     .cached_pages = w->cached_pages,
                     .parked_pages = w->parked_pages};
}

pkv_parked_pages pkv_parked_look_again(pkv *p, uint32_t parked)
{
    if (p->sight.parked != parked) p->sight.pages = pkv_parked_look(p, parked);
    p->sight.parked = parked;
    return p->sight.pages;
}

const char *watch_check(const pkv *p)
{
    const prefix_watch *w = &p->watch;
    const pkv_tree *t = &p->pool;
    uint32_t n = 0, cached = 0, parked = 0;
    for (uint32_t b = w->last; b != 0; b = p->blocks[b].parent, n++) {
        if (p->blocks[b].generation % 2 == 0) return "a watched block has left the cache";
        for (uint32_t node = p->blocks[b].first_node; node != 0; node = t->nodes[node].block_next) {
            if (!t->nodes[node].watched) return "a watched block has a node that is not watched";
            cached += cells_in(t, p->blocks[b].grain) - cells_with(t, node, COVER_USED);
            parked += cells_parked(p, node);
        }
    }
    if (n != w->n_blocks) return "watched blocks are miscounted";
    if (cached != w->cached_pages || parked != w->parked_pages)
        return "cells of watched blocks are miscounted";
    return NULL;
}
