/* A product that ends in swiglu gives the bits of the two operations, on every ISA that this CPU
 * runs, for every type of weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One thread alone computes the large shapes; they are slow, and no races. */
#if defined(__SANITIZE_THREAD__)
enum { FEWEST_THREADS = 3 };
#else
enum { FEWEST_THREADS = 1 };
#endif
#if defined(OCTAVO_EMULATED)
enum { LARGE_HALF = 16 * 9, LARGE_K = 512 };
#else
enum { LARGE_HALF = 16 * 65, LARGE_K = 12000 };
#endif

static const float CANARY = -12345.0f;

typedef struct problem {
    kern_matrix w;
    size_t m;
    float *x, *gate_up, *wanted, *out; /* out has one more row, of canaries */
} problem;

static problem make_problem(kern_context *kc, rng *r, dtype type, kern_quant quant, size_t half,
                            size_t k, size_t m)
{
    problem p = {.w = {.type = type, .n = 2 * half, .k = k, .quant = quant}, .m = m};
    float *src = malloc(2 * half * k * sizeof(float));
    p.w.data = alloc_pages(kern_matrix_size(&p.w));
    p.x = malloc(m * k * sizeof(float));
    p.gate_up = malloc(m * 2 * half * sizeof(float));
    p.wanted = malloc(m * half * sizeof(float));
    p.out = malloc((m + 1) * half * sizeof(float));
    assert_true(src && p.w.data && p.x && p.gate_up && p.wanted && p.out);
    for (size_t i = 0; i < 2 * half * k; i++) src[i] = 0.1f * rng_normal(r);
    for (size_t i = 0; i < m * k; i++) p.x[i] = rng_normal(r);
    for (size_t i = 0; i < (m + 1) * half; i++) p.out[i] = CANARY;
    kern_matrix_pack(kc, &p.w, 0, 2 * half, src, DTYPE_F32, k);
    free(src);
    return p;
}

static void free_problem(problem *p)
{
    alloc_pages_free(p->w.data, kern_matrix_size(&p->w));
    free(p->x);
    free(p->gate_up);
    free(p->wanted);
    free(p->out);
}

static void check(kern_context *kc, rng *r, dtype type, kern_quant quant, size_t half, size_t k,
                  size_t m)
{
    problem p = make_problem(kc, r, type, quant, half, k, m);
    kern_matmul(kc, &p.w, NULL, p.x, k, m, p.gate_up, 2 * half);
    kern_swiglu(kc, p.gate_up, m, half, p.wanted);
    kern_matmul_swiglu(kc, &p.w, p.x, k, m, p.gate_up, p.out);
    if (memcmp(p.wanted, p.out, m * half * sizeof(float)) != 0)
        fail_msg("%s: type %d, %d bits, half of n %zu, k %zu, m %zu: other bits", kern_isa_name(kc),
                 (int)type, quant.bits, half, k, m);
    for (size_t i = 0; i < half; i++) assert_true(p.out[m * half + i] == CANARY);
    free_problem(&p);
}

static void check_types(kern_context *kc, rng *r, size_t half, size_t k, size_t m)
{
    check(kc, r, DTYPE_F32, (kern_quant){0, 0}, half, k, m);
    check(kc, r, DTYPE_BF16, (kern_quant){0, 0}, half, k, m);
    check(kc, r, DTYPE_BF16, (kern_quant){8, 32}, half, k, m);
    check(kc, r, DTYPE_BF16, (kern_quant){4, 64}, half, k, m);
    const kern_quant floats = kern_block_floats(kc, DTYPE_BF16);
    if (floats.bits) check(kc, r, DTYPE_BF16, floats, half, k, m);
}

static void check_isa(const char *isa, kern_precision precision, unsigned n_threads)
{
    error err = {{0}};
    thread_pool *pool = NULL;
    kern_context *kc = NULL;
    const thread_pool_options threads = {.n_threads = n_threads};
    assert_true(status_ok(thread_pool_create(&threads, &pool)));
    const kern_options options = {.pool = pool, .isa = isa, .precision = precision};
    assert_true(status_ok(kern_create(&options, &kc, &err)));
    rng r = rng_seed(17);
    if (n_threads == 1) { /* several calls, blocks of rows, x in pieces */
        check_types(kc, &r, LARGE_HALF, 64, 290);
        check_types(kc, &r, 32, LARGE_K, 80);
    } else {
        static const size_t rows[] = {1, 8, 11, 40, 70};
        for (size_t m = 0; m < sizeof rows / sizeof rows[0]; m++) {
            check_types(kc, &r, 16, 96 + 2 * rng_below(&r, 100), rows[m]);
            check_types(kc, &r, 24, 96, rows[m]); /* the middle panel has both gates and ups */
            check_types(kc, &r, 80, 96 + 2 * rng_below(&r, 300), rows[m]);
        }
    }
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available = false;
        const char *isa = kern_isa_at(i, &available);
        if (!available) continue;
        for (unsigned threads = FEWEST_THREADS; threads <= 3; threads += 2) {
            check_isa(isa, KERN_PRECISION_STANDARD, threads);
            check_isa(isa, KERN_PRECISION_HIGH, threads);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
