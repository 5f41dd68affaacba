/* K and V of cells over ranks that are arrays: which rank is asked for which cells, how many at
 * once, and what becomes of a rank that fails. */
#include "model/backend_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    RANKS = 4,
    SHARES = 2,
    SLICES = 2,
    SLOTS = 7,
    BYTES_AT_ONCE = 1 << 20,
    CELLS_AT_ONCE = 1024
};

typedef struct array_rank {
    backend_info info;
    pkv_cells cells;
    size_t cell_bytes;
    uint8_t *memory; /* [cells.n, cell_bytes] */
    uint32_t calls, most, fails_at;
    pthread_t reader;
    pthread_barrier_t *together; /* its first read waits for the others'; NULL: it does not */
} array_rank;

static const backend_info *array_info(void *ctx) { return &((array_rank *)ctx)->info; }

static uint8_t *place_of(const array_rank *r, uint32_t cell)
{
    assert_true(cell - r->cells.first < r->cells.n);
    return r->memory + (cell - r->cells.first) * r->cell_bytes;
}

static bool note_call(array_rank *r, uint32_t n)
{
    assert_true(n > 0);
    if (n > r->most) r->most = n;
    return ++r->calls != r->fails_at;
}

static bool array_read(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                       uint8_t *const *to, uint32_t each)
{
    array_rank *r = ctx;
    assert_int_equal(n_slots, SLOTS);
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i / each] + i % each * r->cell_bytes, place_of(r, cells[i]), r->cell_bytes);
    if (r->together && r->calls == 0) pthread_barrier_wait(r->together);
    r->reader = pthread_self();
    return note_call(r, n);
}

static bool array_write(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    array_rank *r = ctx;
    for (uint32_t i = 0; i < n; i++)
        memcpy(place_of(r, cells[i]), from + i * r->cell_bytes, r->cell_bytes);
    return note_call(r, n);
}

static const backend_ops array_ops = {
    .info = array_info, .read_cells = array_read, .write_cells = array_write};

typedef struct arrays {
    array_rank ranks[RANKS];
    rank of_group[RANKS];
    backend_ranks all;
    uint32_t n_cells; /* all of them, from 1 on */
    size_t cell_bytes;
} arrays;

/* Two ranks have the cells of each share, either a slice each, or both the same one. */
static void make_arrays(arrays *a, uint32_t n_cells, size_t cell_bytes, bool copies)
{
    *a = (arrays){.n_cells = n_cells, .cell_bytes = cell_bytes};
    for (uint32_t i = 0; i < RANKS; i++) {
        array_rank *r = &a->ranks[i];
        r->cells = (pkv_cells){1 + i / 2 * (n_cells / SHARES), n_cells / SHARES};
        r->cell_bytes = cell_bytes;
        r->memory = calloc(r->cells.n, cell_bytes);
        a->of_group[i] = (rank){.index = i,
                                .backend = {&array_ops, r},
                                .slice = {.cells = r->cells,
                                          .cell_bytes = cell_bytes,
                                          .place = copies ? 0 : i % 2,
                                          .n_slices = copies ? 1 : SLICES,
                                          .gives = !copies || i % 2 == 0}};
    }
    a->all = (backend_ranks){.ranks = a->of_group, .n_ranks = RANKS};
    a->all.info.geometry.layers_per_group = 1;
    for (uint32_t i = 0; i < RANKS; i++) a->of_group[i].all = &a->all;
}

static void free_arrays(arrays *a)
{
    for (uint32_t i = 0; i < RANKS; i++) free(a->ranks[i].memory);
}

/* All cells, in an order in which those of the shares alternate now and then. */
static void list_cells(const arrays *a, uint32_t *cells)
{
    rng r = rng_seed(3);
    for (uint32_t i = 0; i < a->n_cells; i++) cells[i] = 1 + i;
    for (uint32_t i = a->n_cells; i-- > 1;) {
        uint32_t k = rng_below(&r, i + 1), cell = cells[i];
        cells[i] = cells[k];
        cells[k] = cell;
    }
}

