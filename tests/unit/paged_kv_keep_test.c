/* The effect of a selection on a table, by example; the simulation (sim/paging_test.c) tests the
 * same at random. */
#include "tests/unit/paged_kv_fixture.h"

static void all_kept_is_nothing_done(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 30, 0);
    fill(&f, 0, 40);
    take(&f);
    keep(&f, 0, 0, all_but(40, 64)); /* bits past the table are ignored */
    reposition(&f, 0, all_but(0, 0));
    assert_false(pkv_seq_has_dropped(f.kv, 0));
    assert_int_equal(pkv_seq_next_position(f.kv, 0), 40);
    take(&f);
    assert_int_equal(f.deltas.n_words, 0);
    assert_int_equal(f.deltas.n_moves, 0);
    end(&f);
}

static void whole_pages_are_dropped(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 30, 0);
    fill(&f, 0, 70);
    keep(&f, 0, 0, all_but(16, 48));
    keep(&f, 0, 1, all_but(64, 70)); /* a last page that is not full */
    take(&f);
    assert_int_equal(f.deltas.n_moves, 0);
    assert_int_equal(pkv_count(f.kv).pages_dropped, 3);
    assert_int_equal(pkv_seq_table(f.kv, 0, 0).kept_tokens, 38);
    assert_int_equal(pkv_seq_table(f.kv, 0, 1).kept_tokens, 64);
    assert_int_equal(hit_of(&f, 70), 64);
    grow(&f, 0, 12);
    expect_positions(&f, 0, 0, 15, 2, (const uint32_t[]){15, 48});
    expect_positions(&f, 0, 0, 37, 2, (const uint32_t[]){69, 70});
    expect_positions(&f, 0, 1, 63, 2, (const uint32_t[]){63, 70});
    /* Twice in one step, the second time with a page that was the last but one. */
    keep(&f, 0, 1, all_but(64, 76));
    keep(&f, 0, 1, all_but(48, 64));
    assert_int_equal(pkv_seq_table(f.kv, 0, 1).kept_tokens, 48);
    take(&f);
    check_tables(&f);
    keep(&f, 0, 1, all_but(0, 48)); /* no slot is left */
    assert_int_equal(pkv_seq_table(f.kv, 0, 1).n_pages, 0);
    grow(&f, 0, 1);
    end(&f);
}

static void holes_are_filled_from_the_end(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    squeeze(&f, 0, 70);
    uint32_t pages[5];
    memcpy(pages, pkv_seq_table(f.kv, 0, 0).pages, sizeof pages);
    /* Eight slots are dropped: 3, 15, 16, 17, 50, and 62, 63 and 68 of those that would move. */
    bits b = all_but(15, 18);
    static const uint32_t more[] = {3, 50, 62, 63, 68};
    for (uint32_t i = 0; i < 5; i++) b = without(b, more[i]);
    keep(&f, 0, 0, b);
    take(&f);
    const pkv_move want[] = {
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 0, pages[0], 3, 1, 0, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 1, pages[0], 15, 1, 0,
         0}, /* a run ends with its page */
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 2, pages[1], 0, 2, 0, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 5, pages[3], 2, 1, 0, 0},
    };
    assert_int_equal(f.deltas.n_moves, 4);
    assert_memory_equal(f.deltas.moves, want, sizeof want);
    pkv_table_view t = pkv_seq_table(f.kv, 0, 0);
    assert_int_equal(t.kept_tokens, 62);
    assert_int_equal(t.n_pages, 4);
    assert_memory_equal(t.pages, pages, 4 * sizeof *pages);
    assert_int_equal(pkv_count(f.kv).pages_dropped, 1);
    expect_positions(&f, 0, 0, 2, 2, (const uint32_t[]){2, 64});
    expect_positions(&f, 0, 0, 14, 5, (const uint32_t[]){14, 65, 66, 67, 18});
    expect_positions(&f, 0, 0, 49, 3, (const uint32_t[]){49, 69, 51});
    check_tables(&f);
    /* New tokens fill the last page, then take another. */
    grow(&f, 0, 4);
    expect_positions(&f, 0, 0, 61, 5, (const uint32_t[]){61, 70, 71, 72, 73});
    end(&f);
}

