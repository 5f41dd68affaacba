/* Matrix products: every ISA of this CPU against plain loops in double precision, and bit for bit
 * where the contract promises it: over the number of rows, over threads, over ISAs with the same
 * order of sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(OCTAVO_EMULATED)
enum { SLOW = 1, ROWS_MAX = 290 }; /* each instruction is a call */
#elif defined(__SANITIZE_THREAD__)
enum { SLOW = 1, ROWS_MAX = 512 }; /* each load is a call */
#else
enum { SLOW = 0, ROWS_MAX = 512 };
#endif

static kern_context *make_precise(const char *isa, kern_precision precision, unsigned n_threads,
                                  thread_pool **pool)
{
    error err = {{0}};
    assert_true(
        status_ok(thread_pool_create(&(thread_pool_options){.n_threads = n_threads}, pool)));
    kern_context *kc = NULL;
    kern_options options = {.pool = *pool, .isa = isa, .precision = precision};
    assert_true(status_ok(kern_create(&options, &kc, &err)));
    assert_string_equal(kern_isa_name(kc), isa);
    return kc;
}

static kern_context *make_context(const char *isa, unsigned n_threads, thread_pool **pool)
{
    return make_precise(isa, KERN_PRECISION_STANDARD, n_threads, pool);
}

static void drop_context(kern_context *kc, thread_pool *pool)
{
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

/* A product with its operands. Bytes that must not be written are canaries. */
typedef struct problem {
    dtype type, src_type;
    size_t n, k, m, src_stride, x_stride, y_stride;
    uint8_t *src;  /* [n, src_stride] of src_type, at an odd address */
    float *weight; /* [n, k] the values of src, rounded to type */
    kern_matrix w;
    float *bias, *x, *y;
} problem;

static const float CANARY = -12345.0f;

static float rounded(dtype type, float f)
{
    if (type == DTYPE_BF16) return bf16_to_f32(bf16_from_f32(f));
    return type == DTYPE_F16 ? f16_to_f32(f16_from_f32(f)) : f;
}

static void store_as(dtype type, void *at, float f)
{
    uint16_t half = type == DTYPE_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
    if (type == DTYPE_F32) memcpy(at, &f, sizeof f);
    else memcpy(at, &half, sizeof half);
}

static problem make_problem(rng *r, dtype type, dtype src_type, size_t n, size_t k, size_t m)
{
    problem p = {.type = type, .src_type = src_type, .n = n, .k = k, .m = m};
    p.src_stride = k + rng_below(r, 3);
    p.x_stride = k + rng_below(r, 3);
    p.y_stride = n + rng_below(r, 3);
    p.src = malloc(n * p.src_stride * dtype_bytes(src_type) + 1);
    p.weight = malloc(n * k * sizeof(float));
    p.w = (kern_matrix){.type = type, .n = n, .k = k};
    p.w.data = alloc_pages(kern_matrix_bytes(type, n, k));
    p.bias = malloc(n * sizeof(float));
    p.x = malloc(m * p.x_stride * sizeof(float));
    p.y = malloc(m * p.y_stride * sizeof(float));
    assert_true(p.src && p.weight && p.w.data && p.bias && p.x && p.y);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) {
            float f = rounded(src_type, rng_normal(r));
            store_as(src_type, p.src + 1 + (i * p.src_stride + j) * dtype_bytes(src_type), f);
            p.weight[i * k + j] = rounded(type, f);
        }
    for (size_t i = 0; i < n; i++) p.bias[i] = rng_normal(r);
    /* Padding between rows must not be read: a NaN there would show. */
    for (size_t i = 0; i < m * p.x_stride; i++) p.x[i] = i % p.x_stride < k ? rng_normal(r) : NAN;
    return p;
}

static void free_problem(problem *p)
{
    alloc_pages_free(p->w.data, kern_matrix_bytes(p->type, p->n, p->k));
    free(p->src);
    free(p->weight);
    free(p->bias);
    free(p->x);
    free(p->y);
}

