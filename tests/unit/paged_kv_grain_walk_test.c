/* Random operations on sequences of every grain in one pool. After each: the pool is sound, the
 * mirror agrees, and every KV group reads its own tokens as they were computed. */
#include "tests/unit/paged_kv_grain_fixture.h"
#include "tests/unit/paged_kv_whole.h"

enum { TEXTS = 3, RECORDS = 4, STEPS = 4000 };

/* The computation of each token of a sequence for each KV group. */
typedef uint32_t runs[GROUPS_MOST][TEXT];

typedef struct walk {
    grain_fixture f;
    rng r;
    runs run[SEQS];
    uint32_t swap[RECORDS], swap_salt[RECORDS], parked[RECORDS], parked_salt[RECORDS];
    runs swap_run[RECORDS], parked_run[RECORDS];
} walk;

static bool is_open(const walk *w, uint32_t seq) { return pkv_seq_is_open(w->f.kv, seq); }

/* Reads from the memory which computation each token of a sequence is of. */
static void learn(walk *w, uint32_t seq)
{
    for (uint32_t g = 0; g < w->f.groups; g++) {
        pkv_table_view t = table_at(&w->f, seq, g);
        uint32_t table = table_of(&w->f, pkv_seq_grain(w->f.kv, seq), g);
        for (uint32_t s = 0; s < t.kept_tokens; s++)
            w->run[seq][g][pkv_seq_position(w->f.kv, seq, table, s)] =
                w->f.memory[t.pages[s / P] + t.offset][s % P].run;
    }
}

/* Every slot holds the computation that the sequence wrote or found there. */
static void check_runs(const walk *w)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t g = 0; is_open(w, seq) && g < w->f.groups; g++) {
            pkv_table_view t = table_at(&w->f, seq, g);
            uint32_t table = table_of(&w->f, pkv_seq_grain(w->f.kv, seq), g);
            for (uint32_t s = 0; s < t.kept_tokens; s++)
                assert_int_equal(w->f.memory[t.pages[s / P] + t.offset][s % P].run,
                                 w->run[seq][g][pkv_seq_position(w->f.kv, seq, table, s)]);
        }
    }
}

static void step_open(walk *w, uint32_t seq)
{
    if (is_open(w, seq)) return;
    open_seq(&w->f, seq, rng_below(&w->r, 3), 1 + rng_below(&w->r, TEXTS), rng_below(&w->r, TEXT));
    learn(w, seq);
}

/* An append fails only where its pages are not there, whatever the grain. */
static void step_append(walk *w, uint32_t seq)
{
    uint32_t n = 1 + rng_below(&w->r, 40), length = pkv_seq_length(w->f.kv, seq);
    if (length + n > TEXT) return;
    uint32_t cost = pkv_append_cost(w->f.kv, seq, n), room = pkv_available(w->f.kv);
    status s = try_grow(&w->f, seq, n);
    assert_int_equal(s.code, cost > room ? STATUS_NO_PAGES : STATUS_OK);
    for (uint32_t g = 0; status_ok(s) && g < w->f.groups; g++)
        for (uint32_t i = 0; i < n; i++) w->run[seq][g][length + i] = w->f.n_runs;
}

static void step_drop(walk *w, uint32_t seq)
{
    uint32_t table = table_of(&w->f, pkv_seq_grain(w->f.kv, seq), rng_below(&w->r, w->f.groups));
    drop(&w->f, seq, table, rng_u64(&w->r) | rng_u64(&w->r));
}

