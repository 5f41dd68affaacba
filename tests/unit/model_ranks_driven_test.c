/* Ranks that the caller drives, with two steps in flight: when the second step cannot be submitted,
 * the first has its own result, if that is there, and otherwise the reason of the second. */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, REFUSED = 2 };

static const backend_info info = {
    .name = "driven",
    .vocab_size = 1,
    .max_rows = 1,
    .max_seqs = 1,
    .n_pages = 2,
    .max_in_flight = 2,
    .geometry = {.page_tokens = 16,
                 .n_layers = 1,
                 .n_kv_heads = 1,
                 .layers_per_group = 1,
                 .heads_per_group = 1},
};

/* Its step REFUSED is refused on submission. */
typedef struct driven {
    bool is_done; // results are there when they are asked for, though it is interrupted
    bool interrupted;
    uint32_t n_submitted, n_collected;
    step_result result;
} driven;

static driven ranks[RANKS];

static const backend_info *driven_info(void *ctx)
{
    (void)ctx;
    return &info;
}

static status driven_submit(void *ctx, const step_plan *plan)
{
    driven *d = ctx;
    if (plan->step == REFUSED) return status_make(STATUS_LIMIT, "the plan is too large");
    d->n_submitted++;
    return STATUS_IS_OK;
}

static status driven_collect(void *ctx, const step_result **out)
{
    driven *d = ctx;
    assert_true(d->n_collected < d->n_submitted);
    d->result = (step_result){.step = ++d->n_collected};
    *out = &d->result;
    if (d->interrupted && !d->is_done) return status_make(STATUS_INTERNAL, "interrupted");
    return STATUS_IS_OK;
}

static void driven_interrupt(void *ctx) { ((driven *)ctx)->interrupted = true; }
/* Ranks that compute elsewhere wait for each other to end, so all are told to end before one is
 * awaited. */
static void driven_destroy(void *ctx)
{
    (void)ctx;
    for (int i = 0; i < RANKS; i++) assert_true(ranks[i].interrupted);
}

static const backend_ops driven_ops = {.info = driven_info,
                                       .submit = driven_submit,
                                       .collect = driven_collect,
                                       .interrupt = driven_interrupt,
                                       .destroy = driven_destroy};

static status make_driven(void *ctx, comm *group, backend *out, error *err)
{
    (void)err;
    driven *d = &ranks[comm_rank(group)];
    *d = (driven){.is_done = *(const bool *)ctx};
    *out = (backend){&driven_ops, d};
    return STATUS_IS_OK;
}

static void check_refused(bool is_done)
{
    backend_ranks_options o = {
        .n_ranks = RANKS, .driven = true, .make = make_driven, .ctx = &is_done};
    const step_plan plans[] = {{.step = 1}, {.step = REFUSED}};
    const step_result *r;
    backend b;
    assert_true(status_ok(backend_ranks_create(&o, &b, NULL)));
    for (int i = 0; i < 2; i++) assert_true(status_ok(b.ops->submit(b.ctx, &plans[i])));
    for (int i = 0; i < 2; i++) {
        assert_true(status_ok(b.ops->collect(b.ctx, &r)));
        assert_int_equal(r->step, 1 + i);
        bool fine = is_done && i == 0;
        assert_int_equal(r->status.code, fine ? STATUS_OK : STATUS_INTERNAL);
        if (!fine) assert_non_null(strstr(r->status.message, "the plan is too large"));
    }
    for (int i = 0; i < RANKS; i++) assert_true(ranks[i].interrupted && ranks[i].n_collected == 1);
    b.ops->destroy(b.ctx);
}

static void a_step_before_a_refused_one_says_why_it_ends(void **state)
{
    (void)state;
    check_refused(false);
}

static void all_ranks_are_told_to_end_first(void **state)
{
    (void)state;
    bool is_done = true;
    backend_ranks_options o = {
        .n_ranks = RANKS, .driven = true, .make = make_driven, .ctx = &is_done};
    backend b;
    assert_true(status_ok(backend_ranks_create(&o, &b, NULL)));
    b.ops->destroy(b.ctx);
}

static void a_step_before_a_refused_one_keeps_its_result(void **state)
{
    (void)state;
    check_refused(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_before_a_refused_one_says_why_it_ends),
        cmocka_unit_test(a_step_before_a_refused_one_keeps_its_result),
        cmocka_unit_test(all_ranks_are_told_to_end_first),
    };
    return cmocka_run_group_tests_name("ranks that are driven", tests, NULL, NULL);
}
