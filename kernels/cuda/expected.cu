/* The attention expected from future queries. The step's queries before rotation have a mean and a
 * covariance, which are rotated by the mean rotation of future positions (kernels/measure.h). */
#include "kernels/cuda/measured.cuh"

enum {
    QUERY_THREADS = 128,
    LANE_DIMS = 8, /* dims of a lane: head_dim <= 256 */
    MEAN_THREADS = 256,
    TILE = 32, /* rows and columns of a tile of the covariance; rows read at a time */
    TILE_THREADS = 256,
    SLOT_THREADS = 128,
    C_ROWS = 16, /* rows of the covariance in shared memory at a time */
    SOFTMAX_THREADS = 512,
};

/* A sequence and its scratch for all query heads. */
struct fit {
    gpu_measured s;
    float *queries; /* [heads, rows, dim] unrotated; then less their mean, rotated */
    float *mean;    /* [heads, dim] */
    float *rotated; /* [heads, dim] */
    float *cov;     /* [heads, dim, dim] */
    float *logits;  /* [heads, longest] */
    float *softmax; /* [heads, 2]: the largest logit, 1 / the sum */
};

static DEVICE fit fit_of(const gpu_measure &m)
{
    size_t heads = (size_t)m.kv_heads * m.q_heads, dim = m.pages.head_dim;
    fit f;
    f.s = measured_of(m);
    f.queries = scratch_of(m, f.s);
    f.mean = f.queries + heads * f.s.rows * dim;
    f.rotated = f.mean + heads * dim;
    f.cov = f.rotated + heads * dim;
    f.logits = f.cov + heads * dim * dim;
    f.softmax = f.logits + heads * f.s.longest;
    return f;
}

/* ---- queries --------------------------------------------------------------------------------- */

/* One block for each row; its warps take the query heads in turn. */
static __global__ void queries_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    uint32_t dim = m.pages.head_dim, heads = m.kv_heads * m.q_heads, row = blockIdx.x;
    uint32_t lane = threadIdx.x % WARP;
    if (!is_measured(m, f.s) || row >= f.s.rows) return; /* the whole block */
    size_t from = first_measured(f.s) + row;
    const float *x = m.qkv + from * (heads + 2 * m.kv_heads) * dim;
    for (uint32_t head = threadIdx.x / WARP; head < heads; head += QUERY_THREADS / WARP) {
        float v[LANE_DIMS], square = 0.0f, scale = 1.0f;
        for (uint32_t j = 0; j < LANE_DIMS; j++) {
            uint32_t d = lane + j * WARP, at = head * dim + d;
            v[j] = d < dim ? x[at] + (m.bias ? m.bias[at] : 0.0f) : 0.0f;
            square += v[j] * v[j];
        }
        if (m.norm) scale = 1.0f / sqrtf(warp_sum(square) / (float)dim + m.eps);
        float *out = f.queries + ((size_t)head * f.s.rows + row) * dim;
        for (uint32_t j = 0; j < LANE_DIMS; j++) {
            uint32_t d = lane + j * WARP;
            if (d < dim) out[d] = m.norm ? v[j] * scale * m.norm[d] : v[j];
        }
    }
}

/* One block for each head; its threads form groups of dim, which take rows in turn. */
static __global__ void __launch_bounds__(MEAN_THREADS) mean_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    if (!is_measured(m, f.s)) return; /* the whole block */
    __shared__ float sums[MEAN_THREADS];
    uint32_t dim = m.pages.head_dim, head = blockIdx.x, groups = MEAN_THREADS / dim;
    uint32_t group = threadIdx.x / dim, d = threadIdx.x % dim;
    const float *x = f.queries + (size_t)head * f.s.rows * dim;
    float sum = 0.0f;
    for (uint32_t i = group; i < f.s.rows && group < groups; i += groups)
        sum += x[(size_t)i * dim + d];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= dim) return;
    for (uint32_t i = 1; i < groups; i++) sum += sums[i * dim + d];
    f.mean[head * dim + d] = f.s.rows ? sum / (float)f.s.rows : 0.0f;
}

