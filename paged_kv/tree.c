#include "paged_kv/tree.h"

#include <assert.h>

uint32_t pkv_cell_count(const pkv_geometry *g, uint32_t usable)
{
    uint32_t groups = pkv_groups(g);
    return (usable / groups + 1) * groups;
}

uint32_t pkv_layer_stride(const pkv_geometry *g, uint32_t usable)
{
    return pkv_cell_count(g, usable) / pkv_layer_groups(g);
}

static bool has(const pkv_node *n, cover k)
{
    if (k == COVER_TAKEN) return n->refs > 0 || n->block != 0;
    return n->refs > (k == COVER_USED ? 0 : n->parked);
}

static bool node_has(const pkv_tree *t, uint32_t node, cover k) { return has(&t->nodes[node], k); }

/* ---- lists of runs by their free parts ------------------------------------------------------- */

static void list_remove(const pkv_tree *t, run_lists *l, uint32_t run)
{
    pkv_run *r = run_at(t, run);
    if (r->prev != 0) run_at(t, r->prev)->next = r->next;
    else l->heads[r->listed] = r->next;
    if (r->next != 0) run_at(t, r->next)->prev = r->prev;
    r->listed = 0;
}

static void list_move(const pkv_tree *t, run_lists *l, uint32_t run, uint32_t free_parts)
{
    pkv_run *r = run_at(t, run);
    if (r->listed == free_parts) return;
    if (r->listed != 0) list_remove(t, l, run);
    if (free_parts == 0) return;
    r->listed = free_parts;
    r->prev = 0;
    r->next = l->heads[free_parts];
    if (r->next != 0) run_at(t, r->next)->prev = run;
    l->heads[free_parts] = run;
    if (free_parts < l->lowest) l->lowest = free_parts;
}

/* The run with the fewest free parts; 0 = none is listed. */
static uint32_t list_fullest(run_lists *l)
{
    while (l->lowest <= l->most && l->heads[l->lowest] == 0) l->lowest++;
    return l->lowest <= l->most ? l->heads[l->lowest] : 0;
}

/* A layer run is listed by its free cells while it is broken and the run around it is not taken. */
static void list_layer(pkv_tree *t, uint32_t layer)
{
    const pkv_run *r = run_at(t, layer);
    bool broken = r->below[COVER_TAKEN] > 0 && !node_has(t, layer, COVER_TAKEN) &&
                  !node_has(t, node_above(t, layer), COVER_TAKEN);
    list_move(t, &t->layer_lists, layer, broken ? t->n_heads - r->below[COVER_TAKEN] : 0);
}

/* A whole run is listed by its free layer runs while it is not taken; a free one has all. */
static void list_whole(pkv_tree *t, uint32_t whole)
{
    uint32_t free_parts = t->n_layers - run_at(t, whole)->busy[COVER_TAKEN];
    list_move(t, &t->whole_lists, whole, node_has(t, whole, COVER_TAKEN) ? 0 : free_parts);
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

/* Sets the records of a run's parts: those that no part was ever taken of are unset. */
static void set_parts(pkv_tree *t, uint32_t run)
{
    bool whole = run >= tree_whole_at(t);
    for (uint32_t i = 0, n = whole ? t->n_layers : t->n_heads; i < n; i++) {
        uint32_t part = node_part(t, run, i);
        t->nodes[part] = (pkv_node){0};
        if (whole) *run_at(t, part) = (pkv_run){0};
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
    list_whole(t, whole);
    if (layer != whole) {
        list_layer(t, layer);
        return;
    }
    for (uint32_t i = 0; run_at(t, whole)->busy[COVER_TAKEN] > 0 && i < t->n_layers; i++)
        list_layer(t, node_part(t, whole, i));
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
    uint32_t whole = tree_whole_at(t) + t->touched++;
    t->nodes[whole] = (pkv_node){0};
    *run_at(t, whole) = (pkv_run){0};
    return whole;
}

static uint32_t find_free_part(const pkv_tree *t, uint32_t run)
{
    bool whole = run >= tree_whole_at(t);
    if ((whole ? run_at(t, run)->busy[COVER_TAKEN] : run_at(t, run)->below[COVER_TAKEN]) == 0)
        return node_part(t, run, 0);
    for (uint32_t i = 0;; i++) {
        uint32_t part = node_part(t, run, i);
        if (node_has(t, part, COVER_TAKEN)) continue;
        if (!whole || run_at(t, part)->below[COVER_TAKEN] == 0) return part;
    }
}

uint32_t tree_find_free(pkv_tree *t, pkv_grain grain)
{
    if (grain == PKV_ALL) {
        uint32_t whole = t->whole_lists.heads[t->n_layers];
        return whole != 0 ? whole : touch_whole(t);
    }
    if (grain == PKV_HEAD) {
        uint32_t layer = list_fullest(&t->layer_lists);
        if (layer != 0) return find_free_part(t, layer);
    }
    uint32_t whole = list_fullest(&t->whole_lists);
    if (whole == 0) whole = touch_whole(t);
    if (whole == 0) return 0;
    uint32_t layer = find_free_part(t, whole);
    return grain == PKV_LAYER ? layer : node_part(t, layer, 0);
}

/* ---- create ---------------------------------------------------------------------------------- */

static status lists_create(run_lists *l, const allocator *a, uint32_t most)
{
    l->most = most;
    l->lowest = most + 1;
    l->heads = alloc_zeroed(a, (size_t)most + 1, sizeof *l->heads);
    return l->heads ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
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
    *t = (pkv_tree){.n_layers = pkv_layer_groups(g), .n_heads = pkv_head_groups(g)};
    t->n_cells = pkv_cell_count(g, usable);
    t->n_whole = t->n_cells / groups;
}

status tree_create(pkv_tree *t, const allocator *a, const pkv_geometry *g, uint32_t usable)
{
    tree_set_sizes(t, g, usable);
    t->unused_wholes = t->n_whole;
    t->unused_layers = t->n_whole * t->n_layers;
    size_t n_runs = (size_t)t->n_whole * (t->n_layers + 1);
    /* Not zeroed: records are set as nodes are handed out, so the memory of a large idle pool stays
     * untouched. */
    t->nodes = alloc_resize(a, NULL, tree_node_count(t), sizeof *t->nodes);
    t->runs = alloc_resize(a, NULL, n_runs, sizeof *t->runs);
    bool ok = t->nodes && t->runs && status_ok(lists_create(&t->whole_lists, a, t->n_layers)) &&
              status_ok(lists_create(&t->layer_lists, a, t->n_heads));
    if (!ok) return status_make(STATUS_NO_MEMORY, NULL);
    reserve_cells(t, usable);
    return STATUS_IS_OK;
}

void tree_destroy(pkv_tree *t, const allocator *a)
{
    alloc_free(a, t->nodes);
    alloc_free(a, t->runs);
    alloc_free(a, t->whole_lists.heads);
    alloc_free(a, t->layer_lists.heads);
}
