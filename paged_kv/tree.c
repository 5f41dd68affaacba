#include "paged_kv/tree.h"

#include <assert.h>

uint32_t pkv_cell_count(const pkv_geometry *g, uint32_t usable)
{
    uint32_t groups = pkv_groups(g);
    return (usable / groups + 1) * groups;
}

uint32_t pkv_cell_offset(const pkv_geometry *g, uint32_t usable, pkv_grain grain, uint32_t layer,
                         uint32_t head)
{
    pkv_tree t;
    tree_set_sizes(&t, g, usable);
    return tree_offset(&t, grain, layer, head);
}

pkv_cells pkv_cells_of(const pkv_geometry *g, uint32_t usable, uint32_t first_head,
                       uint32_t n_heads)
{
    uint32_t of_share = pkv_cell_count(g, usable) / pkv_shares(g);
    uint32_t share = (uint32_t)((uint64_t)first_head * pkv_shares(g) / g->n_kv_heads);
    return (pkv_cells){share * of_share, pkv_shares_of(g, n_heads) * of_share};
}

/* Only the first run lacks cells, and most of them lie in the first share (reserve_cells). */
uint32_t pkv_even_pages(const pkv_geometry *g, uint32_t usable)
{
    uint32_t cells = pkv_cell_count(g, usable), shares = pkv_shares(g), reserved = cells - usable;
    uint32_t heads = pkv_head_groups(g), in_share = heads / shares, rest = reserved % heads;
    uint32_t lacking = reserved / heads * in_share + (rest < in_share ? rest : in_share);
    return (cells / shares - lacking) * shares;
}

bool pkv_is_page(const pkv_geometry *g, uint32_t usable, pkv_grain grain, uint32_t page)
{
    pkv_tree t;
    tree_set_sizes(&t, g, usable);
    return tree_is_page(&t, grain, page);
}

static bool has(const pkv_node *n, cover k)
{
    if (k == COVER_TAKEN) return n->refs > 0 || n->block != 0;
    return n->refs > (k == COVER_USED ? 0 : n->parked);
}

static bool node_has(const pkv_tree *t, uint32_t node, cover k) { return has(&t->nodes[node], k); }

/* ---- lists of runs by their free parts ------------------------------------------------------- */

static run_link *link_at(const run_lists *l, uint32_t name)
{
    return &l->links[(size_t)(name - 1) * l->stride];
}

static void list_remove(const run_lists *l, uint32_t name)
{
    run_link *r = link_at(l, name);
    if (r->prev != 0) link_at(l, r->prev)->next = r->next;
    else l->heads[r->listed] = r->next;
    if (r->next != 0) link_at(l, r->next)->prev = r->prev;
    r->listed = 0;
}

/* Lists run `index` by its free parts, or takes it out of its list. */
static void list_move(run_lists *l, uint32_t index, uint32_t free_parts)
{
    uint32_t name = index + 1;
    run_link *r = link_at(l, name);
    if (r->listed == free_parts) return;
    if (r->listed != 0) list_remove(l, name);
    if (free_parts == 0) return;
    *r = (run_link){.listed = free_parts, .next = l->heads[free_parts]};
    if (r->next != 0) link_at(l, r->next)->prev = name;
    l->heads[free_parts] = name;
    if (free_parts < l->lowest) l->lowest = free_parts;
}

/* The name of the run with the fewest free parts; 0 = none is listed. */
static uint32_t list_fullest(run_lists *l)
{
    while (l->lowest <= l->most && l->heads[l->lowest] == 0) l->lowest++;
    return l->lowest <= l->most ? l->heads[l->lowest] : 0;
}

bool tree_layer_is_broken(const pkv_tree *t, uint32_t layer)
{
    return run_at(t, layer)->below[COVER_TAKEN] > 0 && !node_has(t, layer, COVER_TAKEN) &&
           !node_has(t, node_above(t, layer), COVER_TAKEN);
}

