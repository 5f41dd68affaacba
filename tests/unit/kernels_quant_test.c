/* Quantised weights: how a group is rounded, products of every ISA against double precision on the
 * integers themselves, and bit for bit: over ISAs, over the number of rows, over slices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/kernels_fixture.h"

#include <math.h>
#include <string.h>

static const kern_quant quants[] = {{8, 32},  {4, 32},  {8, 64}, {4, 64},
                                    {8, 128}, {4, 128}, {12, 64}};
enum { QUANTS = sizeof quants / sizeof *quants };

#if defined(__SANITIZE_THREAD__) || defined(OCTAVO_EMULATED)
enum { SLOW = 1 }; /* each load is a call, or each instruction */
#else
enum { SLOW = 0 };
#endif

static const float CANARY = -12345.0f;

typedef struct problem {
    size_t m, x_stride, y_stride;
    float *src, *x, *y; /* [n, k], [m, x_stride], [m, y_stride] */
    kern_matrix w;
} problem;

static problem make_problem(rng *r, kern_quant quant, size_t n, size_t k, size_t m)
{
    problem p = {.m = m, .x_stride = k + rng_below(r, 3), .y_stride = n + rng_below(r, 3)};
    p.w = (kern_matrix){.n = n, .k = k, .quant = quant};
    p.w.data = alloc_pages(kern_matrix_size(&p.w));
    p.src = malloc(n * k * sizeof *p.src);
    p.x = malloc(m * p.x_stride * sizeof *p.x);
    p.y = malloc(m * p.y_stride * sizeof *p.y);
    assert_true(p.w.data && p.src && p.x && p.y);
    for (size_t i = 0; i < n * k; i++) p.src[i] = bf16_to_f32(bf16_from_f32(rng_normal(r)));
    /* Padding between rows must not be read: a NaN there would show. */
    for (size_t i = 0; i < m * p.x_stride; i++)
        p.x[i] = i % p.x_stride < k ? rng_normal(r) * (i % 37 == 0 ? 20.0f : 1.0f) : NAN;
    return p;
}

static void free_problem(problem *p)
{
    alloc_pages_free(p->w.data, kern_matrix_size(&p->w));
    free(p->src);
    free(p->x);
    free(p->y);
}

/* Packs in two calls, so that a panel is filled from both sides. */
static void pack(kern_context *kc, problem *p)
{
    memset(p->w.data, 0, kern_matrix_size(&p->w));
    size_t cut = p->w.n / 3, k = p->w.k;
    kern_matrix_pack(kc, &p->w, cut, p->w.n - cut, p->src + cut * k, DTYPE_F32, k);
    kern_matrix_pack(kc, &p->w, 0, cut, p->src, DTYPE_F32, k);
}

static void multiply(kern_context *kc, const problem *p)
{
    for (size_t i = 0; i < p->m * p->y_stride; i++) p->y[i] = CANARY;
    kern_matmul(kc, &p->w, NULL, p->x, p->x_stride, p->m, p->y, p->y_stride);
}

/* Block floats are for the reference and for the contexts that prefer them. */
static bool takes(const kern_context *kc, kern_quant quant)
{
    return quant.bits != 12 || strcmp(kern_isa_name(kc), "ref") == 0 ||
           kern_block_floats(kc, DTYPE_BF16).bits == 12;
}

/* The contexts of a precision, one for each ISA. */
static kern_context **contexts(fixture *f, kern_precision precision)
{
    return precision == KERN_PRECISION_HIGH ? f->high : f->isas;
}

/* x rounded to its integers and scales. */
static void round_x(const float *x, size_t k, kern_quant quant, kern_precision precision,
                    double *out)
{
    const size_t group = quant.group;
    float most = quant.bits == 8 && precision == KERN_PRECISION_HIGH ? 32767.0f : 127.0f;
    if (quant.bits == 12) most = 16383.0f;
    for (size_t at = 0; at < k; at += group) {
        size_t n = k - at < group ? k - at : group;
        float max = 0.0f;
        for (size_t i = 0; i < n; i++) max = fmaxf(max, fabsf(x[at + i]));
        for (size_t i = 0; i < n; i++)
            out[at + i] = (double)nearbyintf(x[at + i] * (most / max)) * (double)(max / most);
    }
}

