/* simt: CUDA kernels as plain C++ on the CPU. Every thread of a block is a fiber; where one waits
 * for others (__syncthreads, a shuffle, a matrix instruction) the next one runs, and blocks run one
 * after the other. It finds wrong layouts of fragments, wrong arithmetic, barriers and exchanges
 * that not all threads reach or that they reach at different places, asynchronous copies that were
 * not waited for, threads that end without await_previous, and launches that a device refuses. With
 * OCTAVO_SIMT_STRICT (strict.h) it also checks every access: races within a block and between
 * blocks, bounds, alignment, what is touched ahead of await_previous. */
#ifndef TESTS_SIMT_SIMT_H
#define TESTS_SIMT_SIMT_H

#include <assert.h>
#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* The running fiber. */
struct simt_place {
    dim3 grid, block, block_at, thread_at;
};
extern simt_place simt_now;

/* A launch. The memory that its arguments are copied from is the only host memory it reads. */
struct simt_job {
    const gpu *g;
    const char *name;
    const void *kernel;
    bool early; /* its threads call await_previous */
    dim3 grid, block;
    size_t shared;
    const void *args;
    size_t args_bytes;
};

/* Bytes of global memory and operations, for the device's clock (device.h). Of a kernel: bytes of
 * asynchronous copies, of loads past the first cache and of loads of what other ranks write, those
 * that all threads are taken to load and store plainly, and operations of matrix instructions. */
struct simt_work {
    uint64_t bytes, operations;
};

/* Refuses a kernel of a file in kernels/cuda/ whose code is not loaded when a gpu is opened. */
void simt_check_code(const char *file);
simt_work simt_run(const simt_job &job, const std::function<void()> &body);
simt_work simt_work_of_threads(dim3 grid, dim3 block);
/* Runs the work at once, or late (device.h); during a capture the work is recorded. */
void simt_submit(gpu *g, const std::function<void()> &work);
bool simt_count_launch(void); /* whether the launch is to be done */
/* The bytes and operations that the running kernel has asked for so far. */
extern simt_work simt_asked;
/* The device's clock goes on by the time that so much takes. */
void simt_pass_time(gpu *g, const simt_work &asked);
/* A kernel is launched, by LAUNCH_EARLY or by LAUNCH. */
void simt_chain_launch(gpu *g, bool early);
unsigned char *simt_shared(void);
void simt_sync_block(int line);
/* Every lane of the warp gives `bytes` (at most 64) and reads those of any other: lane i's are at
 * 64 * i. They stay until the warp's next exchange. All lanes must be at the same line. Where all
 * have given theirs, `join` may put there what they read instead. */
typedef void simt_join(unsigned char *all);
const unsigned char *simt_exchange(const void *mine, size_t bytes, int line,
                                   simt_join *join = NULL);
/* mma: all lanes' fragments of A and B become their sums. */
simt_join simt_multiply_bf16, simt_multiply_f16;
/* cp.async: the data arrives when its group is waited for, and not before. */
void simt_copy_async(void *shared, const void *global, bool there);
void simt_copy_commit(void);
void simt_copy_wait(unsigned left);
/* wgmma (group.cc). The 128 threads of a warpgroup make one product each time; `columns` is N, and
 * `rows` says that B's rows are those of memory, which those of 8 bits cannot be. A is in
 * registers, or, with a NULL, in shared memory at a_at, its rows those of memory. d [columns / 2]
 * is junk until the wait. */
enum simt_operands { SIMT_BF16, SIMT_F16, SIMT_E4M3 };
void simt_group_multiply(float *d, unsigned columns, const uint32_t *a, uint64_t a_at, uint64_t b,
                         bool adds, bool rows, simt_operands of, int line);
void simt_group_fence(void);
void simt_group_commit(void);
void simt_group_wait(unsigned left, int line);
uint32_t simt_shared_address(const void *p);
/* A thread that waits for another rank's kernel: the next one runs. Where all that are left wait so
 * or for each other, kernels of other ranks run; what the block had in shared memory is lost. */
void simt_spin(void);
/* Kernels run one after the other here. What a thread touches ahead of the call, strict.cc judges
 * as if the kernels before were still running. */
void simt_await_previous(void);

enum simt_access {
    SIMT_READ,
    SIMT_WRITE,
    SIMT_ATOMIC,    /* reads and writes */
    SIMT_READ_ONLY, /* through the read-only path: no kernel may write meanwhile */
    SIMT_COPY,      /* an asynchronous copy starts to write */
    SIMT_ARRIVE,    /* the copy has written */
    SIMT_REMOTE,    /* reads what a kernel of another rank may have written */
    SIMT_FLAG,      /* raises or awaits a flag between ranks */
    SIMT_OPERAND,   /* wgmma reads, for all threads of a warpgroup */
};

