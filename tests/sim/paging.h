/* paging: the reference model that paging_test.c compares paged_kv with.
 *
 * What     random operations on sequences of every grain; for each slot of each cell a hash of all
 *          that its K and V depend on; sequences and hashed blocks as simple lists. The model knows
 *          cells and KV groups alone: a table of a coarser grain is the same operation on several
 *          groups, and a page of it several cells.
 * Owner    a sim owns everything in it.
 * Threads  one. */
#ifndef TESTS_SIM_PAGING_H
#define TESTS_SIM_PAGING_H

#include "paged_kv/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    LEN_MAX = 400,
    SEQS = 7,
    GROUPS_MAX = 8,
    PAGES_MAX = 248,
    PAGE_TOKENS_MAX = 48,
    PAGES_OF_TABLE = LEN_MAX / 16 + 1,
    CELLS_OF_SEQ = PAGES_OF_TABLE * GROUPS_MAX,
    PORTIONS_MOST = 2,
    SWAPS = 5,
    PARKS = 4,
    HOST_MAX = 128,
};

/* ---- an allocator that counts, and fails on request ------------------------------------------ */

typedef struct test_heap {
    long blocks;
    long calls;
    long fail_at; // the call that fails, -1 = none
} test_heap;

void *heap_resize(void *ctx, void *ptr, size_t size);

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct model_seq {
    bool open, dropped;
    bool in_portions; // it is closed or opened in portions, of which some are left
    bool repositions; // all its selections are contiguous ones
    bool contiguous;  // it is repositioned, and has made a contiguous selection
    bool unshared;
    bool sealed;         // the sequence was open when the cache was flushed
    pkv_grain splitting; // some of its pages are split to this grain; PKV_ALL = none
    bool compacted[GROUPS_MAX];
    uint32_t published;        // tokens published before any drop
    uint32_t hits, hit_to;     // tokens that its blocks in the cache gave it, and may give it
    bool arriving;             // swapped in or unshared since the last batch: pages await copies
    uint32_t groups;           // the first ones, in which its tokens are
    uint32_t length, computed; // tokens; those from `computed` on are computed in the next batch
    uint64_t salt;
    uint64_t key; // stands for its published tokens in pkv_swap_in_cost_again
    uint32_t document;
    uint32_t tokens[LEN_MAX];
    uint64_t context[LEN_MAX]; // per token: hash of all that its K and V depend on
    uint64_t tail;             // context of the last token
    uint32_t n_kept[GROUPS_MAX];
    uint16_t kept[GROUPS_MAX][LEN_MAX]; // positions
} model_seq;

typedef struct model_block {
    bool live;
    uint64_t hash, parent;
    uint32_t index;
    uint32_t cells[GROUPS_MAX];
    pkv_grain grain;
    uint64_t context[PAGE_TOKENS_MAX];
} model_block;

/* Kinds of operations done, counted so that a run can show that none of them never happened. */
typedef enum done_kind {
    DONE_OPEN,
    DONE_OPEN_SOME, // with tokens in tables of some layers alone
    DONE_APPEND,
    DONE_CUT,
    DONE_PUBLISH,
    DONE_DROP,
    DONE_COMPACT,
    DONE_KEEP_PAGES,
    DONE_KEEP_FILLED,
    DONE_KEEP_COPIED, // holes filled in copies of shared pages
    DONE_KEEP_GATHERED,
    DONE_KEEP_CONTIGUOUS,
    DONE_UNSHARE,
    DONE_FORK,
    DONE_SPLIT,
    DONE_SPLIT_SOME,  // and some pages were left
    DONE_LEAVE_SOME,  // closed, parked or swapped out in portions
    DONE_ARRIVE_SOME, // unparked or swapped in in portions
    DONE_BROKEN_OFF,  // pages given up after some had left
    DONE_BETWEEN,     // any operation on others between two portions
    DONE_TOGETHER,    // that, while two sequences or more change in portions
    DONE_FINER,       // tables became finer because the pool lacked runs
    DONE_CLOSE,
    DONE_FLUSH,
    DONE_SWAP_OUT,
    DONE_SWAP_IN,
    DONE_DISCARD,
    DONE_DISCARD_SOME,    // in portions
    DONE_PARKED_OUT_SOME, // parked, then swapped out in portions
    DONE_PARK,
    DONE_FORK_PARKED,
    DONE_UNPARK,
    DONE_PARKED_OUT,
    DONE_PARKED_DISCARD,
    DONE_HIT,
    DONE_HIT_MIXED, // on blocks of several grains
    DONE_HIT_SOME,  // in portions, of which this was not the first
    DONE_HIT_AGAIN,
    DONE_COST_AGAIN,
    DONE_SIGHT_AGAIN,
    DONE_LOOK_SOME,
    DONE_COUNT_SHARED,
    DONE_REMOVED, // blocks removed
    DONE_NO_PAGES,
    DONE_NO_RUNS, // refused although there were cells
    DONE_NO_ROOM,
    DONE_RETAKEN,
    DONE_ADOPT,
    DONE_ADOPT_SOME,   // in portions
    DONE_ADOPT_FINER,  // whose tables became finer between two of them
    DONE_ADOPT_BROKEN, // given up between two portions
    N_DONE,
} done_kind;

