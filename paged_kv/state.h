/* paged_kv, private: the state that its files share.
 *
 *   pages    one record each; lists run through them by number, 0 ends a list (page 0 is never
 *            handed out)
 *   blocks   the prefix cache: a tree of blocks under block 0, and a hash table over it
 *   seqs     for each sequence one page list, one base list and one record for each table
 *   swaps    the same for each sequence without a number: a swapped one has pages of the host tier,
 *            a parked one pages of the pool
 *   log      words and moves since the last pkv_take_deltas */
#ifndef PAGED_KV_STATE_H
#define PAGED_KV_STATE_H

#include "paged_kv/delta.h"
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
    bool silent;              // distrusted, or adopted as not to publish: publishes nothing more
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

#endif
