#include "paged_kv/pool.h"
#include "paged_kv/prefix.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

/* Far above any model, low enough that no product below overflows. */
enum { GROUPS_MAX = 1 << 20, LAYERS_MAX = 1 << 14, HEADS_MAX = 1 << 14 };

status pkv_geometry_check(const pkv_geometry *g, error *err)
{
    if (g->page_tokens < 16 || g->page_tokens > PAGE_TOKENS_MOST || g->page_tokens % 16 != 0) {
        return error_set(err, STATUS_INVALID,
                         "page_tokens is %u: must be a multiple of 16 from 16 to 256",
                         g->page_tokens);
    }
    if (g->n_layers < 1 || g->n_layers > LAYERS_MAX) {
        return error_set(err, STATUS_INVALID, "n_layers is %u: must be 1 to %d", g->n_layers,
                         LAYERS_MAX);
    }
    if (g->n_kv_heads < 1 || g->n_kv_heads > HEADS_MAX) {
        return error_set(err, STATUS_INVALID, "n_kv_heads is %u: must be 1 to %d", g->n_kv_heads,
                         HEADS_MAX);
    }
    if (g->layers_per_group < 1 || g->layers_per_group > g->n_layers) {
        return error_set(err, STATUS_INVALID, "layers_per_group is %u: must be 1 to n_layers = %u",
                         g->layers_per_group, g->n_layers);
    }
    if (g->heads_per_group < 1 || g->n_kv_heads % g->heads_per_group != 0) {
        return error_set(err, STATUS_INVALID, "heads_per_group is %u: must divide n_kv_heads = %u",
                         g->heads_per_group, g->n_kv_heads);
    }
    if ((uint64_t)pkv_layer_groups(g) * pkv_head_groups(g) > GROUPS_MAX) {
        return error_set(err, STATUS_LIMIT, "more than %d KV groups", GROUPS_MAX);
    }
    if (pkv_head_groups(g) % pkv_shares(g) != 0) {
        return error_set(err, STATUS_INVALID, "n_shares is %u: must divide %u groups of KV heads",
                         g->n_shares, pkv_head_groups(g));
    }
    for (uint32_t l = 1; l < g->n_layers; l++) {
        if (l % g->layers_per_group == 0 || pkv_window_of(g, l) == pkv_window_of(g, l - 1))
            continue;
        return error_set(err, STATUS_INVALID,
                         "layers_per_group is %u: of layers %u and %u, which would share a page "
                         "table, one has a sliding window",
                         g->layers_per_group, l - 1, l);
    }
    return STATUS_IS_OK;
}

uint32_t pkv_shares_for(const pkv_geometry *g, uint32_t n_ranks)
{
    uint32_t heads = pkv_head_groups(g);
    if (n_ranks >= heads) return n_ranks % heads == 0 ? heads : 1;
    return heads % n_ranks == 0 ? n_ranks : 1;
}

pkv_grain pkv_grain_fit(const pkv_geometry *g, pkv_grain grain)
{
    bool one_layer = pkv_layer_groups(g) == 1, one_head = pkv_head_groups(g) == 1;
    if (grain == PKV_ALL && one_layer) grain = PKV_LAYER;
    return grain == PKV_LAYER && one_head ? PKV_HEAD : grain;
}

pkv_geometry pkv_geometry_at(const pkv_geometry *g, pkv_grain grain)
{
    pkv_geometry at = *g;
    if (grain != PKV_HEAD) at.heads_per_group = at.n_kv_heads;
    if (grain != PKV_HEAD) at.n_shares = 1;
    if (grain == PKV_ALL) at.layers_per_group = at.n_layers;
    return at;
}

