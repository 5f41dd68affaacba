/* paged_kv, private: the tables of a sequence: their lists, tokens and grain. */
#ifndef PAGED_KV_TABLE_H
#define PAGED_KV_TABLE_H

#include "paged_kv/state.h"

/* ---- table.c ---- */

/* Makes every list of an open sequence hold at least `row` pages; they grow by more, so that
 * growing is rare. */
status seq_reserve(pkv *p, pkv_seq *s, uint32_t row);
/* Gives a closed sequence the tables of a grain, with lists of at least `row` pages. All its tables
 * take tokens. */
status seq_shape(pkv *p, pkv_seq *s, pkv_grain grain, uint32_t row);
/* The cells of a sequence, as many in each share as in the one with most. */
uint64_t seq_held_evenly(const pkv *p, const pkv_seq *s);
/* Length of a list, in pages, that will hold that many tokens. */
uint32_t row_for(const pkv *p, uint32_t expect_tokens);
/* Enters a sequence into checksum and reserve. */
void seq_enter(pkv *p, pkv_seq *s, uint32_t seq);
/* Sets the sequence's weight, by the tables that it has now. */
void seq_weigh(const pkv *p, pkv_seq *s, uint32_t seq);
/* Copies a sequence's state except its tables and its number. */
void seq_copy_state(pkv_seq *to, const pkv_seq *from);
/* Gives a closed `to` the grain and the layers of `from`, and lists long enough for what that holds
 * and for `row` pages. */
status seq_shape_like(pkv *p, pkv_seq *to, const pkv_seq *from, uint32_t row);
void seq_free_lists(pkv *p, pkv_seq *s);
/* A sequence that was closed keeps its lists for the next one, unless they are very long. */
void seq_free_long_lists(pkv *p, pkv_seq *s);
uint64_t seq_kept(const pkv *p, const pkv_seq *s);
void table_clear(pkv_table *t);
/* Adds a page at a table's end; the list has room. */
void table_push(pkv *p, uint32_t seq, uint32_t table, uint32_t page, uint32_t base);
/* Copies the positions of the compacted pages; `to` has room for them. */
void table_copy_slots(const pkv *p, pkv_table *to, const pkv_table *from);
/* Makes room for the position of each slot of that many compacted pages, including the last page's
 * free slots, which later tokens fill. */
status table_reserve_slots(pkv *p, pkv_table *t, uint32_t slot_pages);
void table_set_kept(pkv *p, uint32_t seq, uint32_t table, uint32_t kept);
/* The logical index of a slot. */
uint32_t table_position(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t slot);

/* ---- split.c ---- */

/* Replaces the tables of a record by those of a finer grain, on the same cells of that tree. */
status seq_split(pkv *p, pkv_tree *tree, pkv_seq *s, pkv_grain grain, bool parked);
/* Splits at most `most` pages more of a parked record that is being split, and returns how many.
 * With the last one the record has the finer tables. */
uint32_t record_split_some(pkv *p, pkv_seq *s, uint32_t most);
/* Splits what is left of a sequence that is being split; cannot fail. */
void seq_finish_split(pkv *p, uint32_t seq);
/* Makes s->splitting, empty tables of a finer grain, or lets go of it. */
status splitting_begin(pkv *p, pkv_seq *s, pkv_grain grain);
void splitting_free(pkv *p, pkv_seq *s);
/* Words that the log reserves for an open sequence that is being split: of its coming tables, and
 * for the end of the split. */
size_t splitting_reserve(const pkv_seq *s);
/* The coarsest grain, from `grain` on, of which the tree can give that many cells. */
pkv_grain tree_grain(const pkv *p, const pkv_tree *tree, pkv_grain grain, uint64_t cells);

/* ---- compact.c ---- */

/* pkv_seq_compact; `rotated` rotates moved keys to the positions of their new slots. */
status table_gather(pkv *p, uint32_t seq, uint32_t table, const uint32_t *keep, uint32_t n_keep,
                    bool rotated);

#endif
