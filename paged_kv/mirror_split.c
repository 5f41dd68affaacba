/* A sequence of a mirror goes over to a finer grain, at once or in portions. */
#include "paged_kv/mirror.h"
#include <string.h>

void mirror_splitting_free(pkv_mirror *m, mirror_seq *s)
{
    if (!s->splitting) return;
    alloc_free(&m->alloc, s->splitting->to.pages);
    alloc_free(&m->alloc, s->splitting->to.tables);
    alloc_free(&m->alloc, s->splitting);
    s->splitting = NULL;
}

/* Makes the lists of the finer grain. */
static status begin_split(pkv_mirror *m, mirror_seq *s, pkv_grain grain)
{
    if (s->splitting) return STATUS_IS_OK;
    mirror_splitting *x = alloc_zeroed(&m->alloc, 1, sizeof *x);
    if (!x) return status_make(STATUS_NO_MEMORY, NULL);
    s->splitting = x;
    status st = mirror_shape(m, &x->to, grain);
    if (status_ok(st)) st = mirror_reserve(m, &x->to, s->row);
    if (!status_ok(st)) {
        mirror_splitting_free(m, s);
        return st;
    }
    uint32_t parts = x->to.groups / s->groups;
    for (uint32_t g = 0; g < x->to.groups; g++) x->to.tables[g] = s->tables[g / parts];
    return STATUS_IS_OK;
}

/* n pages of a table of the finer grain. */
static void fill_pages(const pkv_mirror *m, const mirror_seq *s, uint32_t table, uint32_t first,
                       uint32_t n)
{
    mirror_splitting *x = s->splitting;
    uint32_t from = table / (x->to.groups / s->groups), heads = m->tree.n_heads;
    uint32_t layer = x->to.grain == PKV_HEAD ? table / heads : table;
    uint32_t offset = tree_inside(&m->tree, s->grain, x->to.grain, layer, table % heads);
    uint32_t *pages = mirror_list(&x->to, table);
    uint64_t key = mirror_key(m, s, table);
    for (uint32_t i = first; i < first + n; i++) {
        pages[i] = mirror_list(s, from)[i] + offset;
        x->checksum += checksum_page(key, i, pages[i]);
    }
}

/* Counts a reference to each cell of a layer run, which are of the KV groups from `group` on. */
static void count_cells(pkv_mirror *m, uint32_t layer, uint32_t group)
{
    uint32_t n = m->tree.n_heads;
    m->pool[layer].below += n;
    for (uint32_t h = 0; h < n; h++) {
        page_state *cell = &m->pool[node_part(&m->tree, layer, h)];
        cell->refs++;
        cell->group = group + h;
    }
}

/* The parts of n pages of a table take over their references. Layer by layer, because the records
 * of one layer's runs lie together. */
static void split_refs(pkv_mirror *m, const mirror_seq *s, uint32_t table, const uint32_t *pages,
                       uint32_t n)
{
    const pkv_tree *tree = &m->tree;
    pkv_grain grain = s->splitting->to.grain;
    uint32_t n_layers = s->grain == PKV_ALL ? tree->n_layers : 1;
    uint32_t parts = grain == PKV_HEAD ? n_layers * tree->n_heads : n_layers;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t run = node_of(tree, s->grain, pages[i]);
        mirror_count_ref(m, run, (uint32_t)-1);
        m->pool[run < tree_whole_at(tree) ? node_above(tree, run) : run].below += parts;
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t run = node_of(tree, s->grain, pages[i]);
            uint32_t layer = s->grain == PKV_ALL ? node_part(tree, run, l) : run;
            uint32_t group = (s->grain == PKV_ALL ? l : table) * tree->n_heads;
            if (grain == PKV_HEAD) {
                count_cells(m, layer, group);
            } else {
                m->pool[layer].refs++;
                m->pool[layer].group = group;
            }
        }
    }
}

/* Splits at most n pages more. */
static void split_pages(pkv_mirror *m, mirror_seq *s, uint32_t n)
{
    mirror_splitting *x = s->splitting;
    uint32_t parts = x->to.groups / s->groups;
    for (; x->table < s->groups; x->table++, x->page = 0) {
        uint32_t left = s->tables[x->table].n_pages - x->page, now = left < n ? left : n;
        for (uint32_t g = x->table * parts; g < (x->table + 1) * parts; g++)
            fill_pages(m, s, g, x->page, now);
        split_refs(m, s, x->table, mirror_list(s, x->table) + x->page, now);
        x->page += now;
        n -= now;
        if (now < left) return;
    }
}

static uint64_t checksum_lengths(const pkv_mirror *m, const mirror_seq *s, const mirror_seq *of)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < of->groups; g++)
        sum += checksum_kept(mirror_key(m, s, g), of->tables[g].kept);
    return sum;
}

static uint64_t checksum_pages(const pkv_mirror *m, const mirror_seq *s)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint64_t key = mirror_key(m, s, g);
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++)
            sum += checksum_page(key, i, mirror_list(s, g)[i]);
    }
    return sum;
}

static void end_split(pkv_mirror *m, mirror_seq *s)
{
    mirror_splitting *x = s->splitting;
    m->checksum += x->checksum - checksum_pages(m, s);
    m->checksum += checksum_lengths(m, s, &x->to) - checksum_lengths(m, s, s);
    mirror_seq old = *s;
    *s = x->to;
    s->open = true;
    mirror_weigh(m, s, s->groups);
    alloc_free(&m->alloc, old.pages);
    alloc_free(&m->alloc, old.tables);
    alloc_free(&m->alloc, x);
}

/* Pages of a sequence that still have their references. */
static uint64_t pages_left(const mirror_seq *s)
{
    uint64_t n = 0;
    for (uint32_t g = s->splitting ? s->splitting->table : 0; g < s->groups; g++)
        n += s->tables[g].n_pages;
    return n - (s->splitting ? s->splitting->page : 0);
}

status mirror_split(pkv_mirror *m, mirror_seq *s, pkv_grain grain)
{
    while (s->grain < grain) {
        RETURN_IF_ERROR(begin_split(m, s, grain));
        split_pages(m, s, UINT32_MAX);
        end_split(m, s);
    }
    return STATUS_IS_OK;
}

status mirror_split_some(pkv_mirror *m, mirror_seq *s, pkv_grain grain, uint32_t n)
{
    if (n == 0 || n >= pages_left(s))
        return status_make(STATUS_CORRUPT, "delta log: PART leaves no page");
    RETURN_IF_ERROR(begin_split(m, s, grain));
    split_pages(m, s, n);
    return STATUS_IS_OK;
}
