/* The largest cosines of rows with a question: against float64, and the same bits on every ISA. */
#include "base/half.h"
#include "kernels/cosines.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"

typedef struct shape {
    size_t n, m, dim, nth;
} shape;

/* Rows and columns that no tile divides, and a dim that no vector does; an nth above n, too. */
static const shape shapes[] = {{1, 1, 1, 0},     {7, 3, 5, 1},     {33, 16, 16, 33},
                               {70, 17, 100, 9}, {64, 32, 64, 0},  {41, 49, 512, 100},
                               {9, 64, 520, 2},  {100, 33, 128, 1}};

static uint16_t *numbers(rng *r, size_t n)
{
    uint16_t *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = f16_from_f32((float)(rng_unit(r) * 2 - 1.25));
    return out;
}

static double cosine(const uint16_t *a, const uint16_t *b, size_t dim)
{
    double dot = 0, aa = 0, bb = 0;
    for (size_t d = 0; d < dim; d++) {
        double x = (double)f16_to_f32(a[d]), y = (double)f16_to_f32(b[d]);
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0 && bb > 0 ? dot / sqrt(aa * bb) : 0;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* due [n]: by the definition. */
static void define(const uint16_t *rows, const uint16_t *question, const shape *s, double *due)
{
    double *cosines = malloc(2 * s->n * sizeof *cosines), *sorted = cosines + s->n;
    for (size_t i = 0; i < s->n; i++) due[i] = -INFINITY;
    for (size_t j = 0; j < s->m; j++) {
        for (size_t i = 0; i < s->n; i++)
            cosines[i] = sorted[i] = cosine(rows + i * s->dim, question + j * s->dim, s->dim);
        qsort(sorted, s->n, sizeof *sorted, descending);
        double less = s->nth ? sorted[(s->nth < s->n ? s->nth : s->n) - 1] : 0;
        for (size_t i = 0; i < s->n; i++) due[i] = fmax(due[i], cosines[i] - less);
    }
    free(cosines);
}

static void check_isas(const shape *s, const uint16_t *rows, const uint16_t *question, float *first,
                       float *out)
{
    bool available;
    error err = {{0}};
    for (size_t i = 0; i < kern_isa_count(); i++) {
        const char *isa = kern_isa_at(i, &available);
        if (!available) continue;
        float *to = i == 0 ? first : out;
        if (!status_ok(
                kern_largest_cosines(isa, rows, s->n, question, s->m, s->dim, s->nth, to, &err)))
            fail_msg("%s", err.text);
        if (memcmp(first, to, s->n * sizeof *to) != 0)
            fail_msg("%s has other bits: %zu rows, %zu of the question, dim %zu", isa, s->n, s->m,
                     s->dim);
    }
}

static void every_isa_has_the_same_bits(void **state)
{
    (void)state;
    rng r = rng_seed(3);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        const shape *s = &shapes[k];
        uint16_t *rows = numbers(&r, s->n * s->dim), *question = numbers(&r, s->m * s->dim);
        float *first = malloc(s->n * sizeof *first), *out = malloc(s->n * sizeof *out);
        double *due = malloc(s->n * sizeof *due);
        check_isas(s, rows, question, first, out);
        define(rows, question, s, due);
        for (size_t i = 0; i < s->n; i++)
            if (fabs((double)first[i] - due[i]) > 1e-6)
                fail_msg("row %zu: %.9g, not %.9g", i, (double)first[i], due[i]);
        free(rows);
        free(question);
        free(first);
        free(out);
        free(due);
    }
}

static void zeros_are_like_nothing(void **state)
{
    (void)state;
    uint16_t rows[2 * 20] = {0}, question[2 * 20] = {0};
    float out[2];
    for (size_t d = 0; d < 20; d++) rows[20 + d] = f16_from_f32(-1);
    for (size_t d = 0; d < 20; d++) question[d] = f16_from_f32(1);
    assert_true(status_ok(kern_largest_cosines(NULL, rows, 2, question, 1, 20, 0, out, NULL)));
    assert_true(out[0] == 0 && fabsf(out[1] + 1) < 1e-6f);
    assert_true(status_ok(kern_largest_cosines(NULL, rows, 2, question, 2, 20, 0, out, NULL)));
    assert_true(out[0] == 0 && out[1] == 0); /* the question's second row is zeros */
}

static void an_unknown_isa_is_refused(void **state)
{
    (void)state;
    uint16_t one = f16_from_f32(1);
    float out;
    error err = {{0}};
    assert_int_equal(kern_largest_cosines("z80", &one, 1, &one, 1, 1, 0, &out, &err).code,
                     STATUS_INVALID);
    assert_non_null(strstr(err.text, "z80"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_has_the_same_bits),
        cmocka_unit_test(zeros_are_like_nothing),
        cmocka_unit_test(an_unknown_isa_is_refused),
    };
    return cmocka_run_group_tests_name("kernels_cosines", tests, NULL, NULL);
}
