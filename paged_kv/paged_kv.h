/* paged_kv: who holds which page of the KV cache.
 *
 * What     a pool of pages, page tables of each sequence as fine as it needs, a prefix cache of
 *          hashed blocks, a host tier of pages in host memory for preempted sequences, and a
 *          delta log that keeps mirrors of the tables up to date. Page numbers only: the bytes
 *          behind them belong to a backend. No clock, no lock, no I/O.
 * Headers  geometry.h: groups, grains, shares and cells, which this header includes; beside it
 *          log.h: the delta log and mirrors; map.h: pictures of a sequence's tables.
 * Owner    a pkv owns all its state; a pkv_mirror is a backend's copy of the tables, fed by deltas.
 * Threads  one thread for each pkv or mirror.
 * Units    tokens, pages, slots (a token's place in a table: page index * page_tokens + offset).
 *          Numbers of pages count cells, whatever the grain of the tables that hold them; only the
 *          `most` of a portion counts pages of the sequence's tables.
 * Errors   STATUS_NO_PAGES is a state, not an error, and leaves everything as it was. Misuse
 *          asserts.
 *
 * Words: a *KV group* is a run of layers x a run of KV heads; group g = layer_group * head_groups +
 * head_group. A *cell* is a page of one KV group. A sequence's *grain* says whether its tables are
 * one for all groups, one for each layer group or one for each group, and a page of such a table is
 * a run of as many cells. A *block* is page_tokens consecutive tokens from a multiple of
 * page_tokens on, across all groups. A *share* is some of the head groups, with cells of their own
 * for the rank that stores them. *Used* cells are referenced, *cached* ones are unreferenced
 * but hashed, and free + used + cached == n_pages - 1 (cell 0 is never handed out). A *parked*
 * sequence keeps its pages but has no number, a *swapped* one has its pages in the host tier. Long
 * sequences are opened, closed, swapped and looked at in *portions*: some pages with each call. */
#ifndef PAGED_KV_PAGED_KV_H
#define PAGED_KV_PAGED_KV_H

#include "paged_kv/geometry.h"

/* ---- the pool with its tables and cache ------------------------------------------------------ */

typedef struct pkv pkv;

/* A change of the prefix cache, for routers to subscribe to: a block entered it (stored), left it
 * (removed), or all blocks left at once (cleared). */
typedef struct pkv_block_event {
    enum { PKV_BLOCK_STORED, PKV_BLOCK_REMOVED, PKV_CLEARED } kind;
    uint64_t hash;   // 0 when cleared
    uint64_t parent; // 0 for a first block
    /* Stored only: [page_tokens], valid during the call; NULL when a hidden sequence published the
     * block. */
    const uint32_t *tokens;
} pkv_block_event;

typedef struct pkv_options {
    pkv_geometry geometry;
    uint32_t n_pages;  // page 0 included, at most 2^30
    uint32_t max_seqs; // sequences are numbered 0 .. max_seqs - 1 by the caller
    bool prefix_cache;
    uint32_t n_host_pages;  // at most 2^30
    const allocator *alloc; // NULL = default
    /* Blocks that pkv_take_lost tells of at most; 0 = they have no keys, and none is told of. */
    uint32_t lost_most;
    void (*on_block)(void *ctx, const pkv_block_event *event); // NULL = no events
    void *on_block_ctx;
} pkv_options;

status pkv_create(const pkv_options *options, pkv **out);
void pkv_destroy(pkv *p);
const pkv_geometry *pkv_get_geometry(const pkv *p);

/* Everything that a pool counts from its creation on, X(field, metric, help): the fields of
 * pkv_counts, the sums of pkv_add_counters and the rows of /metrics, where `metric` is the name
 * without its prefix, or NULL for a counter without a row of its own. */
