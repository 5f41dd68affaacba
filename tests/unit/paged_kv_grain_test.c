/* Sequences of every grain on one pool: a page of a coarse table is a run of the cells that finer
 * tables hold one by one. */
#include "paged_kv/tree.h"
#include "tests/unit/paged_kv_grain_fixture.h"
#include "tests/unit/paged_kv_whole.h"

/* Two layer groups of two head groups: six whole runs of four cells. */
enum { RUNS = 6, PAGES = 1 + 4 * RUNS };

static void list_cells(const grain_fixture *f, uint32_t seq, uint32_t *cells, uint32_t n_pages)
{
    for (uint32_t g = 0; g < f->groups; g++)
        for (uint32_t i = 0; i < n_pages; i++) cells[g * n_pages + i] = cell_at(f, seq, g, i);
}

/* Fills the pool with pages of one sequence at the finest grain, each block in a whole run of its
 * own, and drops from blocks 1 .. n_broken the pages of tables whose bit in `tables` is set. */
static void leave_broken_runs(grain_fixture *f, uint32_t seq, uint32_t n_broken, uint32_t tables)
{
    open_seq(f, seq, PKV_HEAD, 9, 0);
    while (n_free(f) >= f->groups) grow(f, seq, P);
    for (uint32_t g = 0; g < f->groups; g++)
        if (tables >> g & 1) drop(f, seq, g, ~(((UINT64_C(1) << n_broken) - 1) << 1));
}

static void a_sequence_is_cut_finer_in_place(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t before[4 * 3], after[4 * 3];
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, 40);
    publish(&f, 0);
    assert_int_equal(pkv_seq_pages_held(f.kv, 0), 12);
    list_cells(&f, 0, before, 3);

    split(&f, 0, PKV_LAYER);
    list_cells(&f, 0, after, 3);
    assert_memory_equal(before, after, sizeof before);
    assert_true(status_ok(pkv_seq_split(f.kv, 0, PKV_ALL, 0))); /* finer already */
    drop(&f, 0, 1, 6);
    assert_int_equal(pkv_seq_pages_held(f.kv, 0), 10);
    assert_int_equal(pkv_count(f.kv).used, 10);
    assert_int_equal(pkv_count(f.kv).cached, 2); /* hashed as parts of a whole block */

    split(&f, 0, PKV_HEAD);
    drop(&f, 0, 0, 3); /* the page being filled, which no block holds */
    assert_int_equal(pkv_seq_pages_held(f.kv, 0), 9);
    assert_int_equal(n_free(&f), PAGES - 1 - 11);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(cell_at(&f, 0, 1, i), before[3 + i]);
    close_seq(&f, 0);
    assert_int_equal(pkv_count(f.kv).cached, 8);
    assert_int_equal(open_seq(&f, 1, PKV_ALL, 1, 32), 32);
    assert_int_equal(cell_at(&f, 1, 3, 1), before[3 * 3 + 1]);
    end(&f);
}

/* Cells are free when their last holder of any grain is gone, and not before. */
static void what_others_hold_as_a_whole_stays(void **state)
{
    (void)state;
    for (uint32_t parent_first = 0; parent_first < 2; parent_first++) {
        grain_fixture f;
        begin(&f, 2, 2, PAGES, 0);
        fill(&f, 0, PKV_ALL, 1, 3 * P);
        fork_seq(&f, 0, 1);
        split(&f, 1, PKV_HEAD);
        assert_int_equal(pkv_count(f.kv).used, 12);
        assert_int_equal(pages_shared(f.kv, 0), 12);
        if (parent_first) {
            close_seq(&f, 0);
            assert_int_equal(pkv_count(f.kv).used, 12);
            assert_int_equal(pages_shared(f.kv, 1), 0);
            drop(&f, 1, 3, 6);
        } else {
            drop(&f, 1, 3, 6);
            assert_int_equal(pkv_count(f.kv).used, 12);
            grow(&f, 1, 5);
            grow(&f, 0, 20);
            assert_int_equal(pkv_count(f.kv).used, 12 + 4 + 8);
            close_seq(&f, 0);
            assert_int_equal(pkv_count(f.kv).used, 11 + 4);
        }
        assert_int_equal(pkv_count(f.kv).used, pkv_seq_pages_held(f.kv, 1));
        close_seq(&f, 1);
        assert_int_equal(n_free(&f), PAGES - 1);
        end(&f);
    }
}