/* Free cells of a broken layer run in a share. */
static uint32_t free_in_share(const pkv_tree *t, uint32_t layer, uint32_t share)
{
    if (t->n_shares == 1) return t->n_heads - run_at(t, layer)->below[COVER_TAKEN];
    uint32_t n = 0, first = node_part(t, layer, share * t->in_share);
    for (uint32_t i = 0; i < t->in_share; i++) n += !node_has(t, first + i, COVER_TAKEN);
    return n;
}

/* A layer run is listed by its free cells while it is broken and the run around it is not taken. */
static void list_layer(pkv_tree *t, uint32_t layer)
{
    bool broken = tree_layer_is_broken(t, layer);
    for (uint32_t s = 0; s < t->n_shares; s++)
        list_move(&t->layer_lists[s], layer - t->n_cells, broken ? free_in_share(t, layer, s) : 0);
}

/* A whole run is listed by its free layer runs while it is not taken; a free one has all. */
static void list_whole(pkv_tree *t, uint32_t whole)
{
    uint32_t free_parts = t->n_layers - run_at(t, whole)->busy[COVER_TAKEN];
    list_move(&t->whole_lists, whole - tree_whole_at(t),
              node_has(t, whole, COVER_TAKEN) ? 0 : free_parts);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Each of these adds (sign 1) or takes away (sign -1) what a node tells the level above it. */

static void count_cell(pkv_tree *t, uint32_t cell, uint32_t sign)
{
    pkv_run *up = run_at(t, node_above(t, cell));
    for (cover k = 0; k < N_COVERS; k++) up->below[k] += sign * node_has(t, cell, k);
}

static void count_layer(pkv_tree *t, uint32_t layer, uint32_t sign)
{
    pkv_run *up = run_at(t, node_above(t, layer));
    for (cover k = 0; k < N_COVERS; k++) {
        uint32_t n = node_has(t, layer, k) ? t->n_heads : run_at(t, layer)->below[k];
        up->below[k] += sign * n;
        up->busy[k] += sign * (n > 0);
    }
}

static void count_whole(pkv_tree *t, uint32_t whole, uint32_t sign)
{
    const pkv_run *r = run_at(t, whole);
    for (cover k = 0; k < N_COVERS; k++)
        t->covered[k] += sign * (node_has(t, whole, k) ? cells_in(t, PKV_ALL) : r->below[k]);
    if (node_has(t, whole, COVER_USED)) return;
    t->unused_wholes += sign * (r->busy[COVER_USED] == 0);
    t->unused_layers += sign * (t->n_layers - r->busy[COVER_USED]);
}

/* ---- cells of each share --------------------------------------------------------------------- */

static void count_loose_cell(pkv_tree *t, uint32_t cell, cover k, uint32_t sign)
{
    t->loose[k][cell_share(t, cell)] += sign * node_has(t, cell, k);
}

static void count_loose_layer(pkv_tree *t, uint32_t layer, cover k, uint32_t sign)
{
    if (node_has(t, layer, k) || run_at(t, layer)->below[k] == 0) return;
    for (uint32_t h = 0; h < t->n_heads; h++) count_loose_cell(t, node_part(t, layer, h), k, sign);
}

/* Adds (sign 1) or takes away (sign -1) the loose cells that a change of the node concerns. */
static void count_loose(pkv_tree *t, uint32_t node, uint32_t layer, uint32_t whole, uint32_t sign)
{
    for (cover k = COVER_USED; k < N_COVERS && t->n_shares > 1; k++) {
        if (node_has(t, whole, k)) continue;
        if (node == whole) {
            for (uint32_t l = 0; run_at(t, whole)->busy[k] > 0 && l < t->n_layers; l++)
                count_loose_layer(t, node_part(t, whole, l), k, sign);
        } else if (node == layer) {
            count_loose_layer(t, layer, k, sign);
        } else if (!node_has(t, layer, k)) {
            count_loose_cell(t, node, k, sign);
        }
    }
}

/* Cells of a share without the property. */
static uint32_t without_in(const pkv_tree *t, cover k, uint32_t share)
{
    if (t->n_shares == 1) return t->n_cells - t->covered[k];
    uint32_t even = t->covered[k];
    for (uint32_t s = 0; s < t->n_shares; s++) even -= t->loose[k][s];
    return (t->n_cells - even) / t->n_shares - t->loose[k][share];
}

uint32_t tree_available_in(const pkv_tree *t, uint32_t share)
{
    return without_in(t, COVER_USED, share);
}

uint32_t tree_without(const pkv_tree *t, cover k)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t s = 0; s < t->n_shares; s++) {
        uint32_t n = without_in(t, k, s);
        if (n < least) least = n;
    }
    return least * t->n_shares;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Sets the records of a run's parts: those that no part was ever taken of are unset. */
