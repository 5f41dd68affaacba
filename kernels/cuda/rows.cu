/* Row by row: embeddings, norms, gates, angles. */
#include "kernels/cuda/simt.cuh"

enum {
    ROW_THREADS = 256,
    ROW_HELD = 4, /* a thread of a norm holds up to this times four elements */
    NORM_THREADS_MOST = 1024,
};

struct alignas(16) four {
    float v[4];
};

/* Stores a thread's elements of a row of d: v[i] are four, from (i * blockDim.x + threadIdx.x) * 4
 * on. Of 16 bits these are 8 bytes. So two neighbours exchange: the lower one stores what both have
 * of v[i], the upper one what both have of v[i + 1]. Where d is no multiple of 8, rows begin at no
 * multiple of 16 bytes. */
static DEVICE void store_held(float *row, size_t d, const float v[ROW_HELD][4])
{
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        vec16 bits = {{bits_of_float(v[i][0]), bits_of_float(v[i][1]), bits_of_float(v[i][2]),
                       bits_of_float(v[i][3])}};
        if (at < d) store_whole((vec16 *)(row + at), bits);
    }
}
template <class T> static DEVICE void store_held(T *row, size_t d, const float v[ROW_HELD][4])
{
    bool whole = d % 8 == 0, upper = threadIdx.x % 2;
#pragma unroll
    for (int i = 0; i < ROW_HELD; i += 2) {
        vec8 w[2], got;
        for (int j = 0; j < 2; j++)
            w[j] =
                vec8{{pack2(v[i + j][0], v[i + j][1], T()), pack2(v[i + j][2], v[i + j][3], T())}};
        if (whole) {
            for (int e = 0; e < 2; e++) got.w[e] = shuffle_xor(upper ? w[0].w[e] : w[1].w[e], 1);
            size_t at = ((size_t)(i + upper) * blockDim.x + threadIdx.x - upper) * 4;
            vec8 low = upper ? got : w[0], high = upper ? w[1] : got;
            if (at < d) *(vec16 *)(row + at) = vec16{{low.w[0], low.w[1], high.w[0], high.w[1]}};
            continue;
        }
        for (int j = 0; j < 2; j++) {
            size_t at = ((size_t)(i + j) * blockDim.x + threadIdx.x) * 4;
            if (at < d) *(vec8 *)(row + at) = w[j];
        }
    }
}

template <class T>
static __global__ void embed_kernel(gpu_matrix w, gpu_tokens tokens, float scale, float *x)
{
    await_previous();
    uint32_t draw = tokens.draws ? tokens.draws[blockIdx.x] : 0;
    /* A token of another rank's part wraps where it lies before this one's. */
    size_t token = draw ? tokens.drawn[draw - 1].token - tokens.first : tokens.tokens[blockIdx.x];
    bool is = token < w.n;
    const T *row = (const T *)w.data + (is ? token : 0) * w.k;
    float *out = x + blockIdx.x * w.k;
    for_each(row, (uint32_t)w.k,
             [=](T v, uint32_t i) { out[i] = is ? to_float(v) * scale : 0.0f; });
}

/* Accurate sines: an angle may be as large as the context. */
static __global__ void angles_kernel(const float *inv_freq, const uint32_t *positions, size_t n,
                                     uint32_t half, float factor, float *angles)
{
    await_previous();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * half) return;
    size_t row = i / half, pair = i % half;
    float sine, cosine;
    sincosf((float)positions[row] * inv_freq[pair], &sine, &cosine);
    angles[row * 2 * half + pair] = cosine * factor;
    angles[row * 2 * half + half + pair] = sine * factor;
}

/* Norms a row in registers: all loads are issued at once, because with few rows their latency is
 * the cost of a norm. d is a multiple of 4, and at most 4 * ROW_HELD for each thread of a block. */
template <class T>
static __global__ void __launch_bounds__(NORM_THREADS_MOST)
    norm_kernel(float *x, const float *delta, const float *weight, float eps, size_t d, T *out)
{
    await_previous();
    float *row = x + blockIdx.x * d;
    float v[ROW_HELD][4], w[ROW_HELD][4], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        four own = at < d ? *(const four *)(row + at) : four{{0.0f, 0.0f, 0.0f, 0.0f}};
        four by = at < d ? *(const four *)(weight + at) : own;
        for (int j = 0; j < 4; j++) v[i][j] = own.v[j], w[i][j] = by.v[j];
    }
    if (delta) {
#pragma unroll
        for (int i = 0; i < ROW_HELD; i++) {
            size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
            four more = at < d ? *(const four *)(delta + blockIdx.x * d + at)
                               : four{{0.0f, 0.0f, 0.0f, 0.0f}};
            for (int j = 0; j < 4; j++) v[i][j] += more.v[j];
        }
        store_held(row, d, v);
    }
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++)
        for (int j = 0; j < 4; j++) sum += v[i][j] * v[i][j];
    float scale = 1.0f / sqrtf(block_sum(sum) / (float)d + eps);
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++)
        for (int j = 0; j < 4; j++) v[i][j] = v[i][j] * scale * w[i][j];
    store_held(out + blockIdx.x * d, d, v);
}

/* Norms rows of any d. */
template <class T>
static __global__ void any_norm_kernel(float *x, const float *delta, const float *weight, float eps,
                                       size_t d, T *out)
{
    await_previous();
    size_t at = blockIdx.x * d;
    float sum = 0.0f;
    for (size_t i = threadIdx.x; i < d; i += blockDim.x) {
        float v = x[at + i];
        if (delta) x[at + i] = v += delta[at + i];
        sum += v * v;
    }
    float scale = 1.0f / sqrtf(block_sum(sum) / (float)d + eps);
    /* Each thread reads only what it wrote itself. */
    for (size_t i = threadIdx.x; i < d; i += blockDim.x)
        out[at + i] = from_float<T>(x[at + i] * scale * weight[i]);
}