/* Packs in two calls, so that a panel is filled from both sides. */
static void pack(kern_context *kc, problem *p)
{
    memset(p->w.data, 0, kern_matrix_bytes(p->type, p->n, p->k));
    size_t cut = p->n / 3, row_bytes = p->src_stride * dtype_bytes(p->src_type);
    kern_matrix_pack(kc, &p->w, cut, p->n - cut, p->src + 1 + cut * row_bytes, p->src_type,
                     p->src_stride);
    kern_matrix_pack(kc, &p->w, 0, cut, p->src + 1, p->src_type, p->src_stride);
}

static void multiply(kern_context *kc, const problem *p, bool bias)
{
    for (size_t i = 0; i < p->m * p->y_stride; i++) p->y[i] = CANARY;
    kern_matmul(kc, &p->w, bias ? p->bias : NULL, p->x, p->x_stride, p->m, p->y, p->y_stride);
}

/* Number of bf16 parts of x that enter a product: 0 = x as it is. bf16 dot products take x rounded,
 * and in high precision also the remainder. */
static int parts_of_x(const char *isa, kern_precision precision, dtype type)
{
    bool dots = strcmp(isa, "avx512bf16") == 0 || strcmp(isa, "amx") == 0;
    if (type != DTYPE_BF16 || !dots) return 0;
    return precision == KERN_PRECISION_HIGH ? 2 : 1;
}

static bool has_dots(const char *isa, dtype type)
{
    return parts_of_x(isa, KERN_PRECISION_STANDARD, type) > 0;
}

static float high_of(float x) { return rounded(DTYPE_BF16, x); }
static float low_of(float x) { return rounded(DTYPE_BF16, x - high_of(x)); }

/* The value of x that a product uses, after rounding. */
static double value_of(float x, int parts)
{
    if (parts == 0) return (double)x;
    return (double)high_of(x) + (parts > 1 ? (double)low_of(x) : 0.0);
}

static void check_against_double(const char *isa, kern_precision precision, const problem *p,
                                 bool bias)
{
    int parts = parts_of_x(isa, precision, p->type);
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->y_stride; j++) {
            float y = p->y[i * p->y_stride + j];
            if (j >= p->n) {
                assert_true(y == CANARY);
                continue;
            }
            double sum = bias ? p->bias[j] : 0, size = fabs(sum);
            for (size_t c = 0; c < p->k; c++) {
                double x = value_of(p->x[i * p->x_stride + c], parts);
                double term = x * (double)p->weight[j * p->k + c];
                sum += term;
                size += fabs(term);
            }
            /* Half an ulp of rounding for each step of the chain, on sums no larger than size. */
            double steps = (double)(p->k * (parts > 1 ? 2 : 1) + 1);
            double bound = steps * 0x1p-24 * size + 1e-30;
            if (!(fabs((double)y - sum) <= bound))
                fail_msg("%s, %d parts: m %zu n %zu k %zu %s row %zu column %zu: %.9g, not %.9g",
                         isa, parts, p->m, p->n, p->k, dtype_name(p->type), i, j, (double)y, sum);
        }
}

static void check_rows_read_back(const kern_context *kc, const problem *p)
{
    float *row = malloc((p->k + 1) * sizeof(float));
    assert_non_null(row);
    for (size_t i = 0; i < p->n; i++) {
        row[p->k] = CANARY;
        kern_matrix_row(kc, &p->w, i, row);
        assert_memory_equal(row, p->weight + i * p->k, p->k * sizeof(float));
        assert_true(row[p->k] == CANARY);
    }
    free(row);
}

