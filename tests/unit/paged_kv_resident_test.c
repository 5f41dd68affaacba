/* A long swapped sequence comes back in portions while blocks that it had published are resident:
 * their pages are taken back, whatever happens to the blocks between two portions. And looks at
 * long sequences in portions. */
#include "tests/unit/paged_kv_grain_fixture.h"
#include "tests/unit/paged_kv_whole.h"

enum { RUN = 4, BLOCKS = 4, CELLS = BLOCKS * RUN, RUNS = 8, MOST = 2 };

/* Sequence 0, of BLOCKS full pages in tables of heads, was published at a grain and swapped out. */
static uint32_t begin_swapped(grain_fixture *f, pkv_grain grain, uint32_t runs, bool forked)
{
    uint32_t swap;
    begin(f, 2, 2, 1 + runs * RUN, CELLS);
    fill(f, 0, grain, 1, BLOCKS * P);
    publish(f, 0);
    if (grain != PKV_HEAD) split(f, 0, PKV_HEAD);
    if (forked) fork_seq(f, 0, 1);
    assert_true(status_ok(pkv_seq_swap_out(f->kv, 0, &swap)));
    check(f);
    return swap;
}

/* Between portions the mirror follows. */
static void check_portion(grain_fixture *f)
{
    check_pool(f);
    take(f);
    assert_true(pkv_checksum(f->kv) == pkv_mirror_checksum(f->mirror));
}

static void begin_swap_in(grain_fixture *f, uint32_t swap)
{
    f->salt[0] = 1;
    assert_true(status_ok(pkv_swap_in_some(f->kv, swap, 0, text(), 0, MOST)));
    assert_true(pkv_seq_is_arriving(f->kv, 0));
    check_portion(f);
}

/* A sequence with other K and V takes pages while sequence 0 arrives. */
static void fill_between(grain_fixture *f, uint32_t seq, uint32_t runs)
{
    uint32_t hit;
    f->salt[seq] = 9;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, text(), 0, 9, 0, &hit)));
    assert_true(status_ok(pkv_seq_append(f->kv, seq, runs * P)));
    check_portion(f);
    for (uint32_t g = 0; g < f->groups; g++)
        for (uint32_t i = 0; i < runs; i++)
            memset(f->memory[cell_at(f, seq, g, i)], 0xff, sizeof f->memory[0]);
}

static void go_on(grain_fixture *f)
{
    while (pkv_seq_is_arriving(f->kv, 0)) {
        assert_true(status_ok(pkv_seq_arrive(f->kv, 0, MOST)));
        check_portion(f);
    }
    check(f);
    assert_int_equal(pkv_seq_length(f->kv, 0), BLOCKS * P);
    assert_int_equal(pkv_seq_grain(f->kv, 0), PKV_HEAD);
}

static void resident_pages_are_taken_back_in_portions(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        uint32_t swap = begin_swapped(&f, grain, RUNS, false);
        assert_int_equal(pkv_count(f.kv).cached, CELLS);
        begin_swap_in(&f, swap);
        assert_int_equal(pkv_count(f.kv).pages_retaken, MOST);
        assert_int_equal(pkv_available(f.kv), (RUNS - BLOCKS) * RUN); /* the rest is promised */
        go_on(&f);
        assert_int_equal(pkv_count(f.kv).pages_retaken, CELLS);
        assert_int_equal(pkv_count(f.kv).pages_swapped_in, 0);
        assert_int_equal(pkv_count(f.kv).host_used, 0);
        grow(&f, 0, 3);
        end(&f);
    }
}

/* Pages that the sequence has dropped have no place among those that come back. */
static void dropped_pages_do_not_come_back(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t swap;
    begin(&f, 2, 2, 1 + RUNS * RUN, CELLS);
    fill(&f, 0, PKV_ALL, 1, BLOCKS * P);
    publish(&f, 0);
    split(&f, 0, PKV_HEAD);
    drop(&f, 0, 0, 0xa);
    drop(&f, 0, 1, 0x9);
    drop(&f, 0, 3, 0x7);
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 0, &swap)));
    begin_swap_in(&f, swap);
    go_on(&f);
    assert_int_equal(pkv_count(f.kv).pages_retaken, CELLS - 5);
    assert_int_equal(pkv_count(f.kv).pages_swapped_in, 0);
    end(&f);
}

