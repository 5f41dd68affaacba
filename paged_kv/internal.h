/* paged_kv, private: the state that its files share.
 *
 *   pages    one record each; lists run through them by number, 0 ends a list (page 0 is never
 *            handed out)
 *   blocks   the prefix cache: a tree of blocks under block 0, and a hash table over it
 *   seqs     for each sequence one page list, one base list and one record for each table
 *   swaps    the same for each sequence without a number: a swapped one has pages of the host tier,
 *            a parked one pages of the pool
 *   log      words and moves since the last pkv_take_deltas */
#ifndef PAGED_KV_INTERNAL_H
#define PAGED_KV_INTERNAL_H

#include "paged_kv/delta.h"
#include "paged_kv/map.h"
#include "paged_kv/tree.h"
#include <assert.h>
#include <string.h>

enum { PAGE_TOKENS_MOST = 256 };
enum { PAGES_TOGETHER = 64 }; // of one table that are taken at once, at most

typedef struct pkv_block {
    uint64_t hash;
    uint64_t salt;   // salt of the chain: compared at its first block
    uint32_t parent; // 0 for a first block
    uint32_t first_child;
    uint32_t next_sibling, prev_sibling;
    uint32_t next_in_bucket; // or in the free list
    uint32_t generation;     // odd while it is in the cache; + 1 on entering and on leaving
    uint32_t first_node;     // its nodes follow by block_next, in the order of its grain's tables
    pkv_grain grain;
} pkv_block;

/* The chain that pkv_lookup_again found, and what it counted. Only its last block can leave the
 * cache, because a block's children leave before it. */
typedef struct prefix_watch {
    uint64_t key; // 0 = none
    uint32_t max_tokens;
    uint32_t last; // block, 0 = none
    uint32_t n_blocks;
    uint32_t cached_pages, parked_pages; // as in pkv_hit
    bool has_cost;                       // of pkv_swap_in_cost_again: nothing has changed since
    pkv_swap_cost cost;
} prefix_watch;

/* Keys of blocks, and a ring of those that left. Nothing is allocated where `most` is 0. */
typedef struct lost_blocks {
    uint32_t most, first, n;
    pkv_key *block_keys; // [max_blocks + 1]
    pkv_key *keys;       // [2 * most]: the ring, then room to put it in order
    uint32_t *cells;     // [2 * most, groups]
} lost_blocks;

/* Where a walk over the resident blocks of a swapped sequence goes on. */
typedef struct resident_at {
    uint32_t block; // the next one, 0 = none: its parents follow
    uint32_t n;     // blocks up to it
} resident_at;

/* A look at the pages of a parked or swapped sequence, in portions (look.c). The fields `going` are
 * of the look that is under way, the others of the last complete one. */
typedef struct long_look {
    uint32_t number; // the record, 0 = none
    pkv_grain grain; // of its tables
    bool is_seen;    // a look was completed: `pages` or `cost` is what it saw
    bool is_going;
    uint64_t seen, began; // pkv.changes when the complete look began, and the one under way
    uint32_t table, row;  // of a parked sequence: the next page
    resident_at at;       // of a swapped one: the next block
    uint32_t generation;  // of that block
    pkv_parked_pages pages, pages_going;
    pkv_swap_cost cost, cost_going;
    int64_t *in_share; // sums of the look under way, as pkv.in_share
} long_look;

/* The result of pkv_parked_look_again. */
typedef struct parked_sight {
    uint32_t parked; // 0 = none, or a page that a parked sequence holds has changed
    pkv_parked_pages pages;
} parked_sight;

typedef struct pkv_table {
    uint32_t n_pages;
    uint32_t kept;       // tokens
    uint32_t slot_pages; // first pages, whose slots have positions in `slots`, not in bases
    uint32_t slots_cap;  // in slots
    uint32_t *slots;     // [slot_pages * page_tokens] logical index of each slot
    uint64_t drop_epoch; // log epoch whose words at drop_at describe this table's last drop
    size_t drop_at;
} pkv_table;