static void check_against_double(kern_context *kc, kern_precision precision, const problem *p)
{
    size_t k = p->w.k, groups = (k + p->w.quant.group - 1) / p->w.quant.group;
    float *row = malloc(k * sizeof *row);
    double *xs = malloc(p->m * k * sizeof *xs);
    assert_true(row && xs);
    for (size_t i = 0; i < p->m; i++)
        round_x(p->x + i * p->x_stride, k, p->w.quant, precision, xs + i * k);
    for (size_t j = 0; j < p->y_stride; j++) {
        if (j < p->w.n) kern_matrix_row(kc, &p->w, j, row);
        for (size_t i = 0; i < p->m; i++) {
            float y = p->y[i * p->y_stride + j];
            if (j >= p->w.n) {
                assert_true(y == CANARY);
                continue;
            }
            const double *x = xs + i * k;
            double sum = 0.0, size = 0.0;
            for (size_t c = 0; c < k; c++) {
                sum += x[c] * (double)row[c];
                size += fabs(x[c] * (double)row[c]);
            }
            /* A group's integer sum is exact; rounded are its conversion to float, its scale, and
             * one addition for each group. */
            double bound = (double)(groups + 2) * 0x1p-23 * size + 1e-30;
            if (!(fabs((double)y - sum) <= bound))
                fail_msg("%u bits in %u: m %zu n %zu k %zu row %zu column %zu: %.9g, not %.9g",
                         p->w.quant.bits, p->w.quant.group, p->m, p->w.n, k, i, j, (double)y, sum);
        }
    }
    free(row);
    free(xs);
}

/* Every ISA packs and computes bit by bit what the reference of the same precision does. */
static void check_product(fixture *f, kern_precision precision, problem *p)
{
    size_t y_bytes = p->m * p->y_stride * sizeof *p->y, bytes = kern_matrix_size(&p->w);
    float *expected = malloc(y_bytes);
    uint8_t *packed = malloc(bytes);
    assert_true(expected && packed);
    for (size_t a = 0; a < f->n_isas; a++) {
        kern_context *kc = contexts(f, precision)[a];
        if (!takes(kc, p->w.quant)) continue;
        pack(kc, p);
        multiply(kc, p);
        if (a == 0) {
            check_against_double(kc, precision, p);
            memcpy(expected, p->y, y_bytes);
            memcpy(packed, p->w.data, bytes);
        }
        assert_memory_equal(p->w.data, packed, bytes);
        if (memcmp(p->y, expected, y_bytes) != 0)
            fail_msg("%s, %s precision: n %zu k %zu m %zu, %u bits in %u", kern_isa_name(kc),
                     precision == KERN_PRECISION_HIGH ? "high" : "standard", p->w.n, p->w.k, p->m,
                     p->w.quant.bits, p->w.quant.group);
    }
    free(expected);
    free(packed);
}

static void test_products(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(6);
    for (int i = 0; i < (SLOW ? 12 : 36); i++) {
        size_t n = 1 + rng_below(&r, i % 5 == 0 ? 300 : 50);
        size_t k = 1 + rng_below(&r, i % 5 == 1 ? 1500 : 300);
        problem p = make_problem(&r, quants[i % QUANTS], n, k, 1 + rng_below(&r, 40));
        check_product(f, KERN_PRECISION_STANDARD, &p);
        if (p.w.quant.bits == 8) check_product(f, KERN_PRECISION_HIGH, &p);
        free_problem(&p);
    }
}

/* 4-bit weights have one precision: their x has 8 bits. */
static void test_four_bits_are_one_precision(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(5);
    problem p = make_problem(&r, (kern_quant){4, 32}, 40, 200, 17);
    size_t y_bytes = p.m * p.y_stride * sizeof *p.y;
    float *expected = malloc(y_bytes);
    assert_non_null(expected);
    pack(f->isas[0], &p);
    multiply(f->isas[0], &p);
    memcpy(expected, p.y, y_bytes);
    for (size_t a = 0; a < f->n_isas; a++) {
        multiply(f->high[a], &p);
        assert_memory_equal(p.y, expected, y_bytes);
    }
    free(expected);
    free_problem(&p);
}