/* Slots of a page move into holes of the same page. */
static void a_page_fills_its_own_holes(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    squeeze(&f, 0, 14);
    bits b = all_but(1, 4);
    keep(&f, 0, 0, without(b, 12));
    take(&f);
    assert_int_equal(f.deltas.n_moves, 2);
    assert_int_equal(f.deltas.moves[0].src_page, f.deltas.moves[0].dst_page);
    assert_int_equal(pkv_seq_table(f.kv, 0, 0).n_pages, 1);
    expect_positions(&f, 0, 0, 0, 10, (const uint32_t[]){0, 10, 11, 13, 4, 5, 6, 7, 8, 9});
    end(&f);
}

/* Pages that are hashed or shared are copied before a slot moves into them. */
static void what_is_shared_is_not_written(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    fill(&f, 0, 70);
    fill(&f, 1, 70);
    uint32_t pages[5];
    memcpy(pages, pkv_seq_table(f.kv, 1, 0).pages, sizeof pages);
    uint32_t used = pkv_count(f.kv).used;
    keep(&f, 1, 0, without(all_but(20, 22), 64)); /* two slots of page 1, one of page 4 */
    take(&f);
    pkv_table_view t = pkv_seq_table(f.kv, 1, 0);
    assert_int_equal(t.kept_tokens, 67);
    assert_int_not_equal(t.pages[1], pages[1]);
    assert_int_equal(t.pages[0], pages[0]);
    assert_int_equal(t.pages[4], pages[4]); /* it was the sequence's alone */
    assert_int_equal(pkv_count(f.kv).used, used + 1);
    assert_int_equal(pkv_count(f.kv).pages_dropped, 0);
    const pkv_move want[] = {
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[1], 0, t.pages[1], 0, P, 0, 1},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 3, t.pages[1], 4, 2, 0, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, pages[4], 5, pages[4], 0, 1, 0, 0},
    };
    assert_int_equal(f.deltas.n_moves, 3);
    assert_memory_equal(f.deltas.moves, want, sizeof want);
    check_tables(&f);
    assert_int_equal(hit_of(&f, 70), 64);
    /* The end of a hashed page is dropped: the next token will be written there. */
    keep(&f, 0, 0, all_but(61, 70));
    assert_int_not_equal(pkv_seq_table(f.kv, 0, 0).pages[3], pages[3]);
    grow(&f, 0, 2);
    expect_positions(&f, 0, 0, 60, 3, (const uint32_t[]){60, 70, 71});
    assert_int_equal(hit_of(&f, 70), 64);
    fill(&f, 2, 64);
    end(&f);
}

static void many_slots_are_gathered(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 30, 0);
    fill(&f, 0, 70);
    keep(&f, 0, 0, all_but(4, 21)); /* one more than a page */
    take(&f);
    assert_int_equal(f.deltas.n_moves, 8);
    assert_int_equal(pkv_count(f.kv).slots_moved, 53);
    assert_int_equal(pkv_count(f.kv).pages_dropped, 1);
    expect_positions(&f, 0, 0, 3, 2, (const uint32_t[]){3, 21});
    grow(&f, 0, 20);
    expect_positions(&f, 0, 0, 52, 2, (const uint32_t[]){69, 70});
    /* Holes in the gathered pages, with a page beyond them. */
    keep(&f, 0, 0, without(all_but(0, 2), 72));
    take(&f);
    check_tables(&f);
    expect_positions(&f, 0, 0, 0, 3, (const uint32_t[]){87, 88, 2});
    keep(&f, 0, 0, all_but(1, 30)); /* the order that filled holes left is kept */
    expect_positions(&f, 0, 0, 0, 2, (const uint32_t[]){87, 47});
    end(&f);
}

