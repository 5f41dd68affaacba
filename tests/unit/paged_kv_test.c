/* paged_kv by example: one test for each rule that the simulation (sim/paging_test.c) checks at
 * random. */
#include "paged_kv/log.h"
#include "tests/unit/paged_kv_whole.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { P = 16, SEQS = 8 };

typedef struct fixture {
    long calls, live, fail_at; // of the allocator
    allocator alloc;
    pkv *kv;
    struct {
        bool stored, with_tokens;
        uint64_t hash, parent;
    } events[64];
    int n_events;
} fixture;

static void *counting_resize(void *ctx, void *ptr, size_t size)
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

static void record(void *ctx, const pkv_block_event *event)
{
    fixture *f = ctx;
    assert_true(f->n_events < 64);
    f->events[f->n_events].stored = event->kind == PKV_BLOCK_STORED;
    f->events[f->n_events].with_tokens = event->tokens != NULL;
    f->events[f->n_events].hash = event->hash;
    f->events[f->n_events++].parent = event->parent;
}

static const pkv_geometry one_group = {
    .page_tokens = P, .n_layers = 1, .n_kv_heads = 1, .layers_per_group = 1, .heads_per_group = 1};
static const pkv_geometry two_groups = {
    .page_tokens = P, .n_layers = 2, .n_kv_heads = 1, .layers_per_group = 1, .heads_per_group = 1};

static void begin(fixture *f, const pkv_geometry *geometry, uint32_t n_pages)
{
    *f = (fixture){.fail_at = -1};
    f->alloc = (allocator){counting_resize, f};
    pkv_options options = {
        .geometry = *geometry,
        .n_pages = n_pages,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .alloc = &f->alloc,
        .on_block = record,
        .on_block_ctx = f,
    };
    assert_true(status_ok(pkv_create(&options, &f->kv)));
}

static void end(fixture *f)
{
    assert_null(pkv_check_integrity(f->kv));
    pkv_destroy(f->kv);
    assert_int_equal(f->live, 0);
}

static const uint32_t *text(void)
{
    static const uint32_t tokens[160] = {[0] = 7, [17] = 3, [40] = 9, [70] = 11, [100] = 2};
    return tokens;
}

/* Opens, appends up to n tokens of text() and publishes them. */
static uint32_t fill(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, text(), n, 0, n, &hit)));
    assert_true(status_ok(pkv_seq_append(f->kv, seq, n - hit)));
    pkv_seq_publish(f->kv, seq, text(), n);
    assert_null(pkv_check_integrity(f->kv));
    return hit;
}

static void expect_counts(const fixture *f, uint32_t free_pages, uint32_t used, uint32_t cached)
{
    pkv_counts c = pkv_count(f->kv);
    assert_int_equal(c.free, free_pages);
    assert_int_equal(c.used, used);
    assert_int_equal(c.cached, cached);
}

static uint32_t hit_of(const fixture *f, uint32_t n)
{
    return pkv_lookup(f->kv, text(), n, 0).tokens;
}

