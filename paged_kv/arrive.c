/* A parked or swapped sequence comes back, at once or in portions. The tables of one layer come
 * together, row by row from their first pages on, then those of the next layer. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/prefix.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

bool has_come(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t index)
{
    const pkv_arriving *x = &s->arriving;
    if (x->number == 0 || table < x->table) return true;
    return table < layer_end(&p->pool, s->grain, x->table) && index < x->rows;
}

/* Goes on to the first layer from `table` on that has pages. */
static void enter_layer(const pkv *p, pkv_seq *s, const pkv_seq *from, uint32_t table)
{
    while (table < s->groups && layer_rows(p, from, table) == 0)
        table = layer_end(&p->pool, s->grain, table);
    s->arriving.table = table;
    s->arriving.rows = 0;
}

/* The sequence has taken this many of the cells that it was promised. */
static void use_promise(pkv *p, pkv_arriving *x, uint32_t taken)
{
    if (taken > x->promised) taken = x->promised;
    x->promised -= taken;
    p->promised -= taken;
}

/* Resident pages that others hold take no cells, so after each portion the promise shrinks to the
 * cells of what has not come. */
static void shrink_promise(pkv *p, pkv_seq *s, const pkv_seq *from)
{
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++)
        shares_add(p, 0, g, (int64_t)from->tables[g].n_pages - s->tables[g].n_pages);
    uint64_t rest = shares_even(p, 0);
    if (s->arriving.promised > rest)
        use_promise(p, &s->arriving, s->arriving.promised - (uint32_t)rest);
}

static bool has_all_come(const pkv_seq *s) { return s->arriving.table >= s->groups; }

/* Copies the positions of slots of pages first .. end - 1, as far as the pages are compacted. */
static void copy_positions(const pkv *p, pkv_table *to, const pkv_table *from, uint32_t first,
                           uint32_t end)
{
    uint32_t size = p->geometry.page_tokens;
    if (end > from->slot_pages) end = from->slot_pages;
    if (end <= first) return;
    uint32_t stop = end * size < from->kept ? end * size : from->kept;
    memcpy(to->slots + (size_t)first * size, from->slots + (size_t)first * size,
           (stop - (size_t)first * size) * sizeof *to->slots);
    to->slot_pages = end;
}

/* Logs how many pages of a table come, and how many tokens it has then; their numbers follow. The
 * first portion is a RETURN or an UNPARK, which names every table. */
static void log_table(pkv *p, uint32_t id, uint32_t table, uint32_t n, bool first)
{
    const pkv_seq *s = &p->seqs[id];
    if (!first) {
        log_word(p, DELTA_BACK);
        log_word(p, id);
        log_word(p, p->swaps[s->arriving.number].parked);
        log_word(p, table);
    }
    log_word(p, s->tables[table].kept);
    if (!first) log_word(p, n);
}

/* The sequence takes over the rows of a parked record with their references, or takes pages for the
 * rows of a swapped one. */
static void arrive_rows(pkv *p, uint32_t id, const pkv_seq *from, table_rows rows, bool first)
{
    pkv_seq *s = &p->seqs[id];
    bool parked = p->swaps[s->arriving.number].parked;
    for (uint32_t g = rows.first; g < rows.end; g++) {
        const pkv_table *t = &from->tables[g];
        uint32_t end = rows_end(from, rows, g);
        uint32_t n = end > rows.from ? end - rows.from : 0;
        bool whole = end == t->n_pages;
        if (n == 0 && !first) continue;
        table_set_kept(p, id, g, whole ? t->kept : end * p->geometry.page_tokens);
        log_table(p, id, g, n, first);
        if (!parked) table_copy_in(p, id, from, g, rows.from, end);
        for (uint32_t i = rows.from; parked && i < end; i++) {
            table_push(p, id, g, seq_pages(from, g)[i], seq_bases(from, g)[i]);
            log_word(p, seq_pages(from, g)[i]);
        }
        copy_positions(p, &s->tables[g], t, rows.from, end);
    }
    if (parked) rows_add_refs(p, &p->pool, from, rows, 0, UINT32_MAX);
    else rows_add_refs(p, &p->host, from, rows, UINT32_MAX, 0);
}