/* A page that is being filled is replaced as a whole by one that holds it whole, and cell by cell
 * by one that holds cells. */
static void a_shared_last_page_is_copied_at_each_grain(void **state)
{
    (void)state;
    for (uint32_t finer_first = 0; finer_first < 2; finer_first++) {
        grain_fixture f;
        begin(&f, 2, 2, PAGES, 0);
        fill(&f, 0, PKV_ALL, 1, 20);
        fork_seq(&f, 0, 1);
        fork_seq(&f, 0, 2);
        split(&f, 1, PKV_HEAD);
        split(&f, 2, PKV_LAYER);
        for (uint32_t i = 0; i < 3; i++) grow(&f, finer_first ? 2 - i : i, 3);
        assert_int_equal(pkv_count(f.kv).used, 4 * 4);
        split(&f, 0, PKV_HEAD);
        end(&f);
    }
}

static void a_hit_takes_blocks_of_any_grain(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, 1 + 4 * 12, 0);
    fill(&f, 0, PKV_ALL, 1, 2 * P);
    publish(&f, 0);
    /* Asked for finer tables than the blocks have. */
    assert_int_equal(open_seq(&f, 1, PKV_HEAD, 1, 3 * P), 2 * P);
    assert_int_equal(pkv_seq_grain(f.kv, 1), PKV_HEAD);
    for (uint32_t g = 0; g < 4; g++) assert_int_equal(cell_at(&f, 1, g, 1), cell_at(&f, 0, g, 1));
    assert_int_equal(pkv_count(f.kv).used, 8);
    grow(&f, 1, P);
    publish(&f, 1);
    /* Asked for coarser ones: a chain with a fine block gives fine tables. */
    assert_int_equal(open_seq(&f, 2, PKV_ALL, 1, 3 * P), 3 * P);
    assert_int_equal(pkv_seq_grain(f.kv, 2), PKV_HEAD);
    assert_int_equal(open_seq(&f, 3, PKV_ALL, 1, 2 * P), 2 * P);
    assert_int_equal(pkv_seq_grain(f.kv, 3), PKV_ALL);
    assert_int_equal(pkv_count(f.kv).used, 12);
    pkv_hit hit = pkv_lookup(f.kv, text(), 3 * P, 1);
    assert_int_equal(hit.tokens, 3 * P);
    assert_int_equal(hit.cached_pages, 0);
    for (uint32_t seq = 0; seq < 4; seq++) close_seq(&f, seq);
    hit = pkv_lookup(f.kv, text(), 3 * P, 1);
    assert_int_equal(hit.cached_pages, 12);
    end(&f);
}

static void only_broken_runs_give_finer_tables(void **state)
{
    (void)state;
    static const struct {
        uint32_t tables; // dropped ones
        pkv_grain grain;
    } cases[] = {{0x1, PKV_HEAD}, {0x3, PKV_LAYER}, {0xf, PKV_ALL}, {0x6, PKV_HEAD}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grain_fixture f;
        begin(&f, 2, 2, PAGES, 0);
        fill(&f, 0, PKV_ALL, 1, 10);
        leave_broken_runs(&f, 1, RUNS - 2, cases[i].tables);
        assert_int_equal(pkv_append_cost(f.kv, 0, 10), 4);
        grow(&f, 0, 10);
        assert_int_equal(pkv_seq_grain(f.kv, 0), cases[i].grain);
        end(&f);
    }
}

static void too_few_cells_change_nothing(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, 10);
    leave_broken_runs(&f, 1, 3, 0x1); /* three cells, but four are needed */
    assert_int_equal(n_free(&f), 3);
    assert_int_equal(try_grow(&f, 0, 10).code, STATUS_NO_PAGES);
    assert_int_equal(pkv_seq_grain(f.kv, 0), PKV_ALL);
    assert_int_equal(n_free(&f), 3);
    grow(&f, 0, 6); /* as far as its page reaches */
    assert_int_equal(pkv_seq_grain(f.kv, 0), PKV_ALL);
    end(&f);
}