static void geometry_is_checked(void **state)
{
    (void)state;
    static const struct {
        pkv_geometry g;
        const char *says;
    } cases[] = {
        {{.page_tokens = 8,
          .n_layers = 1,
          .n_kv_heads = 1,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "page_tokens is 8"},
        {{.page_tokens = 24,
          .n_layers = 1,
          .n_kv_heads = 1,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "page_tokens is 24"},
        {{.page_tokens = 512,
          .n_layers = 1,
          .n_kv_heads = 1,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "page_tokens is 512"},
        {{.page_tokens = 16,
          .n_layers = 0,
          .n_kv_heads = 1,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "n_layers is 0"},
        {{.page_tokens = 16,
          .n_layers = 1,
          .n_kv_heads = 0,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "n_kv_heads is 0"},
        {{.page_tokens = 16,
          .n_layers = 4,
          .n_kv_heads = 4,
          .layers_per_group = 0,
          .heads_per_group = 1},
         "layers_per_group is 0"},
        {{.page_tokens = 16,
          .n_layers = 4,
          .n_kv_heads = 4,
          .layers_per_group = 5,
          .heads_per_group = 1},
         "layers_per_group is 5"},
        {{.page_tokens = 16,
          .n_layers = 4,
          .n_kv_heads = 4,
          .layers_per_group = 1,
          .heads_per_group = 3},
         "heads_per_group is 3"},
        {{.page_tokens = 16,
          .n_layers = 16384,
          .n_kv_heads = 128,
          .layers_per_group = 1,
          .heads_per_group = 1},
         "KV groups"},
        {{.page_tokens = 16,
          .n_layers = 6,
          .n_kv_heads = 1,
          .layers_per_group = 2,
          .heads_per_group = 1,
          .window = 9,
          .window_layers = {0x7}},
         "layers_per_group is 2: of layers 2 and 3, which would share a page table, one has"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err;
        assert_false(status_ok(pkv_geometry_check(&cases[i].g, &err)));
        if (!strstr(err.text, cases[i].says)) fail_msg("'%s' lacks '%s'", err.text, cases[i].says);
    }
    pkv_geometry g = {.page_tokens = 16,
                      .n_layers = 5,
                      .n_kv_heads = 4,
                      .layers_per_group = 2,
                      .heads_per_group = 2};
    assert_true(status_ok(pkv_geometry_check(&g, NULL)));
    assert_int_equal(pkv_groups(&g), 6);
    assert_int_equal(pkv_group_of(&g, 4, 3), 5);

    pkv *kv;
    pkv_options none = {.geometry = one_group, .n_pages = 1, .max_seqs = 1};
    assert_int_equal(pkv_create(&none, &kv).code, STATUS_INVALID);
    none.n_pages = UINT32_MAX;
    assert_int_equal(pkv_create(&none, &kv).code, STATUS_INVALID);
}

static void pages_come_and_go(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &one_group, 6);
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f.kv, 3, PKV_HEAD, NULL, 0, 0, 80, &hit)));
    assert_int_equal(pkv_append_cost(f.kv, 3, 33), 3);
    assert_true(status_ok(pkv_seq_append(f.kv, 3, 33)));
    expect_counts(&f, 2, 3, 0);
    pkv_table_view view = pkv_seq_table(f.kv, 3, 0);
    assert_int_equal(view.n_pages, 3);
    assert_int_equal(view.kept_tokens, 33);
    for (uint32_t i = 0; i < 3; i++) assert_int_not_equal(view.pages[i], 0);

    /* One page too many: the call is refused, and nothing changes. */
    uint64_t before = pkv_checksum(f.kv);
    assert_int_equal(pkv_seq_append(f.kv, 3, 48).code, STATUS_NO_PAGES);
    assert_int_equal(pkv_checksum(f.kv), before);
    expect_counts(&f, 2, 3, 0);
    assert_true(status_ok(pkv_seq_append(f.kv, 3, 47)));
    expect_counts(&f, 0, 5, 0);
    assert_int_equal(pkv_seq_length(f.kv, 3), 80);
    assert_int_equal(pkv_seq_pages_held(f.kv, 3), 5);
    pkv_seq_close(f.kv, 3);
    expect_counts(&f, 5, 0, 0);
    assert_int_equal(pkv_checksum(f.kv), 0);
    end(&f);
}

static void equal_prefixes_are_shared(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &two_groups, 40);
    assert_int_equal(fill(&f, 0, 70), 0);
    assert_int_equal(f.n_events, 4);
    for (int i = 0; i < 4; i++) {
        assert_true(f.events[i].stored);
        assert_int_equal(f.events[i].parent, i > 0 ? f.events[i - 1].hash : 0);
    }
    assert_int_equal(fill(&f, 1, 70), 64); /* the partial block is not cached */
    expect_counts(&f, 39 - 12, 12, 0);
    for (uint32_t g = 0; g < 2; g++) {
        assert_memory_equal(pkv_seq_table(f.kv, 0, g).pages, pkv_seq_table(f.kv, 1, g).pages,
                            4 * sizeof(uint32_t));
    }
    assert_int_equal(pkv_count(f.kv).hit_tokens, 64);
    assert_int_equal(pkv_count(f.kv).queried_tokens, 140);

    /* No hit for other tokens or another salt; a smaller hit under a smaller cap. */
    uint32_t other[64];
    memcpy(other, text(), sizeof other);
    other[20]++;
    assert_int_equal(pkv_lookup(f.kv, other, 64, 0).tokens, 16);
    assert_int_equal(pkv_lookup(f.kv, text(), 64, 1).tokens, 0);
    assert_int_equal(hit_of(&f, 63), 48);

    pkv_seq_close(f.kv, 0);
    pkv_seq_close(f.kv, 1);
    expect_counts(&f, 39 - 8, 0, 8);
    assert_int_equal(pkv_lookup(f.kv, text(), 64, 0).cached_pages, 8);
    assert_int_equal(f.n_events, 4);
    end(&f);
}

/* Takes fresh pages for `n` tokens, which evicts cached pages when free ones are missing. */
static void squeeze(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, NULL, 0, 0, n, &hit)));
    assert_true(status_ok(pkv_seq_append(f->kv, seq, n)));
    assert_null(pkv_check_integrity(f->kv));
}

