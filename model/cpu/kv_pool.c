#include "model/cpu/kv_pool.h"

#include "model/cpu/kv_tier.h"

static size_t sums_bytes(const kv_store *s, pkv_cells cells)
{
    return cells.n * s->page_sums * sizeof *s->sums;
}

static size_t vectors_bytes(const kv_store *s)
{
    return s->cells.n * s->page_vectors * sizeof *s->vectors;
}

static size_t marks_bytes(const kv_store *s)
{
    return s->cells.n * s->page_tiles * sizeof *s->marks;
}

static status make_tier(kv_store *s, const backend_options *o, uint32_t n_frames, error *err)
{
    const kv_tier_options tier = {.dir = o->kv_disk,
                                  .memory = s->data,
                                  .page_bytes = s->page_bytes,
                                  .n_cells = s->cells.n,
                                  .n_frames = n_frames,
                                  .n_layers = s->geometry.n_layers,
                                  .io = o->kv_disk_io};
    s->n_frames = n_frames;
    status st = kv_tier_create(&tier, &s->tier, err);
    if (!status_ok(st)) error_prefix(err, "kv-disk");
    return st;
}

status kv_pool_create(kv_store *s, const backend_options *o, uint32_t n_frames, error *err)
{
    size_t bytes = kv_pool_bytes(s);
    s->data = o->kv_disk ? alloc_reserve(bytes) : alloc_pages(bytes);
    s->sums = alloc_pages(sums_bytes(s, s->cells));
    if (!s->data || !s->sums)
        return error_set(err, STATUS_NO_MEMORY, "kv-memory: cannot reserve %zu bytes", bytes);
    return o->kv_disk ? make_tier(s, o, n_frames, err) : STATUS_IS_OK;
}

status kv_pool_create_host(kv_store *s, error *err)
{
    size_t bytes = s->host_cells.n * s->page_bytes;
    s->host = alloc_pages(bytes);
    s->host_sums = alloc_pages(sums_bytes(s, s->host_cells));
    if (s->host && s->host_sums) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "swap-memory: cannot reserve %zu bytes", bytes);
}

status kv_pool_create_representatives(kv_store *s)
{
    s->vectors = alloc_pages(vectors_bytes(s));
    s->smallest = alloc_pages(vectors_bytes(s));
    s->marks = alloc_pages(marks_bytes(s));
    bool ok = s->vectors && s->smallest && s->marks;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "representatives of blocks");
}

void kv_pool_destroy(kv_store *s)
{
    kv_tier_destroy(s->tier);
    alloc_pages_free(s->data, kv_pool_bytes(s));
    alloc_pages_free(s->host, s->host_cells.n * s->page_bytes);
    alloc_pages_free(s->sums, sums_bytes(s, s->cells));
    alloc_pages_free(s->host_sums, sums_bytes(s, s->host_cells));
    alloc_pages_free(s->vectors, vectors_bytes(s));
    alloc_pages_free(s->smallest, vectors_bytes(s));
    alloc_pages_free(s->marks, marks_bytes(s));
}
