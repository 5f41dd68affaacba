/* paged_kv, private: tables that leave or arrive in portions. */
#ifndef PAGED_KV_PORTIONS_H
#define PAGED_KV_PORTIONS_H

#include "paged_kv/pool.h"

/* ---- leave.c ---- */

/* Whether a page of a sequence that is leaving has left. */
bool is_left(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t index);
/* Pages of the longest table of a layer, of which `table` is the first one. */
uint32_t layer_rows(const pkv *p, const pkv_seq *s, uint32_t table);
/* Lets all pages of the sequence or record leave, from this table and row on. It has some. */
void seq_begin_leave(const pkv *p, pkv_seq *s, pkv_leaving begun);
static inline bool is_all_left(const pkv_seq *s) { return s->leaving.table >= s->groups; }
/* The most pages of a sequence's portion of `most`, which ends with a row of a layer's tables. */
static inline size_t portion_pages(const pkv *p, const pkv_seq *s, uint32_t most)
{
    size_t held = s->held / cells_of(p, s), n = (size_t)most + p->pool.n_heads;
    return n < held ? n : held;
}
/* A portion of at most `most` pages, though at least one row. */
typedef struct leave_portion {
    uint32_t most, n_pages, n_rows;
    table_rows rows; // the last ones
} leave_portion;
/* The next rows of the portion, which count as left from now on; false behind the last. */
bool leave_next(const pkv *p, pkv_seq *s, leave_portion *portion);

/* ---- arrive.c ---- */

/* Whether a page of an open sequence, or of the record that it arrives from, is the sequence's. */
bool has_come(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t index);
/* Opens a sequence for the pages of a record, with room for a portion. */
status seq_begin_arrive(pkv *p, uint32_t number, uint32_t id, uint32_t expect_tokens,
                        uint32_t most);
/* The first portion. There are pages for all of them. */
void seq_arrive_first(pkv *p, uint32_t id, uint32_t most);
/* Gives up what has not come: at once, or in portions, by pkv_discard_some. */
void seq_stop_arriving(pkv *p, pkv_seq *s);
void seq_discard_coming(pkv *p, pkv_seq *s);
/* The sequence, or the record that it arrives from, whose tables are whole. */
static inline const pkv_seq *seq_whole(const pkv *p, uint32_t id)
{
    const pkv_seq *s = seq_opened(p, id);
    return s->arriving.number != 0 ? &p->swaps[s->arriving.number].seq : s;
}

/* ---- image.c ---- */

/* Takes no more pages for the record. */
void seq_stop_adopting(pkv *p, pkv_seq *s);

/* ---- discard.c ---- */

/* Discards a record in portions, except what a sequence has taken over: the tables before the layer
 * of `table`, and the first `row` pages of that layer's tables. */
void record_discard_rest(pkv *p, uint32_t number, uint32_t table, uint32_t row);
/* Whether the record is being moved to the host tier: the pages that have left it are there. */
static inline bool record_moves(const pkv_swap *record)
{
    return record->seq.leaving.on && record->seq.leaving.way == PKV_SWAP_OUT;
}

#endif