#define PKV_COUNTERS(X)                                                                            \
    X(queried_tokens, "prefix_cache_queries_total",                                                \
      "Prompt tokens looked up in the prefix cache.")                                              \
    X(hit_tokens, "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")           \
    X(pages_dropped, NULL, "References to cells given up by retention.")                           \
    X(slots_moved, NULL,                                                                           \
      "K/V slots copied on write, by compaction and by gathering, over all groups.")               \
    X(pages_gathered, NULL, "Pages moved out of broken runs.")                                     \
    X(pages_swapped_out, NULL, "Pages copied to the host tier.")                                   \
    X(pages_swapped_in, NULL, "Pages copied back from the host tier.")                             \
    X(pages_retaken, NULL, "Pages still resident when their swapped sequence came back.")          \
    X(blocks_untold, "disk_cache_blocks_untold_total",                                             \
      "Blocks that left memory and not to disk, because too many left in one step.")

#define PKV_COUNTER_FIELD(field, metric, help) uint64_t field;
typedef struct pkv_counts {
    /* Current values. */
    uint32_t n_pages, free, used, cached; // free + used + cached == n_pages - 1
    uint32_t n_host_pages, host_used;     // the host tier
    /* Since pkv_create. */
    PKV_COUNTERS(PKV_COUNTER_FIELD)
} pkv_counts;
#undef PKV_COUNTER_FIELD

pkv_counts pkv_count(const pkv *p);
/* Adds every counter of `more` to `sum`; current values stay. */
void pkv_add_counters(pkv_counts *sum, const pkv_counts *more);
/* Pages available to new work: free + cached, as many of each share as the one with least has. */
uint32_t pkv_available(const pkv *p);

/* ---- prefix cache ---------------------------------------------------------------------------- */

typedef struct pkv_hit {
    uint32_t tokens;       // a multiple of page_tokens
    uint32_t cached_pages; // unreferenced pages of the hit: taking the hit makes them used
    uint32_t parked_pages; // pages of the hit that only parked sequences reference
} pkv_hit;

/* The longest resident chain of blocks equal to tokens[0 .. max_tokens) under this salt (a hash
 * walk with a comparison of tokens). A block counts while all its pages are resident. */
pkv_hit pkv_lookup(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt);
/* A bound of pkv_lookup that looks at no page: every one is counted as unreferenced. */
pkv_hit pkv_lookup_most(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt);
/* As pkv_lookup, for tokens that are looked up again and again because they wait for pages. `key`
 * (not 0) stands for tokens and salt: the caller gives it to no others. The pool remembers the
 * chain of the last key and keeps its numbers up to date, so a call costs what the chain has grown
 * by since the one before. The first call of a key costs as much as pkv_lookup. */
pkv_hit pkv_lookup_again(pkv *p, uint64_t key, const uint32_t *tokens, uint32_t max_tokens,
                         uint64_t salt);
/* Empties the prefix cache: no later hit finds what was computed before. Unreferenced pages are
 * free at once, referenced ones when their last sequence closes. Sequences that are open now keep
 * their tables but publish nothing more, and neither do their forks, because they began before the
 * flush. Emits one event, PKV_CLEARED. */
void pkv_flush(pkv *p);
/* Takes the chain of blocks of tokens[0 .. n) under this salt out of the cache, from its first
 * block on, with every block behind it, of whichever tokens: K and V of some of these are wrong,
 * and it is not known which. pkv_take_lost tells of none of them, nor of others that have left
 * since its last call. Sequences that have published or hit one of them keep their tables but
 * publish nothing more, and neither do their forks. Emits PKV_BLOCK_REMOVED for each block. */
void pkv_distrust(pkv *p, const uint32_t *tokens, uint32_t n, uint64_t salt);

/* ---- blocks that leave memory ---------------------------------------------------------------- */

/* Names a block beyond this pool and its process: a digest of the salt and of all tokens up to its
 * end. Equal keys mean equal tokens and salts. */
typedef struct pkv_key {
    uint8_t bytes[16];
} pkv_key;

/* The key of the block of tokens[0 .. page_tokens) behind the block with the key *key, which it
 * replaces. A first block is behind pkv_key_root. */
void pkv_key_next(const pkv *p, pkv_key *key, const uint32_t *tokens);
pkv_key pkv_key_root(uint64_t salt);

