/* Blocks that leave the prefix cache because their pages are wanted, and their keys. */
#include "paged_kv/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { P = 16, LAYERS = 3, HEADS = 2, GROUPS = LAYERS * HEADS, BLOCKS = 6, MOST = 4 };

static uint32_t text[8 * P], other[8 * P];

static pkv *make(uint32_t most)
{
    pkv *kv;
    const pkv_options options = {
        .geometry = {.page_tokens = P,
                     .n_layers = LAYERS,
                     .n_kv_heads = HEADS,
                     .layers_per_group = 1,
                     .heads_per_group = 1},
        .n_pages = BLOCKS * GROUPS + 1,
        .max_seqs = 3,
        .prefix_cache = true,
        .lost_most = most,
    };
    assert_true(status_ok(pkv_create(&options, &kv)));
    for (uint32_t i = 0; i < 8 * P; i++) {
        text[i] = i;
        other[i] = 1000 + i;
    }
    return kv;
}

/* Opens, computes and publishes n blocks. */
static void fill(pkv *kv, uint32_t seq, pkv_grain grain, const uint32_t *tokens, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(kv, seq, grain, tokens, n * P, 5, n * P, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, seq, n * P - hit)));
    pkv_seq_publish(kv, seq, tokens, n * P);
    (void)pkv_take_deltas(kv);
}

static bool equal(const pkv_key *a, const pkv_key *b) { return memcmp(a, b, sizeof *a) == 0; }

static void keys_are_digests(void **state)
{
    (void)state;
    pkv *kv = make(MOST);
    pkv_key a = pkv_key_root(1), b = pkv_key_root(2), c = pkv_key_root(1);
    assert_true(equal(&a, &c));
    assert_false(equal(&a, &b));
    pkv_key_next(kv, &a, text);
    pkv_key_next(kv, &b, text);
    assert_false(equal(&a, &b)); /* another salt */
    pkv_key_next(kv, &c, text);
    assert_true(equal(&a, &c));
    text[P - 1]++;
    pkv_key d = pkv_key_root(1);
    pkv_key_next(kv, &d, text);
    assert_false(equal(&a, &d)); /* another token */
    pkv_key_next(kv, &a, other);
    pkv_key_next(kv, &d, other);
    assert_false(equal(&a, &d)); /* another token before it */
    /* The first half of the SHA-256 of 8 zero bytes. */
    const pkv_key zero = pkv_key_root(0), want = {{0xaf, 0x55, 0x70, 0xf5, 0xa1, 0x81, 0x0b, 0x7a,
                                                   0xf7, 0x8c, 0xaf, 0x4b, 0xc7, 0x0a, 0x66, 0x0f}};
    assert_true(equal(&zero, &want));
    pkv_destroy(kv);
}

static void are_told_with_their_cells(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        pkv *kv = make(MOST);
        uint32_t cells[3][GROUPS];
        fill(kv, 0, grain, text, 3);
        for (uint32_t i = 0; i < 3; i++) pkv_seq_cells(kv, 0, i, cells[i]);
        pkv_key key = pkv_seq_key(kv, 0), want = pkv_key_root(5);
        for (uint32_t i = 0; i < 3; i++) pkv_key_next(kv, &want, text + i * P);
        assert_true(equal(&key, &want));
        pkv_seq_close(kv, 0);
        assert_int_equal(pkv_take_lost(kv).n, 0);
        /* Takes the pages of the last two, and where they lie in broken runs, of the first. */
        fill(kv, 1, PKV_ALL, other, 5);
        pkv_lost lost = pkv_take_lost(kv);
        assert_in_range(lost.n, 2, grain == PKV_ALL ? 2 : 3);
        for (uint32_t i = 0; i < lost.n; i++) {
            assert_memory_equal(lost.cells + i * GROUPS, cells[2 - i], sizeof cells[0]);
            pkv_key k = pkv_key_root(5);
            for (uint32_t b = 0; b < 3 - i; b++) pkv_key_next(kv, &k, text + b * P);
            assert_true(equal(&lost.keys[i], &k));
        }
        assert_int_equal(pkv_take_lost(kv).n, 0);
        assert_null(pkv_check_integrity(kv));
        pkv_destroy(kv);
    }
}

/* The cells of a table are where its views say. */
static void cells_of_a_sequence(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        pkv *kv = make(MOST);
        const pkv_geometry *g = pkv_get_geometry(kv);
        uint32_t cells[GROUPS];
        fill(kv, 0, grain, text, 4);
        for (uint32_t b = 0; b < 4; b++) {
            pkv_seq_cells(kv, 0, b, cells);
            for (uint32_t group = 0; group < GROUPS; group++) {
                uint32_t layer = group / HEADS, head = group % HEADS;
                uint32_t table = grain == PKV_ALL ? 0 : grain == PKV_LAYER ? layer : group;
                assert_int_equal(cells[group],
                                 pkv_seq_table(kv, 0, table).pages[b] +
                                     pkv_cell_offset(g, BLOCKS * GROUPS, grain, layer, head));
            }
        }
        pkv_destroy(kv);
    }
}

