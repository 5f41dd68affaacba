/* Which pages of a pool are in memory: every page has the bytes that were written to it last,
 * memory holds no more pages than it may, and which ones follows from the calls alone. */
#include "model/cpu/kv_tier.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { CELLS = 96, FRAMES = 24, LAYERS = 4, PAGE = SPILL_ALIGN, ALL = CELLS * PAGE };

typedef struct fixture {
    char dir[64];
    uint8_t *memory;
    kv_tier *tier;
    uint32_t versions[CELLS]; // 0: never written
    _Atomic int read_errno, write_errno;
    _Atomic bool flips, slow;
    _Atomic uint32_t calls;
} fixture;

static void dawdle(fixture *f)
{
    uint32_t n = f->calls++;
    if (f->slow && n % 3 == 0) usleep(n % 7 * 50);
}

static ssize_t faulty_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    fixture *f = ctx;
    dawdle(f);
    errno = f->read_errno;
    ssize_t got = errno ? -1 : pread(fd, to, n, at);
    if (got > 0 && f->flips) ((uint8_t *)to)[got / 2] ^= 16;
    return got;
}

static ssize_t faulty_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    fixture *f = ctx;
    dawdle(f);
    errno = f->write_errno;
    return errno ? -1 : pwrite(fd, from, n, at);
}

static int setup(void **state)
{
    static disk_io io = {faulty_read, faulty_write, NULL, NULL};
    fixture *f = calloc(1, sizeof *f);
    error err = {{0}};
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.36s/octavo-tier-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->dir));
    f->memory = alloc_reserve(ALL);
    assert_non_null(f->memory);
    io.ctx = f;
    const kv_tier_options o = {f->dir, f->memory, PAGE, CELLS, FRAMES, LAYERS, &io};
    if (!status_ok(kv_tier_create(&o, &f->tier, &err))) fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    kv_tier_destroy(f->tier);
    alloc_pages_free(f->memory, ALL);
    rmdir(f->dir);
    free(f);
    return 0;
}

static uint32_t *words_of(const fixture *f, uint32_t cell)
{
    return (uint32_t *)(void *)(f->memory + (size_t)cell * PAGE);
}

static void write_cell(fixture *f, uint32_t cell)
{
    uint32_t version = ++f->versions[cell];
    for (uint32_t i = 0; i < PAGE / 4; i++) words_of(f, cell)[i] = version * 997 + cell * 13 + i;
}

static void check_cell(const fixture *f, uint32_t cell)
{
    uint32_t version = f->versions[cell];
    if (version == 0) return;
    for (uint32_t i = 0; i < PAGE / 4; i++)
        if (words_of(f, cell)[i] != version * 997 + cell * 13 + i)
            fail_msg("cell %u has not the bytes of version %u", cell, version);
}

static size_t pages_held(const fixture *f)
{
    unsigned char in[CELLS];
    size_t sum = 0;
    assert_int_equal(mincore(f->memory, ALL, in), 0);
    for (size_t i = 0; i < CELLS; i++) sum += in[i] & 1;
    return sum;
}

static status use_cells(fixture *f, const uint32_t *cells, uint32_t n, kv_use use)
{
    for (uint32_t i = 0; i < n; i++) kv_tier_want(f->tier, cells[i], use);
    status st = kv_tier_take(f->tier);
    for (uint32_t i = 0; i < n && status_ok(st); i++) {
        if (use != KV_FRESH) check_cell(f, cells[i]);
        if (use == KV_WRITE || use == KV_FRESH) write_cell(f, cells[i]);
    }
    kv_tier_release(f->tier, LAYERS);
    return st;
}

static status use_run(fixture *f, uint32_t first, uint32_t n, kv_use use)
{
    uint32_t cells[CELLS];
    for (uint32_t i = 0; i < n; i++) cells[i] = first + i;
    return use_cells(f, cells, n, use);
}