static void set_parts(pkv_tree *t, uint32_t run)
{
    bool whole = run >= tree_whole_at(t);
    for (uint32_t i = 0, n = whole ? t->n_layers : t->n_heads; i < n; i++) {
        uint32_t part = node_part(t, run, i);
        t->nodes[part] = (pkv_node){0};
        if (!whole) continue;
        *run_at(t, part) = (pkv_run){0};
        for (uint32_t s = 0; s < t->n_shares; s++)
            t->layer_lists[s].links[(size_t)(part - t->n_cells) * t->n_shares] = (run_link){0};
    }
}

void tree_set_path(pkv_tree *t, uint32_t node)
{
    if (node >= tree_whole_at(t)) return;
    if (node < t->n_cells) {
        uint32_t layer = node_above(t, node);
        tree_set_path(t, layer);
        if (run_at(t, layer)->below[COVER_TAKEN] == 0) set_parts(t, layer);
        return;
    }
    uint32_t whole = node_above(t, node);
    if (run_at(t, whole)->busy[COVER_TAKEN] == 0) set_parts(t, whole);
}

void tree_change_begin(pkv_tree *t, uint32_t node)
{
    tree_set_path(t, node);
    uint32_t layer = node < t->n_cells ? node_above(t, node) : node;
    uint32_t whole = layer < tree_whole_at(t) ? node_above(t, layer) : layer;
    count_loose(t, node, layer, whole, (uint32_t)-1);
    count_whole(t, whole, (uint32_t)-1);
    if (layer != whole) count_layer(t, layer, (uint32_t)-1);
    if (node != layer) count_cell(t, node, (uint32_t)-1);
}

void tree_change_end(pkv_tree *t, uint32_t node)
{
    uint32_t layer = node < t->n_cells ? node_above(t, node) : node;
    uint32_t whole = layer < tree_whole_at(t) ? node_above(t, layer) : layer;
    if (node != layer) count_cell(t, node, 1);
    if (layer != whole) count_layer(t, layer, 1);
    count_whole(t, whole, 1);
    count_loose(t, node, layer, whole, 1);
    list_whole(t, whole);
    if (layer != whole) {
        list_layer(t, layer);
        return;
    }
    for (uint32_t i = 0; run_at(t, whole)->busy[COVER_TAKEN] > 0 && i < t->n_layers; i++)
        list_layer(t, node_part(t, whole, i));
}

/* Which properties a node has by itself: bit k is property k. */
static uint32_t bits_of(const pkv_node *n)
{
    return (uint32_t)has(n, COVER_TAKEN) << COVER_TAKEN |
           (uint32_t)has(n, COVER_USED) << COVER_USED | (uint32_t)has(n, COVER_OPEN) << COVER_OPEN;
}

/* Counts in a whole run that `cells` more cells of one of its layer runs have property k, and that
 * `busy` more of its layer runs are busy. Fewer: a negative number, wrapped. */