/* A sequence that goes over to a finer grain in portions. Its tables are as before until all pages
 * are split. Pages before the next one are split already: their parts have the references. */
typedef struct pkv_splitting {
    pkv_grain grain;
    uint32_t groups;
    pkv_table *tables; // [groups], pages and bases: what takes the place of the sequence's own
    uint32_t *pages, *bases;
    uint32_t table, page; // of the sequence's tables: the next page to split
    uint64_t checksum;    // terms of the pages of `tables`
} pkv_splitting;

/* A sequence that is closed, or a record that is discarded or moved to the host tier, in portions.
 * Its tables are as before until the last one, but pages that have left are no longer its own: they
 * were given up, are parked, or were copied to the host tier. The tables of one layer leave
 * together, from their ends on. */
typedef struct pkv_leaving {
    bool on;
    pkv_way way;
    uint32_t number; // the record that takes the pages; 0 = they are given up
    /* Tables before `table` have left. Of those of its layer, pages floor .. rows - 1 have not. */
    uint32_t table, rows, floor;
} pkv_leaving;

/* A block that a swapped sequence had published, and that was resident when it began to come back.
 * It has left the cache where its generation differs. */
typedef struct resident_block {
    uint32_t block, generation;
    uint32_t node, at; // the block's node that was found last, and its number among them
} resident_block;

/* A parked or swapped sequence that is opened in portions. Its tables hold what has come: of the
 * tables before `table` all pages, of those of its layer the first ones. The others are still the
 * record's. */
typedef struct pkv_arriving {
    uint32_t number; // the record; 0 = it is not arriving
    uint32_t table, rows;
    bool retakes;          // some pages are resident: its lists have those, and 0 for others
    resident_block *chain; // blocks of its first tokens, whose pages each portion takes back
    uint32_t n_chain;
    uint32_t promised; // cells that it may yet take, which are not available to others
} pkv_arriving;

/* A record for which pages of an image are being taken, table after table. */
typedef struct pkv_adopting {
    bool on;
    uint32_t table;    // those before it have all of their pages
    uint32_t promised; // cells that it will take, which are not available to others
} pkv_adopting;

/* Counts of the pages of a sequence that other tables hold too (shared.c): the last whole one, and
 * one that is under way. */
typedef struct pkv_shared_count {
    uint64_t counted; // cells, as many from each share
    uint64_t came;    // pkv.sharings when the count began
    uint64_t as_of;   // pkv.sharing_changes when it began
    bool on;          // another count is under way, to which the fields below belong
    uint64_t came_going, as_of_going;
    uint32_t table, page; // the next page to be counted
} pkv_shared_count;

typedef struct pkv_seq {
    bool open;
    pkv_grain grain;
    uint32_t groups;          // tables of this grain
    uint32_t layers;          // layer groups whose tables take tokens: the first ones
    uint32_t cap_tables;      // records of tables; more than groups after a finer sequence
    size_t cap_list;          // capacity of `pages` and of `bases`
    bool dropped;             // dropped or compacted: publishes nothing more
    bool sealed;              // the cache was flushed since it was opened: publishes nothing more
    bool contiguous;          // keys are rotated to their slots as positions
    bool unshared;            // its pages hold running sums: takes no block from the cache
    uint32_t length;          // logical
    uint32_t held;            // cells over all tables
    uint32_t row;             // capacity of each list
    uint32_t *pages;          // [groups, row]
    uint32_t *bases;          // [groups, row] logical index of each page's first token
    pkv_table *tables;        // [groups]
    uint64_t weight;          // of the lengths of tables that take tokens, in the checksum
    pkv_splitting *splitting; // NULL = none of its pages is split
    pkv_leaving leaving;
    pkv_arriving arriving;
    pkv_adopting adopting; // in a record
    uint32_t to;           // in a record: the sequence that its pages go to + 1; 0 = none
    bool forked;           // forked since its last append: filling pages may be shared
    pkv_shared_count shared;
    uint64_t salt;
    bool hidden;        // events omit the tokens of its blocks
    uint32_t published; // published blocks
    uint32_t cursor;    // the last published block, 0 = none
    uint32_t cursor_generation;
} pkv_seq;