static const dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* In high precision only the products that it changes. */
static void run_shapes(const char *isa, kern_precision precision, uint64_t seed)
{
    thread_pool *pool = NULL;
    kern_context *kc = make_precise(isa, precision, 2, &pool);
    rng r = rng_seed(seed);
    for (int i = 0; i < 60; i++) {
        dtype type = dtypes[i % 3], src_type = dtypes[i / 3 % 3];
        if (precision == KERN_PRECISION_HIGH && !has_dots(isa, type)) continue;
        size_t n = 1 + rng_below(&r, i % 5 == 0 ? 700 : 70),
               k = 1 + rng_below(&r, i % 7 == 0 ? 1500 : 90);
        size_t m = 1 + rng_below(&r, i % 4 == 0 ? 160 : 20);
        problem p = make_problem(&r, type, src_type, n, k, m);
        pack(kc, &p);
        check_rows_read_back(kc, &p);
        multiply(kc, &p, i % 2 == 0);
        check_against_double(isa, precision, &p, i % 2 == 0);
        free_problem(&p);
    }
    drop_context(kc, pool);
}

static void test_shapes(void **state)
{
    (void)state;
    const uint64_t seed = 20240611;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available = false;
        const char *isa = kern_isa_at(i, &available);
        if (!available) {
            print_message("skipped: %s (this CPU lacks it)\n", isa);
            continue;
        }
        run_shapes(isa, KERN_PRECISION_STANDARD, seed + i);
        run_shapes(isa, KERN_PRECISION_HIGH, seed + i);
    }
}

/* Every row of y alone, among 2 .. 512 rows, on one thread and on two, has the same bits. The shape
 * is large enough for each path: side by side, k blocks, widened panels, x packed whole or piece by
 * piece. */
static void check_invariance(const char *isa, kern_precision precision, dtype type, size_t n,
                             size_t k)
{
    thread_pool *pools[2] = {NULL};
    kern_context *kcs[2] = {make_precise(isa, precision, 1, &pools[0]),
                            make_precise(isa, precision, 2, &pools[1])};
    rng r = rng_seed(7);
    problem p = make_problem(&r, type, DTYPE_F32, n, k, ROWS_MAX);
    pack(kcs[1], &p);
    multiply(kcs[1], &p, true);
    float *expected = malloc(ROWS_MAX * n * sizeof(float));
    assert_non_null(expected);
    for (size_t i = 0; i < ROWS_MAX; i++)
        memcpy(expected + i * n, p.y + i * p.y_stride, n * sizeof(float));

    /* The row counts of a few tiles, then some up to the largest. */
    bool is_long = k >= 1000;
    size_t each = SLOW ? (is_long ? 0 : 20) : is_long ? 40 : 130;
    size_t then = SLOW ? 61 : is_long ? 31 : 7;
    for (size_t m = 1; m <= ROWS_MAX; m += m < each ? 1 : then) {
        size_t first = rng_below(&r, (uint32_t)(ROWS_MAX - m + 1));
        problem part = p;
        part.m = m;
        part.x = p.x + first * p.x_stride;
        multiply(kcs[m % 2], &part, true);
        for (size_t i = 0; i < m; i++)
            if (memcmp(part.y + i * p.y_stride, expected + (first + i) * n, n * sizeof(float)) != 0)
                fail_msg("%s %s: row %zu of %zu differs from its value among %d", isa,
                         dtype_name(type), i, m, ROWS_MAX);
    }
    free(expected);
    free_problem(&p);
    for (int i = 0; i < 2; i++) drop_context(kcs[i], pools[i]);
}

