/* kernels/cuda, private: the operations that kernels are written with; every one that is not C++ is
 * here. nvcc turns them into the GPU's instructions. With OCTAVO_SIMT a C++ compiler makes the same
 * kernels run on the CPU (tests/simt/simt.h), which tests them where there is no GPU. */
#ifndef KERNELS_CUDA_SIMT_CUH
#define KERNELS_CUDA_SIMT_CUH

#include "kernels/cuda/cuda_kernels.h"

#include <math.h>

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct e4m3 {
    uint8_t bits;
};
struct i8 {
    int8_t q; /* times the scale of its slot */
};
struct alignas(16) vec16 {
    uint32_t w[4];
};
struct alignas(8) vec8 {
    uint32_t w[2];
};

enum { WARP = 32 };

#ifdef OCTAVO_SIMT
#include "tests/simt/simt.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#define DEVICE               __device__ __forceinline__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define LAUNCH(kernel, grid, block, shared, g, ...)                                                \
    (kernel)<<<(grid), (block), (shared), gpu_stream(g)>>>(__VA_ARGS__)
#define LAUNCH_EARLY(kernel, grid, block, shared, g, ...)                                          \
    gpu_launch_early(g, kernel, grid, block, shared, __VA_ARGS__)

/* Waits until all kernels before this one have ended, and lets the next one start, up to its own
 * call. Every thread of a kernel that LAUNCH_EARLY launches makes the call, and touches no memory
 * of the device before it but weights, which no kernel of a step writes. */
DEVICE void await_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE float to_float(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
DEVICE f16 widen(e4m3 x)
{
    return f16{__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)x.bits, __NV_E4M3).x};
}
DEVICE float to_float(e4m3 x) { return to_float(widen(x)); }
DEVICE float to_float(i8 x) { return (float)x.q; }
template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x)
{
    return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <> DEVICE f16 from_float<f16>(float x)
{
    return f16{__half_as_ushort(__float2half_rn(x))};
}
template <> DEVICE e4m3 from_float<e4m3>(float x)
{
    return e4m3{(uint8_t)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}

/* Packs two values into a register, the first one into the low half. */
DEVICE uint32_t pack2(float a, float b, bf16)
{
    return (uint32_t)from_float<bf16>(a).bits | (uint32_t)from_float<bf16>(b).bits << 16;
}
DEVICE uint32_t pack2(float a, float b, f16)
{
    return (uint32_t)from_float<f16>(a).bits | (uint32_t)from_float<f16>(b).bits << 16;
}

DEVICE uint32_t warp_ballot(bool b) { return __ballot_sync(~0u, b); }
DEVICE uint32_t count_bits(uint32_t x) { return (uint32_t)__popc(x); }
template <class T> DEVICE T shuffle_xor(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }

/* v = f(v, the v of another lane): of the one LANES / 2 away, then of one half as far, and so on.
 * All lanes of LANES get the same, where f does not mind the order of its two. */
template <int LANES = WARP, class F, class T> DEVICE T warp_fold(T v, F f)
{
    for (int mask = LANES / 2; mask > 0; mask /= 2) v = f(v, shuffle_xor(v, mask));
    return v;
}

/* The halves of a minus those of b. */
DEVICE uint32_t subtract2(uint32_t a, uint32_t b, f16)
{
    __half2 d = __hsub2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&d;
}
DEVICE uint32_t subtract2(uint32_t a, uint32_t b, bf16)
{
    __nv_bfloat162 d = __hsub2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&d;
}
/* The halves of a times those of b. */
DEVICE uint32_t multiply2(uint32_t a, uint32_t b, f16)
{
    __half2 d = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&d;
}
DEVICE uint32_t multiply2(uint32_t a, uint32_t b, bf16)
{
    __nv_bfloat162 d = __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&d;
}
/* Byte i of the result is byte (selector >> 4 i & 7) of a (0 to 3) and b (4 to 7). */
DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}
/* word & mask | base in one instruction: of two constants the compiler would make two. */
DEVICE uint32_t put_bits(uint32_t word, uint32_t mask, uint32_t base)
{
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(base));
    return out;
}
/* Never part of a fused multiply-add. */
DEVICE float product_rounded(float a, float b) { return __fmul_rn(a, b); }
DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t bits_of_float(float x) { return __float_as_uint(x); }
/* Widens the two e4m3 in the low half of `pair` to f16. */
DEVICE uint32_t widen2(uint32_t pair, e4m3)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)pair, __NV_E4M3);
    return (uint32_t)h.x | (uint32_t)h.y << 16;
}
/* 2^x by the hardware: 2 ulp, denormals are 0. */
DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Loads what is read only once, past the first cache. */
/* Memory that several gpus write: what a rank has written before a fence and raises a flag behind
 * it, another one sees once it has seen the flag. await_flag ends early where *stop is not 0. */