/* A swapped or parked sequence. Its memory is kept for the next one. */
typedef struct pkv_swap {
    pkv_seq seq; // open while in use
    bool parked;
    uint32_t from; // the sequence that is leaving to it + 1; 0 = none. It has what has left so far
    uint32_t next; // in the list of free records, or of those that are discarded in portions
} pkv_swap;

/* The delta log. Drops and closes cannot fail, so operations that can fail set room for them aside:
 * capacity >= n_words + the words of a close for each open sequence + those of one whole drop for
 * each table that has none in this epoch. A second drop of a table in one epoch is merged into the
 * first. */
typedef struct delta_log {
    uint32_t *words;
    size_t n_words, cap_words;
    size_t reserve; // words for all closes and one drop of every open table
    uint64_t epoch; // counts pkv_take_deltas, from 1
    pkv_move *moves;
    size_t n_moves, cap_moves;
} delta_log;

struct pkv {
    pkv_geometry geometry;
    pkv_geometry at[PKV_HEAD + 1]; // pkv_geometry_at
    uint32_t groups;
    uint32_t n_pages, max_seqs;
    allocator alloc;
    void (*on_block)(void *ctx, const pkv_block_event *event);
    void *on_block_ctx;

    pkv_tree pool;
    uint32_t ring_head,
        ring_tail; // nodes that the prefix cache alone holds: the oldest, the newest

    bool prefix_cache;
    pkv_block *blocks;      // [max_blocks + 1]
    uint32_t *block_tokens; // [max_blocks + 1, page_tokens]
    uint32_t *buckets;      // [bucket_mask + 1]
    uint32_t bucket_mask;
    uint32_t max_blocks, n_blocks;
    uint32_t blocks_touched; // blocks from here on were never used
    uint32_t free_block;
    lost_blocks lost;
    prefix_watch watch;
    parked_sight sight;
    long_look look;
    uint64_t sharings;        // at least the cells that ever came to be held by several tables
    uint64_t sharing_changes; // rises when cells come to be held by several, and cease to be
    uint32_t *shared_sums;    // [max_seqs, shares] pages of counts under way
    uint64_t changes; // rises whenever references of pages change, or a block comes or leaves

    pkv_seq *seqs;                                 // [max_seqs]
    uint32_t gather_at, gather_table, gather_page; // the page that pkv_gather looks at next
    uint64_t checksum;

    uint32_t n_host_pages, host_most;
    bool is_swapping;  // a sequence, or a parked record, is leaving to the host tier
    uint32_t promised; // cells of the pool, to sequences that arrive or are adopted
    pkv_tree host;     // when n_host_pages > 0
    pkv_swap *swaps;   // [cap_swaps], numbered from 1; [0] heads the free list
    uint32_t n_swaps, cap_swaps;
    uint32_t discard_first, discard_last; // the records that are discarded in portions; 0 = none
    uint32_t n_discards, n_host_discards; // how many, and how many of them were swapped
    delta_log log;
    uint32_t *cursors; // [groups] of a walk over a sequence's tables
    int64_t *in_share; // [SUMS_MOST, shares] of a walk over a sequence's tables (shares_even)
    void *scratch;     // for pkv_seq_keep: a list of slots, or bits of pages
    size_t scratch_bytes;

    pkv_counts counts; // PKV_COUNTERS; pkv_count fills the current values
};

static inline pkv_seq *seq_opened(const pkv *p, uint32_t id)
{
    assert(id < p->max_seqs && p->seqs[id].open);
    return &p->seqs[id];
}
/* An open sequence whose tables are about to change, which they may not while they are split, leave
 * or arrive. */
