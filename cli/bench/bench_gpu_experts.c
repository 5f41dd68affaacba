/* Sparse layers on the GPU, and beside each the library's products with each expert's rows alone,
 * as if the host knew how many rows an expert has. With e4m3 weights both are timed with x in 16
 * bits and, where the device multiplies e4m3 by e4m3, in e4m3. */
#include "cli/bench/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct layer_shape {
    const char *name;
    size_t hidden, ffn;
    uint32_t n_experts, of_row;
} layer_shape;

static const layer_shape layers[] = {{"experts of Mixtral 8x7B", 4096, 14336, 8, 2},
                                     {"experts of Qwen3 30B", 2048, 768, 128, 8}};
static const uint32_t rows_list[] = {16, 128, 512, 2048, 8192};
enum { ROWS = sizeof rows_list / sizeof *rows_list };

typedef struct sparse_run {
    bench_gpu *b;
    gpu_experts e;
    void *scratch;
} sparse_run;

static void run_layer(void *ctx, size_t i)
{
    (void)i;
    const sparse_run *r = ctx;
    bench_gpu_note(r->b, r->b->api->experts(r->b->g, &r->e));
}

/* The products of all experts, each with the same number of rows, without routing, gate and sum. */
static void multiply_each(void *ctx, size_t i)
{
    (void)i;
    const sparse_run *r = ctx;
    const gpu_api *api = r->b->api;
    const gpu_experts *e = &r->e;
    size_t rows = (size_t)e->n_rows * e->of_row / e->n_experts;
    for (uint32_t n = 0; n < e->n_experts && bench_gpu_is_well(r->b); n++) {
        gpu_matrix all[] = {e->gate_up, e->down};
        for (int j = 0; j < 2; j++) {
            gpu_matrix *w = &all[j];
            size_t bytes = gpu_matrix_bytes(w), scales = gpu_scale_bytes(w);
            w->data = (uint8_t *)w->data + n * bytes;
            if (w->bits) w->scales = (uint8_t *)w->scales + n * scales;
        }
        bench_gpu_note(
            r->b, api->product(r->b->g, &all[0], e->act, rows, e->wide, all[0].type, r->scratch));
        bench_gpu_note(r->b,
                       api->product(r->b->g, &all[1], e->act, rows, e->part, GPU_F32, r->scratch));
    }
}

static gpu_matrix make_matrices(bench_gpu *b, const bench_gpu_kernels_options *o, size_t n,
                                size_t k, uint32_t count)
{
    gpu_matrix w = bench_gpu_shape(b, o, n, k);
    w.data = bench_gpu_alloc(b, count * gpu_matrix_bytes(&w), true);
    if (o->bits) w.scales = bench_gpu_alloc(b, count * gpu_scale_bytes(&w), true);
    return w;
}

/* Random logits, so that experts have about the same number of rows. */
static const float *send_logits(bench_gpu *b, size_t n)
{
    float *logits = malloc(n * sizeof *logits);
    if (!logits) {
        bench_gpu_note(b, GPU_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) logits[i] = rng_normal(&b->random);
    const float *out = bench_gpu_send(b, logits, n * sizeof *logits);
    free(logits);
    return out;
}

static void put_line(const bench_gpu *b, const char *name, double us, double bytes, double ops)
{
    if (!bench_gpu_is_well(b)) return;
    printf("%-44s %10.1f us %8.0f GB/s %8.1f TFLOP/s %5.1f %%\n", name, us, bytes / us * 1e-3,
           ops / us * 1e-6, 100.0 * ops / us * 1e-6 / b->product_tflop_s);
    fflush(stdout);
}

static void time_rows(sparse_run *r, const layer_shape *s, uint32_t rows)
{
    bench_gpu *b = r->b;
    gpu_experts *e = &r->e;
    double entries = (double)rows * s->of_row;
    double bytes = (double)s->n_experts *
                   (double)(gpu_matrix_bytes(&e->gate_up) + gpu_scale_bytes(&e->gate_up) +
                            gpu_matrix_bytes(&e->down) + gpu_scale_bytes(&e->down));
    double ops = 2.0 * entries * (double)(e->gate_up.n * e->gate_up.k + e->down.n * e->down.k);
    char name[96];
    e->n_rows = rows;
    snprintf(name, sizeof name, "%s, %u rows", s->name, rows);
    put_line(b, name, bench_gpu_time(b, run_layer, r, 10), bytes, ops);
    b->api->set_narrow(b->g, true);
    if (gpu_narrows_experts(b->facts.compute, &e->gate_up) &&
        rows > gpu_narrow_experts_from(s->n_experts, s->of_row))
        put_line(b, "  fp8 x fp8", bench_gpu_time(b, run_layer, r, 10), bytes, ops);
    if (entries >= s->n_experts)
        put_line(b, "  products of each expert alone", bench_gpu_time(b, multiply_each, r, 10),
                 bytes, ops);
    b->api->set_narrow(b->g, false);
}

/* Times every number of rows up to `most` with the same memory. */
static void bench_layer(bench_gpu *b, const bench_gpu_kernels_options *o, const layer_shape *s,
                        uint32_t most)
{
    size_t entries = (size_t)most * s->of_row, element = gpu_type_bytes(o->type);
    sparse_run r = {.b = b};
    gpu_experts *e = &r.e;
    e->gate_up = make_matrices(b, o, 2 * s->ffn, s->hidden, s->n_experts);
    e->down = make_matrices(b, o, s->hidden, s->ffn, s->n_experts);
    size_t hidden = e->gate_up.k, wide = e->gate_up.n, side = hidden > wide ? hidden : wide;
    size_t scratch = gpu_product_scratch(&e->gate_up, entries),
           other = gpu_product_scratch(&e->down, entries), padded = gpu_product_rows(entries);
    e->logits = send_logits(b, (size_t)most * s->n_experts);
    e->n_experts = s->n_experts;
    e->of_row = s->of_row;
    e->norm = true;
    e->x = bench_gpu_alloc(b, most * hidden * element, true);
    e->out = bench_gpu_alloc(b, most * hidden * sizeof(float), false);
    e->wide = bench_gpu_alloc(b, padded * wide * element, false);
    e->act = bench_gpu_alloc(b, padded * side * element, true);
    e->part = bench_gpu_alloc(b, padded * hidden * sizeof(float), false);
    e->words = bench_gpu_alloc(b, gpu_expert_words(most, s->of_row, s->n_experts) * 4, false);
    r.scratch = bench_gpu_alloc(b, scratch > other ? scratch : other, false);
    for (size_t i = 0; i < ROWS && rows_list[i] <= most; i++) time_rows(&r, s, rows_list[i]);
    void *const device[] = {e->gate_up.data,
                            e->gate_up.scales,
                            e->down.data,
                            e->down.scales,
                            (void *)(uintptr_t)e->logits,
                            (void *)(uintptr_t)e->x,
                            e->out,
                            e->wide,
                            e->act,
                            e->part,
                            e->words,
                            r.scratch};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
}

void bench_gpu_experts(bench_gpu *b, const bench_gpu_kernels_options *o)
{
    size_t most = b->divide > 1 ? rows_list[0] : rows_list[ROWS - 1];
    if (o->most_rows < rows_list[0]) return;
    if (o->most_rows < most) most = o->most_rows;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        bench_layer(b, o, &layers[i], (uint32_t)most);
}