#ifdef OCTAVO_SIMT_STRICT
/* Records an access that is not a plain one; the compiler reports plain ones itself. */
void simt_touch(const void *p, size_t n, simt_access how);
/* A thread raises a flag, or has seen one raised (ranks.cc). */
void simt_release(const void *flag);
void simt_acquire(const void *flag);
/* wgmma may read what this thread has written to shared memory, behind the next barrier. */
void simt_fence_operands(void);
#define SIMT_RAW __attribute__((no_sanitize_thread))
#else
inline void simt_touch(const void *, size_t, simt_access) {}
inline void simt_release(const void *) {}
inline void simt_acquire(const void *) {}
inline void simt_fence_operands(void) {}
#define SIMT_RAW
#endif

/* The arguments' values at the launch count, however late it runs. */
template <class K, class... A>
inline void simt_launch(const char *name, const char *file, bool early, gpu *g, dim3 grid,
                        dim3 block, size_t shared, K kernel, A... args)
{
    auto work = [=]() { kernel(args...); };
    simt_check_code(file);
    bool is_done = simt_count_launch();
    simt_chain_launch(g, early);
    simt_submit(g, [=]() {
        simt_job job = {g,      name,  (const void *)kernel, early, grid, block,
                        shared, &work, sizeof work};
        simt_pass_time(g,
                       is_done ? simt_run(job, std::ref(work)) : simt_work_of_threads(grid, block));
    });
}

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define DEVICE               inline
#define blockIdx             simt_now.block_at
#define threadIdx            simt_now.thread_at
#define blockDim             simt_now.block
#define gridDim              simt_now.grid
#define __syncthreads()      simt_sync_block(__LINE__)
#define DYNAMIC_SHARED(name) unsigned char *name = simt_shared()
#define LAUNCH(kernel, grid, block, shared, g, ...)                                                \
    simt_launch(#kernel, __BASE_FILE__, false, g, grid, block, shared, kernel, __VA_ARGS__)
#define LAUNCH_EARLY(kernel, grid, block, shared, g, ...)                                          \
    simt_launch(#kernel, __BASE_FILE__, true, g, grid, block, shared, kernel, __VA_ARGS__)

/* ---- numbers --------------------------------------------------------------------------------- */

inline float simt_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
inline uint32_t simt_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return simt_float((uint32_t)x.bits << 16); }
inline float to_float(f16 x)
{
    uint32_t e = x.bits >> 10 & 31, m = x.bits & 1023, sign = (uint32_t)(x.bits >> 15) << 31;
    float v = e == 31 ? (m ? NAN : INFINITY)
              : e     ? simt_float((e + 112) << 23 | m << 13)
                      : (float)m * 0x1p-24f;
    return simt_float(simt_bits(v) | sign);
}
inline float to_float(e4m3 x)
{
    uint32_t e = x.bits >> 3 & 15, m = x.bits & 7, sign = (uint32_t)(x.bits >> 7) << 31;
    float v = (x.bits & 127) == 127 ? NAN
              : e                   ? simt_float((e + 120) << 23 | m << 20)
                                    : (float)m * 0x1p-9f;
    return simt_float(simt_bits(v) | sign);
}
inline float to_float(i8 x) { return (float)x.q; }

template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x)
{
    uint32_t b = simt_bits(x);
    if (x != x) return bf16{0x7fff};
    return bf16{(uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}
/* To nearest, ties to even. A subnormal is rounded where it is added to a number whose last bit is
 * worth as much as its own. */
template <> inline f16 from_float<f16>(float x)
{
    uint32_t b = simt_bits(fabsf(x)), sign = simt_bits(x) >> 16 & 0x8000;
    if (x != x) return f16{0x7fff};
    if (b < 0x38800000) b = simt_bits(fabsf(x) + 0.5f) - 0x3f000000;
    else b = (b + 0xfff + (b >> 13 & 1) - 0x38000000) >> 13;
    return f16{(uint16_t)(sign | (b < 0x7c00 ? b : 0x7c00))};
}
template <> inline e4m3 from_float<e4m3>(float x)
{
    uint32_t b = simt_bits(fabsf(x)), sign = simt_bits(x) >> 24 & 0x80;
    if (x != x) return e4m3{0x7f};
    if (b < 0x3c800000) b = simt_bits(fabsf(x) + 0x1p14f) - 0x46800000;
    else b = (b + 0x7ffff + (b >> 20 & 1) - 0x3c000000) >> 20;
    return e4m3{(uint8_t)(sign | (b < 0x7e ? b : 0x7e))};
}
inline f16 widen(e4m3 x) { return from_float<f16>(to_float(x)); }
template <class T> inline uint32_t pack2(float a, float b, T)
{
    return (uint32_t)from_float<T>(a).bits | (uint32_t)from_float<T>(b).bits << 16;
}

/* ---- warp operations ------------------------------------------------------------------------- */

template <class T> SIMT_RAW inline T shuffle_xor(T v, int mask, int line = __builtin_LINE())
{
    const unsigned char *all = simt_exchange(&v, sizeof v, line);
    T out;
    memcpy(&out, all + 64 * ((threadIdx.x ^ (unsigned)mask) % WARP), sizeof out);
    return out;
}

/* The last lane that arrives folds the values of all. */
template <int LANES, class F, class T> SIMT_RAW void simt_fold(unsigned char *all)
{
    T v[WARP], folded[WARP];
    for (int i = 0; i < WARP; i++) memcpy(&v[i], all + 64 * i, sizeof v[i]);
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        for (int i = 0; i < WARP; i++) folded[i] = F()(v[i], v[i ^ mask]);
        memcpy(v, folded, sizeof v);
    }
    for (int i = 0; i < WARP; i++) memcpy(all + 64 * i, &v[i], sizeof v[i]);
}
template <int LANES = WARP, class F, class T>
SIMT_RAW inline T warp_fold(T v, F, int line = __builtin_LINE())
{
    const unsigned char *all = simt_exchange(&v, sizeof v, line, simt_fold<LANES, F, T>);
    memcpy(&v, all + 64 * (threadIdx.x % WARP), sizeof v);
    return v;
}

template <class T> inline uint32_t subtract2(uint32_t a, uint32_t b, T)
{
    uint32_t out = 0;
    for (int i = 0; i < 2; i++) {
        T x, y;
        x.bits = (uint16_t)(a >> 16 * i);
        y.bits = (uint16_t)(b >> 16 * i);
        out |= (uint32_t)from_float<T>(to_float(x) - to_float(y)).bits << 16 * i;
    }
    return out;
}
template <class T> inline uint32_t multiply2(uint32_t a, uint32_t b, T)
{
    uint32_t out = 0;
    for (int i = 0; i < 2; i++) {
        T x, y;
        x.bits = (uint16_t)(a >> 16 * i);
        y.bits = (uint16_t)(b >> 16 * i);
        out |= (uint32_t)from_float<T>(to_float(x) * to_float(y)).bits << 16 * i;
    }
    return out;
}
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
inline uint32_t put_bits(uint32_t word, uint32_t mask, uint32_t base)
{
    return (word & mask) | base;
}
inline float product_rounded(float a, float b) { return a * b; }
inline float float_of_bits(uint32_t bits) { return simt_float(bits); }
inline uint32_t bits_of_float(float x) { return simt_bits(x); }
inline uint32_t widen2(uint32_t pair, e4m3)
{
    e4m3 low = {(uint8_t)pair}, high = {(uint8_t)(pair >> 8)};
    return (uint32_t)widen(low).bits | (uint32_t)widen(high).bits << 16;
}
inline float exp2_fast(float x) { return exp2f(x); }
inline void await_previous() { simt_await_previous(); }
inline void fence_ranks() {}
SIMT_RAW inline void raise_flag(uint32_t *flag, uint32_t value)
{
    simt_touch(flag, sizeof *flag, SIMT_FLAG);
    simt_release(flag);
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
/* Kernels of a process run one at a time, and others only in simt_spin; ranks may be in processes
 * of their own. `stop` is set by the host at any time. */
SIMT_RAW inline void await_flag(const uint32_t *flag, uint32_t value, const uint32_t *stop)
{
    simt_touch(flag, sizeof *flag, SIMT_FLAG);
    while ((int32_t)(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - value) < 0) {
        if (__atomic_load_n(stop, __ATOMIC_RELAXED)) return;
        simt_spin();
    }
    simt_acquire(flag);
}
template <class V> SIMT_RAW inline V load_shared(const V *p)
{
    assert((uintptr_t)p % sizeof *p == 0);
    simt_touch(p, sizeof *p, SIMT_REMOTE);
    simt_asked.bytes += sizeof *p;
    return *p;
}
SIMT_RAW inline vec16 load_once(const vec16 *p)
{
    assert((uintptr_t)p % 16 == 0);
    simt_touch(p, sizeof *p, SIMT_READ_ONLY);
    simt_asked.bytes += sizeof *p;
    return *p;
}

inline void store_whole(vec16 *p, vec16 v)
{
    assert((uintptr_t)p % sizeof *p == 0);
    *p = v;
}

SIMT_RAW inline uint32_t warp_ballot(bool b, int line = __builtin_LINE())
{
    const unsigned char *all = simt_exchange(&b, sizeof b, line);
    uint32_t out = 0;
    for (int i = 0; i < WARP; i++) out |= (uint32_t)(all[64 * i] != 0) << i;
    return out;
}
inline uint32_t count_bits(uint32_t x) { return (uint32_t)__builtin_popcount(x); }
/* One thread runs at a time. */
template <class T> SIMT_RAW inline T atomicAdd(T *at, T v)
{
    simt_touch(at, sizeof *at, SIMT_ATOMIC);
    T old = *at;
    *at = old + v;
    return old;
}
template <class T> SIMT_RAW inline T atomicMax(T *at, T v)
{
    simt_touch(at, sizeof *at, SIMT_ATOMIC);
    T old = *at;
    if (v > old) *at = v;
    return old;
}

inline void copy_async(void *shared, const void *global, bool there)
{
    simt_copy_async(shared, global, there);
}
inline void copy_commit() { simt_copy_commit(); }
template <int left> inline void copy_wait() { simt_copy_wait(left); }

/* Register i of a lane belongs to the matrix whose 8 rows lanes 8 i .. 8 i + 7 point to. */
SIMT_RAW inline const uint16_t *simt_row(const unsigned char *all, int matrix, int row)
{
    const uint16_t *p;
    memcpy(&p, all + 64 * (8 * matrix + row), sizeof p);
    assert((uintptr_t)p % 16 == 0);
    return p;
}
SIMT_RAW inline void load_matrices(uint32_t r[4], const void *row, int line = __builtin_LINE())
{
    const unsigned char *all = simt_exchange(&row, sizeof row, line);
    int lane = (int)(threadIdx.x % WARP);
    for (int i = 0; i < 4; i++) {
        const uint16_t *at = simt_row(all, i, lane / 4) + lane % 4 * 2;
        simt_touch(at, 4, SIMT_READ);
        memcpy(&r[i], at, 4);
    }
}
SIMT_RAW inline void load_matrices_transposed(uint32_t r[4], const void *row,
                                              int line = __builtin_LINE())
{
    const unsigned char *all = simt_exchange(&row, sizeof row, line);
    int lane = (int)(threadIdx.x % WARP);
    for (int i = 0; i < 4; i++) {
        const uint16_t *low = simt_row(all, i, lane % 4 * 2) + lane / 4;
        const uint16_t *high = simt_row(all, i, lane % 4 * 2 + 1) + lane / 4;
        simt_touch(low, 2, SIMT_READ);
        simt_touch(high, 2, SIMT_READ);
        r[i] = (uint32_t)*low | (uint32_t)*high << 16;
    }
}

inline simt_join *simt_products(bf16) { return simt_multiply_bf16; }
inline simt_join *simt_products(f16) { return simt_multiply_f16; }
template <class T>
SIMT_RAW inline void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, T of,
                              int line = __builtin_LINE())
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    simt_asked.operations += 2 * 16 * 8 * 16 / WARP;
    const unsigned char *all = simt_exchange(mine, sizeof mine, line, simt_products(of));
    float sums[4];
    memcpy(sums, all + 64 * (threadIdx.x % WARP), sizeof sums);
    for (int i = 0; i < 4; i++) d[i] += sums[i];
}

