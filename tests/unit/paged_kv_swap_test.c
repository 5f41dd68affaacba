/* The host tier by example: a swapped sequence comes back unchanged. */
#include "paged_kv/log.h"
#include "tests/unit/paged_kv_whole.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { P = 16, SEQS = 6, TEXT = 160 };

typedef struct fixture {
    long calls, live, fail_at; // of the allocator
    allocator alloc;
    pkv *kv;
    pkv_mirror *mirror;
    pkv_deltas deltas; // of the last pkv_take_deltas
} fixture;

static void *counting_resize(void *ctx, void *ptr, size_t size)
{
    fixture *f = ctx;
    if (size == 0) {
        f->live -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (f->calls++ == f->fail_at) return NULL;
    void *got = realloc(ptr, size);
    f->live += !ptr && got;
    return got;
}

static void begin(fixture *f, uint32_t n_pages, uint32_t n_host_pages)
{
    *f = (fixture){.fail_at = -1};
    f->alloc = (allocator){counting_resize, f};
    pkv_options options = {
        .geometry = {.page_tokens = P,
                     .n_layers = 2,
                     .n_kv_heads = 1,
                     .layers_per_group = 1,
                     .heads_per_group = 1}, /* two groups */
        .n_pages = n_pages,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .n_host_pages = n_host_pages,
        .alloc = &f->alloc,
    };
    assert_true(status_ok(pkv_create(&options, &f->kv)));
    assert_true(status_ok(pkv_mirror_create(&options.geometry, n_pages, SEQS, NULL, &f->mirror)));
}

/* Applies the deltas to the mirror; the moves stay for inspection. */
static void take(fixture *f)
{
    assert_null(pkv_check_integrity(f->kv));
    f->deltas = pkv_take_deltas(f->kv);
    assert_true(status_ok(pkv_mirror_apply(f->mirror, f->deltas.words, f->deltas.n_words)));
    assert_true(pkv_checksum(f->kv) == pkv_mirror_checksum(f->mirror));
}

static void end(fixture *f)
{
    take(f);
    pkv_destroy(f->kv);
    pkv_mirror_destroy(f->mirror);
    assert_int_equal(f->live, 0);
}

static const uint32_t *text(void)
{
    static const uint32_t tokens[TEXT] = {[0] = 7, [17] = 3, [40] = 9, [70] = 11, [100] = 2};
    return tokens;
}

/* Opens, appends up to n tokens of text() and publishes them. */
static void fill(fixture *f, uint32_t seq, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, text(), n, 0, n, &hit)));
    assert_true(status_ok(pkv_seq_append(f->kv, seq, n - hit)));
    pkv_seq_publish(f->kv, seq, text(), n);
}

static uint32_t out(fixture *f, uint32_t seq)
{
    uint32_t swap;
    assert_true(status_ok(pkv_seq_swap_out(f->kv, seq, &swap)));
    assert_false(pkv_seq_is_open(f->kv, seq));
    return swap;
}

static size_t moves_of(const fixture *f, pkv_move_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < f->deltas.n_moves; i++) n += f->deltas.moves[i].kind == kind;
    return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void it_comes_back_as_it_was(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20, 10);
    fill(&f, 0, 40);
    uint64_t keep = 5; /* the first and the last of three pages */
    pkv_seq_drop(f.kv, 0, 1, &keep);
    const uint32_t gather[] = {1, 2, 30, 31, 33};
    assert_true(status_ok(pkv_seq_compact(f.kv, 0, 0, gather, 5)));
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 15))); /* fills the last page, takes another */
    take(&f);
    uint32_t was[2][3], swap;
    for (uint32_t g = 0; g < 2; g++) {
        pkv_table_view t = pkv_seq_table(f.kv, 0, g);
        memcpy(was[g], t.pages, t.n_pages * sizeof *t.pages);
    }
    swap = out(&f, 0);
    take(&f);
    assert_int_equal(moves_of(&f, PKV_MOVE_OUT), 5);
    assert_int_equal(pkv_count(f.kv).used, 0);
    assert_int_equal(pkv_count(f.kv).host_used, 5);
    uint32_t hosts[5];
    for (size_t i = 0; i < 5; i++) {
        const pkv_move *m = &f.deltas.moves[i];
        assert_int_equal(m->src_page, i < 2 ? was[0][i] : was[1][i - 2]);
        assert_int_equal(m->n_slots, P);
        hosts[i] = m->dst_page;
    }
    pkv_flush(f.kv); /* no page is resident */
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 3, text(), 60)));
    take(&f);
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    assert_int_equal(moves_of(&f, PKV_MOVE_IN), 5);
    assert_int_equal(pkv_seq_length(f.kv, 3), 55);
    assert_true(pkv_seq_has_dropped(f.kv, 3));
    static const uint32_t want[2][4] = {{2, 20, 1, 33}, {3, 39, 0, 39}};
    for (uint32_t g = 0, m = 0; g < 2; g++) {
        pkv_table_view t = pkv_seq_table(f.kv, 3, g);
        assert_int_equal(t.n_pages, want[g][0]);
        assert_int_equal(t.kept_tokens, want[g][1]);
        for (uint32_t i = 0; i < t.n_pages; i++, m++) {
            assert_int_equal(f.deltas.moves[m].src_page, hosts[m]);
            assert_int_equal(f.deltas.moves[m].dst_page, t.pages[i]);
        }
    }
    assert_int_equal(pkv_seq_position(f.kv, 3, 0, 4), 33);
    assert_int_equal(pkv_seq_position(f.kv, 3, 0, 5), 40);
    assert_int_equal(pkv_seq_position(f.kv, 3, 0, 16), 51);
    assert_int_equal(pkv_seq_position(f.kv, 3, 1, 16), 32);
    pkv_seq_publish(f.kv, 3, text(), 55);
    assert_int_equal(pkv_lookup(f.kv, text(), 55, 0).tokens, 0); /* nothing is published now */
    end(&f);
}

