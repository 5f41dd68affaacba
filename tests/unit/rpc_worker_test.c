/* Ranks at workers: the same bits as ranks of this process, and what happens when one of them is
 * lost, silent, stuck, or not what it should be. */
#include "tests/unit/rpc_worker_fixture.h"

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *site_of(void **state, uint32_t n)
{
    *state = site_create(n);
    return *state;
}

static void expect_same_bits(site *s)
{
    strbuf there = {0}, here = {0};
    backend b = site_make_sure(s), local = site_local(s);
    pass_run(&b, &there);
    pass_run(&local, &here);
    assert_int_equal(there.size, here.size);
    assert_memory_equal(there.data, here.data, here.size);
    b.ops->destroy(b.ctx);
    local.ops->destroy(local.ctx);
    strbuf_destroy(&there);
    strbuf_destroy(&here);
}

static void expect_says(const char *text, const char *word)
{
    if (!strstr(text, word)) fail_msg("\"%s\" does not say '%s'", text, word);
}

static void one_rank_gives_the_same_bits(void **state)
{
    site *s = site_of(state, 1);
    site_start(s, true);
    expect_same_bits(s);
}

static void two_ranks_give_the_same_bits_again_and_again(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    expect_same_bits(s);
    expect_same_bits(s);
    assert_int_equal(atomic_load(&s->ranks[1].sessions), 2);
    expect_says(worker_group_facts(s->group, 1)->device, "cpu, ");
}

/* ---- lost, silent, stuck --------------------------------------------------------------------- */

typedef struct running {
    site *site;
    backend backend;
    site_pass pass;
} running;

/* A step whose rank 1 holds it. */
static void begin_held(running *r, site *s)
{
    *r = (running){.site = s, .backend = site_make_sure(s)};
    pass_begin(&r->pass, &r->backend);
    atomic_store(&s->ranks[1].hold, true);
    assert_true(status_ok(r->backend.ops->submit(r->backend.ctx, pass_plan(&r->pass))));
    while (!atomic_load(&s->ranks[1].holding)) site_nap();
}

/* What comes of it, as the engine would see it. */
static status end_held(running *r, char text[512])
{
    const step_result *result = NULL;
    status st = r->backend.ops->collect(r->backend.ctx, &result);
    if (status_ok(st)) st = result->status;
    snprintf(text, 512, "%s", st.message ? st.message : "");
    r->backend.ops->destroy(r->backend.ctx);
    pass_end(&r->pass);
    return st;
}

static void *destroy_worker(void *rank)
{
    worker_server_destroy(((site_rank *)rank)->server);
    return NULL;
}

static void a_lost_worker_is_named_and_its_group_made_again(void **state)
{
    site *s = site_of(state, 2);
    running r;
    pthread_t thread;
    char text[512], due[160], address[128];
    site_start(s, false);
    begin_held(&r, s);
    pthread_create(&thread, NULL, destroy_worker, &s->ranks[1]);
    assert_int_equal(end_held(&r, text).code, STATUS_UNAVAILABLE);
    snprintf(due, sizeof due, "rank 1 (%s): ", s->ranks[1].address);
    expect_says(text, due);
    pthread_join(thread, NULL);
    s->ranks[1].server = NULL;

    backend b;
    error err = {{0}};
    assert_int_equal(site_make(s, &b, &err).code, STATUS_UNAVAILABLE);
    expect_says(err.text, due);
    snprintf(address, sizeof address, "%s", s->ranks[1].address);
    site_start_worker(s, 1, address);
    expect_same_bits(s);
}

static void *interrupt(void *arg)
{
    running *r = arg;
    r->backend.ops->interrupt(r->backend.ctx);
    return NULL;
}

static void an_interrupt_ends_a_stuck_step(void **state)
{
    site *s = site_of(state, 2);
    running r;
    pthread_t thread;
    char text[512];
    site_start(s, false);
    begin_held(&r, s);
    pthread_create(&thread, NULL, interrupt, &r);
    assert_int_equal(end_held(&r, text).code, STATUS_INTERNAL);
    pthread_join(thread, NULL);
    expect_same_bits(s);
}

static void a_rank_that_fails_frees_the_others(void **state)
{
    site *s = site_of(state, 2);
    running r;
    char text[512], due[160];
    site_start(s, false);
    atomic_store(&s->ranks[0].fails, true);
    begin_held(&r, s);
    assert_int_equal(end_held(&r, text).code, STATUS_INTERNAL);
    snprintf(due, sizeof due, "rank 0 (%s): a full house", s->ranks[0].address);
    expect_says(text, due);
    expect_same_bits(s);
}

static void a_coordinator_that_goes_away_frees_its_workers(void **state)
{
    site *s = site_of(state, 2);
    s->worker_silence_us = 400000;
    running r;
    char text[512];
    site_start(s, false);
    /* One whose heartbeats come, one whose do not: the first cannot be told from a slow one. */
    begin_held(&r, s);
    (void)end_held; // the session goes on for longer than the silence
    for (int i = 0; i < 600; i++) site_nap();
    assert_int_equal(atomic_load(&s->ranks[0].resets), 0);
    interrupt(&r);
    (void)end_held(&r, text);
    site_await(&s->ranks[0], "idle");
    site_await(&s->ranks[1], "idle");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_rank_gives_the_same_bits, teardown),
        cmocka_unit_test_teardown(two_ranks_give_the_same_bits_again_and_again, teardown),
        cmocka_unit_test_teardown(a_lost_worker_is_named_and_its_group_made_again, teardown),
        cmocka_unit_test_teardown(an_interrupt_ends_a_stuck_step, teardown),
        cmocka_unit_test_teardown(a_rank_that_fails_frees_the_others, teardown),
        cmocka_unit_test_teardown(a_coordinator_that_goes_away_frees_its_workers, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker", tests, NULL, NULL);
}