template <class T>
SIMT_RAW inline void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                              const float c[4], T, int line = __builtin_LINE())
{
    for (int i = 0; i < 4; i++) d[i] = c[i];
    multiply(d, a, b0, b1, T(), line);
}

/* ---- products of a warpgroup ----------------------------------------------------------------- */

inline uint32_t shared_address(const void *p) { return simt_shared_address(p); }
inline void fence_operands() { simt_fence_operands(); }
inline void group_fence() { simt_group_fence(); }
inline void group_commit() { simt_group_commit(); }
template <int left> inline void group_wait(int line = __builtin_LINE())
{
    simt_group_wait(left, line);
}
template <class T, int N> inline void hold(T (&)[N][4]) {}
inline simt_operands simt_operands_of(bf16) { return SIMT_BF16; }
inline simt_operands simt_operands_of(f16) { return SIMT_F16; }
template <bool ROWS, int N, class T>
inline void multiply_group(float (&d)[N][4], const uint32_t a[4], uint64_t b, bool adds, T,
                           int line = __builtin_LINE())
{
    static_assert(N == 8 || N == 12 || N == 16 || N == 32, "as nvcc has it");
    simt_group_multiply(&d[0][0], N * 8, a, 0, b, adds, ROWS, simt_operands_of(T()), line);
}
template <class T>
inline void multiply_group(float (&d)[4][4], uint64_t a, uint64_t b, bool adds, T,
                           int line = __builtin_LINE())
{
    simt_group_multiply(&d[0][0], 32, NULL, a, b, adds, false, simt_operands_of(T()), line);
}
inline void multiply_group(float (&d)[8][4], const uint32_t a[4], uint64_t b, bool adds, e4m3,
                           int line = __builtin_LINE())
{
    simt_group_multiply(&d[0][0], 64, a, 0, b, adds, false, SIMT_E4M3, line);
}

#endif
