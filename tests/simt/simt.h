/* simt: CUDA kernels as plain C++ on the CPU. Every thread of a block is a fiber; where one waits
 * for others (__syncthreads, a shuffle, a matrix instruction) the next one runs, and blocks run one
 * after the other. It finds wrong layouts of fragments, wrong arithmetic, barriers and exchanges
 * that not all threads reach or that they reach at different places, asynchronous copies that were
 * not waited for, and launches that a device refuses. With OCTAVO_SIMT_STRICT (strict.h) it also
 * checks every access: races within a block and between blocks, bounds, alignment. */
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
    dim3 grid, block;
    size_t shared;
    const void *args;
    size_t args_bytes;
};

/* Refuses a kernel of a file in kernels/cuda/ whose code is not loaded when a gpu is opened. */
void simt_check_code(const char *file);
void simt_run(const simt_job &job, const std::function<void()> &body);
/* Runs the work at once, or late (device.h); during a capture the work is recorded. */
void simt_submit(gpu *g, const std::function<void()> &work);
bool simt_count_launch(void); /* whether the launch is to be done */
unsigned char *simt_shared(void);
void simt_sync_block(int line);
/* Every lane of the warp gives `bytes` (at most 64) and reads those of any other: lane i's are at
 * 64 * i. They stay until the warp's next exchange. All lanes must be at the same line. */
const unsigned char *simt_exchange(const void *mine, size_t bytes, int line);
/* cp.async: the data arrives when its group is waited for, and not before. */
void simt_copy_async(void *shared, const void *global, bool there);
void simt_copy_commit(void);
void simt_copy_wait(unsigned left);
/* wgmma (group.cc). The 128 threads of a warpgroup make one product each time; `columns` is N, and
 * `rows` says that B's rows are those of memory, which those of 8 bits cannot be. d [columns / 2]
 * is junk until the wait. */
enum simt_operands { SIMT_BF16, SIMT_E4M3 };
void simt_group_multiply(float *d, unsigned columns, const uint32_t *a, uint64_t b, bool adds,
                         bool rows, simt_operands of, int line);
void simt_group_fence(void);
void simt_group_commit(void);
void simt_group_wait(unsigned left, int line);
uint32_t simt_shared_address(const void *p);
/* A thread that waits for another rank's kernel: the next one runs. Where all that are left wait so
 * or for each other, kernels of other ranks run; what the block had in shared memory is lost. */
