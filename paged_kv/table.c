/* Sequences and their tables: how they are shaped, forked and closed, and what they hold. Every
 * operation makes room first, which can fail, then changes state. */
#include "paged_kv/table.h"
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"

static pkv_seq *seq_at(const pkv *p, uint32_t id)
{
    assert(id < p->max_seqs);
    return &p->seqs[id];
}

/* Makes room for the records of that many tables; those that exist keep their lists of slots. */
static status reserve_tables(pkv *p, pkv_seq *s, uint32_t groups)
{
    if (groups <= s->cap_tables) return STATUS_IS_OK;
    pkv_table *tables = alloc_resize(&p->alloc, s->tables, groups, sizeof *tables);
    if (!tables) return status_make(STATUS_NO_MEMORY, NULL);
    memset(tables + s->cap_tables, 0, (groups - s->cap_tables) * sizeof *tables);
    s->tables = tables;
    s->cap_tables = groups;
    return STATUS_IS_OK;
}

/* Allocates the lists of pages and of bases of all tables together, n entries each. */
static status allocate_lists(const pkv *p, size_t n, uint32_t **pages, uint32_t **bases)
{
    *pages = alloc_resize(&p->alloc, NULL, n, sizeof **pages);
    *bases = alloc_resize(&p->alloc, NULL, n, sizeof **bases);
    if (*pages && *bases) return STATUS_IS_OK;
    alloc_free(&p->alloc, *pages);
    alloc_free(&p->alloc, *bases);
    return status_make(STATUS_NO_MEMORY, NULL);
}

/* Frees the lists of a sequence, and gives it others. */
static void replace_lists(const pkv *p, pkv_seq *s, uint32_t *pages, uint32_t *bases, size_t n)
{
    alloc_free(&p->alloc, s->pages);
    alloc_free(&p->alloc, s->bases);
    s->pages = pages;
    s->bases = bases;
    s->cap_list = n;
}

/* Makes the lists of an open sequence hold `row` pages. */
static status grow_lists(pkv *p, pkv_seq *s, uint32_t row)
{
    size_t more = log_reserve_of(s->groups, row) - log_reserve_of(s->groups, s->row);
    RETURN_IF_ERROR(log_room(p, 0, 0, more));
    size_t n = (size_t)s->groups * row;
    uint32_t *pages, *bases;
    RETURN_IF_ERROR(allocate_lists(p, n, &pages, &bases));
    for (uint32_t g = 0; g < s->groups; g++) {
        size_t bytes = s->tables[g].n_pages * sizeof *pages, at = (size_t)g * row;
        memcpy(pages + at, seq_pages(s, g), bytes);
        memcpy(bases + at, seq_bases(s, g), bytes);
    }
    p->log.reserve += more;
    replace_lists(p, s, pages, bases, n);
    s->row = row;
    return STATUS_IS_OK;
}

status seq_reserve(pkv *p, pkv_seq *s, uint32_t row)
{
    if (row <= s->row) return STATUS_IS_OK;
    uint32_t half_more = s->row + s->row / 2;
    return grow_lists(p, s, row < half_more ? half_more : row);
}

status seq_shape(pkv *p, pkv_seq *s, pkv_grain grain, uint32_t row)
{
    assert(!s->open);
    uint32_t groups = groups_at(p, grain);
    RETURN_IF_ERROR(reserve_tables(p, s, groups));
    if (row < s->row && (size_t)groups * s->row <= s->cap_list) row = s->row;
    size_t n = (size_t)groups * row;
    if (n > s->cap_list) {
        uint32_t *pages, *bases;
        RETURN_IF_ERROR(allocate_lists(p, n, &pages, &bases));
        replace_lists(p, s, pages, bases, n);
    }
    s->row = row;
    s->grain = grain;
    s->groups = groups;
    s->layers = p->pool.n_layers;
    return STATUS_IS_OK;
}