/* The largest integers everywhere, to provoke overflow: weights that are all alike, which become -8
 * in 4 bits, or all but one of each 32, which become 7; rows of x that are all alike, and that
 * change every two columns to a third of the other sign. */
static void check_extremes(fixture *f, kern_quant quant, kern_precision precision, float sign,
                           bool mixed)
{
    rng r = rng_seed(3);
    problem p = make_problem(&r, quant, 33, 512, 19); /* AMX too */
    const float most = quant.bits == 12 ? 2047.0f / 512 : 3.0f;
    for (size_t i = 0; i < p.w.n * p.w.k; i++)
        p.src[i] = sign * (mixed && i % p.w.k % 32 == 0 ? -8.0f / 7 : 1) * most;
    for (size_t i = 0; i < p.m * p.x_stride; i++) {
        size_t row = i / p.x_stride, pair = i % p.x_stride / 2;
        p.x[i] = (row % 2 ? 5.0f : -5.0f) * (row / 2 % 2 && pair % 2 ? -1.0f / 3 : 1);
    }
    for (size_t a = 0; a < f->n_isas; a++) {
        if (!takes(contexts(f, precision)[a], quant)) continue;
        pack(contexts(f, precision)[a], &p);
        multiply(contexts(f, precision)[a], &p);
        check_against_double(contexts(f, precision)[a], precision, &p);
    }
    free_problem(&p);
}

static void test_extremes(void **state)
{
    for (int q = 0; q < 2 * QUANTS; q++)
        for (int i = 0; i < 4; i++)
            check_extremes(*state, quants[q % QUANTS],
                           q < QUANTS ? KERN_PRECISION_STANDARD : KERN_PRECISION_HIGH,
                           i % 2 ? 1.0f : -1.0f, i / 2);
}

/* Every row alone and among others, on one thread and on two, has the same bits. */
static void check_rows(fixture *f, size_t isa, kern_precision precision, kern_quant quant, size_t n,
                       size_t k, size_t rows)
{
    kern_context *single = NULL, *kc = contexts(f, precision)[isa];
    kern_options options = {.pool = f->single, .isa = kern_isa_name(kc), .precision = precision};
    assert_true(status_ok(kern_create(&options, &single, NULL)));
    rng r = rng_seed(7);
    problem p = make_problem(&r, quant, n, k, rows);
    pack(kc, &p);
    multiply(kc, &p);
    float *expected = malloc(rows * p.y_stride * sizeof *expected);
    assert_non_null(expected);
    memcpy(expected, p.y, rows * p.y_stride * sizeof *expected);
    for (size_t m = 1; m <= rows; m += m < 64 && !SLOW ? 1 : 61) {
        size_t first = rng_below(&r, (uint32_t)(rows - m + 1));
        problem part = p;
        part.m = m;
        part.x += first * p.x_stride;
        multiply(m % 2 ? single : kc, &part);
        for (size_t i = 0; i < m; i++)
            if (memcmp(part.y + i * p.y_stride, expected + (first + i) * p.y_stride,
                       n * sizeof(float)) != 0)
                fail_msg("%s, %u bits: row %zu of %zu differs from its value among %zu",
                         kern_isa_name(kc), quant.bits, i, m, rows);
    }
    free(expected);
    free_problem(&p);
    kern_destroy(single);
}

