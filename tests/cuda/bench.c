/* Speeds of the GPU's kernels: first what the device can do (its copy bandwidth, a large product),
 * then each kernel's share of it, on the shapes of an 8B model and on memory larger than caches. */
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 2, COLD_BYTES = 512 << 20 };

typedef struct bench {
    check *c;
    double copy_gb_s, product_tflop_s;
    size_t cold; /* bytes that no cache holds */
    double scale;
} bench;

/* What a line times: call i of fn. */
typedef void call(void *ctx, size_t i);

static double time_us(bench *b, call *fn, void *ctx, size_t n)
{
    double us;
    if (b->c->small) n = 1;
    for (size_t i = 0; i < WARM; i++) fn(ctx, i);
    check_ok(b->c, b->c->api->wait(b->c->g));
    check_ok(b->c, b->c->api->mark(b->c->g));
    for (size_t i = 0; i < n; i++) fn(ctx, i + WARM);
    check_ok(b->c, b->c->api->elapsed(b->c->g, &us));
    return us / (double)n;
}

/* bytes read and written, and operations (a multiply-add is two), of one call. */
static void line(const bench *b, const char *name, double us, double bytes, double ops)
{
    double gb_s = bytes / us * 1e-3, tflop_s = ops / us * 1e-6;
    printf("%-44s %10.1f us %8.0f GB/s %5.1f %% %8.1f TFLOP/s %5.1f %%\n", name, us, gb_s,
           100.0 * gb_s / b->copy_gb_s, tflop_s, 100.0 * tflop_s / b->product_tflop_s);
    fflush(stdout);
}

/* bf16 of normal numbers, the same few million again and again. */
static void *noise(bench *b, size_t bytes)
{
    enum { SOME = 1 << 20 };
    check *c = b->c;
    uint8_t *device = check_device(c, NULL, bytes);
    uint16_t *host = check_memory(SOME, sizeof *host);
    for (size_t i = 0; i < SOME; i++) host[i] = bf16_from_f32(0.05f * rng_normal(&c->random));
    for (size_t at = 0; at < bytes; at += SOME * sizeof *host) {
        size_t n = bytes - at < SOME * sizeof *host ? bytes - at : SOME * sizeof *host;
        check_ok(c, c->api->copy_in(c->g, device + at, host, n));
    }
    check_ok(c, c->api->wait(c->g));
    free(host);
    return device;
}

/* ---- what the device can do --------------------------------------------------------------------
 */

typedef struct copying {
    bench *b;
    void *from, *to;
    size_t bytes;
} copying;

static void copy_once(void *ctx, size_t i)
{
    (void)i;
    const copying *k = ctx;
    check_ok(k->b->c, k->b->c->api->copy(k->b->c->g, k->to, k->from, k->bytes));
}

static void bench_copy(bench *b)
{
    copying k = {b, noise(b, b->cold), noise(b, b->cold), b->cold};
    double us = time_us(b, copy_once, &k, 10);
    b->copy_gb_s = 2.0 * (double)b->cold / us * 1e-3;
    b->product_tflop_s = INFINITY;
    line(b, "copy on the device", us, 2.0 * (double)b->cold, 0.0);
    b->c->api->release(b->c->g, k.from);
    b->c->api->release(b->c->g, k.to);
}

/* ---- products -----------------------------------------------------------------------------------
 */

typedef struct multiplying {
    bench *b;
    gpu_matrix w; /* of the first copy */
    size_t copies, m;
    void *x, *y, *scratch;
} multiplying;

static void multiply_once(void *ctx, size_t i)
{
    const multiplying *k = ctx;
    gpu_matrix w = k->w;
    w.data = (uint8_t *)w.data + i % k->copies * gpu_matrix_bytes(&k->w);
    if (w.bits) w.scales = (uint8_t *)w.scales + i % k->copies * gpu_scale_bytes(&k->w);
    check *c = k->b->c;
    check_ok(c, c->api->product(c->g, &w, k->x, k->m, k->y, GPU_BF16, k->scratch));
}

