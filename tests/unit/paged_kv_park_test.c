/* Parked sequences by example: they hold all their pages without a sequence number. */
#include "tests/unit/paged_kv_fixture.h"
#include "tests/unit/paged_kv_whole.h"

static uint32_t park(fixture *f, uint32_t seq)
{
    uint32_t parked;
    assert_true(status_ok(park_whole(f->kv, seq, &parked)));
    assert_int_not_equal(parked, 0);
    assert_false(pkv_seq_is_open(f->kv, seq));
    return parked;
}

static void it_comes_back_as_it_was(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 0);
    fill(&f, 0, 70);
    keep(&f, 0, 0, all_but(3, 7));   /* holes filled */
    keep(&f, 0, 1, all_but(16, 32)); /* a page dropped */
    grow(&f, 0, 20);
    uint32_t used = pkv_count(f.kv).used, pages[2][8], positions[2][90];
    pkv_table_view was[2];
    for (uint32_t g = 0; g < 2; g++) {
        was[g] = pkv_seq_table(f.kv, 0, g);
        memcpy(pages[g], was[g].pages, was[g].n_pages * sizeof **pages);
        for (uint32_t i = 0; i < was[g].kept_tokens; i++)
            positions[g][i] = pkv_seq_position(f.kv, 0, g, i);
    }
    uint32_t parked = park(&f, 0);
    assert_int_equal(pkv_parked_length(f.kv, parked), 90);
    assert_int_equal(pkv_parked_look(f.kv, parked).held, 6 + 5);
    assert_true(pkv_full_tokens(pkv_get_geometry(f.kv), pkv_parked_kept(f.kv, parked)) ==
                (86 + 74) / 2.0);
    assert_int_equal(pkv_count(f.kv).used, used);
    take(&f);
    check_tables(&f);
    assert_int_equal(f.deltas.n_moves, 0);
    assert_true(pkv_mirror_checksum(f.mirror) == 0);
    squeeze(&f, 0, 300); /* another sequence has its number, and none of its pages */
    assert_true(status_ok(unpark_whole(f.kv, parked, 3, 100)));
    take(&f);
    check_tables(&f);
    assert_int_equal(f.deltas.n_moves, 0);
    assert_int_equal(pkv_seq_length(f.kv, 3), 90);
    assert_true(pkv_seq_has_dropped(f.kv, 3));
    for (uint32_t g = 0; g < 2; g++) {
        pkv_table_view t = pkv_seq_table(f.kv, 3, g);
        assert_int_equal(t.n_pages, was[g].n_pages);
        assert_int_equal(t.kept_tokens, was[g].kept_tokens);
        assert_memory_equal(t.pages, pages[g], t.n_pages * sizeof **pages);
        expect_positions(&f, 3, g, 0, t.kept_tokens, positions[g]);
    }
    grow(&f, 3, 3);
    pkv_seq_publish(f.kv, 3, text(), 93);
    assert_int_equal(hit_of(&f, 93), 64); /* only what it published before its drop */
    end(&f);
}

static void a_contiguous_one_stays_contiguous(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 40);
    fill(&f, 0, 70);
    reposition(&f, 0, all_but(4, 37));
    take(&f);
    uint32_t parked = park(&f, 0), swap;
    take(&f);
    assert_true(status_ok(unpark_whole(f.kv, parked, 1, 100)));
    assert_int_equal(pkv_seq_next_position(f.kv, 1), 37);
    grow(&f, 1, 3);
    parked = park(&f, 1);
    take(&f);
    assert_true(status_ok(swap_out_parked_whole(f.kv, parked, &swap)));
    take(&f);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 2, text(), 100)));
    assert_int_equal(pkv_seq_next_position(f.kv, 2), 40);
    grow(&f, 2, 3);
    reposition(&f, 2, all_but(0, 1));
    end(&f);
}

