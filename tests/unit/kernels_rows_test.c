/* Row operations: every ISA against float64, in place, at any width, and with bits that do not
 * depend on how many rows are computed. */
#include "tests/unit/kernels_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 16 };

/* Relative to the largest value of a row: a few f32 roundings for each factor, and 2 ulp of an
 * exponential. */
static const double tolerance = 1e-6;

/* n random floats and GUARD more that must not change. */
static float *random_floats(rng *r, size_t n, float scale)
{
    float *x = malloc((n + GUARD) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n + GUARD; i++) x[i] = rng_normal(r) * scale;
    return x;
}

static float *copy_floats(const float *x, size_t n)
{
    float *y = malloc((n + GUARD) * sizeof *y);
    assert_non_null(y);
    memcpy(y, x, (n + GUARD) * sizeof *y);
    return y;
}

static void compare(const kern_context *kc, const char *what, const float *got, const double *want,
                    size_t m, size_t d)
{
    for (size_t i = 0; i < m; i++) {
        double top = 0;
        for (size_t j = 0; j < d; j++) top = fmax(top, fabs(want[i * d + j]));
        for (size_t j = 0; j < d; j++)
            if (!(fabs(got[i * d + j] - want[i * d + j]) <= tolerance * top))
                fail_msg("%s %s: m %zu d %zu row %zu column %zu: %.9g, want %.9g",
                         kern_isa_name(kc), what, m, d, i, j, got[i * d + j], want[i * d + j]);
    }
}

static void assert_guard(const float *x, const float *before, size_t n)
{
    assert_memory_equal(x + n, before + n, GUARD * sizeof *x);
}

static const size_t widths[] = {1, 7, 16, 31, 64, 100, 129, 576, 2048, 5632};
static const size_t row_counts[] = {1, 2, 5, 40};
enum {
    WIDTHS = sizeof widths / sizeof widths[0],
    COUNTS = sizeof row_counts / sizeof row_counts[0]
};

static void naive_rmsnorm(const float *x, const float *weight, double eps, size_t m, size_t d,
                          double *out)
{
    for (size_t i = 0; i < m; i++) {
        double sum = 0;
        for (size_t j = 0; j < d; j++) sum += (double)x[i * d + j] * x[i * d + j];
        for (size_t j = 0; j < d; j++)
            out[i * d + j] = x[i * d + j] / sqrt(sum / (double)d + eps) * weight[j];
    }
}

static void rmsnorm_case(kern_context *kc, rng *r, size_t m, size_t d)
{
    const float eps = 1e-5f;
    float *x = random_floats(r, m * d, 3.0f), *weight = random_floats(r, d, 1.0f);
    float *delta = random_floats(r, m * d, 2.0f), *in_place = copy_floats(x, m * d);
    float *out = copy_floats(x, m * d), *sum = copy_floats(x, m * d),
          *added = copy_floats(x, m * d);
    double *want = malloc(m * d * sizeof *want);

    naive_rmsnorm(x, weight, eps, m, d, want);
    kern_rmsnorm(kc, x, weight, eps, m, d, out);
    compare(kc, "rmsnorm", out, want, m, d);
    assert_guard(out, x, m * d);
    kern_rmsnorm(kc, in_place, weight, eps, m, d, in_place);
    assert_memory_equal(in_place, out, m * d * sizeof *out);
    for (size_t i = 0; i < m; i++) { /* each row alone has the same bits */
        kern_rmsnorm(kc, x + i * d, weight, eps, 1, d, in_place);
        assert_memory_equal(in_place, out + i * d, d * sizeof *out);
    }

    for (size_t i = 0; i < m * d; i++) added[i] = x[i] + delta[i];
    kern_add_rmsnorm(kc, sum, delta, weight, eps, m, d, out);
    assert_memory_equal(sum, added, m * d * sizeof *sum);
    assert_guard(sum, x, m * d);
    assert_guard(out, x, m * d);
    kern_rmsnorm(kc, added, weight, eps, m, d, in_place);
    assert_memory_equal(in_place, out, m * d * sizeof *out);

    free(x);
    free(weight);
    free(delta);
    free(in_place);
    free(out);
    free(sum);
    free(added);
    free(want);
}

static void test_rmsnorm(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(1);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t w = 0; w < WIDTHS; w++)
            for (size_t c = 0; c < COUNTS; c++)
                rmsnorm_case(f->isas[k], &r, row_counts[c], widths[w]);
}

static void swiglu_case(kern_context *kc, rng *r, size_t m, size_t d, float scale)
{
    float *gate_up = random_floats(r, m * 2 * d, scale), *out = random_floats(r, m * d, 1.0f);
    float *before = copy_floats(out, m * d), *alone = random_floats(r, d, 1.0f);
    kern_swiglu(kc, gate_up, m, d, out);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++) {
            double g = gate_up[i * 2 * d + j], u = gate_up[i * 2 * d + d + j];
            double want = g / (1 + exp(-g)) * u, got = out[i * d + j];
            if (!(fabs(got - want) <= tolerance * fabs(want) + 1e-34))
                fail_msg("%s swiglu: d %zu gate %.9g up %.9g: %.9g, want %.9g", kern_isa_name(kc),
                         d, g, u, got, want);
        }
    assert_guard(out, before, m * d);
    kern_swiglu(kc, gate_up + (m - 1) * 2 * d, 1, d, alone);
    assert_memory_equal(alone, out + (m - 1) * d, d * sizeof *out);
    free(gate_up);
    free(out);
    free(before);
    free(alone);
}