static inline pkv_seq *seq_changing(const pkv *p, uint32_t id)
{
    assert(!seq_opened(p, id)->splitting && !p->seqs[id].leaving.on);
    assert(p->seqs[id].arriving.number == 0);
    return &p->seqs[id];
}
static inline uint32_t pages_for(const pkv *p, uint32_t tokens)
{
    return tokens / p->geometry.page_tokens + (tokens % p->geometry.page_tokens != 0);
}
/* Free slots of a table's last page. */
static inline uint32_t table_room(const pkv *p, const pkv_table *t)
{
    return t->n_pages * p->geometry.page_tokens - t->kept;
}
static inline uint32_t groups_at(const pkv *p, pkv_grain grain)
{
    return grain == PKV_ALL ? 1 : grain == PKV_LAYER ? p->pool.n_layers : p->groups;
}
/* The layer group of a table. */
static inline uint32_t layer_of(const pkv *p, pkv_grain grain, uint32_t table)
{
    return grain == PKV_HEAD ? table / p->pool.n_heads : table;
}
/* The share that the cells of a table of the finest grain come from. */
static inline uint32_t table_share(const pkv_tree *t, uint32_t table)
{
    return head_share(t, table % t->n_heads);
}
static inline uint32_t *seq_pages(const pkv_seq *s, uint32_t table)
{
    return s->pages + (size_t)table * s->row;
}
static inline uint32_t *seq_bases(const pkv_seq *s, uint32_t table)
{
    return s->bases + (size_t)table * s->row;
}
static inline uint32_t *block_tokens(const pkv *p, uint32_t b)
{
    return p->block_tokens + (size_t)b * p->geometry.page_tokens;
}
static inline bool is_of_some_layers(const pkv *p, const pkv_seq *s)
{
    return s->layers < p->pool.n_layers;
}
/* The tables of a sequence that take tokens: its first ones. The others are empty. */
static inline uint32_t tables_filled(const pkv *p, const pkv_seq *s)
{
    return is_of_some_layers(p, s) ? s->groups / p->pool.n_layers * s->layers : s->groups;
}
/* A contiguous sequence has one next position, so its tables keep equally many. */
static inline bool keeps_evenly(const pkv *p, const pkv_seq *s)
{
    bool even = true;
    for (uint32_t g = 1, n = tables_filled(p, s); s->contiguous && g < n; g++)
        even &= s->tables[g].kept == s->tables[0].kept;
    return even;
}
/* Whether other tables or the prefix cache hold cells of the page too. */
static inline bool is_common(const pkv *p, pkv_grain grain, uint32_t page)
{
    return node_is_common(&p->pool, node_of(&p->pool, grain, page));
}
/* Cells of a page of a sequence. */
static inline uint32_t cells_of(const pkv *p, const pkv_seq *s)
{
    return cells_in(&p->pool, s->grain);
}
static inline uint32_t host_used(const pkv *p) { return p->n_host_pages ? tree_used(&p->host) : 0; }
static inline bool keep_bit(const uint64_t *keep, uint32_t i) { return keep[i / 64] >> i % 64 & 1; }

/* ---- pool.c ---- */
/* Whether n pages can be taken for a table of the grain, of free and of cached cells. */
bool tree_has(const pkv_tree *tree, pkv_grain grain, uint32_t table, uint64_t n);
static inline bool pool_has(const pkv *p, pkv_grain grain, uint32_t table, uint64_t n)
{
    return tree_has(&p->pool, grain, table, n);
}
/* Takes a page for a table with one reference; pool_has said that there is one. */
uint32_t pool_take(pkv *p, pkv_grain grain, uint32_t table);
/* The same for at least one and at most n pages, as many as lie in one run; returns how many. */
uint32_t pool_take_some(pkv *p, pkv_grain grain, uint32_t table, uint32_t n, uint32_t *pages);

/* Cells that a walk over a sequence's tables counts. At the finest grain they come from the shares
 * of their heads, so as many must be available as if each share had to give what the one that
 * gives most does: shares_even is the sum of that. */