static void a_whole_one_goes_on_publishing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 0);
    fill(&f, 0, 40);
    uint32_t parked = park(&f, 0);
    assert_int_equal(hit_of(&f, 40), 32);
    fill(&f, 1, 40); /* shares its blocks */
    pkv_seq_close(f.kv, 1);
    assert_int_equal(pkv_count(f.kv).cached, 0);
    assert_true(status_ok(unpark_whole(f.kv, parked, 2, 60)));
    grow(&f, 2, 8);
    pkv_seq_publish(f.kv, 2, text(), 48);
    assert_int_equal(hit_of(&f, 48), 48);
    end(&f);
}

static void a_flush_seals_what_is_parked(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 60, 0);
    fill(&f, 0, 32);
    uint32_t parked = park(&f, 0);
    pkv_flush(f.kv);
    assert_null(pkv_check_integrity(f.kv));
    assert_true(status_ok(unpark_whole(f.kv, parked, 0, 60)));
    grow(&f, 0, 16);
    pkv_seq_publish(f.kv, 0, text(), 48);
    assert_int_equal(hit_of(&f, 48), 0);
    end(&f);
}

/* The first of two forks that writes makes a copy; the parked one counts as a holder. */
static void a_parked_fork_keeps_its_last_page(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        fixture f;
        begin(&f, 2, 60, 0);
        fill(&f, 0, 20);
        assert_true(status_ok(pkv_seq_fork(f.kv, 0, 1, 60)));
        uint32_t parked = park(&f, 0);
        take(&f);
        if (first == 0) assert_int_equal(pkv_append_cost(f.kv, 1, 1), 2);
        if (first == 0) grow(&f, 1, 1);
        assert_true(status_ok(unpark_whole(f.kv, parked, 2, 60)));
        assert_int_equal(pkv_append_cost(f.kv, 2, 1), first == 0 ? 0 : 2);
        grow(&f, 2, 1);
        assert_int_equal(pkv_append_cost(f.kv, 1, 1), 0);
        grow(&f, 1, 1);
        end(&f);
    }
}

static void it_can_go_to_the_host_tier(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2, 20, 6);
    fill(&f, 0, 40);
    take(&f);
    uint32_t a = park(&f, 0), swap = 0, hit;
    fill(&f, 0, 40);
    take(&f);
    uint32_t b = park(&f, 0);
    assert_true(status_ok(swap_out_parked_whole(f.kv, a, &swap)));
    assert_int_equal(pkv_count(f.kv).pages_swapped_out, 6);
    assert_int_equal(pkv_count(f.kv).used, 6);
    assert_int_equal(pkv_swap_length(f.kv, swap), 40);
    assert_int_equal(swap_out_parked_whole(f.kv, b, &hit).code, STATUS_NO_PAGES);
    assert_int_equal(pkv_parked_length(f.kv, b), 40);
    discard_whole(f.kv, b);
    assert_int_equal(pkv_count(f.kv).used, 0);
    take(&f);
    squeeze(&f, 1, 144); /* evicts all cached pages */
    pkv_seq_close(f.kv, 1);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 2, text(), 60)));
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    grow(&f, 2, 9);
    /* A sequence without pages cannot be swapped out. */
    assert_true(status_ok(pkv_seq_open(f.kv, 3, PKV_HEAD, NULL, 0, 0, 1, &hit)));
    a = park(&f, 3);
    assert_int_equal(swap_out_parked_whole(f.kv, a, &swap).code, STATUS_NO_PAGES);
    discard_whole(f.kv, a);
    end(&f);
}

static void discarded_it_is_reclaimed_from_its_end(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, 9, 0);
    fill(&f, 0, 64);
    uint32_t parked = park(&f, 0);
    squeeze(&f, 1, 64);
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f.kv, 2, PKV_HEAD, NULL, 0, 9, 16, &hit)));
    assert_int_equal(pkv_seq_append(f.kv, 2, 1).code, STATUS_NO_PAGES); /* it keeps its pages */
    discard_whole(f.kv, parked);
    assert_int_equal(pkv_count(f.kv).cached, 4);
    grow(&f, 2, 16);
    assert_int_equal(hit_of(&f, 64), 48);
    end(&f);
}