static void the_deepest_of_the_oldest_goes_first(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &one_group, 9);
    fill(&f, 0, 64); /* text: 4 blocks */
    uint32_t hit, other[64] = {1};
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, other, 64, 0, 64, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 64)));
    pkv_seq_publish(f.kv, 1, other, 64);
    pkv_seq_close(f.kv, 0);
    pkv_seq_close(f.kv, 1);
    expect_counts(&f, 0, 0, 8);

    squeeze(&f, 2, 16);
    assert_int_equal(hit_of(&f, 64), 48); /* its last block went; the younger chain is whole */
    assert_int_equal(pkv_lookup(f.kv, other, 64, 0).tokens, 64);
    /* A hit makes text the younger chain. */
    assert_int_equal(fill(&f, 3, 48), 48);
    pkv_seq_close(f.kv, 3);
    squeeze(&f, 4, 32);
    assert_int_equal(hit_of(&f, 64), 48);
    assert_int_equal(pkv_lookup(f.kv, other, 64, 0).tokens, 32);
    end(&f);
}

static void a_reclaimed_page_takes_its_descendants_along(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &two_groups, 17);
    fill(&f, 0, 64);
    expect_counts(&f, 8, 8, 0);
    /* Sequence 0 keeps blocks 0, 2 and 3 in group 0, all in group 1. */
    pkv_seq_drop(f.kv, 0, 0, &(uint64_t){0xd});
    expect_counts(&f, 8, 7, 1);
    assert_int_equal(hit_of(&f, 64), 64);
    f.n_events = 0;
    /* A drop sends no event, an eviction does: children before their parents. */
    squeeze(&f, 1, 64);
    assert_int_equal(f.n_events, 0);
    pkv_seq_close(f.kv, 1);
    squeeze(&f, 1, 65 - 1);
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f.kv, 2, PKV_HEAD, NULL, 0, 0, 16, &hit)));
    assert_int_equal(pkv_seq_append(f.kv, 2, 1).code, STATUS_NO_PAGES);
    expect_counts(&f, 0, 15, 1);
    pkv_seq_close(f.kv, 0); /* its unshared pages are cached now */
    expect_counts(&f, 0, 8, 8);
    assert_true(status_ok(pkv_seq_append(f.kv, 2, 1)));
    /* The oldest cached page is block 1's: blocks 3, 2 and 1 are evicted, block 0 stays. */
    assert_int_equal(f.n_events, 3);
    for (int i = 0; i < 3; i++) assert_false(f.events[i].stored);
    assert_int_equal(f.events[1].hash, f.events[0].parent);
    assert_int_equal(f.events[2].hash, f.events[1].parent);
    assert_int_equal(hit_of(&f, 64), 16);
    expect_counts(&f, 4, 10, 2);
    end(&f);
}