/* Whether the pool has pages for the rows. A resident page that is in use takes none of them. Pages
 * that were promised to other sequences count, because the scheduler asks for the best in rank of
 * those that come back: if one has to wait for pages, or is computed again, it is another one. */
static bool has_pages(pkv *p, const pkv_seq *s, const pkv_seq *from, table_rows rows)
{
    shares_clear(p);
    for (uint32_t g = rows.first; g < rows.end; g++) {
        uint32_t end = rows_end(from, rows, g), n = end > rows.from ? end - rows.from : 0;
        for (uint32_t i = rows.from; s->arriving.chain && i < end; i++) {
            uint32_t page = seq_pages(s, g)[i];
            n -= page != 0 && cells_with(&p->pool, page, COVER_USED) > 0;
        }
        shares_add(p, 0, g, n);
    }
    return shares_even(p, 0) <= tree_without(&p->pool, COVER_USED);
}

/* Takes at most `most` pages, though at least one row. False where other sequences have taken pages
 * that this one was promised, so that not even one row has come. */
static bool arrive_some(pkv *p, uint32_t id, const pkv_seq *from, uint32_t most, bool first)
{
    pkv_seq *s = &p->seqs[id];
    pkv_arriving *x = &s->arriving;
    bool whole = first && most == UINT32_MAX; /* the caller has taken the resident pages */
    bool takes = !p->swaps[x->number].parked && !whole;
    for (uint32_t n_rows = 0; !has_all_come(s);) {
        uint32_t end = layer_end(&p->pool, s->grain, x->table), width = end - x->table;
        uint32_t rows = most / width, left = layer_rows(p, from, x->table) - x->rows;
        if (rows == 0 && n_rows == 0) rows = 1;
        if (rows > left) rows = left;
        if (rows == 0) return true;
        table_rows now = {x->table, end, x->rows, x->rows + rows};
        uint32_t used = p->pool.covered[COVER_USED];
        if (x->chain) resident_find(p, s, from, now);
        if (takes && !has_pages(p, s, from, now)) return n_rows > 0;
        if (x->chain) resident_take(p, s, from, now);
        arrive_rows(p, id, from, now, first);
        use_promise(p, x, p->pool.covered[COVER_USED] - used);
        x->rows += rows;
        n_rows += rows;
        most -= rows * width < most ? rows * width : most;
        if (rows < left) continue;
        enter_layer(p, s, from, end);
        for (uint32_t g = end; first && g < x->table; g++) log_word(p, 0); /* they are empty */
    }
    return true;
}

/* Takes a portion. False as arrive_some. */
static bool arrive_portion(pkv *p, uint32_t id, uint32_t most, bool first)
{
    pkv_seq *s = &p->seqs[id];
    const pkv_seq *from = &p->swaps[s->arriving.number].seq;
    bool came = arrive_some(p, id, from, most, first);
    if (s->arriving.promised > 0) shrink_promise(p, s, from);
    return came;
}

static void end_arrive(pkv *p, pkv_seq *s)
{
    uint32_t number = s->arriving.number;
    use_promise(p, &s->arriving, UINT32_MAX);
    resident_free(p, &s->arriving);
    s->arriving = (pkv_arriving){0};
    p->swaps[number].seq.to = 0;
    record_free(p, number);
}