/* A selection may fail at a coarse grain where only broken runs are left. */
static void step_keep(walk *w, uint32_t seq)
{
    uint32_t table = table_of(&w->f, pkv_seq_grain(w->f.kv, seq), rng_below(&w->r, w->f.groups));
    uint64_t keep[(TEXT + 63) / 64];
    memset(keep, 0xff, sizeof keep);
    uint32_t kept = pkv_seq_table(w->f.kv, seq, table).kept_tokens;
    for (uint32_t i = rng_below(&w->r, 20); kept > 0 && i > 0; i--) {
        uint32_t slot = rng_below(&w->r, kept);
        keep[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    }
    status s = pkv_seq_keep(w->f.kv, seq, table, keep, false);
    assert_true(status_ok(s) || s.code == STATUS_NO_PAGES);
}

static void step_fork(walk *w, uint32_t seq)
{
    uint32_t child = rng_below(&w->r, SEQS);
    if (is_open(w, child)) return;
    fork_seq(&w->f, seq, child);
    memcpy(w->run[child], w->run[seq], sizeof w->run[seq]);
}

static void step_swap_out(walk *w, uint32_t seq)
{
    uint32_t i = rng_below(&w->r, RECORDS), held = pkv_seq_pages_held(w->f.kv, seq);
    if (w->swap[i] != 0) return;
    pkv_counts c = pkv_count(w->f.kv);
    bool fits = held > 0 && held <= c.n_host_pages - c.host_used;
    bool may_lack = pkv_shares(&w->f.geometry) > 1; /* of the host tier one may have fewer */
    status s = pkv_seq_swap_out(w->f.kv, seq, &w->swap[i]);
    assert_true(s.code == (fits ? STATUS_OK : STATUS_NO_PAGES) ||
                (may_lack && s.code == STATUS_NO_PAGES));
    if (!status_ok(s)) {
        w->swap[i] = 0;
        return;
    }
    w->swap_salt[i] = w->f.salt[seq];
    memcpy(w->swap_run[i], w->run[seq], sizeof w->run[seq]);
}

static void step_swap_in(walk *w, uint32_t seq)
{
    uint32_t i = rng_below(&w->r, RECORDS);
    if (is_open(w, seq) || w->swap[i] == 0) return;
    if (rng_below(&w->r, 8) == 0) {
        discard_whole(w->f.kv, w->swap[i]);
        w->swap[i] = 0;
        return;
    }
    pkv_swap_cost cost = pkv_swap_in_cost(w->f.kv, w->swap[i], text());
    bool fits = cost.fresh + cost.cached_pages + cost.uneven <= pkv_available(w->f.kv);
    status s = pkv_swap_in(w->f.kv, w->swap[i], seq, text(), 0);
    assert_int_equal(s.code, fits ? STATUS_OK : STATUS_NO_PAGES);
    if (!fits) return;
    w->swap[i] = 0;
    w->f.salt[seq] = w->swap_salt[i];
    check(&w->f);
    learn(w, seq); /* blocks that were still resident may be of another computation */
}

static void step_park(walk *w, uint32_t seq)
{
    uint32_t i = rng_below(&w->r, RECORDS);
    if (w->parked[i] != 0) return;
    status s = rng_below(&w->r, 2) ? park_whole(w->f.kv, seq, &w->parked[i])
                                   : pkv_seq_fork_parked(w->f.kv, seq, &w->parked[i]);
    assert_true(status_ok(s));
    w->parked_salt[i] = w->f.salt[seq];
    memcpy(w->parked_run[i], w->run[seq], sizeof w->run[seq]);
}

static void step_unpark(walk *w, uint32_t seq)
{
    uint32_t i = rng_below(&w->r, RECORDS), k = rng_below(&w->r, RECORDS);
    if (w->parked[i] == 0) return;
    if (rng_below(&w->r, 4) == 0) {
        discard_whole(w->f.kv, w->parked[i]);
        w->parked[i] = 0;
    } else if (w->swap[k] == 0 && rng_below(&w->r, 2) == 0) {
        if (!status_ok(swap_out_parked_whole(w->f.kv, w->parked[i], &w->swap[k]))) {
            w->swap[k] = 0;
            return;
        }
        w->parked[i] = 0;
        w->swap_salt[k] = w->parked_salt[i];
        memcpy(w->swap_run[k], w->parked_run[i], sizeof w->swap_run[k]);
    } else if (!is_open(w, seq)) {
        assert_true(status_ok(unpark_whole(w->f.kv, w->parked[i], seq, 0)));
        w->parked[i] = 0;
        w->f.salt[seq] = w->parked_salt[i];
        memcpy(w->run[seq], w->parked_run[i], sizeof w->run[seq]);
    }
}

static void step_of_open(walk *w, uint32_t seq)
{
    switch (rng_below(&w->r, 20)) {
    case 0:
    case 1: close_seq(&w->f, seq); break;
    case 2:
    case 3: pkv_seq_publish(w->f.kv, seq, text(), pkv_seq_length(w->f.kv, seq)); break;
    case 4:
    case 5: assert_true(status_ok(pkv_seq_split(w->f.kv, seq, rng_below(&w->r, 3), 0))); break;
    case 6: step_drop(w, seq); break;
    case 7: step_keep(w, seq); break;
    case 8:
    case 9: step_fork(w, seq); break;
    case 10: step_swap_out(w, seq); break;
    case 11: step_park(w, seq); break;
    case 12:
        if (pkv_seq_unshare(w->f.kv, seq).code == STATUS_NO_PAGES) close_seq(&w->f, seq);
        break;
    default: step_append(w, seq);
    }
}

static void walk_in_shares(uint32_t layers, uint32_t heads, uint32_t n_shares, uint32_t n_pages,
                           uint32_t n_host_pages)
{
    static walk w;
    w = (walk){.r = rng_seed(layers * 10 + heads)};
    begin_in_shares(&w.f, layers, heads, n_shares, n_pages, n_host_pages);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t seq = rng_below(&w.r, SEQS);
        if (is_open(&w, seq)) step_of_open(&w, seq);
        else if (rng_below(&w.r, 2)) step_open(&w, seq);
        else step_swap_in(&w, seq);
        if (rng_below(&w.r, 6) == 0) step_unpark(&w, seq);
        if (rng_below(&w.r, 300) == 0) pkv_flush(w.f.kv);
        if (rng_below(&w.r, 200) == 0) pkv_distrust(w.f.kv, text(), P, w.f.salt[seq]);
        if (rng_below(&w.r, 3) == 0) assert_true(status_ok(pkv_gather(w.f.kv)));
        check_pool(&w.f);
        if (rng_below(&w.r, 3) == 0) continue; /* several operations in one step */
        check(&w.f);
        check_runs(&w);
    }
    assert_true(layers * heads == 1 || pkv_count(w.f.kv).pages_gathered > 100);
    end(&w.f);
}

