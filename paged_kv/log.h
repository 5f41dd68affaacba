/* The delta log, and mirrors of the tables.
 *
 * Every change of a table is appended to a log of 32-bit words (delta.h has the operations and
 * their layout), and every copy of K/V to a list of moves, those to and from the host tier too. A
 * step plan carries both. A backend applies the words to its mirror, executes the moves in order,
 * then computes. The order matters: a page that was given up is copied out before a later move or
 * the step's rows write it, and a host page is read before it is used again. */
#ifndef PAGED_KV_LOG_H
#define PAGED_KV_LOG_H

#include "paged_kv/paged_kv.h"

typedef enum pkv_move_kind {
    PKV_MOVE_SLOTS, // slots from page to page in the pool
    PKV_MOVE_OUT,   // a whole page (slots 0 .. page_tokens), src in the pool, dst in the host tier
    PKV_MOVE_IN,    // a whole page back, src in the host tier, dst in the pool
} pkv_move_kind;

typedef struct pkv_move {
    pkv_move_kind kind;
    pkv_grain grain;
    uint32_t group; // the table of that grain
    uint32_t src_page, src_slot;
    uint32_t dst_page, dst_slot;
    uint32_t n_slots;
    int32_t rotate; // PKV_MOVE_SLOTS: positions that the moved keys are rotated by
    uint32_t fresh; // PKV_MOVE_SLOTS: 1 = dst_page is filled from slot 0 on, ascending; else 0
} pkv_move;

/* A move at a coarser grain moves the same slots of every cell of its two runs. Move i of its
 * pkv_move_cells is the one of a cell, at the finest grain; the pool and the host tier have that
 * many usable cells. */
uint32_t pkv_move_cells(const pkv_geometry *g, const pkv_move *m);
pkv_move pkv_move_cell(const pkv_geometry *g, const pkv_move *m, uint32_t i, uint32_t pool_usable,
                       uint32_t host_usable);

typedef struct pkv_deltas {
    const uint32_t *words;
    size_t n_words;
    const pkv_move *moves;
    size_t n_moves;
} pkv_deltas;

/* All changes since the last call; valid until the pkv changes again. */
pkv_deltas pkv_take_deltas(pkv *p);

typedef struct pkv_mirror pkv_mirror;

status pkv_mirror_create(const pkv_geometry *geometry, uint32_t n_pages, uint32_t max_seqs,
                         const allocator *alloc, pkv_mirror **out);
void pkv_mirror_destroy(pkv_mirror *m);
/* Applies words, which may come from a wire: anything inconsistent is STATUS_CORRUPT. After that,
 * and after STATUS_NO_MEMORY, the mirror can only be destroyed. */
status pkv_mirror_apply(pkv_mirror *m, const uint32_t *words, size_t n_words);
/* The table that holds a KV group of the finest grain: its pages and the offset from each of them
 * to the cell of that group. */
pkv_table_view pkv_mirror_table(const pkv_mirror *m, uint32_t seq, uint32_t group);
/* The lengths of a sequence's tables that have one of the first n_layers layers; 0 when closed. */
typedef struct pkv_mirror_extent {
    uint32_t least_kept, most_kept; // tokens
    uint32_t most_pages;
} pkv_mirror_extent;

pkv_mirror_extent pkv_mirror_extent_of(const pkv_mirror *m, uint32_t seq, uint32_t n_layers);
/* Which tables may read a cell again, as far as a mirror knows. held: tables of open sequences, of
 * `group` (shared: more than one). parked: perhaps parked sequences; the mirror never learns when
 * those give pages up. Neither: no table, once the moves that came with the words are done. */
typedef struct pkv_mirror_page {
    bool held, shared, parked;
    uint32_t group; // when held
} pkv_mirror_page;

pkv_mirror_page pkv_mirror_page_at(const pkv_mirror *m, uint32_t cell);

/* The tables that one operation of a delta log changes, for code that keeps a copy of them. */
enum { PKV_ALL_GROUPS = 0xffffffff };

typedef struct pkv_touch {
    uint32_t seq, group; // or PKV_ALL_GROUPS
    bool appends;        // earlier pages of the table stay as they are
} pkv_touch;

/* Describes the operation at words, which a mirror has applied; returns its length in words. */
size_t pkv_delta_touch(const pkv_geometry *geometry, const uint32_t *words, pkv_touch *out);

/* Checksum over all open tables: equal when pool and mirror agree on every page and length. Kept up
 * to date as tables change, so reading it is free. */
uint64_t pkv_checksum(const pkv *p);
uint64_t pkv_mirror_checksum(const pkv_mirror *m);
/* The grain of an open sequence's tables, for code that keeps a copy of them. */
pkv_grain pkv_mirror_grain(const pkv_mirror *m, uint32_t seq);

#endif
