/* K and V that are wrong: their blocks leave the prefix cache, and nobody publishes them again. */
#include "tests/unit/paged_kv_fixture.h"
#include "tests/unit/paged_kv_whole.h"

enum { SALT = 3, LAYERS = 2 };

static uint32_t branch[TEXT], other[TEXT];

static void on_block(void *ctx, const pkv_block_event *event)
{
    int *events = ctx;
    events[event->kind]++;
}

static pkv *make(int events[3], uint32_t lost_most)
{
    pkv *kv;
    const pkv_options options = {
        .geometry = {P, LAYERS, 1, 1, 1},
        .n_pages = 1 + 20 * LAYERS,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .n_host_pages = HOST_MOST,
        .lost_most = lost_most,
        .on_block = on_block,
        .on_block_ctx = events,
    };
    memset(events, 0, 3 * sizeof *events);
    assert_true(status_ok(pkv_create(&options, &kv)));
    for (uint32_t i = 0; i < TEXT; i++) {
        branch[i] = i < P ? text()[i] : 500 + i;
        other[i] = 1000 + i;
    }
    return kv;
}

/* Opens with the hit that there is, appends and publishes. Returns the hit. */
static uint32_t publish(pkv *kv, uint32_t seq, const uint32_t *tokens, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(kv, seq, PKV_LAYER, tokens, n, SALT, n, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, seq, n - hit)));
    pkv_seq_publish(kv, seq, tokens, n);
    (void)pkv_take_deltas(kv);
    return hit;
}

static uint32_t found(const pkv *kv, const uint32_t *tokens, uint32_t n)
{
    return pkv_lookup(kv, tokens, n, SALT).tokens;
}

static void finish(pkv *kv)
{
    (void)pkv_take_deltas(kv);
    assert_null(pkv_check_integrity(kv));
    pkv_destroy(kv);
}

/* Another prompt's blocks behind a distrusted one go too; prompts that share none stay, and so do
 * the same tokens under another salt. */
static void the_chain_leaves_with_all_behind_it(void **state)
{
    (void)state;
    int events[3];
    pkv *kv = make(events, 0);
    uint32_t hit;
    assert_int_equal(publish(kv, 0, text(), 4 * P), 0);
    assert_int_equal(publish(kv, 1, branch, 3 * P), P);
    assert_int_equal(publish(kv, 2, other, 3 * P), 0);
    assert_true(status_ok(pkv_seq_open(kv, 3, PKV_LAYER, text(), 0, SALT + 1, 2 * P, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 3, 2 * P)));
    pkv_seq_publish(kv, 3, text(), 2 * P);
    pkv_seq_close(kv, 1);
    assert_int_equal(pkv_count(kv).cached, 2 * LAYERS);
    pkv_distrust(kv, text(), P - 1, SALT); /* not a block */
    pkv_distrust(kv, branch + P, 2 * P, SALT);
    assert_int_equal(events[PKV_BLOCK_REMOVED], 0);
    pkv_distrust(kv, text(), 4 * P, SALT);
    assert_int_equal(events[PKV_BLOCK_STORED], 4 + 2 + 3 + 2);
    assert_int_equal(events[PKV_BLOCK_REMOVED], 4 + 2);
    assert_int_equal(events[PKV_CLEARED], 0);
    assert_int_equal(found(kv, text(), 4 * P), 0);
    assert_int_equal(found(kv, branch, 3 * P), 0);
    assert_int_equal(found(kv, other, 3 * P), 3 * P);
    assert_int_equal(pkv_lookup(kv, text(), 2 * P, SALT + 1).tokens, 2 * P);
    assert_int_equal(pkv_count(kv).cached, 0); /* what nobody holds is free */
    assert_int_equal(pkv_count(kv).used, (4 + 3 + 2) * LAYERS);
    assert_null(pkv_check_integrity(kv));
    pkv_distrust(kv, text(), 4 * P, SALT);
    assert_int_equal(events[PKV_BLOCK_REMOVED], 4 + 2);
    finish(kv);
}

/* Sequences that hold such pages go on, and so do their forks and what is parked or swapped of
 * them; none of their pages is published. Who computes the tokens anew publishes them. */
