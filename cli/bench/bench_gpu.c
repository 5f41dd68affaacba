#include "cli/bench/bench_gpu.h"

#include <math.h>
#include <stdlib.h>

enum {
    WARM = 2,
    COLD_BYTES = 512 << 20,
    NOISE_WORDS = 1 << 20,
    COPIES = 10,      /* calls timed for each limit */
    SIDE_OF_SM = 64,  /* the large product's side for each multiprocessor */
    SIDE_STEP = 1024, /* the side is a multiple of it, unless it is smaller */
    EMULATED_SMS = 8, /* a device with fewer multiprocessors is emulated */
    EMULATED_DIVIDE = 64,
};

void bench_gpu_note(bench_gpu *b, gpu_status s)
{
    if (bench_gpu_is_well(b)) b->state = s;
}

status bench_gpu_status(const bench_gpu *b, error *err)
{
    if (bench_gpu_is_well(b)) return STATUS_IS_OK;
    status_code code = b->state == GPU_NO_MEMORY ? STATUS_NO_MEMORY : STATUS_INTERNAL;
    return error_set(err, code, "the GPU: %s", b->api->why(b->g));
}

status bench_gpu_open(const gpu_api *api, uint32_t ordinal, bench_gpu *out, error *err)
{
    char why[256] = "";
    *out = (bench_gpu){.api = api, .random = rng_seed(1)};
    if (api->open(ordinal, &out->g, &out->facts, why, sizeof why) != GPU_OK) {
        out->g = NULL;
        return error_set(err, STATUS_UNAVAILABLE, "--device cuda:%u: %s", ordinal, why);
    }
    bool emulated = out->facts.n_sms < EMULATED_SMS;
    size_t side = (size_t)out->facts.n_sms * SIDE_OF_SM;
    out->divide = emulated ? EMULATED_DIVIDE : 1;
    out->cold = COLD_BYTES / out->divide / out->divide; /* matrices shrink in both dimensions */
    out->side = side < SIDE_STEP ? side : side / SIDE_STEP * SIDE_STEP;
    return STATUS_IS_OK;
}

void bench_gpu_close(bench_gpu *b)
{
    if (!b->g) return;
    (void)b->api->wait(b->g);
    bench_gpu_release(b, b->buffers, sizeof b->buffers / sizeof *b->buffers);
    b->api->close(b->g);
    *b = (bench_gpu){0};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void fill_with_noise(bench_gpu *b, uint8_t *device, size_t bytes)
{
    size_t words = bytes / sizeof(uint16_t) + 1;
    if (words > NOISE_WORDS) words = NOISE_WORDS;
    uint16_t *host = malloc(words * sizeof *host);
    if (!host) {
        bench_gpu_note(b, GPU_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < words; i++)
        host[i] = bf16_from_f32(0.05f * rng_normal(&b->random)) & 0xffbf;
    size_t step = words * sizeof *host;
    for (size_t at = 0; at < bytes && bench_gpu_is_well(b); at += step)
        bench_gpu_note(
            b, b->api->copy_in(b->g, device + at, host, bytes - at < step ? bytes - at : step));
    bench_gpu_note(b, b->api->wait(b->g));
    free(host);
}

void *bench_gpu_alloc(bench_gpu *b, size_t bytes, bool noise)
{
    void *device = NULL;
    if (bench_gpu_is_well(b)) bench_gpu_note(b, b->api->alloc(b->g, bytes, &device));
    if (!bench_gpu_is_well(b)) return NULL;
    if (noise) fill_with_noise(b, device, bytes);
    return device;
}

void *bench_gpu_send(bench_gpu *b, const void *host, size_t bytes)
{
    void *device = bench_gpu_alloc(b, bytes, false);
    if (!device) return NULL;
    bench_gpu_note(b, b->api->copy_in(b->g, device, host, bytes));
    bench_gpu_note(b, b->api->wait(b->g));
    return device;
}

void bench_gpu_release(bench_gpu *b, void *const *device, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (device[i]) b->api->release(b->g, device[i]);
}

/* ---- time ------------------------------------------------------------------------------------ */

double bench_gpu_time(bench_gpu *b, bench_gpu_call *fn, void *ctx, size_t n)
{
    double us = NAN;
    size_t warm = b->divide > 1 ? 0 : WARM;
    if (b->divide > 1) n = 1;
    for (size_t i = 0; i < warm && bench_gpu_is_well(b); i++) fn(ctx, i);
    if (bench_gpu_is_well(b)) bench_gpu_note(b, b->api->wait(b->g));
    if (bench_gpu_is_well(b)) bench_gpu_note(b, b->api->mark(b->g));
    for (size_t i = 0; i < n && bench_gpu_is_well(b); i++) fn(ctx, warm + i);
    if (bench_gpu_is_well(b)) bench_gpu_note(b, b->api->elapsed(b->g, &us));
    return bench_gpu_is_well(b) ? us / (double)n : NAN;
}

/* ---- limits ---------------------------------------------------------------------------------- */

enum { COPY_FROM, COPY_TO, PRODUCT_W, PRODUCT_X, PRODUCT_Y };

typedef struct large {
    bench_gpu *b;
    gpu_matrix w;
} large;

static void copy_once(void *ctx, size_t i)
{
    (void)i;
    bench_gpu *b = ((const large *)ctx)->b;
    bench_gpu_note(b, b->api->copy(b->g, b->buffers[COPY_TO], b->buffers[COPY_FROM], b->cold));
}

static void multiply_once(void *ctx, size_t i)
{
    (void)i;
    const large *l = ctx;
    bench_gpu *b = l->b;
    bench_gpu_note(b, b->api->product(b->g, &l->w, b->buffers[PRODUCT_X], b->side,
                                      b->buffers[PRODUCT_Y], l->w.type, NULL));
}

status bench_gpu_limits(bench_gpu *b, gpu_type type, error *err)
{
    size_t matrix = b->side * b->side * gpu_type_bytes(GPU_F32);
    const size_t bytes[] = {b->cold, b->cold, matrix, matrix, matrix};
    for (int i = 0; i <= PRODUCT_Y; i++)
        if (!b->buffers[i]) b->buffers[i] = bench_gpu_alloc(b, bytes[i], true);
    large l = {b, {.data = b->buffers[PRODUCT_W], .n = b->side, .k = b->side, .type = type}};
    double us = bench_gpu_time(b, copy_once, &l, COPIES), side = (double)b->side;
    b->copy_gb_s = 2.0 * (double)b->cold / us * 1e-3;
    us = bench_gpu_time(b, multiply_once, &l, COPIES);
    b->product_tflop_s = 2.0 * side * side * side / us * 1e-6;
    return bench_gpu_status(b, err);
}