static void test_invariance(void **state)
{
    fixture *f = *state;
    static const struct {
        kern_precision precision;
        int quant;
    } cases[] = {
        {KERN_PRECISION_STANDARD, 0}, {KERN_PRECISION_STANDARD, 1}, {KERN_PRECISION_HIGH, 0}};
    for (size_t a = 0; a < f->n_isas; a++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            kern_precision precision = cases[i].precision;
            int q = cases[i].quant;
            check_rows(f, a, precision, quants[q], 150, 601, a == 0 ? 20 : SLOW ? 70 : 300);
            check_rows(f, a, precision, quants[q + 2], 40, 300, 13);
            check_rows(f, a, precision, quants[q + 4], 40, 900, 64);
            if (i == 0 && takes(f->isas[a], quants[6]))
                check_rows(f, a, precision, quants[6], 150, 601, a == 0 ? 20 : SLOW ? 70 : 300);
            bool amx = strcmp(kern_isa_name(f->isas[a]), "amx") == 0;
            if (a > 0 && (amx || !SLOW)) /* x does not fit whole */
                check_rows(f, a, precision, quants[q], 20, 28000, SLOW ? 70 : 150);
        }
}

/* A range of columns that ends inside groups gives the result for x with zeros outside the
 * range. */
static void test_columns(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(8);
    for (size_t a = 0; a < f->n_isas; a++)
        for (int q = 0; q < QUANTS; q++) {
            if (!takes(f->isas[a], quants[q])) continue;
            problem p = make_problem(&r, quants[q], 30, 700, 9);
            pack(f->isas[a], &p);
            size_t first = 2 * rng_below(&r, 200), k = 2 + 2 * rng_below(&r, 140);
            float *part = malloc(p.m * p.y_stride * sizeof *part);
            assert_non_null(part);
            kern_matmul_columns(f->isas[a], &p.w, first, k, p.x + first, p.x_stride, p.m, part,
                                p.y_stride);
            for (size_t i = 0; i < p.m * p.x_stride; i++) {
                size_t c = i % p.x_stride;
                if (c < first || c >= first + k) p.x[i] = 0.0f;
            }
            multiply(f->isas[a], &p);
            for (size_t i = 0; i < p.m; i++)
                assert_memory_equal(part + i * p.y_stride, p.y + i * p.y_stride,
                                    p.w.n * sizeof *part);
            free(part);
            free_problem(&p);
        }
}

/* Columns from a group's start on are quantised as they are among all columns. */
static void test_slices(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(9);
    for (int q = 0; q < QUANTS; q++) {
        enum { N = 21, K = 768, FIRST = 384, TAKEN = 256 };
        problem p = make_problem(&r, quants[q], N, K, 1);
        pack(f->isas[0], &p);
        kern_matrix part = {.n = N, .k = TAKEN, .quant = quants[q]};
        part.data = alloc_pages(kern_matrix_size(&part));
        assert_non_null(part.data);
        kern_matrix_pack(f->isas[0], &part, 0, N, p.src + FIRST, DTYPE_F32, K);
        for (size_t i = 0; i < N; i++) {
            float all[K], some[TAKEN];
            kern_matrix_row(f->isas[0], &p.w, i, all);
            kern_matrix_row(f->isas[0], &part, i, some);
            assert_memory_equal(all + FIRST, some, sizeof some);
        }
        alloc_pages_free(part.data, kern_matrix_size(&part));
        free_problem(&p);
    }
}

/* Error of normal weights relative to their square; with the scale at the largest weight, 4 bits
 * have 0.009 and 8 bits 3.0e-5. */
static void test_error(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(10);
    for (int q = 0; q < 2; q++) {
        problem p = make_problem(&r, quants[q], 64, 1024, 1);
        pack(f->isas[0], &p);
        double wrong = 0.0, square = 0.0;
        for (size_t i = 0; i < p.w.n; i++) {
            float row[1024];
            kern_matrix_row(f->isas[0], &p.w, i, row);
            for (size_t k = 0; k < 1024; k++) {
                double is = p.src[i * 1024 + k], d = (double)row[k] - is;
                wrong += d * d;
                square += is * is;
            }
        }
        print_message("%u bits: %.6f\n", quants[q].bits, wrong / square);
        assert_true(wrong / square < (q == 0 ? 2.45e-5 : 0.0072));
        free_problem(&p);
    }
}

/* Block floats keep the bits of each bf16 down to an eighth of its group's largest, and smaller
 * ones to within half a unit of 11 bits of that largest. */
