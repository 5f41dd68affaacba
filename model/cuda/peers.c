/* Sums and gathers over ranks that meet on their devices: by kernels where these reach each other's
 * memory (gpu_sums), with what the ranks must have told each other before. Where they do not, the
 * comm adds up, unless a row's bits may not depend on the other rows: then it only gathers, which
 * is no arithmetic, and a kernel of each rank adds up in rank order. */
#include "model/cuda/cuda.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* Bytes that one call adds up at most: 256 rows of 8,192 values in bf16. Up to ONCE of them
     * each rank reads from every other one; beyond, each rank adds up a part of every row. */
    ROOM = 4 << 20,
    ONCE = 512 << 10,
    /* CUDA lays smaller allocations into blocks of this size, and gives a whole block away. */
    SHARED_BLOCK = 2 << 20,
    /* A rank that ends waits so long for the others' kernels, and looks so often. */
    END_US = 2 * 1000 * 1000,
    END_POLL_US = 200,
};

struct cuda_peers {
    gpu_meeting meeting;
    gpu_handle handles[GPU_RANKS_MOST];
    /* This rank's own: copies, flags, calls, ended; or all ranks' parts, gathered. */
    uint8_t *memory;
    uint32_t *stop;   /* pinned */
    uint32_t *ended;  /* pinned [GPU_RANKS_MOST]: ranks whose kernels read no more, as last seen */
    uint32_t n_peers; /* ranks that were reached, in order */
    bool reached;     /* all ranks reach all others */
    bool invariant;
    bool gathers; /* memory has parts that were gathered, where flags of an exchange would be */
};

static size_t memory_bytes(void)
{
    size_t words = gpu_sums_flags() + GPU_SUM_BLOCKS + GPU_RANKS_MOST;
    size_t all = gpu_sums_bytes(ROOM) + words * sizeof(uint32_t);
    return (all + SHARED_BLOCK - 1) / SHARED_BLOCK * SHARED_BLOCK;
}

static uint32_t *flags_in(uint8_t *memory)
{
    return (uint32_t *)(void *)(memory + gpu_sums_bytes(ROOM));
}
static uint32_t *calls_in(uint8_t *memory) { return flags_in(memory) + gpu_sums_flags(); }
static uint32_t *ended_in(uint8_t *memory) { return calls_in(memory) + GPU_SUM_BLOCKS; }

size_t cuda_peers_bytes(uint32_t n_ranks, bool invariant)
{
    return n_ranks >= 2 && (invariant || n_ranks <= GPU_RANKS_MOST) ? memory_bytes() : 0;
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

/* Maps the other ranks' memory. False: d->sums says why some cannot be reached. */
static bool reach_all(cuda_device *d, cuda_peers *p)
{
    gpu_meeting *m = &p->meeting;
    for (; p->n_peers < m->ranks; p->n_peers++) {
        void *memory = p->memory;
        const gpu_handle *from = &p->handles[p->n_peers];
        const char *why = from->is_there ? NULL : "it shares no memory; its own log says why";
        if (!why && p->n_peers != m->rank && d->api->reach(d->g, from, &memory) != GPU_OK)
            why = d->api->why(d->g);
        if (why) {
            snprintf(d->sums, sizeof d->sums, "rank %u does not reach rank %u: %s", m->rank,
                     p->n_peers, why);
            return false;
        }
        m->copies[p->n_peers] = memory;
        m->flags[p->n_peers] = flags_in(memory);
    }
    return true;
}

static void leave_all(cuda_device *d, cuda_peers *p)
{
    for (uint32_t i = 0; i < p->n_peers; i++)
        if (i != p->meeting.rank) d->api->unreach(d->g, &p->handles[i], p->meeting.copies[i]);
    p->n_peers = 0;
}

static status make_memory(cuda_device *d, cuda_peers *p)
{
    void *host;
    RETURN_IF_ERROR(cuda_alloc(d, memory_bytes(), &p->memory));
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, (1 + GPU_RANKS_MOST) * sizeof *p->stop, &host));
    p->stop = host;
    p->ended = p->stop + 1;
    *p->stop = 0;
    p->meeting.calls = calls_in(p->memory);
    p->meeting.stop = p->stop;
    return STATUS_IS_OK;
}

/* All ranks reach all others, or none does: the others' flags would be waited for. */
static status meet(cuda_device *d, cuda_peers *p)
{
    uint32_t all;
    snprintf(d->sums, sizeof d->sums, "more than %d ranks", GPU_RANKS_MOST);
    if (p->meeting.ranks > GPU_RANKS_MOST) return STATUS_IS_OK;
    gpu_status s = d->api->share(d->g, p->memory, &p->handles[p->meeting.rank]);
    if (s != GPU_UNSUPPORTED) RETURN_IF_GPU_ERROR(s);
    snprintf(d->sums, sizeof d->sums, "%s",
             s == GPU_OK ? "another rank does not reach all devices" : d->api->why(d->g));
    RETURN_IF_ERROR(exchange_handles(d, p));
    all = s == GPU_OK && reach_all(d, p);
    RETURN_IF_ERROR(cuda_smallest(d, &all));
    p->reached = all;
    if (!all) leave_all(d, p);
    return STATUS_IS_OK;
}

