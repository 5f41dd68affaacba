/* How many pages of a sequence others hold too: bounds, and counts in portions. check_pool compares
 * both with a count of all pages after each operation. */
#include "tests/unit/paged_kv_grain_fixture.h"
#include "tests/unit/paged_kv_whole.h"

enum { PAGES = 96 };

static pkv_shared look(const grain_fixture *f, uint32_t seq, uint32_t looks)
{
    return pkv_seq_pages_shared(f->kv, seq, &looks);
}

static bool is_exact(const grain_fixture *f, pkv_shared shared)
{
    return shared.as_of == pkv_sharing_changes(f->kv);
}

static void check_exact(const grain_fixture *f, uint32_t seq, uint64_t want)
{
    pkv_shared all = look(f, seq, UINT32_MAX);
    assert_true(is_exact(f, all));
    assert_int_equal(all.most, want);
}

/* A sequence whose pages no other table holds needs no count, whatever pages it takes and gives
 * up. */
static void pages_of_its_own_need_no_count(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_HEAD, 1, 5 * P);
    drop(&f, 0, 1, 0x1d);
    grow(&f, 0, 3);
    pkv_shared shared = look(&f, 0, 0);
    assert_true(is_exact(&f, shared));
    assert_int_equal(shared.most, 0);
    end(&f);
}

/* Until all pages were counted the bound is what it was. */
static void a_count_goes_in_portions(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_HEAD, 1, 4 * P);
    fork_seq(&f, 0, 1);
    drop(&f, 1, 0, 1);
    drop(&f, 1, 3, 3);
    uint64_t now = pkv_sharing_changes(f.kv);
    for (uint32_t seen = 0; seen < 15; seen += 3) {
        uint32_t looks = 3;
        pkv_shared shared = pkv_seq_pages_shared(f.kv, 0, &looks);
        assert_int_equal(looks, 0);
        assert_int_equal(shared.most, 16);
        assert_true(shared.as_of < now);
        check_pool(&f);
    }
    uint32_t looks = 3;
    pkv_shared shared = pkv_seq_pages_shared(f.kv, 0, &looks);
    assert_int_equal(looks, 2);
    assert_int_equal(shared.most, 1 + 4 + 4 + 2);
    assert_int_equal(shared.as_of, now);
    looks = 3;
    assert_int_equal(pkv_seq_pages_shared(f.kv, 0, &looks).most, 11);
    assert_int_equal(looks, 3); /* nothing has changed since */
    check_exact(&f, 1, 11);
    end(&f);
}

/* Pages that come to be shared raise every sequence's bound; only a count finds whose they are. */
static void others_raise_the_bound(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, 3 * P);
    publish(&f, 0);
    fill(&f, 1, PKV_ALL, 2, 4 * P);
    assert_int_equal(open_seq(&f, 2, PKV_ALL, 1, 2 * P), 2 * P);
    assert_int_equal(look(&f, 0, 0).most, 8);
    assert_int_equal(look(&f, 1, 0).most, 8);
    assert_int_equal(look(&f, 2, 0).most, 8);
    assert_false(is_exact(&f, look(&f, 1, 0)));
    check_exact(&f, 1, 0);
    check_exact(&f, 0, 8);
    close_seq(&f, 2);
    assert_int_equal(look(&f, 0, 0).most, 8);
    check_exact(&f, 0, 0);
    assert_int_equal(look(&f, 1, 0).most, 0);
    end(&f);
}

/* A page of which some cell is shared counts as a whole, so its bound rises by all of its cells. */
static void a_cell_makes_its_run_shared(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, 2 * P);
    fork_seq(&f, 0, 1);
    split(&f, 1, PKV_HEAD);
    drop(&f, 1, 0, 0);
    drop(&f, 1, 1, 0);
    drop(&f, 1, 2, 0);
    check_exact(&f, 0, 8);
    check_exact(&f, 1, 2);
    drop(&f, 1, 3, 1);
    check_exact(&f, 0, 4);
    fork_seq(&f, 1, 2);
    assert_true(look(&f, 0, 0).most >= 4);
    close_seq(&f, 0);
    check_exact(&f, 1, 1);
    end(&f);
}

/* Pages that a count has not seen may take the place of those that it has seen. */
static void a_drop_begins_the_count_anew(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 1, 2, PAGES, 0);
    fill(&f, 0, PKV_HEAD, 1, 6 * P);
    fork_seq(&f, 0, 1);
    drop(&f, 1, 0, 0x30);
    drop(&f, 1, 1, 0);
    (void)look(&f, 0, 4);
    drop(&f, 0, 0, 0x33);
    check_pool(&f);
    pkv_shared shared = look(&f, 0, 3);
    assert_false(is_exact(&f, shared));
    check_exact(&f, 0, 2);
    end(&f);
}

