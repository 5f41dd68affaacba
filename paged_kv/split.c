/* A sequence goes over to a finer grain: each of its pages, a run of cells, gives way to the parts
 * of that run. The cells stay where they are, so nothing is copied, and other holders of a run keep
 * it as a whole. */
#include "paged_kv/internal.h"

/* The lists of the finer grain, before they take the place of the old ones. */
typedef struct finer_lists {
    pkv_table *tables;
    uint32_t *pages, *bases;
    uint32_t groups;
} finer_lists;

static void free_lists(pkv *p, finer_lists *l)
{
    for (uint32_t g = 0; l->tables && g < l->groups; g++) alloc_free(&p->alloc, l->tables[g].slots);
    alloc_free(&p->alloc, l->tables);
    alloc_free(&p->alloc, l->pages);
    alloc_free(&p->alloc, l->bases);
}

static status make_lists(pkv *p, const pkv_seq *s, pkv_grain grain, finer_lists *l)
{
    *l = (finer_lists){.groups = groups_at(p, grain)};
    size_t n = (size_t)l->groups * s->row;
    l->tables = alloc_zeroed(&p->alloc, l->groups, sizeof *l->tables);
    l->pages = alloc_resize(&p->alloc, NULL, n, sizeof *l->pages);
    l->bases = alloc_resize(&p->alloc, NULL, n, sizeof *l->bases);
    bool ok = l->tables && l->pages && l->bases;
    uint32_t parts = l->groups / s->groups;
    for (uint32_t g = 0; ok && g < l->groups; g++) {
        uint32_t slot_pages = s->tables[g / parts].slot_pages;
        ok = slot_pages == 0 || status_ok(table_reserve_slots(p, &l->tables[g], slot_pages));
    }
    if (ok) return STATUS_IS_OK;
    free_lists(p, l);
    return status_make(STATUS_NO_MEMORY, NULL);
}

/* The table of a finer grain: the same tokens, on the parts of (layer, head). */
static void fill_table(const pkv *p, const pkv_tree *tier, const pkv_seq *s, pkv_grain grain,
                       finer_lists *l, uint32_t table)
{
    uint32_t parts = l->groups / s->groups, from = table / parts;
    const pkv_table *t = &s->tables[from];
    uint32_t layer = layer_of(p, grain, table), head = table % p->pool.n_heads;
    size_t at = (size_t)table * s->row;
    uint32_t offset = tree_inside(tier, s->grain, grain, layer, head);
    for (uint32_t i = 0; i < t->n_pages; i++) l->pages[at + i] = seq_pages(s, from)[i] + offset;
    memcpy(l->bases + at, seq_bases(s, from), t->n_pages * sizeof *l->bases);
    l->tables[table].n_pages = t->n_pages;
    l->tables[table].kept = t->kept;
    table_copy_slots(p, &l->tables[table], t);
}

enum { SPLIT_TOGETHER = 256 };

/* The parts take over the references of their runs. */
static void move_refs(pkv *p, pkv_tree *tier, const pkv_seq *s, pkv_grain grain, bool parked)
{
    uint32_t runs[SPLIT_TOGETHER], most = s->grain == PKV_ALL ? SPLIT_TOGETHER : 1;
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t i = 0, n; i < s->tables[g].n_pages; i += n) {
            for (n = 0; n < most && i + n < s->tables[g].n_pages; n++)
                runs[n] = node_of(tier, s->grain, seq_pages(s, g)[i + n]);
            tier_split(p, tier, runs, n, grain, parked);
        }
    }
}

status seq_split(pkv *p, pkv_tree *tier, pkv_seq *s, pkv_grain grain, bool parked)
{
    finer_lists l;
    RETURN_IF_ERROR(make_lists(p, s, grain, &l));
    for (uint32_t g = 0; g < l.groups; g++) fill_table(p, tier, s, grain, &l, g);
    move_refs(p, tier, s, grain, parked);
    finer_lists old = {s->tables, s->pages, s->bases, s->cap_tables};
    s->tables = l.tables;
    s->pages = l.pages;
    s->bases = l.bases;
    s->cap_tables = l.groups;
    s->cap_list = (size_t)l.groups * s->row;
    s->groups = l.groups;
    s->grain = grain;
    free_lists(p, &old);
    return STATUS_IS_OK;
}

pkv_grain tier_grain(const pkv *p, const pkv_tree *tier, pkv_grain grain, uint64_t cells)
{
    for (; grain != PKV_HEAD; grain++) {
        uint32_t in_run = cells_in(tier, grain);
        if (tier_has(tier, grain, 0, (cells + in_run - 1) / in_run)) break;
    }
    return pkv_grain_fit(&p->geometry, grain);
}

/* The part of the checksum that is of a sequence's tables. */
static uint64_t checksum_tables(const pkv_seq *s, uint32_t id)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint64_t key = checksum_key(id, g);
        sum += checksum_kept(key, s->tables[g].kept);
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++)
            sum += checksum_page(key, i, seq_pages(s, g)[i]);
    }
    return sum;
}

status pkv_seq_split(pkv *p, uint32_t id, pkv_grain grain, uint32_t fresh)
{
    assert(id < p->max_seqs && p->seqs[id].open);
    pkv_seq *s = &p->seqs[id];
    grain = tier_grain(p, &p->pool, pkv_grain_fit(&p->geometry, grain), fresh);
    if (grain <= s->grain) return STATUS_IS_OK;
    size_t reserve = log_reserve_of(groups_at(p, grain), s->row);
    size_t more = reserve - log_reserve_of(s->groups, s->row);
    RETURN_IF_ERROR(log_room(p, DELTA_SPLIT_WORDS, 0, more));
    uint64_t before = checksum_tables(s, id);
    RETURN_IF_ERROR(seq_split(p, &p->pool, s, grain, false));
    p->log.reserve += more;
    p->checksum += checksum_tables(s, id) - before;
    s->weight = 0;
    for (uint32_t g = 0; g < s->groups; g++) s->weight += checksum_weight(checksum_key(id, g));
    log_word(p, DELTA_SPLIT);
    log_word(p, id);
    log_word(p, grain);
    return STATUS_IS_OK;
}