/* Gathers until nothing moves any more; returns how many cells moved. */
static uint64_t gather(grain_fixture *f)
{
    uint64_t first = pkv_count(f->kv).pages_gathered, before;
    do {
        before = pkv_count(f->kv).pages_gathered;
        assert_true(status_ok(pkv_gather(f->kv)));
        check(f);
    } while (pkv_count(f->kv).pages_gathered > before);
    return before - first;
}

/* Each of the six runs keeps one page of one table. */
static void pages_left_alone_are_gathered(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_LAYER; grain <= PKV_HEAD; grain++) {
        uint32_t tables = grain == PKV_LAYER ? 2 : 4;
        for (uint32_t gathers = 0; gathers < 2; gathers++) {
            grain_fixture f;
            begin(&f, 2, 2, PAGES, 0);
            fill(&f, 0, grain, 1, RUNS * P - 3);
            for (uint32_t t = 0; t < tables; t++)
                drop(&f, 0, t, (tables == 2 ? 0x15u : 0x11u) << t);
            if (gathers) assert_in_range(gather(&f), 3, 6);
            fill(&f, 1, PKV_ALL, 2, 2 * P);
            assert_int_equal(pkv_seq_grain(f.kv, 1), gathers ? PKV_ALL : PKV_LAYER);
            grow(&f, 0, 3);
            end(&f);
        }
    }
}

/* A shared page would have to move in every table that holds it; one that the cache holds stays
 * there and is copied. */
static void shared_pages_are_not_gathered(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_LAYER, 1, RUNS * P);
    for (uint32_t t = 0; t < 2; t++) drop(&f, 0, t, 0x15u << t);
    fork_seq(&f, 0, 1);
    assert_int_equal(gather(&f), 0);
    close_seq(&f, 1);
    assert_true(gather(&f) > 0);
    end(&f);
}

/* One share gives three cells to a parked sequence, the other one: available are as many cells as
 * both shares can give, with the sequence and without it. */
static void an_uneven_sequence_is_counted_in_each_share(void **state)
{
    (void)state;
    grain_fixture f;
    begin_in_shares(&f, 1, 2, 2, 1 + 2 * 8, 0);
    fill(&f, 0, PKV_HEAD, 1, 3 * P);
    drop(&f, 0, 1, 0x1);
    uint32_t parked, all = pkv_available_unparked(f.kv) + 6;
    assert_int_equal(pkv_available(f.kv), all - 6);
    assert_int_equal(pkv_seq_pages_held(f.kv, 0), 4);
    assert_int_equal(pkv_seq_copy_cost(f.kv, 0), 6);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    pkv_parked_pages n = pkv_parked_look(f.kv, parked);
    assert_int_equal(n.held, 4);
    assert_int_equal(n.held_even, 6);
    assert_int_equal(n.alone, 4);
    assert_int_equal(n.alone_even, 6);
    assert_int_equal(pkv_available(f.kv), all - 6);
    assert_int_equal(pkv_available_unparked(f.kv), all);
    discard_whole(f.kv, parked);
    assert_int_equal(pkv_available(f.kv), all);
    end(&f);
}

/* An empty pool gives as many pages from each share, whether or not it ends with a whole run. */
static void an_empty_pool_gives_even_pages(void **state)
{
    (void)state;
    for (uint32_t shares = 1; shares <= 4; shares *= 2)
        for (uint32_t n = 2; n < 40; n++) {
            grain_fixture f;
            begin_in_shares(&f, 2, 4, shares, n, 0);
            assert_int_equal(pkv_available(f.kv), pkv_even_pages(&f.geometry, n - 1));
            end(&f);
        }
}

/* A page whose own run has the only free place stays where it is. */
static void a_page_does_not_move_within_its_run(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_ALL, 1, (RUNS - 1) * P);
    fill(&f, 1, PKV_LAYER, 2, P);
    drop(&f, 1, 1, 0);
    assert_int_equal(n_free(&f), 2);
    assert_int_equal(gather(&f), 0);
    end(&f);
}