status pkv_create(const pkv_options *options, pkv **out)
{
    RETURN_IF_ERROR(pkv_geometry_check(&options->geometry, NULL));
    if (options->n_pages < 2 || options->n_pages > PKV_PAGES_MOST) {
        return status_make(STATUS_INVALID, "n_pages must be 2 to 2^30");
    }
    if (options->n_host_pages > PKV_PAGES_MOST) {
        return status_make(STATUS_INVALID, "n_host_pages must be at most 2^30");
    }
    if (options->max_seqs < 1 || options->max_seqs == UINT32_MAX) {
        return status_make(STATUS_INVALID, "max_seqs must be at least 1");
    }
    const allocator *a = options->alloc ? options->alloc : &allocator_default;
    pkv *p = alloc_zeroed(a, 1, sizeof *p);
    if (!p) return status_make(STATUS_NO_MEMORY, NULL);
    p->geometry = options->geometry;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++)
        p->at[grain] = pkv_geometry_at(&p->geometry, grain);
    p->groups = pkv_groups(&options->geometry);
    p->n_pages = options->n_pages;
    p->max_seqs = options->max_seqs;
    p->alloc = *a;
    p->on_block = options->on_block;
    p->on_block_ctx = options->on_block_ctx;
    p->prefix_cache = options->prefix_cache;
    p->n_host_pages = options->n_host_pages;
    p->log.epoch = p->sharing_changes = 1;
    p->seqs = alloc_zeroed(a, p->max_seqs, sizeof *p->seqs);
    p->cursors = alloc_resize(a, NULL, p->groups, sizeof *p->cursors);
    size_t n_sums = (size_t)SUMS_MOST * pkv_shares(&p->geometry);
    p->in_share = alloc_zeroed(a, n_sums, sizeof *p->in_share);
    p->look.in_share = alloc_zeroed(a, n_sums, sizeof *p->look.in_share);
    size_t n_shared = (size_t)p->max_seqs * pkv_shares(&p->geometry);
    p->shared_sums = alloc_zeroed(a, n_shared, sizeof *p->shared_sums);
    if (!p->seqs || !p->cursors || !p->in_share || !p->look.in_share || !p->shared_sums ||
        !status_ok(tree_create(&p->pool, a, &p->geometry, p->n_pages - 1)) ||
        (p->prefix_cache && !status_ok(prefix_create(p))) ||
        (p->prefix_cache && !status_ok(lost_create(p, options->lost_most))) ||
        !status_ok(host_create(p))) {
        pkv_destroy(p);
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    *out = p;
    return STATUS_IS_OK;
}

void pkv_destroy(pkv *p)
{
    if (!p) return;
    for (uint32_t i = 0; p->seqs && i < p->max_seqs; i++) {
        resident_free(p, &p->seqs[i].arriving);
        seq_free_lists(p, &p->seqs[i]);
    }
    records_destroy(p);
    host_destroy(p);
    prefix_destroy(p);
    lost_destroy(p);
    alloc_free(&p->alloc, p->seqs);
    tree_destroy(&p->pool, &p->alloc);
    alloc_free(&p->alloc, p->cursors);
    alloc_free(&p->alloc, p->in_share);
    alloc_free(&p->alloc, p->look.in_share);
    alloc_free(&p->alloc, p->shared_sums);
    alloc_free(&p->alloc, p->log.words);
    alloc_free(&p->alloc, p->log.moves);
    alloc_free(&p->alloc, p->scratch);
    allocator a = p->alloc;
    alloc_free(&a, p);
}

const pkv_geometry *pkv_get_geometry(const pkv *p) { return &p->geometry; }

/* The two kinds of fields fill the struct, so a counter beside the list does not compile. */
#define ONE_MORE(field, metric, help) +1
enum { N_COUNTERS = 0 PKV_COUNTERS(ONE_MORE), N_GAUGES = 6 };
_Static_assert(sizeof(pkv_counts) == N_COUNTERS * sizeof(uint64_t) + N_GAUGES * sizeof(uint32_t),
               "a counter belongs in PKV_COUNTERS, a number of the moment in N_GAUGES");

pkv_counts pkv_count(const pkv *p)
{
    pkv_counts now = p->counts;
    now.n_pages = p->n_pages;
    now.free = tree_free(&p->pool);
    now.used = tree_used(&p->pool);
    now.cached = p->pool.covered[COVER_TAKEN] - p->pool.covered[COVER_USED];
    now.n_host_pages = p->n_host_pages;
    now.host_used = host_used(p);
    return now;
}

