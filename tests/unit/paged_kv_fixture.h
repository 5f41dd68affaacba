/* Shared by the tests of keeping and parking: a pool with its mirror, and a memory whose slots
 * record what a backend would hold there. */
#ifndef TESTS_UNIT_PAGED_KV_FIXTURE_H
#define TESTS_UNIT_PAGED_KV_FIXTURE_H

#include "paged_kv/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { P = 16, SEQS = 6, TEXT = 320, PAGES_MOST = 80, HOST_MOST = 40 };

typedef struct fixture_slot {
    int64_t token;    // logical index
    int64_t rotation; // positions by which its key is rotated
} fixture_slot;

typedef struct fixture {
    long calls, live, fail_at; // of the allocator
    allocator alloc;
    pkv *kv;
    pkv_mirror *mirror;
    uint32_t groups, n_pages;
    pkv_deltas deltas; // of the last pkv_take_deltas
    fixture_slot memory[PAGES_MOST][P], host[HOST_MOST][P];
} fixture;

static inline void *fixture_resize(void *ctx, void *ptr, size_t size)
{
    fixture *f = ctx;
    if (size == 0) {
        f->live -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (f->calls++ == f->fail_at) return NULL;
    void *got = realloc(ptr, size);
    f->live += !ptr && got;
    return got;
}

/* Pages of a sequence that others hold too, by a count of all. */
static inline uint64_t pages_shared(pkv *kv, uint32_t seq)
{
    uint32_t looks = UINT32_MAX;
    pkv_shared shared = pkv_seq_pages_shared(kv, seq, &looks);
    assert_true(shared.as_of == pkv_sharing_changes(kv));
    return shared.most;
}

static inline void begin(fixture *f, uint32_t n_layers, uint32_t n_pages, uint32_t n_host_pages)
{
    *f = (fixture){.fail_at = -1, .groups = n_layers, .n_pages = n_pages};
    f->alloc = (allocator){fixture_resize, f};
    assert_true(n_pages <= PAGES_MOST && n_host_pages <= HOST_MOST);
    pkv_options options = {
        .geometry = {P, n_layers, 1, 1, 1}, /* a group for each layer */
        .n_pages = n_pages,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .n_host_pages = n_host_pages,
        .alloc = &f->alloc,
    };
    assert_true(status_ok(pkv_create(&options, &f->kv)));
    assert_true(status_ok(pkv_mirror_create(&options.geometry, n_pages, SEQS, NULL, &f->mirror)));
}

/* Checks that every table equals the mirror's, and that each slot holds its token with the right
 * rotation. */
static inline void check_tables(const fixture *f)
{
    assert_null(pkv_check_integrity(f->kv));
    assert_true(pkv_checksum(f->kv) == pkv_mirror_checksum(f->mirror));
    for (uint32_t q = 0; q < SEQS; q++) {
        if (!pkv_seq_is_open(f->kv, q)) continue;
        bool contiguous = pkv_seq_next_position(f->kv, q) != pkv_seq_length(f->kv, q);
        for (uint32_t g = 0; g < f->groups; g++) {
            pkv_table_view here = pkv_seq_table(f->kv, q, g), there;
            there = pkv_mirror_table(f->mirror, q, g);
            assert_int_equal(here.n_pages, there.n_pages);
            assert_int_equal(here.kept_tokens, there.kept_tokens);
            assert_memory_equal(here.pages, there.pages, here.n_pages * sizeof *here.pages);
            for (uint32_t slot = 0; slot < here.kept_tokens; slot++) {
                const fixture_slot *is = &f->memory[here.pages[slot / P]][slot % P];
                uint32_t token = pkv_seq_position(f->kv, q, g, slot);
                assert_int_equal(is->token, token);
                assert_int_equal(is->rotation, contiguous ? slot : token);
            }
        }
    }
}

/* One backend step without new rows. */
static inline void take(fixture *f)
{
    f->deltas = pkv_take_deltas(f->kv);
    assert_true(status_ok(pkv_mirror_apply(f->mirror, f->deltas.words, f->deltas.n_words)));
    for (size_t i = 0; i < f->deltas.n_moves; i++) {
        const pkv_move *m = &f->deltas.moves[i];
        fixture_slot *dst = m->kind == PKV_MOVE_OUT ? f->host[m->dst_page] : f->memory[m->dst_page];
        fixture_slot *src = m->kind == PKV_MOVE_IN ? f->host[m->src_page] : f->memory[m->src_page];
        for (uint32_t k = 0; k < m->n_slots; k++) {
            dst[m->dst_slot + k] = src[m->src_slot + k];
            dst[m->dst_slot + k].rotation += m->rotate;
        }
    }
}

static inline void end(fixture *f)
{
    take(f);
    check_tables(f);
    pkv_destroy(f->kv);
    pkv_mirror_destroy(f->mirror);
    assert_int_equal(f->live, 0);
}

/* Appends n tokens and computes them in one step. */
static inline void grow(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t token = pkv_seq_length(f->kv, seq), position = pkv_seq_next_position(f->kv, seq);
    assert_true(status_ok(pkv_seq_append(f->kv, seq, n)));
    take(f);
    for (uint32_t g = 0; g < f->groups; g++) {
        pkv_table_view t = pkv_seq_table(f->kv, seq, g);
        for (uint32_t i = 0, slot = t.kept_tokens - n; i < n; i++, slot++) {
            f->memory[t.pages[slot / P]][slot % P] = (fixture_slot){token + i, position + i};
        }
    }
    check_tables(f);
}

static inline const uint32_t *text(void)
{
    static const uint32_t tokens[TEXT] = {[0] = 7, [17] = 3, [40] = 9, [70] = 11, [100] = 2};
    return tokens;
}

/* Opens with the cached prefix of text(), grows to n tokens and publishes them. */
static inline void fill(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, text(), n, 0, n, &hit)));
    if (hit < n) grow(f, seq, n - hit);
    pkv_seq_publish(f->kv, seq, text(), n);
}

/* Opens without a prefix hit and fills n unpublished tokens: evicts pages from the cache. */
static inline void squeeze(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, NULL, 0, 9, n, &hit)));
    grow(f, seq, n);
}

static inline uint32_t hit_of(const fixture *f, uint32_t n)
{
    return pkv_lookup(f->kv, text(), n, 0).tokens;
}

/* ---- bits over slots ------------------------------------------------------------------------- */

typedef struct bits {
    uint64_t words[TEXT / 64];
} bits;

/* All slots but [from, to). */
static inline bits all_but(uint32_t from, uint32_t to)
{
    bits b;
    memset(&b, 0xff, sizeof b);
    for (uint32_t i = from; i < to; i++) b.words[i / 64] &= ~(UINT64_C(1) << i % 64);
    return b;
}

static inline bits without(bits b, uint32_t slot)
{
    b.words[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    return b;
}

static inline void keep(fixture *f, uint32_t seq, uint32_t group, bits b)
{
    assert_true(status_ok(pkv_seq_keep(f->kv, seq, group, b.words, false)));
}

/* Repositions every table of the sequence. */
static inline void reposition(fixture *f, uint32_t seq, bits b)
{
    for (uint32_t g = 0; g < f->groups; g++)
        assert_true(status_ok(pkv_seq_keep(f->kv, seq, g, b.words, true)));
}

static inline void expect_positions(const fixture *f, uint32_t seq, uint32_t group, uint32_t from,
                                    uint32_t n, const uint32_t *want)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pkv_seq_position(f->kv, seq, group, from + i), want[i]);
}

#endif
