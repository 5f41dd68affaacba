/* Products, embeddings and experts. */
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
    size_t k = w->cpu.k, lines = (k + 63) / 64, bits = w->gpu.bits;
    if (w->cpu.is_float) return; /* as they were made */
    if (!bits) {
        kern_matrix_row(c->ref, &w->cpu, n, row);
        return;
    }
    for (size_t i = 0; i < k; i++) {
        size_t group = (size_t)32 * 16 * bits / 8, in = i % 32, lane = n % 16;
        const uint8_t *line =
            (const uint8_t *)w->cpu.data + (n / 16 * lines + i / 64) * (64 + 2 * group);
        const uint8_t *q = line + 64 + i / 32 % 2 * group;
        uint16_t scale;
        memcpy(&scale, line + (i / 32 % 2 * 16 + lane) * 2, 2);
        int v = bits == 8 ? (int8_t)q[in / 4 * 64 + lane * 4 + in % 4]
                          : (q[in / 8 * 64 + lane * 4 + in % 4] >> in / 4 % 2 * 4 & 15) - 8;
        uint32_t word = (uint32_t)scale << (bits == 8 ? 15 : 16);
        float times;
        memcpy(&times, &word, sizeof times);
        row[i] = (float)v * times;
    }
}

static gpu_matrix matrix_of(size_t n, size_t k, check_form f)
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
    w.gpu = matrix_of(n, k, form);
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

static void product_due(const weights *w, const float *x, size_t m, float *due)
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
    product_due(w, x, m, due);
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

/* ---- experts --------------------------------------------------------------------------------- */

typedef struct sparse {
    size_t rows, hidden, ffn, n_experts, of_row;
    check_form form;
    bool norm, shared;
} sparse;

/* The row's experts as model/cpu/experts.c picks them: ascending, with their weights. */
static void route(const float *logits, const sparse *s, uint32_t *chosen, float *shares)
{
    float p[64], max = -INFINITY, sum = 0.0f, of_chosen = 0.0f;
    bool taken[64] = {false};
    for (size_t i = 0; i < s->n_experts; i++) max = fmaxf(max, logits[i]);
    for (size_t i = 0; i < s->n_experts; i++) sum += p[i] = expf(logits[i] - max);
    for (size_t k = 0; k < s->of_row; k++) {
        size_t best = s->n_experts;
        for (size_t i = 0; i < s->n_experts; i++)
            if (!taken[i] && (best == s->n_experts || p[i] > p[best])) best = i;
        taken[best] = true;
    }
    for (size_t i = 0, k = 0; i < s->n_experts; i++) {
        if (!taken[i]) continue;
        chosen[k] = (uint32_t)i;
        of_chosen += shares[k++] = p[i] / sum;
    }
    for (size_t k = 0; s->norm && k < s->of_row; k++) shares[k] /= of_chosen;
}

/* The expected result of one row: products, gates and sums of its experts, rounded as operands
 * are. */
static void experts_due(const sparse *s, const weights *up, const weights *down, const float *x,
                        const uint32_t *chosen, const float *shares, float *out)
{
    float *wide = check_memory(2 * s->ffn, 4), *act = check_memory(s->ffn, 4);
    float *part = check_memory(s->hidden, 4);
    uint16_t *raw = check_memory(2 * s->ffn, 2);
    gpu_type type = up->gpu.type;
    for (size_t k = 0; k < s->of_row; k++) {
        product_due(&up[chosen[k]], x, 1, wide);
        check_narrow(wide, 2 * s->ffn, type, raw);
        check_widen(raw, 2 * s->ffn, type, wide);
        for (size_t i = 0; i < s->ffn; i++)
            act[i] = wide[i] / (1.0f + expf(-wide[i])) * wide[s->ffn + i];
        check_narrow(act, s->ffn, type, raw);
        check_widen(raw, s->ffn, type, act);
        product_due(&down[chosen[k]], act, 1, part);
        for (size_t i = 0; i < s->hidden; i++) out[i] += shares[k] * part[i];
    }
    free(wide), free(act), free(part), free(raw);
}

static gpu_matrix many(check *c, size_t n, size_t k, const sparse *s)
{
    gpu_matrix w = matrix_of(n, k, s->form);
    w.data = check_device(c, NULL, s->n_experts * gpu_matrix_bytes(&w));
    if (w.bits) w.scales = check_device(c, NULL, s->n_experts * gpu_scale_bytes(&w));
    return w;
}

static gpu_matrix nth(const gpu_matrix *w, size_t i)
{
    gpu_matrix one = *w;
    one.data = (uint8_t *)w->data + i * gpu_matrix_bytes(w);
    if (w->bits) one.scales = (uint8_t *)w->scales + i * gpu_scale_bytes(w);
    return one;
}

