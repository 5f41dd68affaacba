/* Sums and gathers over ranks of arrays on the device: by a comm that reads them there (NCCL), or
 * through pinned memory (every other kind); kernels gather where devices reach each other. With one
 * rank these do nothing. */
#include "model/cuda/cuda.h"

#include <string.h>

status cuda_sum(cuda_device *d, float *x, size_t n)
{
    if (cuda_is_alone(d)) return STATUS_IS_OK;
    if (cuda_peers_gather(d)) return cuda_peers_sum_gathered(d, x, n);
    if (comm_on_device(d->group)) return comm_all_reduce_sum(d->group, x, n);
    RETURN_IF_ERROR(cuda_pack_begin(d, &d->stage, n * sizeof *x));
    float *host = (float *)(void *)d->stage.host;
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, host, x, n * sizeof *x));
    RETURN_IF_GPU_ERROR(d->api->wait(d->g));
    RETURN_IF_ERROR(comm_all_reduce_sum(d->group, host, n));
    return cuda_status(d->api->copy_in(d->g, x, host, n * sizeof *x));
}

status cuda_gather(cuda_device *d, const float *x, size_t n, const float **all)
{
    size_t bytes = n * sizeof *x, ranks = (size_t)comm_size(d->group);
    RETURN_IF_ERROR(cuda_pack_begin(d, &d->stage, ranks * bytes));
    float *host = (float *)(void *)d->stage.host, *device = (float *)(void *)d->stage.device;
    *all = host;
    if (comm_on_device(d->group)) {
        RETURN_IF_ERROR(comm_all_gather(d->group, x, n, device));
        RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, host, device, ranks * bytes));
        return cuda_wait(d);
    }
    float *own = host + (size_t)comm_rank(d->group) * n;
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, own, x, bytes));
    RETURN_IF_GPU_ERROR(d->api->wait(d->g));
    return comm_all_gather(d->group, own, n, host);
}

status cuda_gather_here(cuda_device *d, const float *x, size_t n, float *out)
{
    size_t bytes = n * sizeof *x, ranks = (size_t)comm_size(d->group);
    if (cuda_peers_exchanges(d, bytes)) return cuda_peers_exchange(d, x, bytes, out);
    if (comm_on_device(d->group)) return comm_all_gather(d->group, x, n, out);
    const float *all;
    RETURN_IF_ERROR(cuda_gather(d, x, n, &all));
    return cuda_status(d->api->copy_in(d->g, out, all, ranks * bytes));
}

status cuda_join_logits(cuda_device *d, const float *part, uint32_t n, size_t slice, size_t vocab,
                        float *out)
{
    const float *all;
    RETURN_IF_ERROR(cuda_gather(d, part, n * slice, &all));
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < vocab; at += slice) {
            size_t some = vocab - at < slice ? vocab - at : slice;
            const float *from = all + (at / slice * n + i) * slice;
            memcpy(out + i * vocab + at, from, some * sizeof *out);
        }
    return STATUS_IS_OK;
}

/* A comm carries floats, so the number goes as two halves of 16 bits, which are exact in f32. */
status cuda_smallest(cuda_device *d, uint32_t *n)
{
    if (cuda_is_alone(d)) return STATUS_IS_OK;
    const float own[2] = {(float)(*n >> 16), (float)(*n & 0xffff)};
    const float *all;
    float *x;
    RETURN_IF_ERROR(cuda_alloc(d, sizeof own, &x));
    status s = cuda_status(d->api->copy_in(d->g, x, own, sizeof own));
    if (status_ok(s)) s = cuda_gather(d, x, 2, &all);
    for (int i = 0; status_ok(s) && i < comm_size(d->group); i++) {
        uint32_t other = (uint32_t)all[2 * i] << 16 | (uint32_t)all[2 * i + 1];
        if (other < *n) *n = other;
    }
    d->api->release(d->g, x);
    d->allocated -= sizeof own;
    return s;
}
