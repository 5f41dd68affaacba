/* A sequence goes over to a finer grain: each of its pages, a run of cells, gives way to the parts
 * of that run. The cells stay where they are, so nothing is copied, and other holders of a run keep
 * it as a whole. A long sequence has millions of parts, so it can be split in portions. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

static void free_lists(pkv *p, const pkv_splitting *x)
{
    for (uint32_t g = 0; x->tables && g < x->groups; g++) alloc_free(&p->alloc, x->tables[g].slots);
    alloc_free(&p->alloc, x->tables);
    alloc_free(&p->alloc, x->pages);
    alloc_free(&p->alloc, x->bases);
}

void splitting_free(pkv *p, pkv_seq *s)
{
    if (!s->splitting) return;
    free_lists(p, s->splitting);
    alloc_free(&p->alloc, s->splitting);
    s->splitting = NULL;
}

size_t splitting_reserve(const pkv_seq *s)
{
    return log_reserve_of(s->splitting->groups, s->row) + DELTA_SPLIT_WORDS;
}

status splitting_begin(pkv *p, pkv_seq *s, pkv_grain grain)
{
    pkv_splitting *x = alloc_zeroed(&p->alloc, 1, sizeof *x);
    if (!x) return status_make(STATUS_NO_MEMORY, NULL);
    s->splitting = x;
    x->grain = grain;
    x->groups = groups_at(p, grain);
    size_t n = (size_t)x->groups * s->row;
    x->tables = alloc_zeroed(&p->alloc, x->groups, sizeof *x->tables);
    x->pages = alloc_resize(&p->alloc, NULL, n, sizeof *x->pages);
    x->bases = alloc_resize(&p->alloc, NULL, n, sizeof *x->bases);
    bool ok = x->tables && x->pages && x->bases;
    uint32_t parts = x->groups / s->groups;
    for (uint32_t g = 0; ok && g < x->groups; g++) {
        uint32_t slot_pages = s->tables[g / parts].slot_pages;
        ok = slot_pages == 0 || status_ok(table_reserve_slots(p, &x->tables[g], slot_pages));
    }
    if (ok) return STATUS_IS_OK;
    splitting_free(p, s);
    return status_make(STATUS_NO_MEMORY, NULL);
}

/* n pages of a table of the finer grain: those of the table that it is a part of, further on by the
 * offset of (layer, head). */
static void fill_pages(const pkv *p, const pkv_tree *tree, const pkv_seq *s, uint32_t table,
                       uint32_t first, uint32_t n)
{
    const pkv_splitting *x = s->splitting;
    uint32_t from = table / (x->groups / s->groups);
    uint32_t layer = layer_of(p, x->grain, table), head = table % p->pool.n_heads;
    uint32_t offset = tree_inside(tree, s->grain, x->grain, layer, head);
    size_t at = (size_t)table * s->row + first;
    for (uint32_t i = 0; i < n; i++) x->pages[at + i] = seq_pages(s, from)[first + i] + offset;
    memcpy(x->bases + at, seq_bases(s, from) + first, n * sizeof *x->bases);
}

static uint64_t checksum_pages(uint64_t key, const uint32_t *pages, uint32_t first, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = first; i < first + n; i++) sum += checksum_page(key, i, pages[i]);
    return sum;
}

enum { SPLIT_TOGETHER = 256 };

/* The parts of n pages take over the references of their runs. */
static void move_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, const uint32_t *pages, uint32_t n,
                      bool parked)
{
    uint32_t runs[SPLIT_TOGETHER], most = s->grain == PKV_ALL ? SPLIT_TOGETHER : 1;
    for (uint32_t i = 0, together; i < n; i += together) {
        for (together = 0; together < most && i + together < n; together++)
            runs[together] = node_of(tree, s->grain, pages[i + together]);
        nodes_split(p, tree, runs, together, s->splitting->grain, parked);
    }
}

/* Splits at most `most` pages more, and returns how many those were. */
static uint32_t split_pages(pkv *p, pkv_tree *tree, pkv_seq *s, uint32_t most, bool parked)
{
    pkv_splitting *x = s->splitting;
    uint32_t parts = x->groups / s->groups, n_split = 0;
    for (; x->table < s->groups; x->table++, x->page = 0) {
        uint32_t left = s->tables[x->table].n_pages - x->page, n = most - n_split;
        if (n > left) n = left;
        for (uint32_t g = x->table * parts; g < (x->table + 1) * parts; g++)
            fill_pages(p, tree, s, g, x->page, n);
        move_refs(p, tree, s, seq_pages(s, x->table) + x->page, n, parked);
        x->page += n;
        n_split += n;
        if (n < left) break;
    }
    return n_split;
}

static bool is_all_split(const pkv_seq *s) { return s->splitting->table == s->groups; }

/* The tables of the finer grain take the place of the old ones: the same tokens, on the parts. */
static void end_split(pkv *p, pkv_seq *s)
{
    pkv_splitting *x = s->splitting;
    uint32_t parts = x->groups / s->groups;
    for (uint32_t g = 0; g < x->groups; g++) {
        const pkv_table *from = &s->tables[g / parts];
        x->tables[g].n_pages = from->n_pages;
        x->tables[g].kept = from->kept;
        table_copy_slots(p, &x->tables[g], from);
    }
    pkv_splitting old = {
        .tables = s->tables, .pages = s->pages, .bases = s->bases, .groups = s->cap_tables};
    s->tables = x->tables;
    s->pages = x->pages;
    s->bases = x->bases;
    s->cap_tables = s->groups = x->groups;
    s->cap_list = (size_t)x->groups * s->row;
    s->grain = x->grain;
    s->shared.on = false;
    /* The count is made anew, because perhaps only some parts of a shared page are shared. */
    s->shared.as_of = 0;
    s->splitting = NULL;
    alloc_free(&p->alloc, x);
    free_lists(p, &old);
}

