/* Ranks that reach the coordinator but not each other; aborted attempts to make a group; counters.
 * Each rank reports its waiting as the test sets it, so that no test waits for the clock. */
#include "tests/unit/rpc_worker_fixture.h"

#define WHILE_US INT64_C(100000000) /* a third of SITE_LONG */

enum { NAPS = 60000 }; // a minute or longer: then a wait has failed

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *start(void **state)
{
    site *s = *state = site_create(2);
    site_start(s, false);
    return s;
}

static void expect_contains(const char *text, const char *word)
{
    if (!strstr(text, word)) fail_msg("\"%s\" does not say '%s'", text, word);
}

static void report_wait(site_rank *r, comm_wait wait, int64_t longer_us)
{
    pthread_mutex_lock(&r->lock);
    r->waits = true;
    r->wait = wait;
    r->longer_us = longer_us;
    pthread_mutex_unlock(&r->lock);
}

static void await_beats(site *s, uint32_t beats)
{
    uint32_t until[] = {atomic_load(&s->ranks[0].n_asked) + beats,
                        atomic_load(&s->ranks[1].n_asked) + beats};
    for (uint32_t i = 0; i < 2; i++) {
        for (int n = 0; n < NAPS && atomic_load(&s->ranks[i].n_asked) < until[i]; n++) site_nap();
        if (atomic_load(&s->ranks[i].n_asked) < until[i]) fail_msg("no heartbeat at rank %u", i);
    }
}

typedef struct heard {
    _Atomic int n;
    char why[512];
} heard;

static void hear(void *ctx, const char *why)
{
    heard *h = ctx;
    snprintf(h->why, sizeof h->why, "%s", why);
    atomic_fetch_add(&h->n, 1);
}

/* Starts a step that rank 1 holds. */
static backend begin_held(site *s, site_pass *pass)
{
    backend b = site_make_sure(s);
    pass_begin(pass, &b);
    atomic_store(&s->ranks[1].hold, true);
    assert_true(status_ok(b.ops->submit(b.ctx, pass_plan(pass))));
    site_await_held(&s->ranks[1]);
    return b;
}

static void end_pass(backend *b, site_pass *pass)
{
    b->ops->destroy(b->ctx);
    pass_end(pass);
}

/* ---- a broken link between two ranks --------------------------------------------------------- */

static void a_rank_is_cut_off_from_its_peer(void **state)
{
    site *s = start(state);
    site_pass pass;
    heard h = {0};
    const step_result *r = NULL;
    worker_group_on_loss(s->group, hear, &h);
    backend b = begin_held(s, &pass);
    /* Rank 1 has sent its part of the round, and computes. */
    report_wait(&s->ranks[1], (comm_wait){.round = 7, .peer = -1}, 0);
    report_wait(&s->ranks[0], (comm_wait){.round = 7, .inside = true, .peer = 1}, WHILE_US);
    assert_true(status_ok(b.ops->collect(b.ctx, &r)));
    assert_int_equal(r->status.code, STATUS_UNAVAILABLE);
    char due[320];
    snprintf(due, sizeof due, "rank 0 (%s): nothing from rank 1 (%s) for ", s->ranks[0].address,
             s->ranks[1].address);
    expect_contains(r->status.message, due);
    expect_contains(r->status.message, "the network between the two is cut");
    for (int n = 0; n < NAPS && atomic_load(&h.n) == 0; n++) site_nap();
    expect_contains(h.why, due);
    end_pass(&b, &pass);
    assert_int_equal(atomic_load(&h.n), 1);
    /* Both workers can be told, and are idle. */
    site_await(&s->ranks[0], "idle");
    site_await(&s->ranks[1], "idle");
    report_wait(&s->ranks[0], (comm_wait){.peer = -1}, 0);
    report_wait(&s->ranks[1], (comm_wait){.peer = -1}, 0);
    strbuf out = {0};
    b = site_make_sure(s);
    pass_run(&b, NULL, &out);
    b.ops->destroy(b.ctx);
    strbuf_destroy(&out);
}

static void both_wait_for_each_other(void **state)
{
    site *s = start(state);
    site_pass pass;
    const step_result *r = NULL;
    backend b = begin_held(s, &pass);
    /* Round 2^32 - 1, and the next. */
    report_wait(&s->ranks[0], (comm_wait){.round = UINT32_MAX, .inside = true, .peer = 1},
                WHILE_US);
    report_wait(&s->ranks[1], (comm_wait){.round = 0, .inside = true, .peer = 0}, WHILE_US);
    assert_true(status_ok(b.ops->collect(b.ctx, &r)));
    assert_int_equal(r->status.code, STATUS_UNAVAILABLE);
    expect_contains(r->status.message, "nothing from rank ");
    end_pass(&b, &pass);
}