static void blocks_that_have_left_are_copied(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t swap = begin_swapped(&f, PKV_ALL, RUNS, false);
    begin_swap_in(&f, swap);
    pkv_flush(f.kv);
    fill_between(&f, 2, RUNS - BLOCKS); /* its blocks get the numbers of those that have left */
    pkv_seq_publish(f.kv, 2, text(), (RUNS - BLOCKS) * P);
    check_portion(&f);
    pkv_seq_close(f.kv, 2);
    go_on(&f);
    assert_int_equal(pkv_count(f.kv).pages_retaken, MOST);
    assert_int_equal(pkv_count(f.kv).pages_swapped_in, CELLS - MOST);
    end(&f);
}

/* Resident pages that another sequence holds are not promised. It gives them up between portions,
 * and a third sequence takes them. */
static void others_take_pages(bool looked)
{
    grain_fixture f;
    pkv_swap_cost cost;
    uint32_t swap = begin_swapped(&f, PKV_ALL, BLOCKS, true);
    assert_int_equal(pkv_available(f.kv), 0);
    if (looked)
        assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), 100, &cost), PKV_SEEN_NOW);
    begin_swap_in(&f, swap);
    assert_int_equal(pkv_available(f.kv), 0);
    pkv_seq_close(f.kv, 1);
    uint32_t left = pkv_available(f.kv);
    assert_int_equal(left, CELLS - MOST);
    fill_between(&f, 2, left / RUN);
    assert_true(pkv_available(f.kv) < RUN);
    status st;
    while (status_ok(st = pkv_seq_arrive(f.kv, 0, MOST))) {
        assert_true(pkv_seq_is_arriving(f.kv, 0));
        check_portion(&f);
    }
    assert_int_equal(st.code, STATUS_NO_PAGES);
    assert_int_equal(pkv_seq_arrive(f.kv, 0, MOST).code, STATUS_NO_PAGES);
    pkv_seq_close(f.kv, 2);
    go_on(&f);
    assert_true(pkv_count(f.kv).pages_swapped_in > 0);
    end(&f);
}

static void pages_that_others_took_are_waited_for(void **state)
{
    (void)state;
    others_take_pages(false);
    others_take_pages(true);
}

/* Sequence 3 was promised all free places, and sequence 0 none, because sequence 1 held its pages.
 * Once these are given up, sequence 0 takes places for them, and leaves too few for sequence 3,
 * which waits. */
static void the_first_that_comes_takes_what_another_was_promised(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t swap, other;
    begin(&f, 2, 2, 1 + 2 * CELLS, 2 * CELLS);
    fill(&f, 0, PKV_ALL, 1, BLOCKS * P);
    publish(&f, 0);
    split(&f, 0, PKV_HEAD);
    fork_seq(&f, 0, 1);
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 0, &swap)));
    fill(&f, 3, PKV_HEAD, 2, BLOCKS * P);
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 3, &other)));
    check(&f);
    assert_true(status_ok(pkv_swap_in_some(f.kv, other, 3, text(), 0, MOST)));
    check_portion(&f);
    assert_int_equal(pkv_available(f.kv), 0);
    begin_swap_in(&f, swap);
    pkv_seq_close(f.kv, 1);
    uint32_t left = pkv_available(f.kv);
    assert_int_equal(left, CELLS - MOST);
    fill_between(&f, 2, left / RUN);
    while (pkv_seq_is_arriving(f.kv, 0)) {
        assert_true(status_ok(pkv_seq_arrive(f.kv, 0, MOST)));
        check_portion(&f);
    }
    assert_int_equal(pkv_available(f.kv), 0);
    status st;
    while (status_ok(st = pkv_seq_arrive(f.kv, 3, MOST))) check_portion(&f);
    assert_int_equal(st.code, STATUS_NO_PAGES);
    assert_true(pkv_seq_is_arriving(f.kv, 3));
    pkv_seq_close(f.kv, 2);
    while (pkv_seq_is_arriving(f.kv, 3)) {
        assert_true(status_ok(pkv_seq_arrive(f.kv, 3, MOST)));
        check_portion(&f);
    }
    check(&f);
    end(&f);
}