/* The words of the first drops stand before those of the moves, so that the last drop, in the same
 * step, has words of its own. */
static void a_table_drops_before_and_after_it_is_gathered(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    fill(&f, 0, PKV_LAYER, 1, RUNS * P);
    const uint64_t first[] = {0x15, 0x2a}, last = 0x5;
    for (uint32_t t = 0; t < 2; t++) pkv_seq_drop(f.kv, 0, t, &first[t]);
    assert_true(status_ok(pkv_gather(f.kv)));
    assert_true(pkv_count(f.kv).pages_gathered > 0);
    for (uint32_t t = 0; t < 2; t++) pkv_seq_drop(f.kv, 0, t, &last);
    end(&f);
}

static void drained_runs_are_whole_again(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 0);
    leave_broken_runs(&f, 0, RUNS - 1, 0x5);
    close_seq(&f, 0);
    fill(&f, 1, PKV_ALL, 1, RUNS * P);
    assert_int_equal(pkv_seq_grain(f.kv, 1), PKV_ALL);
    assert_int_equal(n_free(&f), 0);
    end(&f);
}

/* ---- the host tier --------------------------------------------------------------------------- */

static uint32_t swap_out(grain_fixture *f, uint32_t seq)
{
    uint32_t swap;
    assert_true(status_ok(pkv_seq_swap_out(f->kv, seq, &swap)));
    check(f);
    return swap;
}

static void swap_in(grain_fixture *f, uint32_t swap, uint32_t seq, uint32_t salt, pkv_grain grain)
{
    f->salt[seq] = salt;
    pkv_swap_cost cost = pkv_swap_in_cost(f->kv, swap, text());
    uint32_t available = pkv_available(f->kv);
    assert_true(status_ok(pkv_swap_in(f->kv, swap, seq, text(), 0)));
    assert_int_equal(pkv_seq_grain(f->kv, seq), grain);
    assert_int_equal(available - pkv_available(f->kv), cost.fresh + cost.cached_pages);
    check(f);
}

static void sequences_of_each_grain_swap(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        begin(&f, 2, 2, PAGES, 4 * 4);
        fill(&f, 0, grain, 1, 40);
        pkv_seq_publish(f.kv, 0, text(), 2 * P);
        uint32_t swap = swap_out(&f, 0);
        assert_int_equal(pkv_count(f.kv).host_used, 12);
        assert_int_equal(pkv_count(f.kv).cached, 8);
        swap_in(&f, swap, 1, 1, grain);
        assert_int_equal(pkv_count(f.kv).pages_retaken, 8);
        assert_int_equal(pkv_count(f.kv).pages_swapped_in, 4);
        assert_int_equal(pkv_count(f.kv).host_used, 0);
        grow(&f, 1, 10);
        swap = swap_out(&f, 1);
        fill(&f, 2, PKV_HEAD, 9, RUNS * P); /* evicts the blocks */
        close_seq(&f, 2);
        swap_in(&f, swap, 3, 1, grain);
        assert_int_equal(pkv_count(f.kv).pages_retaken, 8);
        end(&f);
    }
}

/* Blocks of another grain that are still resident are taken back where they fit. */
static void blocks_of_another_grain_are_taken_back(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 4 * 4);
    fill(&f, 0, PKV_ALL, 1, 2 * P);
    publish(&f, 0);
    split(&f, 0, PKV_LAYER);
    uint32_t swap = swap_out(&f, 0);
    swap_in(&f, swap, 1, 1, PKV_LAYER); /* parts of whole blocks */
    assert_int_equal(pkv_count(f.kv).pages_retaken, 8);
    close_seq(&f, 1);

    fill(&f, 2, PKV_ALL, 2, P);
    fork_seq(&f, 2, 3);
    split(&f, 3, PKV_HEAD);
    publish(&f, 3); /* a block of cells, which sequence 2 holds as a whole */
    publish(&f, 2);
    close_seq(&f, 3);
    swap = swap_out(&f, 2);
    swap_in(&f, swap, 2, 2, PKV_ALL); /* cells of a fine block are no whole page: copied */
    assert_int_equal(pkv_count(f.kv).pages_retaken, 8);
    assert_int_equal(pkv_count(f.kv).pages_swapped_in, 4);
    end(&f);
}