static double bench_product(bench *b, const char *what, size_t n, size_t k, size_t m, unsigned bits)
{
    check *c = b->c;
    multiplying p = {.b = b, .m = m};
    p.w = (gpu_matrix){
        .n = n, .k = k, .type = GPU_BF16, .bits = (uint8_t)bits, .group = bits ? 32 : 0};
    size_t bytes = gpu_matrix_bytes(&p.w) + gpu_scale_bytes(&p.w);
    p.copies = m > 256 ? 1 : b->cold / bytes + 1;
    p.w.data = noise(b, p.copies * gpu_matrix_bytes(&p.w));
    if (bits) p.w.scales = noise(b, p.copies * gpu_scale_bytes(&p.w));
    p.x = noise(b, m * k * 2);
    p.y = check_device(c, NULL, m * n * 2);
    p.scratch = check_device(c, NULL, gpu_product_scratch(&p.w));
    double us = time_us(b, multiply_once, &p, m > 256 ? 10 : 50);
    double ops = 2.0 * (double)n * (double)k * (double)m;
    if (isinf(b->product_tflop_s)) b->product_tflop_s = ops / us * 1e-6;
    char name[96];
    snprintf(name, sizeof name, "%s %zu x %zu by %zu rows%s", what, n, k, m,
             bits == 8   ? ", int8"
             : bits == 4 ? ", int4"
                         : "");
    line(b, name, us, (double)bytes + (double)(m * (n + k)) * 2.0, ops);
    void *device[] = {p.w.data, p.w.scales, p.x, p.y, p.scratch};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    return us;
}

