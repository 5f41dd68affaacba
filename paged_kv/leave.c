/* Closes sequences: their pages are given up, parked or copied to the host tier, at once or in
 * portions. The tables of one layer leave together, row by row from their ends on, then those of
 * the next layer. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

/* ---- which pages have left ------------------------------------------------------------------- */

uint32_t layer_rows(const pkv *p, const pkv_seq *s, uint32_t table)
{
    uint32_t longest = 0;
    for (uint32_t g = table, end = layer_end(&p->pool, s->grain, table); g < end; g++)
        if (s->tables[g].n_pages > longest) longest = s->tables[g].n_pages;
    return longest;
}

/* Goes on to the first layer from `table` on that has pages. */
static void enter_layer(const pkv *p, pkv_seq *s, uint32_t table)
{
    pkv_leaving *x = &s->leaving;
    x->rows = x->floor = 0;
    for (x->table = table; x->table < s->groups; x->table = layer_end(&p->pool, s->grain, x->table))
        if ((x->rows = layer_rows(p, s, x->table)) > 0) return;
}

void seq_begin_leave(const pkv *p, pkv_seq *s, pkv_leaving begun)
{
    s->leaving = begun;
    enter_layer(p, s, begun.table);
    s->leaving.floor = begun.floor;
}

bool is_left(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t index)
{
    const pkv_leaving *x = &s->leaving;
    if (!x->on || table < x->table) return x->on;
    bool within = table < layer_end(&p->pool, s->grain, x->table);
    return within && (index >= x->rows || index < x->floor);
}

bool leave_next(const pkv *p, pkv_seq *s, leave_portion *portion)
{
    pkv_leaving *x = &s->leaving;
    if (is_all_left(s)) return false;
    uint32_t end = layer_end(&p->pool, s->grain, x->table), width = end - x->table;
    uint32_t room = portion->most - portion->n_pages, rows = room / width;
    if (rows == 0 && portion->n_rows == 0) rows = 1;
    if (rows > x->rows - x->floor) rows = x->rows - x->floor;
    if (rows == 0) return false;
    portion->rows = (table_rows){x->table, end, x->rows - rows, x->rows};
    portion->n_rows += rows;
    portion->n_pages += rows * width < room ? rows * width : room;
    x->rows -= rows;
    if (x->rows == x->floor) enter_layer(p, s, end);
    return true;
}

/* ---- the record that takes the pages --------------------------------------------------------- */

/* Makes room for the words and moves of a portion. */
static status portion_room(pkv *p, const pkv_seq *s, pkv_way way, uint32_t most)
{
    size_t moves = way == PKV_SWAP_OUT ? portion_pages(p, s, most) : 0;
    return log_room(p, DELTA_LEAVE_WORDS, moves, 0);
}

static status begin_leave(pkv *p, uint32_t id, pkv_way way, uint32_t most)
{
    pkv_seq *s = seq_opened(p, id);
    pkv_leaving begun = {.on = true, .way = way};
    assert(s->arriving.number == 0 || way == PKV_GIVE_UP);
    if (way == PKV_SWAP_OUT) {
        if (!host_has_room(p, s)) return status_make(STATUS_NO_PAGES, NULL);
        RETURN_IF_ERROR(pkv_seq_split(p, id, tree_grain(p, &p->host, s->grain, s->held), 0));
    }
    RETURN_IF_ERROR(portion_room(p, s, way, most));
    if (way != PKV_GIVE_UP) {
        begun.number = record_for(p, s);
        if (begun.number == 0) return status_make(STATUS_NO_MEMORY, NULL);
        pkv_swap *record = &p->swaps[begun.number];
        record_take(p, begun.number, way == PKV_PARK);
        record->from = id + 1;
        seq_copy_state(&record->seq, s);
        record->seq.forked = way == PKV_PARK && s->forked;
        record->seq.held = s->held;
    }
    p->is_swapping |= way == PKV_SWAP_OUT;
    seq_begin_leave(p, s, begun);
    seq_discard_coming(p, s);
    return STATUS_IS_OK;
}

/* Enters the rows into the record. The pool's pages still have their references. */
static void copy_rows(pkv *p, const pkv_seq *s, table_rows rows)
{
    pkv_seq *kept = &p->swaps[s->leaving.number].seq;
    for (uint32_t g = rows.first; g < rows.end; g++) {
        uint32_t end = rows_end(s, rows, g);
        if (end <= rows.from) continue;
        size_t bytes = (end - rows.from) * sizeof(uint32_t);
        memcpy(seq_bases(kept, g) + rows.from, seq_bases(s, g) + rows.from, bytes);
        if (s->leaving.way == PKV_SWAP_OUT)
            table_copy_out(p, s, g, rows.from, end, seq_pages(kept, g));
        else memcpy(seq_pages(kept, g) + rows.from, seq_pages(s, g) + rows.from, bytes);
    }
}

static void copy_lengths(pkv *p, const pkv_seq *s, uint32_t first, uint32_t end)
{
    pkv_seq *kept = &p->swaps[s->leaving.number].seq;
    for (uint32_t g = first; g < end; g++) {
        kept->tables[g].n_pages = s->tables[g].n_pages;
        kept->tables[g].kept = s->tables[g].kept;
        table_copy_slots(p, &kept->tables[g], &s->tables[g]);
    }
}