/* A group counts by its number of layers: the last group is short. */
static void kept_tokens_are_weighted_by_layers(void **state)
{
    (void)state;
    pkv *kv;
    pkv_options options = {.geometry = {.page_tokens = P,
                                        .n_layers = 5,
                                        .n_kv_heads = 2,
                                        .layers_per_group = 3,
                                        .heads_per_group = 1},
                           .n_pages = 40,
                           .max_seqs = 1};
    assert_true(status_ok(pkv_create(&options, &kv)));
    uint32_t hit, parked;
    assert_true(status_ok(pkv_seq_open(kv, 0, PKV_HEAD, NULL, 0, 0, 32, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 0, 32)));
    pkv_seq_drop(kv, 0, 2, &(uint64_t){1}); /* layers 3 and 4, head 0 */
    assert_true(status_ok(park_whole(kv, 0, &parked)));
    assert_int_equal(pkv_parked_kept(kv, parked), 3 * 64 + 2 * 48);
    assert_true(pkv_full_tokens(&options.geometry, 3 * 64 + 2 * 48) == 28.8);
    pkv_destroy(kv);
}

/* Parking again and again takes no memory, and a failing allocation changes nothing. */
static void memory_may_be_short(void **state)
{
    (void)state;
    int refused = 0;
    for (long fail = 0;; fail++) {
        fixture f;
        begin(&f, 2, 60, 40);
        fill(&f, 0, 40);
        keep(&f, 0, 0, all_but(3, 5));
        take(&f);
        uint32_t parked, swap;
        f.fail_at = f.calls + fail;
        long stop = f.fail_at;
        if (!status_ok(park_whole(f.kv, 0, &parked))) {
            refused++;
            assert_true(pkv_seq_is_open(f.kv, 0));
            assert_null(pkv_check_integrity(f.kv));
            parked = park(&f, 0);
        }
        if (!status_ok(unpark_whole(f.kv, parked, 5, 60))) {
            refused++;
            assert_int_equal(pkv_parked_length(f.kv, parked), 40);
            assert_null(pkv_check_integrity(f.kv));
            assert_true(status_ok(unpark_whole(f.kv, parked, 5, 60)));
        }
        parked = park(&f, 5);
        if (!status_ok(swap_out_parked_whole(f.kv, parked, &swap))) {
            refused++;
            assert_int_equal(pkv_count(f.kv).host_used, 0);
            assert_int_equal(pkv_parked_length(f.kv, parked), 40);
            assert_null(pkv_check_integrity(f.kv));
            assert_true(status_ok(swap_out_parked_whole(f.kv, parked, &swap)));
        }
        bool reached = f.calls > stop;
        take(&f);
        assert_true(status_ok(pkv_swap_in(f.kv, swap, 5, text(), 60)));
        take(&f);
        check_tables(&f);
        long calls = f.calls;
        for (uint32_t i = 0; i < 5; i++) {
            parked = park(&f, 5);
            assert_true(status_ok(unpark_whole(f.kv, parked, 5, 60)));
            take(&f);
        }
        assert_int_equal(f.calls, calls);
        end(&f);
        if (!reached) break;
    }
    assert_true(refused > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_as_it_was),
        cmocka_unit_test(a_contiguous_one_stays_contiguous),
        cmocka_unit_test(a_whole_one_goes_on_publishing),
        cmocka_unit_test(a_flush_seals_what_is_parked),
        cmocka_unit_test(a_parked_fork_keeps_its_last_page),
        cmocka_unit_test(it_can_go_to_the_host_tier),
        cmocka_unit_test(discarded_it_is_reclaimed_from_its_end),
        cmocka_unit_test(kept_tokens_are_weighted_by_layers),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