static void count_in_whole(pkv_tree *t, uint32_t whole, cover k, uint32_t cells, uint32_t busy)
{
    pkv_run *w = run_at(t, whole);
    bool was_busy = w->busy[k] > 0;
    w->below[k] += cells;
    w->busy[k] += busy;
    if (node_has(t, whole, k)) return;
    t->covered[k] += cells;
    if (k != COVER_USED || busy == 0) return;
    t->unused_layers -= busy;
    t->unused_wholes += (uint32_t)was_busy - (w->busy[k] > 0);
}

static void list_runs(pkv_tree *t, uint32_t layer, uint32_t whole)
{
    list_whole(t, whole);
    list_layer(t, layer);
}

static void add_to_cells(pkv_tree *t, const uint32_t *cells, uint32_t n, uint32_t refs,
                         uint32_t parked)
{
    uint32_t layer = node_above(t, cells[0]), whole = node_above(t, layer), more[N_COVERS] = {0};
    uint32_t around = bits_of(&t->nodes[layer]) | bits_of(&t->nodes[whole]);
    for (uint32_t i = 0; i < n; i++) {
        pkv_node *c = &t->nodes[cells[i]];
        uint32_t before = bits_of(c);
        c->refs += refs;
        c->parked += parked;
        assert(c->parked <= c->refs);
        uint32_t after = bits_of(c);
        for (cover k = 0; before != after && k < N_COVERS; k++) {
            uint32_t one = (after >> k & 1) - (before >> k & 1);
            more[k] += one;
            if (t->n_shares > 1 && k != COVER_TAKEN && !(around >> k & 1))
                t->loose[k][cell_share(t, cells[i])] += one;
        }
    }
    pkv_run *run = run_at(t, layer);
    for (cover k = 0; k < N_COVERS; k++) {
        if (more[k] == 0) continue;
        bool was_busy = run->below[k] > 0;
        run->below[k] += more[k];
        if (!node_has(t, layer, k))
            count_in_whole(t, whole, k, more[k], (uint32_t)(run->below[k] > 0) - was_busy);
    }
    if (more[COVER_TAKEN] != 0) list_runs(t, layer, whole);
}

static void count_loose_below(pkv_tree *t, uint32_t layer, uint32_t whole, uint32_t sign)
{
    for (cover k = COVER_USED; t->n_shares > 1 && k < N_COVERS; k++)
        if (!node_has(t, whole, k)) count_loose_layer(t, layer, k, sign);
}

static void add_to_layer(pkv_tree *t, uint32_t layer, uint32_t refs, uint32_t parked)
{
    uint32_t whole = node_above(t, layer);
    pkv_node *l = &t->nodes[layer];
    count_loose_below(t, layer, whole, (uint32_t)-1);
    uint32_t before = bits_of(l);
    l->refs += refs;
    l->parked += parked;
    assert(l->parked <= l->refs);
    uint32_t after = bits_of(l);
    count_loose_below(t, layer, whole, 1);
    for (cover k = 0; before != after && k < N_COVERS; k++) {
        uint32_t one = (after >> k & 1) - (before >> k & 1), below = run_at(t, layer)->below[k];
        if (one != 0) count_in_whole(t, whole, k, one * (t->n_heads - below), below == 0 ? one : 0);
    }
    if ((before ^ after) >> COVER_TAKEN & 1) list_runs(t, layer, whole);
}

void tree_add_refs(pkv_tree *t, const uint32_t *nodes, uint32_t n, uint32_t refs, uint32_t parked)
{
    if (nodes[0] < t->n_cells) {
        add_to_cells(t, nodes, n, refs, parked);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (nodes[i] < tree_whole_at(t)) {
            add_to_layer(t, nodes[i], refs, parked);
            continue;
        }
        tree_change_begin(t, nodes[i]);
        t->nodes[nodes[i]].refs += refs;
        t->nodes[nodes[i]].parked += parked;
        assert(t->nodes[nodes[i]].parked <= t->nodes[nodes[i]].refs);
        tree_change_end(t, nodes[i]);
    }
}

