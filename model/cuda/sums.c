/* Running sums of retention: one f32 for each slot of each tile, beside K and V. The device's slot
 * moves carry them along (gpu_pages.sums); copies to and from the host tier take them along
 * here. */
#include "model/cuda/backend.h"

#include <string.h>

static size_t page_sums(const backend_cuda *b)
{
    return (size_t)b->pages.n_tiles * b->pages.page_tokens;
}

size_t cuda_sums_of_page(const backend_cuda *b) { return page_sums(b) * sizeof(float); }

status cuda_sums_create(backend_cuda *b)
{
    cuda_device *d = &b->device;
    size_t bytes = cuda_sums_of_page(b);
    void *host;
    if (b->window) return STATUS_IS_OK; /* info.lacks says that there are none */
    RETURN_IF_ERROR(cuda_alloc(d, b->cells.n * bytes, &b->pages.sums));
    if (b->info.n_host_pages == 0) return STATUS_IS_OK;
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, b->host_cells.n * bytes, &host));
    b->host_sums = host;
    /* Pages may leave for the host tier before a plan asks for sums: their sums are 0. */
    memset(host, 0, b->host_cells.n * bytes);
    return STATUS_IS_OK;
}

void cuda_sums_destroy(backend_cuda *b)
{
    cuda_device *d = &b->device;
    if (b->pages.sums) d->api->release(d->g, b->pages.sums);
    if (b->host_sums) d->api->release_host(d->g, b->host_sums);
}

status cuda_sums_copy(backend_cuda *b, bool out, uint32_t cell, uint32_t host_cell, uint32_t n)
{
    if (!b->has_sums) return STATUS_IS_OK;
    float *here = b->pages.sums + cell * page_sums(b);
    float *there = b->host_sums + host_cell * page_sums(b);
    return cuda_copies_add(b, out, here, there, n * cuda_sums_of_page(b));
}