static void write_all(fixture *f)
{
    for (uint32_t i = 0; i < CELLS; i += 8) assert_true(status_ok(use_run(f, i, 8, KV_FRESH)));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A layer of a random step: cells of all uses in two takes, and the next layer's reads begin. */
static void random_layer(fixture *f, rng *r, uint32_t layer)
{
    struct {
        uint32_t cell;
        kv_use use;
    } used[FRAMES];
    bool seen[CELLS] = {false};
    uint32_t n = 0, most = 1 + rng_below(r, FRAMES);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t end = half ? most : most / 2; n < end;) {
            uint32_t cell = rng_below(r, CELLS);
            if (seen[cell]) continue;
            seen[cell] = true;
            used[n].cell = cell;
            used[n].use = (kv_use)rng_below(r, 4);
            kv_tier_want(f->tier, cell, used[n].use);
            if (rng_below(r, 4) == 0) kv_tier_want(f->tier, cell, KV_SCAN);
            n++;
        }
        assert_true(status_ok(kv_tier_take(f->tier)));
        assert_true(pages_held(f) <= FRAMES);
    }
    for (uint32_t i = rng_below(r, FRAMES); i > 0; i--)
        kv_tier_expect(f->tier, rng_below(r, CELLS));
    kv_tier_begin(f->tier, (layer + 1) % LAYERS);
    for (uint32_t i = 0; i < n; i++) {
        if (used[i].use != KV_FRESH) check_cell(f, used[i].cell);
        if (used[i].use == KV_WRITE || used[i].use == KV_FRESH) write_cell(f, used[i].cell);
    }
    kv_tier_release(f->tier, layer);
}

static backend_tier random_steps(fixture *f, uint64_t seed)
{
    rng r = rng_seed(seed);
    memset(f->versions, 0, sizeof f->versions);
    for (uint32_t step = 0; step < 60; step++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) random_layer(f, &r, layer);
    return kv_tier_count(f->tier);
}

static void pages_have_the_bytes_written_last(void **state)
{
    fixture *f = *state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        backend_tier c = random_steps(f, seed);
        assert_true(c.reads > 300 && c.writes > 300 && c.hits > 300 && c.ahead > 100);
        assert_int_equal(c.read_bytes, c.reads * PAGE);
        assert_int_equal(c.written_bytes, c.writes * PAGE);
    }
}

/* The same calls move the same pages, however long the disk takes. */
static void the_disk_decides_nothing(void **state)
{
    fixture *f = *state;
    fixture *other;
    backend_tier a = random_steps(f, 9);
    assert_int_equal(setup((void **)&other), 0);
    other->slow = true;
    backend_tier b = random_steps(other, 9);
    a.wait_us = b.wait_us = 0;
    assert_memory_equal(&a, &b, sizeof a);
    teardown((void **)&other);
}

/* ---- what stays ------------------------------------------------------------------------------ */

static void a_scan_leaves_what_was_selected(void **state)
{
    fixture *f = *state;
    write_all(f);
    assert_true(status_ok(use_run(f, 0, 10, KV_READ)));
    (void)kv_tier_count(f->tier);
    for (uint32_t i = 32; i < CELLS; i += 8) {
        assert_true(status_ok(use_run(f, i, 8, KV_SCAN)));
        assert_true(status_ok(use_run(f, 0, 10, KV_READ)));
    }
    assert_int_equal(kv_tier_count(f->tier).hits, 8 * 10 + 6); /* 90 to 95 never had to leave */
}

/* A scan again and again finds what fits beside the part that comes and goes. */
static void a_scan_finds_a_part(void **state)
{
    fixture *f = *state;
    write_all(f);
    for (uint32_t round = 0; round < 3; round++) {
        (void)kv_tier_count(f->tier);
        for (uint32_t i = 0; i < CELLS; i += 8) assert_true(status_ok(use_run(f, i, 8, KV_SCAN)));
    }
    backend_tier c = kv_tier_count(f->tier);
    assert_int_equal(c.hits, FRAMES - 8);
    assert_int_equal(c.writes, 0); /* the file has them since they left first */
}

/* Scanned pages leave newest first, but those that were found again leave last. */
static void of_scanned_pages_the_newest_leaves(void **state)
{
    fixture *f = *state;
    write_all(f);
    for (uint32_t found = 0; found <= 4; found += 4) { /* the first, or the last half, again */
        assert_true(status_ok(use_run(f, 0, 8, KV_SCAN)));
        if (found) assert_true(status_ok(use_run(f, found, 4, KV_SCAN)));
        assert_true(status_ok(use_run(f, 8, 4, KV_SCAN)));
        (void)kv_tier_count(f->tier);
        assert_true(status_ok(use_run(f, found, 4, KV_SCAN)));
        assert_int_equal(kv_tier_count(f->tier).hits, 4);
    }
}

