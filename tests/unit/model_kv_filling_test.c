/* Pages that are read as bf16: filling pages, which are quantised when they are full and are read
 * as bf16 until then, and the residual behind them. */
#include "model/cpu/kv_filling.h"
#include "tests/unit/paged_kv_whole.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

enum { P = 32, DIM = 16, PAGES = 64, HOST_PAGES = 20, SEQS = 2, ROWS = 64 };
enum { LOUD = 1 << 18 }; /* tokens from here on are a thousand times as large */

typedef struct fixture {
    thread_pool *threads;
    kern_context *kernels;
    pkv *kv;
    pkv_mirror *mirror;
    kv_store store;
    kern_kv_shape wide;
    kv_filling *filling;
} fixture;

/* Layers share their pages; this rank's first head is the first of all heads. */
static int setup_model(void **state, uint32_t layers, uint32_t heads, uint32_t residual)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    pkv_geometry g = {.page_tokens = P,
                      .n_layers = layers,
                      .n_kv_heads = heads,
                      .layers_per_group = layers,
                      .heads_per_group = 1};
    kv_store_layout(&f->store, KERN_KV_INT4, &g, DIM, 0, 1);
    f->store.residual_pages = residual;
    f->wide = kern_kv_wide(&f->store.shape);
    f->store.n_pages = PAGES;
    f->store.n_cells = pkv_cell_count(&g, PAGES - 1);
    f->store.n_host_cells = pkv_cell_count(&g, HOST_PAGES);
    f->store.data = calloc(PAGES, f->store.page_bytes);
    f->store.host = calloc(HOST_PAGES, f->store.page_bytes);
    pkv_options kv = {
        .geometry = g, .n_pages = PAGES, .max_seqs = SEQS, .n_host_pages = HOST_PAGES};
    thread_pool_options one = {.n_threads = 1};
    if (!status_ok(thread_pool_create(&one, &f->threads)) ||
        !status_ok(kern_create(&(kern_options){.pool = f->threads}, &f->kernels, NULL)) ||
        !status_ok(pkv_create(&kv, &f->kv)) ||
        !status_ok(pkv_mirror_create(&g, PAGES, SEQS, NULL, &f->mirror)))
        return -1;
    kv_filling_options o = {.store = &f->store,
                            .mirror = f->mirror,
                            .kernels = f->kernels,
                            .pool = f->threads,
                            .n_host_pages = HOST_PAGES,
                            .max_rows = ROWS,
                            .max_seqs = SEQS};
    return status_ok(kv_filling_create(&o, &f->filling)) ? 0 : -1;
}

static int setup(void **state) { return setup_model(state, 1, 1, 0); }
static int setup_layers(void **state) { return setup_model(state, 2, 1, 0); }
static int setup_ranks(void **state) { return setup_model(state, 1, 2, 0); }
static int setup_residual(void **state) { return setup_model(state, 2, 1, 1); }

static int teardown(void **state)
{
    fixture *f = *state;
    kv_filling_destroy(f->filling);
    pkv_mirror_destroy(f->mirror);
    pkv_destroy(f->kv);
    kern_destroy(f->kernels);
    thread_pool_destroy(f->threads);
    free(f->store.data);
    free(f->store.host);
    free(f);
    return 0;
}

/* ---- the effect of a plan -------------------------------------------------------------------- */

static void apply(fixture *f)
{
    pkv_deltas d = pkv_take_deltas(f->kv);
    assert_true(status_ok(pkv_mirror_apply(f->mirror, d.words, d.n_words)));
    for (size_t i = 0; i < d.n_moves; i++) {
        const pkv_move *m = &d.moves[i];
        assert_true(status_ok(m->kind == PKV_MOVE_SLOTS ? kv_filling_move(f->filling, NULL, m)
                                                        : kv_filling_copy(f->filling, m)));
    }
}

static float value_of(uint32_t token, uint32_t d)
{
    return sinf((float)(token * DIM + d)) * (token >= LOUD ? 1e3f : 1.0f);
}