static void bench_products(bench *b)
{
    static const struct {
        const char *what;
        size_t n, k;
    } shapes[] = {
        {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
    static const size_t rows[] = {1, 2, 4, 8, 32, 128, 16384};
    double us[sizeof rows / sizeof *rows] = {0.0};
    size_t div = b->c->small ? 32 : 1;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            size_t m = b->c->small && rows[r] > 128 ? 130 : rows[r];
            us[r] += bench_product(b, shapes[i].what, shapes[i].n / div, shapes[i].k / div, m, 0);
        }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        printf("  the products of 32 such layers, %zu rows: %.2f ms\n", rows[r],
               us[r] * 32.0 * 1e-3);
    for (unsigned bits = 4; bits <= 8; bits += 4)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            bench_product(b, "gate_up", 28672 / div, 4096 / div,
                          b->c->small && rows[r] > 128 ? 130 : rows[r], bits);
}

/* ---- attention ----------------------------------------------------------------------------------
 */

typedef struct attending {
    bench *b;
    gpu_attention a;
    gpu_measure m;
} attending;

static void attend_once(void *ctx, size_t i)
{
    (void)i;
    const attending *k = ctx;
    check_ok(k->b->c, k->b->c->api->attention(k->b->c->g, &k->a));
}

static void measure_once(void *ctx, size_t i)
{
    (void)i;
    const attending *k = ctx;
    check_ok(k->b->c, k->b->c->api->measure(k->b->c->g, &k->m));
}

enum { KV_HEADS = 8, Q_HEADS = 4, DIM = 128, PAGE = 16, SEQS_MOST = 64 };

/* Sequences of `slots` tokens each, the last `rows` of which attend; pages in no order. */
static void set_up(bench *b, gpu_kv_format format, uint32_t n, uint32_t slots, uint32_t rows,
                   attending *k)
{
    check *c = b->c;
    uint32_t row = (slots + PAGE - 1) / PAGE, n_pages = n * row, lengths[SEQS_MOST];
    gpu_seq seqs[SEQS_MOST];
    uint32_t *pages = check_memory(n_pages, sizeof *pages);
    for (uint32_t i = 0; i < n_pages; i++) {
        uint32_t j = rng_u32(&c->random) % (i + 1);
        pages[i] = pages[j];
        pages[j] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = slots;
        seqs[i] = (gpu_seq){i, i * rows, rows, i};
    }
    uint32_t packed = rows * Q_HEADS, n_tiles = 0;
    uint32_t part = gpu_part_slots((uint64_t)n * slots, slots, KV_HEADS, c->n_sms);
    uint32_t parts = (slots + part - 1) / part,
             blocks = (packed + GPU_PREFILL_ROWS - 1) / GPU_PREFILL_ROWS;
    bool decode = packed <= GPU_DECODE_ROWS;
    gpu_tile *tiles = check_memory((size_t)n * (decode ? parts : blocks), sizeof *tiles);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = n_tiles;
        for (uint32_t p = 0; decode && p < parts; p++)
            tiles[n_tiles++] = (gpu_tile){i, p * part, parts, first};
        for (uint32_t p = 0; !decode && p < blocks; p++)
            tiles[n_tiles++] = (gpu_tile){.seq = i, .first = p * GPU_PREFILL_ROWS};
    }
    size_t tile = gpu_tile_bytes(format, PAGE, DIM), q = (size_t)n * rows * KV_HEADS * Q_HEADS;
    void *d_tiles = check_device(c, tiles, n_tiles * sizeof *tiles);
    *k = (attending){.b = b};
    k->a = (gpu_attention){
        .pages = {.data = noise(b, n_pages * tile * KV_HEADS),
                  .page_bytes = tile * KV_HEADS,
                  .tile_bytes = tile,
                  .page_tokens = PAGE,
                  .head_dim = DIM,
                  .n_tiles = KV_HEADS,
                  .format = format},
        .tables = {check_device(c, pages, n_pages * sizeof *pages), 1, row},
        .layer = {0, 0, KV_HEADS, 0},
        .seqs = check_device(c, seqs, n * sizeof *seqs),
        .lengths = check_device(c, lengths, n * sizeof *lengths),
        .decode = decode ? d_tiles : NULL,
        .prefill = decode ? NULL : d_tiles,
        .n_decode = decode ? n_tiles : 0,
        .n_prefill = decode ? 0 : n_tiles,
        .part_slots = part,
        .kv_heads = KV_HEADS,
        .q_heads = Q_HEADS,
        .scale = 0.088388f,
        .q = noise(b, q * DIM * 2),
        .out = check_device(c, NULL, q * DIM * 2),
        .out_type = GPU_BF16,
        .lse = check_device(c, NULL, q * 4),
        .partial = check_device(c, NULL, gpu_partial_floats(n_tiles, KV_HEADS, DIM) * 4)};
    k->m = (gpu_measure){.pages = k->a.pages,
                         .tables = k->a.tables,
                         .layer = k->a.layer,
                         .seq = seqs[0],
                         .lengths = k->a.lengths,
                         .longest = slots,
                         .rows = rows < 32 ? rows : 32,
                         .kv_heads = KV_HEADS,
                         .q_heads = Q_HEADS,
                         .kind = GPU_MEASURE_MASS,
                         .scale = k->a.scale,
                         .q = k->a.q,
                         .lse = k->a.lse,
                         .slots = check_device(c, NULL, (size_t)KV_HEADS * slots * 4),
                         .slot_stride = slots,
                         .by_page = check_device(c, NULL, (size_t)KV_HEADS * row * 4),
                         .page_stride = row};
    free(pages), free(tiles);
}

static void tear_down(bench *b, attending *k)
{
    const void *device[] = {k->a.pages.data, k->a.tables.pages, k->a.seqs,  k->a.lengths,
                            k->a.decode,     k->a.prefill,      k->a.q,     k->a.out,
                            k->a.lse,        k->a.partial,      k->m.slots, k->m.by_page};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        b->c->api->release(b->c->g, (void *)(uintptr_t)device[i]);
}