static void a_drop_touches_one_sequence_only(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &one_group, 20);
    fill(&f, 0, 70);
    fill(&f, 1, 70);
    uint32_t kept[5];
    memcpy(kept, pkv_seq_table(f.kv, 0, 0).pages, sizeof kept);
    pkv_seq_drop(f.kv, 1, 0, &(uint64_t){0x15}); /* pages 1 and 3 */
    assert_true(pkv_seq_has_dropped(f.kv, 1));
    assert_int_equal(pkv_count(f.kv).pages_dropped, 2);
    assert_memory_equal(pkv_seq_table(f.kv, 0, 0).pages, kept, sizeof kept);
    assert_int_equal(hit_of(&f, 64), 64);
    pkv_table_view view = pkv_seq_table(f.kv, 1, 0);
    assert_int_equal(view.n_pages, 3);
    assert_int_equal(view.kept_tokens, 38);
    assert_int_equal(pkv_seq_length(f.kv, 1), 70);
    assert_int_equal(view.pages[1], kept[2]);
    assert_int_equal(pkv_seq_position(f.kv, 1, 0, 16), 32);
    assert_int_equal(pkv_seq_position(f.kv, 1, 0, 37), 69);

    /* Tokens computed after the drop depend on it, and are not published. */
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 40)));
    assert_int_equal(pkv_seq_position(f.kv, 1, 0, 38), 70);
    f.n_events = 0;
    pkv_seq_publish(f.kv, 1, text(), 110);
    assert_int_equal(f.n_events, 0);
    assert_int_equal(hit_of(&f, 110), 64);
    /* Keeping every page is no drop. */
    pkv_seq_drop(f.kv, 0, 0, &(uint64_t){0x1f});
    assert_false(pkv_seq_has_dropped(f.kv, 0));
    end(&f);
}

static void two_sequences_compute_one_block(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &one_group, 13);
    uint32_t hit;
    /* Both open before either has published, so both compute blocks 0 and 1. */
    for (uint32_t q = 0; q < 2; q++) {
        assert_true(status_ok(pkv_seq_open(f.kv, q, PKV_HEAD, text(), 32, 0, 80, &hit)));
        assert_int_equal(hit, 0);
        assert_true(status_ok(pkv_seq_append(f.kv, q, 32)));
    }
    pkv_seq_publish(f.kv, 0, text(), 32);
    pkv_seq_publish(f.kv, 1, text(), 32);
    assert_int_equal(f.n_events, 2);
    /* The second continues under the first one's chain. */
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 16)));
    pkv_seq_publish(f.kv, 1, text(), 48);
    assert_int_equal(f.n_events, 3);
    assert_int_equal(f.events[2].parent, f.events[1].hash);
    assert_int_equal(hit_of(&f, 48), 48);
    assert_null(pkv_check_integrity(f.kv));

    /* The first one's pages are evicted: the chain is gone, though sequence 1 still holds its own
     * pages ... */
    pkv_seq_close(f.kv, 0);
    expect_counts(&f, 7, 3, 2);
    squeeze(&f, 2, 128);
    assert_int_equal(hit_of(&f, 48), 16);
    pkv_seq_close(f.kv, 2);
    /* ... and publishes them with its next block. */
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 16)));
    pkv_seq_publish(f.kv, 1, text(), 64);
    assert_int_equal(hit_of(&f, 64), 64);
    end(&f);
}

static void a_shared_tail_is_copied_before_it_is_written(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &two_groups, 30);
    fill(&f, 0, 20);
    pkv_take_deltas(f.kv);
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 40)));
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 2, 40)));
    expect_counts(&f, 25, 4, 0);
    assert_int_equal(pkv_append_cost(f.kv, 1, 1), 2);
    uint32_t shared[2] = {pkv_seq_table(f.kv, 0, 0).pages[1], pkv_seq_table(f.kv, 0, 1).pages[1]};
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 1)));
    assert_true(status_ok(pkv_seq_append(f.kv, 2, 1)));
    pkv_deltas d = pkv_take_deltas(f.kv);
    assert_int_equal(d.n_moves, 4);
    for (uint32_t g = 0; g < 2; g++) {
        const pkv_move *m = &d.moves[g];
        assert_int_equal(m->group, g);
        assert_int_equal(m->src_page, shared[g]);
        assert_int_equal(m->dst_page, pkv_seq_table(f.kv, 1, g).pages[1]);
        assert_int_equal(m->src_slot, 0);
        assert_int_equal(m->dst_slot, 0);
        assert_int_equal(m->n_slots, 4);
    }
    assert_int_equal(pkv_count(f.kv).slots_moved, 16);
    /* The last holder writes in place. */
    assert_int_equal(pkv_append_cost(f.kv, 0, 1), 0);
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 1)));
    assert_int_equal(pkv_seq_table(f.kv, 0, 0).pages[1], shared[0]);
    assert_int_equal(pkv_take_deltas(f.kv).n_moves, 0);
    end(&f);
}

