/* Norms, gates, angles, embeddings, the largest logit; products. */
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
    void *dw = floats(c, w, d), *out = check_device(c, NULL, m * d * 4);
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
    void *dx = check_device(c, raw, n * bytes_of(type)), *out = check_device(c, NULL, m * d * 4);
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
    float *out = check_device(c, NULL, n * dim * 4);
    check_ok(c, c->api->angles(c->g, df, da, n, dim, 1.25f, out));
    check_fetch(c, got, out, n * dim * 4);
    check_row(c, "angles up to position 131071", due, got, n * dim, 1e-12);
    c->api->release(c->g, df);
    c->api->release(c->g, da);
    c->api->release(c->g, out);
    free(due), free(got), free(at);
}

/* Ties, -inf and NaN among the logits. */
static void check_argmax(check *c, size_t m, size_t n)
{
    float *x = check_memory(m * n, 4), *due = check_memory(m, 4), *got = check_memory(m, 4);
    uint32_t *indices = check_memory(m, 4);
    check_fill(c, x, m * n);
    for (size_t r = 0; r < m; r++) {
        float *row = x + r * n;
        if (r % 4 == 1) row[n / 3] = row[n / 2] = 9.0f;
        for (size_t i = 0; r % 4 == 2 && i < n; i++) row[i] = -INFINITY;
        if (r % 4 == 3) row[0] = NAN, row[n - 1] = 10.0f;
        due[r] = (float)logits_argmax(row, n);
    }
    void *dx = check_device(c, x, m * n * 4), *out = check_device(c, NULL, m * 4);
    check_ok(c, c->api->argmax(c->g, dx, m, n, out));
    check_fetch(c, indices, out, m * 4);
    for (size_t r = 0; r < m; r++) got[r] = (float)indices[r];
    check_row(c, "argmax", due, got, m, 0.0);
    c->api->release(c->g, dx);
    c->api->release(c->g, out);
    free(x), free(due), free(got), free(indices);
}

void check_rows(check *c)
{
    size_t rows = c->small ? 3 : 300;
    for (gpu_type t = GPU_F32; t < GPU_TYPES; t++) {
        check_norm(c, rows, 256, t, false);
        check_norm(c, rows, c->small ? 520 : 4096, t, true);
        check_gate(c, rows, c->small ? 176 : 14336, t, false);
        check_gate(c, rows, 176, t, true);
    }
    check_angles(c, c->small ? 9 : 1000, 64);
    check_argmax(c, 8, c->small ? 1100 : 128256);
}

/* ---- products -----------------------------------------------------------------------------------
 */

/* W of the reference, packed, and the same unpacked on the device. */
typedef struct weights {
    kern_matrix cpu;
    gpu_matrix gpu;
} weights;

static gpu_type type_of(dtype t)
{
    return t == DTYPE_BF16 ? GPU_BF16 : t == DTYPE_F16 ? GPU_F16 : GPU_F32;
}

static weights make_weights(check *c, size_t n, size_t k, dtype type, unsigned bits)
{
    weights w = {.cpu = {.type = type, .n = n, .k = k, .quant = {(uint8_t)bits, bits ? 32 : 0}}};
    float *values = check_memory(n * k, 4);
    check_fill(c, values, n * k);
    for (size_t i = 0; i < n * k; i++) values[i] /= sqrtf((float)k);
    size_t bytes = kern_matrix_size(&w.cpu);
    w.cpu.data = alloc_pages(bytes);
    kern_matrix_pack(c->ref, &w.cpu, 0, n, values, DTYPE_F32, k);
    void *packed = check_device(c, w.cpu.data, bytes);
    w.gpu = (gpu_matrix){
        .n = n, .k = k, .type = type_of(type), .bits = (uint8_t)bits, .group = bits ? 32 : 0};
    size_t element = bits ? bits : 8 * bytes_of(w.gpu.type);
    w.gpu.data = check_device(c, NULL, n * k * element / 8);
    if (bits) w.gpu.scales = check_device(c, NULL, n * ((k + 31) / 32) * 2);
    check_ok(c, c->api->unpack(c->g, packed, &w.gpu));
    check_ok(c, c->api->wait(c->g));
    c->api->release(c->g, packed);
    free(values);
    return w;
}

static void forget_weights(check *c, weights *w)
{
    alloc_pages_free(w->cpu.data, kern_matrix_size(&w->cpu));
    c->api->release(c->g, w->gpu.data);
    c->api->release(c->g, w->gpu.scales);
}

/* What the reference has for the product: rows of W as floats (integers times scales), so that x
 * need not become integers as it does on the CPU. */
