/* Products of many rows of e4m3 by e4m3 (set_narrow). */
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 128, EDGES = 6 };

/* Whether the device multiplies so. With scales of rows that a kernel of ours applies, as beside
 * every capability but 9.0, sums do not fit f16. */
static bool is_narrow(const check *c, const weights *w, gpu_type y_type)
{
    if (w->gpu.n % 16 != 0 || w->gpu.k % 16 != 0) return false;
    if (w->gpu.group) return w->gpu.group == GROUP && c->narrow_groups;
    return c->narrow_rows && (y_type != GPU_F16 || c->compute == 90);
}

/* Rows of normal numbers, but the first: zeros, one large number, numbers near the smallest, exact
 * e4m3 up to the largest, a NaN, an infinity. */
static void fill_rows(check *c, float *x, size_t m, size_t k)
{
    check_fill(c, x, m * k);
    for (size_t i = 0; i < k; i++) {
        x[i] = 0.0f;
        x[2 * k + i] = ldexpf(x[2 * k + i], -130);
        x[3 * k + i] = i % 2 ? 448.0f : -ldexpf((float)(8 + i % 8), (int)(i % 7));
    }
    x[k + 5] = 3e4f;
    x[4 * k + k - 1] = NAN;
    x[5 * k] = INFINITY;
}

/* A row of nearly zero becomes zeros. */
void check_round_rows(float *x, size_t m, size_t k, size_t group)
{
    for (size_t at = 0; at < m * k;) {
        size_t row = at / k, left = (row + 1) * k - at, n = group && group < left ? group : left;
        float largest = 0.0f;
        for (size_t i = at; i < at + n; i++) largest = fmaxf(largest, fabsf(x[i]));
        bool is_zero = largest < 0x1p-100f;
        float scale = is_zero ? 0.0f : largest / 448.0f,
              inverse = is_zero ? 0.0f : 448.0f / largest;
        for (size_t i = at; i < at + n; i++) x[i] = check_e4m3(x[i] * inverse) * scale;
        at += n;
    }
}

/* Rows with a NaN or an infinity must be NaN in every element; they become 1 in both, or 0. */
static void judge_edges(float *due, float *got, size_t n)
{
    for (size_t i = 4 * n; i < EDGES * n; i++) {
        got[i] = isnan(got[i]) ? 1.0f : 0.0f;
        due[i] = 1.0f;
    }
}

static void multiply(const weights *w, const float *x, size_t m, float *due)
{
    size_t n = w->gpu.n, k = w->gpu.k;
    for (size_t r = 0; r < m; r++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0.0;
            for (size_t j = 0; j < k; j++)
                sum += (double)x[r * k + j] * (double)w->values[i * k + j];
            due[r * n + i] = (float)sum;
        }
}

typedef struct arrays {
    float *x, *due, *got;
    void *raw, *dx, *dy, *scratch;
} arrays;

static arrays make_arrays(check *c, const weights *w, size_t m)
{
    size_t n = w->gpu.n, k = w->gpu.k, most = n > k ? n : k;
    arrays a = {.x = check_memory(m * k, 4),
                .due = check_memory(m * n, 4),
                .got = check_memory(m * n, 4),
                .raw = check_memory(m * most, 4)};
    fill_rows(c, a.x, m, k);
    check_narrow(a.x, m * k, w->gpu.type, a.raw);
    check_widen(a.raw, m * k, w->gpu.type, a.x);
    a.dx = check_device(c, a.raw, m * k * 2);
    a.dy = check_output(c, gpu_product_rows(m) * n * 4);
    a.scratch = check_output(c, gpu_product_scratch(&w->gpu, m));
    return a;
}

static void forget_arrays(check *c, arrays *a)
{
    c->api->release(c->g, a->dx);
    c->api->release(c->g, a->dy);
    c->api->release(c->g, a->scratch);
    free(a->x), free(a->due), free(a->got), free(a->raw);
}

static void name_case(char out[96], const check *c, const weights *w, size_t m, gpu_type y_type,
                      const char *what)
{
    static const char *const types[GPU_TYPES] = {"f32", "bf16", "f16"};
    snprintf(out, 96, "%s %u.%u, %zu rows, %zu x %zu %s by %u to %s", what, c->compute / 10,
             c->compute % 10, m, w->gpu.n, w->gpu.k, types[w->gpu.type], w->gpu.group,
             types[y_type]);
}