static void check_experts(check *c, const sparse *s)
{
    size_t entries = s->rows * s->of_row, n = s->rows * s->hidden;
    gpu_matrix up = many(c, 2 * s->ffn, s->hidden, s), down = many(c, s->hidden, s->ffn, s);
    weights *ups = check_memory(s->n_experts, sizeof *ups),
            *downs = check_memory(s->n_experts, sizeof *downs);
    for (size_t i = 0; i < s->n_experts; i++) {
        gpu_matrix one = nth(&up, i), other = nth(&down, i);
        ups[i] = check_weights(c, up.n, up.k, s->form, &one);
        downs[i] = check_weights(c, down.n, down.k, s->form, &other);
    }
    float *logits = check_memory(s->rows * s->n_experts, 4), *x = check_memory(n, 4);
    float *due = check_memory(n, 4), *got = check_memory(n, 4),
          *switches = check_memory(s->rows, 4);
    void *raw = check_memory(n, 2);
    check_fill(c, logits, s->rows * s->n_experts);
    for (size_t i = 0; i < s->n_experts; i++) logits[i] = (float)(i / 3); /* ties */
    check_fill(c, x, n);
    check_fill(c, switches, s->rows);
    check_narrow(x, n, up.type, raw);
    check_widen(raw, n, up.type, x);
    check_fill(c, got, n);
    for (size_t r = 0; r < s->rows; r++) {
        uint32_t chosen[16];
        float shares[16], of_all = 1.0f / (1.0f + expf(-switches[r]));
        for (size_t i = 0; i < s->hidden; i++)
            due[r * s->hidden + i] = s->shared ? got[r * s->hidden + i] * of_all : 0.0f;
        route(logits + r * s->n_experts, s, chosen, shares);
        experts_due(s, ups, downs, x + r * s->hidden, chosen, shares, due + r * s->hidden);
    }
    gpu_experts e = {.logits = check_device(c, logits, s->rows * s->n_experts * 4),
                     .n_rows = (uint32_t)s->rows,
                     .n_experts = (uint32_t)s->n_experts,
                     .of_row = (uint32_t)s->of_row,
                     .norm = s->norm,
                     .gate_up = up,
                     .down = down,
                     .x = check_device(c, raw, n * 2),
                     .switches = s->shared ? check_device(c, switches, s->rows * 4) : NULL,
                     .out = check_device(c, got, n * 4),
                     .picked = check_output(c, entries * s->hidden * 2),
                     .wide = check_output(c, gpu_product_rows(entries) * 2 * s->ffn * 2),
                     .act = check_output(c, entries * s->ffn * 2),
                     .part = check_output(c, gpu_product_rows(entries) * s->hidden * 4),
                     .words =
                         check_output(c, gpu_expert_words(s->rows, s->of_row, s->n_experts) * 4),
                     .scratch = check_output(c, gpu_product_scratch(&up, s->rows))};
    check_ok(c, c->api->experts(c->g, &e));
    check_fetch(c, got, e.out, n * 4);
    char name[96];
    snprintf(name, sizeof name, "%zu of %zu experts, %zu rows, %s%s", s->of_row, s->n_experts,
             s->rows, type_names[up.type],
             s->form.is_float    ? " e4m3"
             : s->form.bits == 8 ? " int8"
             : s->form.bits      ? " int4"
                                 : "");
    check_row(c, name, due, got, n, 3e-5);
    void *device[] = {up.data,
                      up.scales,
                      down.data,
                      down.scales,
                      (void *)(uintptr_t)e.logits,
                      (void *)(uintptr_t)e.x,
                      (void *)(uintptr_t)e.switches,
                      e.out,
                      e.picked,
                      e.wide,
                      e.act,
                      e.part,
                      e.words,
                      e.scratch};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    for (size_t i = 0; i < s->n_experts; i++) {
        check_forget_weights(c, &ups[i], false);
        check_forget_weights(c, &downs[i], false);
    }
    free(ups), free(downs), free(logits), free(x), free(due), free(got), free(switches), free(raw);
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
    static const sparse layers[] = {
        {5, 64, 48, 8, 2, {DTYPE_BF16, 0, 0, false}, true, true},
        {1, 64, 32, 40, 8, {DTYPE_F16, 0, 0, false}, false, false},
        {30, 64, 32, 8, 4, {DTYPE_BF16, 4, 32, false}, true, false},
        {9, 96, 32, 8, 2, {DTYPE_BF16, 8, 32, false}, false, true},
        {9, 96, 40, 8, 2, {DTYPE_BF16, 8, 64, true}, false, true},
        {150, 64, 32, 4, 2, {DTYPE_BF16, 0, 0, false}, true, true}, /* by the library */
        {150, 64, 32, 4, 2, {DTYPE_F16, 4, 32, false}, true, false},
        {150, 64, 32, 4, 2, {DTYPE_F16, 8, 0, true}, true, false},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) check_experts(c, &layers[i]);
}