static void product_due(check *c, const weights *w, const float *x, size_t m, float *due)
{
    size_t k = w->cpu.k, lines = (k + 63) / 64;
    float *row = check_memory(k, 4);
    for (size_t n = 0; n < w->cpu.n; n++) {
        if (!w->gpu.bits) kern_matrix_row(c->ref, &w->cpu, n, row);
        for (size_t i = 0; w->gpu.bits && i < k; i++) {
            size_t group = (size_t)32 * 16 * w->gpu.bits / 8, in = i % 32, lane = n % 16;
            const uint8_t *line =
                (const uint8_t *)w->cpu.data + (n / 16 * lines + i / 64) * (64 + 2 * group);
            const uint8_t *q = line + 64 + i / 32 % 2 * group;
            uint16_t scale;
            memcpy(&scale, line + (i / 32 % 2 * 16 + lane) * 2, 2);
            int v = w->gpu.bits == 8
                        ? (int8_t)q[in / 4 * 64 + lane * 4 + in % 4]
                        : (q[in / 8 * 64 + lane * 4 + in % 4] >> in / 4 % 2 * 4 & 15) - 8;
            row[i] = (float)v * bf16_to_f32(scale);
        }
        for (size_t r = 0; r < m; r++) {
            double sum = 0.0;
            for (size_t i = 0; i < k; i++) sum += (double)x[r * k + i] * (double)row[i];
            due[r * w->cpu.n + n] = (float)sum;
        }
    }
    free(row);
}

static void check_product(check *c, weights *w, size_t m, gpu_type y_type)
{
    size_t n = w->cpu.n, k = w->cpu.k;
    float *x = check_memory(m * k, 4), *due = check_memory(m * n, 4), *got = check_memory(m * n, 4);
    void *raw = check_memory(m * (k > n ? k : n), 4);
    check_fill(c, x, m * k);
    check_narrow(x, m * k, w->gpu.type, raw);
    check_widen(raw, m * k, w->gpu.type, x);
    void *dx = check_device(c, raw, m * k * bytes_of(w->gpu.type));
    void *dy = check_device(c, NULL, m * n * 4);
    void *scratch = check_device(c, NULL, gpu_product_scratch(&w->gpu));
    check_ok(c, c->api->product(c->g, &w->gpu, dx, m, dy, y_type, scratch));
    check_fetch(c, raw, dy, m * n * bytes_of(y_type));
    check_widen(raw, m * n, y_type, got);
    product_due(c, w, x, m, due);
    char name[96], bits[16] = "";
    if (w->gpu.bits) snprintf(bits, sizeof bits, " int%u", w->gpu.bits);
    snprintf(name, sizeof name, "product %zu rows, %zu x %zu %s%s to %s", m, n, k,
             type_names[w->gpu.type], bits, type_names[y_type]);
    check_row(c, name, due, got, m * n, w->gpu.bits && m > 8 ? 1e-5 : limits[y_type]);
    c->api->release(c->g, dx);
    c->api->release(c->g, dy);
    c->api->release(c->g, scratch);
    free(x), free(due), free(got), free(raw);
}

static void check_embed(check *c, weights *w)
{
    enum { N = 5 };
    size_t k = w->cpu.k;
    uint32_t tokens[N];
    float *due = check_memory(N * k, 4), *got = check_memory(N * k, 4);
    for (int i = 0; i < N; i++) {
        tokens[i] = rng_u32(&c->random) % (uint32_t)w->cpu.n;
        kern_matrix_row(c->ref, &w->cpu, tokens[i], due + (size_t)i * k);
    }
    for (size_t i = 0; i < N * k; i++) due[i] *= 2.0f;
    void *dt = check_device(c, tokens, sizeof tokens);
    float *out = check_device(c, NULL, N * k * 4);
    check_ok(c, c->api->embed(c->g, &w->gpu, dt, N, 2.0f, out));
    check_fetch(c, got, out, N * k * 4);
    check_row(c, "embed", due, got, N * k, 0.0);
    uint32_t rows[] = {4, 0, 4};
    void *dr = check_device(c, rows, sizeof rows), *some = check_device(c, NULL, 3 * k * 4);
    check_ok(c, c->api->gather(c->g, out, dr, 3, k * 4, some));
    check_fetch(c, got, some, 3 * k * 4);
    memmove(due + k, due, k * 4); /* rows 4, 0, 4 of due, in place */
    memcpy(due, due + 4 * k, k * 4);
    memcpy(due + 2 * k, due + 4 * k, k * 4);
    check_row(c, "gather", due, got, 3 * k, 0.0);
    c->api->release(c->g, dt);
    c->api->release(c->g, dr);
    c->api->release(c->g, some);
    c->api->release(c->g, out);
    free(due), free(got);
}

void check_products(check *c)
{
    static const struct {
        dtype type;
        unsigned bits;
    } kinds[] = {{DTYPE_F32, 0},  {DTYPE_BF16, 0}, {DTYPE_F16, 0},
                 {DTYPE_BF16, 8}, {DTYPE_BF16, 4}, {DTYPE_F16, 4}};
    static const size_t rows[] = {1, 3, 7, 33};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = c->small ? 37 : 1000, k = c->small ? 160 : 2080; /* neither whole panels */
        weights w = make_weights(c, n, k, kinds[i].type, kinds[i].bits);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            check_product(c, &w, rows[r], GPU_F32);
            if (w.gpu.type != GPU_F32) check_product(c, &w, rows[r], w.gpu.type);
        }
        if (!kinds[i].bits) check_embed(c, &w);
        forget_weights(c, &w);
    }
}
