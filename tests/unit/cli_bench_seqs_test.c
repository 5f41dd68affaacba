/* The plans that the bench makes by itself, on a backend that checks every one of them. */
#include "cli/bench/bench_seqs.h"
#include "tests/sim/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEQS = 3, STEPS = 40, CONTEXT = 30 };

/* A simulated backend, with the largest number of steps it held at once. */
typedef struct watched {
    loaded_model model;
    sim_backend *sim;
    backend inner;
    uint32_t n, most, drawn; /* drawn: rows whose token the step in flight draws */
    bench_seqs seqs;
} watched;

static const backend_info *info(void *ctx)
{
    watched *w = ctx;
    return w->inner.ops->info(w->inner.ctx);
}

static status submit(void *ctx, const step_plan *plan)
{
    watched *w = ctx;
    if (++w->n > w->most) w->most = w->n;
    for (uint32_t i = 0; i < plan->n_seqs; i++) w->drawn += plan->seqs[i].token_from > 0;
    return w->inner.ops->submit(w->inner.ctx, plan);
}

static status collect(void *ctx, const step_result **out)
{
    watched *w = ctx;
    w->n--;
    return w->inner.ops->collect(w->inner.ctx, out);
}

static watched *start(uint32_t in_flight)
{
    static const backend_ops ops = {.info = info, .submit = submit, .collect = collect};
    const sim_options o = {
        .geometry = {.page_tokens = 16,
                     .n_layers = 2,
                     .n_kv_heads = 2,
                     .layers_per_group = 1,
                     .heads_per_group = 2},
        .n_pages = 64,
        .max_seqs = SEQS,
        .max_rows = 64,
        .max_model_len = 256,
        .max_in_flight = in_flight,
    };
    error err = {{0}};
    watched *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->sim = sim_backend_create(&o);
    w->inner = sim_backend_as_backend(w->sim);
    w->model.backend = (backend){&ops, w};
    if (!status_ok(bench_seqs_create(&w->model, &w->seqs, &err))) fail_msg("%s", err.text);
    return w;
}

static void finish(watched *w)
{
    assert_int_equal(w->n, 0);
    assert_null(sim_backend_wrong(w->sim));
    bench_seqs_destroy(&w->seqs);
    w->inner.ops->destroy(w->inner.ctx);
    free(w);
}

static void decodes_as_deep_as_the_backend_allows(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 2; depth++) {
        watched *w = start(depth);
        bench_seqs *b = &w->seqs;
        const step_result *r;
        assert_true(status_ok(bench_seqs_open(b, SEQS, CONTEXT, NULL)));
        for (uint32_t i = 0; i < STEPS; i++)
            assert_true(status_ok(bench_seqs_decode(b, NULL, NULL)));
        assert_int_equal(w->n, depth - 1);
        assert_int_equal(w->most, depth);
        assert_int_equal(w->drawn, depth == 1 ? 0 : SEQS * (STEPS - 1));
        assert_true(status_ok(bench_seqs_settle(b, NULL)));
        assert_int_equal(w->n, 0);
        /* Other steps, and the end, must not follow one in flight. */
        assert_true(status_ok(bench_seqs_decode(b, NULL, NULL)));
        assert_true(status_ok(bench_seqs_step(b, 2, true, NULL, &r, NULL)));
        assert_int_equal(r->n_seqs, SEQS);
        assert_int_equal(pkv_seq_length(b->kv, 0), CONTEXT + STEPS + 3);
        assert_true(status_ok(bench_seqs_decode(b, NULL, NULL)));
        assert_true(status_ok(bench_seqs_close(b, NULL)));
        finish(w);
    }
}

static void a_step_that_fails_leaves_none_in_flight(void **state)
{
    (void)state;
    watched *w = start(2);
    bench_seqs *b = &w->seqs;
    assert_true(status_ok(bench_seqs_open(b, SEQS, CONTEXT, NULL)));
    sim_backend_fail_next(w->sim);
    error err = {{0}};
    assert_true(status_ok(bench_seqs_decode(b, NULL, &err)));
    assert_false(status_ok(bench_seqs_decode(b, NULL, &err)));
    assert_true(err.text[0] != 0);
    assert_int_equal(w->n, 1);
    assert_true(status_ok(bench_seqs_close(b, NULL)));
    finish(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_as_deep_as_the_backend_allows),
        cmocka_unit_test(a_step_that_fails_leaves_none_in_flight),
    };
    return cmocka_run_group_tests_name("cli_bench_seqs", tests, NULL, NULL);
}