/* ---- portions -------------------------------------------------------------------------------- */

static void leave_rows(pkv *p, uint32_t id, table_rows rows)
{
    const pkv_seq *s = &p->seqs[id];
    bool parks = s->leaving.way == PKV_PARK;
    for (uint32_t g = rows.first; g < rows.end; g++) {
        uint64_t key = checksum_key(id, g);
        for (uint32_t i = rows.from, end = rows_end(s, rows, g); i < end; i++)
            p->checksum -= checksum_page(key, i, seq_pages(s, g)[i]);
    }
    /* A page that is given up is copied out before any later move writes it. */
    if (s->leaving.number != 0) copy_rows(p, s, rows);
    if (parks) rows_add_refs(p, &p->pool, s, rows, 0, 1); /* the record takes over the references */
    else rows_add_refs(p, &p->pool, s, rows, UINT32_MAX, 0);
}

/* Takes away a portion of at most `most` pages; returns the number of rows. */
static uint32_t leave_some(pkv *p, uint32_t id, uint32_t most)
{
    pkv_seq *s = &p->seqs[id];
    leave_portion portion = {.most = most};
    while (leave_next(p, s, &portion)) {
        table_rows rows = portion.rows;
        leave_rows(p, id, rows);
        if (rows.from == 0 && s->leaving.number != 0) copy_lengths(p, s, rows.first, rows.end);
    }
    return portion.n_rows;
}

/* The sequence's number is free; all of its pages have left. */
static void end_leave(pkv *p, uint32_t id)
{
    pkv_seq *s = &p->seqs[id];
    p->checksum -= checksum_seq(id);
    for (uint32_t g = 0; g < s->groups; g++) {
        p->checksum -= checksum_kept(checksum_key(id, g), s->tables[g].kept);
        table_clear(&s->tables[g]);
    }
    log_word(p, s->leaving.way == PKV_PARK ? DELTA_PARK : DELTA_CLOSE);
    log_word(p, id);
    p->log.reserve -= log_reserve_of(s->groups, s->row);
    if (s->leaving.number != 0) p->swaps[s->leaving.number].from = 0;
    if (s->leaving.way == PKV_SWAP_OUT) {
        p->counts.pages_swapped_out += s->held;
        p->is_swapping = false;
    }
    s->leaving = (pkv_leaving){0};
    s->open = false;
    s->held = s->length = 0;
    seq_free_long_lists(p, s);
}

status pkv_seq_leave_some(pkv *p, uint32_t id, pkv_way way, uint32_t most, uint32_t *number)
{
    pkv_seq *s = seq_opened(p, id);
    assert(!s->leaving.on || s->leaving.way == way);
    seq_finish_split(p, id);
    if (s->leaving.on) RETURN_IF_ERROR(portion_room(p, s, way, most));
    else RETURN_IF_ERROR(begin_leave(p, id, way, most));
    if (s->leaving.number != 0) *number = s->leaving.number;
    uint32_t rows = leave_some(p, id, most);
    if (is_all_left(s)) {
        end_leave(p, id);
        return STATUS_IS_OK;
    }
    log_word(p, DELTA_LEAVE);
    log_word(p, id);
    log_word(p, way == PKV_PARK);
    log_word(p, rows);
    return STATUS_IS_OK;
}

bool pkv_seq_is_leaving(const pkv *p, uint32_t id) { return seq_opened(p, id)->leaving.on; }

status pkv_seq_swap_out(pkv *p, uint32_t id, uint32_t *swap)
{
    return pkv_seq_leave_some(p, id, PKV_SWAP_OUT, UINT32_MAX, swap);
}

/* Gives up the pages that the record has got so far, and frees it. The rest is to be given up
 * too. */
static void give_up_left(pkv *p, pkv_seq *s)
{
    pkv_leaving *x = &s->leaving;
    const pkv_seq *kept = &p->swaps[x->number].seq;
    if (!is_all_left(s)) copy_lengths(p, s, x->table, layer_end(&p->pool, s->grain, x->table));
    for (uint32_t g = 0, next; g < s->groups && g <= x->table; g = next) {
        next = layer_end(&p->pool, s->grain, g);
        table_rows rows = {g, next, g < x->table ? 0 : x->rows, UINT32_MAX};
        if (x->way == PKV_PARK) rows_add_refs(p, &p->pool, s, rows, UINT32_MAX, UINT32_MAX);
        else rows_add_refs(p, &p->host, kept, rows, UINT32_MAX, 0);
    }
    p->is_swapping &= x->way != PKV_SWAP_OUT;
    p->swaps[x->number].from = 0;
    record_free(p, x->number);
    x->way = PKV_GIVE_UP;
    x->number = 0;
}

void pkv_seq_close(pkv *p, uint32_t id)
{
    pkv_seq *s = seq_opened(p, id);
    seq_finish_split(p, id);
    seq_stop_arriving(p, s);
    if (!s->leaving.on) {
        seq_begin_leave(p, s, (pkv_leaving){.on = true, .way = PKV_GIVE_UP});
    } else if (s->leaving.number != 0) {
        give_up_left(p, s);
    }
    (void)leave_some(p, id, UINT32_MAX);
    end_leave(p, id);
}
