#include "cli/bench/bench_attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POOL_BYTES = 640 << 20, /* each call takes other pages, so that none is in a cache */
    PAGE_TOKENS = 16,
    RUNS_MIN = 5,
    RUNS_MAX = 101,
    RUNS_US = 400 * 1000, /* longest time of a line once RUNS_MIN runs are done */
    BATCH_MAX = 8,
    KV_HEADS_MAX = 8,
    MASS_ROWS = 32,
};

typedef struct model_shape {
    const char *name;
    uint32_t q_heads, kv_heads, head_dim;
} model_shape;

static const model_shape models[] = {{"32/4 64", 32, 4, 64}, {"32/8 128", 32, 8, 128}};

/* One call: `batch` sequences with `rows` new tokens each behind `depth` cached ones. */
static const struct line {
    const char *op;
    uint32_t batch, rows, depth;
} lines[] = {
    {"decode", 1, 1, 1023},    {"decode", 1, 1, 4095},    {"decode", 1, 1, 16383},
    {"decode", 8, 1, 1023},    {"decode", 8, 1, 4095},    {"decode", 8, 1, 16383},
    {"prefill", 1, 512, 0},    {"prefill", 1, 512, 4096}, {"prefill", 1, 2048, 0},
    {"prefill", 1, 512, 7680},
};
enum { LINES = sizeof lines / sizeof lines[0] };

typedef struct attention_bench {
    kern_context *kc;
    const model_shape *model;
    kern_kv_shape shape;
    size_t page_bytes, n_pages;
    uint8_t *pool;
    uint32_t *pages; /* [n_pages] shuffled; each sequence takes a run of them */
    size_t next_page;
    float *q, *out, *mass;
    double read_gb_s;
    kern_limit rate; /* the limit of attention over these pages */
} attention_bench;

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Other processes on the machine only ever slow a run down, so shares compare the best run with the
 * best limit. `mass` is the median of what page mass added to the run before. */
typedef struct timing {
    double median_us, best_us, mass;
} timing;

static status measure_limits(attention_bench *b, bool again)
{
    kern_limits now;
    RETURN_IF_ERROR(kern_measure_limits(b->kc, &now));
    kern_limit rate = kern_attention_limit(b->kc, b->shape.format, &now);
    if (!again || now.read_gb_s > b->read_gb_s) b->read_gb_s = now.read_gb_s;
    if (!again || rate.gop_s > b->rate.gop_s) b->rate = rate;
    return STATUS_IS_OK;
}

/* Random keys and values of size 1, so that scores are those of a real model. */
static void fill_pool(attention_bench *b)
{
    rng r = rng_seed(1);
    uint16_t *half = (uint16_t *)b->pool;
    float *full = (float *)b->pool;
    size_t n = b->n_pages * b->page_bytes / (b->shape.format == KERN_KV_F32 ? 4 : 2);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = i % 61 == 0 ? rng_u32(&r) : (uint32_t)i * 2654435761u;
        if (b->shape.format == KERN_KV_F32) full[i] = ((float)(bits >> 8) - 8388608.0f) * 1.5e-7f;
        else if (b->shape.format == KERN_KV_INT8) half[i] = (uint16_t)(bits >> 8);
        else
            half[i] = (uint16_t)((bits >> 8 & 0x807fu) |
                                 (b->shape.format == KERN_KV_BF16 ? 0x3f00u : 0x3800u));
    }
    kern_kv_shape *s = &b->shape;
    for (size_t tile = 0; s->format == KERN_KV_INT8 && tile < b->n_pages * b->page_bytes;
         tile += kern_kv_tile_bytes(s))
        for (size_t i = 0; i < 2 * kern_kv_scale_bytes(s); i += 2)
            memcpy(b->pool + tile + kern_kv_scales_at(s) + i, &(uint16_t){0x3c00}, 2); /* 2^-7 */
    for (uint32_t i = 0; i < b->n_pages; i++) {
        uint32_t j = rng_below(&r, i + 1);
        b->pages[i] = b->pages[j];
        b->pages[j] = i;
    }
}

static double call_us(attention_bench *b, const struct line *l, bool mass)
{
    kern_attn_item items[BATCH_MAX * KV_HEADS_MAX];
    const model_shape *m = b->model;
    uint32_t group = m->q_heads / m->kv_heads, n = 0;
    size_t row = (size_t)m->q_heads * m->head_dim, slots = (size_t)l->depth + l->rows;
    size_t tile = kern_kv_tile_bytes(&b->shape), n_pages = (slots + PAGE_TOKENS - 1) / PAGE_TOKENS;
    for (uint32_t s = 0; s < l->batch; s++) {
        if (b->next_page + n_pages > b->n_pages) b->next_page = 0;
        for (uint32_t h = 0; h < m->kv_heads; h++) {
            size_t at = (size_t)s * l->rows * row + (size_t)h * group * m->head_dim;
            items[n++] = (kern_attn_item){.pages = b->pages + b->next_page,
                                          .tiles = b->pool + h * tile,
                                          .first_slot = l->depth,
                                          .n_rows = l->rows,
                                          .q = b->q + at,
                                          .out = b->out + at,
                                          .mass = mass ? b->mass + h * n_pages : NULL,
                                          .mass_rows = l->rows < MASS_ROWS ? l->rows : MASS_ROWS};
        }
        b->next_page += n_pages;
    }
    kern_attn_batch batch = {.shape = b->shape,
                             .page_stride = b->page_bytes,
                             .q_heads = group,
                             .scale = 1.0f / sqrtf((float)m->head_dim),
                             .q_stride = row,
                             .out_stride = row,
                             .items = items,
                             .n_items = n};
    int64_t start_ns = clock_now_ns();
    status st = kern_attention(b->kc, &batch);
    double us = (double)(clock_now_ns() - start_ns) / 1e3;
    return status_ok(st) ? us : NAN;
}

