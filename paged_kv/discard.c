/* Discards parked and swapped sequences: their pages are given up in portions. */
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/records.h"

static void give_up_rows(pkv *p, const pkv_swap *record, table_rows rows)
{
    if (record->parked) rows_add_refs(p, &p->pool, &record->seq, rows, UINT32_MAX, UINT32_MAX);
    else rows_add_refs(p, &p->host, &record->seq, rows, UINT32_MAX, 0);
}

/* Gives up at most `most` pages of a record, which is free once all have left. Returns how many. */
static uint32_t give_up_some(pkv *p, uint32_t number, uint32_t most)
{
    pkv_swap *record = &p->swaps[number];
    leave_portion portion = {.most = most};
    while (leave_next(p, &record->seq, &portion)) give_up_rows(p, record, portion.rows);
    if (!is_all_left(&record->seq)) return portion.n_pages;
    record->seq.leaving = (pkv_leaving){0};
    record_free(p, number);
    return portion.n_pages;
}

static void begin_discard(pkv *p, uint32_t number, uint32_t table, uint32_t row)
{
    pkv_seq *s = &p->swaps[number].seq;
    assert(number >= 1 && number <= p->n_swaps && s->open && s->to == 0 && !s->leaving.on);
    if (s->adopting.on) seq_stop_adopting(p, s);
    seq_begin_leave(p, s,
                    (pkv_leaving){.on = true, .way = PKV_GIVE_UP, .table = table, .floor = row});
}

void record_discard_rest(pkv *p, uint32_t number, uint32_t table, uint32_t row)
{
    begin_discard(p, number, table, row);
    p->swaps[number].next = 0;
    if (p->discard_last != 0) p->swaps[p->discard_last].next = number;
    else p->discard_first = number;
    p->discard_last = number;
    p->n_discards++;
    p->n_host_discards += !p->swaps[number].parked;
}

void pkv_discard_later(pkv *p, uint32_t number) { record_discard_rest(p, number, 0, 0); }

uint32_t pkv_discard_some(pkv *p, uint32_t most)
{
    uint32_t n = 0;
    while (p->discard_first != 0 && n < most) {
        uint32_t number = p->discard_first, next = p->swaps[number].next;
        bool swapped = !p->swaps[number].parked;
        n += give_up_some(p, number, most - n);
        if (p->swaps[number].seq.open) break;
        p->discard_first = next;
        if (next == 0) p->discard_last = 0;
        p->n_discards--;
        p->n_host_discards -= swapped;
    }
    return n;
}

uint32_t pkv_discards(const pkv *p) { return p->n_discards - p->n_host_discards; }
uint32_t pkv_host_discards(const pkv *p) { return p->n_host_discards; }
