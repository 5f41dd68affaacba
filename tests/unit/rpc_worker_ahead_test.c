/* Two steps in flight over the wire: the second is with the ranks before the first is collected,
 * its tokens are draws that only they know, and the bits are those of one step after the other.
 * Also ranks that are lost, fail or are left with two steps. */
#include "rpc/worker/group.h"
#include "tests/unit/rpc_worker_walk.h"

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

/* ---- in order -------------------------------------------------------------------------------- */

static void one_rank_gives_the_same_bits(void **state)
{
    site *s = site_of(state, 1);
    site_start(s, true);
    expect_same_bits(s, 2);
}

static void two_ranks_give_the_same_bits(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    expect_same_bits(s, 2);
    expect_same_bits(s, 2);
}

static void steps_in_parts_give_the_same_bits(void **state)
{
    site *s = site_of(state, 2);
    s->part_bytes = 64;
    site_start(s, false);
    expect_same_bits(s, 2);
}

/* A rank that takes one step at a time keeps all others to that. */
static void the_least_of_all_ranks_counts(void **state)
{
    for (uint32_t one = 0; one < 2; one++) {
        site *s = site_of(state, 2);
        s->ranks[one].ahead = false;
        site_start(s, false);
        expect_same_bits(s, 1);
        site_destroy(s);
        *state = NULL;
    }
}

/* Each step is with the ranks while the one before is in flight there, though the coordinator has
 * not asked for a result; with one step in flight they wait for the next, until none comes. */