static void write_layer(fixture *f, uint32_t layer, uint32_t seq, uint32_t first, uint32_t n)
{
    pkv_table_view table = pkv_mirror_table(f->mirror, seq, 0);
    forward_seq rows = {.seq = seq, .n_rows = n};
    assert_true(status_ok(kv_filling_begin(f->filling, layer, &rows, 1)));
    const uint8_t *const *tiles = kv_filling_tiles(f->filling, 0, 0);
    uint32_t slot = table.kept_tokens - n, first_page = kv_store_first_wide(&f->store, slot);
    for (uint32_t i = 0; i < n; i++, slot++) {
        float k[DIM], v[DIM];
        for (uint32_t d = 0; d < DIM; d++) k[d] = v[d] = value_of(first + i, d);
        kern_kv_write(f->kernels, &f->wide, (uint8_t *)tiles[slot / P - first_page], slot % P, k,
                      v);
    }
    kv_filling_store(f->filling);
    kv_filling_end(f->filling, layer);
}

/* Appends rows of tokens first .. first + n. */
static void append(fixture *f, uint32_t seq, uint32_t first, uint32_t n)
{
    assert_true(status_ok(pkv_seq_append(f->kv, seq, n)));
    apply(f);
    for (uint32_t layer = 0; layer < f->store.geometry.n_layers; layer++)
        write_layer(f, layer, seq, first, n);
}

/* The largest error of the token in `slot` of a table, as the table's next row would read its own
 * page, and as other pages are stored. */
static float error_in(fixture *f, uint32_t layer, uint32_t seq, uint32_t slot, uint32_t token)
{
    pkv_table_view table = pkv_mirror_table(f->mirror, seq, 0);
    const uint8_t *tile =
        f->store.data + table.pages[slot / P] * f->store.page_bytes + layer * f->store.tile_bytes;
    const kern_kv_shape *shape = &f->store.shape;
    float k[DIM], v[DIM], worst = 0.0f;
    uint32_t first_wide = kv_store_first_wide(&f->store, table.kept_tokens);
    if (slot / P >= first_wide && table.kept_tokens % P != 0) { /* its last page is not full */
        forward_seq rows = {.seq = seq, .n_rows = 1};
        assert_true(status_ok(kv_filling_begin(f->filling, layer, &rows, 1)));
        const uint8_t *wide = kv_filling_tiles(f->filling, 0, 0)[slot / P - first_wide];
        if (wide) tile = wide, shape = &f->wide;
    }
    kern_kv_read(f->kernels, shape, tile, slot % P, k, v);
    for (uint32_t d = 0; d < DIM; d++) {
        worst = fmaxf(worst, fabsf(k[d] - value_of(token, d)));
        worst = fmaxf(worst, fabsf(v[d] - value_of(token, d)));
    }
    return worst;
}

static float error_of(fixture *f, uint32_t seq, uint32_t slot, uint32_t token)
{
    float worst = 0.0f;
    for (uint32_t layer = 0; layer < f->store.geometry.n_layers; layer++)
        worst = fmaxf(worst, error_in(f, layer, seq, slot, token));
    return worst;
}

enum { STORED = 0, FILLING = 1 };
/* STORED: half a step of 2 / 15, for values quantised three times; FILLING: the rounding of
 * bf16. */
static const float most[] = {0.21f, 0.005f};

static void expect(fixture *f, uint32_t seq, uint32_t slot, uint32_t token, int how)
{
    float e = error_of(f, seq, slot, token);
    if (e > most[how])
        fail_msg("slot %u of sequence %u is %g from token %u", slot, seq, (double)e, token);
}

static void open_seq(fixture *f, uint32_t seq)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, NULL, 0, 0, 100, &hit)));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void full_pages_are_stored(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    append(f, 0, 0, 40);
    append(f, 0, 40, 1);
    for (uint32_t i = 0; i < 41; i++) expect(f, 0, i, i, i < P ? STORED : FILLING);
    append(f, 0, 41, 23);
    for (uint32_t i = 0; i < 64; i++) expect(f, 0, i, i, STORED);
}

