/* Sums over ranks whose devices reach each other (gpu_sums), with what the ranks must have told
 * each other before. */
#include "model/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* What ranks add up so in one call: 256 rows of 8,192 values in bf16, and how many bytes of them
 * each rank reads of every other one. */
enum { ROOM = 4 << 20, ONCE = 512 << 10 };

struct cuda_peers {
    gpu_meeting meeting;
    gpu_handle handles[GPU_RANKS_MOST];
    uint8_t *memory;  /* this rank's own: copies, flags, calls */
    uint32_t *stop;   /* pinned */
    uint32_t n_peers; /* ranks that were reached, in order */
};

size_t cuda_peers_bytes(uint32_t n_ranks)
{
    if (n_ranks < 2 || n_ranks > GPU_RANKS_MOST) return 0;
    return gpu_sums_bytes(ROOM) + (gpu_sums_flags() + GPU_SUM_BLOCKS) * sizeof(uint32_t);
}

/* Gathers the handles of all ranks, over the ranks' comm, which is on the device. */
static status exchange_handles(cuda_device *d, cuda_peers *p)
{
    const float *all;
    float *x;
    size_t bytes = sizeof *p->handles;
    _Static_assert(sizeof *p->handles % sizeof(float) == 0, "handles travel as floats");
    RETURN_IF_ERROR(cuda_alloc(d, bytes, &x));
    status s = cuda_status(d->api->copy_in(d->g, x, &p->handles[p->meeting.rank], bytes));
    if (status_ok(s)) s = cuda_gather(d, x, bytes / sizeof(float), &all);
    if (status_ok(s)) memcpy(p->handles, all, p->meeting.ranks * bytes);
    d->api->release(d->g, x);
    d->allocated -= bytes;
    return s;
}

/* Maps the other ranks' memory. False: some cannot be reached. */
static bool reach_all(cuda_device *d, cuda_peers *p)
{
    gpu_meeting *m = &p->meeting;
    for (; p->n_peers < m->ranks; p->n_peers++) {
        void *memory = p->memory;
        const gpu_handle *from = &p->handles[p->n_peers];
        if (!from->is_there) return false;
        if (p->n_peers != m->rank && d->api->reach(d->g, from, &memory) != GPU_OK) return false;
        m->copies[p->n_peers] = memory;
        m->flags[p->n_peers] = (uint32_t *)(void *)((uint8_t *)memory + gpu_sums_bytes(ROOM));
    }
    return true;
}

static status make_memory(cuda_device *d, cuda_peers *p)
{
    void *host;
    RETURN_IF_ERROR(cuda_alloc(d, cuda_peers_bytes(p->meeting.ranks), &p->memory));
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, sizeof *p->stop, &host));
    p->stop = host;
    *p->stop = 0;
    p->meeting.calls = (uint32_t *)(void *)(p->memory + gpu_sums_bytes(ROOM)) + gpu_sums_flags();
    p->meeting.stop = p->stop;
    gpu_status s = d->api->share(d->g, p->memory, &p->handles[p->meeting.rank]);
    return s == GPU_UNSUPPORTED ? STATUS_IS_OK : cuda_status(s);
}

status cuda_peers_create(cuda_device *d, bool invariant)
{
    if (invariant || cuda_is_alone(d) || !comm_on_device(d->group)) return STATUS_IS_OK;
    if (!cuda_peers_bytes((uint32_t)comm_size(d->group))) return STATUS_IS_OK;
    cuda_peers *p = calloc(1, sizeof *p);
    if (!p) return status_make(STATUS_NO_MEMORY, "sums over ranks");
    p->meeting = (gpu_meeting){.rank = (uint32_t)comm_rank(d->group),
                               .ranks = (uint32_t)comm_size(d->group),
                               .room = ROOM,
                               .once = ONCE};
    d->peers = p;
    RETURN_IF_ERROR(make_memory(d, p));
    RETURN_IF_ERROR(exchange_handles(d, p));
    /* All ranks or none: the others' flags would be waited for. */
    uint32_t all = reach_all(d, p);
    RETURN_IF_ERROR(cuda_smallest(d, &all));
    if (!all) cuda_peers_destroy(d);
    return STATUS_IS_OK;
}

void cuda_peers_destroy(cuda_device *d)
{
    cuda_peers *p = d->peers;
    if (!p) return;
    for (uint32_t i = 0; i < p->n_peers; i++)
        if (i != p->meeting.rank) d->api->unreach(d->g, &p->handles[i], p->meeting.copies[i]);
    if (p->memory) {
        d->api->release(d->g, p->memory);
        d->allocated -= cuda_peers_bytes(p->meeting.ranks);
    }
    if (p->stop) d->api->release_host(d->g, p->stop);
    free(p);
    d->peers = NULL;
}

void cuda_peers_stop(const cuda_device *d)
{
    if (d->peers) __atomic_store_n(d->peers->stop, 1, __ATOMIC_RELAXED);
}

bool cuda_peers_take(const cuda_device *d, size_t m, size_t dims, gpu_type type)
{
    return d->peers && gpu_takes_sums(d->peers->meeting.room, m, dims, type);
}

status cuda_peers_sum(const cuda_device *d, gpu_sums s)
{
    s.meeting = d->peers->meeting;
    return cuda_status(d->api->sums(d->g, &s));
}
