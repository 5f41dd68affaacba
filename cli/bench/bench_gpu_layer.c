/* Layers of a decode step as a step has them: ten kernels each, captured in a graph, each of which
 * needs what the one before it writes. Timed with kernels that start before the one in front has
 * ended and with kernels that do not. */
#include "cli/bench/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>

enum { HIDDEN = 4096, FFN = 14336, KV_HEADS = 8, Q_HEADS = 4, DIM = 128, PAGE = 16 };
enum { HEADS = KV_HEADS * Q_HEADS, SLOTS = 1024, ROWS_MOST = 8 };
enum { LAYERS = 8, MATRICES = 4, BUFFERS = 17 }; /* layers of a graph, which have one W */

typedef struct layer_run {
    bench_gpu *b;
    gpu_matrix qkv, o, gate_up, down;
    gpu_heads heads;
    gpu_attention attention;
    size_t rows;
    float *x, *delta, *norm;
    void *normed, *wide, *act, *scratch;
    gpu_graph *graph;
    void *buffers[BUFFERS]; /* on the device, without those of matrices */
    size_t n_buffers;
} layer_run;

static void *take(layer_run *r, size_t bytes)
{
    return r->buffers[r->n_buffers++] = bench_gpu_alloc(r->b, bytes, true);
}

static void *send(layer_run *r, const void *host, size_t bytes)
{
    return r->buffers[r->n_buffers++] = bench_gpu_send(r->b, host, bytes);
}

static gpu_matrix make_matrix(bench_gpu *b, const bench_gpu_kernels_options *o, size_t n, size_t k)
{
    gpu_matrix w = bench_gpu_shape(b, o, n, k);
    w.data = bench_gpu_alloc(b, gpu_matrix_bytes(&w), true);
    if (o->bits) w.scales = bench_gpu_alloc(b, gpu_scale_bytes(&w), true);
    return w;
}

/* A sequence for each row, whose table is one part. */
static void place_sequences(layer_run *r, gpu_kv_format format)
{
    bench_gpu *b = r->b;
    uint32_t slots = SLOTS / b->divide, row = (slots + PAGE - 1) / PAGE, n = (uint32_t)r->rows;
    size_t tile = gpu_tile_bytes(format, PAGE, DIM), page = tile * KV_HEADS;
    size_t padded = gpu_product_rows(r->rows);
    uint32_t pages[ROWS_MOST * SLOTS / PAGE], lengths[ROWS_MOST], row_seqs[ROWS_MOST];
    gpu_seq seqs[ROWS_MOST];
    gpu_tile tiles[ROWS_MOST];
    for (uint32_t i = 0; i < n * row; i++) pages[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = slots;
        row_seqs[i] = i;
        seqs[i] = (gpu_seq){i, i, 1, i, GPU_GRAIN_HEAD};
        tiles[i] = (gpu_tile){i, 0, 0, SLOTS, 1, i};
    }
    r->heads = (gpu_heads){
        .pages = {.data = take(r, n * row * page),
                  .page_bytes = page,
                  .tile_bytes = tile,
                  .page_tokens = PAGE,
                  .head_dim = DIM,
                  .n_tiles = KV_HEADS,
                  .run_heads = 1,
                  .format = format},
        .tables = {.pages = send(r, pages, n * row * sizeof *pages), .row = row, .head_groups = 1},
        .layer = {.heads_per_group = KV_HEADS},
        .seqs = send(r, seqs, n * sizeof *seqs),
        .lengths = send(r, lengths, n * sizeof *lengths),
        .row_seqs = send(r, row_seqs, n * sizeof *row_seqs),
        .n_rows = n,
        .kv_heads = KV_HEADS,
        .q_heads = Q_HEADS,
        .qkv = take(r, padded * (Q_HEADS + 2) * KV_HEADS * DIM * sizeof(float)),
        .angles = take(r, r->rows * DIM * sizeof(float)),
        .q = take(r, r->rows * HEADS * DIM * 2)};
    r->attention = (gpu_attention){.pages = r->heads.pages,
                                   .tables = r->heads.tables,
                                   .layer = r->heads.layer,
                                   .seqs = r->heads.seqs,
                                   .lengths = r->heads.lengths,
                                   .decode = send(r, tiles, n * sizeof *tiles),
                                   .n_decode = n,
                                   .prefill_rows = GPU_PREFILL_ROWS,
                                   .kv_heads = KV_HEADS,
                                   .q_heads = Q_HEADS,
                                   .scale = 0.088388f,
                                   .q = r->heads.q,
                                   .out = take(r, r->rows * HEADS * DIM * sizeof(float)),
                                   .out_type = r->o.type};
}