void simt_spin(void);

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
inline void simt_launch(const char *name, const char *file, gpu *g, dim3 grid, dim3 block,
                        size_t shared, K kernel, A... args)
{
    auto work = [=]() { kernel(args...); };
    simt_check_code(file);
    if (!simt_count_launch()) return;
    simt_submit(g, [=]() {
        simt_job job = {g, name, (const void *)kernel, grid, block, shared, &work, sizeof work};
        simt_run(job, std::ref(work));
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
    simt_launch(#kernel, __BASE_FILE__, g, grid, block, shared, kernel, __VA_ARGS__)

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

/* Rounds to nearest, ties to even, with `mantissa` bits and exponents from `low` on (subnormals
 * below), as for all short formats here. */
inline float simt_round(float x, int mantissa, int low)
{
    if (x == 0.0f || !(fabsf(x) < INFINITY)) return x;
    int e;
    (void)frexpf(x, &e);
    e -= 1;
    if (e < low) e = low;
    return ldexpf(rintf(ldexpf(x, mantissa - e)), e - mantissa);
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return simt_float((uint32_t)x.bits << 16); }
inline float to_float(f16 x)
{
    int e = x.bits >> 10 & 31, m = x.bits & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
    return x.bits >> 15 ? -v : v;
}
inline float to_float(e4m3 x)
{
    int e = x.bits >> 3 & 15, m = x.bits & 7;
    float v = (x.bits & 127) == 127 ? NAN : e ? ldexpf(8 + m, e - 10) : ldexpf(m, -9);
    return x.bits >> 7 ? -v : v;
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
template <> inline f16 from_float<f16>(float x)
{
    uint16_t sign = (uint16_t)(simt_bits(x) >> 16 & 0x8000);
    float v = fabsf(simt_round(x, 10, -14));
    if (x != x) return f16{0x7fff};
    if (v >= 65536.0f) return f16{(uint16_t)(sign | 0x7c00)};
    if (v < 0x1p-14f) return f16{(uint16_t)(sign | (uint16_t)(v * 0x1p24f))};
    uint32_t b = simt_bits(v);
    return f16{(uint16_t)(sign | ((b >> 23) - 112) << 10 | (b >> 13 & 1023))};
}
template <> inline e4m3 from_float<e4m3>(float x)
{
    uint8_t sign = (uint8_t)(simt_bits(x) >> 24 & 0x80);
    float v = fabsf(simt_round(x, 3, -6));
    if (x != x) return e4m3{0x7f};
    if (v > 448.0f) v = 448.0f;
    if (v < 0x1p-6f) return e4m3{(uint8_t)(sign | (uint8_t)(v * 0x1p9f))};
    uint32_t b = simt_bits(v);
    return e4m3{(uint8_t)(sign | ((b >> 23) - 120) << 3 | (b >> 20 & 7))};
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
inline float product_rounded(float a, float b) { return a * b; }
inline float float_of_bits(uint32_t bits) { return simt_float(bits); }
inline uint32_t bits_of_float(float x) { return simt_bits(x); }
inline uint32_t widen2(uint32_t pair, e4m3)
{
    e4m3 low = {(uint8_t)pair}, high = {(uint8_t)(pair >> 8)};
    return (uint32_t)widen(low).bits | (uint32_t)widen(high).bits << 16;
}
inline float exp2_fast(float x) { return exp2f(x); }
inline void fence_ranks() {}
SIMT_RAW inline void raise_flag(uint32_t *flag, uint32_t value)
{
    simt_touch(flag, sizeof *flag, SIMT_FLAG);
    simt_release(flag);
    *flag = value;
}
/* Kernels run one at a time, and others only in simt_spin. `stop` is set by the host at any
 * time. */
SIMT_RAW inline void await_flag(const uint32_t *flag, uint32_t value, const uint32_t *stop)
{
    simt_touch(flag, sizeof *flag, SIMT_FLAG);
    while ((int32_t)(*(const volatile uint32_t *)flag - value) < 0) {
        if (__atomic_load_n(stop, __ATOMIC_RELAXED)) return;
        simt_spin();
    }
    simt_acquire(flag);
}
template <class V> SIMT_RAW inline V load_shared(const V *p)
{
    assert((uintptr_t)p % sizeof *p == 0);
    simt_touch(p, sizeof *p, SIMT_REMOTE);
    return *p;
}
SIMT_RAW inline vec16 load_once(const vec16 *p)
{
    assert((uintptr_t)p % 16 == 0);
    simt_touch(p, sizeof *p, SIMT_READ_ONLY);
    return *p;
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

/* PTX, "Matrix Fragments for mma.m16n8k16": A's registers are its quarters (rows 0-7 and 8-15 of
 * columns 0-7, then those of columns 8-15), B's are its upper and lower half. */
template <class T>
SIMT_RAW inline void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, T,
                              int line = __builtin_LINE())
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char *all = simt_exchange(mine, sizeof mine, line);
    int lane = (int)(threadIdx.x % WARP);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) {
            T x, y;
            int of_a = row % 8 * 4 + k % 8 / 2, of_b = column * 4 + k % 8 / 2;
            memcpy(&x, all + 64 * of_a + (row / 8 + k / 8 * 2) * 4 + k % 2 * 2, 2);
            memcpy(&y, all + 64 * of_b + (4 + k / 8) * 4 + k % 2 * 2, 2);
            sum += to_float(x) * to_float(y);
        }
        d[i] += sum;
    }
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
template <bool ROWS, int N>
inline void multiply_group(float (&d)[N][4], const uint32_t a[4], uint64_t b, bool adds, bf16,
                           int line = __builtin_LINE())
{
    static_assert(N == 8 || N == 16, "as nvcc has it");
    simt_group_multiply(&d[0][0], N * 8, a, b, adds, ROWS, SIMT_BF16, line);
}
inline void multiply_group(float (&d)[8][4], const uint32_t a[4], uint64_t b, bool adds, e4m3,
                           int line = __builtin_LINE())
{
    simt_group_multiply(&d[0][0], 64, a, b, adds, false, SIMT_E4M3, line);
}

#endif