enum { SUMS_MOST = 5 }; // of one walk
static inline void shares_clear(const pkv *p)
{
    memset(p->in_share, 0, (size_t)SUMS_MOST * p->pool.n_shares * sizeof *p->in_share);
}
static inline void shares_add(const pkv *p, uint32_t sum, uint32_t table, int64_t n)
{
    p->in_share[sum * p->pool.n_shares + table_share(&p->pool, table)] += n;
}
/* Adds to a sum n cells of each share. */
static inline void shares_add_all(const pkv *p, uint32_t sum, int64_t n)
{
    for (uint32_t s = 0; s < p->pool.n_shares; s++) p->in_share[sum * p->pool.n_shares + s] += n;
}
uint64_t shares_even(const pkv *p, uint32_t sum);
/* tree_add_refs in the pool or the host tier, for cells of one layer run or for one run. Cells
 * without a reference become cached when they are hashed, else free. */
void nodes_add_refs(pkv *p, pkv_tree *tree, const uint32_t *nodes, uint32_t n, uint32_t refs,
                    uint32_t parked);
/* Adds a reference to a node, or gives one up. */
static inline void node_ref(pkv *p, pkv_tree *tree, uint32_t node)
{
    nodes_add_refs(p, tree, &node, 1, 1, 0);
}
static inline void node_unref(pkv *p, pkv_tree *tree, uint32_t node)
{
    nodes_add_refs(p, tree, &node, 1, UINT32_MAX, 0);
}
/* tree_split_refs */
void nodes_split(pkv *p, pkv_tree *tree, const uint32_t *runs, uint32_t n, pkv_grain grain,
                 bool parked);
static inline void pool_ref(pkv *p, pkv_grain grain, uint32_t page)
{
    node_ref(p, &p->pool, node_of(&p->pool, grain, page));
}
static inline void pool_unref(pkv *p, pkv_grain grain, uint32_t page)
{
    node_unref(p, &p->pool, node_of(&p->pool, grain, page));
}
/* Fetches what a reference to a page changes: the pages of a long table may lie far apart. It is
 * always inline, because GCC drops calls of a function that only fetches. */
__attribute__((always_inline)) static inline void tree_expect(const pkv_tree *t, pkv_grain grain,
                                                              uint32_t page)
{
    uint32_t node = node_of(t, grain, page);
    __builtin_prefetch(&t->nodes[node].refs, 1);
    __builtin_prefetch(&t->nodes[node].watched, 1); /* perhaps in the next cache line */
    if (node < t->n_cells) node = node_above(t, node);
    __builtin_prefetch(run_at(t, node), 1);
    if (node >= tree_whole_at(t)) return;
    __builtin_prefetch(&t->links[t->n_whole + (size_t)(node - t->n_cells) * t->n_shares], 1);
}
__attribute__((always_inline)) static inline void pool_expect(const pkv *p, pkv_grain grain,
                                                              uint32_t page)
{
    tree_expect(&p->pool, grain, page);
}
enum { POOL_AHEAD = 12 }; // pages that are fetched ahead
/* Cells of a node that only parked sequences hold. */
static inline uint32_t cells_parked(const pkv *p, uint32_t node)
{
    return cells_with(&p->pool, node, COVER_USED) - cells_with(&p->pool, node, COVER_OPEN);
}
/* Enters a node into a block, or takes it out (0). */
void pool_hash(pkv *p, uint32_t node, uint32_t block);

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
/* Takes a block and all its descendants out of the cache; their unreferenced pages become free. */
void prefix_remove(pkv *p, uint32_t b);

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

/* ---- shared.c ---- */
/* The count of a sequence without pages. */
static inline pkv_shared_count shared_none(const pkv *p)
{
    return (pkv_shared_count){.came = p->sharings, .as_of = p->sharing_changes};
}
/* Notes that nodes of the pool, which are cells of one layer run or one run, have got a reference
 * or lost one. */