static void move_ref(pkv_tree *t, uint32_t node, uint32_t by, bool parked)
{
    t->nodes[node].refs += by;
    t->nodes[node].parked += parked ? by : 0;
}

/* Most layer runs have no part that was taken: their records are unset. */
static void ref_unset_cells(pkv_tree *t, uint32_t layer, bool parked)
{
    pkv_run *up = run_at(t, layer);
    for (uint32_t i = 0; i < t->n_heads; i++)
        t->nodes[node_part(t, layer, i)] = (pkv_node){.refs = 1, .parked = parked};
    up->below[COVER_TAKEN] = up->below[COVER_USED] = t->n_heads;
    up->below[COVER_OPEN] = parked ? 0 : t->n_heads;
}

static void ref_cells(pkv_tree *t, uint32_t layer, bool parked)
{
    if (run_at(t, layer)->below[COVER_TAKEN] == 0) {
        ref_unset_cells(t, layer, parked);
        return;
    }
    for (uint32_t i = 0; i < t->n_heads; i++) {
        uint32_t cell = node_part(t, layer, i);
        count_cell(t, cell, (uint32_t)-1);
        move_ref(t, cell, 1, parked);
        count_cell(t, cell, 1);
    }
}

/* Layer by layer, because the records of one layer's runs lie together. */
void tree_split_refs(pkv_tree *t, const uint32_t *runs, uint32_t n, pkv_grain grain, bool parked)
{
    bool are_whole = n > 0 && runs[0] >= tree_whole_at(t);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t whole = are_whole ? runs[i] : node_above(t, runs[i]);
        if (are_whole && run_at(t, whole)->busy[COVER_TAKEN] == 0) set_parts(t, whole);
        count_loose(t, runs[i], runs[i], whole, (uint32_t)-1);
        count_whole(t, whole, (uint32_t)-1);
    }
    for (uint32_t l = 0; l < (are_whole ? t->n_layers : 1); l++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t layer = are_whole ? node_part(t, runs[i], l) : runs[i];
            count_layer(t, layer, (uint32_t)-1);
            if (grain == PKV_HEAD) ref_cells(t, layer, parked);
            else move_ref(t, layer, 1, parked);
            if (!are_whole) move_ref(t, layer, (uint32_t)-1, parked);
            count_layer(t, layer, 1);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t whole = are_whole ? runs[i] : node_above(t, runs[i]);
        if (are_whole) move_ref(t, whole, (uint32_t)-1, parked);
        count_whole(t, whole, 1);
        count_loose(t, runs[i], runs[i], whole, 1);
        list_whole(t, whole);
        for (uint32_t l = 0; l < (are_whole ? t->n_layers : 1); l++)
            list_layer(t, are_whole ? node_part(t, whole, l) : runs[i]);
    }
}

uint32_t tree_inside(const pkv_tree *t, pkv_grain from, pkv_grain to, uint32_t layer, uint32_t head)
{
    if (to == PKV_HEAD) return tree_offset(t, from, layer, head);
    return from == PKV_ALL && to == PKV_LAYER ? layer * t->n_whole * t->in_share : 0;
}

/* From the whole run down, because the records of parts are unset while no part was ever taken. */
uint32_t cells_with(const pkv_tree *t, uint32_t node, cover k)
{
    uint32_t size = cells_in(t, node_grain(t, node));
    uint32_t layer = node < t->n_cells ? node_above(t, node) : node;
    uint32_t whole = layer < tree_whole_at(t) ? node_above(t, layer) : layer;
    if (node_has(t, whole, k)) return size;
    if (node == whole) return run_at(t, whole)->below[k];
    if (run_at(t, whole)->busy[k] == 0) return 0;
    if (node_has(t, layer, k)) return size;
    if (node == layer || run_at(t, layer)->below[k] == 0) return run_at(t, layer)->below[k];
    return node_has(t, node, k);
}

