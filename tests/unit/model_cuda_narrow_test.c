/* Products of e4m3 by e4m3 on the CUDA backend (over the emulator): when they are made, how far
 * logits are from the CPU backend's, which rounds no x to e4m3, and what the log says. */
#include "tests/unit/model_floats.h"

enum { MOST = 200, MATRICES = 4 * LAYERS };

/* The limit of NMSE allows x to be rounded to e4m3 in eight products, one after the other. */
static const double LIMIT = 1e-2;

typedef struct outcome {
    float *logits;     /* [n, VOCAB] */
    uint64_t products; /* of e4m3 by e4m3 */
} outcome;

static pass standard(const folder *f, uint32_t chunk)
{
    pass p = pass_of(f, chunk);
    p.precision = KERN_PRECISION_STANDARD;
    return p;
}

static outcome run_of(const pass *p, uint32_t n)
{
    uint32_t tokens[MOST];
    uint64_t before = simt_narrow_products();
    random_tokens(tokens, n, VOCAB);
    pass_result r = run(p, tokens, n);
    outcome out = {malloc((size_t)n * VOCAB * sizeof(float)), simt_narrow_products() - before};
    memcpy(out.logits, r.logits, (size_t)n * VOCAB * sizeof(float));
    result_free(&r);
    assert_int_equal(simt_allocations(), 0);
    return out;
}

/* n rows in steps of p->chunk, of which products are e4m3 by e4m3 this many times. */
static void check_near_cpu(pass p, uint32_t n, uint64_t due)
{
    outcome cpu = run_of(&p, n);
    p = on_gpu(p);
    outcome ours = run_of(&p, n);
    double e = nmse(ours.logits, cpu.logits, (size_t)n * VOCAB);
    print_message("%u rows, %u ranks, %llu products: NMSE of logits %.1e (< %.0e)\n", n, p.n_ranks,
                  (unsigned long long)ours.products, e, LIMIT);
    assert_int_equal(ours.products, due);
    assert_true(e < LIMIT);
    free(cpu.logits);
    free(ours.logits);
}

/* Scales of blocks are multiplied by capability 9.0 alone, but o's columns are one block. */
static void logits_of_every_scale(void **state)
{
    (void)state;
    static const struct {
        shape s;
        uint32_t compute, rows;
        uint64_t products;
    } cases[] = {{{.by = BY_TENSOR, .ffn = 96}, 90, 129, MATRICES},
                 {{.by = BY_CHANNEL, .ffn = 96, .head = true}, 89, 130, MATRICES},
                 {{.by = BY_BLOCK, .block = 128, .ffn = 160}, 90, 130, MATRICES},
                 {{.by = BY_BLOCK, .block = 128, .ffn = 160}, 89, 129, LAYERS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder f = make_model(&cases[i].s);
        simt_have_compute(cases[i].compute);
        check_near_cpu(standard(&f, cases[i].rows), cases[i].rows, cases[i].products);
        folder_remove(&f);
    }
}

/* x keeps 16 bits where precision is high, where rows must not depend on each other, and where the
 * library refuses. */
static void sixteen_bits(void **state)
{
    (void)state;
    folder f = make_model(&(shape){.by = BY_BLOCK, .block = 128, .ffn = 160});
    pass narrow = on_gpu(standard(&f, 140)), high = on_gpu(pass_of(&f, 140));
    size_t bytes = 140 * VOCAB * sizeof(float);
    simt_have_compute(90);
    outcome due = run_of(&high, 140), of_e4m3 = run_of(&narrow, 140);
    simt_refuse_narrow(SIMT_REFUSE_ALL);
    outcome refused = run_of(&narrow, 140);
    simt_refuse_narrow(SIMT_REFUSE_NONE);
    assert_memory_equal(refused.logits, due.logits, bytes);
    assert_memory_not_equal(of_e4m3.logits, due.logits, bytes);
    narrow.batch_invariant = high.batch_invariant = true;
    outcome invariant = run_of(&narrow, 140), other = run_of(&high, 140);
    assert_memory_equal(invariant.logits, other.logits, bytes);
    assert_int_equal(of_e4m3.products, MATRICES);
    assert_int_equal(due.products + refused.products + invariant.products, 0);
    outcome *all[] = {&due, &of_e4m3, &refused, &invariant, &other};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->logits);
    folder_remove(&f);
}

/* A rank's 64 columns of o are in one block of 128; its 96 of down's are in two on the second rank,
 * so that down has a scale for each 32 columns and is multiplied in 16 bits. */
