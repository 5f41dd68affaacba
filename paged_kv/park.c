/* Parked sequences have no sequence number and no place in a backend's tables, but keep all their
 * pages. Their references are counted apart, so it is always known what giving them up would
 * free. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

pkv_seq *parked_at(const pkv *p, uint32_t parked)
{
    assert(parked >= 1 && parked <= p->n_swaps);
    assert(p->swaps[parked].seq.open && p->swaps[parked].parked);
    return &p->swaps[parked].seq;
}

static void copy_tables(const pkv *p, pkv_seq *to, const pkv_seq *from)
{
    for (uint32_t g = 0; g < from->groups; g++) {
        const pkv_table *t = &from->tables[g];
        size_t bytes = t->n_pages * sizeof(uint32_t);
        memcpy(seq_pages(to, g), seq_pages(from, g), bytes);
        memcpy(seq_bases(to, g), seq_bases(from, g), bytes);
        to->tables[g].n_pages = t->n_pages;
        to->tables[g].kept = t->kept;
        table_copy_slots(p, &to->tables[g], t);
    }
}

static void copy_to_record(pkv *p, uint32_t number, const pkv_seq *s)
{
    pkv_seq *kept = &p->swaps[number].seq;
    record_take(p, number, true);
    seq_copy_state(kept, s);
    kept->forked = s->forked;
    kept->held = s->held;
    copy_tables(p, kept, s);
}

status pkv_seq_fork_parked(pkv *p, uint32_t id, uint32_t *parked)
{
    pkv_seq *s = seq_changing(p, id);
    uint32_t number = record_for(p, s);
    if (number == 0) return status_make(STATUS_NO_MEMORY, NULL);
    RETURN_IF_ERROR(log_room(p, DELTA_CLOSE_WORDS, 0, 0));
    s->forked = true;
    copy_to_record(p, number, s);
    seq_add_refs(p, &p->pool, s, 1, 1);
    /* A later drop must not be merged into an earlier one: the copy was made in between. */
    for (uint32_t g = 0; g < s->groups; g++) s->tables[g].drop_epoch = 0;
    log_word(p, DELTA_HOLD);
    log_word(p, id);
    *parked = number;
    return STATUS_IS_OK;
}

/* Makes room for the moves of a portion. */
static status moves_room(pkv *p, const pkv_seq *s, uint32_t most)
{
    return log_room(p, 0, portion_pages(p, s, most), 0);
}

/* Copies rows of a parked sequence to the host tier. Giving up their pages first is safe: a backend
 * makes moves in order, so it copies a page out before anything else is written there. */
static void move_rows(pkv *p, const pkv_seq *s, table_rows rows)
{
    rows_add_refs(p, &p->pool, s, rows, UINT32_MAX, UINT32_MAX);
    for (uint32_t g = rows.first; g < rows.end; g++) {
        uint32_t end = rows_end(s, rows, g);
        if (end > rows.from) table_copy_out(p, s, g, rows.from, end, seq_pages(s, g));
    }
}

static status begin_move(pkv *p, pkv_seq *s, uint32_t most)
{
    if (!host_has_room(p, s)) return status_make(STATUS_NO_PAGES, NULL);
    pkv_grain grain = tree_grain(p, &p->host, s->grain, s->held);
    if (grain > s->grain) RETURN_IF_ERROR(seq_split(p, &p->pool, s, grain, true));
    RETURN_IF_ERROR(moves_room(p, s, most));
    p->is_swapping = true;
    seq_begin_leave(p, s, (pkv_leaving){.on = true, .way = PKV_SWAP_OUT});
    return STATUS_IS_OK;
}

status pkv_parked_swap_out_some(pkv *p, uint32_t parked, uint32_t most, uint32_t *swap)
{
    pkv_seq *s = parked_at(p, parked);
    assert(s->to == 0 && (!s->leaving.on || record_moves(&p->swaps[parked])));
    leave_portion portion = {.most = most};
    *swap = 0;
    if (!s->leaving.on) RETURN_IF_ERROR(begin_move(p, s, most));
    else RETURN_IF_ERROR(moves_room(p, s, most));
    while (leave_next(p, s, &portion)) move_rows(p, s, portion.rows);
    if (!is_all_left(s)) return STATUS_IS_OK;
    s->leaving = (pkv_leaving){0};
    p->is_swapping = false;
    p->counts.pages_swapped_out += s->held;
    p->swaps[parked].parked = false;
    look_forget(p, parked); /* it saw the pages of the pool, which the sequence has no more */
    *swap = parked;
    return STATUS_IS_OK;
}

