/* The picture of a sequence's tables: what is kept, in part or whole, what is shared, and how the
 * grid stays small. */
#include "tests/unit/paged_kv_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_dropped),
        cmocka_unit_test(nothing_yet),
        cmocka_unit_test(others_hold_it_too),
        cmocka_unit_test(single_tokens),
        cmocka_unit_test(long_and_deep_ones_are_drawn_smaller),
        cmocka_unit_test(heads_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
