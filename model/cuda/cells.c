/* K and V of cells, copied out of the pool and into it on any thread, while steps run that have
 * nothing to do with these cells. A gpu takes calls of one thread at a time, so the copies have one
 * of their own on the same device. They pass through pinned memory of a fixed size, as many cells
 * at a time as fit, each such batch by one call of the driver.
 *
 * Outside of the backend a cell has the layout of the CPU's pages (kernels.h), so that servers on
 * either go on from each other's prompts; e4m3, which CPUs do not have, stays as it lies on the
 * device. */
#include "model/cuda/backend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_BYTES = 8 << 20, CELLS_AT_ONCE = 512 };

struct cuda_cells {
    pthread_mutex_t lock; /* one copy at a time */
    const gpu_api *api;
    gpu *g;                  /* NULL until something is copied */
    uint32_t ordinal, room;  /* cells that the stage has room for */
    uint8_t *stage;          /* pinned [room, page_bytes] */
    gpu_tile_mark *no_marks; /* pinned [n_tiles]; NULL: pages have no marks */
    void *to[2 * CELLS_AT_ONCE];
    const void *from[2 * CELLS_AT_ONCE];
    size_t bytes[2 * CELLS_AT_ONCE];
};

status cuda_cells_create(backend_cuda *b, uint32_t ordinal)
{
    size_t room = STAGE_BYTES / b->pages.page_bytes;
    if (room < 1) room = 1;
    if (room > CELLS_AT_ONCE) room = CELLS_AT_ONCE;
    b->beside = calloc(1, sizeof *b->beside);
    if (!b->beside) return status_make(STATUS_NO_MEMORY, "copies of cells");
    b->beside->api = b->device.api;
    b->beside->ordinal = ordinal;
    b->beside->room = (uint32_t)room;
    pthread_mutex_init(&b->beside->lock, NULL);
    return STATUS_IS_OK;
}

static void close_gpu(cuda_cells *c)
{
    if (!c->g) return;
    if (c->stage) c->api->release_host(c->g, c->stage);
    if (c->no_marks) c->api->release_host(c->g, c->no_marks);
    c->api->close(c->g);
    c->stage = NULL;
    c->no_marks = NULL;
    c->g = NULL;
}