/* Drops, holes and copies in one step, then a fork: each has words of its own. */
static void all_in_one_step(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 60, 0);
    squeeze(&f, 0, 100);
    keep(&f, 0, 0, all_but(16, 32));
    keep(&f, 0, 0, all_but(2, 5));
    keep(&f, 0, 0, all_but(0, 16));
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 120)));
    keep(&f, 1, 0, all_but(0, 16));
    keep(&f, 0, 0, all_but(0, 1));
    assert_int_equal(pkv_seq_table(f.kv, 0, 0).kept_tokens, 64);
    assert_int_equal(pkv_seq_table(f.kv, 1, 0).kept_tokens, 49);
    take(&f);
    check_tables(&f);
    keep(&f, 1, 0, all_but(0, 16));
    assert_int_equal(pages_shared(f.kv, 1), 2);
    assert_true(status_ok(pkv_seq_unshare(f.kv, 1)));
    assert_int_equal(pages_shared(f.kv, 1), 0);
    keep(&f, 1, 0, all_but(0, 16));
    take(&f);
    check_tables(&f);
    grow(&f, 0, 1);
    grow(&f, 1, 17);
    end(&f);
}

/* The order of slots depends on the bits alone: a replay has no prefix hits, forks or hashes. */
static void a_replay_ends_in_the_same_order(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 79, 0);
    fill(&f, 0, 90);
    fill(&f, 1, 90); /* shared, hashed */
    assert_true(status_ok(pkv_seq_fork(f.kv, 1, 2, 90)));
    squeeze(&f, 3, 90); /* neither shared nor hashed */
    const bits keeps[] = {without(without(all_but(30, 34), 77), 0), all_but(32, 48),
                          all_but(40, 64), without(all_but(3, 9), 43)};
    for (size_t c = 0; c < 4; c++) {
        for (uint32_t q = 1; q < 4; q++) keep(&f, q, 0, keeps[c]);
        take(&f);
        check_tables(&f);
    }
    pkv_table_view t = pkv_seq_table(f.kv, 3, 0);
    assert_int_equal(t.kept_tokens, 90 - 6 - 16 - 24 - 7);
    for (uint32_t slot = 0; slot < t.kept_tokens; slot++) {
        uint32_t want = pkv_seq_position(f.kv, 3, 0, slot);
        assert_int_equal(pkv_seq_position(f.kv, 1, 0, slot), want);
        assert_int_equal(pkv_seq_position(f.kv, 2, 0, slot), want);
    }
    end(&f);
}

/* For each new slot one is dropped: this takes one move, no page and no memory. */
static void steady_eviction_costs_one_move(void **state)
{
    (void)state;
    for (uint32_t budget = 64; budget <= 72; budget += 8) {
        fixture f;
        begin(&f, 2, 40, 0);
        squeeze(&f, 0, budget);
        rng random = rng_seed(budget);
        long calls = 0;
        for (uint32_t step = 0; step < 300; step++) {
            if (step == 3) calls = f.calls;
            grow(&f, 0, 1);
            for (uint32_t g = 0; g < 2; g++)
                keep(&f, 0, g, without(all_but(0, 0), rng_below(&random, budget)));
            take(&f);
            assert_true(f.deltas.n_moves <= 2);
            assert_int_equal(pkv_seq_pages_held(f.kv, 0), 2 * ((budget + P - 1) / P));
        }
        assert_int_equal(f.calls, calls);
        assert_int_equal(pkv_count(f.kv).slots_moved, 600);
        end(&f);
    }
}

