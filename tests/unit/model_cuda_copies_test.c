/* Copies of pages to the host tier and back (model/cuda/copies.c) over an emulated GPU, which makes
 * the copies of a call in reverse and only when they are waited for. */
#include "model/cuda/backend.h"
#include "tests/simt/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PIECE = 48, PIECES = 2 * CUDA_COPIES_MOST + 100 };

typedef struct memories {
    backend_cuda b;
    uint8_t *here, *there; /* [PIECES, PIECE] on the device and on the host */
    simt_counts before;
} memories;

static memories open_memories(void)
{
    memories m = {.b.device.api = octavo_cuda_api(GPU_API_VERSION)};
    char why[64];
    void *at[2];
    const gpu_api *api = m.b.device.api;
    simt_be_late(1);
    assert_int_equal(api->open(0, &m.b.device.g, &m.b.device.facts, why, sizeof why), GPU_OK);
    assert_int_equal(api->alloc(m.b.device.g, PIECES * PIECE, &at[0]), GPU_OK);
    assert_int_equal(api->alloc_host(m.b.device.g, PIECES * PIECE, &at[1]), GPU_OK);
    m.here = at[0];
    m.there = at[1];
    for (size_t i = 0; i < PIECES * PIECE; i++) m.there[i] = (uint8_t)(i / PIECE * 31 + i);
    m.before = simt_counted();
    return m;
}

static void close_memories(memories *m)
{
    const gpu_api *api = m->b.device.api;
    cuda_copies_destroy(&m->b);
    api->release(m->b.device.g, m->here);
    api->release_host(m->b.device.g, m->there);
    api->close(m->b.device.g);
    simt_be_late(0);
}

static void add(memories *m, bool out, size_t here, size_t there)
{
    assert_true(status_ok(
        cuda_copies_add(&m->b, out, m->here + here * PIECE, m->there + there * PIECE, PIECE)));
}

static void finish(memories *m)
{
    assert_true(status_ok(cuda_copies_send(&m->b)));
    assert_int_equal(m->b.device.api->wait(m->b.device.g), GPU_OK);
}

/* Piece i of the host lies at PIECES - 1 - i of the device, then comes back to where it was. */
static void many_copies_are_few_calls(void **state)
{
    (void)state;
    memories m = open_memories();
    uint8_t *copy = malloc(PIECES * PIECE);
    assert_non_null(copy);
    memcpy(copy, m.there, PIECES * PIECE);
    for (size_t i = 0; i < PIECES; i++) add(&m, false, PIECES - 1 - i, i);
    finish(&m);
    for (size_t i = 0; i < PIECES; i++)
        assert_memory_equal(m.here + (PIECES - 1 - i) * PIECE, copy + i * PIECE, PIECE);
    memset(m.there, 0, PIECES * PIECE);
    for (size_t i = 0; i < PIECES; i++) add(&m, true, PIECES - 1 - i, i);
    finish(&m);
    assert_memory_equal(m.there, copy, PIECES * PIECE);
    simt_counts now = simt_counted();
    assert_int_equal(now.copies_in - m.before.copies_in, 3);
    assert_int_equal(now.copies_out - m.before.copies_out, 3);
    assert_int_equal(now.bytes_in - m.before.bytes_in, PIECES * PIECE);
    assert_int_equal(now.bytes_out - m.before.bytes_out, PIECES * PIECE);
    free(copy);
    close_memories(&m);
}

/* A piece goes out, and another one comes in to its place; and the other way round. */
static void the_two_ways_keep_their_order(void **state)
{
    (void)state;
    memories m = open_memories();
    uint8_t was[3][PIECE];
    memcpy(was, m.there, sizeof was);
    add(&m, false, 0, 0);
    add(&m, true, 0, 3);
    add(&m, false, 0, 1);
    add(&m, true, 0, 1);
    add(&m, false, 1, 1);
    finish(&m);
    assert_memory_equal(m.there + 3 * PIECE, was[0], PIECE);
    assert_memory_equal(m.here, was[1], PIECE);
    assert_memory_equal(m.here + PIECE, was[1], PIECE);
    assert_memory_equal(m.there + 2 * PIECE, was[2], PIECE);
    close_memories(&m);
}

/* A plan copies to a place twice: the later copy stays. */
static void what_comes_later_stays(void **state)
{
    (void)state;
    memories m = open_memories();
    uint8_t was[4][PIECE];
    memcpy(was, m.there, sizeof was);
    m.b.cells.n = m.b.host_cells.n = 8;
    for (int i = 0; i < 2; i++) {
        assert_true(status_ok(cuda_copies_begin(&m.b, false, 0, 2)));
        add(&m, false, 0, 0 + 2 * i);
        add(&m, false, 1, 1 + 2 * i);
    }
    assert_true(status_ok(cuda_copies_begin(&m.b, false, 1, 1)));
    add(&m, false, 1, 0);
    assert_true(status_ok(cuda_copies_begin(&m.b, true, 5, 1)));
    add(&m, true, 0, 5);
    assert_true(status_ok(cuda_copies_begin(&m.b, true, 4, 2)));
    add(&m, true, 0, 4);
    add(&m, true, 1, 5);
    finish(&m);
    assert_memory_equal(m.here, was[2], PIECE);
    assert_memory_equal(m.here + PIECE, was[0], PIECE);
    assert_memory_equal(m.there + 4 * PIECE, was[2], PIECE);
    assert_memory_equal(m.there + 5 * PIECE, was[0], PIECE);
    simt_counts now = simt_counted();
    assert_int_equal(now.copies_in - m.before.copies_in, 3);
    assert_int_equal(now.copies_out - m.before.copies_out, 2);
    close_memories(&m);
}

/* All copies to a cell are in one call, so that the next to the same cell come behind them all. */
static void copies_of_a_cell_are_in_one_call(void **state)
{
    (void)state;
    memories m = open_memories();
    m.b.cells.n = m.b.host_cells.n = PIECES;
    uint8_t last[PIECE];
    memcpy(last, m.there + 7 * PIECE, PIECE);
    for (uint32_t i = 0; i < CUDA_COPIES_MOST - 1; i++) add(&m, false, 10 + i, 10 + i);
    assert_true(status_ok(cuda_copies_begin(&m.b, false, 0, 1)));
    add(&m, false, 0, 5);
    add(&m, false, 1, 6);
    assert_true(status_ok(cuda_copies_begin(&m.b, false, 0, 1)));
    add(&m, false, 0, 6);
    add(&m, false, 1, 7);
    finish(&m);
    assert_memory_equal(m.here + PIECE, last, PIECE);
    close_memories(&m);
}

static void those_that_are_dropped_are_not_made(void **state)
{
    (void)state;
    memories m = open_memories();
    static const uint8_t zeros[PIECE];
    add(&m, false, 0, 0);
    cuda_copies_drop(&m.b);
    add(&m, false, 1, 1);
    finish(&m);
    finish(&m); /* nothing is left */
    assert_memory_equal(m.here, zeros, PIECE);
    assert_memory_equal(m.here + PIECE, m.there + PIECE, PIECE);
    assert_int_equal(simt_counted().copies_in - m.before.copies_in, 1);
    close_memories(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_copies_are_few_calls),
        cmocka_unit_test(the_two_ways_keep_their_order),
        cmocka_unit_test(what_comes_later_stays),
        cmocka_unit_test(copies_of_a_cell_are_in_one_call),
        cmocka_unit_test(those_that_are_dropped_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
