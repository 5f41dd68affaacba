/* A backend's copy of the tables: what it holds. mirror_apply.c changes it. */
#include "paged_kv/mirror.h"

status pkv_mirror_create(const pkv_geometry *geometry, uint32_t n_pages, uint32_t max_seqs,
                         const allocator *alloc, pkv_mirror **out)
{
    RETURN_IF_ERROR(pkv_geometry_check(geometry, NULL));
    if (n_pages < 2 || max_seqs < 1) return status_make(STATUS_INVALID, "empty mirror");
    if (n_pages > PKV_PAGES_MOST) return status_make(STATUS_INVALID, "n_pages is above 2^30");
    const allocator *a = alloc ? alloc : &allocator_default;
    pkv_mirror *m = alloc_zeroed(a, 1, sizeof *m);
    if (!m) return status_make(STATUS_NO_MEMORY, NULL);
    m->geometry = *geometry;
    tree_set_sizes(&m->tree, geometry, n_pages - 1);
    m->page_tokens = geometry->page_tokens;
    m->max_seqs = max_seqs;
    m->alloc = *a;
    m->seqs = alloc_zeroed(a, max_seqs, sizeof *m->seqs);
    /* The system gives zeros where they are first read, so an idle pool costs no memory. */
    m->pool = alloc_pages(tree_node_count(&m->tree) * sizeof *m->pool);
    if (!m->seqs || !m->pool) {
        pkv_mirror_destroy(m);
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    *out = m;
    return STATUS_IS_OK;
}

void pkv_mirror_destroy(pkv_mirror *m)
{
    if (!m) return;
    for (uint32_t i = 0; m->seqs && i < m->max_seqs; i++) {
        mirror_splitting_free(m, &m->seqs[i]);
        alloc_free(&m->alloc, m->seqs[i].pages);
        alloc_free(&m->alloc, m->seqs[i].tables);
    }
    alloc_free(&m->alloc, m->seqs);
    alloc_pages_free(m->pool, tree_node_count(&m->tree) * sizeof *m->pool);
    allocator a = m->alloc;
    alloc_free(&a, m);
}

uint64_t pkv_mirror_checksum(const pkv_mirror *m) { return m->checksum; }

pkv_grain pkv_mirror_grain(const pkv_mirror *m, uint32_t seq)
{
    return seq < m->max_seqs && m->seqs[seq].open ? m->seqs[seq].grain : PKV_ALL;
}

pkv_table_view pkv_mirror_table(const pkv_mirror *m, uint32_t seq, uint32_t group)
{
    if (seq >= m->max_seqs || group >= m->tree.n_layers * m->tree.n_heads || !m->seqs[seq].open)
        return (pkv_table_view){0};
    const mirror_seq *s = &m->seqs[seq];
    uint32_t layer = group / m->tree.n_heads, head = group % m->tree.n_heads;
    uint32_t table = s->grain == PKV_ALL ? 0 : s->grain == PKV_LAYER ? layer : group;
    return (pkv_table_view){
        .pages = s->pages + (size_t)table * s->row,
        .n_pages = s->tables[table].n_pages,
        .kept_tokens = s->tables[table].kept,
        .offset = tree_offset(&m->tree, s->grain, layer, head),
    };
}

/* The KV group of a cell less that of the first cell of the run around it. */
static uint32_t group_inside(const pkv_mirror *m, uint32_t run, uint32_t cell)
{
    if (run < m->tree.n_cells) return 0;
    uint32_t layer = run < tree_whole_at(&m->tree) ? 0 : cell_layer(&m->tree, cell);
    return layer * m->tree.n_heads + cell_head(&m->tree, cell);
}

pkv_mirror_extent pkv_mirror_extent_of(const pkv_mirror *m, uint32_t seq, uint32_t n_layers)
{
    if (seq >= m->max_seqs || !m->seqs[seq].open || n_layers == 0) return (pkv_mirror_extent){0};
    const mirror_seq *s = &m->seqs[seq];
    uint32_t layers = (n_layers - 1) / m->geometry.layers_per_group + 1;
    if (layers > m->tree.n_layers) layers = m->tree.n_layers;
    uint32_t n = s->grain == PKV_ALL     ? 1
                 : s->grain == PKV_LAYER ? layers
                                         : layers * m->tree.n_heads;
    pkv_mirror_extent e = {.least_kept = UINT32_MAX};
    for (uint32_t g = 0; g < n && g < s->groups; g++) {
        const mirror_table *t = &s->tables[g];
        if (t->kept < e.least_kept) e.least_kept = t->kept;
        if (t->kept > e.most_kept) e.most_kept = t->kept;
        if (t->n_pages > e.most_pages) e.most_pages = t->n_pages;
    }
    return e;
}

pkv_mirror_page pkv_mirror_page_at(const pkv_mirror *m, uint32_t cell)
{
    if (cell >= m->tree.n_cells) return (pkv_mirror_page){0};
    pkv_mirror_page page = {0};
    uint32_t refs = 0;
    for (uint32_t node = cell;; node = node_above(&m->tree, node)) {
        const page_state *p = &m->pool[node];
        refs += p->refs;
        page.parked |= p->parked > 0;
        if (p->refs > 0) page.group = p->group + group_inside(m, node, cell);
        if (node >= tree_whole_at(&m->tree)) break;
    }
    page.held = refs > 0;
    page.shared = refs > 1;
    return page;
}