static void contiguous_slots_are_positions(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 40);
    fill(&f, 0, 70);
    reposition(&f, 0, all_but(4, 36));
    assert_int_equal(pkv_seq_next_position(f.kv, 0), 38);
    assert_int_equal(pkv_seq_length(f.kv, 0), 70);
    take(&f);
    check_tables(&f);
    int32_t rotations[2] = {f.deltas.moves[0].rotate, f.deltas.moves[1].rotate};
    assert_int_equal(rotations[0], 0);
    assert_int_equal(rotations[1], -32);
    assert_int_equal(f.deltas.moves[0].n_slots, 4); /* copied, though they stay in place */
    grow(&f, 0, 40);
    assert_int_equal(pkv_seq_next_position(f.kv, 0), 78);
    expect_positions(&f, 0, 1, 3, 2, (const uint32_t[]){3, 36});
    expect_positions(&f, 0, 1, 37, 2, (const uint32_t[]){69, 70});
    /* Whole pages are gathered too, and few slots; each table keeps other slots. */
    for (uint32_t g = 0; g < 2; g++) {
        bits b = all_but(16 + 16 * g, 32 + 16 * g);
        assert_true(status_ok(pkv_seq_keep(f.kv, 0, g, b.words, true)));
    }
    take(&f);
    check_tables(&f);
    reposition(&f, 0, all_but(61, 62));
    assert_int_equal(pkv_seq_next_position(f.kv, 0), 61);
    /* Forks and swaps keep the state of their origin. */
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 80)));
    take(&f);
    uint32_t swap;
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 0, &swap)));
    take(&f);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 2, text(), 80)));
    for (uint32_t q = 1; q < 3; q++) {
        grow(&f, q, 3);
        assert_int_equal(pkv_seq_next_position(f.kv, q), 64);
        assert_int_equal(pkv_seq_length(f.kv, q), 113);
        reposition(&f, q, all_but(0, 1));
        take(&f);
        check_tables(&f);
    }
    end(&f);
}

/* A refusal changes nothing; with as many pages as the kept tokens fill, the call succeeds. */
static void no_pages_change_nothing(void **state)
{
    (void)state;
    static const struct {
        uint32_t from, to;
        bool contiguous;
        uint32_t fresh;
    } cases[] = {
        {20, 22, false, 2}, /* page 1 is written, and page 3 is the last now */
        {0, 16, true, 3},
        {4, 21, false, 3},
    };
    for (size_t c = 0; c < 3; c++) {
        fixture f;
        begin(&f, 1, 4 + 1 + 3, 0);
        fill(&f, 0, 64);
        take(&f);
        bits b = all_but(cases[c].from, cases[c].to);
        squeeze(&f, 1, 16 * (4 - cases[c].fresh));
        assert_int_equal(pkv_available(f.kv), cases[c].fresh - 1);
        uint64_t before = pkv_checksum(f.kv);
        assert_int_equal(pkv_seq_keep(f.kv, 0, 0, b.words, cases[c].contiguous).code,
                         STATUS_NO_PAGES);
        assert_true(pkv_checksum(f.kv) == before);
        assert_false(pkv_seq_has_dropped(f.kv, 0));
        take(&f);
        assert_int_equal(f.deltas.n_words, 0);
        check_tables(&f);
        pkv_seq_close(f.kv, 1);
        if (cases[c].fresh < 3) squeeze(&f, 1, 16 * (3 - cases[c].fresh));
        assert_int_equal(pkv_available(f.kv), cases[c].fresh);
        assert_true(status_ok(pkv_seq_keep(f.kv, 0, 0, b.words, cases[c].contiguous)));
        take(&f);
        check_tables(&f);
        end(&f);
    }
}

static void unshared_pages_are_in_one_table(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 40);
    fill(&f, 0, 40);
    take(&f);
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 60)));
    uint32_t slots = (uint32_t)pkv_count(f.kv).slots_moved;
    assert_true(status_ok(pkv_seq_unshare(f.kv, 1)));
    assert_int_equal(pkv_count(f.kv).used, 12);
    assert_int_equal(pkv_count(f.kv).slots_moved - slots, 80);
    assert_int_equal(pkv_count(f.kv).pages_dropped, 0);
    assert_false(pkv_seq_has_dropped(f.kv, 1));
    take(&f);
    check_tables(&f);
    assert_int_equal(pkv_append_cost(f.kv, 1, 1), 0); /* its last pages are its own */
    assert_true(status_ok(pkv_seq_unshare(f.kv, 1)));
    take(&f);
    assert_int_equal(f.deltas.n_words, 0);
    /* The parent shares only pages that the cache holds: its last pages are its own again. */
    assert_true(status_ok(pkv_seq_unshare(f.kv, 0)));
    take(&f);
    check_tables(&f);
    assert_int_equal(f.deltas.n_moves, 4);
    assert_int_equal(hit_of(&f, 40), 32);
    /* The fork continues to publish, under the block where it left the parent. */
    grow(&f, 1, 8);
    pkv_seq_publish(f.kv, 1, text(), 48);
    assert_int_equal(hit_of(&f, 48), 48);
    /* It is swapped in to pages of its own. */
    uint32_t swap;
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 1, &swap)));
    take(&f);
    assert_int_equal(pkv_swap_in_cost(f.kv, swap, text()).fresh, 6);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 1, text(), 60)));
    take(&f);
    check_tables(&f);
    assert_int_equal(pkv_count(f.kv).pages_retaken, 0);
    end(&f);
}