/* It begins to come back for what was seen, which is not so any more. */
static void nothing_comes_where_a_look_was_too_early(void **state)
{
    (void)state;
    grain_fixture f;
    pkv_swap_cost cost;
    uint32_t swap = begin_swapped(&f, PKV_ALL, BLOCKS, true);
    assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), 100, &cost), PKV_SEEN_NOW);
    pkv_seq_close(f.kv, 1);
    fill_between(&f, 2, BLOCKS);
    begin_swap_in(&f, swap);
    assert_int_equal(pkv_seq_arrive(f.kv, 0, MOST).code, STATUS_NO_PAGES);
    pkv_seq_close(f.kv, 2);
    go_on(&f);
    assert_int_equal(pkv_count(f.kv).pages_swapped_in, CELLS);
    end(&f);
}

/* Resident pages that another sequence holds take none, so they are promised no longer than until
 * they have come. */
static void pages_of_others_are_not_promised_for_long(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t swap = begin_swapped(&f, PKV_ALL, 2 * BLOCKS, true);
    assert_int_equal(pkv_available(f.kv), CELLS);
    begin_swap_in(&f, swap);
    assert_int_equal(pkv_available(f.kv), MOST);
    go_on(&f);
    assert_int_equal(pkv_available(f.kv), CELLS);
    assert_int_equal(pkv_count(f.kv).pages_retaken, CELLS);
    end(&f);
}

/* A portion that lacks places is asked for again: the same pages are found. */
static void a_portion_is_tried_again(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        uint32_t swap = begin_swapped(&f, grain, BLOCKS, true);
        begin_swap_in(&f, swap); /* page 0 of layer 0 */
        for (uint32_t g = 0; g < RUN; g++) pkv_seq_drop(f.kv, 1, g, &(uint64_t){1});
        fill_between(&f, 2, 1);
        assert_true(status_ok(pkv_seq_arrive(f.kv, 0, 6))); /* the others of layer 0 */
        assert_int_equal(pkv_seq_arrive(f.kv, 0, 6).code, STATUS_NO_PAGES);
        assert_int_equal(pkv_seq_arrive(f.kv, 0, 6).code, STATUS_NO_PAGES);
        check_portion(&f);
        pkv_seq_close(f.kv, 2);
        go_on(&f);
        end(&f);
    }
}

/* Pages that have come back are given up with the rest, at once or in portions. */
static void it_ends_between_portions(void **state)
{
    (void)state;
    for (int portions = 0; portions < 2; portions++) {
        grain_fixture f;
        uint32_t swap = begin_swapped(&f, PKV_LAYER, RUNS, false), none;
        begin_swap_in(&f, swap);
        assert_true(status_ok(pkv_seq_arrive(f.kv, 0, MOST)));
        while (portions && pkv_seq_is_open(f.kv, 0)) {
            check_portion(&f);
            assert_true(status_ok(pkv_seq_leave_some(f.kv, 0, PKV_GIVE_UP, MOST, &none)));
        }
        if (!portions) pkv_seq_close(f.kv, 0);
        while (pkv_discard_some(f.kv, 1) > 0) check_portion(&f);
        assert_int_equal(pkv_count(f.kv).used, 0);
        assert_int_equal(pkv_count(f.kv).host_used, 0);
        assert_int_equal(pkv_available(f.kv), RUNS * RUN);
        assert_int_equal(pkv_count(f.kv).cached, CELLS); /* the blocks are as they were */
        end(&f);
    }
}

/* ---- looks ----------------------------------------------------------------------------------- */

static void a_look_at_a_swapped_sequence_has_portions(void **state)
{
    (void)state;
    grain_fixture f;
    pkv_swap_cost cost, want;
    uint32_t swap = begin_swapped(&f, PKV_ALL, RUNS, true);
    pkv_swap_cost most = pkv_swap_in_most(f.kv, swap);
    assert_int_equal(most.held, CELLS);
    assert_int_equal(most.fresh, CELLS);
    for (int i = 1; i < BLOCKS; i++)
        assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), RUN, &cost), PKV_SEEN_NOTHING);
    assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), RUN, &cost), PKV_SEEN_NOW);
    want = pkv_swap_in_cost(f.kv, swap, text());
    assert_memory_equal(&cost, &want, sizeof want);
    assert_int_equal(cost.fresh + cost.cached_pages, 0);

    drop(&f, 1, 0, 0x7); /* a cell of the last block is cached from now on */
    assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), RUN, &cost), PKV_SEEN_EARLIER);
    assert_int_equal(cost.cached_pages, 0);
    close_seq(&f, 1);
    fill(&f, 2, PKV_ALL, 9, (RUNS - 1) * P); /* all but one block leave the cache: it begins anew */
    assert_int_equal(pkv_swap_in_cost_some(f.kv, swap, text(), RUN, &cost), PKV_SEEN_NOW);
    want = pkv_swap_in_cost(f.kv, swap, text());
    assert_memory_equal(&cost, &want, sizeof want);
    assert_int_equal(cost.cached_pages, RUN);
    assert_int_equal(cost.fresh, CELLS - RUN);
    end(&f);
}