/* If more blocks leave than are told of, the told ones are those nearest to the root. The others
 * are counted. */
static void the_last_ones_are_told(void **state)
{
    (void)state;
    pkv *kv = make(MOST);
    fill(kv, 0, PKV_ALL, text, 6);
    pkv_seq_close(kv, 0);
    fill(kv, 1, PKV_ALL, other, 6);
    pkv_lost lost = pkv_take_lost(kv);
    assert_int_equal(lost.n, MOST);
    assert_int_equal(pkv_count(kv).blocks_untold, 6 - MOST);
    pkv_key key = pkv_key_root(5);
    for (uint32_t i = 0; i < MOST; i++) {
        pkv_key_next(kv, &key, text + i * P);
        assert_true(equal(&lost.keys[MOST - 1 - i], &key));
    }
    pkv_seq_close(kv, 1);
    fill(kv, 0, PKV_ALL, text, MOST); /* as many leave now as are told of */
    assert_int_equal(pkv_take_lost(kv).n, MOST);
    assert_int_equal(pkv_count(kv).blocks_untold, 6 - MOST);
    pkv_destroy(kv);
}

static void a_flush_loses_nothing(void **state)
{
    (void)state;
    pkv *kv = make(MOST), *silent = make(0);
    fill(kv, 0, PKV_ALL, text, 6);
    pkv_seq_close(kv, 0);
    pkv_flush(kv);
    fill(kv, 1, PKV_ALL, other, 6);
    assert_int_equal(pkv_take_lost(kv).n, 0);
    assert_int_equal(pkv_count(kv).blocks_untold, 0);
    fill(silent, 0, PKV_ALL, text, 6);
    pkv_seq_close(silent, 0);
    fill(silent, 1, PKV_ALL, other, 6);
    assert_int_equal(pkv_take_lost(silent).n, 0);
    assert_int_equal(pkv_count(silent).blocks_untold, 0);
    pkv_destroy(silent);
    pkv_destroy(kv);
}

/* Two chains with one beginning, one of which is in use: each block is told once, behind its
 * children, and stays. */
static void all_are_told_in_portions(void **state)
{
    (void)state;
    enum { N = 5 };
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        pkv *kv = make(MOST);
        uint32_t branch[3 * P], cells[N][GROUPS], cursor = 0, n = 0;
        memcpy(branch, text, P * sizeof *text);
        memcpy(branch + P, other, 2 * P * sizeof *other);
        fill(kv, 0, grain, text, 3);
        for (uint32_t i = 0; i < 3; i++) pkv_seq_cells(kv, 0, i, cells[i]);
        pkv_seq_close(kv, 0);
        fill(kv, 1, grain, branch, 3);
        for (uint32_t i = 1; i < 3; i++) pkv_seq_cells(kv, 1, i, cells[2 + i]);
        pkv_key want[N];
        for (uint32_t i = 0; i < N; i++) {
            want[i] = i == 0 ? pkv_key_root(5) : want[i == 3 ? 0 : i - 1];
            pkv_key_next(kv, &want[i], i < 3 ? text + i * P : branch + (i - 2) * P);
        }
        bool told[N] = {false};
        for (pkv_lost some; (some = pkv_tell_cached(kv, &cursor)).n > 0;) {
            assert_true(some.n <= MOST);
            for (uint32_t i = 0; i < some.n; i++, n++) {
                uint32_t at = 0;
                while (at < N && !equal(&some.keys[i], &want[at])) at++;
                assert_true(at < N && !told[at]);
                assert_memory_equal(some.cells + i * GROUPS, cells[at], sizeof cells[at]);
                told[at] = true;
                bool whole = at == 0 ? told[1] && told[3] : at == 1 ? told[2] : at != 3 || told[4];
                assert_true(whole);
            }
        }
        assert_int_equal(n, N);
        assert_int_equal(pkv_tell_cached(kv, &cursor).n, 0);
        assert_int_equal(pkv_take_lost(kv).n, 0);
        assert_null(pkv_check_integrity(kv));
        pkv_destroy(kv);
    }
    pkv *empty = make(MOST), *silent = make(0);
    uint32_t cursor = 0;
    assert_int_equal(pkv_tell_cached(empty, &cursor).n, 0);
    fill(silent, 0, PKV_ALL, text, 2);
    cursor = 0;
    assert_int_equal(pkv_tell_cached(silent, &cursor).n, 0);
    pkv_destroy(empty);
    pkv_destroy(silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_digests),      cmocka_unit_test(are_told_with_their_cells),
        cmocka_unit_test(cells_of_a_sequence),   cmocka_unit_test(the_last_ones_are_told),
        cmocka_unit_test(a_flush_loses_nothing), cmocka_unit_test(all_are_told_in_portions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