static void run(check *c, const weights *w, const arrays *a, size_t m, gpu_type y_type, float *got)
{
    check_ok(c, c->api->product(c->g, &w->gpu, a->dx, m, a->dy, y_type, a->scratch));
    check_fetch(c, a->raw, a->dy, m * w->gpu.n * gpu_type_bytes(y_type));
    check_widen(a->raw, m * w->gpu.n, y_type, got);
}

/* The operands are known exactly; only the order of the tensor core's sums is not. */
static void check_rounded(check *c, const weights *w, size_t m, gpu_type y_type)
{
    static const double limits[GPU_TYPES] = {1e-6, 2e-5, 1e-5};
    size_t n = w->gpu.n, all = m * n;
    char name[96];
    arrays a = make_arrays(c, w, m);
    c->api->set_narrow(c->g, true);
    run(c, w, &a, m, y_type, a.got);
    c->api->set_narrow(c->g, false);
    multiply(w, a.x, m, a.due);
    judge_edges(a.due, a.got, n);
    name_case(name, c, w, m, y_type, "exact x,");
    check_row(c, name, a.due + EDGES * n, a.got + EDGES * n, all - EDGES * n, 2e-3);
    check_round_rows(a.x, m, w->gpu.k, w->gpu.group);
    multiply(w, a.x, m, a.due);
    for (size_t i = 4 * n; i < EDGES * n; i++) a.due[i] = 1.0f;
    name_case(name, c, w, m, y_type, "e4m3 x,");
    check_row(c, name, a.due + EDGES * n, a.got + EDGES * n, all - EDGES * n, limits[y_type]);
    for (size_t r = 0; r < EDGES; r++) { /* each alone: numbers of one would hide another's */
        snprintf(name, sizeof name, "  its row %zu of edges", r);
        check_row(c, name, a.due + r * n, a.got + r * n, n, limits[y_type]);
    }
    forget_arrays(c, &a);
}

/* Products that stay at 16 bits have the bits that they have without set_narrow. */
static void check_unchanged(check *c, const weights *w, size_t m, gpu_type y_type, bool invariant)
{
    size_t n = w->gpu.n, all = (m - EDGES) * n;
    char name[96];
    arrays a = make_arrays(c, w, m);
    c->api->set_invariant(c->g, invariant);
    run(c, w, &a, m, y_type, a.due);
    c->api->set_narrow(c->g, true);
    run(c, w, &a, m, y_type, a.got);
    c->api->set_narrow(c->g, false);
    c->api->set_invariant(c->g, false);
    name_case(name, c, w, m, y_type, invariant ? "invariant:" : "16 bits:");
    check_row(c, name, a.due + EDGES * n, a.got + EDGES * n, all, 0.0);
    forget_arrays(c, &a);
}

static void check_form_of(check *c, size_t n, size_t k, check_form form, size_t m, bool invariant)
{
    weights w = check_weights(c, n, k, form, NULL);
    const gpu_type types[] = {GPU_F32, w.gpu.type};
    for (size_t i = 0; i < 2; i++) {
        if (m > 128 && is_narrow(c, &w, types[i])) check_rounded(c, &w, m, types[i]);
        else check_unchanged(c, &w, m, types[i], false);
    }
    if (invariant) check_unchanged(c, &w, m, GPU_F32, true);
    check_forget_weights(c, &w, true);
}

void check_narrows(check *c)
{
    static const struct {
        check_form form;
        size_t n, k, m;
    } cases[] = {
        {{DTYPE_BF16, 8, 0, true}, 48, 272, 129},   {{DTYPE_F16, 8, 0, true}, 16, 2064, 130},
        {{DTYPE_BF16, 8, 128, true}, 48, 272, 129}, {{DTYPE_F16, 8, 128, true}, 16, 2192, 130},
        {{DTYPE_BF16, 8, 128, true}, 16, 144, 512}, {{DTYPE_BF16, 8, 64, true}, 48, 272, 130},
        {{DTYPE_BF16, 8, 0, true}, 37, 272, 130},   {{DTYPE_BF16, 8, 128, true}, 48, 264, 130},
        {{DTYPE_BF16, 8, 128, true}, 48, 272, 128},
    };
    /* All of them where the device multiplies all; elsewhere those that differ. */
    size_t n_cases = c->narrow_groups ? sizeof cases / sizeof *cases : 3;
    for (size_t i = 0; i < n_cases; i++) {
        size_t n = cases[i].n;
        if (!c->small && n % 16 == 0) n *= 16;
        check_form_of(c, n, cases[i].k, cases[i].form, cases[i].m, i == 0);
    }
}