static void who_holds_them_publishes_nothing(void **state)
{
    (void)state;
    int events[3];
    pkv *kv = make(events, 0);
    uint32_t parked, swap;
    publish(kv, 0, text(), 3 * P);
    assert_int_equal(publish(kv, 1, branch, 2 * P), P); /* holds one page of it */
    assert_true(status_ok(pkv_seq_fork(kv, 0, 2, 6 * P)));
    assert_true(status_ok(park_whole(kv, 2, &parked)));
    assert_true(status_ok(pkv_seq_fork(kv, 0, 2, 6 * P)));
    assert_true(status_ok(pkv_seq_swap_out(kv, 2, &swap)));
    publish(kv, 3, other, 2 * P);
    assert_true(pkv_seq_publishes(kv, 0));
    pkv_distrust(kv, text(), 3 * P, SALT);
    assert_true(pkv_seq_publishes(kv, 3));
    assert_true(status_ok(unpark_whole(kv, parked, 2, 6 * P)));
    assert_true(status_ok(pkv_swap_in(kv, swap, 4, text(), 6 * P)));
    assert_true(status_ok(pkv_seq_fork(kv, 0, 5, 6 * P)));
    static const uint32_t holders[] = {0, 2, 4, 5, 1};
    for (uint32_t i = 0; i < 5; i++) {
        const uint32_t *tokens = holders[i] == 1 ? branch : text();
        assert_true(status_ok(pkv_seq_append(kv, holders[i], 2 * P)));
        assert_false(pkv_seq_publishes(kv, holders[i]));
        pkv_seq_publish(kv, holders[i], tokens, pkv_seq_length(kv, holders[i]));
        assert_int_equal(found(kv, tokens, 6 * P), 0);
        assert_null(pkv_check_integrity(kv));
        if (i > 0) pkv_seq_close(kv, holders[i]);
    }
    assert_int_equal(publish(kv, 1, text(), 3 * P), 0);
    assert_int_equal(found(kv, text(), 3 * P), 3 * P);
    assert_true(status_ok(pkv_seq_append(kv, 3, P)));
    pkv_seq_publish(kv, 3, other, 3 * P);
    assert_int_equal(found(kv, other, 3 * P), 3 * P);
    finish(kv);
}

/* Sequence 1 computed the first block too, so the chain that it continues has another's page, which
 * is reclaimed. It still holds the second block's page, which a third sequence has read, and may
 * not publish it again. */
static void a_cut_chain_is_not_published_again(void **state)
{
    (void)state;
    int events[3];
    pkv *kv = make(events, 0);
    uint32_t hit, n = pkv_count(kv).n_pages / LAYERS * P;
    for (uint32_t q = 0; q < 2; q++) {
        assert_true(status_ok(pkv_seq_open(kv, q, PKV_LAYER, text(), P, SALT, 6 * P, &hit)));
        assert_true(status_ok(pkv_seq_append(kv, q, 2 * P)));
    }
    pkv_seq_publish(kv, 0, text(), P);
    pkv_seq_publish(kv, 0, text(), 2 * P);
    pkv_seq_publish(kv, 1, text(), 2 * P);
    assert_true(status_ok(pkv_seq_append(kv, 1, P)));
    pkv_seq_publish(kv, 1, text(), 3 * P);
    pkv_seq_close(kv, 0);
    (void)n;
    /* The first two blocks' pages are cached, and the third is of sequence 1: others take pages
     * until the second block goes. */
    assert_true(status_ok(pkv_seq_open(kv, 2, PKV_LAYER, other, 0, SALT, n, &hit)));
    while (found(kv, text(), 3 * P) == 3 * P) assert_true(status_ok(pkv_seq_append(kv, 2, P)));
    assert_int_equal(found(kv, text(), 3 * P), P);
    pkv_distrust(kv, text(), 3 * P, SALT);
    pkv_seq_close(kv, 2);
    assert_true(status_ok(pkv_seq_append(kv, 1, P)));
    pkv_seq_publish(kv, 1, text(), 4 * P);
    assert_int_equal(found(kv, text(), 4 * P), 0);
    finish(kv);
}

/* Neither blocks that are distrusted nor those that have left before are to be kept elsewhere. */
static void they_are_not_told_as_lost(void **state)
{
    (void)state;
    int events[3];
    pkv *kv = make(events, 2); /* fewer than leave */
    uint32_t hit;
    publish(kv, 0, text(), 4 * P);
    pkv_seq_close(kv, 0);
    pkv_distrust(kv, text(), 4 * P, SALT);
    assert_int_equal(pkv_take_lost(kv).n, 0);
    assert_int_equal(pkv_count(kv).blocks_untold, 0);
    publish(kv, 0, text(), 4 * P);
    pkv_seq_close(kv, 0);
    assert_true(status_ok(pkv_seq_open(kv, 1, PKV_LAYER, other, 0, SALT, 18 * P, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 1, 18 * P)));
    assert_int_equal(found(kv, text(), 4 * P), 2 * P); /* the other two have left */
    pkv_distrust(kv, text(), 4 * P, SALT);
    assert_int_equal(pkv_take_lost(kv).n, 0);
    pkv_seq_close(kv, 1);
    publish(kv, 0, text(), P);
    pkv_seq_close(kv, 0);
    assert_true(status_ok(pkv_seq_open(kv, 1, PKV_LAYER, other, 0, SALT, 20 * P, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 1, 20 * P)));
    assert_int_equal(found(kv, text(), P), 0); /* the whole chain has left */
    pkv_distrust(kv, text(), P, SALT);
    assert_int_equal(pkv_take_lost(kv).n, 0);
    finish(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chain_leaves_with_all_behind_it),
        cmocka_unit_test(who_holds_them_publishes_nothing),
        cmocka_unit_test(a_cut_chain_is_not_published_again),
        cmocka_unit_test(they_are_not_told_as_lost),
    };
    return cmocka_run_group_tests_name("distrusted K and V", tests, NULL, NULL);
}
