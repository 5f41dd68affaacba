/* Parked sequences have no sequence number and no place in a backend's tables, but keep all their
 * pages. Their references are counted apart, so it is always known what giving them up would
 * free. */
#include "paged_kv/internal.h"

static pkv_seq *parked_at(const pkv *p, uint32_t parked)
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

/* The record for a copy of the sequence, 0 when memory is out. */
static uint32_t record_for(pkv *p, const pkv_seq *s)
{
    uint32_t number = record_find(p);
    if (number == 0 || !status_ok(seq_shape_like(p, &p->swaps[number].seq, s, 1))) return 0;
    return number;
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

/* Calls `change` for each page of the tables. */
static void each_page(pkv *p, const pkv_seq *s,
                      void (*change)(pkv *p, pkv_grain grain, uint32_t page))
{
    for (uint32_t g = 0; g < s->groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++) change(p, s->grain, seq_pages(s, g)[i]);
}

status pkv_seq_park(pkv *p, uint32_t id, uint32_t *parked)
{
    const pkv_seq *s = seq_changing(p, id);
    uint32_t number = record_for(p, s);
    if (number == 0) return status_make(STATUS_NO_MEMORY, NULL);
    copy_to_record(p, number, s);
    each_page(p, s, pool_park); /* the record takes over the references */
    seq_leave(p, id, DELTA_PARK);
    *parked = number;
    return STATUS_IS_OK;
}

status pkv_seq_fork_parked(pkv *p, uint32_t id, uint32_t *parked)
{
    pkv_seq *s = seq_changing(p, id);
    uint32_t number = record_for(p, s);
    if (number == 0) return status_make(STATUS_NO_MEMORY, NULL);
    RETURN_IF_ERROR(log_room(p, DELTA_CLOSE_WORDS, 0, 0));
    s->forked = true;
    copy_to_record(p, number, s);
    each_page(p, s, pool_ref);
    each_page(p, s, pool_park);
    /* A later drop must not be merged into an earlier one: the copy was made in between. */
    for (uint32_t g = 0; g < s->groups; g++) s->tables[g].drop_epoch = 0;
    log_word(p, DELTA_HOLD);
    log_word(p, id);
    *parked = number;
    return STATUS_IS_OK;
}

status pkv_unpark(pkv *p, uint32_t parked, uint32_t id, uint32_t expect_tokens)
{
    assert(id < p->max_seqs && !p->seqs[id].open);
    const pkv_seq *from = parked_at(p, parked);
    pkv_seq *s = &p->seqs[id];
    RETURN_IF_ERROR(seq_shape_like(p, s, from, row_for(p, expect_tokens)));
    RETURN_IF_ERROR(
        log_room(p, DELTA_RETURN_HEAD + from->groups + (size_t)(from->held / cells_of(p, from)), 0,
                 log_reserve_of(s->groups, s->row)));
    seq_enter(p, s, id);
    seq_copy_state(s, from);
    s->forked = from->forked;
    s->held = 0;
    each_page(p, from, pool_unpark);
    log_word(p, DELTA_UNPARK);
    log_word(p, id);
    log_word(p, s->grain);
    log_word(p, s->row);
    for (uint32_t g = 0; g < s->groups; g++) {
        const pkv_table *t = &from->tables[g];
        table_clear(&s->tables[g]);
        log_word(p, t->kept);
        for (uint32_t i = 0; i < t->n_pages; i++) {
            uint32_t page = seq_pages(from, g)[i];
            table_push(p, id, g, page, seq_bases(from, g)[i]);
            log_word(p, page);
        }
        table_set_kept(p, id, g, t->kept);
        table_copy_slots(p, &s->tables[g], t);
    }
    record_free(p, parked);
    return STATUS_IS_OK;
}

static void unref_pages(pkv *p, const pkv_seq *s)
{
    each_page(p, s, pool_unpark);
    seq_unref_pages(p, s);
}

void pkv_parked_discard(pkv *p, uint32_t parked)
{
    unref_pages(p, parked_at(p, parked));
    record_free(p, parked);
}

status pkv_parked_swap_out(pkv *p, uint32_t parked, uint32_t *swap)
{
    pkv_seq *s = parked_at(p, parked);
    if (s->held == 0 || seq_held_evenly(p, s) > tree_without(&p->host, COVER_USED)) {
        return status_make(STATUS_NO_PAGES, NULL);
    }
    pkv_grain grain = tier_grain(p, &p->host, s->grain, s->held);
    if (grain > s->grain) RETURN_IF_ERROR(seq_split(p, &p->pool, s, grain, true));
    RETURN_IF_ERROR(log_room(p, 0, s->held / cells_of(p, s), 0));
    /* Giving up the pages first is safe: no page is handed out before all are copied. */
    unref_pages(p, s);
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++) {
            uint32_t *page = &seq_pages(s, g)[i], host = host_take(p, s->grain, g);
            log_move(p, (pkv_move){.kind = PKV_MOVE_OUT,
                                   .grain = s->grain,
                                   .group = g,
                                   .src_page = *page,
                                   .dst_page = host,
                                   .n_slots = p->geometry.page_tokens});
            *page = host;
        }
    }
    p->counts.pages_swapped_out += s->held;
    p->swaps[parked].parked = false;
    *swap = parked;
    return STATUS_IS_OK;
}

uint32_t pkv_parked_length(const pkv *p, uint32_t parked) { return parked_at(p, parked)->length; }

pkv_parked_pages pkv_parked_look(const pkv *p, uint32_t parked)
{
    const pkv_seq *s = parked_at(p, parked);
    pkv_parked_pages n = {.held = s->held, .held_even = (uint32_t)seq_held_evenly(p, s)};
    uint32_t size = cells_of(p, s);
    bool uneven = s->grain == PKV_HEAD && p->pool.n_shares > 1;
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++) {
        const pkv_table *t = &s->tables[g];
        for (uint32_t i = 0; i < t->n_pages; i++) {
            uint32_t node = node_of(&p->pool, s->grain, seq_pages(s, g)[i]);
            bool fills = s->forked && i + 1 == t->n_pages && table_room(p, t) > 0;
            bool shared = node_is_shared(&p->pool, node);
            uint32_t alone = cells_parked(p, node);
            n.shared += shared ? size : 0;
            n.filling += shared && fills ? size : 0;
            n.shared_open += alone < size ? size : 0;
            n.filling_open += alone < size && fills ? size : 0;
            n.alone += alone;
            if (!uneven) continue;
            shares_add(p, 0, g, shared);
            shares_add(p, 1, g, shared && fills);
            shares_add(p, 2, g, alone < size);
            shares_add(p, 3, g, alone < size && fills);
            shares_add(p, 4, g, alone);
        }
    }
    n.alone_even = n.alone;
    if (!uneven) return n;
    n.shared = (uint32_t)shares_even(p, 0);
    n.filling = (uint32_t)shares_even(p, 1);
    n.shared_open = (uint32_t)shares_even(p, 2);
    n.filling_open = (uint32_t)shares_even(p, 3);
    n.alone_even = (uint32_t)shares_even(p, 4);
    return n;
}

uint64_t pkv_parked_kept(const pkv *p, uint32_t parked)
{
    return seq_kept(p, parked_at(p, parked));
}