static void forks_and_swaps_take_them_along(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    append(f, 0, 0, 40);
    assert_true(status_ok(pkv_seq_fork(f->kv, 0, 1, 100)));
    append(f, 1, 1000, 2);
    append(f, 0, 40, 2);
    uint32_t swap, parked, tokens[42] = {0};
    assert_true(status_ok(pkv_seq_swap_out(f->kv, 1, &swap)));
    apply(f);
    assert_true(status_ok(park_whole(f->kv, 0, &parked)));
    apply(f);
    open_seq(f, 0); /* other sequences come and go */
    append(f, 0, 500, 50);
    pkv_seq_close(f->kv, 0);
    assert_true(status_ok(pkv_swap_in(f->kv, swap, 1, tokens, 100)));
    assert_true(status_ok(unpark_whole(f->kv, parked, 0, 100)));
    apply(f);
    for (uint32_t i = P; i < 40; i++) expect(f, 0, i, i, FILLING), expect(f, 1, i, i, FILLING);
    for (uint32_t i = 40; i < 42; i++) {
        expect(f, 0, i, i, FILLING);
        expect(f, 1, i, 960 + i, FILLING);
    }
}

static void choices_move_slots(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    append(f, 0, 0, 75);
    uint64_t keep[2] = {~(UINT64_C(1) << 3), UINT64_MAX}; /* one hole: the last slot fills it */
    assert_true(status_ok(pkv_seq_keep(f->kv, 0, 0, keep, false)));
    apply(f);
    expect(f, 0, 3, 74, STORED);
    expect(f, 0, 4, 4, STORED);
    expect(f, 0, 70, 70, FILLING);
    uint32_t list[41], n = 0; /* gathered: 31 slots of the first pages and the 10 after them */
    keep[0] = 0xff00ff00ff00fe00;
    for (uint32_t i = 0; i < 74; i++)
        if (keep[i / 64] >> i % 64 & 1) list[n++] = i;
    assert_int_equal(n, 41);
    assert_true(status_ok(pkv_seq_keep(f->kv, 0, 0, keep, false)));
    apply(f);
    for (uint32_t i = 0; i < 41; i++) expect(f, 0, i, list[i], i < P ? STORED : FILLING);
    /* Cut to a full page: the page is written again. */
    keep[0] = 0xfffff;
    keep[0] |= UINT64_C(1) << 33;
    assert_true(status_ok(pkv_seq_keep(f->kv, 0, 0, keep, false)));
    apply(f);
    append(f, 0, 200, 20);
    for (uint32_t i = 0; i < 20; i++) expect(f, 0, i, list[i], STORED);
    expect(f, 0, 20, list[33], STORED);
    for (uint32_t i = 21; i < 41; i++) expect(f, 0, i, 179 + i, i < P ? STORED : FILLING);
}

/* More pages wait to be filled than there are bf16 tiles: the first of them are quantised early. */
static void too_many_wait(void **state)
{
    fixture *f = *state;
    enum { WAIT = 15 };
    uint32_t swaps[WAIT], tokens[P] = {0};
    open_seq(f, 0);
    append(f, 0, LOUD, P - 1); /* loud values behind a page's tokens must not affect it */
    pkv_seq_close(f->kv, 0);
    for (uint32_t i = 0; i < WAIT; i++) {
        open_seq(f, 0);
        append(f, 0, 100 * i, 5);
        assert_true(status_ok(pkv_seq_swap_out(f->kv, 0, &swaps[i])));
        apply(f);
    }
    uint32_t exact = 0;
    for (uint32_t i = 0; i < WAIT; i++) {
        assert_true(status_ok(pkv_swap_in(f->kv, swaps[i], 1, tokens, 100)));
        apply(f);
        for (uint32_t slot = 0; slot < 5; slot++) expect(f, 1, slot, 100 * i + slot, STORED);
        exact += error_of(f, 1, 2, 100 * i + 2) <= most[FILLING];
        pkv_seq_close(f->kv, 1);
        apply(f);
    }
    assert_true(exact >= SEQS && exact < WAIT);
}

