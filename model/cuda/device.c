/* The device's memory, the wait for its stream, and packs: what every part of the backend needs. */
#include "model/cuda/cuda.h"

#include <string.h>
#include <unistd.h>

enum { POLL_US = 20 };

status cuda_status(gpu_status s)
{
    switch (s) {
    case GPU_OK: return STATUS_IS_OK;
    case GPU_NO_MEMORY: return status_make(STATUS_NO_MEMORY, "cuda: out of device memory");
    case GPU_UNSUPPORTED: return status_make(STATUS_UNSUPPORTED, "cuda: no kernel for this shape");
    default: return status_make(STATUS_INTERNAL, "cuda: the device failed");
    }
}

status cuda_alloc(cuda_device *d, size_t bytes, void *out)
{
    void *device;
    RETURN_IF_GPU_ERROR(d->api->alloc(d->g, bytes, &device));
    memcpy(out, &device, sizeof device);
    d->allocated += bytes;
    return STATUS_IS_OK;
}

/* An aborted group leaves the stream idle. */
static status check_group(const cuda_device *d)
{
    status s = comm_check(d->group);
    if (status_ok(s) && d->threads) s = comm_check(d->threads);
    if (!status_ok(s)) cuda_peers_stop(d);
    return s;
}

status cuda_wait(cuda_device *d)
{
    if (cuda_is_alone(d) || !comm_on_device(d->group)) return cuda_status(d->api->wait(d->g));
    for (;;) {
        bool idle;
        RETURN_IF_GPU_ERROR(d->api->poll(d->g, &idle));
        RETURN_IF_ERROR(check_group(d));
        if (idle) return STATUS_IS_OK;
        usleep(POLL_US);
    }
}

status cuda_await(cuda_device *d, uint32_t number)
{
    if (cuda_is_alone(d) || !comm_on_device(d->group))
        return cuda_status(d->api->await(d->g, number));
    for (;;) {
        bool reached;
        RETURN_IF_GPU_ERROR(d->api->reached(d->g, number, &reached));
        RETURN_IF_ERROR(check_group(d));
        if (reached) return STATUS_IS_OK;
        usleep(POLL_US);
    }
}

/* ---- packs ----------------------------------------------------------------------------------- */

enum { PACK_ALIGNMENT = 64 };

/* Replaces the pack's memory, after waiting for copies from the old one. */
static status pack_grow(cuda_device *d, cuda_pack *p, size_t bytes)
{
    void *host, *other = NULL;
    bool is_double = p->is_double;
    uint32_t n_moved = p->n_moved;
    if (p->capacity) RETURN_IF_ERROR(cuda_wait(d));
    cuda_pack_destroy(d, p);
    p->is_double = is_double;
    p->n_moved = n_moved + 1;
    bytes += bytes / 2;
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, bytes, &host));
    p->host = host;
    if (is_double) RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, bytes, &other));
    p->other = other;
    RETURN_IF_ERROR(cuda_alloc(d, bytes, &p->device));
    p->capacity = bytes;
    return STATUS_IS_OK;
}

status cuda_pack_begin(cuda_device *d, cuda_pack *p, size_t bytes)
{
    if (bytes > p->capacity) RETURN_IF_ERROR(pack_grow(d, p, bytes));
    p->size = 0;
    if (!p->is_double) return STATUS_IS_OK;
    uint8_t *host = p->host;
    p->host = p->other;
    p->other = host;
    return STATUS_IS_OK;
}

void *cuda_pack_take(cuda_pack *p, size_t bytes, void *device)
{
    void *host = p->host + p->size, *there = p->device + p->size;
    memcpy(device, &there, sizeof there);
    p->size += (bytes + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
    return host;
}

status cuda_pack_send(cuda_device *d, cuda_pack *p)
{
    return cuda_status(d->api->copy_in(d->g, p->device, p->host, p->size));
}

void cuda_pack_destroy(cuda_device *d, cuda_pack *p)
{
    if (p->device) {
        d->api->release(d->g, p->device);
        d->allocated -= p->capacity;
    }
    if (p->host) d->api->release_host(d->g, p->host);
    if (p->other) d->api->release_host(d->g, p->other);
    *p = (cuda_pack){0};
}
