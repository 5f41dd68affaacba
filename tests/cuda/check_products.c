/* Products and embeddings. */
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[GPU_TYPES] = {"f32", "bf16", "f16"};
static const double limits[GPU_TYPES] = {1e-11, 1e-5, 1e-6};

static gpu_type type_of(dtype t)
{
    return t == DTYPE_BF16 ? GPU_BF16 : t == DTYPE_F16 ? GPU_F16 : GPU_F32;
}

/* Reads rows of W as floats (integers times scales), so that x is not quantised to integers as on
 * the CPU. */
static void read_row(check *c, const weights *w, size_t n, float *row)
{
    size_t k = w->cpu.k, bits = w->gpu.bits, g = w->gpu.group,
           lines = g ? (k - 1) / (2 * g) + 1 : 0;
    if (w->cpu.is_float) return; /* as they were made */
    if (!bits) {
        kern_matrix_row(c->ref, &w->cpu, n, row);
        return;
    }
    for (size_t i = 0; i < k; i++) {
        size_t group = g * 16 * bits / 8, in = i % g, lane = n % 16;
        const uint8_t *line =
            (const uint8_t *)w->cpu.data + (n / 16 * lines + i / (2 * g)) * (64 + 2 * group);
        const uint8_t *q = line + 64 + i / g % 2 * group;
        uint16_t scale;
        memcpy(&scale, line + (i / g % 2 * 16 + lane) * 2, 2);
        int v = bits == 8 ? (int8_t)q[in / 4 * 64 + lane * 4 + in % 4]
                          : (q[in / 8 * 64 + lane * 4 + in % 4] >> in / 4 % 2 * 4 & 15) - 8;
        uint32_t word = (uint32_t)scale << (bits == 8 ? 15 : 16);
        float times;
        memcpy(&times, &word, sizeof times);
        row[i] = (float)v * times;
    }
}

gpu_matrix check_matrix(size_t n, size_t k, check_form f)
{
    return (gpu_matrix){.n = n,
                        .k = k,
                        .type = type_of(f.type),
                        .bits = f.bits,
                        .group = f.group,
                        .is_float = f.is_float};
}

static float value_of_e4m3(uint8_t bits)
{
    int e = bits >> 3 & 15, m = bits & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return bits & 128 ? -v : v;
}

/* Fills w with every finite e4m3 and with a scale of its own for each row and group. */
static void make_floats(check *c, weights *w)
{
    size_t n = w->cpu.n, k = w->cpu.k, groups = kern_float_groups(&w->cpu), in = k;
    float *scales = kern_float_scales(&w->cpu);
    if (w->cpu.quant.group) in = w->cpu.quant.group;
    for (size_t i = 0; i < n * groups; i++)
        scales[i] = (0.5f + (float)(rng_u32(&c->random) % 4096) / 4096.0f) / (64 * sqrtf((float)k));
    for (size_t i = 0; i < n * k; i++) {
        uint8_t bits = (uint8_t)rng_u32(&c->random);
        if ((bits & 127) == 127) bits = (uint8_t)i & 7; /* no NaN; denormals instead */
        ((uint8_t *)w->cpu.data)[i] = bits;
        w->values[i] = value_of_e4m3(bits) * scales[i / k * groups + i % k / in];
    }
}

weights check_weights(check *c, size_t n, size_t k, check_form form, const gpu_matrix *at)
{
    weights w = {.cpu = {.type = form.type,
                         .n = n,
                         .k = k,
                         .quant = {form.bits, form.group},
                         .is_float = form.is_float}};
    w.values = check_memory(n * k, 4);
    size_t bytes = kern_matrix_size(&w.cpu);
    w.cpu.data = alloc_pages(bytes);
    if (form.is_float) {
        make_floats(c, &w);
    } else {
        check_fill(c, w.values, n * k);
        for (size_t i = 0; i < n * k; i++) w.values[i] /= sqrtf((float)k);
        kern_matrix_pack(c->ref, &w.cpu, 0, n, w.values, DTYPE_F32, k);
    }
    w.gpu = check_matrix(n, k, form);
    if (at) w.gpu = *at;
    else {
        w.gpu.data = check_device(c, NULL, gpu_matrix_bytes(&w.gpu));
        if (form.bits) w.gpu.scales = check_device(c, NULL, gpu_scale_bytes(&w.gpu));
    }
    void *packed = check_device(c, w.cpu.data, bytes);
    check_ok(c, c->api->unpack(c->g, packed, &w.gpu));
    check_ok(c, c->api->wait(c->g));
    c->api->release(c->g, packed);
    for (size_t i = 0; i < n; i++) read_row(c, &w, i, w.values + i * k);
    return w;
}