/* Blocks that left the prefix cache because their pages were wanted: the last ones, in the order in
 * which they left, children before their parent. */
typedef struct pkv_lost {
    const pkv_key *keys;   // [n]
    const uint32_t *cells; // [n, pkv_groups]: the cells of each block, by KV group
    uint32_t n;
} pkv_lost;

/* The blocks that were lost since the last call; valid until the pool changes. Their cells keep
 * their K and V until a backend makes the moves of the next deltas and computes rows. */
pkv_lost pkv_take_lost(pkv *p);
/* Blocks that are in the prefix cache and stay there, some with each call, children before their
 * parent: all of them, if the cache does not change and *cursor was 0 before the first call. n is 0
 * behind the last. Where lost_most is 0, none is told of. */
pkv_lost pkv_tell_cached(pkv *p, uint32_t *cursor);
/* The key of the last block that an open sequence has published or hit, or the root. */
pkv_key pkv_seq_key(const pkv *p, uint32_t seq);
/* The cells, by KV group, of block `index` of an open sequence that has dropped nothing. */
void pkv_seq_cells(const pkv *p, uint32_t seq, uint32_t index, uint32_t *cells);

/* ---- sequences ------------------------------------------------------------------------------- */

/* Opens sequence `seq` (closed before) with tables of `grain`, or finer where blocks of the hit
 * are, and with the longest hit of tokens[0 .. max_hit); *hit_tokens is its logical length. Tables
 * become finer by pkv_seq_split, and by themselves where pages are wanted and the pool or the host
 * tier has cells but no runs. expect_tokens sizes the tables' lists, so that appending up to that
 * length allocates nothing. */
status pkv_seq_open(pkv *p, uint32_t seq, pkv_grain grain, const uint32_t *tokens, uint32_t max_hit,
                    uint64_t salt, uint32_t expect_tokens, uint32_t *hit_tokens);
/* pkv_seq_open by a portion of the hit: at most `most` pages, though at least one block. While
 * nothing else has changed the sequence, pkv_seq_hit_more takes another, *hit_tokens tokens: 0
 * where memory is out, or where the next block is not cached or has finer pages than the tables.
 * Between two portions the sequence has a shorter hit. STATUS_NO_MEMORY changes nothing. */
status pkv_seq_open_some(pkv *p, uint32_t seq, pkv_grain grain, const uint32_t *tokens,
                         uint32_t max_hit, uint64_t salt, uint32_t expect_tokens, uint32_t most,
                         uint32_t *hit_tokens);
status pkv_seq_hit_more(pkv *p, uint32_t seq, const uint32_t *tokens, uint32_t max_hit,
                        uint32_t most, uint32_t *hit_tokens);
/* Cuts a sequence's tables to `grain`, or finer where the pool cannot give `fresh` more cells in
 * runs of that grain; tables that are as fine already stay. The cells stay where they are, so
 * nothing is copied. STATUS_NO_MEMORY changes nothing. */
status pkv_seq_split(pkv *p, uint32_t seq, pkv_grain grain, uint32_t fresh);
/* Splits as pkv_seq_split does, in portions: each call splits at most *pages (at least 1) more
 * pages of the tables and sets *pages to how many. Until all are split the sequence reads as before
 * and may only be split, or closed, which splits the rest. STATUS_NO_MEMORY changes nothing. */
status pkv_seq_split_some(pkv *p, uint32_t seq, pkv_grain grain, uint32_t *pages);
pkv_grain pkv_seq_grain(const pkv *p, uint32_t seq);
/* The geometry whose groups are the sequence's tables, until it is split. */
const pkv_geometry *pkv_seq_geometry(const pkv *p, uint32_t seq);
/* From now on events of an open sequence's blocks carry no tokens; nor do those of its forks and of
 * sequences that continue its parked or swapped state. */
