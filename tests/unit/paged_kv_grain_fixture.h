/* Shared by the tests of grains: a pool with its mirror, and a memory of cells whose slots record
 * what a backend would hold there. Cells are found by the rule of paged_kv.h alone, so a table of
 * any grain must lead to the same slots. */
#ifndef TESTS_UNIT_PAGED_KV_GRAIN_FIXTURE_H
#define TESTS_UNIT_PAGED_KV_GRAIN_FIXTURE_H

#include "paged_kv/state.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { P = 16, SEQS = 6, TEXT = 160, CELLS_MOST = 160, GROUPS_MOST = 8 };

/* What a slot of a cell holds: a token of a text, computed for one KV group. `run` counts the
 * computations: two sequences with one text differ by it. */
typedef struct cell_slot {
    uint32_t salt, token, group, run;
} cell_slot;

typedef struct grain_fixture {
    pkv_geometry geometry;
    uint32_t groups, heads, n_pages, n_host_pages;
    pkv *kv;
    pkv_mirror *mirror;
    uint32_t n_runs;
    uint32_t salt[SEQS];
    cell_slot memory[CELLS_MOST][P], host[CELLS_MOST][P];
} grain_fixture;

static inline void begin_in_shares(grain_fixture *f, uint32_t layers, uint32_t heads,
                                   uint32_t n_shares, uint32_t n_pages, uint32_t n_host_pages)
{
    *f = (grain_fixture){.geometry = {P, layers, heads, 1, 1, n_shares},
                         .groups = layers * heads,
                         .heads = heads,
                         .n_pages = n_pages,
                         .n_host_pages = n_host_pages};
    assert_true(f->groups <= GROUPS_MOST);
    assert_true(pkv_cell_count(&f->geometry, n_pages - 1) <= CELLS_MOST);
    assert_true(pkv_cell_count(&f->geometry, n_host_pages) <= CELLS_MOST);
    pkv_options options = {
        .geometry = f->geometry,
        .n_pages = n_pages,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .n_host_pages = n_host_pages,
    };
    assert_true(status_ok(pkv_create(&options, &f->kv)));
    assert_true(status_ok(pkv_mirror_create(&options.geometry, n_pages, SEQS, NULL, &f->mirror)));
}

static inline void begin(grain_fixture *f, uint32_t layers, uint32_t heads, uint32_t n_pages,
                         uint32_t n_host_pages)
{
    begin_in_shares(f, layers, heads, 1, n_pages, n_host_pages);
}