typedef struct model_parked {
    uint32_t number; // 0 = none
    uint32_t held;
    pkv_grain grain;
    uint32_t n_pages[GROUPS_MAX];
    uint32_t cells[GROUPS_MAX][PAGES_OF_TABLE];
    model_seq seq;
} model_parked;

/* A slot of a cell: the hash of what its K and V depend on, and by how many positions K is
 * rotated. */
typedef struct model_slot {
    uint64_t value;
    int64_t rotation;
} model_slot;

/* A copy of a KV group's cells made by applying delta words blindly, as a GPU does. */
typedef struct model_copy {
    uint32_t sent, cells[PAGES_OF_TABLE];
} model_copy;

typedef struct sim {
    uint64_t seed;
    long op; // number of the operation, in messages
    rng random;
    pkv_geometry geometry;
    uint32_t groups, heads, page_tokens, n_pages; // heads: KV groups of a layer group
    test_heap heap;
    pkv *kv;
    pkv_mirror *mirror;
    model_seq seqs[SEQS];
    struct {
        uint32_t number; // 0 = none
        uint32_t held;
        pkv_grain grain; // or finer
        model_seq seq;
    } swapped[SWAPS];
    model_parked parked[PARKS];
    model_copy copies[SEQS][GROUPS_MAX];
    uint32_t n_host, host_used;
    model_slot host[HOST_MAX][PAGE_TOKENS_MAX];
    model_block blocks[PAGES_MAX];
    uint32_t current; // sequence
    uint32_t batch;   // operations between two pkv_take_deltas, on average
    struct {          // what is asked again and again
        uint64_t key, salt;
        uint32_t document, n;     // of pkv_lookup_again
        uint32_t swapped, parked; // index of pkv_swap_in_cost_again, pkv_parked_look_again
    } again;
    uint64_t n_keys;     // given to again.key and to sequences
    uint32_t publishing; // the sequence whose pkv_seq_publish runs
    uint32_t portions;   // how many sequences change in portions
    model_slot memory[PAGES_MAX][PAGE_TOKENS_MAX];
    uint64_t taint;
    uint64_t slots_moved, pages_dropped;
    uint32_t grains; // sum over open sequences, after the last operation
    long done[N_DONE];
    long no_memory;
} sim;

#define CHECK(s, condition)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("seed %llu, operation %ld, line %d: %s", (unsigned long long)(s)->seed,       \
                     (s)->op, __LINE__, #condition);                                               \
        }                                                                                          \
    } while (0)

static inline uint64_t value_of(uint64_t context, uint32_t group)
{
    return hash_mix64(context + group);
}
static inline uint64_t next_context(uint64_t context, uint32_t token)
{
    return hash_mix64(context * 3 + token + 1);
}
static inline uint64_t first_context(uint64_t salt) { return hash_mix64(salt ^ 0x51a7); }

/* Documents share prefixes: document d equals document d / 2 up to a point. */
static inline uint32_t document_token(uint32_t document, uint32_t position)
{
    while (document > 1 && position < 24 * document) document /= 2;
    return (uint32_t)hash_mix64((uint64_t)document << 32 | position) % 50;
}

