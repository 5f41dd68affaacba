/* A sparse layer's feed-forward: compared with plain sums, the same alone as in a batch, and
 * without reading an expert that no row uses. */
#include "model/cpu/experts.h"
#include "tests/unit/model_pass.h"

enum { HIDDEN = 32, FFN = 20, EXPERTS = 5, OF_ROW = 2, ROWS = 9 };

typedef struct fixture {
    model_config config;
    thread_pool *pool;
    kern_context *kernels;
    layer_weights layer;
    ffn_weights ffns[EXPERTS];
    model_weights weights;
    float router[EXPERTS * HIDDEN], gate_up[EXPERTS][2 * FFN * HIDDEN], down[EXPERTS][HIDDEN * FFN];
    float x[ROWS * HIDDEN], wide[ROWS * 2 * FFN], act[ROWS * FFN], out[ROWS * HIDDEN];
    _Atomic bool interrupted;
    experts *experts;
} fixture;

static void fill(rng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(rng_below(r, 2001) - 1000.0) / 1000.0f;
}

static void pack(fixture *x, kern_matrix *m, size_t n, size_t k, const float *src)
{
    *m = (kern_matrix){.type = DTYPE_F32, .n = n, .k = k};
    m->data = alloc_pages(kern_matrix_size(m));
    kern_matrix_pack(x->kernels, m, 0, n, src, DTYPE_F32, k);
}

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    rng r = rng_seed(5);
    x->config = (model_config){.hidden = HIDDEN,
                               .n_experts = EXPERTS,
                               .experts_per_token = OF_ROW,
                               .expert_ffn = FFN,
                               .expert_norm = true};
    x->weights.slice.n_expert_ffn = FFN;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 2}, &x->pool)));
    assert_true(status_ok(kern_create(&(kern_options){.pool = x->pool}, &x->kernels, NULL)));
    fill(&r, x->x, ROWS * HIDDEN);
    fill(&r, x->router, EXPERTS * HIDDEN);
    pack(x, &x->layer.router, EXPERTS, HIDDEN, x->router);
    for (int e = 0; e < EXPERTS; e++) {
        fill(&r, x->gate_up[e], 2 * FFN * HIDDEN);
        fill(&r, x->down[e], HIDDEN * FFN);
        pack(x, &x->ffns[e].gate_up, 2 * FFN, HIDDEN, x->gate_up[e]);
        pack(x, &x->ffns[e].down, HIDDEN, FFN, x->down[e]);
    }
    x->layer.experts = x->ffns;
    forward_options o = {.config = &x->config,
                         .weights = &x->weights,
                         .kernels = x->kernels,
                         .pool = x->pool,
                         .max_rows = ROWS,
                         .interrupted = &x->interrupted};
    assert_true(status_ok(experts_create(&o, &x->experts)));
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    experts_destroy(x->experts);
    alloc_pages_free(x->layer.router.data, kern_matrix_size(&x->layer.router));
    for (int e = 0; e < EXPERTS; e++) {
        alloc_pages_free(x->ffns[e].gate_up.data, kern_matrix_size(&x->ffns[e].gate_up));
        alloc_pages_free(x->ffns[e].down.data, kern_matrix_size(&x->ffns[e].down));
    }
    kern_destroy(x->kernels);
    thread_pool_destroy(x->pool);
    free(x);
    return 0;
}

static void run_rows(fixture *x, uint32_t first, uint32_t n, float *out)
{
    assert_true(status_ok(experts_run(x->experts, &x->layer, x->x + (size_t)first * HIDDEN, n,
                                      x->wide, x->act, out)));
}

/* p [EXPERTS] = softmax of the router's logits. */
static void probabilities(const fixture *x, uint32_t row, double *p)
{
    double sum = 0;
    for (int e = 0; e < EXPERTS; e++) {
        double logit = 0;
        for (int i = 0; i < HIDDEN; i++)
            logit += (double)x->router[e * HIDDEN + i] * x->x[row * HIDDEN + i];
        sum += p[e] = exp(logit);
    }
    for (int e = 0; e < EXPERTS; e++) p[e] /= sum;
}

static bool is_chosen(const double *p, int e)
{
    int better = 0;
    for (int i = 0; i < EXPERTS; i++) better += p[i] > p[e];
    return better < OF_ROW;
}