status seq_shape_like(pkv *p, pkv_seq *to, const pkv_seq *from, uint32_t row)
{
    for (uint32_t g = 0; g < from->groups; g++) {
        if (from->tables[g].n_pages > row) row = from->tables[g].n_pages;
    }
    RETURN_IF_ERROR(seq_shape(p, to, from->grain, row));
    to->layers = from->layers;
    for (uint32_t g = 0; g < from->groups; g++) {
        RETURN_IF_ERROR(table_reserve_slots(p, &to->tables[g], from->tables[g].slot_pages));
    }
    return STATUS_IS_OK;
}

void seq_copy_state(pkv_seq *to, const pkv_seq *from)
{
    to->dropped = from->dropped;
    to->sealed = from->sealed;
    to->silent = from->silent;
    to->contiguous = from->contiguous;
    to->unshared = from->unshared;
    to->length = from->length;
    to->salt = from->salt;
    to->hidden = from->hidden;
    to->published = from->published;
    to->cursor = from->cursor;
    to->cursor_generation = from->cursor_generation;
    to->shared = from->shared;
    to->shared.on = false;
}

void seq_free_lists(pkv *p, pkv_seq *s)
{
    splitting_free(p, s);
    for (uint32_t g = 0; g < s->cap_tables; g++) {
        alloc_free(&p->alloc, s->tables[g].slots);
    }
    alloc_free(&p->alloc, s->tables);
    alloc_free(&p->alloc, s->pages);
    alloc_free(&p->alloc, s->bases);
}

void seq_free_long_lists(pkv *p, pkv_seq *s)
{
    if (s->cap_list <= PKV_LISTS_KEPT) return;
    seq_free_lists(p, s);
    s->tables = NULL;
    s->pages = s->bases = NULL;
    s->cap_list = s->cap_tables = s->row = 0;
}

/* A list never holds more pages than the pool has, however many tokens are expected. */
uint32_t row_for(const pkv *p, uint32_t expect_tokens)
{
    uint32_t row = expect_tokens > 0 ? pages_for(p, expect_tokens) : 1;
    return row < p->n_pages ? row : p->n_pages - 1;
}

void seq_weigh(const pkv *p, pkv_seq *s, uint32_t id)
{
    s->weight = 0;
    for (uint32_t g = 0, n = tables_filled(p, s); g < n; g++)
        s->weight += checksum_weight(checksum_key(id, g));
}

void seq_enter(pkv *p, pkv_seq *s, uint32_t id)
{
    s->open = true;
    s->shared = shared_none(p);
    p->log.reserve += log_reserve_of(s->groups, s->row);
    p->checksum += checksum_seq(id);
    seq_weigh(p, s, id);
}

void pkv_seq_fill_layers(pkv *p, uint32_t id, uint32_t n_layers)
{
    pkv_seq *s = seq_changing(p, id);
    assert(s->length == 0);
    s->layers = pkv_filled_groups(&p->geometry, n_layers);
    assert(s->grain != PKV_ALL || !is_of_some_layers(p, s));
    seq_weigh(p, s, id);
}

void table_set_kept(pkv *p, uint32_t id, uint32_t table, uint32_t kept)
{
    pkv_table *t = &p->seqs[id].tables[table];
    uint64_t key = checksum_key(id, table);
    p->checksum += checksum_kept(key, kept) - checksum_kept(key, t->kept);
    t->kept = kept;
}

void table_push(pkv *p, uint32_t id, uint32_t table, uint32_t page, uint32_t base)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    seq_pages(s, table)[t->n_pages] = page;
    seq_bases(s, table)[t->n_pages] = base;
    p->checksum += checksum_page(checksum_key(id, table), t->n_pages, page);
    t->n_pages++;
    s->held += cells_of(p, s);
}

void table_clear(pkv_table *t)
{
    t->n_pages = t->kept = t->slot_pages = 0;
    t->drop_epoch = 0;
}