/* pkv_options.on_block; ctx is the sim. */
void on_block(void *ctx, const pkv_block_event *event);
/* ---- tables and cells ------------------------------------------------------------------------ */

/* The number of the table of a KV group, and how many KV groups share that table. */
uint32_t table_of(const sim *s, pkv_grain grain, uint32_t group);
uint32_t groups_in(const sim *s, pkv_grain grain);
/* The first KV group of a sequence's table. */
uint32_t first_group(const sim *s, pkv_grain grain, uint32_t table);
uint32_t n_tables(const sim *s, pkv_grain grain);
/* The table that a KV group reads, with the offset to its cells. */
pkv_table_view view_of(const sim *s, uint32_t id, uint32_t group);
static inline uint32_t cell_at(const pkv_table_view *v, uint32_t i)
{
    return v->pages[i] + v->offset;
}
uint32_t grains_of(const sim *s);
/* Pages of a grain that the pool can give: runs of which no table holds a cell. */
uint32_t model_runs(const sim *s, pkv_grain grain);

/* The prefix hit that the model expects for these tokens. */
pkv_hit model_hit(sim *s, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt,
                  bool *is_mixed);
uint32_t model_append_cost(const sim *s, uint32_t id, uint32_t n);
/* Number of tables that hold the cell, including those of parked sequences. */
uint32_t model_holders(const sim *s, uint32_t group, uint32_t cell);
/* True when only parked sequences hold the cell. */
bool model_is_alone(const sim *s, uint32_t group, uint32_t cell);
/* True when several sequences hold a cell of this page of a sequence's table. */
bool model_is_shared(const sim *s, uint32_t id, uint32_t group, uint32_t index);
/* True when that is so, or a cell of the page is of a cached block. */
bool model_is_common(const sim *s, uint32_t id, uint32_t group, uint32_t index);
/* The cost that the model expects for swapping in the `held` cells of m at a grain. */
pkv_swap_cost model_swap_cost(const sim *s, const model_seq *m, pkv_grain grain, uint32_t held);

/* CHECK, but not while other sequences change in portions: which of their pages are held, and what
 * has left, is not modelled. */
#define CHECK_WHOLE(s, condition) CHECK(s, (s)->portions > 0 || (condition))

/* True when the operation succeeded. Checks that it was refused for lack of pages exactly when
 * pages were short, and that a refusal changed nothing, except that tables may have become finer
 * before memory ran out. */
bool went(sim *s, status result, bool enough_pages, uint64_t checksum_before);
/* Checks what holds after every operation. */
void check_always(sim *s);
/* One backend step: deltas, moves, compute. */
void take(sim *s);
/* Operations on an open sequence; each may do nothing. */
void op_append(sim *s, uint32_t id);
void op_split(sim *s, uint32_t id);
void op_publish(sim *s, uint32_t id);
/* Between two portions of a sequence: checks, and operations on others. */
void between(sim *s);
/* Any operation on sequences that do not change in portions. */
void run_operation(sim *s);

/* ---- paging_hit.c: what the prefix cache has; each call may do nothing ----------------------- */

void op_open(sim *s, uint32_t id);
void op_hit_more(sim *s, uint32_t id);

/* ---- paging_keep.c: selections and drops; each call may do nothing -------------------------- */

/* Marks that later contexts of m depend on a drop. */
void taint(sim *s, model_seq *m);
void op_drop(sim *s, uint32_t id);
void op_compact(sim *s, uint32_t id);
void op_keep(sim *s, uint32_t id);
void op_unshare(sim *s, uint32_t id);

/* ---- paging_away.c: sequences that are parked, swapped out and resumed ----------------------- */

/* Closes an open sequence in that way, at once or in portions. False where it was refused, or given
 * up between two portions: then it is closed too. */
bool leave(sim *s, uint32_t id, pkv_way way, bool room, uint32_t *number);
/* Gives up what is being discarded, at most so many pages at a time. */
void discard_all(sim *s);
/* Empties the prefix cache. */
void flush(sim *s);
void op_swap(sim *s, uint32_t id);
void op_park(sim *s, uint32_t id);
/* Discards all parked sequences. */
void away_end(sim *s);

/* ---- paging_hand.c --------------------------------------------------------------------------- */

/* Adopts the image of a parked sequence; may do nothing. */
void op_hand(sim *s);

#endif