/* One block for each row, and the last one for the means; warps take the heads in turn. */
static __global__ void rotate_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    uint32_t dim = m.pages.head_dim, half = dim / 2, heads = m.kv_heads * m.q_heads;
    uint32_t lane = threadIdx.x % WARP, row = blockIdx.x;
    if (!is_measured(m, f.s) || row > f.s.rows) return; /* the whole block */
    const float *rope = m.mean_ropes + (size_t)f.s.mean_rope * dim;
    for (uint32_t head = threadIdx.x / WARP; head < heads; head += QUERY_THREADS / WARP) {
        const float *mean = f.mean + head * dim;
        float *x = f.queries + ((size_t)head * f.s.rows + row) * dim;
        float *out = row < f.s.rows ? x : f.rotated + head * dim;
        for (uint32_t i = lane; i < half; i += WARP) {
            float a = row < f.s.rows ? x[i] - mean[i] : mean[i];
            float b = row < f.s.rows ? x[half + i] - mean[half + i] : mean[half + i];
            out[i] = a * rope[i] - b * rope[half + i];
            out[half + i] = b * rope[i] + a * rope[half + i];
        }
    }
}

/* A block computes 32 by 32 elements of a head's covariance, a thread four of one column. */
static __global__ void __launch_bounds__(TILE_THREADS) covariance_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    if (!is_measured(m, f.s)) return; /* the whole block */
    enum { OF_THREAD = TILE * TILE / TILE_THREADS };
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    uint32_t dim = m.pages.head_dim, head = blockIdx.y, tiles = dim / TILE;
    uint32_t tile_a = blockIdx.x % tiles, tile_b = blockIdx.x / tiles;
    uint32_t column = threadIdx.x % TILE, first = threadIdx.x / TILE;
    const float *x = f.queries + (size_t)head * f.s.rows * dim;
    float sums[OF_THREAD] = {0.0f};
    for (uint32_t row = 0; row < f.s.rows; row += TILE) {
        __syncthreads(); /* all have read a and b */
        for (uint32_t r = first; r < TILE; r += TILE_THREADS / TILE) {
            const float *at = x + (size_t)(row + r) * dim + column;
            a[r][column] = row + r < f.s.rows ? at[tile_a * TILE] : 0.0f;
            b[r][column] = row + r < f.s.rows ? at[tile_b * TILE] : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < TILE; r++)
#pragma unroll
            for (int i = 0; i < OF_THREAD; i++)
                sums[i] += a[r][first + i * (TILE_THREADS / TILE)] * b[r][column];
    }
    float *out = f.cov + (size_t)head * dim * dim + tile_b * TILE + column;
    for (int i = 0; i < OF_THREAD; i++) {
        uint32_t at = tile_a * TILE + first + i * (TILE_THREADS / TILE);
        out[(size_t)at * dim] = f.s.rows ? sums[i] / (float)f.s.rows : 0.0f;
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Loads four elements of a key from `at` on. */
template <class KV> static DEVICE void load_four(const KV *at, float scale, float out[4])
{
    for (int i = 0; i < 4; i++) out[i] = to_float(at[i]) * scale;
}

/* A thread holds a slot's key and goes over the rows of C, four at a time. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) logits_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    __shared__ float c[C_ROWS][D], mean[D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_measured(m, f.s, head / m.q_heads);
    if (!is_measured(m, f.s) || blockIdx.x * SLOT_THREADS >= t.length) return; /* the whole block */
    uint32_t at = slot < t.length ? slot : 0;
    const KV *key = (const KV *)key_at(m.pages, t, at, D * sizeof(KV));
    float scale = kv_scale<KV>(m.pages, t, at, 0), k[D];
#pragma unroll
    for (int d = 0; d < D; d += 4) load_four(key + d, scale, k + d);
    for (uint32_t d = threadIdx.x; d < D; d += SLOT_THREADS) mean[d] = f.rotated[head * D + d];
    float square = 0.0f, along = 0.0f;
    for (uint32_t first = 0; first < D; first += C_ROWS) {
        __syncthreads(); /* all have read c */
        for (uint32_t i = threadIdx.x; i < C_ROWS * D; i += SLOT_THREADS)
            c[i / D][i % D] = f.cov[((size_t)head * D + first) * D + i];
        __syncthreads();
#pragma unroll 1
        for (uint32_t r = 0; r < C_ROWS; r += 4) {
            float mine[4], dots[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            load_four(key + first + r, scale, mine);
#pragma unroll
            for (int d = 0; d < D; d++)
#pragma unroll
                for (int i = 0; i < 4; i++) dots[i] += c[r + i][d] * k[d];
            for (int i = 0; i < 4; i++) square += mine[i] * dots[i];
        }
    }
#pragma unroll
    for (int d = 0; d < D; d++) along += mean[d] * k[d];
    float root = sqrtf((float)D);
    if (slot < t.length)
        f.logits[(size_t)head * f.s.longest + slot] = (along + square / (2.0f * root)) / root;
}

/* One block for each head. */
static __global__ void softmax_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    if (!is_measured(m, f.s)) return; /* the whole block */
    uint32_t head = blockIdx.x;
    table_view t = view_measured(m, f.s, head / m.q_heads);
    const float *x = f.logits + (size_t)head * f.s.longest;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t j = m.sinks + threadIdx.x; j < t.length; j += SOFTMAX_THREADS)
        max = fmaxf(max, x[j]);
    max = block_max(max);
    for (uint32_t j = m.sinks + threadIdx.x; j < t.length; j += SOFTMAX_THREADS)
        sum += expf(x[j] - max);
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    f.softmax[head * 2] = max;
    f.softmax[head * 2 + 1] = 1.0f / sum;
}