static void a_step_is_submitted_before_the_one_in_front_is_collected(void **state)
{
    site *s = site_of(state, 2);
    strbuf out = {0};
    walk w;
    site_start(s, false);
    backend b = site_make_sure(s);
    walk_begin(&w, &b, 2);
    walk_submit(&w);
    for (int i = 0; i < 2; i++) site_await_events(&s->ranks[i], "S1");
    for (int i = 0; i < 50; i++) site_nap(); // a rank that does not wait would collect now
    walk_submit(&w);
    for (int i = 0; i < 2; i++) site_await_events(&s->ranks[i], "S1 S2 C1");
    walk_take(&w, 1, &out);
    walk_submit(&w);
    walk_take(&w, 2, &out);
    for (int i = 0; i < 2; i++) site_await_events(&s->ranks[i], "S1 S2 C1 S3 C2");
    walk_take(&w, 3, &out); // nothing is behind it
    walk_submit(&w);
    walk_take(&w, 4, &out);
    for (int i = 0; i < 2; i++) site_await_events(&s->ranks[i], "S1 S2 C1 S3 C2 C3 S4 C4");
    b.ops->destroy(b.ctx);
    walk_end(&w);
    strbuf_destroy(&out);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Two steps in flight, of which rank 1 holds the first. */
static void fill_held(walk *w, backend *b, site *s)
{
    *b = site_make_sure(s);
    walk_begin(w, b, 2);
    atomic_store(&s->ranks[1].hold, true);
    walk_submit(w);
    walk_submit(w);
    site_await_held(&s->ranks[1]);
}

/* Expects that both steps fail, the first so. */
static void expect_both_fail(walk *w, const backend *b, status_code code, const char *word)
{
    const step_result *r;
    char text[512], second[512];
    status first = walk_collect(w, &r, text);
    if (first.code != code) fail_msg("%d: %s", first.code, text);
    expect_contains(text, word);
    assert_false(status_ok(walk_collect(w, &r, second)));
    b->ops->destroy(b->ctx);
    walk_end(w);
}

static void *destroy_worker(void *rank)
{
    worker_server_destroy(((site_rank *)rank)->server);
    return NULL;
}

static void a_rank_that_is_lost_fails_both(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    pthread_t thread;
    char due[160], address[128];
    site_start(s, false);
    fill_held(&w, &b, s);
    pthread_create(&thread, NULL, destroy_worker, &s->ranks[1]);
    snprintf(due, sizeof due, "rank 1 (%s): ", s->ranks[1].address);
    expect_both_fail(&w, &b, STATUS_UNAVAILABLE, due);
    pthread_join(thread, NULL);
    snprintf(address, sizeof address, "%s", s->ranks[1].address);
    site_start_worker(s, 1, address);
    expect_same_bits(s, 2);
}

static void a_rank_that_fails_alone_fails_both(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    site_start(s, false);
    atomic_store(&s->ranks[0].fails, true);
    fill_held(&w, &b, s);
    expect_both_fail(&w, &b, STATUS_UNAVAILABLE, "a full house: out of memory");
    expect_same_bits(s, 2);
}

/* The first step fails at all ranks at once: the one behind it has its own end. */
static void a_step_that_all_ranks_end_leaves_the_next(void **state)
{
    site *s = site_of(state, 2);
    const step_result *r;
    walk w;
    char text[512];
    strbuf out = {0};
    site_start(s, false);
    backend b = site_make_sure(s);
    walk_begin(&w, &b, 2);
    s->ranks[0].end = STEP_ENDED_FIRST;
    s->ranks[1].end = STEP_ENDED_AFTER;
    for (int i = 0; i < 2; i++) atomic_store(&s->ranks[i].fails, true);
    walk_submit(&w);
    walk_submit(&w);
    assert_int_equal(walk_collect(&w, &r, text).code, STATUS_NO_MEMORY);
    assert_int_equal(r->step, 1);
    expect_contains(text, "rank 0");
    walk_take(&w, 2, &out);
    walk_submit(&w);
    walk_take(&w, 3, &out);
    b.ops->destroy(b.ctx);
    walk_end(&w);
    strbuf_destroy(&out);
    expect_same_bits(s, 2);
}

/* The second step cannot be submitted at a rank: its reason is told with the first, which ends. */
static void a_second_step_that_is_refused_fails_both(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    site_start(s, false);
    atomic_store(&s->ranks[0].refuses, true);
    b = site_make_sure(s);
    walk_begin(&w, &b, 2);
    walk_submit(&w);
    walk_submit(&w);
    expect_both_fail(&w, &b, STATUS_INTERNAL, "a second step is too much");
    expect_same_bits(s, 2);
}

/* Takes events of the streams until this rank's has ended. */
static void await_end(site *s, uint32_t rank)
{
    while (!s->group->links[rank].stream.ended) {
        grpc_event event =
            grpc_completion_queue_next(s->group->steps, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        assert_int_equal(event.type, GRPC_OP_COMPLETE);
        stream_op *op = event.tag;
        op->link->stream.n_ops--;
        op->done(op->link, event.success);
    }
}

/* A worker's own reason is told, also where its rank was interrupted before it was asked for it,
 * because the step could not be submitted at another rank. */
static void an_interrupt_does_not_hide_the_reason(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    site_start(s, false);
    atomic_store(&s->ranks[0].refuses, true);
    b = site_make_sure(s);
    walk_begin(&w, &b, 2);
    walk_submit(&w);
    walk_submit(&w);
    await_end(s, 0);
    proxy_ops.interrupt(&s->group->links[0]);
    expect_both_fail(&w, &b, STATUS_INTERNAL, "a second step is too much");
    expect_same_bits(s, 2);
}

static void an_interrupt_ends_both(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    site_start(s, false);
    fill_held(&w, &b, s);
    b.ops->interrupt(b.ctx);
    expect_both_fail(&w, &b, STATUS_INTERNAL, "interrupted");
    expect_same_bits(s, 2);
}

/* Ranks are destroyed while two steps are in flight that were not collected. */
static void ranks_end_with_two_steps(void **state)
{
    site *s = site_of(state, 2);
    walk w;
    backend b;
    site_start(s, false);
    fill_held(&w, &b, s);
    b.ops->destroy(b.ctx);
    walk_end(&w);
    b = site_make_sure(s);
    walk_begin(&w, &b, 2);
    walk_submit(&w);
    walk_submit(&w);
    b.ops->destroy(b.ctx);
    walk_end(&w);
    expect_same_bits(s, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_rank_gives_the_same_bits, teardown),
        cmocka_unit_test_teardown(two_ranks_give_the_same_bits, teardown),
        cmocka_unit_test_teardown(steps_in_parts_give_the_same_bits, teardown),
        cmocka_unit_test_teardown(the_least_of_all_ranks_counts, teardown),
        cmocka_unit_test_teardown(a_step_is_submitted_before_the_one_in_front_is_collected,
                                  teardown),
        cmocka_unit_test_teardown(a_rank_that_is_lost_fails_both, teardown),
        cmocka_unit_test_teardown(a_rank_that_fails_alone_fails_both, teardown),
        cmocka_unit_test_teardown(a_step_that_all_ranks_end_leaves_the_next, teardown),
        cmocka_unit_test_teardown(a_second_step_that_is_refused_fails_both, teardown),
        cmocka_unit_test_teardown(an_interrupt_does_not_hide_the_reason, teardown),
        cmocka_unit_test_teardown(an_interrupt_ends_both, teardown),
        cmocka_unit_test_teardown(ranks_end_with_two_steps, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker, two steps in flight", tests, NULL, NULL);
}