DEVICE void fence_ranks() { __threadfence_system(); }
DEVICE void raise_flag(uint32_t *flag, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DEVICE void await_flag(const uint32_t *flag, uint32_t value, const uint32_t *stop)
{
    enum { LOOKS = 1024 }; /* at the flag, before one at host memory */
    for (uint32_t n = 1;; n++) {
        uint32_t now;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(now) : "l"(flag) : "memory");
        if ((int32_t)(now - value) >= 0) return;
        if (n % LOOKS == 0 && *(const volatile uint32_t *)stop) return;
    }
}
DEVICE vec16 load_shared(const vec16 *p)
{
    vec16 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p));
    return v;
}
DEVICE vec8 load_shared(const vec8 *p)
{
    vec8 v;
    asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p));
    return v;
}
DEVICE uint32_t load_shared(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE vec16 load_once(const vec16 *p)
{
    vec16 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
        : "l"(p));
    return v;
}
/* Stores 16 bytes by one instruction. nvcc cuts some stores of a struct into four. */
DEVICE void store_whole(vec16 *p, vec16 v)
{
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]),
                 "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

/* Starts copying 16 bytes to shared memory, or zeros when not `there`. */
DEVICE void copy_async(void *shared, const void *global, bool there)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(global),
                 "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all but the last `left` of this thread's groups have arrived. */
template <int left> DEVICE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

DEVICE void load_matrices(uint32_t r[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
DEVICE void load_matrices_transposed(uint32_t r[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* d [16, 8] += a [16, 16] * b [16, 8]. */
DEVICE void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, bf16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, f16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* d = a * b + c, where c is another array, which is not copied first. */
DEVICE void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const float c[4],
                     bf16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]),
                   "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
DEVICE void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const float c[4],
                     f16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]),
                   "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

/* Keeps the compiler from moving uses of these registers across this place: it does not know which
 * instructions of wgmma.cuh read or write them. */
template <int N> DEVICE void hold(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
template <int N> DEVICE void hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}

#endif

/* ---- reductions ------------------------------------------------------------------------------ */

struct sum_of_two {
    template <class T> DEVICE T operator()(T a, T b) const { return a + b; }
};
struct larger_of_two {
    DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
    DEVICE uint32_t operator()(uint32_t a, uint32_t b) const { return b > a ? b : a; }
};

DEVICE float warp_sum(float v) { return warp_fold(v, sum_of_two()); }

/* The sum over a block of at most 1024 threads, a multiple of WARP; every thread gets it. */
static DEVICE float block_sum(float v)
{
    __shared__ float of_warp[WARP];
    unsigned warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    v = warp_sum(v);
    __syncthreads(); /* the previous call's of_warp may still be read */
    if (lane == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_sum(lane < warps ? of_warp[lane] : 0.0f);
}

/* The maximum over a block, as block_sum. */
static DEVICE float block_max(float v)
{
    __shared__ float of_warp[WARP];
    unsigned warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    v = warp_fold(v, larger_of_two());
    __syncthreads();
    if (lane == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_fold(lane < warps ? of_warp[lane] : -INFINITY, larger_of_two());
}

/* Whether a row has a softmax (base/logits.h). */
static DEVICE bool has_softmax(float largest, bool is_nan)
{
    return !is_nan && fabsf(largest) < INFINITY;
}

/* Calls f(x[i], i) for every blockDim.x-th i below n, from the thread's own on. Eight loads are
 * issued before the first is used; a plain loop with a branch would wait for each. f may write to
 * x[i]. */
template <class T, class F> static DEVICE void for_each(const T *x, uint32_t n, F f)
{
    enum { AT_ONCE = 8 };
    for (uint32_t first = threadIdx.x; first < n; first += AT_ONCE * blockDim.x) {
        T v[AT_ONCE];
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            uint32_t i = first + j * blockDim.x;
            v[j] = i < n ? x[i] : T();
        }
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            uint32_t i = first + j * blockDim.x;
            if (i < n) f(v[j], i);
        }
    }
}

/* ---- between kernels and the host ------------------------------------------------------------ */

/* The state behind a gpu (device.cu; tests/simt/device.cc). */
#ifndef OCTAVO_SIMT
/* The stream, for work that begins when all before it has ended, and that the next kernel waits
 * for. */
cudaStream_t gpu_stream(gpu *g);
/* The stream, for a kernel that calls await_previous, and whether it may start before the kernel in
 * front has ended: that one was launched so too. What a chain of such kernels reads ahead of its
 * call was then written before the first of them began. */