/* Appends the tokens of text() from `from` to `to` and publishes them; returns whether the event
 * carried the tokens. */
static bool tells_tokens(fixture *f, uint32_t seq, uint32_t from, uint32_t to)
{
    int before = f->n_events;
    assert_true(status_ok(pkv_seq_append(f->kv, seq, to - from)));
    pkv_seq_publish(f->kv, seq, text(), to);
    assert_int_equal(f->n_events, before + 1);
    assert_true(f->events[before].stored && f->events[before].hash != 0);
    return f->events[before].with_tokens;
}

static void events_of_a_hidden_sequence_hold_no_tokens(void **state)
{
    (void)state;
    fixture f;
    uint32_t hit, parked;
    begin(&f, &one_group, 30);
    assert_true(status_ok(pkv_seq_open(f.kv, 0, PKV_HEAD, text(), 0, 0, 96, &hit)));
    assert_true(tells_tokens(&f, 0, 0, 16));
    pkv_seq_hide(f.kv, 0);
    assert_false(tells_tokens(&f, 0, 16, 32));
    /* Sequences derived from it hide their tokens too: a fork, and one resumed from its parked
     * pages. */
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 96)));
    assert_false(tells_tokens(&f, 1, 32, 48));
    assert_true(status_ok(park_whole(f.kv, 1, &parked)));
    assert_true(status_ok(unpark_whole(f.kv, parked, 2, 96)));
    assert_false(tells_tokens(&f, 2, 48, 64));
    /* Its blocks are hit like others, and the next sequence of this number is not hidden. */
    assert_int_equal(hit_of(&f, 64), 64);
    pkv_seq_close(f.kv, 0);
    assert_true(status_ok(pkv_seq_open(f.kv, 0, PKV_HEAD, text(), 64, 0, 96, &hit)));
    assert_int_equal(hit, 64);
    assert_true(tells_tokens(&f, 0, 64, 80));
    end(&f);
}

static void compaction_gathers_slots(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &one_group, 12);
    fill(&f, 0, 40);
    pkv_take_deltas(f.kv);
    uint32_t old[3], keep[20];
    memcpy(old, pkv_seq_table(f.kv, 0, 0).pages, sizeof old);
    for (uint32_t i = 0; i < 20; i++) keep[i] = i < 2 ? i : i + 12; /* 0, 1, 14 .. 31 */
    assert_true(status_ok(pkv_seq_compact(f.kv, 0, 0, keep, 20)));
    pkv_deltas d = pkv_take_deltas(f.kv);
    pkv_table_view view = pkv_seq_table(f.kv, 0, 0);
    assert_int_equal(view.n_pages, 2);
    const pkv_move want[] = {
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, old[0], 0, view.pages[0], 0, 2, 0, 1},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, old[0], 14, view.pages[0], 2, 2, 0, 1},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, old[1], 0, view.pages[0], 4, 12, 0, 1},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, old[1], 12, view.pages[1], 0, 4, 0, 1},
    };
    assert_int_equal(d.n_moves, 4);
    assert_memory_equal(d.moves, want, sizeof want);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(pkv_seq_position(f.kv, 0, 0, i), keep[i]);
    assert_int_equal(hit_of(&f, 40), 32); /* the pages that it left are still cached */
    expect_counts(&f, 7, 2, 2);
    /* New tokens fill the compacted page, each with its own position. */
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 15)));
    assert_int_equal(pkv_seq_position(f.kv, 0, 0, 20), 40);
    assert_int_equal(pkv_seq_position(f.kv, 0, 0, 32), 52);
    pkv_seq_drop(f.kv, 0, 0, &(uint64_t){0x6});
    assert_int_equal(pkv_seq_position(f.kv, 0, 0, 0), keep[16]);
    assert_int_equal(pkv_seq_position(f.kv, 0, 0, 4), 40);
    assert_int_equal(pkv_seq_position(f.kv, 0, 0, 16), 52);
    end(&f);
}