/* Pages that ended requests leave behind take no tile from a parked sequence. */
static void what_ended_gives_way(void **state)
{
    fixture *f = *state;
    uint32_t parked;
    open_seq(f, 0);
    append(f, 0, 0, 5);
    assert_true(status_ok(park_whole(f->kv, 0, &parked)));
    apply(f);
    for (uint32_t pages = 16; pages > 0; pages--) {
        open_seq(f, 1);
        for (uint32_t i = 1; i < pages; i++) append(f, 1, 500, P);
        append(f, 1, 900, 5);
        pkv_seq_close(f->kv, 1);
        apply(f);
    }
    assert_true(status_ok(unpark_whole(f->kv, parked, 0, 100)));
    apply(f);
    for (uint32_t i = 0; i < 5; i++) expect(f, 0, i, i, FILLING);
}

/* A page with a tile may go to another rank's table; this rank then does not write it. */
static void others_take_no_tiles(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    for (uint32_t i = 0; i < 25; i++) {
        open_seq(f, 1);
        append(f, 1, 900, 5);
        pkv_seq_close(f->kv, 1);
        append(f, 0, P * i, P);
    }
    for (uint32_t i = 0; i < 25 * P; i++) expect(f, 0, i, i, STORED);
}

/* A whole page is copied over a page that was not full. */
static void copies_are_all_that_is_left(void **state)
{
    fixture *f = *state;
    uint32_t swap, tokens[P] = {0};
    open_seq(f, 0);
    append(f, 0, 500, 40);
    pkv_seq_close(f->kv, 0);
    open_seq(f, 1);
    append(f, 1, 0, P);
    assert_true(status_ok(pkv_seq_fork(f->kv, 1, 0, 100)));
    assert_true(status_ok(pkv_seq_unshare(f->kv, 0)));
    apply(f);
    assert_true(status_ok(pkv_seq_swap_out(f->kv, 0, &swap)));
    open_seq(f, 0);
    append(f, 0, LOUD, P);
    pkv_seq_close(f->kv, 0);
    assert_true(status_ok(pkv_swap_in(f->kv, swap, 0, tokens, 100)));
    apply(f);
    for (uint32_t i = 0; i < P; i++) expect(f, 0, i, i, STORED);
}

/* ---- a residual of one page ------------------------------------------------------------------ */

/* Tokens first .. first + n are in the slots of the same numbers; slots from `wide` on are read as
 * bf16. */
static void expect_residual(fixture *f, uint32_t seq, uint32_t n, uint32_t wide)
{
    float worst = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        expect(f, seq, i, i, i < wide ? STORED : FILLING);
        if (i < wide) worst = fmaxf(worst, error_of(f, seq, i, i));
    }
    if (wide > 0) assert_true(worst > most[FILLING]);
}

/* However tokens arrive, and however many pages a sequence has moved past. */
static void a_residual_follows_the_rows(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    append(f, 0, 0, 50);
    expect_residual(f, 0, 50, 0);
    append(f, 0, 50, 50);
    expect_residual(f, 0, 100, 64);
    append(f, 0, 100, 28);
    append(f, 0, 128, 1);
    expect_residual(f, 0, 129, 96);
    for (uint32_t n = 129; n < 50 * P; n += 37) append(f, 0, n, 37);
    expect_residual(f, 0, 129, 129);
}

/* Rows of a step planned ahead are taken back, although the first of them began a new page. */
static void a_residual_outlives_rows_taken_back(void **state)
{
    fixture *f = *state;
    open_seq(f, 0);
    append(f, 0, 0, 95);
    append(f, 0, 900, 1);
    append(f, 0, 901, 1);
    assert_true(status_ok(pkv_seq_cut(f->kv, 0, 2)));
    apply(f);
    expect_residual(f, 0, 95, 32);
}

/* A page that one sequence has moved past may still be in another's residual; once both have moved
 * past it, its tile is free. */