static void bench_attention(bench *b)
{
    static const char *const formats[GPU_KV_FORMATS] = {"bf16", "f16", "e4m3", "int8"};
    static const struct {
        uint32_t n, slots, rows;
    } shapes[] = {{64, 4096, 1}, {8, 32768, 1}, {1, 4096, 1}, {1, 32768, 1}, {8, 2048, 2048}};
    uint32_t div = b->c->small ? 32 : 1;
    for (gpu_kv_format f = GPU_KV_BF16; f < GPU_KV_FORMATS; f++)
        for (size_t i = 0; f != GPU_KV_F16 && i < sizeof shapes / sizeof *shapes; i++) {
            attending k;
            bool decode = shapes[i].rows == 1;
            uint32_t n = b->c->small && shapes[i].n > 2 ? 2 : shapes[i].n;
            uint32_t slots = shapes[i].slots / div, rows = decode ? 1 : slots;
            set_up(b, f, n, slots, rows, &k);
            double us = time_us(b, attend_once, &k, 20), all = (double)n * slots;
            double pairs = decode ? all : all * (slots + 1) / 2.0;
            char name[96];
            snprintf(name, sizeof name, "%s attention %u x %u, %s", decode ? "decode" : "prefill",
                     n, slots, formats[f]);
            line(b, name, us, all * KV_HEADS * (double)gpu_tile_bytes(f, PAGE, DIM) / PAGE,
                 4.0 * pairs * KV_HEADS * Q_HEADS * DIM);
            if (!decode) {
                us = time_us(b, measure_once, &k, 20);
                snprintf(name, sizeof name, "mass by page of one of them, %s", formats[f]);
                line(b, name, us, 0.0, 0.0);
            }
            tear_down(b, &k);
        }
}

/* ---- rows ---------------------------------------------------------------------------------------
 */

typedef struct rowing {
    bench *b;
    size_t m;
    void *x, *delta, *weight, *out;
} rowing;

static void norm_once(void *ctx, size_t i)
{
    (void)i;
    const rowing *k = ctx;
    check *c = k->b->c;
    check_ok(c, c->api->norm(c->g, k->x, k->delta, k->weight, 1e-5f, k->m, 4096, k->out, GPU_BF16));
}
static void gate_once(void *ctx, size_t i)
{
    (void)i;
    const rowing *k = ctx;
    check *c = k->b->c;
    check_ok(c, c->api->gate(c->g, k->x, k->m, 14336, false, k->out, GPU_BF16));
}
static void argmax_once(void *ctx, size_t i)
{
    (void)i;
    const rowing *k = ctx;
    check_ok(k->b->c, k->b->c->api->argmax(k->b->c->g, k->x, k->m, 128256, k->out));
}

static void bench_rows(bench *b)
{
    size_t m = b->c->small ? 4 : 8192, n = m * 28672 * 2;
    rowing k = {b, m, noise(b, n), noise(b, m * 4096 * 4), noise(b, 4096 * 4), noise(b, n)};
    line(b, "norm of sums of 4096", time_us(b, norm_once, &k, 20), (double)m * 4096 * 14.0, 0.0);
    line(b, "swiglu of 14336", time_us(b, gate_once, &k, 20), (double)m * 14336 * 6.0, 0.0);
    k.m = b->c->small ? 1 : 64;
    line(b, "largest of 128256 logits", time_us(b, argmax_once, &k, 20), (double)k.m * 128256 * 4.0,
         0.0);
    void *device[] = {k.x, k.delta, k.weight, k.out};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        b->c->api->release(b->c->g, device[i]);
}

void check_speed(check *c)
{
    bench b = {.c = c, .cold = c->small ? 1 << 20 : COLD_BYTES};
    printf("%-44s %13s %13s of copy %15s of product\n", "", "", "", "");
    bench_copy(&b);
    size_t n = c->small ? 64 : 8192;
    bench_product(&b, "a large product,", n, n, n, 0);
    bench_attention(&b);
    bench_products(&b);
    bench_rows(&b);
}
