/* Sums over ranks whose devices reach each other's memory, with the norms and the addition that
 * follow; gathers of words over the same ranks; and sums of what a library has gathered. */
#include "kernels/cuda/cuda_sums.h"
#include "kernels/cuda/simt.cuh"

/* A row is spread over a block as norm_kernel (rows.cu) spreads it, so that both give the same bits
 * from the same sums. */
enum {
    FOUR = 4,
    HELD = 4,
    SUM_THREADS = 256, /* of the smallest block */
    SUM_THREADS_USUAL = 512,
    SUM_THREADS_MOST = GPU_SUM_DIMS / FOUR / HELD,
    GATHERED_THREADS = 256,
    EXCHANGE_THREADS = 512,
};

struct alignas(16) four {
    float v[FOUR];
};

static DEVICE four unpack(const vec16 &e, float)
{
    return four{{float_of_bits(e.w[0]), float_of_bits(e.w[1]), float_of_bits(e.w[2]),
                 float_of_bits(e.w[3])}};
}
static DEVICE four unpack(const vec8 &e, bf16)
{
    return four{{float_of_bits(e.w[0] << 16), float_of_bits(e.w[0] & 0xffff0000u),
                 float_of_bits(e.w[1] << 16), float_of_bits(e.w[1] & 0xffff0000u)}};
}

/* Four elements as they lie in memory. */
template <class T> struct raw_of {
    typedef vec8 type;
};
template <> struct raw_of<float> {
    typedef vec16 type;
};

static DEVICE void store(float *to, const four &x) { *(four *)to = x; }
template <class T> static DEVICE void store(T *to, const four &x)
{
    *(vec8 *)to = vec8{{pack2(x.v[0], x.v[1], T()), pack2(x.v[2], x.v[3], T())}};
}

/* Four elements of a sum, rounded as they are when another rank reads them. */
static DEVICE four as_sent(const four &x, float) { return x; }
static DEVICE four as_sent(const four &x, bf16)
{
    return unpack(vec8{{pack2(x.v[0], x.v[1], bf16()), pack2(x.v[2], x.v[3], bf16())}}, bf16());
}

/* Where a rank's copies of this call begin, and its sums. */
template <class E> static DEVICE E *copies_of(const gpu_meeting &g, uint32_t rank, uint32_t call)
{
    return (E *)(g.copies[rank] + call % 2 * g.room);
}
template <class E> static DEVICE E *sums_of(const gpu_meeting &g, uint32_t rank, uint32_t call)
{
    return (E *)(g.copies[rank] + (2 + call % 2) * g.room);
}

/* Tells all ranks that this block has written its copies (0) or sums (1), and waits for theirs. */
static DEVICE void meet(const gpu_meeting &g, uint32_t what, uint32_t call)
{
    fence_ranks();
    __syncthreads();
    if (threadIdx.x < g.ranks) {
        uint32_t at = (what * GPU_SUM_BLOCKS + blockIdx.x) * GPU_RANKS_MOST;
        raise_flag(g.flags[threadIdx.x] + at + g.rank, call);
        await_flag(g.flags[g.rank] + at + threadIdx.x, call, g.stop);
    }
    __syncthreads();
}

/* The elements of a row that a rank adds up where each has a part. */
static DEVICE size_t part_of(const gpu_sums &s)
{
    return (s.d / FOUR + s.meeting.ranks - 1) / s.meeting.ranks * FOUR;
}

/* The sum of all ranks' elements from `at` on, in rank order. All ranks' are loaded before they are
 * added up, or as many as the registers of a thread hold in the largest blocks. */
template <class E, int THREADS>
static DEVICE four add_up(const gpu_meeting &g, uint32_t call, size_t at)
{
    typedef typename raw_of<E>::type raw;
    const uint32_t some = THREADS > SUM_THREADS_USUAL ? 2 : GPU_RANKS_MOST;
    four sum;
#pragma unroll 1
    for (uint32_t first = 0; first < GPU_RANKS_MOST; first += some) {
        raw all[some];
#pragma unroll
        for (uint32_t r = 0; r < some; r++)
            if (first + r < g.ranks)
                all[r] = load_shared((const raw *)(copies_of<E>(g, first + r, call) + at));
#pragma unroll
        for (uint32_t r = 0; r < some; r++) {
            if (first + r >= g.ranks) continue;
            four more = unpack(all[r], E());
            for (int j = 0; j < FOUR; j++)
                sum.v[j] = first + r == 0 ? more.v[j] : sum.v[j] + more.v[j];
        }
    }
    return sum;
}