/* A page that is written anew is not read before, and neighbours are read together. */
static void no_more_is_read_than_needed(void **state)
{
    fixture *f = *state;
    write_all(f);
    assert_true(status_ok(use_run(f, 80, 16, KV_SCAN)));
    assert_true(status_ok(use_run(f, 8, 8, KV_SCAN)));
    (void)kv_tier_count(f->tier);
    f->calls = 0;
    assert_true(status_ok(use_run(f, 16, 8, KV_SCAN)));
    assert_int_equal(f->calls, 1);
    assert_true(status_ok(use_run(f, 0, 8, KV_FRESH)));
    assert_int_equal(kv_tier_count(f->tier).reads, 8);
}

static void of_selected_pages_the_oldest_leaves(void **state)
{
    fixture *f = *state;
    const uint32_t again[] = {3, 17};
    assert_true(status_ok(use_run(f, 0, FRAMES, KV_FRESH)));
    assert_true(status_ok(use_cells(f, again, 2, KV_READ)));
    assert_true(status_ok(use_run(f, FRAMES, FRAMES - 2, KV_FRESH)));
    (void)kv_tier_count(f->tier);
    assert_true(status_ok(use_cells(f, again, 2, KV_READ)));
    assert_int_equal(kv_tier_count(f->tier).hits, 2);
}

/* A step in which each layer selects a half of its cells and scans the other half, which is
 * expected or not. 24 pages hold the 10 of one layer beside those of the next. Counts the steps
 * from the third on. */
static void run_layers(fixture *f, uint32_t step, bool expects, backend_tier *sum)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < 10; i++)
            kv_tier_want(f->tier, layer * 10 + i, i < 5 ? KV_READ : KV_SCAN);
        assert_true(status_ok(kv_tier_take(f->tier)));
        backend_tier c = kv_tier_count(f->tier);
        if (step > 1) backend_tier_add(sum, &c);
        for (uint32_t i = 5; expects && i < 10; i++)
            kv_tier_expect(f->tier, (layer + 1) % LAYERS * 10 + i);
        kv_tier_begin(f->tier, (layer + 1) % LAYERS);
        kv_tier_release(f->tier, layer);
    }
}

/* Pages that a layer selected, or is expected to scan, are in memory before it wants them. */
static void a_layer_finds_what_it_needs(void **state)
{
    fixture *f = *state;
    backend_tier c = {0};
    write_all(f);
    for (uint32_t step = 0; step < 3; step++) run_layers(f, step, true, &c);
    assert_int_equal(c.hits, LAYERS * 10);
    assert_true(c.reads > 0);
    assert_int_equal(c.reads, c.ahead);
}

/* A layer that scanned once, for something else than its rows' attention, finds nothing read in
 * vain when it does not scan again. */
static void a_scan_is_not_repeated(void **state)
{
    fixture *f = *state;
    backend_tier c = {0};
    write_all(f);
    run_layers(f, 0, false, &c);
    (void)kv_tier_count(f->tier);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < 5; i++) kv_tier_want(f->tier, layer * 10 + i, KV_READ);
        assert_true(status_ok(kv_tier_take(f->tier)));
        kv_tier_begin(f->tier, (layer + 1) % LAYERS);
        kv_tier_release(f->tier, layer);
    }
    assert_true(kv_tier_count(f->tier).reads <= LAYERS * 5);
}

/* ---- trouble --------------------------------------------------------------------------------- */

static void more_than_memory_holds_is_refused(void **state)
{
    fixture *f = *state;
    write_all(f);
    status st = use_run(f, 0, FRAMES + 1, KV_SCAN);
    assert_int_equal(st.code, STATUS_NO_MEMORY);
    assert_true(status_ok(use_run(f, 0, FRAMES, KV_SCAN)));
    assert_true(pages_held(f) <= FRAMES);
}

static void what_cannot_be_written_stays_in_memory(void **state)
{
    fixture *f = *state;
    assert_true(status_ok(use_run(f, 0, FRAMES, KV_FRESH)));
    for (uint32_t i = 0; i < 2; i++) {
        f->write_errno = i ? EIO : ENOSPC;
        status st = use_run(f, 40, 8, KV_FRESH);
        assert_int_equal(st.code, STATUS_IO);
        assert_non_null(strstr(st.message, "could not be written"));
        assert_true(pages_held(f) <= FRAMES);
    }
    assert_true(status_ok(use_run(f, 0, FRAMES, KV_READ))); /* all are still there */
    f->write_errno = 0;
    assert_true(status_ok(use_run(f, 40, 8, KV_FRESH)));
    for (uint32_t i = 0; i < 48; i += 8) assert_true(status_ok(use_run(f, i, 8, KV_SCAN)));
}