static void resident_blocks_are_not_copied(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20, 20);
    fill(&f, 0, 40);
    uint64_t keep = 6; /* drops the first page */
    pkv_seq_drop(f.kv, 0, 1, &keep);
    uint32_t swap = out(&f, 0);
    take(&f);
    pkv_swap_cost cost = pkv_swap_in_cost(f.kv, swap, text());
    assert_int_equal(cost.held, 5);
    assert_int_equal(cost.fresh, 2); /* the tails */
    assert_int_equal(cost.cached_pages, 3);
    /* Blocks of the same text that another sequence published serve as well; its own are reclaimed
     * first. */
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, text(), 0, 9, 300, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 144)));
    pkv_seq_close(f.kv, 1);
    assert_int_equal(pkv_swap_in_cost(f.kv, swap, text()).fresh, 5);
    fill(&f, 2, 32);
    take(&f);
    cost = pkv_swap_in_cost(f.kv, swap, text());
    assert_int_equal(cost.fresh, 2);
    assert_int_equal(cost.cached_pages, 0);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 0, text(), 60)));
    take(&f);
    assert_int_equal(moves_of(&f, PKV_MOVE_IN), 2);
    assert_int_equal(pkv_seq_table(f.kv, 0, 1).pages[0], pkv_seq_table(f.kv, 2, 1).pages[1]);
    assert_int_equal(pkv_count(f.kv).pages_retaken, 3);
    end(&f);
}

static void a_whole_one_goes_on_publishing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20, 20);
    fill(&f, 0, 40);
    take(&f);
    uint32_t swap = out(&f, 0);
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, text(), 0, 9, 300, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 144)));
    pkv_seq_close(f.kv, 1); /* no page of it is left */
    take(&f);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 0, text(), 60)));
    take(&f);
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 8)));
    take(&f);
    pkv_seq_publish(f.kv, 0, text(), 48);
    assert_int_equal(pkv_lookup(f.kv, text(), 48, 0).tokens, 48);
    end(&f);
}

static void a_flush_seals_what_is_away(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20, 20);
    fill(&f, 0, 32);
    take(&f);
    uint32_t swap = out(&f, 0);
    pkv_flush(f.kv);
    fill(&f, 1, 32); /* equal tokens, but the weights may have changed */
    assert_int_equal(pkv_swap_in_cost(f.kv, swap, text()).fresh, 4);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 0, text(), 60)));
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 16)));
    take(&f);
    pkv_seq_publish(f.kv, 0, text(), 48);
    assert_int_equal(pkv_lookup(f.kv, text(), 48, 0).tokens, 32);
    end(&f);
}