/* Adds up this rank's part of the block's rows. */
template <class E, int THREADS> static DEVICE void add_part(const gpu_sums &s, uint32_t call)
{
    size_t part = part_of(s), from = s.meeting.rank * part;
    size_t to = from + part < s.d ? from + part : s.d;
    E *sums = sums_of<E>(s.meeting, s.meeting.rank, call);
    for (size_t row = blockIdx.x; row < s.m; row += GPU_SUM_BLOCKS)
        for (size_t i = from + (size_t)threadIdx.x * FOUR; i < to; i += (size_t)blockDim.x * FOUR)
            store(sums + row * s.d + i, add_up<E, THREADS>(s.meeting, call, row * s.d + i));
}

/* Four elements of the sum, from column i on, which lie at `at`. The number of rows decides whether
 * this rank adds them up or another one has (`parts`). The bits are the same: either way the sum is
 * rounded once. */
template <class E, int THREADS>
static DEVICE four read_sum(const gpu_sums &s, uint32_t call, bool parts, size_t i, size_t at)
{
    typedef typename raw_of<E>::type raw;
    if (!parts) return as_sent(add_up<E, THREADS>(s.meeting, call, at), E());
    const E *sums = sums_of<E>(s.meeting, (uint32_t)(i / part_of(s)), call);
    return unpack(load_shared((const raw *)(sums + at)), E());
}

/* The column of the nth four elements that this thread holds of a row. It has 32 bits because 64
 * would take registers that the ranks' elements need. */
static DEVICE uint32_t column_of(int n) { return ((uint32_t)n * blockDim.x + threadIdx.x) * FOUR; }

/* The norm of a row that the block's threads hold: v = rmsnorm(v). */
static DEVICE void norm_held(four v[HELD], const float *weight, float eps, uint32_t d)
{
    float square = 0.0f;
#pragma unroll
    for (int n = 0; n < HELD; n++)
        for (int j = 0; j < FOUR; j++) square += v[n].v[j] * v[n].v[j];
    float scale = 1.0f / sqrtf(block_sum(square) / (float)d + eps);
#pragma unroll
    for (int n = 0; n < HELD; n++) {
        uint32_t i = column_of(n);
        if (i >= d) continue;
        four w = *(const four *)(weight + i);
        for (int j = 0; j < FOUR; j++) v[n].v[j] = v[n].v[j] * scale * w.v[j];
    }
}

/* POST: the sum has a norm of its own before it is added. Without it x is loaded ahead of the
 * ranks' copies, which take longer. */
template <class E, class T, int THREADS, bool POST>
static DEVICE void norm_row(const gpu_sums &s, uint32_t call, bool parts, size_t row)
{
    const uint32_t d = (uint32_t)s.d;
    four v[HELD];
#pragma unroll
    for (int n = 0; n < HELD; n++) {
        uint32_t i = column_of(n);
        size_t at = row * s.d + i;
        v[n] = four{{0.0f, 0.0f, 0.0f, 0.0f}};
        if (i >= d) continue;
        if (!POST && s.adds) v[n] = *(const four *)(s.x + at);
        four sum = read_sum<E, THREADS>(s, call, parts, i, at);
        for (int j = 0; j < FOUR; j++)
            v[n].v[j] = !POST && s.adds ? v[n].v[j] + sum.v[j] : sum.v[j];
        if (!POST) store(s.x + at, v[n]);
    }
    if (POST) {
        norm_held(v, s.post, s.eps, d);
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            uint32_t i = column_of(n);
            size_t at = row * s.d + i;
            if (i >= d) continue;
            four x = s.adds ? *(const four *)(s.x + at) : four{{0.0f, 0.0f, 0.0f, 0.0f}};
            for (int j = 0; j < FOUR; j++) v[n].v[j] = s.adds ? x.v[j] + v[n].v[j] : v[n].v[j];
            store(s.x + at, v[n]);
        }
    }
    norm_held(v, s.weight, s.eps, d);
#pragma unroll
    for (int n = 0; n < HELD; n++) {
        uint32_t i = column_of(n);
        if (i < d) store((T *)s.out + row * s.d + i, v[n]);
    }
}

/* Every launch has all blocks, each of which waits for its like on the other ranks alone, so that
 * their counts of calls are one. All are resident at once: a device has more multiprocessors. */
template <class E, class T, int THREADS, bool POST>
static __global__ void __launch_bounds__(THREADS) sums_kernel(gpu_sums s)
{
    const gpu_meeting &g = s.meeting;
    const uint32_t block = blockIdx.x, call = g.calls[block] + 1;
    E *own = copies_of<E>(g, g.rank, call);
    for (size_t row = block; row < s.m; row += GPU_SUM_BLOCKS)
        for (size_t i = (size_t)threadIdx.x * FOUR; i < s.d; i += (size_t)blockDim.x * FOUR)
            store(own + row * s.d + i, *(const four *)(s.delta + row * s.d + i));
    const bool has_rows = block < s.m;
    const bool parts = s.m * s.d * sizeof(E) > g.once;
    if (has_rows) meet(g, 0, call);
    if (has_rows && parts) {
        add_part<E, THREADS>(s, call);
        meet(g, 1, call);
    }
    __syncthreads();
    if (threadIdx.x == 0) g.calls[block] = call;
    for (size_t row = block; row < s.m; row += GPU_SUM_BLOCKS)
        norm_row<E, T, THREADS, POST>(s, call, parts, row);
}