void check_forget_weights(check *c, weights *w, bool device)
{
    alloc_pages_free(w->cpu.data, kern_matrix_size(&w->cpu));
    free(w->values);
    if (!device) return;
    c->api->release(c->g, w->gpu.data);
    c->api->release(c->g, w->gpu.scales);
}

void check_product_due(const weights *w, const float *x, size_t m, float *due)
{
    size_t k = w->cpu.k;
    for (size_t n = 0; n < w->cpu.n; n++)
        for (size_t r = 0; r < m; r++) {
            double sum = 0.0;
            for (size_t i = 0; i < k; i++)
                sum += (double)x[r * k + i] * (double)w->values[n * k + i];
            due[r * w->cpu.n + n] = (float)sum;
        }
}

static void check_product(check *c, weights *w, size_t m, gpu_type y_type)
{
    size_t n = w->cpu.n, k = w->cpu.k;
    float *x = check_memory(m * k, 4), *due = check_memory(m * n, 4), *got = check_memory(m * n, 4);
    void *raw = check_memory(m * (k > n ? k : n), 4);
    check_fill(c, x, m * k);
    check_narrow(x, m * k, w->gpu.type, raw);
    check_widen(raw, m * k, w->gpu.type, x);
    void *dx = check_device(c, raw, m * k * gpu_type_bytes(w->gpu.type));
    void *dy = check_output(c, gpu_product_rows(m) * n * 4);
    void *scratch = check_output(c, gpu_product_scratch(&w->gpu, m));
    check_ok(c, c->api->product(c->g, &w->gpu, dx, m, dy, y_type, scratch));
    check_fetch(c, raw, dy, m * n * gpu_type_bytes(y_type));
    check_widen(raw, m * n, y_type, got);
    check_product_due(w, x, m, due);
    char name[96], bits[24] = "";
    if (w->gpu.is_float) snprintf(bits, sizeof bits, " e4m3 by %u", w->gpu.group);
    else if (w->gpu.bits) snprintf(bits, sizeof bits, " int%u", w->gpu.bits);
    snprintf(name, sizeof name, "product %zu rows, %zu x %zu %s%s to %s", m, n, k,
             type_names[w->gpu.type], bits, type_names[y_type]);
    check_row(c, name, due, got, m * n, w->gpu.bits && m > 128 ? 1e-5 : limits[y_type]);
    c->api->release(c->g, dx);
    c->api->release(c->g, dy);
    c->api->release(c->g, scratch);
    free(x), free(due), free(got), free(raw);
}

/* Rows of x that are zeros but for a one give what W is multiplied as: the integers or floats times
 * their scales, rounded once where they become operands of 16 bits first. */