/* Makes the text of a log line of d->sums, which has the reason why ranks are not reached. */
static void describe(cuda_device *d, const cuda_peers *p)
{
    char why[sizeof d->sums];
    memcpy(why, d->sums, sizeof why);
    if (p->reached) snprintf(d->sums, sizeof d->sums, "by kernels, in each other's memory");
    else
        snprintf(d->sums, sizeof d->sums, "%s (%.150s)",
                 p->invariant ? "gathered by NCCL, added up in rank order" : "by NCCL", why);
}

status cuda_peers_create(cuda_device *d, bool invariant)
{
    if (cuda_is_alone(d) || !comm_on_device(d->group)) return STATUS_IS_OK;
    uint32_t ranks = (uint32_t)comm_size(d->group);
    snprintf(d->sums, sizeof d->sums, "by NCCL (more than %d ranks)", GPU_RANKS_MOST);
    if (!cuda_peers_bytes(ranks, invariant)) return STATUS_IS_OK;
    cuda_peers *p = calloc(1, sizeof *p);
    if (!p) return status_make(STATUS_NO_MEMORY, "sums over ranks");
    p->invariant = invariant;
    p->meeting = (gpu_meeting){
        .rank = (uint32_t)comm_rank(d->group), .ranks = ranks, .room = ROOM, .once = ONCE};
    d->peers = p;
    RETURN_IF_ERROR(make_memory(d, p));
    RETURN_IF_ERROR(meet(d, p));
    describe(d, p);
    if (!p->reached && !invariant) cuda_peers_destroy(d);
    return STATUS_IS_OK;
}

static bool is_of_other_process(const cuda_peers *p, uint32_t rank)
{
    const gpu_handle *own = &p->handles[p->meeting.rank], *of = &p->handles[rank];
    return of->host != own->host || of->process != own->process;
}

/* Tells the ranks of other processes that this one's kernels, which have ended, read their memory
 * no more. */
static status tell_ended(cuda_device *d, cuda_peers *p)
{
    const gpu_meeting *m = &p->meeting;
    for (uint32_t i = 0; i < m->ranks; i++)
        if (is_of_other_process(p, i))
            RETURN_IF_GPU_ERROR(
                d->api->copy_in(d->g, ended_in(m->copies[i]) + m->rank, p->stop, sizeof *p->ended));
    return cuda_status(d->api->wait(d->g));
}

static status look_who_ended(cuda_device *d, cuda_peers *p, bool *all)
{
    size_t bytes = p->meeting.ranks * sizeof *p->ended;
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, p->ended, ended_in(p->memory), bytes));
    RETURN_IF_GPU_ERROR(d->api->wait(d->g));
    *all = true;
    for (uint32_t i = 0; i < p->meeting.ranks; i++)
        *all = *all && (p->ended[i] || !is_of_other_process(p, i));
    return STATUS_IS_OK;
}

/* Waits until no rank of another process reads this one's memory, END_US at most, because such a
 * rank may have been killed. Ranks of this process rest already (backend_ops.rest). */
static void await_ended(cuda_device *d, cuda_peers *p)
{
    int64_t until = clock_now_us() + END_US;
    bool all = false;
    cuda_peers_stop(d);
    status s = tell_ended(d, p);
    while (status_ok(s) && status_ok(s = look_who_ended(d, p, &all)) && !all &&
           clock_now_us() < until)
        usleep(END_POLL_US);
}

void cuda_peers_destroy(cuda_device *d)
{
    cuda_peers *p = d->peers;
    if (!p) return;
    if (p->n_peers == p->meeting.ranks) await_ended(d, p);
    leave_all(d, p);
    if (p->memory) {
        d->api->release(d->g, p->memory);
        d->allocated -= memory_bytes();
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
    const cuda_peers *p = d->peers;
    return p && p->reached && gpu_takes_sums(ROOM, p->invariant ? 1 : m, dims, type);
}

/* Rows for which a call has no room go into further calls. */
status cuda_peers_sum(const cuda_device *d, gpu_sums s)
{
    size_t rows = ROOM / (s.d * gpu_sum_element(s.type)), left = s.m;
    s.meeting = d->peers->meeting;
    for (; left > 0; left -= s.m) {
        s.m = left < rows ? left : rows;
        RETURN_IF_GPU_ERROR(d->api->sums(d->g, &s));
        s.x += s.m * s.d;
        s.delta += s.m * s.d;
        s.out = (uint8_t *)s.out + s.m * s.d * gpu_type_bytes(s.type);
    }
    return STATUS_IS_OK;
}

bool cuda_peers_exchanges(const cuda_device *d, size_t bytes)
{
    const cuda_peers *p = d->peers;
    return p && p->reached && !p->gathers && bytes <= ROOM;
}

status cuda_peers_exchange(const cuda_device *d, const void *in, size_t bytes, void *out)
{
    return cuda_status(d->api->exchange(d->g, &d->peers->meeting, in, bytes, out));
}

bool cuda_peers_gather(const cuda_device *d) { return d->peers && d->peers->invariant; }

status cuda_peers_sum_gathered(const cuda_device *d, float *x, size_t n)
{
    cuda_peers *p = d->peers;
    float *all = (float *)(void *)p->memory;
    p->gathers = true;
    size_t most = memory_bytes() / p->meeting.ranks / sizeof *all, some;
    for (; n > 0; n -= some, x += some) {
        some = n < most ? n : most;
        RETURN_IF_ERROR(comm_all_gather(d->group, x, some, all));
        RETURN_IF_GPU_ERROR(d->api->sum_gathered(d->g, all, p->meeting.ranks, some, x));
    }
    return STATUS_IS_OK;
}