/* Pages that did not come because others could not leave are where they were. */
static void what_did_not_come_is_not_lost(void **state)
{
    fixture *f = *state;
    write_all(f);
    f->write_errno = EIO;
    assert_int_equal(use_run(f, 0, 8, KV_SCAN).code, STATUS_IO);
    f->write_errno = 0;
    assert_true(status_ok(use_run(f, 0, 8, KV_SCAN)));
}

/* Pages that could not be read have no place in memory: others get it without sending any away. */
static void what_cannot_be_read_takes_no_place(void **state)
{
    fixture *f = *state;
    write_all(f);
    f->read_errno = EIO;
    assert_int_equal(use_run(f, 0, 8, KV_SCAN).code, STATUS_IO); /* in place of 72 to 79 */
    f->read_errno = 0;
    assert_true(status_ok(use_run(f, 1, 8, KV_SCAN)));
    (void)kv_tier_count(f->tier);
    assert_true(status_ok(use_run(f, 80, 16, KV_SCAN)));
    assert_int_equal(kv_tier_count(f->tier).hits, 16);
}

static void check_lost(fixture *f, const char *why)
{
    status st = use_run(f, 0, 1, KV_SCAN);
    assert_int_equal(st.code, STATUS_IO);
    assert_non_null(strstr(st.message, why));
    f->flips = false;
    f->read_errno = 0;
    assert_int_equal(use_run(f, 0, 1, KV_SCAN).code, STATUS_INTERNAL); /* nobody can trust it */
    assert_true(status_ok(use_run(f, 1, 8, KV_SCAN)));
    assert_true(status_ok(use_run(f, 0, 1, KV_FRESH)));
    assert_true(status_ok(use_run(f, 0, 1, KV_READ)));
}

static void what_was_damaged_is_lost(void **state)
{
    fixture *f = *state;
    write_all(f);
    f->flips = true;
    check_lost(f, "damaged");
}

static void what_cannot_be_read_is_lost(void **state)
{
    fixture *f = *state;
    write_all(f);
    f->read_errno = EIO;
    check_lost(f, "could not be read");
}

/* Reads ahead that fail are made again when their pages are wanted. */
static void trouble_ahead_is_found_in_time(void **state)
{
    fixture *f = *state;
    write_all(f);
    for (uint32_t i = 0; i < 6; i++) kv_tier_want(f->tier, i, KV_SCAN);
    assert_true(status_ok(kv_tier_take(f->tier)));
    kv_tier_release(f->tier, 1);
    assert_true(status_ok(use_run(f, 24, 20, KV_SCAN)));
    f->read_errno = EIO;
    for (uint32_t i = 0; i < 6; i++) kv_tier_expect(f->tier, i);
    kv_tier_begin(f->tier, 1);
    assert_true(status_ok(kv_tier_take(f->tier))); /* nothing is wanted */
    f->read_errno = 0;
    assert_true(status_ok(use_run(f, 0, 6, KV_SCAN)));
    assert_int_equal(kv_tier_count(f->tier).ahead, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pages_have_the_bytes_written_last, setup, teardown),
        cmocka_unit_test_setup_teardown(the_disk_decides_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scan_leaves_what_was_selected, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scan_finds_a_part, setup, teardown),
        cmocka_unit_test_setup_teardown(of_scanned_pages_the_newest_leaves, setup, teardown),
        cmocka_unit_test_setup_teardown(of_selected_pages_the_oldest_leaves, setup, teardown),
        cmocka_unit_test_setup_teardown(no_more_is_read_than_needed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_layer_finds_what_it_needs, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scan_is_not_repeated, setup, teardown),
        cmocka_unit_test_setup_teardown(more_than_memory_holds_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_stays_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(what_did_not_come_is_not_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_takes_no_place, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_damaged_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(trouble_ahead_is_found_in_time, setup, teardown),
    };
    return cmocka_run_group_tests_name("kv_tier", tests, NULL, NULL);
}