/* The runs that a sequence's own cached blocks lie in are not counted as room for its other
 * pages. */
static void coming_back_does_not_count_its_cached_runs_twice(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 4 * 4);
    fill(&f, 0, PKV_ALL, 1, 3 * P);
    pkv_seq_publish(f.kv, 0, text(), 2 * P);
    uint32_t swap = swap_out(&f, 0); /* leaves two runs cached, four free */
    open_seq(&f, 1, PKV_HEAD, 9, 0);
    for (uint32_t i = 0; i < RUNS - 2; i++) grow(&f, 1, P);
    for (uint32_t g = 0; g < 4; g += 2) drop(&f, 1, g, 1);
    assert_int_equal(n_free(&f), 6); /* in broken runs: only cached runs are whole */
    swap_in(&f, swap, 2, 1, PKV_HEAD);
    assert_int_equal(pkv_count(f.kv).pages_retaken, 8);
    assert_int_equal(pkv_available(f.kv), 2);
    end(&f);
}

/* Leaves four cells in the host tier, in four layer runs. */
static void leave_broken_host(grain_fixture *f)
{
    static const uint32_t cells[] = {1, 2, 1, 1, 2, 1, 4};
    uint32_t swaps[7];
    for (uint32_t i = 0; i < 7; i++) {
        fill(f, 5, PKV_HEAD, 9, P);
        for (uint32_t g = cells[i]; g < 4; g++) drop(f, 5, g, 0);
        swaps[i] = swap_out(f, 5);
    }
    assert_int_equal(pkv_count(f->kv).host_used, 12);
    for (uint32_t i = 0; i < 7; i++)
        if (cells[i] == 1) discard_whole(f->kv, swaps[i]);
    check(f);
}

static void a_host_tier_of_broken_runs_takes_finer_pages(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 4 * 3);
    leave_broken_host(&f);
    fill(&f, 0, PKV_ALL, 1, 12);
    uint32_t swap = swap_out(&f, 0);
    swap_in(&f, swap, 1, 1, PKV_HEAD);
    end(&f);
}

static void coming_back_takes_finer_pages_of_broken_runs(void **state)
{
    (void)state;
    grain_fixture f;
    begin(&f, 2, 2, PAGES, 4 * 2);
    fill(&f, 0, PKV_ALL, 1, 30);
    uint32_t swap = swap_out(&f, 0);
    leave_broken_runs(&f, 1, RUNS - 2, 0x3);
    swap_in(&f, swap, 0, 1, PKV_LAYER);
    grow(&f, 0, 2);
    end(&f);
}

/* ---- parked ---------------------------------------------------------------------------------- */

static void sequences_of_each_grain_park(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        uint32_t first, second;
        begin(&f, 2, 2, PAGES, 0);
        fill(&f, 0, grain, 1, 20);
        assert_true(status_ok(pkv_seq_fork_parked(f.kv, 0, &first)));
        check(&f);
        assert_int_equal(pkv_parked_alone(f.kv), 0);
        split(&f, 0, PKV_HEAD);
        drop(&f, 0, 2, 2);
        assert_int_equal(pkv_parked_alone(f.kv), 1); /* the cell that sequence 0 gave up */
        assert_int_equal(pkv_parked_look(f.kv, first).held, 8);
        assert_int_equal(pkv_parked_look(f.kv, first).alone, 1);
        assert_true(status_ok(park_whole(f.kv, 0, &second)));
        check(&f);
        assert_int_equal(pkv_parked_alone(f.kv), 8);
        for (uint32_t cell = 0; cell < pkv_cell_count(&f.geometry, PAGES - 1); cell++)
            assert_false(pkv_mirror_page_at(f.mirror, cell).held);
        assert_true(status_ok(unpark_whole(f.kv, first, 3, 0)));
        f.salt[3] = 1;
        assert_int_equal(pkv_seq_grain(f.kv, 3), grain);
        grow(&f, 3, 3); /* the page being filled is shared with the other parked one */
        discard_whole(f.kv, second);
        check(&f);
        assert_int_equal(pkv_count(f.kv).used, 8);
        end(&f);
    }
}