static __global__ void add_heads_kernel(gpu_measure m)
{
    fit f = fit_of(m);
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_measured(m, f.s, head);
    if (!is_measured(m, f.s) || slot >= t.length) return;
    float sum = 0.0f;
    for (uint32_t h = head * m.q_heads; slot >= m.sinks && h < (head + 1) * m.q_heads; h++)
        sum += expf(f.logits[(size_t)h * f.s.longest + slot] - f.softmax[h * 2]) *
               f.softmax[h * 2 + 1];
    slots_of(m, f.s, head)[slot] = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class KV> static gpu_status run_logits(gpu *g, const gpu_measure *m)
{
    if (!gpu_has_head_dim(m->pages.head_dim)) return GPU_UNSUPPORTED;
    dim3 grid((m->list.longest + SLOT_THREADS - 1) / SLOT_THREADS, m->kv_heads * m->q_heads,
              m->list.n);
#define DIM(D) LAUNCH((logits_kernel<KV, D>), grid, SLOT_THREADS, 0, g, *m)
    FOR_DIM(m->pages.head_dim, DIM)
#undef DIM
    return gpu_launched(g, "expected logits");
}

gpu_status gpu_expected(gpu *g, const gpu_measure *m)
{
    uint32_t heads = m->kv_heads * m->q_heads, tiles = m->pages.head_dim / TILE, n = m->list.n;
    dim3 slots((m->list.longest + SLOT_THREADS - 1) / SLOT_THREADS, m->kv_heads, n);
    if (m->list.rows) LAUNCH(queries_kernel, dim3(m->list.rows, 1, n), QUERY_THREADS, 0, g, *m);
    LAUNCH(mean_kernel, dim3(heads, 1, n), MEAN_THREADS, 0, g, *m);
    LAUNCH(rotate_kernel, dim3(m->list.rows + 1, 1, n), QUERY_THREADS, 0, g, *m);
    LAUNCH(covariance_kernel, dim3(tiles * tiles, heads, n), TILE_THREADS, 0, g, *m);
    gpu_status s = gpu_launched(g, "expected queries");
#define RUN(KV) s = run_logits<KV>(g, m)
    if (s == GPU_OK) FOR_KV(m->pages.format, RUN)
#undef RUN
    if (s != GPU_OK) return s;
    LAUNCH(softmax_kernel, dim3(heads, 1, n), SOFTMAX_THREADS, 0, g, *m);
    LAUNCH(add_heads_kernel, slots, SLOT_THREADS, 0, g, *m);
    return gpu_launched(g, "expected attention");
}

GPU_CODE(expected, mean_kernel)