void shared_note(pkv *p, const uint32_t *nodes, uint32_t n, bool more);
/* Cells of a sequence in pages that other tables hold too, as many from each share: their number,
 * which takes a look at every page, and an upper bound. */
uint64_t shared_count(const pkv *p, const pkv_seq *s);
uint64_t shared_most(const pkv *p, const pkv_seq *s);

/* ---- delta.c ---- */
/* Makes room for this many words and moves besides the reserve, which grows by `more_reserve`
 * words. */
status log_room(pkv *p, size_t words, size_t moves, size_t more_reserve);
/* Words that the log reserves for an open sequence of that many tables, with lists of `row`
 * pages. */
size_t log_reserve_of(uint32_t groups, uint32_t row);
static inline void log_word(pkv *p, uint32_t word)
{
    assert(p->log.n_words < p->log.cap_words);
    p->log.words[p->log.n_words++] = word;
}
void log_move(pkv *p, pkv_move move);
/* Logs a TRIM without pages; returns the index of its count of pages. */
size_t log_trim(pkv *p, uint32_t seq, uint32_t table, uint32_t kept);
/* Logs a drop; keep has bits over the table's n_pages before the drop. */
void log_drop(pkv *p, uint32_t seq, uint32_t table, const uint64_t *keep);

/* ---- refs.c ---- */
/* Pages from .. to - 1 of tables first .. end - 1, which are of one layer. */
typedef struct table_rows {
    uint32_t first, end, from, to;
} table_rows;
/* The end of the rows in a table. */
static inline uint32_t rows_end(const pkv_seq *s, table_rows rows, uint32_t table)
{
    return s->tables[table].n_pages < rows.to ? s->tables[table].n_pages : rows.to;
}
/* The first table behind those of the layer of a table. */
static inline uint32_t layer_end(const pkv_tree *t, pkv_grain grain, uint32_t table)
{
    return grain == PKV_HEAD ? (table / t->n_heads + 1) * t->n_heads : table + 1;
}
/* nodes_add_refs for every page. The last pages go first, so that a block is reclaimed before its
 * parent. */
void rows_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, uint32_t refs,
                   uint32_t parked);
/* The same for all pages of a sequence. */
void seq_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, uint32_t refs, uint32_t parked);

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

/* ---- image.c ---- */
/* Takes no more pages for the record. */
void seq_stop_adopting(pkv *p, pkv_seq *s);

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

/* ---- discard.c ---- */
/* Discards a record in portions, except what a sequence has taken over: the tables before the layer
 * of `table`, and the first `row` pages of that layer's tables. */
void record_discard_rest(pkv *p, uint32_t number, uint32_t table, uint32_t row);
/* Whether the record is being moved to the host tier: the pages that have left it are there. */
static inline bool record_moves(const pkv_swap *record)
{
    return record->seq.leaving.on && record->seq.leaving.way == PKV_SWAP_OUT;
}

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
/* Gives up the pages behind those that `kept` tokens take; the log has room for a TRIM. */
void table_cut(pkv *p, uint32_t seq, uint32_t table, uint32_t kept);
/* The logical index of a slot. */
uint32_t table_position(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t slot);

/* ---- map.c ---- */
/* The grid of a picture of `length` tokens (pkv_map). */
typedef struct pkv_grid {
    uint32_t n_rows, n_columns, row_layers, column_tokens;
    uint32_t row_groups; // layer groups of a row
} pkv_grid;
pkv_grid pkv_grid_of(const pkv *p, uint32_t length);

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

/* ---- records.c ---- */
/* The number of a free record, 0 when memory is out; record_take marks it used. */
uint32_t record_find(pkv *p);
/* The number of a free record whose lists have room for a copy of the sequence, 0 when memory is
 * out. */
uint32_t record_for(pkv *p, const pkv_seq *s);
void record_take(pkv *p, uint32_t number, bool parked);
void record_free(pkv *p, uint32_t number);
void records_destroy(pkv *p);

#endif