static void no_room_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 11, 7);
    fill(&f, 0, 40);
    fill(&f, 1, 64); /* shares two blocks */
    take(&f);
    uint32_t swap, other, hit;
    assert_int_equal(pkv_seq_swap_out(f.kv, 1, &swap).code, STATUS_NO_PAGES);
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    assert_int_equal(pkv_seq_pages_held(f.kv, 1), 8);
    swap = out(&f, 0);
    assert_int_equal(pkv_count(f.kv).used, 8);
    assert_true(status_ok(pkv_seq_open(f.kv, 2, PKV_HEAD, text(), 0, 9, 16, &hit)));
    assert_int_equal(pkv_seq_swap_out(f.kv, 2, &other).code, STATUS_NO_PAGES); /* has no pages */
    assert_true(status_ok(pkv_seq_append(f.kv, 2, 16)));
    assert_int_equal(pkv_seq_swap_out(f.kv, 2, &other).code, STATUS_NO_PAGES);
    uint64_t before = pkv_checksum(f.kv);
    assert_int_equal(pkv_swap_in(f.kv, swap, 0, text(), 60).code, STATUS_NO_PAGES);
    assert_true(pkv_checksum(f.kv) == before);
    assert_int_equal(pkv_count(f.kv).host_used, 6);
    pkv_seq_close(f.kv, 2);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 0, text(), 60)));
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    end(&f);
}

/* In the order of the moves: a page is copied out before it is written, a host page is read before
 * it is overwritten. */
static void copies_come_in_order(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 5, 2);
    fill(&f, 0, 10);
    uint32_t hit, first = pkv_seq_table(f.kv, 0, 0).pages[0];
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, text(), 0, 9, 16, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 10)));
    take(&f);
    uint32_t a = out(&f, 0);
    assert_true(status_ok(pkv_swap_in(f.kv, a, 2, text(), 16)));
    uint32_t b = out(&f, 1); /* into the host pages that sequence 0 has just left */
    take(&f);
    static const pkv_move_kind kinds[] = {PKV_MOVE_OUT, PKV_MOVE_OUT, PKV_MOVE_IN,
                                          PKV_MOVE_IN,  PKV_MOVE_OUT, PKV_MOVE_OUT};
    assert_int_equal(f.deltas.n_moves, 6);
    for (size_t i = 0; i < 6; i++) assert_int_equal(f.deltas.moves[i].kind, kinds[i]);
    assert_int_equal(f.deltas.moves[0].src_page, first);
    discard_whole(f.kv, b);
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    assert_int_equal(pkv_count(f.kv).pages_swapped_out, 4);
    end(&f);
}

static void shared_pages_are_reported(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 30, 0);
    fill(&f, 0, 40);
    assert_int_equal(pkv_seq_shared_tokens(f.kv, 0), 0);
    fill(&f, 1, 20);
    assert_int_equal(pkv_seq_shared_tokens(f.kv, 0), 16);
    assert_true(status_ok(pkv_seq_fork(f.kv, 0, 2, 60)));
    assert_int_equal(pkv_seq_shared_tokens(f.kv, 0), 32);
    uint64_t keep = 6;
    pkv_seq_drop(f.kv, 0, 0, &keep);
    assert_int_equal(pkv_seq_shared_tokens(f.kv, 0), 0);
    end(&f);
}

/* Each allocation fails once: the call is refused and nothing else changes. Later calls allocate
 * nothing. */
static void memory_may_be_short(void **state)
{
    (void)state;
    int refused = 0;
    for (long fail = 0;; fail++) {
        fixture f;
        begin(&f, 20, 20);
        fill(&f, 0, 40);
        take(&f);
        uint32_t swap;
        f.fail_at = f.calls + fail;
        long stop = f.fail_at;
        if (!status_ok(pkv_seq_swap_out(f.kv, 0, &swap))) {
            refused++;
            assert_int_equal(pkv_count(f.kv).host_used, 0);
            swap = out(&f, 0);
        }
        if (!status_ok(pkv_swap_in(f.kv, swap, 5, text(), 60))) {
            refused++;
            assert_int_equal(pkv_count(f.kv).host_used, 6);
            assert_true(status_ok(pkv_swap_in(f.kv, swap, 5, text(), 60)));
        }
        bool reached = f.calls > stop;
        long calls = f.calls;
        take(&f);
        swap = out(&f, 5);
        take(&f);
        assert_true(status_ok(pkv_swap_in(f.kv, swap, 5, text(), 60)));
        assert_int_equal(f.calls, calls);
        end(&f);
        if (!reached) break;
    }
    assert_true(refused > 4);
}

/* Nothing of the sequence is in the cache, so nothing there says that it has changed meanwhile. */
static void its_cost_is_asked_anew_when_it_is_swapped_again(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20, 10);
    uint32_t hit, swap;
    assert_true(status_ok(pkv_seq_open(f.kv, 0, PKV_HEAD, text(), 0, 0, 80, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 80)));
    swap = out(&f, 0);
    assert_int_equal(pkv_swap_in_cost_again(f.kv, 1, swap, text()).fresh, 10);
    assert_int_equal(pkv_swap_in_cost_again(f.kv, 1, swap, text()).fresh, 10);
    assert_true(status_ok(pkv_swap_in(f.kv, swap, 0, text(), 80)));
    take(&f);
    pkv_seq_drop(f.kv, 0, 1, &(uint64_t){0x11}); /* two of five pages stay */
    swap = out(&f, 0);
    pkv_swap_cost cost = pkv_swap_in_cost_again(f.kv, 1, swap, text());
    assert_int_equal(cost.held, 7);
    assert_int_equal(cost.fresh, 7);
    discard_whole(f.kv, swap);
    end(&f);
}

