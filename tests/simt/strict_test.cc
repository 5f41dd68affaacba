/* Kernels with one defect each, which the emulator must report, and a kernel without a defect,
 * which must run well. */
#include "tests/simt/device.h"
#include "tests/simt/strict.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

enum { THREADS = 64, FLOATS = 6 * THREADS + 1 };

static unsigned self(void) { return threadIdx.x; }

static __global__ void right(float *x)
{
    __shared__ float some[THREADS];
    DYNAMIC_SHARED(more);
    copy_async(more + self() * 16, x + self() * 4, true);
    copy_commit();
    some[self()] = x[self() * 4 + 1];
    copy_wait<0>();
    __syncthreads();
    const float *next = (const float *)(more + (self() + 1) % THREADS * 16);
    float sum = warp_sum(some[THREADS - 1 - self()] + next[0]);
    __syncthreads();
    some[(self() + 1) % THREADS] = sum;
    x[(4 + blockIdx.x) * THREADS + self()] = sum;
    atomicAdd((unsigned *)x + FLOATS - 1, 1u);
}

static __global__ void no_barrier(float *x)
{
    __shared__ float some[THREADS];
    some[self()] = x[self()];
    x[self()] = some[self() ^ 1];
}
static __global__ void no_barrier_before_writing(float *x)
{
    __shared__ float some[THREADS];
    some[self()] = x[self()];
    __syncthreads();
    float next = some[self() ^ 1];
    some[self()] = next;
    x[self()] = next;
}
/* An exchange is no memory barrier. */
static __global__ void exchange_for_barrier(float *x)
{
    __shared__ float some[THREADS];
    some[self()] = shuffle_xor(x[self()], 1);
    x[self()] = warp_sum(1.0f) + some[self() ^ 1];
}
static __global__ void no_wait(float *x)
{
    DYNAMIC_SHARED(to);
    copy_async(to + self() * 16, x + self() * 4, true);
    copy_commit();
    __syncthreads();
    x[self()] = ((const float *)to)[(self() ^ 1) * 4];
}
/* Another thread's copies are not waited for. */
static __global__ void no_barrier_after_wait(float *x)
{
    DYNAMIC_SHARED(to);
    copy_async(to + self() * 16, x + self() * 4, true);
    copy_commit();
    copy_wait<0>();
    x[self()] = ((const float *)to)[(self() ^ 1) * 4];
}
static __global__ void wait_for_too_few(float *x)
{
    DYNAMIC_SHARED(to);
    float *mine = (float *)(to + self() * 16);
    copy_async(mine, x + self() * 4, true);
    copy_commit();
    copy_wait<1>();
    x[self() * 4] = mine[0];
}
static __global__ void unwritten(float *x)
{
    __shared__ float some[THREADS];
    if (self() != 5) some[self()] = 1.0f;
    __syncthreads();
    x[self()] = some[self()];
}
static __global__ void two_blocks(float *x) { x[self()] = (float)blockIdx.x; }
static __global__ void beyond(float *x) { x[self() + FLOATS - THREADS + 1] = 0.0f; }
static __global__ void beyond_shared(float *x)
{
    DYNAMIC_SHARED(to);
    ((float *)to)[self() + THREADS * 4 - 1] = x[self()];
}
static __global__ void of_the_host(float *x) { x[self()] = 1.0f; }
static __global__ void not_aligned(const float *x) { (void)load_once((const vec16 *)(x + self())); }
static __global__ void no_aligned_vector(float *x)
{
    *(vec16 *)(x + 1 + self() * 4) = vec16{{0, 0, 0, 0}};
}
static __global__ void read_only_path(float *x)
{
    x[self()] = 1.0f;
    (void)load_once((const vec16 *)(x + (self() & ~3u)));
}
static __global__ void half_a_warp(float *x)
{
    if (self() % 2) x[self()] = warp_sum(1.0f);
    else x[self()] = shuffle_xor(1.0f, 1);
}
static __global__ void two_barriers(float *x)
{
    if (self() % 2) __syncthreads();
    else __syncthreads();
    x[self()] = 1.0f;
}
static __global__ void never_there(float *x)
{
    if (self() % 2) __syncthreads();
    x[self()] = 1.0f;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The memory that one of two ranks reaches: rows of THREADS floats of both, a row for each of two
 * blocks, and a flag for each block, which the other rank raises. */
struct rank_view {
    unsigned rank;
    float *own;
    const float *other;
    uint32_t *flags, *of_other;
    const uint32_t *stop;
};

static void write_row(rank_view v, float x) { v.own[blockIdx.x * THREADS + self()] = x; }
static void read_row(rank_view v)
{
    (void)load_shared((const vec8 *)(v.other + blockIdx.x * THREADS + self() / 2 * 2));
}
static void raise(rank_view v, uint32_t value)
{
    if (self() == 0) raise_flag(v.of_other + blockIdx.x, value);
}
static void await(rank_view v, unsigned block, uint32_t value)
{
    if (self() == 0) await_flag(v.flags + block, value, v.stop);
}
static void meet(rank_view v, uint32_t value)
{
    __syncthreads();
    raise(v, value);
    await(v, blockIdx.x, value);
    __syncthreads();
}

static __global__ void ranks_right(rank_view v)
{
    write_row(v, 1.0f);
    meet(v, 1);
    read_row(v);
    meet(v, 2);
    write_row(v, 2.0f);
    meet(v, 3);
    read_row(v);
}
static __global__ void awaits_no_flag(rank_view v)
{
    write_row(v, 1.0f);
    __syncthreads();
    raise(v, 1);
    read_row(v);
}
static __global__ void no_barrier_before_raising(rank_view v)
{
    write_row(v, 1.0f);
    raise(v, 1);
    await(v, blockIdx.x, 1);
    __syncthreads();
    read_row(v);
}
static __global__ void no_barrier_after_awaiting(rank_view v)
{
    write_row(v, 1.0f);
    __syncthreads();
    raise(v, 1);
    await(v, blockIdx.x, 1);
    read_row(v);
}
static __global__ void awaits_another_block(rank_view v)
{
    write_row(v, 1.0f);
    __syncthreads();
    raise(v, 1);
    await(v, 0, 1);
    __syncthreads();
    read_row(v);
}
static __global__ void raises_before_reading(rank_view v)
{
    write_row(v, 1.0f);
    meet(v, 1);
    if (v.rank == 0) {
        raise(v, 2);
        read_row(v);
        return;
    }
    await(v, blockIdx.x, 2);
    __syncthreads();
    write_row(v, 2.0f);
}

typedef struct planted {
    const char *name;
    void (*kernel)(float *);
    const char *says;
    unsigned blocks, n_shared;
    bool host;
} planted;

static void read_unaligned(float *x) { not_aligned(x); }

static const planted all[] = {
    {"nothing", right, NULL, 2, THREADS * 16, false},
    {"no barrier", no_barrier, "that no thread wrote", 1, 0, false},
    {"write after read", no_barrier_before_writing, "race with", 1, 0, false},
    {"exchange for a barrier", exchange_for_barrier, "race with a write", 1, 0, false},
    {"no wait", no_wait, "a copy is under way", 1, THREADS * 16, false},
    {"no barrier after the wait", no_barrier_after_wait, "that no thread wrote", 1, THREADS * 16,
     false},
    {"waits for too few groups", wait_for_too_few, "a copy is under way", 1, THREADS * 16, false},
    {"unwritten shared memory", unwritten, "shared memory that no thread wrote", 1, 0, false},
    {"two blocks", two_blocks, "race with a block", 2, 0, false},
    {"out of bounds", beyond, "outside of what is allocated", 1, 0, false},
    {"out of shared memory", beyond_shared, "outside of shared memory", 1, THREADS * 16, false},
    {"a host's pointer", of_the_host, "memory of the host", 1, 0, true},
    {"16 bytes not aligned", read_unaligned, "Assertion", 1, 0, false},
    {"a vector not aligned", no_aligned_vector, "misaligned", 1, 0, false},
    {"read-only path", read_only_path, "read-only path", 1, 0, false},
    {"an exchange of half a warp", half_a_warp, "different places", 1, 0, false},
    {"two barriers", two_barriers, "different places", 1, 0, false},
    {"a barrier not reached", never_there, "wait at a barrier", 1, 0, false},
    {"shared memory not asked for", right, "than was asked for", 1, 50 << 10, false},
    {"no blocks", right, "a grid without blocks", 0, 0, false},
};

static const struct planted_ranks {
    const char *name;
    void (*kernel)(rank_view);
    const char *says;
} of_ranks[] = {
    {"ranks: nothing", ranks_right, NULL},
    {"ranks: awaits no flag", awaits_no_flag, "another rank"},
    {"ranks: no barrier before a flag", no_barrier_before_raising, "another rank has written"},
    {"ranks: no barrier behind a flag", no_barrier_after_awaiting, "another rank"},
    {"ranks: awaits another block's", awaits_another_block, "another rank"},
    {"ranks: a flag before reading", raises_before_reading, "another rank may still read"},
};

/* Two gpus of one device, each with a thread of the host. */
static void run_ranks(const planted_ranks *p)
{
    enum { BLOCKS = 2, FLAGS = BLOCKS * THREADS, WORDS = FLAGS + BLOCKS };
    const gpu_api *api = octavo_cuda_api(GPU_API_VERSION);
    static const uint32_t stop = 0;
    gpu *g[2];
    gpu_facts facts;
    char why[64];
    void *words[2];
    std::thread threads[2];
    for (int r = 0; r < 2; r++) {
        if (api->open(0, &g[r], &facts, why, sizeof why) != GPU_OK) exit(1);
        if (api->alloc(g[r], WORDS * sizeof(float), &words[r]) != GPU_OK) exit(1);
    }
    for (unsigned r = 0; r < 2; r++) {
        float *own = (float *)words[r], *other = (float *)words[1 - r];
        rank_view v = {r, own, other, (uint32_t *)own + FLAGS, (uint32_t *)other + FLAGS, &stop};
        threads[r] = std::thread([=]() { LAUNCH(p->kernel, BLOCKS, THREADS, 0, g[r], v); });
    }
    for (std::thread &t : threads) t.join();
}

static void run(const planted *p)
{
    const gpu_api *api = octavo_cuda_api(GPU_API_VERSION);
    gpu *g;
    gpu_facts facts;
    char why[64];
    void *x;
    if (api->open(0, &g, &facts, why, sizeof why) != GPU_OK) exit(1);
    if (api->alloc(g, FLOATS * sizeof(float), &x) != GPU_OK) exit(1);
    void *host = p->host ? calloc(THREADS, sizeof(float)) : NULL;
    LAUNCH(p->kernel, p->blocks, THREADS, p->n_shared, g, (float *)(host ? host : x));
    free(host);
    api->release(g, x);
    api->close(g);
}

/* Runs in a process of its own, whose output is read. */
static bool is_found(const char *name, const char *says, const std::function<void()> &work)
{
    int ends[2];
    char output[2048];
    size_t n = 0;
    if (pipe(ends) != 0) return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        work();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t some; (some = read(ends[0], output + n, sizeof output - 1 - n)) > 0;)
        n += (size_t)some;
    output[n] = '\0';
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool found = says ? !well && strstr(output, says) : well;
    printf("%s  %-32s %s\n", found ? "PASS" : "FAIL", name, found ? "" : output);
    return found;
}

int main(void)
{
    unsigned n_failed = 0;
    for (const planted &p : all) n_failed += !is_found(p.name, p.says, [&]() { run(&p); });
    for (const planted_ranks &p : of_ranks)
        n_failed += !is_found(p.name, p.says, [&]() { run_ranks(&p); });
    return n_failed != 0;
}