static void reset(arrays *a)
{
    for (uint32_t i = 0; i < RANKS; i++)
        a->ranks[i].calls = a->ranks[i].most = a->ranks[i].fails_at = 0;
}

static void expect_most(const arrays *a, uint32_t most, bool gives_alone)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        bool asked = !gives_alone || a->of_group[i].slice.gives;
        assert_int_equal(a->ranks[i].most, asked ? most : 0);
    }
}

/* Bytes that are written come back, to one place and to two. */
static void check_copies(uint32_t n_cells, size_t cell_bytes, bool copies, uint32_t most)
{
    arrays a;
    make_arrays(&a, n_cells, cell_bytes, copies);
    size_t slices = a.of_group[0].slice.n_slices, whole = slices * cell_bytes, n = n_cells * whole;
    uint8_t *bytes = malloc(n), *got = malloc(n), *places[2] = {got + n / 2, got};
    uint32_t *cells = malloc(n_cells * sizeof *cells);
    rng r = rng_seed(cell_bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)rng_u32(&r);
    list_cells(&a, cells);
    assert_true(ranks_write_cells(&a.all, cells, n_cells, bytes));
    expect_most(&a, most, false);
    for (uint32_t i = 0; i < n_cells; i++)
        for (uint32_t k = 0; k < RANKS; k++) {
            if (cells[i] - a.ranks[k].cells.first >= a.ranks[k].cells.n) continue;
            const uint8_t *slice = bytes + i * whole + a.of_group[k].slice.place * cell_bytes;
            assert_memory_equal(place_of(&a.ranks[k], cells[i]), slice, cell_bytes);
        }
    for (uint32_t driven = 0; driven < 2; driven++) {
        pthread_barrier_t together;
        pthread_barrier_init(&together, NULL, copies ? RANKS / 2 : RANKS);
        a.all.driven = driven;
        reset(&a);
        for (uint32_t i = 0; i < RANKS; i++) a.ranks[i].together = driven ? &together : NULL;
        memset(got, 0, n);
        assert_true(ranks_read_cells(&a.all, cells, n_cells, SLOTS, &got, n_cells));
        assert_memory_equal(got, bytes, n);
        expect_most(&a, most, true);
        for (uint32_t i = 0; i < RANKS; i++)
            if (a.ranks[i].calls && !driven)
                assert_true(pthread_equal(a.ranks[i].reader, pthread_self()));
        memset(got, 0, n);
        assert_true(ranks_read_cells(&a.all, cells, n_cells, SLOTS, places, n_cells / 2));
        assert_memory_equal(places[0], bytes, n / 2);
        assert_memory_equal(places[1], bytes + n / 2, n / 2);
        pthread_barrier_destroy(&together);
    }
    free(cells);
    free(bytes);
    free(got);
    free_arrays(&a);
}

static void cells_are_copied_by_their_ranks(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        check_copies(2, 8, copies, 1);
        check_copies(6 * CELLS_AT_ONCE + 8, 8, copies, CELLS_AT_ONCE);
        check_copies(20, BYTES_AT_ONCE / 3, copies, 3);
        check_copies(4, BYTES_AT_ONCE + 8, copies, 1);
    }
}

/* A rank that fails in its second call fails the whole. Ranks that are read one after the other are
 * not asked behind it; ranks that are read at the same time all are. */