void pkv_seq_hide(pkv *p, uint32_t seq);
/* From now on tokens of an open sequence, which has none yet, take slots in the tables of its first
 * n_layers layers alone (pkv_filled_layers); the other tables stay empty, so its grain is not
 * PKV_ALL unless that is all of them. It publishes nothing, because a block has cells of all
 * layers. The same holds for its forks and for what continues its parked or swapped state. */
void pkv_seq_fill_layers(pkv *p, uint32_t seq, uint32_t n_layers);
/* Makes room for n more tokens in every table that takes tokens. Reclaims cached pages, least
 * recently used and deepest first. A shared last page that is not full is replaced by a fresh one
 * and its slots are moved (copy on write). All or nothing: STATUS_NO_PAGES changes nothing. */
status pkv_seq_append(pkv *p, uint32_t seq, uint32_t n);
/* The fresh pages that pkv_seq_append(seq, n) would take. */
uint32_t pkv_append_cost(const pkv *p, uint32_t seq, uint32_t n);
/* Takes back the last n appended tokens. None of them may have been published, selected among, or
 * appended before a fork. The sequence is then as before. STATUS_NO_MEMORY changes nothing. */
status pkv_seq_cut(pkv *p, uint32_t seq, uint32_t n);
/* K and V of tokens[0 .. n) are computed and resident: hashes the blocks that became full. Nothing
 * after the sequence's first drop or compaction, after a flush, or without a prefix cache. */
void pkv_seq_publish(pkv *p, uint32_t seq, const uint32_t *tokens, uint32_t n);
/* Whether pkv_seq_publish may enter blocks of the sequence: false also where it began before a
 * flush, holds distrusted pages, or was adopted as not to publish. */
bool pkv_seq_publishes(const pkv *p, uint32_t seq);
/* Drops the pages of one table whose bit in `keep` (bit i = page index i) is 0. Copies nothing. */
void pkv_seq_drop(pkv *p, uint32_t seq, uint32_t table, const uint64_t *keep);
/* Gathers the slots keep[0 .. n_keep) (ascending) of one table into fresh pages: the slow path, for
 * methods that keep single tokens. All or nothing, as pkv_seq_append. */
status pkv_seq_compact(pkv *p, uint32_t seq, uint32_t table, const uint32_t *keep, uint32_t n_keep);
/* Applies a selection of retention to one table: gives up the slots whose bit in `keep` (bit i =
 * slot i) is 0, by the cheapest means. The means depends on the bits alone, not on which pages are
 * shared, so that a replay ends in the same order of slots:
 *   - whole pages only: dropped, no byte moves (pkv_seq_drop);
 *   - at most page_tokens slots: the table's last slots move into the holes, in ascending order of
 *     both; pages that this or the next token writes are first replaced by copies where they are
 *     shared or hashed;
 *   - else the kept slots are gathered into fresh pages (pkv_seq_compact).
 * With `contiguous` the slots are always gathered, and every key moved from slot a to slot b is
 * rotated by b - a positions, so that a table's RoPE positions are its slot numbers. A sequence is
 * contiguous in all its selections or in none; if it is, its tables must keep equally many tokens.
 * K and V of all its tokens must have been computed in earlier steps. All or nothing:
 * STATUS_NO_PAGES changes nothing; it takes at most ceil(kept / page_tokens) fresh pages before it
 * gives any up. At a coarser grain than PKV_HEAD it is also the answer where cells are available
 * but not in runs. */
status pkv_seq_keep(pkv *p, uint32_t seq, uint32_t table, const uint64_t *keep, bool contiguous);
/* Replaces every shared or hashed page by a copy of the sequence's own, because running sums, which
 * lie beside K and V, cannot be shared; pkv_swap_in takes no cached block in their place. Pages
 * published or forked later are shared again. All or nothing, as pkv_seq_append. */
status pkv_seq_unshare(pkv *p, uint32_t seq);
/* Makes `child` (closed before) a copy of `parent` that shares every page. */
status pkv_seq_fork(pkv *p, uint32_t parent, uint32_t child, uint32_t expect_tokens);
/* Where most of what is available lies in broken runs, moves pages of open sequences, a bounded
 * number, out of their runs into fuller ones: called again and again it makes runs whole. It moves
 * no shared page and none of a sequence at PKV_ALL, and evicts no cached one. Slots and positions
 * stay. K and V must have been computed in earlier steps. STATUS_NO_MEMORY changes nothing. */