static inline const uint32_t *text(void)
{
    static const uint32_t tokens[TEXT] = {[0] = 7, [17] = 3, [40] = 9, [70] = 11, [100] = 2};
    return tokens;
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* The number of the table of KV group `group` at a grain. */
static inline uint32_t table_of(const grain_fixture *f, pkv_grain grain, uint32_t group)
{
    return grain == PKV_ALL ? 0 : grain == PKV_LAYER ? group / f->heads : group;
}

/* From a page of a grain to the cell of KV group `group`; the tier has `usable` pages. */
static inline uint32_t offset_of(const grain_fixture *f, pkv_grain grain, uint32_t group,
                                 uint32_t usable)
{
    return pkv_cell_offset(&f->geometry, usable, grain, group / f->heads, group % f->heads);
}

static inline uint32_t pool_offset(const grain_fixture *f, pkv_grain grain, uint32_t group)
{
    return offset_of(f, grain, group, f->n_pages - 1);
}

/* The pool's table that KV group `group` reads. */
static inline pkv_table_view table_at(const grain_fixture *f, uint32_t seq, uint32_t group)
{
    pkv_grain grain = pkv_seq_grain(f->kv, seq);
    pkv_table_view t = pkv_seq_table(f->kv, seq, table_of(f, grain, group));
    t.offset = pool_offset(f, grain, group);
    return t;
}

static inline uint32_t cell_at(const grain_fixture *f, uint32_t seq, uint32_t group, uint32_t index)
{
    pkv_table_view t = table_at(f, seq, group);
    return t.pages[index] + t.offset;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static inline void check_pool(const grain_fixture *f)
{
    const char *wrong = pkv_check_integrity(f->kv);
    if (wrong) fail_msg("%s", wrong);
    pkv_counts c = pkv_count(f->kv);
    assert_int_equal(c.free + c.used + c.cached, f->n_pages - 1);
}

/* Checks that the mirror leads KV group `group` to the pool's cells, and that the slots there hold
 * the sequence's tokens as they were computed for that group. */
static inline void check_group(const grain_fixture *f, uint32_t seq, uint32_t group)
{
    pkv_table_view here = table_at(f, seq, group), there = pkv_mirror_table(f->mirror, seq, group);
    assert_int_equal(here.n_pages, there.n_pages);
    assert_int_equal(here.kept_tokens, there.kept_tokens);
    assert_int_equal(here.offset, there.offset);
    assert_memory_equal(here.pages, there.pages, here.n_pages * sizeof *here.pages);
    uint32_t table = table_of(f, pkv_seq_grain(f->kv, seq), group);
    for (uint32_t slot = 0; slot < here.kept_tokens; slot++) {
        const cell_slot *is = &f->memory[here.pages[slot / P] + here.offset][slot % P];
        assert_int_equal(is->salt, f->salt[seq]);
        assert_int_equal(is->token, pkv_seq_position(f->kv, seq, table, slot));
        assert_int_equal(is->group, group);
    }
}

/* Checks that the mirror calls every cell parked that a parked sequence holds. */
static inline void check_parked(const grain_fixture *f)
{
    for (uint32_t i = 1; i <= f->kv->n_swaps; i++) {
        const pkv_seq *s = &f->kv->swaps[i].seq;
        for (uint32_t g = 0; s->open && f->kv->swaps[i].parked && g < f->groups; g++) {
            uint32_t table = table_of(f, s->grain, g), offset = pool_offset(f, s->grain, g);
            for (uint32_t k = 0; k < s->tables[table].n_pages; k++)
                assert_true(pkv_mirror_page_at(f->mirror, seq_pages(s, table)[k] + offset).parked);
        }
    }
}

/* Counts the tables of open sequences that hold each cell, and checks the mirror's answer. */
static inline void check_cells(const grain_fixture *f)
{
    uint32_t holders[CELLS_MOST] = {0}, group_of[CELLS_MOST] = {0};
    uint32_t cells = pkv_cell_count(&f->geometry, f->n_pages - 1);
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t g = 0; pkv_seq_is_open(f->kv, seq) && g < f->groups; g++) {
            for (uint32_t i = 0; i < table_at(f, seq, g).n_pages; i++) {
                uint32_t cell = cell_at(f, seq, g, i);
                assert_in_range(cell, 1, cells - 1);
                assert_true(holders[cell] == 0 || group_of[cell] == g);
                group_of[cell] = g;
                holders[cell]++;
            }
        }
    }
    for (uint32_t cell = 0; cell < cells; cell++) {
        pkv_mirror_page page = pkv_mirror_page_at(f->mirror, cell);
        assert_int_equal(page.held, holders[cell] > 0);
        assert_int_equal(page.shared, holders[cell] > 1);
        if (page.held) assert_int_equal(page.group, group_of[cell]);
    }
}

/* ---- a backend ------------------------------------------------------------------------------- */

/* Copies cell by cell, and checks that pkv_move_cell names the same cells. */
static inline void run_move(grain_fixture *f, const pkv_move *m)
{
    bool out = m->kind == PKV_MOVE_OUT, in = m->kind == PKV_MOVE_IN;
    uint32_t pool = f->n_pages - 1, host = f->n_host_pages, n = 0;
    assert_true(m->grain == pkv_grain_fit(&f->geometry, m->grain));
    for (uint32_t g = 0; g < f->groups; g++) {
        if (table_of(f, m->grain, g) != m->group) continue;
        uint32_t src = m->src_page + offset_of(f, m->grain, g, in ? host : pool);
        uint32_t dst = m->dst_page + offset_of(f, m->grain, g, out ? host : pool);
        pkv_move cell = pkv_move_cell(&f->geometry, m, n++, pool, host);
        assert_true(cell.grain == PKV_HEAD && cell.group == g);
        assert_true(cell.src_page == src && cell.dst_page == dst && cell.n_slots == m->n_slots);
        memmove((out ? f->host : f->memory)[dst] + m->dst_slot,
                (in ? f->host : f->memory)[src] + m->src_slot, m->n_slots * sizeof(cell_slot));
    }
    assert_int_equal(pkv_move_cells(&f->geometry, m), n);
}