static void walk_on(uint32_t layers, uint32_t heads, uint32_t n_pages, uint32_t n_host_pages)
{
    walk_in_shares(layers, heads, 1, n_pages, n_host_pages);
}

static void two_by_two(void **state)
{
    (void)state;
    walk_on(2, 2, 48, 30);
    walk_on(2, 2, 81, 60);
}

static void three_by_two(void **state)
{
    (void)state;
    walk_on(3, 2, 70, 40);
}

static void one_layer(void **state)
{
    (void)state;
    walk_on(1, 4, 50, 30);
}

static void one_head(void **state)
{
    (void)state;
    walk_on(4, 1, 51, 29);
}

static void one_group(void **state)
{
    (void)state;
    walk_on(1, 1, 14, 9);
}

static void two_shares_of_two_heads(void **state)
{
    (void)state;
    walk_in_shares(2, 4, 2, 96, 60);
    walk_in_shares(1, 4, 2, 50, 30);
}

static void a_share_for_each_head(void **state)
{
    (void)state;
    walk_in_shares(2, 2, 2, 81, 60);
    walk_in_shares(2, 4, 4, 97, 57);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shares_of_two_heads),
        cmocka_unit_test(a_share_for_each_head),
        cmocka_unit_test(two_by_two),
        cmocka_unit_test(three_by_two),
        cmocka_unit_test(one_layer),
        cmocka_unit_test(one_head),
        cmocka_unit_test(one_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