static void a_shared_residual_stays(void **state)
{
    fixture *f = *state;
    uint32_t parked;
    open_seq(f, 0);
    append(f, 0, 0, 100);
    assert_true(status_ok(pkv_seq_fork_parked(f->kv, 0, &parked)));
    assert_true(status_ok(pkv_seq_fork(f->kv, 0, 1, 100)));
    for (uint32_t n = 100; n < 10 * P; n += 20) append(f, 0, n, 20);
    expect_residual(f, 1, 100, 64);
    for (uint32_t n = 100; n < 10 * P; n += 20) append(f, 1, n, 20);
    pkv_seq_close(f->kv, 1);
    for (uint32_t forks = 0; forks < 12; forks++) {
        assert_true(status_ok(pkv_seq_fork(f->kv, 0, 1, 100)));
        for (uint32_t n = 0; n < 3; n++) append(f, 0, 500, P), append(f, 1, 500, P);
        pkv_seq_close(f->kv, 1);
    }
    pkv_seq_close(f->kv, 0);
    assert_true(status_ok(unpark_whole(f->kv, parked, 0, 100)));
    apply(f);
    expect_residual(f, 0, 100, 64);
}

/* An idle sequence keeps its residual, however many steps and forks another sequence makes. */
static void a_residual_waits(void **state)
{
    fixture *f = *state;
    uint32_t idle, swap, parked, tokens[100] = {0};
    open_seq(f, 0);
    append(f, 0, 0, 70);
    assert_true(status_ok(pkv_seq_swap_out(f->kv, 0, &swap)));
    apply(f);
    open_seq(f, 0);
    append(f, 0, 0, 100);
    assert_true(status_ok(park_whole(f->kv, 0, &idle)));
    apply(f);
    open_seq(f, 0);
    for (uint32_t round = 0; round < 20; round++) {
        append(f, 0, 500, P);
        assert_true(status_ok(park_whole(f->kv, 0, &parked)));
        apply(f);
        assert_true(status_ok(unpark_whole(f->kv, parked, 0, 100)));
        assert_true(status_ok(pkv_seq_fork(f->kv, 0, 1, 100)));
        append(f, 0, 500, 5);
        append(f, 1, 500, 3);
        pkv_seq_close(f->kv, 1);
        apply(f);
    }
    pkv_seq_close(f->kv, 0);
    assert_true(status_ok(unpark_whole(f->kv, idle, 0, 100)));
    assert_true(status_ok(pkv_swap_in(f->kv, swap, 1, tokens, 100)));
    apply(f);
    expect_residual(f, 0, 100, 64);
    expect_residual(f, 1, 70, 32);
}

/* A token that moves into the residual exists in both forms, also in the copy of a shared page. */
static void choices_write_both_forms(void **state)
{
    fixture *f = *state;
    uint64_t keep[2] = {UINT64_MAX, ~(UINT64_C(1) << 6)}; /* slot 70 is filled with token 99 */
    open_seq(f, 0);
    append(f, 0, 0, 100);
    assert_true(status_ok(pkv_seq_fork(f->kv, 0, 1, 100)));
    for (uint32_t seq = 2; seq-- > 0;) {
        assert_true(status_ok(pkv_seq_keep(f->kv, seq, 0, keep, false)));
        apply(f);
        for (uint32_t i = 64; i < 99; i++) expect(f, seq, i, i == 70 ? 99 : i, FILLING);
        append(f, seq, 99, 2 * P);
        for (uint32_t i = 64; i < 96; i++) expect(f, seq, i, i == 70 ? 99 : i, STORED);
        assert_true(error_of(f, seq, 64, 64) > 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(full_pages_are_stored, setup, teardown),
        cmocka_unit_test_setup_teardown(full_pages_are_stored, setup_layers, teardown),
        cmocka_unit_test_setup_teardown(copies_are_all_that_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(forks_and_swaps_take_them_along, setup, teardown),
        cmocka_unit_test_setup_teardown(choices_move_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(what_ended_gives_way, setup, teardown),
        cmocka_unit_test_setup_teardown(others_take_no_tiles, setup_ranks, teardown),
        cmocka_unit_test_setup_teardown(a_residual_follows_the_rows, setup_residual, teardown),
        cmocka_unit_test_setup_teardown(a_residual_outlives_rows_taken_back, setup_residual,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_shared_residual_stays, setup_residual, teardown),
        cmocka_unit_test_setup_teardown(a_residual_waits, setup_residual, teardown),
        cmocka_unit_test_setup_teardown(choices_write_both_forms, setup_residual, teardown),
    };
    return cmocka_run_group_tests_name("model_kv_filling", tests, NULL, NULL);
}
