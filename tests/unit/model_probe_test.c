/* A probe's report on attention, against a forward pass in float64; and models that are refused a
 * probe. */
#include "model/probe.h"
#include "tests/unit/model_dense.h"

enum { FIRST = 700, TOKENS = 720, MOST = 1024 }; /* more rows than one chunk of a run */

typedef struct bench {
    comm *group;
    model_config config;
    backend backend;
    model_probe *probe;
    uint32_t tokens[TOKENS];
} bench;

static const pass plain = {.kv_type = KERN_KV_BF16,
                           .precision = KERN_PRECISION_HIGH,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .heads_per_group = 1,
                           .chunk = 64,
                           .n_threads = 2};

static status open_probe(bench *b, const pass *p, error *err)
{
    comm_options self = {.kind = "self", .size = 1};
    *b = (bench){0};
    assert_true(status_ok(comm_create(&self, &b->group, NULL)));
    b->backend = open_backend(p, b->group, &b->config);
    random_tokens(b->tokens, TOKENS, b->config.vocab_size);
    backend_options made_with = {.n_threads = 2, .isa = p->isa, .precision = p->precision};
    return model_probe_create(&b->backend, &made_with, MOST, &b->probe, err);
}

static void open_bench(bench *b, const pass *p)
{
    error err = {{0}};
    if (!status_ok(open_probe(b, p, &err))) fail_msg("%s", err.text);
}

static void close_bench(bench *b)
{
    model_probe_destroy(b->probe);
    b->backend.ops->destroy(b->backend.ctx);
    comm_destroy(b->group);
}

static void run_probe(bench *b, uint32_t n, uint32_t first)
{
    error err = {{0}};
    if (!status_ok(model_probe_run(b->probe, b->tokens, n, first, &err))) fail_msg("%s", err.text);
}

static void compare(const char *what, const float *got, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-4 * most))
            fail_msg("%s: %zu is %.9g, want %.9g", what, i, (double)got[i], (double)want[i]);
}

/* Keys, values and weights of one layer and KV head. */
static void check_head(const bench *b, const dense *m, uint32_t layer, uint32_t kv_head)
{
    const sequence *s = &m->heads[dense_index(m, layer, kv_head)];
    uint32_t dim = m->config.head_dim, group = s->q_heads;
    compare("keys", model_probe_keys(b->probe, layer, kv_head), s->k, (size_t)m->n * dim);
    compare("values", model_probe_values(b->probe, layer, kv_head), s->v, (size_t)m->n * dim);
    double *want = doubles(m->n), *got = doubles(m->n);
    for (uint32_t row = FIRST; row < m->n; row += 3)
        for (uint32_t g = 0; g < group; g++) {
            attention_row(s, s->q + ((size_t)row * group + g) * dim, row + 1, 1, want);
            model_probe_weights(b->probe, layer, kv_head * group + g, row, got);
            for (uint32_t j = 0; j <= row; j++)
                if (!(fabs(got[j] - want[j]) <= 1e-4))
                    fail_msg("layer %u head %u row %u: weight %u is %.9g, want %.9g", layer,
                             kv_head * group + g, row, j, got[j], want[j]);
        }
    free(want);
    free(got);
}

static void weights_are_those_of_float64(void **state)
{
    (void)state;
    static const char *const dirs[] = {"tests/golden/models/gqa4_tied_f32",
                                       "tests/golden/models/gqa8_bf16"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        pass p = plain;
        bench b;
        p.dir = dirs[i];
        open_bench(&b, &p);
        probe_shape shape = model_probe_shape(b.probe);
        assert_int_equal(shape.n_layers, b.config.n_layers);
        assert_int_equal(shape.head_dim, b.config.head_dim);
        dense m = dense_run(&p, b.tokens, TOKENS, 0);
        run_probe(&b, 40, 39); /* results of the previous run are not kept */
        run_probe(&b, TOKENS, FIRST);
        for (uint32_t l = 0; l < b.config.n_layers; l++)
            for (uint32_t h = 0; h < b.config.n_kv_heads; h++) check_head(&b, &m, l, h);
        dense_free(&m);
        close_bench(&b);
    }
}

static void nothing_outside_a_window_is_seen(void **state)
{
    (void)state;
    pass p = plain;
    bench b;
    double weights[TOKENS], sum = 0;
    p.dir = "tests/golden/models/mistral_window_f32";
    open_bench(&b, &p);
    uint32_t row = 79, first = row + 1 - b.config.window;
    assert_true(b.config.window > 0 && b.config.window < row);
    run_probe(&b, 80, row);
    assert_int_equal(model_probe_first_seen(b.probe, 0, row), first);
    assert_int_equal(model_probe_first_seen(b.probe, 0, 1), 0);
    model_probe_weights(b.probe, 0, 0, row, weights);
    for (uint32_t j = 0; j <= row; j++) {
        sum += weights[j];
        assert_true(j < first ? weights[j] == 0 : weights[j] > 0);
    }
    assert_float_equal(sum, 1, 1e-12);
    close_bench(&b);
}

static void what_cannot_be_run_is_refused(void **state)
{
    (void)state;
    pass p = plain;
    bench b;
    error err = {{0}};
    p.dir = "tests/golden/models/gqa4_tied_f32";
    open_bench(&b, &p);
    uint32_t strange = b.config.vocab_size;
    assert_int_equal(model_probe_run(b.probe, b.tokens, 0, 0, &err).code, STATUS_INVALID);
    assert_int_equal(model_probe_run(b.probe, b.tokens, 8, 8, &err).code, STATUS_INVALID);
    assert_int_equal(model_probe_run(b.probe, b.tokens, MOST + 1, 0, &err).code, STATUS_INVALID);
    assert_int_equal(model_probe_run(b.probe, &strange, 1, 0, &err).code, STATUS_INVALID);
    run_probe(&b, 8, 0); /* the probe still works */
    close_bench(&b);

    p.dir = "tests/golden/models/llama3_rope_f32";
    p.n_ranks = 2;
    assert_int_equal(open_probe(&b, &p, &err).code, STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "one rank"));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_float64),
        cmocka_unit_test(nothing_outside_a_window_is_seen),
        cmocka_unit_test(what_cannot_be_run_is_refused),
    };
    return cmocka_run_group_tests_name("model_probe", tests, NULL, NULL);
}