status table_reserve_slots(pkv *p, pkv_table *t, uint32_t slot_pages)
{
    uint32_t n = slot_pages * p->geometry.page_tokens, half_more = t->slots_cap + t->slots_cap / 2;
    if (n <= t->slots_cap) return STATUS_IS_OK;
    if (n < half_more) n = half_more;
    uint32_t *slots = alloc_resize(&p->alloc, t->slots, n, sizeof *slots);
    if (!slots) return status_make(STATUS_NO_MEMORY, NULL);
    t->slots = slots;
    t->slots_cap = n;
    return STATUS_IS_OK;
}

void table_copy_slots(const pkv *p, pkv_table *to, const pkv_table *from)
{
    uint32_t slots = from->slot_pages * p->geometry.page_tokens;
    if (slots > from->kept) slots = from->kept;
    if (slots > 0) memcpy(to->slots, from->slots, slots * sizeof *to->slots);
    to->slot_pages = from->slot_pages;
}

/* ---- drop, fork, close ----------------------------------------------------------------------- */

/* Compacts the positions of the kept compacted pages; returns how many pages those are. */
static uint32_t drop_slots(const pkv *p, pkv_table *t, const uint64_t *keep)
{
    uint32_t size = p->geometry.page_tokens, left = 0;
    for (uint32_t i = 0; i < t->slot_pages; i++) {
        if (!keep_bit(keep, i)) continue;
        uint32_t from = i * size, n = t->kept - from < size ? t->kept - from : size;
        memmove(t->slots + (size_t)left * size, t->slots + from, n * sizeof *t->slots);
        left++;
    }
    return left;
}

void pkv_seq_drop(pkv *p, uint32_t id, uint32_t table, const uint64_t *keep)
{
    pkv_seq *s = seq_changing(p, id);
    assert(table < s->groups);
    pkv_table *t = &s->tables[table];
    uint32_t *pages = seq_pages(s, table), *bases = seq_bases(s, table);
    uint32_t n_drop = 0, n = t->n_pages, size = p->geometry.page_tokens;
    for (uint32_t i = 0; i < n; i++) n_drop += !keep_bit(keep, i);
    if (n_drop == 0) return;
    uint32_t unfilled = keep_bit(keep, n - 1) ? 0 : table_room(p, t);

    log_drop(p, id, table, keep);
    uint64_t key = checksum_key(id, table);
    /* The last pages first, so that they are reclaimed before the blocks of earlier pages. */
    for (uint32_t i = n; i-- > 0;) {
        if (i >= POOL_AHEAD) pool_expect(p, s->grain, pages[i - POOL_AHEAD]);
        if (!keep_bit(keep, i)) pool_unref(p, s->grain, pages[i]);
    }
    t->slot_pages = drop_slots(p, t, keep);
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        p->checksum -= checksum_page(key, i, pages[i]);
        if (!keep_bit(keep, i)) continue;
        pages[left] = pages[i];
        bases[left] = bases[i];
        p->checksum += checksum_page(key, left, pages[left]);
        left++;
    }
    t->n_pages = left;
    s->shared.on = false; /* pages have other places, which a count may have passed */
    table_set_kept(p, id, table, t->kept + unfilled - n_drop * size);
    s->held -= n_drop * cells_of(p, s);
    s->dropped = true;
    p->counts.pages_dropped += (uint64_t)n_drop * cells_of(p, s);
}

