/* Norms, gates, RoPE angles, the largest logit. */
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[GPU_TYPES] = {"f32", "bf16", "f16"};
static const double limits[GPU_TYPES] = {1e-11, 1e-5, 1e-6};

static size_t bytes_of(gpu_type t) { return t == GPU_F32 ? 4 : 2; }

static void *floats(check *c, float *x, size_t n)
{
    check_fill(c, x, n);
    return check_device(c, x, n * sizeof *x);
}

static void check_norm(check *c, size_t m, size_t d, gpu_type type, bool adds)
{
    float *x = check_memory(m * d, 4), *delta = check_memory(m * d, 4), *w = check_memory(d, 4);
    float *due = check_memory(m * d, 4), *got = check_memory(m * d, 4);
    void *raw = check_memory(m * d, 4), *dx = floats(c, x, m * d), *dd = floats(c, delta, m * d);
    void *dw = floats(c, w, d), *out = check_output(c, m * d * 4);
    check_ok(c, c->api->norm(c->g, dx, adds ? dd : NULL, dw, 1e-5f, m, d, out, type));
    check_fetch(c, raw, out, m * d * bytes_of(type));
    check_widen(raw, m * d, type, got);
    if (adds) kern_add_rmsnorm(c->ref, x, delta, w, 1e-5f, m, d, due);
    else kern_rmsnorm(c->ref, x, w, 1e-5f, m, d, due);
    char name[96];
    snprintf(name, sizeof name, "norm%s %zu x %zu %s", adds ? " of sum" : "", m, d,
             type_names[type]);
    check_row(c, name, due, got, m * d, limits[type]);
    if (adds) {
        check_fetch(c, got, dx, m * d * 4);
        check_row(c, "  its sum", x, got, m * d, 1e-14);
    }
    void *device[] = {dx, dd, dw, out}, *host[] = {x, delta, w, due, got, raw};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void check_gate(check *c, size_t m, size_t d, gpu_type type, bool gelu)
{
    size_t n = m * 2 * d;
    float *x = check_memory(n, 4), *due = check_memory(m * d, 4), *got = check_memory(m * d, 4);
    void *raw = check_memory(n, 4);
    check_fill(c, x, n);
    check_narrow(x, n, type, raw);
    check_widen(raw, n, type, x);
    void *dx = check_device(c, raw, n * bytes_of(type)), *out = check_output(c, m * d * 4);
    check_ok(c, c->api->gate(c->g, dx, m, d, gelu, out, type));
    check_fetch(c, raw, out, m * d * bytes_of(type));
    check_widen(raw, m * d, type, got);
    if (gelu) kern_geglu(c->ref, x, m, d, due);
    else kern_swiglu(c->ref, x, m, d, due);
    char name[96];
    snprintf(name, sizeof name, "%s %zu x %zu %s", gelu ? "geglu" : "swiglu", m, d,
             type_names[type]);
    check_row(c, name, due, got, m * d, limits[type]);
    c->api->release(c->g, dx);
    c->api->release(c->g, out);
    free(x), free(due), free(got), free(raw);
}

static void check_angles(check *c, size_t n, uint32_t dim)
{
    float freq[128], *due = check_memory(n * dim, 4), *got = check_memory(n * dim, 4);
    uint32_t *at = check_memory(n, 4);
    for (uint32_t i = 0; i < dim / 2; i++) freq[i] = powf(500000.0f, -2.0f * (float)i / (float)dim);
    for (size_t r = 0; r < n; r++) {
        at[r] = rng_u32(&c->random) % 131072;
        for (uint32_t i = 0; i < dim / 2; i++) {
            due[r * dim + i] = cosf((float)at[r] * freq[i]) * 1.25f;
            due[r * dim + dim / 2 + i] = sinf((float)at[r] * freq[i]) * 1.25f;
        }
    }
    void *df = check_device(c, freq, dim / 2 * 4), *da = check_device(c, at, n * 4);
    float *out = check_output(c, n * dim * 4);
    check_ok(c, c->api->angles(c->g, df, da, n, dim, 1.25f, out));
    check_fetch(c, got, out, n * dim * 4);
    check_row(c, "angles up to position 131071", due, got, n * dim, 1e-12);
    c->api->release(c->g, df);
    c->api->release(c->g, da);
    c->api->release(c->g, out);
    free(due), free(got), free(at);
}

/* Masks of every second of some rows, in the reverse order of the rows. A row has n tokens from
 * `token` on, of a vocabulary with some more. */
static void check_mask(check *c, size_t m, size_t n, uint32_t token)
{
    enum { MORE = 70, BEFORE = 5 /* words in front of the masks */ };
    size_t rows = 2 * m + 1, n_words = (token + n + MORE + 31) / 32, all = BEFORE + m * n_words;
    float *x = check_memory(rows * n, 4), *got = check_memory(rows * n, 4);
    uint32_t *words = check_memory(all, 4), *masks = check_memory(rows, 4);
    check_fill(c, x, rows * n);
    void *dx = check_device(c, x, rows * n * 4);
    for (size_t i = 0; i < all; i++) words[i] = rng_u32(&c->random);
    for (size_t i = 0; i < m; i++) {
        size_t at = BEFORE + (m - 1 - i) * n_words;
        masks[2 * i + 1] = 1 + (uint32_t)at;
        for (size_t t = 0; t < n; t++)
            if (!(words[at + (token + t) / 32] >> (token + t) % 32 & 1))
                x[(2 * i + 1) * n + t] = -INFINITY;
    }
    void *dm = check_device(c, masks, rows * 4), *dw = check_device(c, words, all * 4);
    check_ok(c, c->api->mask(c->g, dx, n, token, dm, rows, dw, n_words));
    check_fetch(c, got, dx, rows * n * 4);
    char name[96];
    snprintf(name, sizeof name, "masks of %zu rows of %zu from token %u", m, n, token);
    uint32_t wrong = 0;
    for (size_t i = 0; i < rows * n; i++) wrong += memcmp(&x[i], &got[i], 4) != 0;
    check_row(c, name, &(float){0}, &(float){(float)wrong}, 1, 0.0);
    void *device[] = {dx, dm, dw}, *host[] = {x, got, words, masks};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

void check_rows(check *c)
{
    size_t rows = c->small ? 3 : 300;
    for (gpu_type t = GPU_F32; t < GPU_TYPES; t++) {
        check_norm(c, rows, 256, t, false);
        check_norm(c, rows, c->small ? 520 : 4096, t, true);
        check_gate(c, rows, c->small ? 176 : 14336, t, false);
        check_gate(c, rows, 176, t, true);
        check_norm(c, rows, 2056, t, true); /* a thread has several parts of a row */
        check_norm(c, rows, 5124, t, true); /* more than one block size */
        check_norm(c, rows, 35, t, true);   /* too odd for vector loads */
        check_gate(c, rows, 35, t, false);
    }
    check_angles(c, c->small ? 9 : 1000, 64);
    check_mask(c, 1, 63, 0);
    check_mask(c, 3, 1100, 0);
    check_mask(c, 3, 1061, 331);
    check_mask(c, 31, c->small ? 65 : 128256, 0);
}
