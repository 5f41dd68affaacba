/* Copies of pages to the host tier and back, gathered so that many are one call of the driver: a
 * sequence of 8,192 tokens in a model of 80 layers is some 40,000 copies. */
#include "model/cuda/backend.h"

#include <stdlib.h>

static bool reserve(cuda_copies *c)
{
    gpu_copies *l = &c->list;
    if (!l->to) l->to = calloc(CUDA_COPIES_MOST, sizeof *l->to);
    if (!l->from) l->from = calloc(CUDA_COPIES_MOST, sizeof *l->from);
    if (!l->bytes) l->bytes = calloc(CUDA_COPIES_MOST, sizeof *l->bytes);
    return l->to && l->from && l->bytes;
}

static uint32_t *reserve_cells(backend_cuda *b, bool out)
{
    uint32_t **to = &b->copies.to[out];
    if (!*to) *to = calloc(out ? b->host_cells.n : b->cells.n, sizeof **to);
    return *to;
}

status cuda_copies_begin(backend_cuda *b, bool out, uint32_t cell, uint32_t n)
{
    cuda_copies *c = &b->copies;
    uint32_t *to = reserve_cells(b, out);
    if (!to) return status_make(STATUS_NO_MEMORY, "step buffers");
    bool again = c->list.n + CUDA_COPIES_OF_CELLS > CUDA_COPIES_MOST || c->out != out;
    for (uint32_t i = 0; i < n && !again; i++) again = to[cell + i] == c->call;
    if (again) RETURN_IF_ERROR(cuda_copies_send(b));
    c->out = out;
    for (uint32_t i = 0; i < n; i++) to[cell + i] = c->call;
    return STATUS_IS_OK;
}

status cuda_copies_add(backend_cuda *b, bool out, void *here, void *there, size_t bytes)
{
    cuda_copies *c = &b->copies;
    gpu_copies *l = &c->list;
    if (!reserve(c)) return status_make(STATUS_NO_MEMORY, "step buffers");
    /* A page that comes in may take the place of one that goes out: one call has one way. */
    if (l->n == CUDA_COPIES_MOST || c->out != out) RETURN_IF_ERROR(cuda_copies_send(b));
    c->out = out;
    l->to[l->n] = out ? there : here;
    l->from[l->n] = out ? here : there;
    l->bytes[l->n++] = bytes;
    return STATUS_IS_OK;
}

status cuda_copies_send(backend_cuda *b)
{
    gpu_copies now = b->copies.list;
    cuda_copies_drop(b);
    if (now.n == 0) return STATUS_IS_OK;
    return cuda_status(b->device.api->copy_batch(b->device.g, &now, b->copies.out));
}

void cuda_copies_drop(backend_cuda *b)
{
    b->copies.list.n = 0;
    b->copies.call++;
}

void cuda_copies_destroy(backend_cuda *b)
{
    free(b->copies.list.to);
    free(b->copies.list.from);
    free(b->copies.list.bytes);
    free(b->copies.to[0]);
    free(b->copies.to[1]);
    b->copies = (cuda_copies){0};
}