static void test_invariance(void **state)
{
    (void)state;
    for (size_t i = 1; i < kern_isa_count(); i++) {
        bool available = false;
        const char *isa = kern_isa_at(i, &available);
        if (!available) {
            print_message("skipped: %s (this CPU lacks it)\n", isa);
            continue;
        }
        bool tiles = !SLOW || i <= 2; /* ISAs after AVX-512 use its tiles */
        for (int t = 0; t < 3; t++)
            if (tiles || has_dots(isa, dtypes[t]))
                check_invariance(isa, KERN_PRECISION_STANDARD, dtypes[t], SLOW ? 70 : 150,
                                 SLOW ? 301 : 601);
        if (tiles || has_dots(isa, DTYPE_BF16))
            check_invariance(isa, KERN_PRECISION_STANDARD, DTYPE_BF16, SLOW ? 5 : 20,
                             SLOW ? 9000 : 20000);
        if (has_dots(isa, DTYPE_BF16))
            check_invariance(isa, KERN_PRECISION_HIGH, DTYPE_BF16, SLOW ? 20 : 150, 301);
        if (has_dots(isa, DTYPE_BF16) && !SLOW)
            check_invariance(isa, KERN_PRECISION_HIGH, DTYPE_BF16, 20, 20000);
    }
    check_invariance("ref", KERN_PRECISION_STANDARD, DTYPE_BF16, 20, 33);
}

/* Each ISA sums one chain of fused multiply-adds and so agrees with the reference bit for bit,
 * except ISAs with bf16 dot products (test_dot_products). */
static void test_equal_over_isas(void **state)
{
    (void)state;
    enum { N = 90, K = 301, M = 29 };
    for (int t = 0; t < 3; t++) {
        rng r = rng_seed(99);
        problem p = make_problem(&r, dtypes[t], DTYPE_F32, N, K, M);
        float *expected = malloc(sizeof(float) * M * p.y_stride);
        assert_non_null(expected);
        for (size_t i = 0; i < kern_isa_count(); i++) {
            bool available = false;
            const char *isa = kern_isa_at(i, &available);
            if (!available || has_dots(isa, dtypes[t])) continue;
            thread_pool *pool = NULL;
            kern_context *kc = make_context(isa, 1, &pool);
            pack(kc, &p);
            multiply(kc, &p, true);
            if (i == 0) memcpy(expected, p.y, sizeof(float) * M * p.y_stride);
            assert_memory_equal(p.y, expected, sizeof(float) * M * p.y_stride);
            drop_context(kc, pool);
        }
        free(expected);
        free_problem(&p);
    }
}

/* One sum as Intel's manual defines it: VDPBF16PS and TDPBF16PS, without denormals. */
static float sum_of_pairs(const float *x, const float *w, size_t k, int parts, float sum)
{
    for (size_t i = 0; i < k; i += 2)
        for (int part = 0; part < parts; part++) {
            float (*of)(float x) = part ? low_of : high_of;
            if (i + 1 < k) sum = fmaf(of(x[i + 1]), w[i + 1], sum);
            sum = fmaf(of(x[i]), w[i], sum);
        }
    return sum;
}

static float sum_of_tiles(const float *x, const float *w, size_t k, int parts, float sum)
{
    for (size_t i = 0; i < k; i += 32)
        for (int part = 0; part < parts; part++) {
            float (*of)(float x) = part ? low_of : high_of, halves[2] = {0.0f, 0.0f};
            for (size_t j = i; j < k && j < i + 32; j++)
                halves[j % 2] = fmaf(of(x[j]), w[j], halves[j % 2]);
            sum += halves[0] + halves[1];
        }
    return sum;
}

static bool is_available(const char *isa)
{
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available, same = strcmp(kern_isa_at(i, &available), isa) == 0;
        if (same) return available;
    }
    return false;
}

typedef float (*sum_fn)(const float *x, const float *w, size_t k, int parts, float sum);