status seq_split(pkv *p, pkv_tree *tree, pkv_seq *s, pkv_grain grain, bool parked)
{
    RETURN_IF_ERROR(splitting_begin(p, s, grain));
    (void)split_pages(p, tree, s, UINT32_MAX, parked);
    end_split(p, s);
    return STATUS_IS_OK;
}

uint32_t record_split_some(pkv *p, pkv_seq *s, uint32_t most)
{
    uint32_t n = split_pages(p, &p->pool, s, most, true);
    if (is_all_split(s)) end_split(p, s);
    return n;
}

pkv_grain tree_grain(const pkv *p, const pkv_tree *tree, pkv_grain grain, uint64_t cells)
{
    for (; grain != PKV_HEAD; grain++) {
        uint32_t in_run = cells_in(tree, grain);
        if (tree_has(tree, grain, 0, (cells + in_run - 1) / in_run)) break;
    }
    return pkv_grain_fit(&p->geometry, grain);
}

/* ---- open sequences, which a mirror follows -------------------------------------------------- */

/* The lengths of the tables and, unless they were counted before, their pages. */
static uint64_t checksum_tables(const pkv_seq *s, uint32_t id, bool pages)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint64_t key = checksum_key(id, g);
        const pkv_table *t = &s->tables[g];
        sum += checksum_kept(key, t->kept);
        if (pages) sum += checksum_pages(key, seq_pages(s, g), 0, t->n_pages);
    }
    return sum;
}

static status begin_open_split(pkv *p, pkv_seq *s, pkv_grain grain)
{
    size_t more = log_reserve_of(groups_at(p, grain), s->row) + DELTA_SPLIT_WORDS -
                  log_reserve_of(s->groups, s->row);
    RETURN_IF_ERROR(log_room(p, 0, 0, more));
    RETURN_IF_ERROR(splitting_begin(p, s, grain));
    p->log.reserve += more;
    return STATUS_IS_OK;
}

/* Splits pages as split_pages does, and counts those of the coming tables into the checksum. */
static uint32_t split_open_pages(pkv *p, uint32_t id, uint32_t most)
{
    pkv_seq *s = &p->seqs[id];
    pkv_splitting *x = s->splitting;
    uint32_t parts = x->groups / s->groups, table = x->table, page = x->page;
    uint32_t n_split = split_pages(p, &p->pool, s, most, false);
    for (uint32_t left = n_split; left > 0; table++, page = 0) {
        uint32_t n = s->tables[table].n_pages - page;
        if (n > left) n = left;
        for (uint32_t g = table * parts; g < (table + 1) * parts; g++)
            x->checksum +=
                checksum_pages(checksum_key(id, g), x->pages + (size_t)g * s->row, page, n);
        left -= n;
    }
    return n_split;
}

static void end_open_split(pkv *p, uint32_t id)
{
    pkv_seq *s = &p->seqs[id];
    p->checksum += s->splitting->checksum - checksum_tables(s, id, true);
    end_split(p, s);
    p->checksum += checksum_tables(s, id, false);
    seq_weigh(p, s, id);
    log_word(p, DELTA_SPLIT);
    log_word(p, id);
    log_word(p, s->grain);
    p->log.reserve -= DELTA_SPLIT_WORDS;
}

void seq_finish_split(pkv *p, uint32_t id)
{
    if (!p->seqs[id].splitting) return;
    (void)split_open_pages(p, id, UINT32_MAX);
    end_open_split(p, id);
}

status pkv_seq_split(pkv *p, uint32_t id, pkv_grain grain, uint32_t fresh)
{
    pkv_seq *s = seq_opened(p, id);
    seq_finish_split(p, id);
    grain = tree_grain(p, &p->pool, pkv_grain_fit(&p->geometry, grain), fresh);
    if (grain <= s->grain) return STATUS_IS_OK;
    RETURN_IF_ERROR(begin_open_split(p, s, grain));
    seq_finish_split(p, id);
    return STATUS_IS_OK;
}

status pkv_seq_split_some(pkv *p, uint32_t id, pkv_grain grain, uint32_t *pages)
{
    pkv_seq *s = seq_opened(p, id);
    uint32_t most = *pages;
    grain = pkv_grain_fit(&p->geometry, grain);
    *pages = 0;
    if (grain <= s->grain) return STATUS_IS_OK;
    assert(most > 0 && (!s->splitting || s->splitting->grain == grain));
    RETURN_IF_ERROR(log_room(p, DELTA_PART_WORDS, 0, 0));
    if (!s->splitting) RETURN_IF_ERROR(begin_open_split(p, s, grain));
    *pages = split_open_pages(p, id, most);
    if (is_all_split(s)) {
        end_open_split(p, id);
        return STATUS_IS_OK;
    }
    log_word(p, DELTA_PART);
    log_word(p, id);
    log_word(p, grain);
    log_word(p, *pages);
    return STATUS_IS_OK;
}