/* Pages that are split, appended or replaced by copies during a count. */
static void tables_change_during_a_count(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_LAYER, 1, 3 * P + 5);
    fork_seq(&f, 0, 1);
    (void)look(&f, 0, 2);
    grow(&f, 0, 2 * P);
    check_pool(&f);
    check_exact(&f, 0, 12);
    close_seq(&f, 1);
    (void)look(&f, 0, 1);
    split(&f, 0, PKV_HEAD);
    (void)look(&f, 0, 7);
    check_pool(&f);
    check_exact(&f, 0, 0);
    end(&f);
}

/* A table of runs counts a page of which one cell is shared, and finer tables do not. */
static void a_split_begins_the_count_anew(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 3, 2, PAGES, 0);
    fill(&f, 0, PKV_LAYER, 1, 2 * P);
    fork_seq(&f, 0, 1);
    drop(&f, 1, 1, 0);
    drop(&f, 1, 2, 0);
    (void)look(&f, 0, 4);
    split(&f, 0, PKV_HEAD);
    (void)look(&f, 0, 8);
    check_pool(&f);
    check_exact(&f, 0, 4);
    end(&f);
}

/* A count ends where its sequence is parked: another slot has other sums. */
static void a_park_begins_the_count_anew(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t parked;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_HEAD, 1, 2 * P);
    fork_seq(&f, 0, 1);
    (void)look(&f, 0, 5);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    assert_true(status_ok(unpark_whole(f.kv, parked, 2, 0)));
    f.salt[2] = f.salt[0];
    (void)look(&f, 2, 3);
    check(&f);
    check_exact(&f, 2, 8);
    end(&f);
}

/* One cell that a swapped sequence takes back makes the page of a coarser table a shared one. */
static void a_cell_that_comes_back_makes_its_run_shared(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t swap;
    begin(&f, 2, 2, PAGES, 16);
    fill(&f, 0, PKV_ALL, 1, P);
    fork_seq(&f, 0, 1);
    split(&f, 1, PKV_HEAD);
    publish(&f, 1);
    for (uint32_t table = 0; table < 3; table++) drop(&f, 1, table, 0);
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 1, &swap)));
    check(&f);
    check_exact(&f, 0, 0);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 1, text(), 0)));
    check(&f);
    assert_int_equal(look(&f, 0, 0).most, 4);
    check_exact(&f, 0, 4);
    end(&f);
}

/* A sequence that is parked and comes back is known as before. */
static void a_parked_sequence_is_known(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t parked;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, 3 * P);
    fork_seq(&f, 0, 1);
    check_exact(&f, 0, 12);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    check(&f);
    assert_true(status_ok(unpark_whole(f.kv, parked, 3, 0)));
    f.salt[3] = f.salt[0];
    check(&f);
    assert_int_equal(look(&f, 3, 0).most, 12);
    assert_true(is_exact(&f, look(&f, 3, 0)));
    end(&f);
}

/* The cells of a head come from its share: as many are counted in each as in the one with most. */
static void shares_are_counted_evenly(void **state)
{
    (void)state;
    grain_fixture f;
    begin_in_shares(&f, 2, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_HEAD, 1, 4 * P);
    fork_seq(&f, 0, 1);
    drop(&f, 1, 0, 1);
    drop(&f, 1, 2, 1);
    check_exact(&f, 0, 2 * (4 + 4));
    drop(&f, 1, 1, 1);
    drop(&f, 1, 3, 0);
    check_exact(&f, 0, 2 * 2);
    fill(&f, 2, PKV_HEAD, 2, 3 * P);
    drop(&f, 2, 1, 0);
    drop(&f, 2, 3, 0);
    fork_seq(&f, 2, 3); /* six cells of one share */
    assert_int_equal(look(&f, 2, 0).most, 2 * 6);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_its_own_need_no_count),
        cmocka_unit_test(a_count_goes_in_portions),
        cmocka_unit_test(others_raise_the_bound),
        cmocka_unit_test(a_cell_makes_its_run_shared),
        cmocka_unit_test(a_drop_begins_the_count_anew),
        cmocka_unit_test(tables_change_during_a_count),
        cmocka_unit_test(a_split_begins_the_count_anew),
        cmocka_unit_test(a_park_begins_the_count_anew),
        cmocka_unit_test(a_cell_that_comes_back_makes_its_run_shared),
        cmocka_unit_test(a_parked_sequence_is_known),
        cmocka_unit_test(shares_are_counted_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