void pkv_add_counters(pkv_counts *sum, const pkv_counts *more)
{
#define ADD(field, metric, help) sum->field += more->field;
    PKV_COUNTERS(ADD)
#undef ADD
}

static uint32_t not_promised(const pkv *p, uint32_t cells)
{
    return cells > p->promised ? cells - p->promised : 0;
}

uint32_t pkv_available(const pkv *p) { return not_promised(p, tree_without(&p->pool, COVER_USED)); }

uint32_t pkv_available_unparked(const pkv *p)
{
    return not_promised(p, tree_without(&p->pool, COVER_OPEN));
}

uint32_t pkv_parked_alone(const pkv *p)
{
    return p->pool.covered[COVER_USED] - p->pool.covered[COVER_OPEN];
}

uint64_t pkv_checksum(const pkv *p) { return p->checksum; }

uint64_t shares_even(const pkv *p, uint32_t sum)
{
    const int64_t *in_share = p->in_share + sum * p->pool.n_shares;
    int64_t most = 0;
    for (uint32_t s = 0; s < p->pool.n_shares; s++)
        if (in_share[s] > most) most = in_share[s];
    return (uint64_t)most * p->pool.n_shares;
}

/* ---- the ring of cached nodes ---------------------------------------------------------------- */

static void ring_push(pkv *p, uint32_t node)
{
    pkv_node *nodes = p->pool.nodes;
    nodes[node].ringed = true;
    nodes[node].prev = p->ring_tail;
    nodes[node].next = 0;
    if (p->ring_tail != 0) nodes[p->ring_tail].next = node;
    else p->ring_head = node;
    p->ring_tail = node;
}

static void ring_remove(pkv *p, uint32_t node)
{
    pkv_node *nodes = p->pool.nodes, *n = &nodes[node];
    n->ringed = false;
    if (n->prev != 0) nodes[n->prev].next = n->next;
    else p->ring_head = n->next;
    if (n->next != 0) nodes[n->next].prev = n->prev;
    else p->ring_tail = n->prev;
}

/* A node is in the ring while its block alone holds some of its cells. Holders of a run around it
 * do not count: such nodes are few, and giving up their block early loses a hit at most. */
static void ring_settle(pkv *p, uint32_t node)
{
    const pkv_tree *t = &p->pool;
    const pkv_node *n = &t->nodes[node];
    pkv_grain grain = node_grain(t, node);
    bool in = n->block != 0 && n->refs == 0 &&
              (grain == PKV_HEAD || run_at(t, node)->below[COVER_USED] < cells_in(t, grain));
    if (in && !n->ringed) ring_push(p, node);
    if (!in && n->ringed) ring_remove(p, node);
}

/* ---- pages: free <-> used <-> cached --------------------------------------------------------- */

bool tree_has(const pkv_tree *tree, pkv_grain grain, uint32_t table, uint64_t n)
{
    if (grain == PKV_HEAD) return n <= tree_available_in(tree, table_share(tree, table));
    return n <= (grain == PKV_LAYER ? tree->unused_layers : tree->unused_wholes);
}

/* Whether a run of the grain, around the node or inside it, has no used cell; or, for a cell, if
 * some of the node is in the share. */
static bool is_of_unused(const pkv_tree *t, pkv_grain grain, uint32_t share, uint32_t node)
{
    if (grain == PKV_HEAD) return node >= t->n_cells || cell_share(t, node) == share;
    uint32_t run = node < t->n_cells ? node_above(t, node) : node;
    if (grain == PKV_ALL && run < tree_whole_at(t)) run = node_above(t, run);
    if (grain == PKV_LAYER && run >= tree_whole_at(t))
        return run_at(t, run)->busy[COVER_USED] < t->n_layers;
    return cells_with(t, run, COVER_USED) == 0;
}

