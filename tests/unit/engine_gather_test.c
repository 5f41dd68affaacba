/* engine/reform/gather.c against tools/reform_oracle.py, which computes in float64, and against the
 * definition. */
#include "engine/reform/gather.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The oracle's generator: n numbers in [-1, 1) with 8 bits each, which are exact in f16. */
static uint16_t *numbers(uint32_t seed, size_t n)
{
    uint16_t *out = malloc(n * sizeof *out + 1);
    uint32_t x = seed;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = f16_from_f32((float)((int)(x >> 16 & 255) - 128) / 128);
    }
    return out;
}

static uint32_t field(const json_t *c, const char *name)
{
    const json_t *v = json_object_get(c, name);
    if (!json_is_integer(v)) fail_msg("%s is missing", name);
    return (uint32_t)json_integer_value(v);
}

/* ---- the oracle's sets ----------------------------------------------------------------------- */

/* The context of a case: each 5th row repeats an earlier one, and some may be zeros. */
static uint16_t *context_of(const json_t *c, uint32_t n, uint32_t dim)
{
    uint16_t *rows = numbers(field(c, "seed"), (size_t)n * dim);
    for (uint32_t i = 5; i < n; i += 5)
        memcpy(rows + (size_t)i * dim, rows + (size_t)(i * 7 % i) * dim, dim * sizeof *rows);
    for (uint32_t i = 0; json_is_true(json_object_get(c, "zeros")) && i < n; i += 9)
        memset(rows + (size_t)i * dim, 0, dim * sizeof *rows);
    return rows;
}

static void check_case(size_t index, const json_t *c)
{
    uint32_t n = field(c, "n"), m = field(c, "m"), dim = field(c, "dim"), n_out = 0, at = 0;
    const gather_fields f = {field(c, "budget"), field(c, "window"), field(c, "first"),
                             field(c, "last")};
    uint16_t *context = context_of(c, n, dim);
    uint16_t *query = numbers(field(c, "seed") + 1, (size_t)m * dim);
    float *scores = malloc(n * sizeof *scores);
    uint32_t *out = malloc(n * sizeof *out);
    assert_true(status_ok(gather_scores(context, n, query, m, dim, gather_background(&f), scores)));
    assert_true(status_ok(gather_select(scores, n, &f, out, &n_out)));
    size_t i;
    const json_t *range;
    json_array_foreach(json_object_get(c, "kept"), i, range)
    {
        uint32_t from = (uint32_t)json_integer_value(json_array_get(range, 0));
        uint32_t to = (uint32_t)json_integer_value(json_array_get(range, 1));
        for (uint32_t t = from; t < to; t++, at++)
            if (at >= n_out || out[at] != t)
                fail_msg("case %zu: token %u is %u, not %u", index, at, at < n_out ? out[at] : n,
                         t);
    }
    assert_int_equal(at, n_out);
    free(context);
    free(query);
    free(scores);
    free(out);
}

static void gathered_sets_are_the_oracles(void **state)
{
    (void)state;
    json_t *json;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/reform.json", 16 << 20, &json, &err)))
        fail_msg("%s", err.text);
    const json_t *cases = json_object_get(json, "gather"), *c;
    size_t i;
    assert_int_equal(json_array_size(cases), 100);
    json_array_foreach(cases, i, c) check_case(i, c);
    json_decref(json);
}

/* ---- the definition -------------------------------------------------------------------------- */

/* More rows and dims than a tile, and more tokens of the question than a block. */
static void scores_are_cosines(void **state)
{
    (void)state;
    enum { N = 131, M = 37, DIM = 150 };
    uint16_t *context = numbers(3, N * DIM), *query = numbers(4, M * DIM);
    float scores[N];
    memset(context + 70 * DIM, 0, DIM * sizeof *context);
    memset(query + 5 * DIM, 0, DIM * sizeof *query);
    assert_true(status_ok(gather_scores(context, N, query, M, DIM, 0, scores)));
    for (size_t i = 0; i < N; i++) {
        double best = -2;
        for (size_t j = 0; j < M; j++) {
            double dot = 0, a = 0, b = 0;
            for (size_t d = 0; d < DIM; d++) {
                double x = (double)f16_to_f32(context[i * DIM + d]);
                double y = (double)f16_to_f32(query[j * DIM + d]);
                dot += x * y;
                a += x * x;
                b += y * y;
            }
            double cosine = a > 0 && b > 0 ? dot / sqrt(a * b) : 0;
            if (cosine > best) best = cosine;
        }
        if (fabs(best - (double)scores[i]) > 1e-6) fail_msg("%zu: %f, %f", i, best, scores[i]);
    }
    free(context);
    free(query);
}

/* Subnormals of f16 have directions, too. */
static void small_numbers_count(void **state)
{
    (void)state;
    const uint16_t row[2] = {1, 2}, query[4] = {0x3c00, 0x4000, 0x3c00, 0xbc00};
    float score;
    assert_true(status_ok(gather_scores(row, 1, query, 2, 2, 0, &score)));
    assert_true(fabsf(score - 1) < 1e-6f);
}