status pkv_gather(pkv *p);
/* Closes a sequence: gives up every reference, a block's before its parent's. */
void pkv_seq_close(pkv *p, uint32_t seq);

/* The fate of the pages of a sequence that is closed: they are given up (pkv_seq_close), stay where
 * they are with a parked sequence, or are copied to the host tier (pkv_seq_swap_out). */
typedef enum pkv_way { PKV_GIVE_UP, PKV_PARK, PKV_SWAP_OUT } pkv_way;

/* Closes a sequence in portions, because a long one with a table for each head has millions of
 * pages. Each call takes away at most `most` pages, though at least one of each table of a layer,
 * and they come free with it; with `most` UINT32_MAX one call takes all. The last call closes the
 * sequence: the way PKV_GIVE_UP as pkv_seq_close does, PKV_SWAP_OUT as pkv_seq_swap_out. *number
 * then names what was parked or swapped, and is never 0. Between two calls the sequence's tables
 * are as before, but may only be read, and the next call has the same way, or is pkv_seq_close,
 * which gives up all pages, also those that were taken away. K and V of a sequence that is parked
 * or swapped must have been computed in earlier steps. While one sequence leaves to the host tier,
 * no other can: STATUS_NO_PAGES. Each call may fail with STATUS_NO_MEMORY, which changes nothing,
 * and the first one also as the function of its way does. */
status pkv_seq_leave_some(pkv *p, uint32_t seq, pkv_way way, uint32_t most, uint32_t *number);

bool pkv_seq_is_open(const pkv *p, uint32_t seq);
uint32_t pkv_seq_length(const pkv *p, uint32_t seq); /* logical length: tokens appended so far */
/* RoPE position of the next token: the logical length, or once contiguous the kept tokens. */
uint32_t pkv_seq_next_position(const pkv *p, uint32_t seq);
bool pkv_seq_has_dropped(const pkv *p, uint32_t seq);
uint32_t pkv_seq_pages_held(const pkv *p, uint32_t seq); /* over all tables, shared pages too */
/* The cells that copies of all its pages need, as many from each share. */
uint64_t pkv_seq_copy_cost(const pkv *p, uint32_t seq);
/* The size of what the tables of a sequence keep: tokens x layers x KV heads. A whole number, so
 * that sums over sequences are exact; pkv_full_tokens turns one into tokens. */
uint64_t pkv_seq_kept(const pkv *p, uint32_t seq);
static inline double pkv_full_tokens(const pkv_geometry *g, uint64_t kept)
{
    return (double)kept / ((double)g->n_layers * g->n_kv_heads);
}

/* One table, read only; valid until the sequence changes. */
typedef struct pkv_table_view {
    const uint32_t *pages; // [n_pages] in order
    uint32_t n_pages;
    uint32_t kept_tokens; // only the last page may be short
    /* From a page to the cell of the KV group that was asked for; 0 in views of pkv_seq_table. */
    uint32_t offset;
} pkv_table_view;

pkv_table_view pkv_seq_table(const pkv *p, uint32_t seq, uint32_t table);
/* The logical index of the token in a slot; ascending until pkv_seq_keep fills holes. */
uint32_t pkv_seq_position(const pkv *p, uint32_t seq, uint32_t table, uint32_t slot);

/* ---- parked: a sequence without a number ----------------------------------------------------- */

/* A sequence that is parked (pkv_seq_leave_some, PKV_PARK) keeps its pages where they are but gives
 * up its sequence number, as an idle session does. No page moves. */

/* Parks a copy that shares every page: the sequence stays open. K and V of all its tokens must have
 * been computed in earlier steps. *parked is never 0. STATUS_NO_MEMORY changes nothing. */