static void test_block_floats(void **state)
{
    fixture *f = *state;
    enum { K = 256 };
    rng r = rng_seed(12);
    for (size_t a = 0; a < f->n_isas; a++) {
        kern_context *kc = f->isas[a];
        if (!takes(kc, quants[6])) continue;
        assert_int_equal(kern_block_floats(kc, DTYPE_F16).bits, 0);
        assert_int_equal(kern_block_floats(f->high[a], DTYPE_BF16).bits, 0);
        problem p = make_problem(&r, quants[6], 40, K, 1);
        for (size_t i = 0; i < p.w.n * K; i++)
            p.src[i] = bf16_to_f32(bf16_from_f32(p.src[i] * powf(2.0f, (float)(i / K) - 20.0f)));
        /* Not bf16: they round to 2048 and -2048, which 12 bits do not hold. */
        p.src[0] = 2047.7f;
        p.src[64] = -2047.7f;
        /* Groups whose largest is below 2^-100 are zeros. */
        for (size_t k = 128; k < K; k++) p.src[k] = k < 192 ? 0x1.8p-101f : 0x1p-118f;
        pack(kc, &p);
        size_t exact = 0;
        for (size_t i = 0; i < p.w.n; i++) {
            float row[K], largest = 0.0f;
            kern_matrix_row(kc, &p.w, i, row);
            for (size_t k = 0; k < K; k++) {
                const float *group = p.src + i * K + k / 64 * 64, is = p.src[i * K + k];
                if (k % 64 == 0) largest = 0.0f;
                for (size_t j = 0; j < 64; j++) largest = fmaxf(largest, fabsf(group[j]));
                if (i == 0 && k % 64 == 0 && k <= 64)
                    assert_true(row[k] == (k ? -2047.0f : 2047.0f));
                else if (largest < 0x1p-100f) assert_true(row[k] == 0.0f);
                else if (fabsf(is) >= largest / 8) assert_true(row[k] == is);
                else assert_true(fabsf(row[k] - is) <= largest / 2048);
                exact += row[k] == is;
            }
        }
        assert_true(exact < p.w.n * K); /* some are rounded */
        free_problem(&p);
    }
}

/* Zeros, the smallest and the largest weights, and weights that are not finite. */
static void test_special_values(void **state)
{
    fixture *f = *state;
    static const float scales[] = {0.0f, 1e-30f, 1e-20f, 1e30f, 3e38f};
    rng r = rng_seed(11);
    for (int q = 0; q < QUANTS; q++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
            for (size_t a = 0; a < f->n_isas; a++) {
                if (!takes(f->isas[a], quants[q])) continue;
                problem p = make_problem(&r, quants[q], 17, 256, 2);
                for (size_t i = 0; i < p.w.n * p.w.k; i++)
                    p.src[i] = ((float)(i % 19) - 9.0f) / 9.0f * scales[s];
                pack(f->isas[a], &p);
                float row[256];
                kern_matrix_row(f->isas[a], &p.w, 1, row);
                for (size_t k = 0; k < 256; k++)
                    assert_true(fabsf(row[k] - p.src[256 + k]) <= 0.16f * scales[s]);
                memset(p.x, 0, p.m * p.x_stride * sizeof *p.x);
                p.x[p.x_stride + 40] = q % 2 ? NAN : INFINITY;
                multiply(f->isas[a], &p);
                for (size_t j = 0; j < p.w.n; j++) {
                    assert_true(p.y[j] == 0.0f);
                    assert_true(isnan(p.y[p.y_stride + j]));
                }
                p.src[3 * 256 + 5] = NAN;
                pack(f->isas[a], &p);
                kern_matrix_row(f->isas[a], &p.w, 3, row);
                assert_true(isnan(row[5]));
                free_problem(&p);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),       cmocka_unit_test(test_four_bits_are_one_precision),
        cmocka_unit_test(test_extremes),       cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_columns),        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_error),          cmocka_unit_test(test_block_floats),
        cmocka_unit_test(test_special_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