/* A slow rank is not cut off, whatever it reports and however long the other waits for it. */
static void a_slow_rank_is_not_cut_off(void **state)
{
    static const comm_wait slow[] = {
        {.round = 6, .peer = -1},                 /* it computes what comes before the round */
        {.round = 7, .inside = true, .peer = -1}, /* it has begun, and was not seen waiting */
        {.round = 6, .inside = true, .peer = 0, .idle_us = WHILE_US}, /* rounds may differ by one */
    };
    site *s = start(state);
    site_pass pass;
    const step_result *r = NULL;
    backend b = begin_held(s, &pass);
    report_wait(&s->ranks[1], slow[0], 0);
    report_wait(&s->ranks[0], (comm_wait){.round = 7, .inside = true, .peer = 1}, WHILE_US);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        report_wait(&s->ranks[1], slow[i], 0);
        await_beats(s, 5);
    }
    /* The message arrives: time waited before it does not count. */
    report_wait(&s->ranks[1], (comm_wait){.round = 7, .peer = -1}, 0);
    report_wait(&s->ranks[0],
                (comm_wait){.round = 7, .inside = true, .peer = 1, .idle_us = 9 * WHILE_US}, 0);
    await_beats(s, 5);
    assert_int_equal(worker_group_counts(s->group).lost, 0);
    report_wait(&s->ranks[0], (comm_wait){.round = 7, .peer = -1}, 0);
    atomic_store(&s->ranks[1].interrupted, true); /* the hold ends, the step continues */
    assert_true(status_ok(b.ops->collect(b.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("%s", r->status.message);
    end_pass(&b, &pass);
}

/* ---- aborted attempts ------------------------------------------------------------------------ */

static void a_making_is_given_up(void **state)
{
    site *s = start(state);
    making m = {.site = s};
    pthread_t thread;
    atomic_store(&s->ranks[1].hold_configure, true);
    assert_int_equal(pthread_create(&thread, NULL, make_ranks, &m), 0);
    site_await_held(&s->ranks[1]);
    worker_group_give_up(s->group);
    pthread_join(thread, NULL);
    assert_int_equal(m.status.code, STATUS_IO);
    expect_contains(m.why.text, "given up");
    make_ranks(&m); /* and no new attempt begins */
    assert_int_equal(m.status.code, STATUS_IO);
    assert_int_equal(atomic_load(&s->ranks[1].sessions), 1);
}

static void what_is_made_goes_on(void **state)
{
    site *s = start(state);
    strbuf out = {0};
    backend b = site_make_sure(s);
    worker_group_give_up(s->group);
    pass_run(&b, NULL, &out);
    b.ops->destroy(b.ctx);
    strbuf_destroy(&out);
}

/* ---- counters -------------------------------------------------------------------------------- */

static void expect_counts(site *s, uint32_t up, uint64_t lost)
{
    worker_counts c = worker_group_counts(s->group);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.up, up);
    assert_int_equal(c.lost, lost);
}

static void workers_are_counted(void **state)
{
    site *s = start(state);
    expect_counts(s, 0, 0);
    backend b = site_make_sure(s);
    expect_counts(s, 2, 0);
    worker_server_destroy(s->ranks[1].server);
    s->ranks[1].server = NULL;
    while (worker_group_counts(s->group).lost == 0) site_nap();
    expect_counts(s, 1, 1);
    b.ops->destroy(b.ctx);
    error err;
    assert_int_equal(site_make(s, &b, &err).code, STATUS_UNAVAILABLE);
    expect_counts(s, 1, 1); /* it was lost once */
    char address[128];
    snprintf(address, sizeof address, "%s", s->ranks[1].address);
    site_start_worker(s, 1, address);
    b = site_make_sure(s);
    expect_counts(s, 2, 1);
    b.ops->destroy(b.ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_rank_is_cut_off_from_its_peer, teardown),
        cmocka_unit_test_teardown(both_wait_for_each_other, teardown),
        cmocka_unit_test_teardown(a_slow_rank_is_not_cut_off, teardown),
        cmocka_unit_test_teardown(a_making_is_given_up, teardown),
        cmocka_unit_test_teardown(what_is_made_goes_on, teardown),
        cmocka_unit_test_teardown(workers_are_counted, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker_peers", tests, NULL, NULL);
}
