/* The picture of a sequence's tables: what is kept, in part or whole, what is shared, and how the
 * grid stays small. */
#include "paged_kv/map.h"
#include "tests/unit/paged_kv_fixture.h"

#include <math.h>

static pkv_map map;

enum { FULL = PKV_MAP_FULL, SHARED = PKV_MAP_SHARED };

static void expect_row(uint32_t row, const uint8_t *want)
{
    assert_memory_equal(map.cells + (size_t)row * map.n_columns, want, map.n_columns);
}

static void kept_and_dropped(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 30, 0);
    fill(&f, 0, 70);
    keep(&f, 0, 0, all_but(16, 48));
    keep(&f, 0, 1, all_but(64, 70));
    pkv_seq_map(f.kv, 0, &map);
    assert_int_equal(map.n_rows, 2);
    assert_int_equal(map.n_columns, 5);
    assert_int_equal(map.row_layers, 1);
    assert_int_equal(map.column_tokens, P);
    assert_int_equal(map.tables, 2);
    assert_int_equal(map.tables_seen, 2);
    expect_row(0, (const uint8_t[]){FULL, 0, 0, FULL, FULL});
    expect_row(1, (const uint8_t[]){FULL, FULL, FULL, FULL, 0});
    /* Behind the gap a page of the table begins inside a column. */
    grow(&f, 0, 20);
    pkv_seq_map(f.kv, 0, &map);
    assert_int_equal(map.n_columns, 6);
    expect_row(0, (const uint8_t[]){FULL, 0, 0, FULL, FULL, FULL});
    expect_row(1, (const uint8_t[]){FULL, FULL, FULL, FULL, 10 * 8 / 16, FULL});
    end(&f);
}

static void nothing_yet(void **state)
{
    (void)state;
    fixture f;
    uint32_t hit;
    begin(&f, 2, 30, 0);
    assert_true(status_ok(pkv_seq_open(f.kv, 0, PKV_HEAD, NULL, 0, 9, 16, &hit)));
    pkv_seq_map(f.kv, 0, &map);
    assert_int_equal(map.n_rows, 2);
    assert_int_equal(map.n_columns, 0);
    end(&f);
}

static void others_hold_it_too(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 40, 0);
    fill(&f, 0, 70);
    pkv_seq_map(f.kv, 0, &map); /* blocks of the prefix cache alone are not shared */
    expect_row(0, (const uint8_t[]){FULL, FULL, FULL, FULL, FULL});
    fill(&f, 1, 70);
    keep(&f, 0, 1, all_but(0, 16));
    for (uint32_t seq = 0; seq < 2; seq++) {
        pkv_seq_map(f.kv, seq, &map);
        expect_row(
            0, (const uint8_t[]){FULL | SHARED, FULL | SHARED, FULL | SHARED, FULL | SHARED, FULL});
        uint8_t first = seq == 0 ? 0 : FULL;
        expect_row(1, (const uint8_t[]){first, FULL | SHARED, FULL | SHARED, FULL | SHARED, FULL});
    }
    pkv_seq_close(f.kv, 1);
    pkv_seq_map(f.kv, 0, &map);
    expect_row(1, (const uint8_t[]){0, FULL, FULL, FULL, FULL});
    end(&f);
}

static void single_tokens(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    squeeze(&f, 0, 64);
    bits b = all_but(0, 4); /* holes, which the last tokens fill */
    for (uint32_t slot = 16; slot < 31; slot++) b = without(b, slot);
    keep(&f, 0, 0, b);
    pkv_seq_map(f.kv, 0, &map);
    expect_row(0, (const uint8_t[]){6, 1, FULL, FULL});
    b = all_but(0, TEXT); /* gathered into fresh pages */
    b.words[0] = UINT64_C(0x5555555555);
    keep(&f, 0, 0, b);
    uint32_t kept = 0;
    pkv_table_view t = pkv_seq_table(f.kv, 0, 0);
    pkv_seq_map(f.kv, 0, &map);
    for (uint32_t c = 0; c < 4; c++) kept += (uint32_t)map.kept[c];
    assert_int_equal(kept, t.kept_tokens);
    for (uint32_t slot = 0; slot < t.kept_tokens; slot++)
        assert_true(map.cells[pkv_seq_position(f.kv, 0, 0, slot) / P] > 0);
    end(&f);
}

