/* paged_kv, private: blocks of the prefix cache, those that have left it, and those that are still
 * resident when a sequence comes back. */
#ifndef PAGED_KV_PREFIX_H
#define PAGED_KV_PREFIX_H

#include "paged_kv/pool.h"

/* ---- prefix.c ---- */

status prefix_create(pkv *p);
void prefix_destroy(pkv *p);
uint64_t prefix_hash(const pkv *p, uint64_t parent_hash, const uint32_t *tokens, uint64_t salt);
/* The cached block with these tokens after `parent` (0 = none), or 0. */
uint32_t prefix_find(const pkv *p, uint32_t parent, uint64_t hash, const uint32_t *tokens,
                     uint64_t salt);
/* The last block of the longest chain equal to tokens[0 .. max_tokens), 0 = none; *n_blocks is its
 * length. */
uint32_t prefix_walk(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt,
                     uint32_t *n_blocks);
/* Takes a block and all its descendants out of the cache, because their pages are wanted; those
 * without references become free. */
void prefix_remove(pkv *p, uint32_t b);
/* The last block that the sequence has published or hit has left the cache. */
static inline bool chain_is_cut(const pkv *p, const pkv_seq *s)
{
    return s->cursor != 0 && p->blocks[s->cursor].generation != s->cursor_generation;
}

/* ---- lost.c ---- */

status lost_create(pkv *p, uint32_t most);
void lost_destroy(pkv *p);
/* A block of these tokens enters the cache. */
void lost_enter(pkv *p, uint32_t b, uint64_t salt, const uint32_t *tokens);
/* The block leaves because its pages are wanted; it still has its nodes. */
void lost_add(pkv *p, uint32_t b);

/* ---- watch.c ---- */

/* References of nodes of the pool, cells of one layer run or one run, change between two calls, of
 * which the first has UINT32_MAX for `one` and the second 1. */
void watch_count(pkv *p, const uint32_t *nodes, uint32_t n, uint32_t one);
/* The block leaves the cache; its children have left. */
void watch_remove(pkv *p, uint32_t b);
void watch_forget(pkv *p);
const char *watch_check(const pkv *p);

/* ---- resident.c ---- */

/* The last block of those that a swapped sequence had published and that are resident, which may be
 * none. Equal tokens have equal K and V up to there, even when another sequence computed them. One
 * that was swapped out before a flush takes no block from after it. */
resident_at resident_blocks(const pkv *p, const pkv_seq *s, const uint32_t *tokens);
/* A page of a swapped sequence that is still resident: page `index` of a table lies in `node`. */
typedef void resident_fn(pkv *p, void *ctx, uint32_t table, uint32_t index, uint32_t node);
/* Calls `fn` for those pages of the tables that blocks hold, from the last block on, among at most
 * `most` pages, though at least those of one block; *at is moved on. A block of a finer grain than
 * the tables' cannot be one of their pages. */
void each_resident(pkv *p, const pkv_seq *s, resident_at *at, uint32_t most, resident_fn *fn,
                   void *ctx);
/* Begins a count of what a swapped sequence costs, of which resident_count_some counts the next
 * blocks, and completes it. */
void resident_count_begin(const pkv *p, const pkv_seq *s, pkv_swap_cost *cost);
void resident_count_some(pkv *p, const pkv_seq *s, resident_at *at, uint32_t most,
                         pkv_swap_cost *cost);
void resident_count_end(const pkv *p, pkv_swap_cost *cost);
/* Notes which blocks are resident, for rows that come later. STATUS_NO_MEMORY changes nothing. */
status resident_chain(const pkv *p, resident_at last, resident_block **chain);
/* Lists the resident pages of rows that come to a sequence, and 0 for others. */
void resident_find(pkv *p, pkv_seq *s, const pkv_seq *from, table_rows rows);
/* Takes references to them. */
void resident_take(pkv *p, const pkv_seq *s, const pkv_seq *from, table_rows rows);
void resident_free(const pkv *p, pkv_arriving *x);

#endif