/* One backend step without new rows. */
static inline void take(grain_fixture *f)
{
    pkv_deltas d = pkv_take_deltas(f->kv);
    assert_true(status_ok(pkv_mirror_apply(f->mirror, d.words, d.n_words)));
    for (size_t i = 0; i < d.n_moves; i++) run_move(f, &d.moves[i]);
}

static inline void check(grain_fixture *f)
{
    check_pool(f);
    take(f);
    assert_true(pkv_checksum(f->kv) == pkv_mirror_checksum(f->mirror));
    check_cells(f);
    check_parked(f);
    for (uint32_t seq = 0; seq < SEQS; seq++)
        for (uint32_t g = 0; pkv_seq_is_open(f->kv, seq) && g < f->groups; g++)
            check_group(f, seq, g);
}

static inline void end(grain_fixture *f)
{
    check(f);
    pkv_destroy(f->kv);
    pkv_mirror_destroy(f->mirror);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static inline status try_grow(grain_fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t token = pkv_seq_length(f->kv, seq);
    RETURN_IF_ERROR(pkv_seq_append(f->kv, seq, n));
    take(f);
    f->n_runs++;
    for (uint32_t g = 0; g < f->groups; g++) {
        pkv_table_view t = table_at(f, seq, g);
        for (uint32_t i = 0, slot = t.kept_tokens - n; i < n; i++, slot++) {
            cell_slot *to = &f->memory[t.pages[slot / P] + t.offset][slot % P];
            *to = (cell_slot){f->salt[seq], token + i, g, f->n_runs};
        }
    }
    check(f);
    return STATUS_IS_OK;
}

/* Appends n tokens and computes them in one step. */
static inline void grow(grain_fixture *f, uint32_t seq, uint32_t n)
{
    assert_true(status_ok(try_grow(f, seq, n)));
}

/* Opens with the cached prefix of text() and returns how many tokens it has. */
static inline uint32_t open_seq(grain_fixture *f, uint32_t seq, pkv_grain grain, uint32_t salt,
                                uint32_t max_hit)
{
    uint32_t hit;
    f->salt[seq] = salt;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, grain, text(), max_hit, salt, 0, &hit)));
    check(f);
    return hit;
}

/* Opens without looking into the cache, and fills n tokens. */
static inline void fill(grain_fixture *f, uint32_t seq, pkv_grain grain, uint32_t salt, uint32_t n)
{
    open_seq(f, seq, grain, salt, 0);
    if (n > 0) grow(f, seq, n);
}

static inline void publish(grain_fixture *f, uint32_t seq)
{
    pkv_seq_publish(f->kv, seq, text(), pkv_seq_length(f->kv, seq));
    check(f);
}

static inline void split(grain_fixture *f, uint32_t seq, pkv_grain grain)
{
    assert_true(status_ok(pkv_seq_split(f->kv, seq, grain, 0)));
    assert_int_equal(pkv_seq_grain(f->kv, seq), pkv_grain_fit(&f->geometry, grain));
    check(f);
}

static inline void fork_seq(grain_fixture *f, uint32_t parent, uint32_t child)
{
    f->salt[child] = f->salt[parent];
    assert_true(status_ok(pkv_seq_fork(f->kv, parent, child, 0)));
    check(f);
}

/* Drops the pages of a table whose bits are 0. */
static inline void drop(grain_fixture *f, uint32_t seq, uint32_t table, uint64_t keep)
{
    pkv_seq_drop(f->kv, seq, table, &keep);
    check(f);
}

static inline void close_seq(grain_fixture *f, uint32_t seq)
{
    pkv_seq_close(f->kv, seq);
    check(f);
}

/* Pages of a sequence that others hold too, by a count of all. */
static inline uint64_t pages_shared(pkv *kv, uint32_t seq)
{
    uint32_t looks = UINT32_MAX;
    pkv_shared shared = pkv_seq_pages_shared(kv, seq, &looks);
    assert_true(shared.as_of == pkv_sharing_changes(kv));
    return shared.most;
}

static inline uint32_t n_free(const grain_fixture *f) { return pkv_count(f->kv).free; }

#endif