static void steady_steps_allocate_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &two_groups, 200);
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 200, SEQS, &f.alloc, &m)));
    uint32_t hit;
    for (int round = 0; round < 3; round++) {
        long before = f.calls;
        for (uint32_t q = 0; q < 4; q++) {
            assert_true(status_ok(pkv_seq_open(f.kv, q, PKV_HEAD, NULL, 0, 0, 160, &hit)));
        }
        for (uint32_t step = 0; step < 160; step++) {
            /* The first round allocates lists, and its first step makes the log as long as it
             * gets. */
            if (step == 1 && round == 0) before = f.calls;
            for (uint32_t q = 0; q < 4; q++) assert_true(status_ok(pkv_seq_append(f.kv, q, 1)));
            pkv_deltas d = pkv_take_deltas(f.kv);
            assert_true(status_ok(pkv_mirror_apply(m, d.words, d.n_words)));
        }
        for (uint32_t q = 0; q < 4; q++) pkv_seq_close(f.kv, q);
        pkv_deltas d = pkv_take_deltas(f.kv);
        assert_true(status_ok(pkv_mirror_apply(m, d.words, d.n_words)));
        assert_int_equal(f.calls, before);
    }
    pkv_mirror_destroy(m);
    end(&f);
}

static void a_drop_cannot_run_out_of_memory(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &two_groups, 100);
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 100, SEQS, NULL, &m)));
    fill(&f, 0, 160);
    fill(&f, 1, 160);
    f.fail_at = f.calls; /* every allocation before the next take fails */
    pkv_seq_drop(f.kv, 0, 1, &(uint64_t){0x3f5});
    pkv_seq_drop(f.kv, 0, 1, &(uint64_t){0xe7}); /* a second drop, merged into the first */
    pkv_seq_drop(f.kv, 1, 1, &(uint64_t){0x200});
    pkv_seq_close(f.kv, 1);
    assert_int_equal(f.calls, f.fail_at);
    pkv_deltas d = pkv_take_deltas(f.kv);
    assert_true(status_ok(pkv_mirror_apply(m, d.words, d.n_words)));
    assert_int_equal(pkv_mirror_checksum(m), pkv_checksum(f.kv));
    assert_int_equal(pkv_seq_table(f.kv, 0, 1).n_pages, 6);
    pkv_mirror_destroy(m);
    end(&f);
}

static void thousands_of_groups(void **state)
{
    (void)state;
    pkv_geometry g = {.page_tokens = P,
                      .n_layers = 64,
                      .n_kv_heads = 64,
                      .layers_per_group = 1,
                      .heads_per_group = 1};
    fixture f;
    begin(&f, &g, 4096 * 3 + 1);
    fill(&f, 0, 20);
    expect_counts(&f, 4096, 8192, 0);
    assert_int_equal(fill(&f, 1, 20), 16);
    expect_counts(&f, 0, 4096 * 3, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(geometry_is_checked),
        cmocka_unit_test(pages_come_and_go),
        cmocka_unit_test(equal_prefixes_are_shared),
        cmocka_unit_test(the_deepest_of_the_oldest_goes_first),
        cmocka_unit_test(a_reclaimed_page_takes_its_descendants_along),
        cmocka_unit_test(a_drop_touches_one_sequence_only),
        cmocka_unit_test(two_sequences_compute_one_block),
        cmocka_unit_test(a_shared_tail_is_copied_before_it_is_written),
        cmocka_unit_test(events_of_a_hidden_sequence_hold_no_tokens),
        cmocka_unit_test(compaction_gathers_slots),
        cmocka_unit_test(steady_steps_allocate_nothing),
        cmocka_unit_test(a_drop_cannot_run_out_of_memory),
        cmocka_unit_test(thousands_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
