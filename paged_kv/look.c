/* Looks at the pages of long parked and swapped sequences, in portions: which pages of a parked one
 * others hold, which pages of a swapped one are resident. References change between two portions,
 * so a look counts each page as it was at some time between its first portion and its last. If
 * anything has changed since the first portion, the next calls look again. */
#include "paged_kv/prefix.h"
#include "paged_kv/records.h"

/* Makes the look one at this record; what was seen of another record, or of its tables at another
 * grain, is forgotten. */
static void turn_to(pkv *p, uint32_t number)
{
    long_look *l = &p->look;
    pkv_grain grain = p->swaps[number].seq.grain;
    if (l->number == number && l->grain == grain) return;
    *l = (long_look){.number = number, .grain = grain, .in_share = l->in_share};
}

/* Exchanges pkv.in_share for the look's sums, or back, because other walks use pkv.in_share between
 * two portions. */
static void exchange_sums(pkv *p)
{
    int64_t *sums = p->in_share;
    p->in_share = p->look.in_share;
    p->look.in_share = sums;
}

static bool is_current(const pkv *p) { return p->look.is_seen && p->look.seen == p->changes; }

static pkv_seen seen_of(const pkv *p)
{
    if (is_current(p)) return PKV_SEEN_NOW;
    return p->look.is_seen ? PKV_SEEN_EARLIER : PKV_SEEN_NOTHING;
}

static void end_look(long_look *l)
{
    l->is_going = false;
    l->is_seen = true;
    l->seen = l->began;
}

static void begin_look(pkv *p)
{
    p->look.is_going = true;
    p->look.began = p->changes;
}

/* ---- parked ---------------------------------------------------------------------------------- */

static void look_at_parked(pkv *p, const pkv_seq *s, uint32_t most)
{
    long_look *l = &p->look;
    if (!l->is_going) {
        begin_look(p);
        l->table = l->row = 0;
        parked_count_begin(p, s, &l->pages_going);
    }
    for (; l->table < s->groups; l->table++, l->row = 0) {
        uint32_t n = s->tables[l->table].n_pages - l->row;
        if (n > most) n = most;
        parked_count(p, s, l->table, l->row, l->row + n, &l->pages_going);
        l->row += n;
        most -= n;
        if (l->row < s->tables[l->table].n_pages) return;
    }
    parked_count_end(p, s, &l->pages_going);
    l->pages = l->pages_going;
    end_look(l);
}

pkv_seen pkv_parked_look_some(pkv *p, uint32_t parked, uint32_t most, pkv_parked_pages *pages)
{
    const pkv_seq *s = parked_at(p, parked);
    turn_to(p, parked);
    if (!is_current(p)) {
        exchange_sums(p);
        look_at_parked(p, s, most);
        exchange_sums(p);
    }
    *pages = p->look.pages;
    return seen_of(p);
}

/* ---- swapped --------------------------------------------------------------------------------- */

/* Where the next block has left the cache, its parents are unknown, so the look begins again. */
static void look_at_swapped(pkv *p, const pkv_seq *s, const uint32_t *tokens, uint32_t most)
{
    long_look *l = &p->look;
    if (l->is_going && l->at.block != 0 && p->blocks[l->at.block].generation != l->generation)
        l->is_going = false;
    if (!l->is_going) {
        begin_look(p);
        l->at = resident_blocks(p, s, tokens);
        resident_count_begin(p, s, &l->cost_going);
    }
    resident_count_some(p, s, &l->at, most, &l->cost_going);
    if (l->at.block != 0) {
        l->generation = p->blocks[l->at.block].generation;
        return;
    }
    resident_count_end(p, &l->cost_going);
    l->cost = l->cost_going;
    end_look(l);
}

pkv_seen pkv_swap_in_cost_some(pkv *p, uint32_t swap, const uint32_t *tokens, uint32_t most,
                               pkv_swap_cost *cost)
{
    const pkv_seq *s = &p->swaps[swap].seq;
    assert(s->open && !p->swaps[swap].parked);
    turn_to(p, swap);
    if (!is_current(p)) {
        exchange_sums(p);
        look_at_swapped(p, s, tokens, most);
        exchange_sums(p);
    }
    *cost = p->look.cost;
    return seen_of(p);
}