status pkv_seq_fork_parked(pkv *p, uint32_t seq, uint32_t *parked);
/* Turns a parked sequence into open sequence `seq` (closed before), in portions as large as those
 * of pkv_seq_leave_some: the first one opens the sequence, which is *arriving* until pkv_seq_arrive
 * has added the last. Its tables are incomplete then, but pkv_seq_table, pkv_seq_position and
 * pkv_seq_kept show those that it will have, on the pages that they come from. It may only be
 * closed, at once or by PKV_GIVE_UP in portions, where pkv_discard_some gives up what has not come.
 * Opening it is all or nothing: STATUS_NO_MEMORY changes nothing. */
status pkv_unpark_some(pkv *p, uint32_t parked, uint32_t seq, uint32_t expect_tokens,
                       uint32_t most);
/* STATUS_NO_MEMORY, and STATUS_NO_PAGES where others took the pages that a swapped sequence was to
 * get, change nothing: it may be tried again. */
status pkv_seq_arrive(pkv *p, uint32_t seq, uint32_t most);
bool pkv_seq_is_arriving(const pkv *p, uint32_t seq);
/* Between the portions of pkv_seq_leave_some. */
bool pkv_seq_is_leaving(const pkv *p, uint32_t seq);
/* Discards a parked or swapped sequence in portions: its number is gone, and its pages are given up
 * by calls of pkv_discard_some, in the order in which sequences were discarded: at most `most`
 * (at least 1) pages, though at least a page of each table of a layer. Returns how many, the tables
 * of a layer counted as if all were as long as the longest. */
void pkv_discard_later(pkv *p, uint32_t number);
uint32_t pkv_discard_some(pkv *p, uint32_t most);
/* Parked sequences, and swapped ones, of which pages are left to be given up. */
uint32_t pkv_discards(const pkv *p);
uint32_t pkv_host_discards(const pkv *p);
/* Swaps a parked sequence out to the host tier, as pkv_seq_swap_out does an open one, in portions
 * of at most `most` (at least 1) pages: *swap is 0 as long as pages are left. Until the last one
 * the sequence stays parked under its number, by which the next portion is asked for, and it may
 * not be opened, looked at or discarded. A later call can only fail with STATUS_NO_MEMORY, which
 * changes nothing: it may be tried again. */
status pkv_parked_swap_out_some(pkv *p, uint32_t parked, uint32_t most, uint32_t *swap);
uint32_t pkv_parked_length(const pkv *p, uint32_t parked); /* logical */
uint64_t pkv_parked_kept(const pkv *p, uint32_t parked);   /* as pkv_seq_kept */

/* Pages of a parked sequence. All but held and alone: with as many in each share as in the one with
 * most. */
typedef struct pkv_parked_pages {
    uint32_t held, held_even;
    uint32_t shared;  // those also held by other sequences, open or parked
    uint32_t filling; // shared and not full: replaced by copies at the next token
    /* Shared and filling pages that open sequences hold too, if only in part. These counts are left
     * when every other parked sequence is given up. */
    uint32_t shared_open, filling_open;
    uint32_t alone, alone_even; // held by parked sequences alone
} pkv_parked_pages;

pkv_parked_pages pkv_parked_look(const pkv *p, uint32_t parked);
/* Whether parked sequences alone hold some of its pages: it takes as long as finding one. */
bool pkv_parked_frees(const pkv *p, uint32_t parked);
/* Upper bounds of these counts, in a time that does not depend on the number of pages; the pages
 * held by parked sequences alone are left out. */
pkv_parked_pages pkv_parked_most(const pkv *p, uint32_t parked);
/* How much a look at a long sequence in portions has seen. */
typedef enum pkv_seen {
    PKV_SEEN_NOTHING, // not all pages yet
    PKV_SEEN_EARLIER, // all, but references or blocks have changed since it began to look
    PKV_SEEN_NOW,     // all, and it is still so
} pkv_seen;

/* Does what pkv_parked_look does, in portions: each call looks at `most` (at least 1) pages more,
 * until all were seen and nothing has changed since. *pages is what the last complete look saw. The
 * pool remembers one sequence's, the one last asked about. */