static void ranks(void **state)
{
    (void)state;
    folder f = make_model(&(shape){.by = BY_BLOCK, .block = 128, .ffn = 192});
    pass p = standard(&f, 130);
    p.n_ranks = 2;
    simt_have_compute(90);
    check_near_cpu(p, 130, 2 * (MATRICES - LAYERS));
    folder_remove(&f);
}

/* 180 rows are steps of 140 and 40, of which the shorter one keeps x in 16 bits. The library
 * multiplies qkv and o alone, our kernel the experts, of which both have all rows of a step. */
static void experts_and_few_rows(void **state)
{
    (void)state;
    static const shape shapes[] = {{.by = BY_CHANNEL, .ffn = 64, .n_experts = 2},
                                   {.by = BY_BLOCK, .block = 128, .ffn = 160, .n_experts = 2}};
    simt_have_compute(90);
    for (size_t i = 0; i < 2; i++) {
        folder f = make_model(&shapes[i]);
        check_near_cpu(standard(&f, 140), 180, 2 * LAYERS);
        folder_remove(&f);
    }
}

/* The library refuses, so that experts alone may be e4m3 by e4m3: logits of n rows in one step, on
 * this capability, are those of 16 bits unless they are so. */
static void check_experts_of(const folder *f, uint32_t compute, uint32_t n, bool invariant,
                             bool narrow)
{
    pass p = on_gpu(standard(f, n)), high = on_gpu(pass_of(f, n));
    p.batch_invariant = high.batch_invariant = invariant;
    simt_have_compute(compute);
    simt_refuse_narrow(SIMT_REFUSE_ALL);
    outcome got = run_of(&p, n), due = run_of(&high, n);
    simt_refuse_narrow(SIMT_REFUSE_NONE);
    assert_int_equal(got.products + due.products, 0);
    bool equal = memcmp(got.logits, due.logits, (size_t)n * VOCAB * sizeof(float)) == 0;
    assert_int_equal(equal, !narrow);
    free(got.logits);
    free(due.logits);
}

static void experts_of_sixteen_bits(void **state)
{
    (void)state;
    folder f = make_model(&(shape){.by = BY_CHANNEL, .ffn = 64, .n_experts = 2});
    check_experts_of(&f, 90, 129, false, true);
    check_experts_of(&f, 90, 128, false, false);
    check_experts_of(&f, 90, 129, true, false);
    check_experts_of(&f, 89, 129, false, false);
    folder_remove(&f);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void expect_text(const shape *s, pass p, const char *due)
{
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    folder f = make_model(s);
    p.dir = f.dir;
    p = on_gpu(p);
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(&p, group, &config);
    assert_string_equal(backend_cuda_describe(&b).narrow, due);
    b.ops->destroy(b.ctx);
    comm_destroy(group);
    folder_remove(&f);
}

static void what_the_log_says(void **state)
{
    (void)state;
    const shape channel = {.by = BY_CHANNEL, .ffn = 96},
                block = {.by = BY_BLOCK, .block = 128, .ffn = 160},
                fine = {.by = BY_BLOCK, .block = 64, .ffn = 160},
                sparse = {.by = BY_CHANNEL, .ffn = 64, .n_experts = 2},
                many = {.by = BY_CHANNEL, .ffn = 64, .n_experts = 20};
    const folder nowhere = {0};
    pass p = standard(&nowhere, 130), high = pass_of(&nowhere, 130), invariant = p;
    invariant.batch_invariant = true;
    simt_have_compute(90);
    expect_text(&channel, p,
                "activations have 8 bits in steps of more than 128 rows, with 8 of 8 matrices");
    expect_text(&sparse, p,
                "activations have 8 bits in steps of more than 128 rows, with 8 of 8 matrices");
    expect_text(
        &many, p,
        "activations have 8 bits in steps of more than 128 rows, with 8 of 8 matrices; with "
        "experts in steps of more than 160 rows");
    expect_text(&channel, high, "activations have 16 bits (--precision high)");
    expect_text(&channel, invariant, "activations have 16 bits (--batch-invariant)");
    expect_text(&fine, p, "activations have 16 bits (no product of 8 bits here takes them)");
    simt_have_compute(89);
    expect_text(&sparse, p,
                "activations have 8 bits in steps of more than 128 rows, with 4 of 8 matrices");
    expect_text(&block, p,
                "activations have 8 bits in steps of more than 128 rows, with 2 of 8 matrices");
    simt_have_compute(80);
    expect_text(&channel, p,
                "activations have 16 bits (compute capability 8.0 does not multiply 8 bits)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_scale),
        cmocka_unit_test(sixteen_bits),
        cmocka_unit_test(ranks),
        cmocka_unit_test(experts_and_few_rows),
        cmocka_unit_test(experts_of_sixteen_bits),
        cmocka_unit_test(what_the_log_says),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