static void check_operands(check *c, check_form form)
{
    enum { N = 150, K = 136 }; /* two blocks of rows of W and two tiles of rows of x, none whole */
    static const struct {
        const char *name;
        gpu_few few;
        bool rounds;
    } ways[] = {{"few rows", {1, K, 1, K}, false},
                {"staged", {1, 1, 1, K}, true},
                {"the library", {1, 1, 1, 1}, true}};
    const gpu_few usual = {GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, GPU_FEW_OF_EXPERT, GPU_STAGED_ROWS};
    weights w = check_weights(c, N, K, form, NULL);
    float *x = check_memory(K * K, 4), *due = check_memory(K * N, 4), *got = check_memory(K * N, 4);
    uint16_t *raw = check_memory(K * N, 2);
    for (size_t i = 0; i < K; i++) x[i * K + i] = 1.0f;
    check_narrow(x, K * K, w.gpu.type, raw);
    void *dx = check_device(c, raw, (size_t)K * K * 2);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        void *dy = check_output(c, gpu_product_rows(K) * N * 4);
        void *scratch = check_output(c, gpu_product_scratch(&w.gpu, K));
        c->api->set_few(c->g, &ways[i].few);
        check_ok(c, c->api->product(c->g, &w.gpu, dx, K, dy, GPU_F32, scratch));
        check_fetch(c, got, dy, sizeof *got * K * N);
        for (size_t at = 0; at < (size_t)K * N; at++) due[at] = w.values[at % N * K + at / N];
        if (ways[i].rounds) {
            check_narrow(due, K * N, w.gpu.type, raw);
            check_widen(raw, K * N, w.gpu.type, due);
        }
        char name[96];
        snprintf(name, sizeof name, "operands of %s %s%u by %u: %s", type_names[w.gpu.type],
                 form.is_float ? "e4m3, " : "int", form.bits, form.group, ways[i].name);
        check_row(c, name, due, got, (size_t)K * N, 0.0);
        c->api->release(c->g, dy);
        c->api->release(c->g, scratch);
    }
    c->api->set_few(c->g, &usual);
    c->api->release(c->g, dx);
    check_forget_weights(c, &w, true);
    free(x), free(due), free(got), free(raw);
}

/* In batch-invariant mode a row has the same bits for any number of rows. */
static void check_invariant(check *c, const weights *w)
{
    static const size_t rows[] = {1, 2, 5, 8, 33, 64};
    enum { MOST = 130 };
    size_t n = w->cpu.n, k = w->cpu.k;
    float *x = check_memory(MOST * k, 4), *due = check_memory(MOST * n, 4),
          *got = check_memory(MOST * n, 4);
    void *raw = check_memory(MOST * k, 4);
    check_fill(c, x, MOST * k);
    check_narrow(x, MOST * k, w->gpu.type, raw);
    void *dx = check_device(c, raw, MOST * k * gpu_type_bytes(w->gpu.type));
    void *dy = check_output(c, gpu_product_rows(MOST) * n * 4);
    void *scratch = check_output(c, gpu_product_scratch(&w->gpu, MOST));
    c->api->set_invariant(c->g, true);
    check_ok(c, c->api->product(c->g, &w->gpu, dx, MOST, dy, GPU_F32, scratch));
    check_fetch(c, due, dy, MOST * n * 4);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char name[96];
        check_ok(c, c->api->product(c->g, &w->gpu, dx, rows[r], dy, GPU_F32, scratch));
        check_fetch(c, got, dy, rows[r] * n * 4);
        snprintf(name, sizeof name, "invariant product %zu rows, %s%s", rows[r],
                 type_names[w->gpu.type],
                 w->gpu.is_float ? " of e4m3"
                 : w->gpu.bits   ? " of integers"
                                 : "");
        check_row(c, name, due, got, rows[r] * n, 0.0);
    }
    c->api->set_invariant(c->g, false);
    c->api->release(c->g, dx);
    c->api->release(c->g, dy);
    c->api->release(c->g, scratch);
    free(x), free(due), free(got), free(raw);
}