cudaStream_t gpu_stream_early(gpu *g, bool *early);

template <class... P, class... A>
static inline void gpu_launch_early(gpu *g, void (*kernel)(P...), dim3 grid, dim3 block,
                                    size_t shared, A... args)
{
    cudaLaunchAttribute start = {};
    cudaLaunchConfig_t config = {};
    bool early;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = gpu_stream_early(g, &early);
    start.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    start.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &start;
    config.numAttrs = early;
    (void)cudaLaunchKernelEx(&config, kernel, args...); /* gpu_launched has the error */
}
#endif
/* The result of the launches since the last call. */
gpu_status gpu_launched(gpu *g, const char *what);
/* y = x * W^T by cublasLt; w's data are operands of w->type. */
gpu_status gpu_library_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                               gpu_type y_type);
/* On: products by cublasLt of shapes that were not timed yet run its best algorithms a few times
 * each, take the fastest, and wait. False where that is not done: in invariant mode, where there
 * is no cublasLt. */
bool gpu_library_times(gpu *g, bool on);
/* Allows a kernel that much dynamic shared memory, the same at each call. */
gpu_status gpu_allow_shared(gpu *g, const void *kernel, size_t bytes);
/* Makes the gpu's device current, and gives its ordinal. */
uint32_t gpu_enter(gpu *g);
/* Keeps what is refused, and why, for `why` of the table. GPU_UNSUPPORTED. */
gpu_status gpu_refuse(gpu *g, const char *what, const char *why);
uint32_t gpu_sms(const gpu *g);
uint32_t gpu_compute(const gpu *g); /* 90 is capability 9.0 */
bool gpu_is_invariant(const gpu *g);
bool gpu_is_narrow(const gpu *g);
gpu_few gpu_few_of(const gpu *g);

gpu_status gpu_attend_bf16(gpu *g, const gpu_attention *a);
gpu_status gpu_attend_f16(gpu *g, const gpu_attention *a);
gpu_status gpu_attend_e4m3(gpu *g, const gpu_attention *a);
gpu_status gpu_attend_int8(gpu *g, const gpu_attention *a);
/* attention_wide.cuh: the prefill tiles, of GPU_WIDE_ROWS rows. */
gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, bf16);
gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, f16);
gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, e4m3);
gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, i8);

/* mass.cu: MASS, RAW and VALUE_WEIGHT by slot. */
gpu_status gpu_mass(gpu *g, const gpu_measure *m);
/* kept.cu: MASS of the sequences of which attention has kept something. */
gpu_status gpu_mass_kept(gpu *g, const gpu_measure *m);
/* outside.cu: OUTSIDE and POOLED. */
gpu_status gpu_outside(gpu *g, const gpu_measure *m);
/* expected.cu: EXPECTED. */
gpu_status gpu_expected(gpu *g, const gpu_measure *m);
/* products.cu: *out is w as rows of `type`, a 16-bit type: w's own data, or a copy in `scratch`. */
gpu_status gpu_operands(gpu *g, const gpu_matrix *w, gpu_type type, void *scratch,
                        const void **out);

/* few.cu: products that read W once. The entries of experts: entry i is row x_rows[i] of x, or row
 * i when x_rows is NULL. */
struct gpu_experts_list {
    const gpu_expert_tile *tiles;
    const uint32_t *rows;
};
static inline bool gpu_takes_few(const gpu_matrix *w)
{
    return w->type != GPU_F32 && w->k % 8 == 0;
}
gpu_status gpu_few_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                           gpu_type y_type);
gpu_status gpu_few_experts(gpu *g, const gpu_matrix *w, const void *x, const gpu_experts_list *list,
                           uint32_t n_tiles, uint32_t tile_rows, void *y, gpu_type y_type);

/* grouped.cu: products of tiles of up to GPU_GROUPED_ROWS entries, of any distribution. */
enum { GPU_GROUPED_ROWS = 128 };
gpu_status gpu_grouped_product(gpu *g, const gpu_matrix *w, const void *x,
                               const gpu_experts_list *list, uint32_t n_tiles, void *y,
                               gpu_type y_type);

/* The same kernels for one quantised W that gpu_takes_few: all m rows of x in their order. */
gpu_status gpu_staged_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                              gpu_type y_type);

/* A file's code is loaded by one of its kernels, which its last line names: GPU_CODE(file, kernel).
 * code.inc lists the files. */
#define GPU_CODE(file, ...)                                                                        \
    const void *gpu_code_of_##file(void) { return (const void *)(__VA_ARGS__); }
#define CODE(file)      const void *gpu_code_of_##file(void);
#define WIDE_CODE(file) CODE(file)
#include "kernels/cuda/code.inc"
#undef WIDE_CODE
#undef CODE