status seq_begin_arrive(pkv *p, uint32_t number, uint32_t id, uint32_t expect_tokens, uint32_t most)
{
    pkv_seq *s = &p->seqs[id], *from = &p->swaps[number].seq;
    bool parked = p->swaps[number].parked;
    size_t n_pages = portion_pages(p, from, most);
    assert(id < p->max_seqs && !s->open);
    RETURN_IF_ERROR(seq_shape_like(p, s, from, row_for(p, expect_tokens)));
    RETURN_IF_ERROR(log_room(p, DELTA_RETURN_HEAD + from->groups + n_pages, parked ? 0 : n_pages,
                             log_reserve_of(s->groups, s->row)));
    seq_enter(p, s, id);
    seq_copy_state(s, from);
    s->forked = parked && from->forked;
    s->held = 0;
    for (uint32_t g = 0; g < s->groups; g++) table_clear(&s->tables[g]);
    s->arriving.number = number;
    from->to = id + 1;
    enter_layer(p, s, from, 0);
    return STATUS_IS_OK;
}

void seq_arrive_first(pkv *p, uint32_t id, uint32_t most)
{
    pkv_seq *s = &p->seqs[id];
    const pkv_swap *record = &p->swaps[s->arriving.number];
    log_word(p, record->parked ? DELTA_UNPARK : DELTA_RETURN);
    log_word(p, id);
    log_word(p, s->grain);
    log_word(p, s->row);
    for (uint32_t g = 0; g < s->arriving.table; g++) log_word(p, 0);
    (void)arrive_portion(p, id, most, true);
    uint32_t listed = s->arriving.table;
    if (s->arriving.rows > 0) listed = layer_end(&p->pool, s->grain, listed);
    for (uint32_t g = listed; g < s->groups; g++) log_word(p, 0);
    if (has_all_come(s)) end_arrive(p, s);
}

status pkv_seq_arrive(pkv *p, uint32_t id, uint32_t most)
{
    pkv_seq *s = seq_opened(p, id);
    assert(s->arriving.number != 0);
    const pkv_swap *record = &p->swaps[s->arriving.number];
    size_t n = portion_pages(p, &record->seq, most);
    RETURN_IF_ERROR(
        log_room(p, n + (size_t)s->groups * DELTA_BACK_HEAD, record->parked ? 0 : n, 0));
    if (!arrive_portion(p, id, most, false)) return status_make(STATUS_NO_PAGES, NULL);
    if (has_all_come(s)) end_arrive(p, s);
    return STATUS_IS_OK;
}

status pkv_unpark_some(pkv *p, uint32_t parked, uint32_t id, uint32_t expect_tokens, uint32_t most)
{
    assert(parked_at(p, parked)->to == 0 && !parked_at(p, parked)->adopting.on);
    RETURN_IF_ERROR(seq_begin_arrive(p, parked, id, expect_tokens, most));
    seq_arrive_first(p, id, most);
    return STATUS_IS_OK;
}

bool pkv_seq_is_arriving(const pkv *p, uint32_t id)
{
    return seq_opened(p, id)->arriving.number != 0;
}

void seq_stop_arriving(pkv *p, pkv_seq *s)
{
    const pkv_arriving *x = &s->arriving;
    if (x->number == 0) return;
    const pkv_seq *from = &p->swaps[x->number].seq;
    for (uint32_t g = x->table, next; g < s->groups; g = next) {
        next = layer_end(&p->pool, s->grain, g);
        table_rows rows = {g, next, g == x->table ? x->rows : 0, UINT32_MAX};
        if (p->swaps[x->number].parked)
            rows_add_refs(p, &p->pool, from, rows, UINT32_MAX, UINT32_MAX);
        else rows_add_refs(p, &p->host, from, rows, UINT32_MAX, 0);
    }
    end_arrive(p, s);
}

void seq_discard_coming(pkv *p, pkv_seq *s)
{
    pkv_arriving x = s->arriving;
    if (x.number == 0) return;
    use_promise(p, &s->arriving, UINT32_MAX);
    resident_free(p, &s->arriving);
    s->arriving = (pkv_arriving){0};
    p->swaps[x.number].seq.to = 0;
    record_discard_rest(p, x.number, x.table, x.rows);
}