static void check_dot_products(const char *isa, kern_precision precision, sum_fn sum_of)
{
    static const size_t rows[] = {1, 5, 16, 17, 70}, columns[] = {2, 33, 301, 640};
    rng r = rng_seed(77);
    thread_pool *pool = NULL;
    kern_context *kc = make_precise(isa, precision, 2, &pool);
    int parts = parts_of_x(isa, precision, DTYPE_BF16);
    for (size_t d = 0; d < 20; d++) {
        problem p = make_problem(&r, DTYPE_BF16, DTYPE_F32, 83, columns[d % 4], rows[d / 4]);
        pack(kc, &p);
        multiply(kc, &p, true);
        for (size_t i = 0; i < p.m; i++)
            for (size_t j = 0; j < p.n; j++) {
                const float *x = p.x + i * p.x_stride, *w = p.weight + j * p.k;
                float y = p.y[i * p.y_stride + j], sum = sum_of(x, w, p.k, parts, p.bias[j]);
                if (y != sum)
                    fail_msg("%s, %d parts: k %zu row %zu of %zu: %a, not %a", isa, parts, p.k, i,
                             p.m, (double)y, (double)sum);
            }
        free_problem(&p);
    }
    drop_context(kc, pool);
}

/* The order of sums of ISAs that take several products at once, bit for bit. */
static void test_dot_products(void **state)
{
    (void)state;
    static const struct {
        const char *isa;
        sum_fn sum;
    } dots[] = {{"avx512bf16", sum_of_pairs}, {"amx", sum_of_tiles}};
    for (size_t d = 0; d < 2; d++) {
        if (!is_available(dots[d].isa)) {
            print_message("skipped: %s (this CPU lacks it)\n", dots[d].isa);
            continue;
        }
        check_dot_products(dots[d].isa, KERN_PRECISION_STANDARD, dots[d].sum);
        check_dot_products(dots[d].isa, KERN_PRECISION_HIGH, dots[d].sum);
    }
}

/* An infinity or a NaN in x affects its own row as in any f32 sum, and no other row. */
static void test_x_is_not_finite(void **state)
{
    (void)state;
    enum { N = 20, K = 70, M = 3, BAD = 1 };
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    rng r = rng_seed(31);
    for (size_t i = 0; i < kern_isa_count(); i++)
        for (int t = 0; t < 18; t++) {
            bool available = false;
            const char *isa = kern_isa_at(i, &available);
            if (!available) continue;
            thread_pool *pool = NULL;
            kern_context *kc =
                make_precise(isa, t < 9 ? KERN_PRECISION_STANDARD : KERN_PRECISION_HIGH, 1, &pool);
            problem p = make_problem(&r, dtypes[t % 3], DTYPE_F32, N, K, M);
            pack(kc, &p);
            p.x[BAD * p.x_stride + 37] = bad[t / 3 % 3];
            multiply(kc, &p, false);
            for (size_t m = 0; m < M; m++)
                for (size_t j = 0; j < N; j++) {
                    float y = p.y[m * p.y_stride + j];
                    float want = bad[t / 3 % 3] * p.weight[j * K + 37];
                    bool good = m != BAD ? isfinite(y) : isnan(want) ? isnan(y) : y == want;
                    if (!good) fail_msg("%s: row %zu column %zu: %g", isa, m, j, (double)y);
                }
            free_problem(&p);
            drop_context(kc, pool);
        }
}

/* A range of columns gives the bits of a matrix of these columns alone. */
static void test_columns(void **state)
{
    (void)state;
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available = false;
        const char *isa = kern_isa_at(i, &available);
        if (!available) continue;
        thread_pool *pool = NULL;
        kern_context *kc = make_context(isa, 2, &pool);
        rng r = rng_seed(55);
        for (int n = 0; n < 9; n++) {
            size_t m = 1 + rng_below(&r, 40), k = 2 + 2 * rng_below(&r, 90);
            size_t first = 2 * rng_below(&r, 60), all = first + k + rng_below(&r, 30);
            problem p = make_problem(&r, dtypes[n % 3], DTYPE_F32, 37, all, m);
            pack(kc, &p);
            float *part = malloc(m * p.y_stride * sizeof *part);
            kern_matrix some = {.type = p.type, .n = p.n, .k = k};
            some.data = alloc_pages(kern_matrix_size(&some));
            assert_true(part && some.data);
            kern_matrix_pack(kc, &some, 0, p.n, p.weight + first, DTYPE_F32, p.k);
            kern_matmul(kc, &some, NULL, p.x + first, p.x_stride, m, p.y, p.y_stride);
            kern_matmul_columns(kc, &p.w, first, k, p.x + first, p.x_stride, m, part, p.y_stride);
            for (size_t j = 0; j < m; j++)
                assert_memory_equal(part + j * p.y_stride, p.y + j * p.y_stride,
                                    p.n * sizeof *part);
            free(part);
            alloc_pages_free(some.data, kern_matrix_size(&some));
            free_problem(&p);
        }
        drop_context(kc, pool);
    }
}