static void multiply(const layer_run *r, const gpu_matrix *w, const void *x, void *y, gpu_type type)
{
    bench_gpu_note(r->b, r->b->api->product(r->b->g, w, x, r->rows, y, type, r->scratch));
}

static void launch_layer(const layer_run *r)
{
    bench_gpu *b = r->b;
    const gpu_api *api = b->api;
    size_t d = r->o.n, ffn = r->down.k;
    gpu_type type = r->o.type;
    bench_gpu_note(b, api->norm(b->g, r->x, r->delta, r->norm, 1e-5f, r->rows, d, r->normed, type));
    multiply(r, &r->qkv, r->normed, (void *)(uintptr_t)r->heads.qkv, GPU_F32);
    bench_gpu_note(b, api->heads(b->g, &r->heads));
    bench_gpu_note(b, api->attention(b->g, &r->attention));
    multiply(r, &r->o, r->attention.out, r->delta, GPU_F32);
    bench_gpu_note(b, api->norm(b->g, r->x, r->delta, r->norm, 1e-5f, r->rows, d, r->normed, type));
    multiply(r, &r->gate_up, r->normed, r->wide, type);
    bench_gpu_note(b, api->gate(b->g, r->wide, r->rows, ffn, false, r->act, type));
    multiply(r, &r->down, r->act, r->delta, GPU_F32);
}

static void replay_once(void *ctx, size_t i)
{
    (void)i;
    const layer_run *r = ctx;
    bench_gpu_note(r->b, r->b->api->replay(r->b->g, r->graph));
}

/* Microseconds of a layer. */
static double time_layers(layer_run *r, bool early)
{
    bench_gpu *b = r->b;
    b->api->set_early(b->g, early);
    launch_layer(r); /* the library is asked for shapes outside of a capture */
    if (bench_gpu_is_well(b)) bench_gpu_note(b, b->api->capture(b->g));
    if (!bench_gpu_is_well(b)) return 0.0;
    for (int i = 0; i < LAYERS; i++) launch_layer(r);
    bench_gpu_note(b, b->api->captured(b->g, &r->graph));
    double us = bench_gpu_time(b, replay_once, r, 10) / LAYERS;
    (void)b->api->wait(b->g);
    b->api->forget(r->graph);
    b->api->set_early(b->g, true);
    return us;
}

static void time_rows(bench_gpu *b, const bench_gpu_kernels_options *o, size_t rows)
{
    layer_run r = {.b = b, .rows = rows};
    gpu_matrix *const all[MATRICES] = {&r.qkv, &r.o, &r.gate_up, &r.down};
    r.qkv = make_matrix(b, o, (Q_HEADS + 2) * KV_HEADS * DIM, HIDDEN);
    r.o = make_matrix(b, o, HIDDEN, HEADS * DIM);
    r.gate_up = make_matrix(b, o, 2 * FFN, HIDDEN);
    r.down = make_matrix(b, o, HIDDEN, FFN);
    size_t padded = gpu_product_rows(rows), bytes = 0;
    r.x = take(&r, rows * r.o.n * sizeof(float));
    r.delta = take(&r, padded * r.o.n * sizeof(float));
    r.norm = take(&r, r.o.n * sizeof(float));
    r.normed = take(&r, rows * r.o.n * sizeof(float));
    r.wide = take(&r, padded * r.gate_up.n * sizeof(float));
    r.act = take(&r, rows * r.down.k * sizeof(float));
    r.scratch = take(&r, gpu_product_scratch(&r.gate_up, rows));
    place_sequences(&r, o->kv);
    for (int i = 0; i < MATRICES; i++) bytes += gpu_matrix_bytes(all[i]) + gpu_scale_bytes(all[i]);
    double alone = time_layers(&r, false), early = time_layers(&r, true);
    if (bench_gpu_is_well(b))
        printf("decode layer in a graph, %zu rows: %.1f us; of kernels that start early: %.1f us, "
               "%.1f %% of copy\n",
               rows, alone, early, 100.0 * (double)bytes / early * 1e-3 / b->copy_gb_s);
    bench_gpu_release(b, r.buffers, r.n_buffers);
    for (int i = 0; i < MATRICES; i++) {
        void *const device[] = {all[i]->data, all[i]->scales};
        bench_gpu_release(b, device, 2);
    }
}

void bench_gpu_layer(bench_gpu *b, const bench_gpu_kernels_options *o)
{
    if (o->type == GPU_F32) return; /* no kernel of ours multiplies its few rows */
    time_rows(b, o, 1);
    if (o->most_rows >= ROWS_MOST) time_rows(b, o, ROWS_MOST);
}