pkv_seen pkv_parked_look_some(pkv *p, uint32_t parked, uint32_t most, pkv_parked_pages *pages);
/* As pkv_parked_look, remembering the answer until references of some parked page change. */
pkv_parked_pages pkv_parked_look_again(pkv *p, uint32_t parked);
/* Pages that parked sequences alone hold. */
uint32_t pkv_parked_alone(const pkv *p);
/* Pages that would be available if every parked sequence were discarded or swapped out. */
uint32_t pkv_available_unparked(const pkv *p);

/* ---- images: sequences that go to another pool (image.c) ------------------------------------- */

typedef struct pkv_image_table {
    uint32_t kept;         // tokens; all pages but the last are full
    uint32_t slot_pages;   // first pages, whose slots have positions in `slots`, not in `bases`
    const uint32_t *bases; // for each page the logical index of its first token
    const uint32_t *slots; // [pkv_image_slots] logical index of each slot
    const uint32_t *pages; // of an image of a parked sequence, else unused
} pkv_image_table;

/* The tables of a sequence as data, without the K and V of its pages. */
typedef struct pkv_image {
    pkv_grain grain; // as fine as any of the geometry: pkv_grain_fit changes nothing
    uint32_t length;
    bool dropped, contiguous;
    const pkv_image_table *tables; // [tables of the grain]
} pkv_image;
uint32_t pkv_image_slots(const pkv_geometry *g, const pkv_image_table *t);
/* The number of cells in the image's pages. */
uint64_t pkv_image_cells(const pkv_geometry *g, const pkv_image *image);
/* Whether the image, whose bases and slots may be any numbers, is one that a sequence can have. */
bool pkv_image_fits(const pkv_geometry *g, const pkv_image *image);
/* The image of a parked sequence, into tables [pkv_parked_tables]; valid while it stays parked. */
uint32_t pkv_parked_tables(const pkv *p, uint32_t parked);
pkv_image pkv_parked_image(const pkv *p, uint32_t parked, pkv_image_table *tables);
/* Writes the cells of a parked sequence's image from `first` on, at most n, by KV group and page,
 * and returns how many. Any thread may read the image and call this. */
uint32_t pkv_list_cells(const pkv *p, const pkv_image *i, uint32_t first, uint32_t n, uint32_t *to);
/* The cells that pkv_adopt takes, as many from each share as from the one that gives most. */
uint64_t pkv_image_cost(const pkv *p, const pkv_image *image);
/* Makes a parked sequence of an image that fits, which has published nothing, and never does unless
 * it `may_publish`. It is promised its pages, all or none. Until it has them it may only be
 * discarded; once K and V are in them it may be unparked. */
status pkv_adopt(pkv *p, const pkv_image *image, uint64_t salt, bool hidden, bool may_publish,
                 uint32_t *parked);
/* Takes at most `most` of its pages, at least 1. Where the pool lacks runs for them its tables
 * become finer first, which counts as pages too. *n is how many; fewer than `most` means that it
 * has all. STATUS_NO_PAGES: others took the rest. */
status pkv_adopt_some(pkv *p, uint32_t parked, const pkv_image *image, uint32_t most, uint32_t *n);

/* ---- the host tier --------------------------------------------------------------------------- */

/* Copies all pages of a sequence to the host tier and closes it: its pages are given up as by
 * pkv_seq_close. *swap is its number from now on, never 0. All or nothing: STATUS_NO_PAGES when the
 * tier lacks room or the sequence holds no page. K and V of all its tokens must have been computed
 * in earlier steps. */
status pkv_seq_swap_out(pkv *p, uint32_t seq, uint32_t *swap);

/* The most pages, as pkv_seq_copy_cost counts them, of a sequence that the host tier can take. */
uint32_t pkv_host_most(const pkv *p);