/* Rows of tokens; and of some that draws before have given, of which one is another rank's. */
static void check_embed(check *c, weights *w)
{
    enum { N = 5, FIRST = 1000, DRAWN = 3 };
    size_t k = w->cpu.k;
    uint32_t tokens[N], draws[N] = {0, 3, 0, 1, 2};
    gpu_drawn drawn[DRAWN] = {{.token = FIRST + 1}, {.token = FIRST - 1}, {.token = FIRST}};
    float *due = check_memory(N * k, 4), *got = check_memory(N * k, 4);
    void *dd = check_device(c, draws, sizeof draws), *da = check_device(c, drawn, sizeof drawn);
    float *out = check_output(c, N * k * 4);
    for (int drawing = 1; drawing >= 0; drawing--) {
        memset(due, 0, N * k * 4);
        for (int i = 0; i < N; i++) {
            uint32_t token = tokens[i] = rng_u32(&c->random) % (uint32_t)w->cpu.n;
            if (drawing && draws[i]) token = drawn[draws[i] - 1].token - FIRST;
            if (token < w->cpu.n) kern_matrix_row(c->ref, &w->cpu, token, due + (size_t)i * k);
        }
        for (size_t i = 0; i < N * k; i++) due[i] *= 2.0f;
        void *dt = check_device(c, tokens, sizeof tokens);
        gpu_tokens from = {dt, drawing ? dd : NULL, da, FIRST};
        check_ok(c, c->api->embed(c->g, &w->gpu, &from, N, 2.0f, out));
        check_fetch(c, got, out, N * k * 4);
        check_row(c, drawing ? "embed, of draws before" : "embed", due, got, N * k, 0.0);
        c->api->release(c->g, dt);
    }
    uint32_t rows[] = {4, 0, 4};
    void *dr = check_device(c, rows, sizeof rows), *some = check_output(c, 3 * k * 4);
    check_ok(c, c->api->gather(c->g, out, dr, 3, k * 4, some));
    check_fetch(c, got, some, 3 * k * 4);
    memmove(due + k, due, k * 4); /* rows 4, 0, 4 of due, in place */
    memcpy(due, due + 4 * k, k * 4);
    memcpy(due + 2 * k, due + 4 * k, k * 4);
    check_row(c, "gather", due, got, 3 * k, 0.0);
    c->api->release(c->g, dd);
    c->api->release(c->g, da);
    c->api->release(c->g, dr);
    c->api->release(c->g, some);
    c->api->release(c->g, out);
    free(due), free(got);
}

void check_products(check *c)
{
    static const check_form forms[] = {{DTYPE_F32, 0, 0, false},   {DTYPE_BF16, 0, 0, false},
                                       {DTYPE_F16, 0, 0, false},   {DTYPE_BF16, 8, 32, false},
                                       {DTYPE_BF16, 4, 32, false}, {DTYPE_F16, 4, 32, false},
                                       {DTYPE_BF16, 8, 128, true}, {DTYPE_F16, 8, 64, true},
                                       {DTYPE_BF16, 8, 32, true},  {DTYPE_F16, 8, 0, true}};
    static const size_t rows[] = {1, 2, 7, 15, 33, 130};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t n = c->small ? 37 : 1000, k = c->small ? 160 : 2080; /* no whole panels in either */
        if (forms[i].is_float) k += 8;                              /* nor whole tiles */
        weights w = check_weights(c, n, k, forms[i], NULL);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            check_product(c, &w, rows[r], GPU_F32);
            if (w.gpu.type != GPU_F32) check_product(c, &w, rows[r], w.gpu.type);
        }
        check_invariant(c, &w);
        if (!forms[i].bits) check_embed(c, &w);
        check_forget_weights(c, &w, true);
    }
    /* More tiles than the warps of a block have loaded ahead, three times over. */
    static const check_form longer[] = {{DTYPE_BF16, 4, 32, false}, {DTYPE_F16, 4, 32, false},
                                        {DTYPE_BF16, 4, 64, false}, {DTYPE_BF16, 4, 128, false},
                                        {DTYPE_BF16, 8, 64, false}, {DTYPE_BF16, 8, 128, true},
                                        {DTYPE_BF16, 0, 0, false}};
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        /* Blocks of two panels, of which the last has one, and blocks of one. */
        size_t k = longer[i].bits == 4 ? 4264 : 2136, most = c->n_sms * 64 + 5;
        for (size_t n = 21; n <= most; n += most - 21) {
            weights w = check_weights(c, n, k, longer[i], NULL);
            check_product(c, &w, 3, GPU_F32);
            check_forget_weights(c, &w, true);
        }
    }
    static const check_form scaled[] = {{DTYPE_BF16, 4, 32, false}, {DTYPE_BF16, 4, 128, false},
                                        {DTYPE_F16, 4, 64, false},  {DTYPE_BF16, 8, 64, false},
                                        {DTYPE_F16, 8, 32, false},  {DTYPE_BF16, 8, 128, true},
                                        {DTYPE_F16, 8, 0, true}};
    for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++) check_operands(c, scaled[i]);
}