static DEVICE float activate(float x, bool gelu)
{
    if (!gelu) return x / (1.0f + expf(-x));
    const float root = 0.7978845608028654f; /* sqrt(2 / pi) */
    return 0.5f * x * (1.0f + tanhf(root * (x + 0.044715f * x * x * x)));
}

/* A thread computes 16 bytes of a row; d is a multiple of that many elements. */
template <class T>
static __global__ void gate_kernel(const T *gate_up, size_t n, size_t d, bool gelu, T *out)
{
    await_previous();
    enum { SOME = 16 / sizeof(T) };
    union chunk {
        vec16 all;
        T x[SOME];
    };
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, of_row = d / SOME;
    if (i >= n / SOME) return;
    const T *from = gate_up + i / of_row * 2 * d + i % of_row * SOME;
    chunk gate, up, y;
    gate.all = *(const vec16 *)from;
    up.all = *(const vec16 *)(from + d);
#pragma unroll
    for (int e = 0; e < SOME; e++)
        y.x[e] = from_float<T>(activate(to_float(gate.x[e]), gelu) * to_float(up.x[e]));
    *(vec16 *)(out + i * SOME) = y.all;
}

template <class T>
static __global__ void any_gate_kernel(const T *gate_up, size_t n, size_t d, bool gelu, T *out)
{
    await_previous();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const T *row = gate_up + i / d * 2 * d;
    out[i] = from_float<T>(activate(to_float(row[i % d]), gelu) * to_float(row[d + i % d]));
}

static __global__ void gather_kernel(const uint32_t *x, const uint32_t *rows, size_t words,
                                     uint32_t *out)
{
    uint32_t *to = out + blockIdx.x * words;
    for_each(x + rows[blockIdx.x] * words, (uint32_t)words,
             [=](uint32_t v, uint32_t i) { to[i] = v; });
}

/* ---- launches -------------------------------------------------------------------------------- */

static unsigned blocks_of(size_t n) { return (unsigned)((n + ROW_THREADS - 1) / ROW_THREADS); }

gpu_status gpu_embed(gpu *g, const gpu_matrix *w, const gpu_tokens *tokens, size_t n, float scale,
                     float *x)
{
#define EMBED(T)                                                                                   \
    LAUNCH_EARLY(embed_kernel<T>, (unsigned)n, ROW_THREADS, 0, g, *w, *tokens, scale, x)
    if (n) FOR_TYPE(w->type, EMBED)
#undef EMBED
    return gpu_launched(g, "embed");
}

gpu_status gpu_angles(gpu *g, const float *inv_freq, const uint32_t *positions, size_t n,
                      uint32_t head_dim, float factor, float *angles)
{
    uint32_t half = head_dim / 2;
    if (n)
        LAUNCH_EARLY(angles_kernel, blocks_of(n * half), ROW_THREADS, 0, g, inv_freq, positions, n,
                     half, factor, angles);
    return gpu_launched(g, "angles");
}

gpu_status gpu_norm(gpu *g, float *x, const float *delta, const float *weight, float eps, size_t m,
                    size_t d, void *out, gpu_type type)
{
    /* Depends on d alone: a row's value must not depend on how many rows there are. */
    unsigned threads = ROW_THREADS;
    while (threads < NORM_THREADS_MOST && d > (size_t)threads * 4 * ROW_HELD) threads *= 2;
    bool held = d % 4 == 0 && d <= (size_t)threads * 4 * ROW_HELD;
#define HELD(T)                                                                                    \
    LAUNCH_EARLY(norm_kernel<T>, (unsigned)m, threads, 0, g, x, delta, weight, eps, d, (T *)out)
#define ANY(T)                                                                                     \
    LAUNCH_EARLY(any_norm_kernel<T>, (unsigned)m, ROW_THREADS, 0, g, x, delta, weight, eps, d,     \
                 (T *)out)
    if (m && held) FOR_TYPE(type, HELD)
    if (m && !held) FOR_TYPE(type, ANY)
#undef ANY
#undef HELD
    return gpu_launched(g, "norm");
}

gpu_status gpu_gate(gpu *g, const void *gate_up, size_t m, size_t d, bool gelu, void *out,
                    gpu_type type)
{
#define GATE(T)                                                                                    \
    LAUNCH_EARLY(gate_kernel<T>, blocks_of(m *d * sizeof(T) / 16), ROW_THREADS, 0, g,              \
                 (const T *)gate_up, m *d, d, gelu, (T *)out)
#define ANY(T)                                                                                     \
    LAUNCH_EARLY(any_gate_kernel<T>, blocks_of(m *d), ROW_THREADS, 0, g, (const T *)gate_up, m *d, \
                 d, gelu, (T *)out)
    if (m && d % 8 == 0) FOR_TYPE(type, GATE)
    if (m && d % 8 != 0) FOR_TYPE(type, ANY)
#undef ANY
#undef GATE
    return gpu_launched(g, "gate");
}

gpu_status gpu_gather(gpu *g, const void *x, const uint32_t *rows, size_t n, size_t bytes,
                      void *out)
{
    if (n)
        LAUNCH(gather_kernel, (unsigned)n, ROW_THREADS, 0, g, (const uint32_t *)x, rows, bytes / 4,
               (uint32_t *)out);
    return gpu_launched(g, "gather");
}

GPU_CODE(rows, gather_kernel)