/* A parked sequence fills a run, and an open one holds a single cell of it: the next token still
 * copies the run as a whole. */
static void a_filling_run_is_copied_as_a_whole(void **state)
{
    (void)state;
    static const uint32_t cells[] = {[PKV_ALL] = 4, [PKV_LAYER] = 2, [PKV_HEAD] = 1};
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        uint32_t parked;
        begin(&f, 2, 2, PAGES, 0);
        fill(&f, 0, grain, 1, 20);
        assert_true(status_ok(pkv_seq_fork_parked(f.kv, 0, &parked)));
        split(&f, 0, PKV_HEAD);
        for (uint32_t g = 0; g < 4; g++) drop(&f, 0, g, g < 3 ? 0 : 2);
        pkv_parked_pages pages = pkv_parked_look(f.kv, parked);
        assert_int_equal(pages.alone, 7);
        assert_int_equal(pages.shared_open, cells[grain]);
        assert_int_equal(pages.filling_open, cells[grain]);
        assert_true(status_ok(unpark_whole(f.kv, parked, 3, 0)));
        f.salt[3] = 1;
        assert_int_equal(pkv_append_cost(f.kv, 3, 1), pages.filling_open);
        end(&f);
    }
}

static void a_parked_sequence_is_cut_for_a_broken_host_tier(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t parked, swap;
    begin(&f, 2, 2, PAGES, 4 * 3);
    leave_broken_host(&f);
    fill(&f, 0, PKV_ALL, 1, 12);
    fork_seq(&f, 0, 1);
    assert_true(status_ok(park_whole(f.kv, 0, &parked)));
    check(&f);
    assert_true(status_ok(swap_out_parked_whole(f.kv, parked, &swap)));
    check(&f);
    close_seq(&f, 1);
    swap_in(&f, swap, 0, 1, PKV_HEAD);
    end(&f);
}

/* ---- eviction -------------------------------------------------------------------------------- */

static void cached_blocks_of_mixed_grains_are_reclaimed(void **state)
{
    (void)state;
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) {
        grain_fixture f;
        begin(&f, 2, 2, PAGES, 0);
        for (pkv_grain of = PKV_ALL; of <= PKV_HEAD; of++) {
            fill(&f, of, of, 1 + of, 2 * P);
            publish(&f, of);
        }
        /* A finer sequence keeps two cells of one whole block. */
        fork_seq(&f, 0, 4);
        split(&f, 4, PKV_HEAD);
        for (uint32_t g = 0; g < 4; g++) drop(&f, 4, g, g < 2 ? 2 : 0);
        for (uint32_t seq = 0; seq < 3; seq++) close_seq(&f, seq);
        assert_int_equal(n_free(&f), 0);
        assert_int_equal(pkv_count(f.kv).cached, PAGES - 1 - 2);
        for (uint32_t n = 1; n < RUNS; n++) {
            if (n == 1) fill(&f, 5, grain, 9, P);
            else grow(&f, 5, P);
            assert_int_equal(pkv_seq_grain(f.kv, 5), grain);
        }
        assert_int_equal(pkv_available(f.kv), 2);
        assert_int_equal(try_grow(&f, 5, 1).code, STATUS_NO_PAGES);
        for (uint32_t salt = 2; salt <= 3; salt++)
            assert_int_equal(pkv_lookup(f.kv, text(), 2 * P, salt).tokens, 0);
        end(&f);
    }
}

/* ---- the tree of runs ------------------------------------------------------------------------ */

static uint32_t take_node(pkv_tree *t, pkv_grain grain)
{
    uint32_t node = tree_find_free(t, grain, 0);
    assert_int_not_equal(node, 0);
    tree_change_begin(t, node);
    t->nodes[node].refs = 1;
    tree_change_end(t, node);
    return node;
}