static void test_packing_keeps_other_rows(void **state)
{
    (void)state;
    enum { N = 40, K = 21 };
    thread_pool *pool = NULL;
    kern_context *kc = make_context("ref", 1, &pool);
    rng r = rng_seed(5);
    problem p = make_problem(&r, DTYPE_BF16, DTYPE_BF16, N, K, 1);
    pack(kc, &p);
    size_t bytes = kern_matrix_bytes(p.type, N, K);
    uint8_t *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, p.w.data, bytes);
    for (size_t row0 = 0; row0 < N; row0 += 3) { /* adding the same rows again changes nothing */
        size_t rows = row0 + 5 <= N ? 5 : N - row0;
        kern_matrix_pack(kc, &p.w, row0, rows, p.src + 1 + row0 * p.src_stride * 2, DTYPE_BF16,
                         p.src_stride);
        assert_memory_equal(p.w.data, before, bytes);
    }
    free(before);
    free_problem(&p);
    drop_context(kc, pool);
}

static void test_unknown_isa_is_refused(void **state)
{
    (void)state;
    thread_pool *pool = NULL;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    kern_context *kc = NULL;
    error err = {{0}};
    status st = kern_create(&(kern_options){.pool = pool, .isa = "mmx"}, &kc, &err);
    assert_int_equal(st.code, STATUS_INVALID);
    assert_null(kc);
    assert_non_null(strstr(err.text, "mmx"));
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

static void check_limits(const char *isa)
{
    thread_pool *pool = NULL;
    kern_context *kc = make_context(isa, 1, &pool);
    kern_limits limits = {0};
    assert_true(status_ok(kern_measure_limits(kc, &limits)));
    assert_true(limits.read_gb_s > 0.01 && limits.read_gb_s < 1e5);
    assert_true(limits.fma_gflop_s > 0.001 && limits.fma_gflop_s < 1e6);
    assert_true(limits.dot_gflop_s >= limits.fma_gflop_s && limits.dot_gflop_s < 1e6);
    assert_true(limits.int_gop_s > 0.001 && limits.int_gop_s < 1e7);
    assert_true(limits.pair_gop_s < 1e7 &&
                (limits.pair_gop_s > 0.001) == (strcmp(isa, "ref") != 0));
    /* The next time reads the same memory, which is not filled again. */
    uint64_t *data = kc->read.data;
    assert_non_null(data);
    data[0] = 7;
    assert_true(status_ok(kern_measure_limits(kc, &limits)));
    assert_ptr_equal(kc->read.data, data);
    assert_int_equal(data[0], 7);
    drop_context(kc, pool);
}

/* Under emulation and TSan only the reference is measured. Instructions in plain C would take
 * minutes, and for TSan every ISA reads the same memory on the same single thread. */
static void test_limits_are_measured(void **state)
{
    (void)state;
    size_t n_isas = SLOW ? 1 : kern_isa_count();
    for (size_t i = 0; i < n_isas; i++) {
        bool available;
        const char *isa = kern_isa_at(i, &available);
        if (available) check_limits(isa);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_equal_over_isas),
        cmocka_unit_test(test_dot_products),
        cmocka_unit_test(test_x_is_not_finite),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_packing_keeps_other_rows),
        cmocka_unit_test(test_unknown_isa_is_refused),
        cmocka_unit_test(test_limits_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
