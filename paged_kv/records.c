/* Records of swapped and parked sequences, which have no id: the index of their record in pkv.swaps
 * is their number. swaps[0] heads the list of free records. record_find makes a record if none is
 * free, and record_take removes it from the list. */
#include "paged_kv/records.h"
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

uint32_t record_find(pkv *p)
{
    if (p->n_swaps > 0 && p->swaps[0].next != 0) return p->swaps[0].next;
    if (p->n_swaps + 1 >= p->cap_swaps) {
        uint32_t cap = p->cap_swaps < 8 ? 8 : p->cap_swaps * 2;
        pkv_swap *grown = alloc_resize(&p->alloc, p->swaps, cap, sizeof *grown);
        if (!grown) return 0;
        p->swaps = grown;
        p->cap_swaps = cap;
    }
    if (p->n_swaps == 0) p->swaps[0] = (pkv_swap){0};
    p->swaps[++p->n_swaps] = (pkv_swap){0};
    return p->swaps[0].next = p->n_swaps;
}

uint32_t record_for(pkv *p, const pkv_seq *s)
{
    uint32_t number = record_find(p);
    if (number == 0 || !status_ok(seq_shape_like(p, &p->swaps[number].seq, s, 1))) return 0;
    return number;
}

void record_take(pkv *p, uint32_t number, bool parked)
{
    pkv_swap *r = &p->swaps[number];
    p->swaps[0].next = r->next;
    r->seq.open = true;
    r->seq.shared = shared_none(p);
    r->parked = parked;
    p->sight.parked = 0;
    p->watch.has_cost = false;
    look_forget(p, number);
}

void record_free(pkv *p, uint32_t number)
{
    pkv_swap *r = &p->swaps[number];
    for (uint32_t g = 0; g < r->seq.groups; g++) table_clear(&r->seq.tables[g]);
    r->seq.open = false;
    seq_free_long_lists(p, &r->seq);
    r->next = p->swaps[0].next;
    p->swaps[0].next = number;
}

void records_destroy(pkv *p)
{
    for (uint32_t i = 1; i <= p->n_swaps; i++) seq_free_lists(p, &p->swaps[i].seq);
    alloc_free(&p->alloc, p->swaps);
}