static void a_look_at_a_parked_sequence_has_portions(void **state)
{
    (void)state;
    grain_fixture f;
    pkv_parked_pages pages, want;
    uint32_t parked, other;
    begin(&f, 2, 2, 1 + RUNS * RUN, CELLS);
    fill(&f, 0, PKV_HEAD, 1, BLOCKS * P - 3);
    fork_seq(&f, 0, 1);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    for (int i = 1; i < 4; i++)
        assert_int_equal(pkv_parked_look_some(f.kv, parked, 5, &pages), PKV_SEEN_NOTHING);
    assert_int_equal(pkv_parked_look_some(f.kv, parked, 5, &pages), PKV_SEEN_NOW);
    want = pkv_parked_look(f.kv, parked);
    assert_memory_equal(&pages, &want, sizeof want);
    assert_int_equal(pages.shared, CELLS);
    assert_int_equal(pages.filling, RUN);

    close_seq(&f, 1);
    assert_int_equal(pkv_parked_look_some(f.kv, parked, 5, &pages), PKV_SEEN_EARLIER);
    assert_int_equal(pages.shared, CELLS);
    assert_int_equal(pkv_parked_look_some(f.kv, parked, 100, &pages), PKV_SEEN_NOW);
    assert_int_equal(pages.shared, 0);
    assert_int_equal(pages.alone, CELLS);

    fill(&f, 2, PKV_HEAD, 2, P); /* another parked one has the look, then a number that was its */
    assert_true(status_ok(park_whole(f.kv, 2, &other)));
    assert_int_equal(pkv_parked_look_some(f.kv, other, 100, &pages), PKV_SEEN_NOW);
    assert_int_equal(pages.alone, RUN);
    discard_whole(f.kv, other);
    fill(&f, 2, PKV_HEAD, 3, 2 * P);
    uint32_t again;
    assert_true(status_ok(park_whole(f.kv, 2, &again)));
    assert_int_equal(again, other);
    assert_int_equal(pkv_parked_look_some(f.kv, again, 1, &pages), PKV_SEEN_NOTHING);
    end(&f);
}

/* A look at a parked sequence says nothing of the pages that it takes once it is swapped. */
static void a_look_at_the_parked_pages_does_not_count(void **state)
{
    (void)state;
    grain_fixture f;
    pkv_parked_pages pages;
    uint32_t parked, swap;
    begin(&f, 2, 2, 1 + BLOCKS * RUN, CELLS);
    fill(&f, 0, PKV_HEAD, 1, BLOCKS * P);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    assert_int_equal(pkv_parked_look_some(f.kv, parked, 100, &pages), PKV_SEEN_NOW);
    assert_true(status_ok(swap_out_parked_whole(f.kv, parked, &swap)));
    assert_int_equal(swap, parked);
    fill(&f, 2, PKV_HEAD, 9, BLOCKS * P);
    assert_int_equal(pkv_swap_in_some(f.kv, swap, 0, text(), 0, MOST).code, STATUS_NO_PAGES);
    close_seq(&f, 2);
    begin_swap_in(&f, swap);
    go_on(&f);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident_pages_are_taken_back_in_portions),
        cmocka_unit_test(dropped_pages_do_not_come_back),
        cmocka_unit_test(blocks_that_have_left_are_copied),
        cmocka_unit_test(pages_that_others_took_are_waited_for),
        cmocka_unit_test(the_first_that_comes_takes_what_another_was_promised),
        cmocka_unit_test(nothing_comes_where_a_look_was_too_early),
        cmocka_unit_test(pages_of_others_are_not_promised_for_long),
        cmocka_unit_test(a_portion_is_tried_again),
        cmocka_unit_test(it_ends_between_portions),
        cmocka_unit_test(a_look_at_a_swapped_sequence_has_portions),
        cmocka_unit_test(a_look_at_a_parked_sequence_has_portions),
        cmocka_unit_test(a_look_at_the_parked_pages_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
