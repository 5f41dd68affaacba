/* Moves between pages of a pool that is larger than memory: what a move reads is in memory as it
 * was, and what it writes stays. */
#include "model/cpu/kv_hold.h"
#include "model/cpu/kv_tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* The rank has cells FIRST .. FIRST + CELLS - 1 of the pool. */
enum { FIRST = 11, CELLS = 12, FRAMES = 3, PAGE = SPILL_ALIGN, USABLE = 40, HOST = 9 };

typedef struct held {
    char dir[4096];
    uint8_t *memory;
    kv_store store;
} held;

static uint8_t *cell_of(held *h, uint32_t page)
{
    return h->memory + (size_t)(page - FIRST) * PAGE;
}

static uint8_t byte_of(uint32_t page) { return (uint8_t)(page * 7 + 3); }

static void use(held *h, uint32_t page, kv_use kind)
{
    kv_tier_want(h->store.tier, page - FIRST, kind);
    assert_true(status_ok(kv_tier_take(h->store.tier)));
}

static void release(held *h) { kv_tier_release(h->store.tier, 1); }

/* Every page has been written, and all but the last FRAMES have left memory. */
static int setup(void **state)
{
    held *h = calloc(1, sizeof *h);
    error err = {{0}};
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(h->dir, sizeof h->dir, "%s/octavo-hold-XXXXXX", tmp ? tmp : "/tmp");
    assert_in_range(n, 1, sizeof h->dir - 1);
    assert_non_null(mkdtemp(h->dir));
    h->memory = alloc_reserve((size_t)CELLS * PAGE);
    const kv_tier_options o = {.dir = h->dir,
                               .memory = h->memory,
                               .page_bytes = PAGE,
                               .n_cells = CELLS,
                               .n_frames = FRAMES,
                               .n_layers = 1};
    h->store = (kv_store){.n_pages = USABLE + 1,
                          .cells = {FIRST, CELLS},
                          .geometry = {.page_tokens = 16,
                                       .n_layers = 1,
                                       .n_kv_heads = 1,
                                       .layers_per_group = 1,
                                       .heads_per_group = 1}};
    if (!status_ok(kv_tier_create(&o, &h->store.tier, &err))) fail_msg("%s", err.text);
    for (uint32_t page = FIRST; page < FIRST + CELLS; page++) {
        use(h, page, KV_FRESH);
        memset(cell_of(h, page), byte_of(page), PAGE);
        release(h);
    }
    (void)kv_tier_count(h->store.tier);
    *state = h;
    return 0;
}

static int teardown(void **state)
{
    held *h = *state;
    kv_tier_destroy(h->store.tier);
    munmap(h->memory, (size_t)CELLS * PAGE);
    int left = rmdir(h->dir);
    free(h);
    return left;
}

static void expect_bytes(held *h, uint32_t page, uint8_t first, uint8_t rest)
{
    const uint8_t *at = cell_of(h, page);
    assert_int_equal(at[0], first);
    for (uint32_t i = 1; i < PAGE; i++) assert_int_equal(at[i], rest);
}

/* Holds the move; returns how many pages came from the disk for it. */
static uint64_t hold(held *h, pkv_move m)
{
    assert_true(status_ok(kv_hold_move(&h->store, &m, HOST)));
    return kv_tier_count(h->store.tier).reads;
}

/* Memory has the last pages alone. */
static void leave(held *h)
{
    for (uint32_t page = FIRST + CELLS - FRAMES; page < FIRST + CELLS; page++) {
        use(h, page, KV_READ);
        release(h);
    }
    (void)kv_tier_count(h->store.tier);
}

/* Writes to the page, as a move does, has all others used, and finds what was written. */
static void expect_kept(held *h, uint32_t page, uint8_t rest)
{
    cell_of(h, page)[0] = 99;
    release(h);
    for (uint32_t other = FIRST; other < FIRST + CELLS; other++) {
        if (other == page) continue;
        use(h, other, KV_READ);
        expect_bytes(h, other, byte_of(other), byte_of(other));
        release(h);
    }
    (void)kv_tier_count(h->store.tier);
    use(h, page, KV_READ);
    assert_int_equal(kv_tier_count(h->store.tier).reads, 1);
    expect_bytes(h, page, 99, rest);
    release(h);
}

enum { FROM = FIRST, TO = FIRST + 1, ELSEWHERE = FIRST + CELLS };

/* Slots that are moved into a page leave its other slots as they are. */
static void other_slots_stay(void **state)
{
    held *h = *state;
    for (uint32_t fresh = 0; fresh < 2; fresh++) {
        pkv_move m = {.src_page = FROM, .dst_page = TO, .n_slots = 2, .fresh = fresh};
        if (fresh) m.dst_slot = 2; /* the page's first slots came by a move before */
        leave(h);
        assert_int_equal(hold(h, m), 2);
        expect_bytes(h, FROM, byte_of(FROM), byte_of(FROM));
        expect_bytes(h, TO, fresh ? 99 : byte_of(TO), byte_of(TO));
        expect_kept(h, TO, byte_of(TO));
    }
}

/* Nothing is read of a page that is filled from its first slot on. */
static void fresh_pages_are_not_read(void **state)
{
    held *h = *state;
    pkv_move m = {.src_page = FROM, .dst_page = TO, .n_slots = 2, .fresh = 1};
    assert_int_equal(hold(h, m), 1);
    expect_bytes(h, FROM, byte_of(FROM), byte_of(FROM));
    memset(cell_of(h, TO), byte_of(TO), PAGE);
    expect_kept(h, TO, byte_of(TO));
}

/* Whole pages go to the host tier and come back: of the host's pages nothing is held here. */
static void pages_of_the_host_tier_are_not_held(void **state)
{
    held *h = *state;
    pkv_move out = {.kind = PKV_MOVE_OUT, .src_page = FROM, .dst_page = TO, .n_slots = 16};
    assert_int_equal(hold(h, out), 1);
    expect_bytes(h, FROM, byte_of(FROM), byte_of(FROM));
    release(h);
    pkv_move in = {.kind = PKV_MOVE_IN, .src_page = FROM + 4, .dst_page = TO, .n_slots = 16};
    assert_int_equal(hold(h, in), 0);
    memset(cell_of(h, TO), byte_of(TO), PAGE);
    expect_kept(h, TO, byte_of(TO));
}

/* A cell that another rank has is none of this one's memory. */
static void cells_of_other_ranks_are_not_held(void **state)
{
    held *h = *state;
    assert_int_equal(hold(h, (pkv_move){.src_page = ELSEWHERE, .dst_page = TO, .n_slots = 1}), 1);
    expect_kept(h, TO, byte_of(TO));
    assert_int_equal(hold(h, (pkv_move){.src_page = FROM, .dst_page = ELSEWHERE, .n_slots = 1}), 1);
    release(h);
    assert_int_equal(hold(h, (pkv_move){.src_page = 1, .dst_page = 2, .n_slots = 1}), 0);
    release(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(other_slots_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(fresh_pages_are_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_of_the_host_tier_are_not_held, setup, teardown),
        cmocka_unit_test_setup_teardown(cells_of_other_ranks_are_not_held, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