static void expect_set(const float *scores, uint32_t n, gather_fields f, const char *tokens)
{
    uint32_t out[16], n_out = 0;
    char text[64] = "";
    assert_true(status_ok(gather_select(scores, n, &f, out, &n_out)));
    for (uint32_t i = 0; i < n_out; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u", i ? " " : "", out[i]);
    assert_string_equal(text, tokens);
}

static void budgets_windows_and_ties(void **state)
{
    (void)state;
    const float s[10] = {0, -1, 5, 0, 0, 0, 0, 7, -3, -2}, same[4] = {-0.0f, 0, -0.0f, 0};
    expect_set(s, 10, (gather_fields){.budget = 2, .window = 1}, "2 7");
    expect_set(s, 10, (gather_fields){.budget = 4, .window = 3}, "1 6 7 8");
    expect_set(s, 10, (gather_fields){.budget = 5, .window = 1, .first = 1, .last = 2},
               "0 2 7 8 9");
    expect_set(s, 10, (gather_fields){.budget = 3, .window = 1, .first = 1, .last = 2}, "0 8 9");
    expect_set(s, 10, (gather_fields){.budget = 0, .window = 1}, "");
    expect_set(s, 3, (gather_fields){.budget = 3, .window = 1, .last = 3}, "0 1 2");
    expect_set(s, 3, (gather_fields){.budget = 9, .window = 1, .last = 5}, "0 1 2");
    expect_set(s, 10, (gather_fields){.budget = 2, .window = 99}, "0 1");
    expect_set(same, 4, (gather_fields){.budget = 2, .window = 1}, "0 1");
}

/* The question's first token is as like every fourth token of the context as can be, its second is
 * rather like token 21 alone: that place is read first. */
static void what_is_everywhere_does_not_decide(void **state)
{
    (void)state;
    enum { N = 40, DIM = 3 };
    const uint16_t one = f16_from_f32(1);
    uint16_t context[N * DIM] = {0};
    const uint16_t query[2 * DIM] = {one, 0, 0, 0, one, 0};
    const gather_fields f = {.budget = 6, .window = 3};
    float scores[N];
    for (size_t i = 0; i < N; i++) context[i * DIM + (i % 4 ? 2 : 0)] = one;
    context[21 * DIM + 1] = one;
    assert_int_equal(gather_background(&f), 3);
    assert_true(status_ok(gather_scores(context, N, query, 2, DIM, 3, scores)));
    assert_true(scores[20] == 0 && fabsf(scores[21] - sqrtf(0.5f)) < 1e-3f);
    uint32_t out[6], n_out = 0;
    assert_true(status_ok(gather_select(scores, N, &f, out, &n_out)));
    assert_int_equal(n_out, 6);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(out[3 + i], 20 + i);
}

static void fields_that_cannot_be_met(void **state)
{
    (void)state;
    const gather_fields even = {.budget = 9, .window = 2}, zero = {.budget = 9},
                        full = {.budget = 9, .window = 1, .first = 5, .last = 5},
                        wide = {.budget = 9, .window = 1, .first = UINT32_MAX, .last = 10},
                        good = {.budget = 10, .window = 129, .first = 5, .last = 5};
    assert_string_equal(gather_check(&even), "window: must be odd");
    assert_string_equal(gather_check(&zero), "window: must be odd");
    assert_non_null(strstr(gather_check(&full), "budget: "));
    assert_non_null(strstr(gather_check(&wide), "budget: "));
    assert_null(gather_check(&good));
    uint32_t out[1], n_out;
    float score = 0;
    assert_int_equal(gather_select(&score, 1, &even, out, &n_out).code, STATUS_INVALID);
}

static void values_that_are_not_finite_are_seen(void **state)
{
    (void)state;
    enum { N = 100 };
    static const uint16_t wrong[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
    uint16_t *values = numbers(3, N);
    values[0] = 0x7bff; /* the largest */
    values[1] = 0xfbff;
    assert_true(gather_are_finite(values, N));
    for (uint32_t i = 0; i < N; i++) {
        uint16_t before = values[i];
        values[i] = wrong[i % 5];
        assert_false(gather_are_finite(values, N));
        assert_true(gather_are_finite(values, i));
        values[i] = before;
    }
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathered_sets_are_the_oracles),
        cmocka_unit_test(scores_are_cosines),
        cmocka_unit_test(small_numbers_count),
        cmocka_unit_test(budgets_windows_and_ties),
        cmocka_unit_test(what_is_everywhere_does_not_decide),
        cmocka_unit_test(fields_that_cannot_be_met),
        cmocka_unit_test(values_that_are_not_finite_are_seen),
    };
    return cmocka_run_group_tests_name("engine_gather", tests, NULL, NULL);
}