uint32_t pkv_parked_length(const pkv *p, uint32_t parked) { return parked_at(p, parked)->length; }

/* Sums by share that a count keeps for tables of the finest grain. */
enum { SHARED, FILLING, SHARED_OPEN, FILLING_OPEN, ALONE };

static bool is_uneven(const pkv *p, const pkv_seq *s)
{
    return s->grain == PKV_HEAD && p->pool.n_shares > 1;
}

void parked_count_begin(const pkv *p, const pkv_seq *s, pkv_parked_pages *n)
{
    *n = (pkv_parked_pages){.held = s->held, .held_even = (uint32_t)seq_held_evenly(p, s)};
    shares_clear(p);
}

void parked_count(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t from, uint32_t to,
                  pkv_parked_pages *n)
{
    const pkv_table *t = &s->tables[table];
    uint32_t size = cells_of(p, s);
    bool uneven = is_uneven(p, s);
    for (uint32_t i = from; i < to; i++) {
        uint32_t node = node_of(&p->pool, s->grain, seq_pages(s, table)[i]);
        bool fills = s->forked && i + 1 == t->n_pages && table_room(p, t) > 0;
        bool shared = node_is_shared(&p->pool, node);
        uint32_t alone = cells_parked(p, node);
        n->shared += shared ? size : 0;
        n->filling += shared && fills ? size : 0;
        n->shared_open += alone < size ? size : 0;
        n->filling_open += alone < size && fills ? size : 0;
        n->alone += alone;
        if (!uneven) continue;
        shares_add(p, SHARED, table, shared);
        shares_add(p, FILLING, table, shared && fills);
        shares_add(p, SHARED_OPEN, table, alone < size);
        shares_add(p, FILLING_OPEN, table, alone < size && fills);
        shares_add(p, ALONE, table, alone);
    }
}

void parked_count_end(const pkv *p, const pkv_seq *s, pkv_parked_pages *n)
{
    n->alone_even = n->alone;
    if (!is_uneven(p, s)) return;
    n->shared = (uint32_t)shares_even(p, SHARED);
    n->filling = (uint32_t)shares_even(p, FILLING);
    n->shared_open = (uint32_t)shares_even(p, SHARED_OPEN);
    n->filling_open = (uint32_t)shares_even(p, FILLING_OPEN);
    n->alone_even = (uint32_t)shares_even(p, ALONE);
}

pkv_parked_pages pkv_parked_look(const pkv *p, uint32_t parked)
{
    const pkv_seq *s = parked_at(p, parked);
    pkv_parked_pages n;
    parked_count_begin(p, s, &n);
    for (uint32_t g = 0; g < s->groups; g++) parked_count(p, s, g, 0, s->tables[g].n_pages, &n);
    parked_count_end(p, s, &n);
    return n;
}

bool pkv_parked_frees(const pkv *p, uint32_t parked)
{
    const pkv_seq *s = parked_at(p, parked);
    for (uint32_t g = 0; g < s->groups; g++)
        for (uint32_t i = s->tables[g].n_pages; i-- > 0;)
            if (cells_parked(p, node_of(&p->pool, s->grain, seq_pages(s, g)[i])) > 0) return true;
    return false;
}

pkv_parked_pages pkv_parked_most(const pkv *p, uint32_t parked)
{
    const pkv_seq *s = parked_at(p, parked);
    uint32_t even = (uint32_t)seq_held_evenly(p, s), filling = s->forked ? p->groups : 0;
    return (pkv_parked_pages){.held = s->held,
                              .held_even = even,
                              .shared = even,
                              .filling = filling,
                              .shared_open = even,
                              .filling_open = filling};
}

uint64_t pkv_parked_kept(const pkv *p, uint32_t parked)
{
    return seq_kept(p, parked_at(p, parked));
}