static void test_swiglu(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(2);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t w = 0; w < WIDTHS; w++)
            for (size_t c = 0; c < COUNTS; c++) {
                swiglu_case(f->isas[k], &r, row_counts[c], widths[w], 2.0f);
                swiglu_case(f->isas[k], &r, row_counts[c], widths[w], 25.0f);
            }
}

static void geglu_case(kern_context *kc, rng *r, size_t m, size_t d, float scale)
{
    float *gate_up = random_floats(r, m * 2 * d, scale), *out = random_floats(r, m * d, 1.0f);
    float *before = copy_floats(out, m * d), *given = copy_floats(gate_up, m * 2 * d);
    float *last = copy_floats(gate_up + (m - 1) * 2 * d, 2 * d), *alone = random_floats(r, d, 1.0f);
    kern_geglu(kc, gate_up, m, d, out);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++) {
            double g = given[i * 2 * d + j], u = given[i * 2 * d + d + j], got = out[i * d + j];
            double t = tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g));
            double want = 0.5 * g * (1 + t) * u; /* 1 + t has few digits where t is near -1 */
            if (!(fabs(got - want) <= 4 * tolerance * fabs(want) + 1e-14 * fabs(g * u) + 1e-34))
                fail_msg("%s geglu: d %zu gate %.9g up %.9g: %.9g, want %.9g", kern_isa_name(kc), d,
                         g, u, got, want);
        }
    assert_guard(out, before, m * d);
    kern_geglu(kc, last, 1, d, alone);
    assert_memory_equal(alone, out + (m - 1) * d, d * sizeof *out);
    free(gate_up);
    free(given);
    free(out);
    free(before);
    free(last);
    free(alone);
}

static void test_geglu(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(6);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t w = 0; w < WIDTHS; w++)
            for (size_t c = 0; c < COUNTS; c++) {
                geglu_case(f->isas[k], &r, row_counts[c], widths[w], 1.0f);
                geglu_case(f->isas[k], &r, row_counts[c], widths[w], 4.0f);
            }
}

/* Gates so large that e^-gate overflows or vanishes, and infinities. */
static void test_swiglu_extremes(void **state)
{
    fixture *f = *state;
    const float gates[] = {-1e30f, -200.0f, -104.0f, 200.0f, 1e30f, 0.0f, INFINITY, NAN};
    for (size_t k = 0; k < f->n_isas; k++) {
        float x[16], out[8];
        for (size_t i = 0; i < 8; i++) {
            x[i] = gates[i];
            x[8 + i] = 1.0f;
        }
        kern_swiglu(f->isas[k], x, 1, 8, out);
        for (size_t i = 0; i < 3; i++) assert_true(fabsf(out[i]) < 1e-37f);
        for (size_t i = 3; i < 7; i++) assert_true(out[i] == gates[i]);
        assert_true(isnan(out[7]));
    }
}

static void rope_case(kern_context *kc, rng *r, size_t m, size_t n_heads, size_t head_dim)
{
    size_t stride = n_heads * head_dim + rng_below(r, 20), n = m * stride, half = head_dim / 2;
    float *x = random_floats(r, n, 1.0f), *before = copy_floats(x, n),
          *angles = random_floats(r, m * head_dim, 1.0f);
    double *want = malloc(n * sizeof *want);
    for (size_t i = 0; i < m * head_dim; i++) angles[i] = (float)tanh(angles[i]);
    for (size_t i = 0; i < n; i++) want[i] = x[i];
    for (size_t i = 0; i < m; i++)
        for (size_t h = 0; h < n_heads; h++)
            for (size_t j = 0; j < half; j++) {
                const float *p = before + i * stride + h * head_dim;
                double c = angles[i * head_dim + j], s = angles[i * head_dim + half + j];
                want[i * stride + h * head_dim + j] = p[j] * c - p[j + half] * s;
                want[i * stride + h * head_dim + j + half] = p[j + half] * c + p[j] * s;
            }
    kern_rope(kc, x, stride, angles, m, n_heads, head_dim);
    compare(kc, "rope", x, want, m, stride);
    for (size_t i = 0; i < m; i++) /* padding between the rows is unchanged */
        assert_memory_equal(x + i * stride + n_heads * head_dim,
                            before + i * stride + n_heads * head_dim,
                            (stride - n_heads * head_dim) * sizeof *x);
    assert_guard(x, before, n);
    kern_rope(kc, before, stride, angles, 1, n_heads, head_dim);
    assert_memory_equal(before, x, n_heads * head_dim * sizeof *x);
    free(x);
    free(before);
    free(angles);
    free(want);
}

static void test_rope(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(3);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t dim = 16; dim <= 256; dim += 16)
            for (size_t c = 0; c < COUNTS; c++)
                rope_case(f->isas[k], &r, row_counts[c], 1 + rng_below(&r, 12), dim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm), cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_geglu),   cmocka_unit_test(test_swiglu_extremes),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests_name("kernels_rows", tests, setup, teardown);
}