static void unsharing_may_lack_pages(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 10, 0);
    fill(&f, 0, 32);
    take(&f);
    squeeze(&f, 1, 16);
    uint64_t before = pkv_checksum(f.kv);
    assert_int_equal(pkv_seq_unshare(f.kv, 0).code, STATUS_NO_PAGES); /* 4 of 3 pages */
    assert_true(pkv_checksum(f.kv) == before);
    take(&f);
    assert_int_equal(f.deltas.n_words, 0);
    pkv_seq_close(f.kv, 1);
    assert_true(status_ok(pkv_seq_unshare(f.kv, 0)));
    take(&f);
    check_tables(&f);
    /* The pages that it left are cached, and are reclaimed when pages are short. */
    assert_int_equal(pkv_count(f.kv).cached, 4);
    squeeze(&f, 1, 32);
    assert_int_equal(hit_of(&f, 32), 0);
    end(&f);
}

/* Each allocation fails once: the call is refused, and nothing changes. */
static void memory_may_be_short(void **state)
{
    (void)state;
    int refused = 0;
    for (long fail = 0;; fail++) {
        fixture f;
        begin(&f, 2, 79, 0);
        fill(&f, 0, 100);
        assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 100)));
        assert_true(status_ok(pkv_seq_fork(f.kv, 0, 2, 100)));
        take(&f);
        f.fail_at = f.calls + fail;
        long stop = f.fail_at;
        const bits keeps[] = {all_but(3, 9), all_but(16, 32), all_but(3, 70)};
        for (size_t c = 0; c < 4; c++) {
            const bits *b = &keeps[c < 3 ? c : 2];
            uint32_t q = c < 3 ? 1 : 2;
            uint64_t before = pkv_checksum(f.kv);
            if (status_ok(pkv_seq_keep(f.kv, q, 0, b->words, q == 2))) continue;
            refused++;
            assert_true(pkv_checksum(f.kv) == before);
            assert_null(pkv_check_integrity(f.kv));
            assert_true(status_ok(pkv_seq_keep(f.kv, q, 0, b->words, q == 2)));
        }
        uint64_t before = pkv_checksum(f.kv);
        if (!status_ok(pkv_seq_unshare(f.kv, 0))) {
            refused++;
            assert_true(pkv_checksum(f.kv) == before);
            assert_true(status_ok(pkv_seq_unshare(f.kv, 0)));
        }
        while (!status_ok(pkv_seq_keep(f.kv, 2, 1, keeps[2].words, true))) refused++;
        bool reached = f.calls > stop;
        take(&f);
        check_tables(&f);
        end(&f);
        if (!reached) break;
    }
    assert_true(refused > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kept_is_nothing_done),
        cmocka_unit_test(whole_pages_are_dropped),
        cmocka_unit_test(holes_are_filled_from_the_end),
        cmocka_unit_test(a_page_fills_its_own_holes),
        cmocka_unit_test(what_is_shared_is_not_written),
        cmocka_unit_test(many_slots_are_gathered),
        cmocka_unit_test(all_in_one_step),
        cmocka_unit_test(a_replay_ends_in_the_same_order),
        cmocka_unit_test(steady_eviction_costs_one_move),
        cmocka_unit_test(contiguous_slots_are_positions),
        cmocka_unit_test(no_pages_change_nothing),
        cmocka_unit_test(unshared_pages_are_in_one_table),
        cmocka_unit_test(unsharing_may_lack_pages),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