void cuda_cells_destroy(backend_cuda *b)
{
    cuda_cells *c = b->beside;
    if (!c) return;
    close_gpu(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bool take_pinned(cuda_cells *c, size_t bytes, void *out)
{
    void *host;
    if (c->api->alloc_host(c->g, bytes, &host) != GPU_OK) return false;
    memset(host, 0, bytes);
    memcpy(out, &host, sizeof host);
    return true;
}

/* Most servers never copy cells, so what that takes is made with the first ones. */
static bool open_gpu(const backend_cuda *b, cuda_cells *c)
{
    gpu_facts facts;
    char why[256];
    if (c->g) return true;
    if (c->api->open(c->ordinal, &c->g, &facts, why, sizeof why) != GPU_OK) {
        c->g = NULL;
        return false;
    }
    bool ok =
        take_pinned(c, c->room * b->pages.page_bytes, &c->stage) &&
        (!b->pages.marks || take_pinned(c, b->pages.n_tiles * sizeof *c->no_marks, &c->no_marks));
    if (!ok) close_gpu(c);
    return ok;
}

/* ---- layouts --------------------------------------------------------------------------------- */

size_t cuda_block_bytes(const backend_cuda *b)
{
    const pkv_geometry *g = &b->info.geometry;
    return pkv_groups(g) / pkv_shares(g) * pkv_shares_of(g, b->slice.n_kv_heads) *
           b->pages.page_bytes;
}

kern_kv_format cuda_cpu_format(gpu_kv_format f)
{
    switch (f) {
    case GPU_KV_BF16: return KERN_KV_BF16;
    case GPU_KV_F16: return KERN_KV_F16;
    case GPU_KV_INT8: return KERN_KV_INT8;
    default: return KERN_KV_FORMATS; /* e4m3 */
    }
}

static kern_kv_shape shape_of(const backend_cuda *b)
{
    return (kern_kv_shape){cuda_cpu_format(b->pages.format), b->pages.page_tokens,
                           b->pages.head_dim};
}

/* Makes the slots of a tile from n_slots on zeros. */
static void cut_tile(const gpu_pages *p, uint8_t *tile, uint32_t n_slots)
{
    size_t row = p->head_dim * gpu_kv_bytes(p->format), half = p->page_tokens * row;
    size_t left = p->page_tokens - n_slots, scale = sizeof(uint16_t);
    memset(tile + n_slots * row, 0, left * row);
    memset(tile + half + n_slots * row, 0, left * row);
    if (p->format != GPU_KV_INT8) return;
    uint8_t *scales = tile + 2 * half;
    memset(scales + n_slots * scale, 0, left * scale);
    memset(scales + (p->page_tokens + n_slots) * scale, 0, left * scale);
}

static void give_cell(const backend_cuda *b, uint8_t *staged, uint32_t n_slots, uint8_t *to)
{
    const gpu_pages *p = &b->pages;
    kern_kv_shape shape = shape_of(b);
    for (uint32_t t = 0; t < p->n_tiles; t++, staged += p->tile_bytes, to += p->tile_bytes) {
        if (n_slots < p->page_tokens) cut_tile(p, staged, n_slots);
        if (shape.format == KERN_KV_FORMATS) memcpy(to, staged, p->tile_bytes);
        else kern_kv_from_rows(&shape, staged, to);
    }
}

static void take_cell(const backend_cuda *b, const uint8_t *from, uint8_t *staged)
{
    const gpu_pages *p = &b->pages;
    kern_kv_shape shape = shape_of(b);
    for (uint32_t t = 0; t < p->n_tiles; t++, staged += p->tile_bytes, from += p->tile_bytes) {
        if (shape.format == KERN_KV_FORMATS) memcpy(staged, from, p->tile_bytes);
        else kern_kv_to_rows(&shape, from, staged);
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void add_copy(cuda_cells *c, gpu_copies *list, void *to, const void *from, size_t bytes)
{
    c->to[list->n] = to;
    c->from[list->n] = from;
    c->bytes[list->n++] = bytes;
}

/* Copies n cells, which the stage has room for, between it and the pool, and waits. Retrieval's
 * marks of cells that are written are of other keys, so they are cleared. */
static bool copy_staged(const backend_cuda *b, cuda_cells *c, const uint32_t *cells, uint32_t n,
                        bool out)
{
    const gpu_pages *p = &b->pages;
    gpu_copies list = {c->to, c->from, c->bytes, 0};
    for (uint32_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && cells[i + run] == cells[i] + run; run++) {}
        uint8_t *here = p->data + (size_t)(cells[i] - b->cells.first) * p->page_bytes;
        uint8_t *staged = c->stage + i * p->page_bytes;
        add_copy(c, &list, out ? staged : here, out ? here : staged, run * p->page_bytes);
    }
    for (uint32_t i = 0; !out && c->no_marks && i < n; i++)
        add_copy(c, &list, p->marks + (size_t)(cells[i] - b->cells.first) * p->n_tiles, c->no_marks,
                 p->n_tiles * sizeof *c->no_marks);
    return c->api->copy_batch(c->g, &list, out) == GPU_OK && c->api->wait(c->g) == GPU_OK;
}

bool cuda_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                     uint8_t *const *to, uint32_t each)
{
    const backend_cuda *b = ctx;
    cuda_cells *c = b->beside;
    size_t bytes = b->pages.page_bytes;
    pthread_mutex_lock(&c->lock);
    bool good = open_gpu(b, c);
    for (uint32_t i = 0, some; good && i < n; i += some) {
        some = n - i < c->room ? n - i : c->room;
        good = copy_staged(b, c, cells + i, some, true);
        for (uint32_t k = i; good && k < i + some; k++)
            give_cell(b, c->stage + (k - i) * bytes, n_slots, to[k / each] + k % each * bytes);
    }
    pthread_mutex_unlock(&c->lock);
    return good;
}

bool cuda_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    const backend_cuda *b = ctx;
    cuda_cells *c = b->beside;
    size_t bytes = b->pages.page_bytes;
    pthread_mutex_lock(&c->lock);
    bool good = open_gpu(b, c);
    for (uint32_t i = 0, some; good && i < n; i += some) {
        some = n - i < c->room ? n - i : c->room;
        for (uint32_t k = 0; k < some; k++)
            take_cell(b, from + (i + k) * bytes, c->stage + k * bytes);
        good = copy_staged(b, c, cells + i, some, false);
    }
    pthread_mutex_unlock(&c->lock);
    return good;
}