/* Copies in [n] of all ranks to out [ranks, n], by the same copies and flags as sums: a call of
 * either kind is one of all, and has all blocks. */
template <class T>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    exchange_kernel(gpu_meeting g, const T *in, size_t n, T *out)
{
    const size_t first = (size_t)blockIdx.x * EXCHANGE_THREADS,
                 step = GPU_SUM_BLOCKS * EXCHANGE_THREADS;
    const uint32_t call = g.calls[blockIdx.x] + 1;
    T *own = copies_of<T>(g, g.rank, call);
    for (size_t i = first + threadIdx.x; i < n; i += step) own[i] = in[i];
    if (first < n) meet(g, 0, call);
    __syncthreads();
    if (threadIdx.x == 0) g.calls[blockIdx.x] = call;
    for (uint32_t r = 0; r < g.ranks; r++)
        for (size_t i = first + threadIdx.x; i < n; i += step)
            out[r * n + i] = load_shared(copies_of<T>(g, r, call) + i);
}

/* Each thread adds up one element, so that its sum does not depend on where the element lies. */
static __global__ void __launch_bounds__(GATHERED_THREADS)
    gathered_kernel(const float *all, uint32_t ranks, size_t n, float *out)
{
    size_t i = (size_t)blockIdx.x * GATHERED_THREADS + threadIdx.x;
    if (i >= n) return;
    float sum = all[i];
    for (uint32_t r = 1; r < ranks; r++) sum += all[r * n + i];
    out[i] = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Blocks of more threads have fewer registers for each. */
template <class E, class T, bool POST>
static void launch_sums(gpu *g, const gpu_sums *s, unsigned threads)
{
    if (threads > SUM_THREADS_USUAL)
        LAUNCH((sums_kernel<E, T, SUM_THREADS_MOST, POST>), GPU_SUM_BLOCKS, threads, 0, g, *s);
    else LAUNCH((sums_kernel<E, T, SUM_THREADS_USUAL, POST>), GPU_SUM_BLOCKS, threads, 0, g, *s);
}

template <class E, class T> static void launch_sums_of(gpu *g, const gpu_sums *s)
{
    unsigned threads = SUM_THREADS;
    while (s->d > (size_t)threads * FOUR * HELD) threads *= 2;
    if (s->post) launch_sums<E, T, true>(g, s, threads);
    else launch_sums<E, T, false>(g, s, threads);
}

gpu_status gpu_sum_up(gpu *g, const gpu_sums *s)
{
    if (!gpu_takes_sums(s->meeting.room, s->m, s->d, s->type)) return GPU_UNSUPPORTED;
    switch (s->type) {
    case GPU_BF16: launch_sums_of<bf16, bf16>(g, s); break;
    case GPU_F16: launch_sums_of<float, f16>(g, s); break;
    default: launch_sums_of<float, float>(g, s); break;
    }
    return gpu_launched(g, "sums over ranks");
}

gpu_status gpu_exchange(gpu *g, const gpu_meeting *m, const void *in, size_t bytes, void *out)
{
    size_t wide = sizeof(vec16), narrow = sizeof(uint32_t);
    if (bytes > m->room) return GPU_UNSUPPORTED;
    if (bytes % wide == 0)
        LAUNCH(exchange_kernel<vec16>, GPU_SUM_BLOCKS, EXCHANGE_THREADS, 0, g, *m,
               (const vec16 *)in, bytes / wide, (vec16 *)out);
    else
        LAUNCH(exchange_kernel<uint32_t>, GPU_SUM_BLOCKS, EXCHANGE_THREADS, 0, g, *m,
               (const uint32_t *)in, bytes / narrow, (uint32_t *)out);
    return gpu_launched(g, "gathers over ranks");
}

gpu_status gpu_sum_gathered(gpu *g, const float *all, uint32_t ranks, size_t n, float *out)
{
    unsigned blocks = (unsigned)((n + GATHERED_THREADS - 1) / GATHERED_THREADS);
    if (n) LAUNCH(gathered_kernel, blocks, GATHERED_THREADS, 0, g, all, ranks, n, out);
    return gpu_launched(g, "sums of what was gathered");
}

GPU_CODE(sums, sums_kernel<bf16, bf16, SUM_THREADS_MOST, false>)