static void add_expert(const fixture *x, uint32_t row, int e, double share, double *out)
{
    double act[FFN];
    for (int f = 0; f < FFN; f++) {
        double gate = 0, up = 0;
        for (int i = 0; i < HIDDEN; i++) {
            gate += (double)x->gate_up[e][f * HIDDEN + i] * x->x[row * HIDDEN + i];
            up += (double)x->gate_up[e][(FFN + f) * HIDDEN + i] * x->x[row * HIDDEN + i];
        }
        act[f] = gate / (1 + exp(-gate)) * up;
    }
    for (int i = 0; i < HIDDEN; i++)
        for (int f = 0; f < FFN; f++) out[i] += share * x->down[e][i * FFN + f] * act[f];
}

static void sums_are_those_of_the_chosen(void **state)
{
    fixture *x = *state;
    for (int norm = 0; norm < 2; norm++) {
        x->config.expert_norm = norm;
        run_rows(x, 0, ROWS, x->out);
        for (uint32_t row = 0; row < ROWS; row++) {
            double p[EXPERTS], due[HIDDEN] = {0}, sum = 0;
            probabilities(x, row, p);
            for (int e = 0; e < EXPERTS; e++) sum += is_chosen(p, e) ? p[e] : 0;
            for (int e = 0; e < EXPERTS; e++)
                if (is_chosen(p, e)) add_expert(x, row, e, norm ? p[e] / sum : p[e], due);
            for (int i = 0; i < HIDDEN; i++)
                assert_true(fabs(due[i] - (double)x->out[row * HIDDEN + i]) < 1e-3);
        }
    }
}

/* A router without preference picks the lowest numbers. */
static void the_first_of_equals_are_chosen(void **state)
{
    fixture *x = *state;
    kern_matrix router = x->layer.router, equal = router;
    equal.data = alloc_pages(kern_matrix_size(&equal)); /* zeros */
    assert_non_null(equal.data);
    x->config.expert_norm = true;
    x->layer.router = equal;
    run_rows(x, 0, ROWS, x->out);
    x->layer.router = router;
    alloc_pages_free(equal.data, kern_matrix_size(&equal));
    for (uint32_t row = 0; row < ROWS; row++) {
        double due[HIDDEN] = {0};
        for (int e = 0; e < OF_ROW; e++) add_expert(x, row, e, 1.0 / OF_ROW, due);
        for (int i = 0; i < HIDDEN; i++)
            assert_true(fabs(due[i] - (double)x->out[row * HIDDEN + i]) < 1e-3);
    }
}

static void a_row_is_its_own_business(void **state)
{
    fixture *x = *state;
    float alone[HIDDEN];
    run_rows(x, 0, ROWS, x->out);
    for (uint32_t row = 0; row < ROWS; row++) {
        run_rows(x, row, 1, alone);
        assert_memory_equal(alone, x->out + (size_t)row * HIDDEN, sizeof alone);
    }
}

/* Their weights are not mapped: reading them would crash. */
static void idle_experts_are_not_read(void **state)
{
    fixture *x = *state;
    double p[EXPERTS];
    float alone[HIDDEN];
    ffn_weights all[EXPERTS];
    int n_idle = 0;
    memcpy(all, x->ffns, sizeof all);
    run_rows(x, 0, ROWS, x->out);
    probabilities(x, 3, p);
    for (int e = 0; e < EXPERTS; e++) {
        if (is_chosen(p, e)) continue;
        x->ffns[e].gate_up.data = x->ffns[e].down.data = NULL;
        n_idle++;
    }
    run_rows(x, 3, 1, alone);
    memcpy(x->ffns, all, sizeof all);
    assert_int_equal(n_idle, EXPERTS - OF_ROW);
    assert_memory_equal(alone, x->out + (size_t)3 * HIDDEN, sizeof alone);
}

/* A router whose logits are NaN still picks experts. */
static void nan_logits_choose_experts(void **state)
{
    fixture *x = *state;
    for (int i = 0; i < HIDDEN; i++) x->x[i] = NAN;
    run_rows(x, 0, ROWS, x->out);
    assert_true(isnan(x->out[0]));
    assert_false(isnan(x->out[HIDDEN]));
}

static void an_interrupt_ends_it(void **state)
{
    fixture *x = *state;
    x->interrupted = true;
    assert_int_equal(experts_run(x->experts, &x->layer, x->x, ROWS, x->wide, x->act, x->out).code,
                     STATUS_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sums_are_those_of_the_chosen, setup, teardown),
        cmocka_unit_test_setup_teardown(the_first_of_equals_are_chosen, setup, teardown),
        cmocka_unit_test_setup_teardown(a_row_is_its_own_business, setup, teardown),
        cmocka_unit_test_setup_teardown(idle_experts_are_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(nan_logits_choose_experts, setup, teardown),
        cmocka_unit_test_setup_teardown(an_interrupt_ends_it, setup, teardown),
    };
    return cmocka_run_group_tests_name("model_experts", tests, NULL, NULL);
}