typedef struct pkv_swap_cost {
    uint32_t held;         // pages that the sequence will hold
    uint32_t fresh;        // held pages that must be copied in
    uint32_t cached_pages; // other held pages: unreferenced ones
    uint32_t parked_pages; // other held pages: referenced by parked sequences alone
    /* With as many in each share as in the one with most: `uneven` is what that adds to the fresh
     * and cached ones; then the held ones, and those of them that other tables hold. */
    uint32_t uneven, held_even, shared_even;
} pkv_swap_cost;

/* The pages that pkv_swap_in would take, with the same tokens. Changes nothing. */
pkv_swap_cost pkv_swap_in_cost(pkv *p, uint32_t swap, const uint32_t *tokens);
/* As pkv_swap_in_cost, remembering the answer until the resident blocks of the tokens or references
 * of their pages change; `key` as in pkv_lookup_again, with which it shares what is remembered. */
pkv_swap_cost pkv_swap_in_cost_again(pkv *p, uint64_t key, uint32_t swap, const uint32_t *tokens);
/* A bound of pkv_swap_in_cost that needs no look at pages: none is taken for resident, but
 * shared_even counts every page. */
pkv_swap_cost pkv_swap_in_most(const pkv *p, uint32_t swap);
/* Does what pkv_swap_in_cost does, in portions of `most` pages, rounded up to whole blocks, as
 * pkv_parked_look_some has them. */
pkv_seen pkv_swap_in_cost_some(pkv *p, uint32_t swap, const uint32_t *tokens, uint32_t most,
                               pkv_swap_cost *cost);
/* Swaps a sequence in as open sequence `seq` (closed before): same tables, positions and publishing
 * state, on other pages. tokens are the sequence's own. Blocks that it had published and that are
 * still resident are taken back, even where another sequence computed their pages; only the rest is
 * copied. All or nothing, as pkv_seq_append; on failure the swapped sequence stays. */
status pkv_swap_in(pkv *p, uint32_t swap, uint32_t seq, const uint32_t *tokens,
                   uint32_t expect_tokens);
/* pkv_swap_in in portions, as pkv_unpark_some has them. The pages that it will take are not
 * available to others, but blocks may leave the cache before their portion, and are copied then.
 * Whether there are pages enough follows from what pkv_swap_in_cost_some has seen, if it was asked
 * last about this sequence. A sequence of a coarser grain than PKV_HEAD comes at once. */
status pkv_swap_in_some(pkv *p, uint32_t swap, uint32_t seq, const uint32_t *tokens,
                        uint32_t expect_tokens, uint32_t most);
/* Whether pkv_swap_in_some opens it in several portions of `most` pages. */
bool pkv_swap_has_portions(const pkv *p, uint32_t swap, uint32_t most);
uint32_t pkv_swap_length(const pkv *p, uint32_t swap); /* logical */
/* Number of first tokens whose pages are hashed and held by other sequences too. They will probably
 * stay resident when this sequence closes. */
uint32_t pkv_seq_shared_tokens(const pkv *p, uint32_t seq);
/* Pages that other tables hold too: rewriting them all would take as many pages for good. */
typedef struct pkv_shared {
    uint64_t most;  // a bound, as many from each share as from the one with most
    uint64_t as_of; // pkv_sharing_changes when the count on which it rests began
} pkv_shared;

/* Returns a bound, which is exact where as_of is pkv_sharing_changes. Where it is not, the call
 * counts at most *looks of the sequence's pages more and takes their number off *looks; the bound
 * rests on the new count once all pages were counted. Until then, and where sequences come to share
 * pages meanwhile, the bound is too high by what came to be shared in the whole pool. A sequence is
 * not counted while it is split, opened or closed in portions. */
pkv_shared pkv_seq_pages_shared(pkv *p, uint32_t seq, uint32_t *looks);
/* Rises whenever several tables come to hold a page, and when they cease to. */
uint64_t pkv_sharing_changes(const pkv *p);

/* Checks that free + used + cached == total, that reference counts match the tables, and that
 * chains and lists are sound. Returns NULL, or what is wrong. For tests: slow. */
const char *pkv_check_integrity(const pkv *p);

#endif