status pkv_seq_fork(pkv *p, uint32_t parent_id, uint32_t child_id, uint32_t expect_tokens)
{
    pkv_seq *parent = seq_changing(p, parent_id), *child = seq_at(p, child_id);
    assert(!child->open);
    RETURN_IF_ERROR(seq_shape_like(p, child, parent, row_for(p, expect_tokens)));
    RETURN_IF_ERROR(log_room(p, DELTA_FORK_WORDS, 0, log_reserve_of(child->groups, child->row)));
    seq_enter(p, child, child_id);
    seq_copy_state(child, parent);
    child->forked = parent->forked = true;
    child->held = 0;
    for (uint32_t g = 0; g < child->groups; g++) {
        pkv_table *from = &parent->tables[g], *to = &child->tables[g];
        from->drop_epoch = 0; /* no later drop may be merged into one before the fork */
        table_clear(to);
        for (uint32_t i = 0; i < from->n_pages; i++) {
            uint32_t page = seq_pages(parent, g)[i];
            pool_ref(p, child->grain, page);
            table_push(p, child_id, g, page, seq_bases(parent, g)[i]);
        }
        table_set_kept(p, child_id, g, from->kept);
        table_copy_slots(p, to, from);
    }
    log_word(p, DELTA_FORK);
    log_word(p, parent_id);
    log_word(p, child_id);
    log_word(p, child->row);
    return STATUS_IS_OK;
}

/* ---- read only ------------------------------------------------------------------------------- */

bool pkv_seq_is_open(const pkv *p, uint32_t id) { return seq_at(p, id)->open; }
uint32_t pkv_seq_length(const pkv *p, uint32_t id) { return seq_opened(p, id)->length; }
uint32_t pkv_seq_next_position(const pkv *p, uint32_t id)
{
    const pkv_seq *s = seq_opened(p, id);
    return s->contiguous ? s->tables[0].kept : s->length;
}
bool pkv_seq_has_dropped(const pkv *p, uint32_t id) { return seq_opened(p, id)->dropped; }
const pkv_geometry *pkv_seq_geometry(const pkv *p, uint32_t id)
{
    return &p->at[seq_opened(p, id)->grain];
}
pkv_grain pkv_seq_grain(const pkv *p, uint32_t id) { return seq_opened(p, id)->grain; }
uint32_t pkv_seq_pages_held(const pkv *p, uint32_t id) { return seq_opened(p, id)->held; }

uint64_t seq_held_evenly(const pkv *p, const pkv_seq *s)
{
    if (s->grain != PKV_HEAD || p->pool.n_shares == 1) return s->held;
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++) shares_add(p, 0, g, s->tables[g].n_pages);
    return shares_even(p, 0);
}

uint64_t pkv_seq_copy_cost(const pkv *p, uint32_t id)
{
    return seq_held_evenly(p, seq_opened(p, id));
}

uint64_t seq_kept(const pkv *p, const pkv_seq *s)
{
    const pkv_geometry *g = &p->at[s->grain];
    uint32_t head_groups = pkv_head_groups(g);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->groups; i++) {
        uint32_t layers = g->n_layers - i / head_groups * g->layers_per_group;
        if (layers > g->layers_per_group) layers = g->layers_per_group;
        sum += (uint64_t)s->tables[i].kept * layers * g->heads_per_group;
    }
    return sum;
}

uint64_t pkv_seq_kept(const pkv *p, uint32_t id) { return seq_kept(p, seq_whole(p, id)); }

pkv_table_view pkv_seq_table(const pkv *p, uint32_t id, uint32_t table)
{
    const pkv_seq *s = seq_whole(p, id);
    assert(table < s->groups);
    return (pkv_table_view){
        .pages = seq_pages(s, table),
        .n_pages = s->tables[table].n_pages,
        .kept_tokens = s->tables[table].kept,
    };
}

uint32_t table_position(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t slot)
{
    const pkv_table *t = &s->tables[table];
    assert(slot < t->kept);
    uint32_t size = p->geometry.page_tokens, index = slot / size;
    return index < t->slot_pages ? t->slots[slot] : seq_bases(s, table)[index] + slot % size;
}

uint32_t pkv_seq_position(const pkv *p, uint32_t id, uint32_t table, uint32_t slot)
{
    return table_position(p, seq_whole(p, id), table, slot);
}
