/* Kernels that start early, one behind the other as in a decode step: norms, products, heads,
 * attention in parts, gate. They must leave the same bits as kernels that are waited for one by
 * one, launched or out of a graph. */
#include "tests/cuda/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, KV_HEADS = 2, Q_HEADS = 2, PAGE = 16, ROWS_MOST = 8, BUFFERS = 15 };
enum { HEADS = KV_HEADS * Q_HEADS, QKV = (HEADS + 2 * KV_HEADS) * DIM };

/* A layer, and a sequence for each row, whose table is cut into two parts. */
typedef struct chain {
    check *c;
    gpu_type type;
    size_t rows, hidden, ffn;
    weights qkv, o, up, down;
    gpu_heads heads;
    gpu_attention attention;
    float *x, *start, *delta, *norm, *freq;
    void *normed, *attn, *wide, *act, *scratch;
    uint32_t *positions;
    void *buffers[BUFFERS]; /* all of the above on the device */
    size_t n_buffers;
    bool waits;
} chain;

static void *keep(chain *k, void *device) { return k->buffers[k->n_buffers++] = device; }

static void *noise(chain *k, size_t n, gpu_type type)
{
    float *x = check_memory(n, 4);
    void *raw = check_memory(n, 4);
    check_fill(k->c, x, n);
    check_narrow(x, n, type, raw);
    void *device = keep(k, check_device(k->c, raw, n * gpu_type_bytes(type)));
    free(x), free(raw);
    return device;
}

static void place_pages(chain *k, size_t slots)
{
    check *c = k->c;
    gpu_kv_format format = k->type == GPU_BF16 ? GPU_KV_BF16 : GPU_KV_F16;
    size_t tile = gpu_tile_bytes(format, PAGE, DIM), page = tile * KV_HEADS;
    uint32_t row = (uint32_t)slots / PAGE, n = (uint32_t)k->rows;
    uint32_t lengths[ROWS_MOST], row_seqs[ROWS_MOST];
    uint32_t *pages = check_memory(n * row, sizeof *pages);
    gpu_seq seqs[ROWS_MOST];
    gpu_tile tiles[2 * ROWS_MOST];
    for (uint32_t i = 0; i < n * row; i++) pages[i] = n * row - 1 - i;
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = (uint32_t)slots - i;
        row_seqs[i] = i;
        seqs[i] = (gpu_seq){i, i, 1, i, GPU_GRAIN_HEAD};
        for (uint32_t p = 0, half = (uint32_t)slots / 2; p < 2; p++)
            tiles[2 * i + p] = (gpu_tile){i, 0, p * half, (p + 1) * half, 2, 2 * i};
    }
    gpu_pages all = {.data = noise(k, n * row * page / 2, k->type),
                     .page_bytes = page,
                     .tile_bytes = tile,
                     .page_tokens = PAGE,
                     .head_dim = DIM,
                     .n_tiles = KV_HEADS,
                     .format = format,
                     .run_heads = 1};
    gpu_tables tables = {.pages = keep(k, check_device(c, pages, n * row * sizeof *pages)),
                         .row = row,
                         .head_groups = 1};
    k->positions = keep(k, check_device(c, lengths, n * sizeof *lengths));
    k->heads = (gpu_heads){.pages = all,
                           .tables = tables,
                           .layer = {.heads_per_group = KV_HEADS},
                           .seqs = keep(k, check_device(c, seqs, n * sizeof *seqs)),
                           .lengths = k->positions,
                           .row_seqs = keep(k, check_device(c, row_seqs, n * sizeof *row_seqs)),
                           .n_rows = n,
                           .kv_heads = KV_HEADS,
                           .q_heads = Q_HEADS,
                           .qkv = keep(k, check_output(c, gpu_product_rows(k->rows) * QKV * 4)),
                           .angles = keep(k, check_output(c, k->rows * DIM * 4)),
                           .q = keep(k, check_output(c, k->rows * HEADS * DIM * 2))};
    size_t floats = gpu_partial_floats(2 * n, GPU_DECODE_ROWS, KV_HEADS, DIM);
    k->attention = (gpu_attention){.pages = all,
                                   .tables = tables,
                                   .layer = k->heads.layer,
                                   .seqs = k->heads.seqs,
                                   .lengths = k->heads.lengths,
                                   .decode = keep(k, check_device(c, tiles, 2 * n * sizeof *tiles)),
                                   .n_decode = 2 * n,
                                   .prefill_rows = GPU_PREFILL_ROWS,
                                   .kv_heads = KV_HEADS,
                                   .q_heads = Q_HEADS,
                                   .scale = 0.125f,
                                   .q = k->heads.q,
                                   .out = k->attn,
                                   .out_type = k->type,
                                   .partial = keep(k, check_output(c, floats * 4))};
    free(pages);
}

static void launched(const chain *k, gpu_status s)
{
    check_ok(k->c, s);
    if (k->waits) check_ok(k->c, k->c->api->wait(k->c->g));
}

static void multiply(const chain *k, const weights *w, const void *x, void *y, gpu_type type)
{
    const check *c = k->c;
    launched(k, c->api->product(c->g, &w->gpu, x, k->rows, y, type, k->scratch));
}

/* Buffers of one layer are written again by the next: a kernel that starts too early finds, or
 * leaves, numbers of another one. */
