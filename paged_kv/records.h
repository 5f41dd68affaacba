/* paged_kv, private: records of swapped and parked sequences, which have no number of their own,
 * and the host tier. */
#ifndef PAGED_KV_RECORDS_H
#define PAGED_KV_RECORDS_H

#include "paged_kv/state.h"

/* ---- records.c ---- */

/* The number of a free record, 0 when memory is out; record_take marks it used. */
uint32_t record_find(pkv *p);
/* The number of a free record whose lists have room for a copy of the sequence, 0 when memory is
 * out. */
uint32_t record_for(pkv *p, const pkv_seq *s);
void record_take(pkv *p, uint32_t number, bool parked);
void record_free(pkv *p, uint32_t number);
void records_destroy(pkv *p);

/* ---- swap.c ---- */

/* Takes a page of the host tier for pages from .. to - 1 of a table, to which they are copied;
 * tree_without has said that there are enough. `out`, the list that gets them, may be the table's
 * own. */
void table_copy_out(pkv *p, const pkv_seq *s, uint32_t table, uint32_t from, uint32_t to,
                    uint32_t *out);
/* Whether the host tier can take all pages of a sequence that holds some. While another one leaves
 * to it, it cannot: that one was promised what is free. */
bool host_has_room(const pkv *p, const pkv_seq *s);
status host_create(pkv *p);
void host_destroy(pkv *p);

/* Adds pages first .. end - 1 of a swapped table to an open one: resident pages that were taken
 * back, and fresh ones for the others, to which the host pages are copied. */
void table_copy_in(pkv *p, uint32_t id, const pkv_seq *from, uint32_t table, uint32_t first,
                   uint32_t end);

/* ---- park.c ---- */

pkv_seq *parked_at(const pkv *p, uint32_t parked);
/* Counts pages from .. to - 1 of a table of a parked sequence, in *n and in the sums of shares. */
void parked_count(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t from, uint32_t to,
                  pkv_parked_pages *n);
/* Begins a count of all of them, and completes one. */
void parked_count_begin(const pkv *p, const pkv_seq *s, pkv_parked_pages *n);
void parked_count_end(const pkv *p, const pkv_seq *s, pkv_parked_pages *n);

/* ---- look.c ---- */

/* Forgets what was seen of a record. */
static inline void look_forget(pkv *p, uint32_t number)
{
    if (p->look.number == number) p->look.number = 0;
}

#endif