static pkv *pool_of(uint32_t n_layers, uint32_t n_heads, uint32_t n_pages)
{
    pkv *kv;
    pkv_geometry g = {.page_tokens = P,
                      .n_layers = n_layers,
                      .n_kv_heads = n_heads,
                      .layers_per_group = 1,
                      .heads_per_group = 1};
    pkv_options o = {.geometry = g, .n_pages = n_pages, .max_seqs = 1};
    assert_true(status_ok(pkv_create(&o, &kv)));
    return kv;
}

static void open_long(pkv *kv, pkv_grain grain, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(kv, 0, grain, NULL, 0, 9, n, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 0, n)));
    pkv_seq_map(kv, 0, &map);
}

static void long_and_deep_ones_are_drawn_smaller(void **state)
{
    (void)state;
    enum { LAYERS = 2 * PKV_MAP_ROWS_MOST + 1, BLOCKS = PKV_MAP_COLUMNS_MOST + 1 };
    pkv *kv = pool_of(LAYERS, 1, 2 * LAYERS * BLOCKS);
    open_long(kv, PKV_LAYER, P * BLOCKS);
    assert_int_equal(map.n_rows, 86); /* ceil(257 / 3) */
    assert_int_equal(map.row_layers, 3);
    assert_int_equal(map.n_columns, BLOCKS / 2 + 1);
    assert_int_equal(map.column_tokens, 2 * P);
    for (uint32_t i = 0; i < map.n_rows * map.n_columns; i++) assert_int_equal(map.cells[i], FULL);
    pkv_seq_close(kv, 0);
    open_long(kv, PKV_ALL, P * BLOCKS); /* one table stands for all layers */
    assert_int_equal(map.tables, 1);
    for (uint32_t i = 0; i < map.n_rows * map.n_columns; i++) assert_int_equal(map.cells[i], FULL);
    pkv_destroy(kv);
}

static void heads_are_left_out(void **state)
{
    (void)state;
    enum { HEADS = 128, BLOCKS = PKV_MAP_PAGES_MOST / HEADS };
    pkv *kv = pool_of(1, HEADS, HEADS * (BLOCKS + 2));
    open_long(kv, PKV_HEAD, P * BLOCKS);
    assert_int_equal(map.tables_seen, HEADS);
    pkv_seq_close(kv, 0);
    open_long(kv, PKV_HEAD, P * (BLOCKS + 1));
    assert_int_equal(map.tables, HEADS);
    assert_int_equal(map.tables_seen, HEADS / 2);
    for (uint32_t i = 0; i < map.n_columns; i++) assert_int_equal(map.cells[i], FULL);
    pkv_destroy(kv);
}

/* ---- where attention went -------------------------------------------------------------------- */

static pkv_mass_map masses;

/* The level of a share of a layer's mass. */
static int level(double mass) { return (int)lround(PKV_MASS_LEVELS + 20 * log10(mass)); }

static void expect_levels(uint32_t row, const int *want)
{
    for (uint32_t c = 0; c < masses.n_columns; c++)
        assert_int_equal(masses.levels[row * masses.n_columns + c], want[c]);
}

static void a_page_has_its_share(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 30, 0);
    fill(&f, 0, 70);
    keep(&f, 0, 0, all_but(16, 48));
    /* Three pages of the first layer, the third with 6 tokens; five of the second. */
    static const float values[] = {1, 0.5f, 0.5f, -9, -9, 1.2f, -1, 0, 0.8f, -1};
    pkv_masses m = {.values = values, .layer_step = 1, .stride = 5, .whole = 2};
    pkv_seq_map_masses(f.kv, 0, &m, &masses);
    assert_int_equal(masses.n_rows, 2);
    assert_int_equal(masses.n_columns, 5);
    assert_int_equal(masses.column_tokens, P);
    assert_int_equal(masses.layers, 2);
    expect_levels(0, (const int[]){level(0.5), 0, 0, level(0.25), level(0.25)});
    expect_levels(1, (const int[]){level(0.6), 0, 1, level(0.4), 0});
    assert_true(masses.read[0] == 38 && masses.read[1] == 48);
    /* Tokens that came later are no part of it, even where they lie in its last page. */
    grow(&f, 0, 20);
    m.behind = 20;
    pkv_seq_map_masses(f.kv, 0, &m, &masses);
    assert_int_equal(masses.n_columns, 5);
    expect_levels(0, (const int[]){level(0.5), 0, 0, level(0.25), level(0.25)});
    assert_true(masses.read[0] == 38 && masses.read[1] == 48);
    m.layer_step = 2;
    pkv_seq_map_masses(f.kv, 0, &m, &masses);
    assert_int_equal(masses.layers, 1);
    assert_true(masses.read[0] == 38 && masses.read[1] < 0);
    end(&f);
}