static void give_node(pkv_tree *t, uint32_t node)
{
    tree_change_begin(t, node);
    t->nodes[node].refs = 0;
    tree_change_end(t, node);
}

static uint32_t whole_of(const pkv_tree *t, uint32_t node)
{
    while (node < tree_whole_at(t)) node = node_above(t, node);
    return node;
}

/* Free parts come from the broken run with the fewest, so that the others drain. */
static void parts_come_from_the_fullest_run(void **state)
{
    (void)state;
    pkv_geometry g = {.page_tokens = P,
                      .n_layers = 4,
                      .n_kv_heads = 2,
                      .layers_per_group = 1,
                      .heads_per_group = 1};
    pkv_tree t;
    uint32_t layer[12], whole[3];
    assert_true(status_ok(tree_create(&t, &allocator_default, &g, 8 * 6)));
    for (uint32_t i = 0; i < 12; i++) layer[i] = take_node(&t, PKV_LAYER);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(whole_of(&t, layer[i]), whole_of(&t, layer[i / 4 * 4]));
    for (uint32_t i = 0; i < 3; i++) whole[i] = whole_of(&t, layer[4 * i]);
    give_node(&t,
              layer[0]); /* three are left in the first run, two in the second, one in the third */
    for (uint32_t i = 4; i < 6; i++) give_node(&t, layer[i]);
    for (uint32_t i = 8; i < 11; i++) give_node(&t, layer[i]);
    uint32_t again = take_node(&t, PKV_LAYER);
    assert_int_equal(whole_of(&t, again), whole[0]);
    give_node(&t, again);
    uint32_t cell = take_node(&t, PKV_HEAD); /* breaks a layer run, of the fullest whole one */
    assert_int_equal(whole_of(&t, cell), whole[0]);
    assert_int_equal(node_above(&t, take_node(&t, PKV_HEAD)), node_above(&t, cell));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(whole_of(&t, take_node(&t, PKV_LAYER)), whole[1]);
    give_node(&t, layer[11]); /* the third run has drained */
    for (uint32_t i = 0; i < 6 - 2; i++) take_node(&t, PKV_ALL);
    assert_int_equal(tree_find_free(&t, PKV_ALL, 0), 0);
    assert_int_equal(t.nodes[whole[2]].refs, 1);
    tree_destroy(&t, &allocator_default);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_is_cut_finer_in_place),
        cmocka_unit_test(what_others_hold_as_a_whole_stays),
        cmocka_unit_test(a_shared_last_page_is_copied_at_each_grain),
        cmocka_unit_test(a_hit_takes_blocks_of_any_grain),
        cmocka_unit_test(only_broken_runs_give_finer_tables),
        cmocka_unit_test(too_few_cells_change_nothing),
        cmocka_unit_test(pages_left_alone_are_gathered),
        cmocka_unit_test(shared_pages_are_not_gathered),
        cmocka_unit_test(a_page_does_not_move_within_its_run),
        cmocka_unit_test(an_uneven_sequence_is_counted_in_each_share),
        cmocka_unit_test(an_empty_pool_gives_even_pages),
        cmocka_unit_test(a_table_drops_before_and_after_it_is_gathered),
        cmocka_unit_test(drained_runs_are_whole_again),
        cmocka_unit_test(sequences_of_each_grain_swap),
        cmocka_unit_test(blocks_of_another_grain_are_taken_back),
        cmocka_unit_test(coming_back_does_not_count_its_cached_runs_twice),
        cmocka_unit_test(a_host_tier_of_broken_runs_takes_finer_pages),
        cmocka_unit_test(coming_back_takes_finer_pages_of_broken_runs),
        cmocka_unit_test(sequences_of_each_grain_park),
        cmocka_unit_test(a_filling_run_is_copied_as_a_whole),
        cmocka_unit_test(a_parked_sequence_is_cut_for_a_broken_host_tier),
        cmocka_unit_test(cached_blocks_of_mixed_grains_are_reclaimed),
        cmocka_unit_test(parts_come_from_the_fullest_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