/* Whether a part of the node, or a run around it, has the property. */
static bool is_near(const pkv_tree *t, uint32_t node, cover k)
{
    if (node >= t->n_cells && run_at(t, node)->below[k] > 0) return true;
    while (node < tree_whole_at(t)) {
        node = node_above(t, node);
        if (node_has(t, node, k)) return true;
    }
    return false;
}

bool node_is_common(const pkv_tree *t, uint32_t node)
{
    const pkv_node *n = &t->nodes[node];
    return n->refs > 1 || n->block != 0 || is_near(t, node, COVER_TAKEN);
}

bool node_is_hashed(const pkv_tree *t, uint32_t node)
{
    while (t->nodes[node].block == 0 && node < tree_whole_at(t)) node = node_above(t, node);
    return t->nodes[node].block != 0;
}

bool node_is_shared(const pkv_tree *t, uint32_t node)
{
    return t->nodes[node].refs > 1 || is_near(t, node, COVER_USED);
}

uint32_t node_inside(const pkv_tree *t, uint32_t node, pkv_grain grain, uint32_t layer,
                     uint32_t head)
{
    if (grain != PKV_ALL && node >= tree_whole_at(t)) node = node_part(t, node, layer);
    if (grain == PKV_HEAD && node >= t->n_cells) node = node_part(t, node, head);
    return node;
}

/* ---- free nodes ------------------------------------------------------------------------------ */

static uint32_t touch_whole(pkv_tree *t)
{
    if (t->touched == t->n_whole) return 0;
    t->whole_lists.links[t->touched] = (run_link){0};
    uint32_t whole = tree_whole_at(t) + t->touched++;
    t->nodes[whole] = (pkv_node){0};
    *run_at(t, whole) = (pkv_run){0};
    return whole;
}

/* The first free part of a run from part `from` on; there is one. */
static uint32_t find_free_part(const pkv_tree *t, uint32_t run, uint32_t from)
{
    bool whole = run >= tree_whole_at(t);
    if ((whole ? run_at(t, run)->busy[COVER_TAKEN] : run_at(t, run)->below[COVER_TAKEN]) == 0)
        return node_part(t, run, from);
    for (uint32_t i = from;; i++) {
        uint32_t part = node_part(t, run, i);
        if (node_has(t, part, COVER_TAKEN)) continue;
        if (!whole || run_at(t, part)->below[COVER_TAKEN] == 0) return part;
    }
}

uint32_t tree_find_free(pkv_tree *t, pkv_grain grain, uint32_t share)
{
    uint32_t first = share * t->in_share, name;
    if (grain == PKV_ALL) {
        name = t->whole_lists.heads[t->n_layers];
        return name != 0 ? tree_whole_at(t) + name - 1 : touch_whole(t);
    }
    if (grain == PKV_HEAD && (name = list_fullest(&t->layer_lists[share])) != 0)
        return find_free_part(t, t->n_cells + name - 1, first);
    name = list_fullest(&t->whole_lists);
    uint32_t whole = name != 0 ? tree_whole_at(t) + name - 1 : touch_whole(t);
    if (whole == 0) return 0;
    uint32_t layer = find_free_part(t, whole, 0);
    return grain == PKV_LAYER ? layer : node_part(t, layer, first);
}

uint32_t tree_take(pkv_tree *t, pkv_grain grain, uint32_t share, uint32_t n, uint32_t *nodes)
{
    uint32_t node = tree_find_free(t, grain, share), taken = 1;
    if (node == 0) return 0;
    tree_set_path(t, node);
    nodes[0] = node;
    uint32_t end = grain == PKV_HEAD ? (node / t->in_share + 1) * t->in_share : node;
    while (++node < end && taken < n)
        if (!node_has(t, node, COVER_TAKEN)) nodes[taken++] = node;
    tree_add_refs(t, nodes, taken, 1, 0);
    return taken;
}