static void a_rank_may_fail(void **state)
{
    (void)state;
    enum { CELLS = 20 };
    for (uint32_t failing = 0; failing < RANKS; failing++) {
        arrays a;
        make_arrays(&a, CELLS, BYTES_AT_ONCE / 3, false);
        uint32_t cells[CELLS];
        uint8_t *bytes = calloc(CELLS * SLICES, a.cell_bytes);
        list_cells(&a, cells);
        a.ranks[failing].fails_at = 2;
        assert_false(ranks_write_cells(&a.all, cells, CELLS, bytes));
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(a.ranks[i].calls, i < failing ? 4 : i == failing ? 2 : 0);
        for (uint32_t driven = 0; driven < 2; driven++) {
            a.all.driven = driven;
            reset(&a);
            a.ranks[failing].fails_at = 2;
            assert_false(ranks_read_cells(&a.all, cells, CELLS, SLOTS, &bytes, CELLS));
            for (uint32_t i = 0; i < RANKS; i++)
                assert_int_equal(a.ranks[i].calls, i == failing            ? 2
                                                   : i < failing || driven ? 4
                                                                           : 0);
        }
        free(bytes);
        free_arrays(&a);
    }
}

/* ---- what the group says of blocks ----------------------------------------------------------- */

enum { BLOCK = 4096 };

static backend_info info_of_blocks(arrays *a, uint32_t n_ranks)
{
    for (uint32_t i = 0; i < n_ranks; i++)
        a->of_group[i].backend = (backend){&array_ops, &a->ranks[i]};
    a->all = (backend_ranks){.ranks = a->of_group, .n_ranks = n_ranks, .info = a->ranks[0].info};
    ranks_know_blocks(&a->all);
    return a->all.info;
}

static void blocks_are_of_all_ranks(void **state)
{
    (void)state;
    arrays a = {0};
    for (uint32_t i = 0; i < RANKS; i++)
        a.ranks[i].info = (backend_info){.n_pages = 101,
                                         .block_bytes = BLOCK,
                                         .block_identity = 7 + i,
                                         .kv_identity = 5 + i,
                                         .kv_kind = 3,
                                         .geometry = {.page_tokens = 16,
                                                      .n_layers = 2,
                                                      .n_kv_heads = 4,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = 4}};
    backend_info two = info_of_blocks(&a, 2), four = info_of_blocks(&a, RANKS);
    assert_int_equal(two.block_bytes, 2 * BLOCK);
    assert_int_equal(four.block_bytes, 4 * BLOCK);
    assert_true(two.kv_identity != 0 && four.kv_identity != 0);
    assert_true(two.kv_identity != four.kv_identity);
    assert_int_not_equal(two.block_identity, four.block_identity);
    assert_true(two.kv_kind == 3 && four.kv_kind == 3); /* groups of any size */
    for (uint32_t i = 0; i < RANKS; i++) {
        a.ranks[i].info.block_identity = 99;
        assert_int_not_equal(info_of_blocks(&a, RANKS).block_identity, four.block_identity);
        a.ranks[i].info.block_identity = 7 + i;
        a.ranks[i].info.kv_identity = 99;
        assert_true(info_of_blocks(&a, RANKS).kv_identity != four.kv_identity);
        a.ranks[i].info.kv_identity = 0;
        assert_int_equal(info_of_blocks(&a, RANKS).kv_identity, 0);
        assert_int_equal(info_of_blocks(&a, RANKS).kv_kind, 0);
        a.ranks[i].info.kv_identity = 5 + i;
        a.ranks[i].info.kv_kind = 4;
        assert_int_equal(info_of_blocks(&a, RANKS).kv_kind, 0);
        assert_int_equal(info_of_blocks(&a, RANKS).kv_identity, 0);
        a.ranks[i].info.kv_kind = 3;
        a.ranks[i].info.block_bytes *= 2;
        assert_int_equal(info_of_blocks(&a, RANKS).kv_identity, 0);
        assert_int_equal(info_of_blocks(&a, RANKS).block_bytes, 0);
        a.ranks[i].info.block_bytes = 0;
        assert_int_equal(info_of_blocks(&a, RANKS).block_bytes, 0);
        a.ranks[i].info.block_bytes = BLOCK;
    }
    a.ranks[0].info.block_identity = 8;
    a.ranks[1].info.block_identity = 7;
    assert_int_not_equal(info_of_blocks(&a, 2).block_identity, two.block_identity);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_are_copied_by_their_ranks),
        cmocka_unit_test(a_rank_may_fail),
        cmocka_unit_test(blocks_are_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