static void run_layers(const chain *k, int n)
{
    const gpu_api *api = k->c->api;
    gpu *g = k->c->g;
    size_t m = k->rows, d = k->hidden;
    for (int i = 0; i < n; i++) {
        launched(k, api->norm(g, k->x, k->delta, k->norm, 1e-5f, m, d, k->normed, k->type));
        multiply(k, &k->qkv, k->normed, (void *)(uintptr_t)k->heads.qkv, GPU_F32);
        launched(k, api->angles(g, k->freq, k->positions, m, DIM, 1.0f,
                                (void *)(uintptr_t)k->heads.angles));
        launched(k, api->heads(g, &k->heads));
        launched(k, api->attention(g, &k->attention));
        multiply(k, &k->o, k->attn, k->delta, GPU_F32);
        launched(k, api->norm(g, k->x, k->delta, k->norm, 1e-5f, m, d, k->normed, k->type));
        multiply(k, &k->up, k->normed, k->wide, k->type);
        launched(k, api->gate(g, k->wide, m, k->ffn, false, k->act, k->type));
        multiply(k, &k->down, k->act, k->delta, GPU_F32);
    }
}

/* x and delta as they are before the first layer. */
static void start(const chain *k)
{
    size_t bytes = k->rows * k->hidden * 4;
    check_ok(k->c, k->c->api->copy(k->c->g, k->x, k->start, bytes));
    check_ok(k->c, k->c->api->clear(k->c->g, k->delta, bytes));
}

static void compare(chain *k, const char *form, const char *how, const float *due)
{
    size_t n = k->rows * k->hidden;
    uint32_t *got = check_memory(n, 4), wrong = 0;
    char name[96];
    check_fetch(k->c, got, k->x, n * 4);
    for (size_t i = 0; i < n; i++) wrong += memcmp(&got[i], &due[i], 4) != 0;
    snprintf(name, sizeof name, "layers %s, %zu rows, %s", how, k->rows, form);
    check_row(k->c, name, &(float){0}, &(float){(float)wrong}, 1, 0.0);
    free(got);
}

static void check_chain(check *c, size_t rows, const char *name, check_form form)
{
    const int layers = c->small ? 2 : 32, rounds = c->small ? 1 : 4;
    chain k = {.c = c, .rows = rows, .hidden = c->small ? 128 : 512};
    k.type = check_matrix(1, 1, form).type;
    k.ffn = k.hidden * 2;
    k.qkv = check_weights(c, QKV, k.hidden, form, NULL);
    k.o = check_weights(c, k.hidden, HEADS * DIM, form, NULL);
    k.up = check_weights(c, 2 * k.ffn, k.hidden, form, NULL);
    k.down = check_weights(c, k.hidden, k.ffn, form, NULL);
    weights *all[] = {&k.qkv, &k.o, &k.up, &k.down};
    k.start = noise(&k, rows * k.hidden, GPU_F32);
    k.x = keep(&k, check_output(c, rows * k.hidden * 4));
    k.delta = keep(&k, check_output(c, gpu_product_rows(rows) * k.hidden * 4));
    k.norm = noise(&k, k.hidden, GPU_F32);
    k.freq = noise(&k, DIM / 2, GPU_F32);
    k.normed = check_output(c, rows * k.hidden * 4);
    k.attn = check_output(c, rows * HEADS * DIM * 2);
    k.wide = check_output(c, gpu_product_rows(rows) * 2 * k.ffn * 4);
    k.act = check_output(c, rows * k.ffn * 4);
    size_t scratch = gpu_product_scratch(&k.up.gpu, rows);
    k.scratch = check_output(c, scratch);
    place_pages(&k, c->small ? 128 : 1024);
    float *due = check_memory(rows * k.hidden, 4);
    k.waits = true;
    start(&k);
    run_layers(&k, layers);
    check_fetch(c, due, k.x, rows * k.hidden * 4);
    k.waits = false;
    for (int i = 0; i < rounds; i++) {
        start(&k);
        run_layers(&k, layers);
        compare(&k, name, "launched", due);
    }
    gpu_graph *graph;
    check_ok(c, c->api->capture(c->g));
    run_layers(&k, layers);
    check_ok(c, c->api->captured(c->g, &graph));
    for (int i = 0; i < rounds; i++) {
        start(&k);
        check_ok(c, c->api->replay(c->g, graph));
        compare(&k, name, "in a graph", due);
    }
    c->api->forget(graph);
    void *others[] = {k.normed, k.attn, k.wide, k.act, k.scratch};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) c->api->release(c->g, others[i]);
    for (size_t i = 0; i < k.n_buffers; i++) c->api->release(c->g, k.buffers[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_forget_weights(c, all[i], true);
    free(due);
}

void check_early(check *c)
{
    static const struct {
        const char *name;
        check_form form;
    } forms[] = {{"bf16", {DTYPE_BF16, 0, 0, false}},
                 {"int8", {DTYPE_BF16, 8, 32, false}},
                 {"int4", {DTYPE_F16, 4, 32, false}},
                 {"e4m3", {DTYPE_BF16, 8, 128, true}}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        check_chain(c, 1, forms[i].name, forms[i].form);
        check_chain(c, ROWS_MOST, forms[i].name, forms[i].form);
    }
}