/* ---- create ---------------------------------------------------------------------------------- */

static bool lists_create(run_lists *l, const allocator *a, run_link *links, uint32_t stride,
                         uint32_t most)
{
    *l = (run_lists){.links = links, .stride = stride, .most = most, .lowest = most + 1};
    l->heads = alloc_zeroed(a, (size_t)most + 1, sizeof *l->heads);
    return l->heads;
}

static status make_lists(pkv_tree *t, const allocator *a)
{
    /* Like nodes and runs, the links are set as runs are handed out. */
    size_t n_links = t->n_whole + (size_t)tree_layer_runs(t) * t->n_shares;
    bool ok = true;
    for (cover k = COVER_USED; k < N_COVERS; k++)
        ok &= (t->loose[k] = alloc_zeroed(a, t->n_shares, sizeof *t->loose[k])) != NULL;
    t->layer_lists = alloc_zeroed(a, t->n_shares, sizeof *t->layer_lists);
    t->links = alloc_resize(a, NULL, n_links, sizeof *t->links);
    ok = ok && t->layer_lists && t->links &&
         lists_create(&t->whole_lists, a, t->links, 1, t->n_layers);
    for (uint32_t s = 0; ok && s < t->n_shares; s++)
        ok = lists_create(&t->layer_lists[s], a, t->links + t->n_whole + s, t->n_shares,
                          t->in_share);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

/* Cell 0 is never handed out; nor are, of whole run 0, those that are more than asked for. */
static void reserve_cells(pkv_tree *t, uint32_t usable)
{
    uint32_t whole = touch_whole(t);
    for (; t->n_cells - t->n_reserved > usable; t->n_reserved++) {
        uint32_t i = t->n_reserved;
        uint32_t cell = node_part(t, node_part(t, whole, i / t->n_heads), i % t->n_heads);
        tree_change_begin(t, cell);
        t->nodes[cell].refs = 1;
        tree_change_end(t, cell);
    }
}

void tree_set_sizes(pkv_tree *t, const pkv_geometry *g, uint32_t usable)
{
    uint32_t groups = pkv_groups(g);
    *t = (pkv_tree){
        .n_layers = pkv_layer_groups(g), .n_heads = pkv_head_groups(g), .n_shares = pkv_shares(g)};
    t->in_share = t->n_heads / t->n_shares;
    t->n_cells = pkv_cell_count(g, usable);
    t->n_whole = t->n_cells / groups;
}

status tree_create(pkv_tree *t, const allocator *a, const pkv_geometry *g, uint32_t usable)
{
    tree_set_sizes(t, g, usable);
    t->unused_wholes = t->n_whole;
    t->unused_layers = tree_layer_runs(t);
    size_t n_runs = (size_t)t->n_whole * (t->n_layers + 1);
    /* Not zeroed: records are set as nodes are handed out, so the memory of a large idle pool stays
     * untouched. */
    t->nodes = alloc_resize(a, NULL, tree_node_count(t), sizeof *t->nodes);
    t->runs = alloc_resize(a, NULL, n_runs, sizeof *t->runs);
    if (!t->nodes || !t->runs) return status_make(STATUS_NO_MEMORY, NULL);
    RETURN_IF_ERROR(make_lists(t, a));
    reserve_cells(t, usable);
    return STATUS_IS_OK;
}

void tree_destroy(pkv_tree *t, const allocator *a)
{
    alloc_free(a, t->nodes);
    alloc_free(a, t->runs);
    alloc_free(a, t->whole_lists.heads);
    for (uint32_t s = 0; t->layer_lists && s < t->n_shares; s++)
        alloc_free(a, t->layer_lists[s].heads);
    alloc_free(a, t->layer_lists);
    alloc_free(a, t->links);
    for (cover k = COVER_USED; k < N_COVERS; k++) alloc_free(a, t->loose[k]);
}
