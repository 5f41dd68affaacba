/* Kernels with one defect each, which the emulator must report, and a kernel without a defect,
 * which must run well. */
#include "tests/simt/strict_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

enum { FLOATS = 6 * THREADS + 1 };

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
static __global__ void partly_beyond(float *x)
{
    if (self() == 0) *(vec16 *)(x + FLOATS - 1) = vec16{{0, 0, 0, 0}};
}
/* A thread writes the last word of a vector that another one reads. */
static __global__ void race_in_a_vector(float *x)
{
    DYNAMIC_SHARED(all);
    vec16 *own = (vec16 *)all + self();
    *own = vec16{{0, 0, 0, 0}};
    __syncthreads();
    if (self() % 2 == 0) ((uint32_t *)(own + 1))[3] = 1;
    else *(vec16 *)(x + self() * 4) = *own;
}
static __global__ void unwritten_in_a_vector(float *x)
{
    DYNAMIC_SHARED(all);
    uint32_t *own = (uint32_t *)all + self() * 4;
    for (int i = 0; i < 3; i++) own[i] = 0;
    *(vec16 *)(x + self() * 4) = *(vec16 *)own;
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

/* ---- products of a warpgroup ----------------------------------------------------------------- */

enum { GROUP_THREADS = 128, OPERAND_BYTES = 64 * 128, GROUP_BYTES = 1024 + 2 * OPERAND_BYTES };

/* Two or four ones of a type, and the sum of a row of them in a product. */
template <class T> struct ones_of;
template <> struct ones_of<bf16> {
    static const uint32_t word = 0x3f803f80;
    static constexpr float sum = 16.0f;
};
template <> struct ones_of<e4m3> {
    static const uint32_t word = 0x38383838;
    static constexpr float sum = 32.0f;
};

/* b [K, 64] of ones where wgmma takes it, at a multiple of 1024 bytes: a row of memory for each
 * column, of which K is the first 32 bytes. `at`: OPERAND_BYTES for a second one. */
template <class T> static unsigned char *write_operand(unsigned at = 0)
{
    DYNAMIC_SHARED(all);
    const uint32_t one = ones_of<T>::word;
    unsigned char *to = all + (1024 - shared_address(all) % 1024) % 1024 + at;
    for (unsigned i = 0; i < 4; i++)
        *(vec16 *)(to + (i * GROUP_THREADS + self()) * 16) = vec16{{one, one, one, one}};
    return to;
}
static void multiply_ones(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bf16)
{
    multiply_group<false>(d, a, b, false, bf16());
}
static void multiply_ones(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, e4m3)
{
    multiply_group(d, a, b, false, e4m3());
}
template <class T>
static void start_product(const unsigned char *b, const uint32_t (&a)[4], float (&d)[8][4])
{
    multiply_ones(d, a, group_operand(b, 0, 1024), T());
    group_commit();
}
template <class T> static void put_sum(float *x, const float (&d)[8][4])
{
    if (d[7][3] == ones_of<T>::sum) x[self()] = d[7][3];
    else x[FLOATS] = 0.0f; /* beyond the end */
}

template <class T> static __global__ void group_right(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_without_fence(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    start_product<T>(b, a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_changed_behind_fence(float *x)
{
    uint32_t a[4] = {0, 0, 0, 0};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    group_wait<0>();
    group_fence();
    for (uint32_t &ones : a) ones = ones_of<T>::word;
    start_product<T>(b, a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_without_wait(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    x[self()] = d[0][0];
}
/* The wait leaves one group, the only one. */
template <class T> static __global__ void group_waits_for_too_few(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    group_wait<1>();
    put_sum<T>(x, d);
    group_wait<0>();
}
template <class T> static __global__ void group_accumulator_changed(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    d[1][1] = x[self()];
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_no_proxy_fence(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_no_barrier(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    (void)warp_sum(1.0f); /* the warp has written */
    group_fence();
    start_product<T>(b, a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
template <class T> static __global__ void group_operand_changed(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    __syncthreads();
    (void)write_operand<T>();
    __syncthreads();
    group_wait<0>();
    put_sum<T>(x, d);
}
/* Rows of a product in shared memory, which are written again while it is under way. */
static void multiply_rows(float *x, bool changes)
{
    const unsigned char *b = write_operand<bf16>(), *a = write_operand<bf16>(OPERAND_BYTES);
    float d[4][4];
    fence_operands();
    __syncthreads();
    group_fence();
    multiply_group(d, group_operand(a, 0, 1024), group_operand(b, 0, 1024), false, bf16());
    group_commit();
    __syncthreads();
    if (changes) (void)write_operand<bf16>(OPERAND_BYTES);
    __syncthreads();
    group_wait<0>();
    if (d[3][3] == ones_of<bf16>::sum) x[self()] = d[3][3];
    else x[FLOATS] = 0.0f; /* beyond the end */
}
static __global__ void group_rows_right(float *x) { multiply_rows(x, false); }
static __global__ void group_rows_changed(float *x) { multiply_rows(x, true); }

template <class T> static __global__ void group_differs(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    const unsigned char *b = write_operand<T>();
    float d[8][4];
    fence_operands();
    __syncthreads();
    group_fence();
    start_product<T>(b + (self() == 77 ? 16 : 0), a, d);
    group_wait<0>();
    put_sum<T>(x, d);
}
/* Half a product of the usual order of fence and barrier: the copy is fenced before it arrived. */
template <class T> static __global__ void group_fence_before_arrival(float *x)
{
    const uint32_t one = ones_of<T>::word, a[4] = {one, one, one, one};
    DYNAMIC_SHARED(all);
    unsigned char *b = all + (1024 - shared_address(all) % 1024) % 1024;
    float d[8][4];
    copy_async(b + self() * 16, x, true);
    copy_commit();
    fence_operands();
    copy_wait<0>();
    __syncthreads();
    group_fence();
    start_product<T>(b, a, d);
    group_wait<0>();
    x[self()] = d[0][0];
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
    unsigned n_threads; /* 0: THREADS */
} planted;

static void read_unaligned(float *x) { not_aligned(x); }

static const planted all[] = {
    {"nothing", right, NULL, 2, THREADS * 16, false, 0},
    {"no barrier", no_barrier, "that no thread wrote", 1, 0, false, 0},
    {"write after read", no_barrier_before_writing, "race with", 1, 0, false, 0},
    {"exchange for a barrier", exchange_for_barrier, "race with a write", 1, 0, false, 0},
    {"no wait", no_wait, "a copy is under way", 1, THREADS * 16, false, 0},
    {"no barrier after the wait", no_barrier_after_wait, "that no thread wrote", 1, THREADS * 16,
     false, 0},
    {"waits for too few groups", wait_for_too_few, "a copy is under way", 1, THREADS * 16, false,
     0},
    {"unwritten shared memory", unwritten, "shared memory that no thread wrote", 1, 0, false, 0},
    {"two blocks", two_blocks, "race with a block", 2, 0, false, 0},
    {"out of bounds", beyond, "outside of what is allocated", 1, 0, false, 0},
    {"out of shared memory", beyond_shared, "outside of shared memory", 1, THREADS * 16, false, 0},
    {"partly out of bounds", partly_beyond, "outside of what is allocated", 1, 0, false, 0},
    {"a race in a part", race_in_a_vector, "race with a write", 1, THREADS * 16, false, 0},
    {"unwritten in a part", unwritten_in_a_vector, "that no thread wrote", 1, THREADS * 16, false,
     0},
    {"a host's pointer", of_the_host, "memory of the host", 1, 0, true, 0},
    {"16 bytes not aligned", read_unaligned, "Assertion", 1, 0, false, 0},
    {"a vector not aligned", no_aligned_vector, "misaligned", 1, 0, false, 0},
    {"read-only path", read_only_path, "read-only path", 1, 0, false, 0},
    {"an exchange of half a warp", half_a_warp, "different places", 1, 0, false, 0},
    {"two barriers", two_barriers, "different places", 1, 0, false, 0},
    {"a barrier not reached", never_there, "wait at a barrier", 1, 0, false, 0},
    {"shared memory not asked for", right, "than was asked for", 1, 50 << 10, false, 0},
    {"no blocks", right, "a grid without blocks", 0, 0, false, 0},
#define WGMMA(name, kernel, says)                                                                  \
    {"wgmma: " name, kernel<bf16>, says, 1, GROUP_BYTES, false, GROUP_THREADS},                    \
    {                                                                                              \
        "wgmma of e4m3: " name, kernel<e4m3>, says, 1, GROUP_BYTES, false, GROUP_THREADS           \
    }
    WGMMA("nothing", group_right, NULL),
    WGMMA("no fence", group_without_fence, "wgmma without a fence"),
    WGMMA("an operand changed behind the fence", group_changed_behind_fence,
          "changed behind the fence"),
    WGMMA("no wait", group_without_wait, "while a product is under way"),
    WGMMA("waits for too few groups", group_waits_for_too_few, "outside of what is allocated"),
    WGMMA("an accumulator changed", group_accumulator_changed, "an accumulator changed"),
    WGMMA("no fence of the proxy", group_no_proxy_fence, "has not fenced"),
    WGMMA("no barrier", group_no_barrier, "race with a write"),
    WGMMA("an operand in memory changed", group_operand_changed, "changed while a product"),
    WGMMA("threads differ", group_differs, "different products"),
    WGMMA("a fence before the copy", group_fence_before_arrival, "has not fenced"),
#undef WGMMA
    {"wgmma of rows in memory: nothing", group_rows_right, NULL, 1, GROUP_BYTES, false,
     GROUP_THREADS},
    {"wgmma of rows in memory: changed", group_rows_changed, "changed while a product", 1,
     GROUP_BYTES, false, GROUP_THREADS},
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
    LAUNCH(p->kernel, p->blocks, p->n_threads ? p->n_threads : (unsigned)THREADS, p->n_shared, g,
           (float *)(host ? host : x));
    free(host);
    api->release(g, x);
    api->close(g);
}

bool is_found(const char *name, const char *says, const std::function<void()> &work)
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
    static const planted newer = {"", group_right<bf16>, "", 1, GROUP_BYTES, false, GROUP_THREADS};
    unsigned n_failed = 0;
    n_failed += !is_found("wgmma: a newer device", "device that has none", []() {
        simt_have_compute(100);
        run(&newer);
    });
    simt_have_compute(90);
    for (const planted &p : all) n_failed += !is_found(p.name, p.says, [&]() { run(&p); });
    for (const planted_ranks &p : of_ranks)
        n_failed += !is_found(p.name, p.says, [&]() { run_ranks(&p); });
    n_failed += check_early();
    n_failed += !is_found("a kernel in code.inc", NULL,
                          []() { simt_check_code("/tree/kernels/cuda/rows.cu"); });
    n_failed += !is_found("a kernel that is not", "code.inc does not have",
                          []() { simt_check_code("/tree/kernels/cuda/row.cu"); });
    return n_failed != 0;
}