/* The functions of the table, by file. */
extern "C" {
/* rows.cu */
gpu_status gpu_embed(gpu *g, const gpu_matrix *w, const gpu_tokens *tokens, size_t n, float scale,
                     float *x);
gpu_status gpu_angles(gpu *g, const float *inv_freq, const uint32_t *positions, size_t n,
                      uint32_t head_dim, float factor, float *angles);
gpu_status gpu_norm(gpu *g, float *x, const float *delta, const float *weight, float eps, size_t m,
                    size_t d, void *out, gpu_type type);
gpu_status gpu_gate(gpu *g, const void *gate_up, size_t m, size_t d, bool gelu, void *out,
                    gpu_type type);
gpu_status gpu_gather(gpu *g, const void *x, const uint32_t *rows, size_t n, size_t bytes,
                      void *out);
/* sums.cu */
gpu_status gpu_sum_up(gpu *g, const gpu_sums *s);
gpu_status gpu_exchange(gpu *g, const gpu_meeting *m, const void *in, size_t bytes, void *out);
gpu_status gpu_sum_gathered(gpu *g, const float *all, uint32_t ranks, size_t n, float *out);
/* reach.cu */
gpu_status gpu_share(gpu *g, void *device, gpu_handle *out);
gpu_status gpu_reach(gpu *g, const gpu_handle *from, void **out);
void gpu_unreach(gpu *g, const gpu_handle *from, void *device);
/* mask.cu */
gpu_status gpu_mask(gpu *g, float *logits, size_t n, uint32_t first_token, const uint32_t *masks,
                    size_t m, const uint32_t *words, size_t n_words);
/* experts.cu */
gpu_status gpu_run_experts(gpu *g, const gpu_experts *e);
/* sample.cu */
gpu_status gpu_sample(gpu *g, const gpu_sampling *s);
gpu_status gpu_draw_parts(gpu *g, const gpu_sampling *s, gpu_part *parts, gpu_opening *openings);
gpu_status gpu_find_bins(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_bins *bins);
gpu_status gpu_draw_kept(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_part *parts);
/* parts.cu */
gpu_status gpu_decide(gpu *g, const gpu_part *parts, uint32_t ranks, size_t n,
                      const gpu_draw *draws, gpu_drawn *drawn);
gpu_status gpu_join(gpu *g, const float *parts, size_t n, size_t slice, size_t vocab, float *out);
/* heads.cu */
gpu_status gpu_write_heads(gpu *g, const gpu_heads *h);
gpu_status gpu_moves(gpu *g, const gpu_pages *pages, gpu_grain grain, const gpu_move *moves,
                     const gpu_chain *chains, uint32_t n_chains, const float *rope_shifts);
gpu_status gpu_patches(gpu *g, uint32_t *pages, const gpu_patch *patches, uint32_t n,
                       const uint32_t *values);
/* observe.cu */
gpu_status gpu_observe(gpu *g, const gpu_observed *o);
/* retrieve.cu */
gpu_status gpu_retrieve(gpu *g, const gpu_retrieval *r);
gpu_status gpu_unmark(gpu *g, const gpu_pages *pages, const gpu_tables *tables, const gpu_seq *seqs,
                      uint32_t n, const uint32_t *lengths);
/* attention.cu, measure.cu */
gpu_status gpu_attend(gpu *g, const gpu_attention *a);
gpu_status gpu_measures(gpu *g, const gpu_measure *m);
/* products.cu */
gpu_status gpu_unpack(gpu *g, const void *packed, const gpu_matrix *w);
gpu_status gpu_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                       gpu_type y_type, void *scratch);
gpu_status gpu_settle(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                      gpu_type y_type, void *scratch);
}

/* Calls WHAT(type) with the element type's name. */
#define FOR_TYPE(type, WHAT)                                                                       \
    switch (type) {                                                                                \
    case GPU_BF16: WHAT(bf16); break;                                                              \
    case GPU_F16: WHAT(f16); break;                                                                \
    default: WHAT(float); break;                                                                   \
    }

#define FOR_KV(format, WHAT)                                                                       \
    switch (format) {                                                                              \
    case GPU_KV_BF16: WHAT(bf16); break;                                                           \
    case GPU_KV_F16: WHAT(f16); break;                                                             \
    case GPU_KV_INT8: WHAT(i8); break;                                                             \
    default: WHAT(e4m3); break;                                                                    \
    }

/* The type of queries for a format of KV. */
template <class KV> struct query_of {
    typedef f16 type;
};
template <> struct query_of<bf16> {
    typedef bf16 type;
};

#endif