/* Times runs without and with page mass in turn. */
static timing time_line(attention_bench *b, const struct line *l)
{
    double us[RUNS_MAX], mass[RUNS_MAX];
    size_t runs = 0;
    int64_t started = clock_now_us();
    call_us(b, l, true);
    while (runs < RUNS_MAX && (runs < RUNS_MIN || clock_now_us() - started < RUNS_US)) {
        us[runs] = call_us(b, l, false);
        mass[runs] = call_us(b, l, true) / us[runs] - 1;
        runs++;
    }
    qsort(us, runs, sizeof *us, compare_double);
    qsort(mass, runs, sizeof *mass, compare_double);
    return (timing){us[runs / 2], us[0], mass[runs / 2]};
}

static void print_line(const attention_bench *b, const struct line *l, timing t)
{
    double rows = l->rows, dim = b->model->head_dim;
    double seen = rows * l->depth + rows * (rows + 1) / 2; /* (row, slot) pairs of a head */
    double flop = 4 * seen * dim * b->model->q_heads * l->batch;
    double bytes = 2 * ((double)l->depth + rows) * dim * b->model->kv_heads * l->batch *
                   (kern_kv_facts_of(b->shape.format).bits / 8);
    double gflop_s = flop / t.best_us / 1e3, gb_s = bytes / t.best_us / 1e3;
    printf(
        "%-8s %-10s %-5s %5u %5u %6u %10.1f %10.1f %9.1f %8.2f %7.1f%% of %-5s %7.1f%% %7.2f%%\n",
        l->op, b->model->name, kern_kv_name(b->shape.format), l->batch, l->rows, l->depth,
        t.median_us, t.best_us, gflop_s, gb_s, 100 * gflop_s / b->rate.gop_s, b->rate.name,
        100 * gb_s / b->read_gb_s, 100 * t.mass);
    fflush(stdout);
}

static bool bench_model(attention_bench *b)
{
    const model_shape *m = b->model;
    b->shape.head_dim = m->head_dim;
    b->page_bytes = kern_kv_tile_bytes(&b->shape) * m->kv_heads;
    b->n_pages = POOL_BYTES / b->page_bytes;
    size_t row = (size_t)m->q_heads * m->head_dim;
    enum { ROWS_MAX = 2048, PAGES_MAX = 16384 / PAGE_TOKENS };
    b->pool = alloc_pages(POOL_BYTES);
    b->pages = alloc_zeroed(NULL, b->n_pages, sizeof *b->pages);
    b->q = alloc_zeroed(NULL, ROWS_MAX * row, sizeof *b->q);
    b->out = alloc_zeroed(NULL, ROWS_MAX * row, sizeof *b->out);
    b->mass = alloc_zeroed(NULL, (size_t)PAGES_MAX * m->kv_heads, sizeof *b->mass);
    bool ok = b->pool && b->pages && b->q && b->out && b->mass;
    if (ok) {
        fill_pool(b);
        rng r = rng_seed(2);
        for (size_t i = 0; i < ROWS_MAX * row; i++) b->q[i] = rng_normal(&r);
        ok = status_ok(measure_limits(b, false));
    }
    timing t[LINES];
    for (size_t i = 0; ok && i < LINES; i++) {
        t[i] = time_line(b, &lines[i]);
        ok = !isnan(t[i].median_us);
    }
    ok = ok && status_ok(measure_limits(b, true));
    for (size_t i = 0; ok && i < LINES; i++) print_line(b, &lines[i], t[i]);
    alloc_pages_free(b->pool, POOL_BYTES);
    alloc_free(NULL, b->pages);
    alloc_free(NULL, b->q);
    alloc_free(NULL, b->out);
    alloc_free(NULL, b->mass);
    return ok;
}

status bench_attention(kern_context *kc, kern_kv_format format)
{
    printf("\n%-8s %-10s %-5s %5s %5s %6s %10s %10s %9s %8s %17s %8s %8s\n", "attention",
           "heads/dim", "pages", "batch", "rows", "depth", "median us", "best us", "GFLOP/s",
           "GB/s", "of the limit", "of read", "mass +");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        attention_bench b = {
            .kc = kc, .model = &models[i], .shape = {.format = format, .page_tokens = PAGE_TOKENS}};
        if (!bench_model(&b)) return status_make(STATUS_NO_MEMORY, "memory for the pages");
    }
    return STATUS_IS_OK;
}