static void extreme_masses_have_levels(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    fill(&f, 0, 70);
    static const float values[] = {3, 1e-9f, NAN, INFINITY, 0.00009f};
    const pkv_masses m = {.values = values, .layer_step = 1, .stride = 5, .whole = 1};
    pkv_seq_map_masses(f.kv, 0, &m, &masses);
    expect_levels(0, (const int[]){PKV_MASS_LEVELS, 1, 1, PKV_MASS_LEVELS, level(0.00009)});
    end(&f);
}

/* Single tokens count where they lie: by slot with their own numbers, by page with equal parts. */
static void single_tokens_have_their_share(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    squeeze(&f, 0, 64);
    bits b = all_but(0, TEXT);
    b.words[0] = UINT64_C(0x5555555555);
    keep(&f, 0, 0, b);
    pkv_table_view t = pkv_seq_table(f.kv, 0, 0);
    float values[TEXT] = {0};
    double want[2][4] = {{0}};
    for (uint32_t slot = 0; slot < t.kept_tokens; slot++) {
        uint32_t column = pkv_seq_position(f.kv, 0, 0, slot) / P;
        uint32_t page = slot / P, left = t.kept_tokens - page * P;
        values[slot] = 0.001f * (float)(slot + 1);
        want[0][column] += values[slot];
        want[1][column] += 0.1 / (left < P ? left : P);
    }
    pkv_masses m = {
        .values = values, .layer_step = 1, .stride = t.kept_tokens, .by_slot = true, .whole = 1};
    for (int by_page = 0; by_page < 2; by_page++) {
        pkv_seq_map_masses(f.kv, 0, &m, &masses);
        assert_int_equal(masses.n_columns, 4);
        assert_true(masses.read[0] == (float)t.kept_tokens);
        for (uint32_t c = 0; c < 4; c++)
            assert_int_equal(masses.levels[c], want[by_page][c] > 0 ? level(want[by_page][c]) : 0);
        for (uint32_t i = 0; i < t.n_pages; i++) values[i] = 0.1f;
        m.by_slot = false;
        m.stride = t.n_pages;
    }
    end(&f);
}

/* Several layers in a row, several pages in a column, heads that share a table: a cell is a mean
 * over layers and adds up the rest, in tables of each grain. */
static void masses_of_large_ones_are_means(void **state)
{
    (void)state;
    enum { LAYERS = PKV_MAP_ROWS_MOST + 2, HEADS = 2, BLOCKS = PKV_MAP_COLUMNS_MOST + 2 };
    pkv *kv = pool_of(LAYERS, HEADS, LAYERS * HEADS * (BLOCKS + 1) + 1);
    float *values = malloc(sizeof *values * LAYERS * HEADS * BLOCKS);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t i = 0; i < BLOCKS; i++)
                values[(l * HEADS + h) * BLOCKS + i] =
                    i >= 8 ? -1 : 0.02f * (float)(1 + l % 2) * (float)(1 + h + i);
    const pkv_masses m = {.values = values, .layer_step = 1, .stride = BLOCKS, .whole = HEADS};
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        open_long(kv, grain, P * BLOCKS);
        pkv_seq_map_masses(kv, 0, &m, &masses);
        assert_int_equal(masses.n_rows, LAYERS / 2);
        assert_int_equal(masses.row_layers, 2);
        assert_int_equal(masses.column_tokens, 2 * P);
        assert_int_equal(masses.layers, LAYERS);
        for (uint32_t r = 0; r < masses.n_rows; r++) {
            assert_true(masses.read[r] == 8 * P);
            for (uint32_t c = 0; c < masses.n_columns; c++) {
                /* pages 2c and 2c + 1, heads 0 and 1: 1 + h + i adds up to 8c + 8 */
                double sum = 0.02 * 1.5 * (8 * c + 8) / HEADS;
                assert_int_equal(masses.levels[r * masses.n_columns + c], c < 4 ? level(sum) : 0);
            }
        }
        pkv_seq_close(kv, 0);
    }
    free(values);
    pkv_destroy(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_dropped),
        cmocka_unit_test(nothing_yet),
        cmocka_unit_test(others_hold_it_too),
        cmocka_unit_test(single_tokens),
        cmocka_unit_test(long_and_deep_ones_are_drawn_smaller),
        cmocka_unit_test(heads_are_left_out),
        cmocka_unit_test(a_page_has_its_share),
        cmocka_unit_test(extreme_masses_have_levels),
        cmocka_unit_test(single_tokens_have_their_share),
        cmocka_unit_test(masses_of_large_ones_are_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
