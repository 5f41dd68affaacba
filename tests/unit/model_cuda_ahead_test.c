/* Two steps in flight over emulated GPUs, which execute nothing until they are waited for: the
 * tokens and logprobs equal those with one step in flight, for all sampling parameters, prompts in
 * chunks, measures and scores, and after a step that failed; and refused plans. */
#include "tests/unit/model_ahead.h"

static void the_same_draws(void **state)
{
    (void)state;
    two_are_as_one(&wide, false, NULL);
}

static void the_same_largest(void **state)
{
    (void)state;
    two_are_as_one(&wide, true, NULL);
}

/* Ranks that meet on their devices; they draw by parts and from whole rows, and see each other's
 * draws there. */
static void ranks_that_meet_on_the_device_take_two(void **state)
{
    (void)state;
    pass p = wide;
    void *library = open_nccl(FAKE_WELL);
    p.n_ranks = RANKS;
    p.make_ranks = make_ranks;
    two_are_as_one(&p, false, leave);
    two_are_as_one(&p, true, leave);
    dlclose(library);
}

/* ---- refusals and failures ------------------------------------------------------------------- */

static void ranks_that_meet_on_the_host_take_one(void **state)
{
    (void)state;
    pass p = wide;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    model_config config;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.n_ranks = 2;
    p.batch_invariant = false;
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(&p, group, &config);
    assert_int_equal(b.ops->info(b.ctx)->max_in_flight, 1);
    b.ops->destroy(b.ctx);
    comm_destroy(group);
}

static void a_lost_device_fails_both(void **state)
{
    (void)state;
    house *h = malloc(sizeof *h);
    pass p = wide;
    const step_result *r;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    open_house(h, &p, 2, false, NULL);
    fill(h);
    simt_fail_after(0);
    for (int i = 0; i < 2; i++) {
        assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
        assert_int_equal(r->status.code, STATUS_INTERNAL);
    }
    close_house(h);
    simt_fail_after(-1);
    /* Also when the steps in flight are not collected. */
    open_house(h, &p, 2, false, NULL);
    fill(h);
    close_house(h);
    free(h);
}

/* Plans that do not follow from the one in flight, as backend.h defines it. */
static void what_does_not_follow_is_refused(void **state)
{
    (void)state;
    house *h = malloc(sizeof *h);
    pass p = wide;
    const step_result *r;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    open_house(h, &p, 2, false, NULL);
    fill(h);
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    step_plan other = *h->plans[1];
    step_seq seq = other.seqs[0];
    other.step++;
    other.deltas = (pkv_deltas){0};
    other.seqs = &seq;
    seq.token_from = 2; /* there was one share */
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &other)));
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    assert_true(status_ok(r->status));
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    assert_int_equal(r->status.code, STATUS_INVALID);
    seq.token_from = 1; /* nothing is in flight */
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &other)));
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    assert_int_equal(r->status.code, STATUS_INVALID);
    seq.token_from = 0;
    seq.want_logits = true; /* no step is behind one with logits */
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &other)));
    assert_int_equal(h->backend.ops->submit(h->backend.ctx, &other).code, STATUS_INVALID);
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    assert_true(status_ok(r->status));
    close_house(h);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_draws),
        cmocka_unit_test(the_same_largest),
        cmocka_unit_test(ranks_that_meet_on_the_device_take_two),
        cmocka_unit_test(ranks_that_meet_on_the_host_take_one),
        cmocka_unit_test(a_lost_device_fails_both),
        cmocka_unit_test(what_does_not_follow_is_refused),
    };
    return cmocka_run_group_tests_name("CUDA, two steps in flight", tests, NULL, NULL);
}