/* Two sequences of 10 cells, and room for both: the second one has to wait for the first one. */
static void room_is_promised_to_one_that_leaves(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 30, 24);
    uint32_t hit, first, second;
    for (uint32_t q = 0; q < 2; q++) {
        assert_true(status_ok(pkv_seq_open(f.kv, q, PKV_HEAD, text(), 0, 0, 80, &hit)));
        assert_true(status_ok(pkv_seq_append(f.kv, q, 80)));
    }
    take(&f);
    assert_true(status_ok(pkv_seq_leave_some(f.kv, 0, PKV_SWAP_OUT, 3, &first)));
    assert_true(pkv_seq_is_open(f.kv, 0));
    assert_int_equal(pkv_count(f.kv).host_used, 3);
    assert_int_equal(pkv_count(f.kv).used, 20 - 3);
    assert_int_equal(pkv_seq_swap_out(f.kv, 1, &second).code, STATUS_NO_PAGES);
    take(&f);
    assert_int_equal(f.deltas.n_moves, 3);
    while (pkv_seq_is_open(f.kv, 0)) {
        assert_true(status_ok(pkv_seq_leave_some(f.kv, 0, PKV_SWAP_OUT, 3, &first)));
        take(&f);
    }
    assert_int_equal(pkv_count(f.kv).host_used, 10);
    assert_true(status_ok(pkv_seq_swap_out(f.kv, 1, &second)));
    assert_int_equal(pkv_count(f.kv).host_used, 20);
    assert_int_equal(pkv_count(f.kv).used, 0);
    assert_true(status_ok(pkv_swap_in(f.kv, first, 0, text(), 80)));
    take(&f);
    pkv_seq_close(f.kv, 0);
    discard_whole(f.kv, second);
    end(&f);
}

/* What it will take is not available to others, although it is still free. */
static void it_comes_back_in_portions(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 30, 24);
    uint32_t hit, swap;
    assert_true(status_ok(pkv_seq_open(f.kv, 0, PKV_HEAD, text(), 0, 0, 80, &hit)));
    assert_true(status_ok(pkv_seq_append(f.kv, 0, 80)));
    swap = out(&f, 0);
    take(&f);
    assert_true(status_ok(pkv_swap_in_some(f.kv, swap, 0, text(), 80, 3)));
    take(&f);
    assert_int_equal(f.deltas.n_moves, 3);
    assert_int_equal(pkv_count(f.kv).used, 3);
    assert_int_equal(pkv_count(f.kv).host_used, 7);
    assert_int_equal(pkv_available(f.kv), 29 - 10);
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, text(), 0, 0, 160, &hit)));
    assert_int_equal(pkv_seq_append(f.kv, 1, 10 * P).code, STATUS_NO_PAGES);
    assert_true(status_ok(pkv_seq_append(f.kv, 1, 9 * P)));
    uint32_t n_portions = 1;
    for (; pkv_seq_is_arriving(f.kv, 0); n_portions++) {
        assert_true(status_ok(pkv_seq_arrive(f.kv, 0, 3)));
        take(&f);
    }
    assert_int_equal(n_portions, 4);
    assert_int_equal(pkv_seq_pages_held(f.kv, 0), 10);
    assert_int_equal(pkv_available(f.kv), 29 - 10 - 18);
    assert_int_equal(pkv_count(f.kv).host_used, 0);
    for (uint32_t slot = 0; slot < 80; slot++)
        assert_int_equal(pkv_seq_position(f.kv, 0, 1, slot), slot);
    pkv_seq_close(f.kv, 0);
    pkv_seq_close(f.kv, 1);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_as_it_was),
        cmocka_unit_test(resident_blocks_are_not_copied),
        cmocka_unit_test(a_whole_one_goes_on_publishing),
        cmocka_unit_test(a_flush_seals_what_is_away),
        cmocka_unit_test(no_room_changes_nothing),
        cmocka_unit_test(copies_come_in_order),
        cmocka_unit_test(shared_pages_are_reported),
        cmocka_unit_test(its_cost_is_asked_anew_when_it_is_swapped_again),
        cmocka_unit_test(room_is_promised_to_one_that_leaves),
        cmocka_unit_test(it_comes_back_in_portions),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