/* The oldest cached node whose leaving may free a run of the grain. */
static uint32_t oldest_cached(const pkv *p, pkv_grain grain, uint32_t share)
{
    uint32_t node = p->ring_head;
    while (node != 0 && !is_of_unused(&p->pool, grain, share, node))
        node = p->pool.nodes[node].next;
    return node;
}

uint32_t pool_take_some(pkv *p, pkv_grain grain, uint32_t table, uint32_t n, uint32_t *pages)
{
    uint32_t share = grain == PKV_HEAD ? table_share(&p->pool, table) : 0, taken;
    while ((taken = tree_take(&p->pool, grain, share, n, pages)) == 0) {
        uint32_t oldest = oldest_cached(p, grain, share);
        assert(oldest != 0);
        prefix_remove(p, p->pool.nodes[oldest].block);
    }
    for (uint32_t i = 0; i < taken; i++) pages[i] = page_of(&p->pool, pages[i]);
    return taken;
}

uint32_t pool_take(pkv *p, pkv_grain grain, uint32_t table)
{
    uint32_t page;
    (void)pool_take_some(p, grain, table, 1, &page);
    return page;
}

/* Nodes around the first one, and the nodes, enter the ring of cached ones or leave it. */
static void settle(pkv *p, const uint32_t *nodes, uint32_t n)
{
    const pkv_tree *t = &p->pool;
    for (uint32_t i = 0; i < n; i++)
        if (t->nodes[nodes[i]].ringed || t->nodes[nodes[i]].block != 0) ring_settle(p, nodes[i]);
    for (uint32_t node = nodes[0]; node < tree_whole_at(t);) {
        node = node_above(t, node);
        if (t->nodes[node].ringed || t->nodes[node].block != 0) ring_settle(p, node);
    }
}

void nodes_add_refs(pkv *p, pkv_tree *tree, const uint32_t *nodes, uint32_t n, uint32_t refs,
                    uint32_t parked)
{
    tree_set_path(tree, nodes[0]);
    if (tree != &p->pool) { /* the host tier has neither blocks nor parked sequences */
        tree_add_refs(tree, nodes, n, refs, parked);
        return;
    }
    watch_count(p, nodes, n, UINT32_MAX);
    tree_add_refs(tree, nodes, n, refs, parked);
    if (refs != 0) settle(p, nodes, n);
    if (refs != 0) shared_note(p, nodes, n, refs == 1);
    watch_count(p, nodes, n, 1);
}

/* Parts whose block alone held them are held by a table too from now on. */
static void settle_parts(pkv *p, uint32_t run, pkv_grain grain)
{
    const pkv_tree *t = &p->pool;
    uint32_t n = run < tree_whole_at(t) ? t->n_heads : t->n_layers;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t part = node_part(t, run, i);
        if (node_grain(t, part) != grain) settle_parts(p, part, grain);
        if (t->nodes[part].ringed || t->nodes[part].block != 0) ring_settle(p, part);
    }
}

void nodes_split(pkv *p, pkv_tree *tree, const uint32_t *runs, uint32_t n, pkv_grain grain,
                 bool parked)
{
    bool is_pool = tree == &p->pool;
    for (uint32_t i = 0; is_pool && i < n; i++) watch_count(p, &runs[i], 1, UINT32_MAX);
    bool had_parts = false; /* some part was taken before, and may be of a block */
    for (uint32_t i = 0; i < n; i++) had_parts |= run_at(tree, runs[i])->below[COVER_TAKEN] > 0;
    tree_split_refs(tree, runs, n, grain, parked);
    if (!is_pool) return; /* the host tier has no blocks */
    for (uint32_t i = 0; i < n; i++) {
        if (had_parts) settle_parts(p, runs[i], grain);
        settle(p, &runs[i], 1);
        watch_count(p, &runs[i], 1, 1);
    }
}

void pool_hash(pkv *p, uint32_t node, uint32_t block)
{
    p->changes++;
    tree_change_begin(&p->pool, node);
    p->pool.nodes[node].block = block;
    tree_change_end(&p->pool, node);
    settle(p, &node, 1);
}
