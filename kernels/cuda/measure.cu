/* The measures by which retention selects, slot by slot (kernels/measure.h defines each kind). Here
 * are projections, norms, directions and running sums; other kinds are in mass.cu, kept.cu,
 * outside.cu and expected.cu. */
#include "kernels/cuda/measured.cuh"

enum {
    SLOT_THREADS = 128,
    LANE_DIMS = 8,     /* dims of a lane: head_dim <= 256 */
    GROUP_SLOTS = 128, /* slots whose directions are added first (gpu_measure_scratch) */
};

static DEVICE float load_typed(const void *x, gpu_type type, size_t at)
{
    switch (type) {
    case GPU_BF16: return to_float(((const bf16 *)x)[at]);
    case GPU_F16: return to_float(((const f16 *)x)[at]);
    default: return ((const float *)x)[at];
    }
}

/* A query row's projection on a slot. q and y [dim] are in shared memory, k and v are the
 * slot's. */
template <class KV, int D>
static DEVICE float of_row(const gpu_measure &m, const float *q, const float *y, const float k[D],
                           const KV *v, float v_scale, float lse)
{
    float dot = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d++) dot += q[d] * k[d];
    float p = exp2f(dot * m.scale * 1.4426950408889634f - lse);
    float along = 0.0f;
    for (int d = 0; d < D; d++) along += y[d] * to_float(v[d]);
    /* Without a bias the products keep their order. */
    return m.add == 0.0f ? p * along * v_scale : p * (along * v_scale + m.add);
}

template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) projection_kernel(gpu_measure m)
{
    typedef typename query_of<KV>::type Q;
    __shared__ float q[D], y[D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    gpu_measured s = measured_of(m);
    table_view t = view_measured(m, s, head);
    if (!is_measured(m, s) || blockIdx.x * SLOT_THREADS >= t.length) return; /* the whole block */
    bool in = slot < t.length;
    const KV *key = (const KV *)key_at(m.pages, t, in ? slot : 0, D * sizeof(KV));
    const KV *value = key + (size_t)m.pages.page_tokens * D;
    float k_scale = kv_scale<KV>(m.pages, t, in ? slot : 0, 0);
    float v_scale = kv_scale<KV>(m.pages, t, in ? slot : 0, 1);
    float k[D], sum = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d++) k[d] = in ? to_float(key[d]) * k_scale : 0.0f;
    uint32_t heads = m.kv_heads * m.q_heads;
    for (uint32_t i = 0; i < s.rows; i++) {
        uint32_t last = t.length - s.rows + i; /* the slot that the row sits at */
        size_t row = (first_measured(s) + i) * heads + head * m.q_heads;
        bool seen = in && slot <= last && (m.layer.window == 0 || slot + m.layer.window > last);
        float of_heads = 0.0f; /* sums go over heads first, then rows */
        for (uint32_t h = 0; h < m.q_heads; h++) {
            __syncthreads();
            for (uint32_t d = threadIdx.x; d < D; d += SLOT_THREADS) {
                q[d] = to_float(((const Q *)m.q)[(row + h) * D + d]);
                y[d] = load_typed(m.y, m.y_type, (row + h) * D + d);
            }
            __syncthreads();
            if (seen) of_heads += of_row<KV, D>(m, q, y, k, value, v_scale, m.lse[row + h]);
        }
        sum += of_heads;
    }
    if (in) slots_of(m, s, head)[slot] = sum;
}

/* ---- of a table alone ---------------------------------------------------------------------------
 * A block takes 128 slots. A warp takes 32 of them, one after the other; its lanes hold elements
 * lane, lane + 32, ... of a row. */

struct lane_row {
    float v[LANE_DIMS];
};

template <class KV>
static DEVICE lane_row load_row(const gpu_measure &m, const table_view &t, uint32_t slot,
                                uint32_t part)
{
    uint32_t dim = m.pages.head_dim;
    const KV *x = (const KV *)key_at(m.pages, t, slot, dim * sizeof(KV));
    x += (size_t)part * m.pages.page_tokens * dim;
    float scale = kv_scale<KV>(m.pages, t, slot, part);
    lane_row r;
    for (int j = 0; j < LANE_DIMS; j++) {
        uint32_t d = threadIdx.x % WARP + j * WARP;
        r.v[j] = d < dim ? to_float(x[d]) * scale : 0.0f;
    }
    return r;
}

static DEVICE float dot_rows(const lane_row &a, const lane_row &b)
{
    float sum = 0.0f;
    for (int j = 0; j < LANE_DIMS; j++) sum += a.v[j] * b.v[j];
    return warp_sum(sum);
}

template <class KV> static __global__ void norms_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, lane = threadIdx.x % WARP;
    uint32_t first = blockIdx.x * GROUP_SLOTS + threadIdx.x / WARP * WARP;
    gpu_measured s = measured_of(m);
    if (!is_measured(m, s)) return;
    table_view t = view_measured(m, s, head);
    float mine = 0.0f;
    for (uint32_t i = 0; i < WARP && first + i < t.length; i++) { /* the same for a whole warp */
        lane_row x = load_row<KV>(m, t, first + i, m.kind == GPU_MEASURE_VALUE_NORM);
        float square = dot_rows(x, x);
        if (lane == i) mine = sqrtf(square);
    }
    if (first + lane < t.length) slots_of(m, s, head)[first + lane] = mine;
}

/* The scratch of directions: the mean [kv_heads, dim], then the sums of the directions of each 128
 * keys [n_parts, kv_heads, dim]. */
static DEVICE uint32_t n_parts(const gpu_measured &s)
{
    return (s.longest + GROUP_SLOTS - 1) / GROUP_SLOTS;
}

/* Writes norms by slot, and the sums of the directions of 128 keys. */
template <class KV>
static __global__ void __launch_bounds__(GROUP_SLOTS) directions_kernel(gpu_measure m)
{
    enum { WARPS = GROUP_SLOTS / WARP };
    __shared__ float of_warp[WARPS][LANE_DIMS * WARP];
    uint32_t head = blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t first = blockIdx.x * GROUP_SLOTS + warp * WARP, dim = m.pages.head_dim;
    gpu_measured s = measured_of(m);
    table_view t = view_measured(m, s, head);
    if (!is_measured(m, s) || blockIdx.x >= n_parts(s)) return; /* the whole block */
    lane_row sum = {{0}};
    float mine = 0.0f;
    for (uint32_t i = 0; i < WARP && first + i < t.length; i++) {
        lane_row k = load_row<KV>(m, t, first + i, 0);
        float norm = sqrtf(dot_rows(k, k));
        if (lane == i) mine = norm;
        float inverse = norm == 0.0f ? 0.0f : 1.0f / norm; /* a zero key has no direction */
        for (int j = 0; j < LANE_DIMS; j++) sum.v[j] += k.v[j] * inverse;
    }
    if (first + lane < t.length) slots_of(m, s, head)[first + lane] = mine;
    for (int j = 0; j < LANE_DIMS; j++) of_warp[warp][lane + j * WARP] = sum.v[j];
    __syncthreads();
    float *out = scratch_of(m, s) + ((1 + (size_t)blockIdx.x) * m.kv_heads + head) * dim;
    for (uint32_t d = threadIdx.x; d < dim; d += GROUP_SLOTS) {
        float all = 0.0f;
        for (int w = 0; w < WARPS; w++) all += of_warp[w][d];
        out[d] = all;
    }
}

/* The mean: the sum of the parts, scaled to length 1. One block for each head, one thread for each
 * column. */
static __global__ void direction_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.x, d = threadIdx.x, dim = m.pages.head_dim;
    gpu_measured s = measured_of(m);
    if (!is_measured(m, s)) return; /* the whole block */
    float *mean = scratch_of(m, s);
    const float *parts = mean + (size_t)m.kv_heads * dim;
    double sum = 0.0;
    for (uint32_t i = 0; i < n_parts(s) && d < dim; i++)
        sum += (double)parts[((size_t)i * m.kv_heads + head) * dim + d];
    float square = block_sum((float)(sum * sum));
    if (d < dim) mean[head * dim + d] = square > 0.0f ? (float)sum / sqrtf(square) : 0.0f;
}

/* Cosines of the keys with the mean; the values by slot are their norms. */
template <class KV> static __global__ void cosines_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, lane = threadIdx.x % WARP, dim = m.pages.head_dim;
    uint32_t first = blockIdx.x * GROUP_SLOTS + threadIdx.x / WARP * WARP;
    gpu_measured s = measured_of(m);
    if (!is_measured(m, s)) return;
    table_view t = view_measured(m, s, head);
    const float *mean = scratch_of(m, s);
    lane_row direction;
    for (uint32_t j = 0; j < LANE_DIMS; j++)
        direction.v[j] = lane + j * WARP < dim ? mean[head * dim + lane + j * WARP] : 0.0f;
    float mine = 0.0f;
    for (uint32_t i = 0; i < WARP && first + i < t.length; i++) {
        float dot = dot_rows(load_row<KV>(m, t, first + i, 0), direction);
        if (lane == i) mine = dot;
    }
    if (first + lane >= t.length) return;
    float *out = slots_of(m, s, head) + first + lane;
    *out = *out == 0.0f ? 0.0f : mine / *out;
}

/* ---- of all kinds ---------------------------------------------------------------------------- */

/* Adds the values by slot to the running sums, which then take their place. */
static __global__ void add_sums_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    gpu_measured s = measured_of(m);
    table_view t = view_measured(m, s, head);
    if (!is_measured(m, s) || s.sum == GPU_SUM_NONE || slot >= t.length) return;
    float *out = slots_of(m, s, head) + slot;
    *out = add_to_sum(m, s, t, head, slot, *out);
}

static __global__ void by_page_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, page = blockIdx.x * SLOT_THREADS + threadIdx.x;
    gpu_measured s = measured_of(m);
    table_view t = view_measured(m, s, head);
    uint32_t from = page * m.pages.page_tokens, to = from + m.pages.page_tokens;
    if (!is_measured(m, s) || s.out != GPU_OUT_PAGES || from >= t.length) return;
    if (to > t.length) to = t.length;
    const float *slots = slots_of(m, s, head);
    float sum = 0.0f;
    for (uint32_t i = from; i < to; i++) sum += slots[i];
    results_of(m, s, head)[page] = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Threads for n slots or pages of each sequence and KV head. */
static dim3 grid_of(const gpu_measure *m, uint32_t n)
{
    return dim3((n + SLOT_THREADS - 1) / SLOT_THREADS, m->kv_heads, m->list.n);
}

template <class KV> static gpu_status run_cosines(gpu *g, const gpu_measure *m, dim3 grid)
{
    uint32_t threads = (m->pages.head_dim + WARP - 1) / WARP * WARP;
    LAUNCH(directions_kernel<KV>, grid, GROUP_SLOTS, 0, g, *m);
    LAUNCH(direction_kernel, dim3(m->kv_heads, 1, m->list.n), threads, 0, g, *m);
    LAUNCH(cosines_kernel<KV>, grid, GROUP_SLOTS, 0, g, *m);
    return gpu_launched(g, "directions");
}

template <class KV> static gpu_status run_projection(gpu *g, const gpu_measure *m, dim3 grid)
{
    if (!gpu_has_head_dim(m->pages.head_dim)) return GPU_UNSUPPORTED;
#define DIM(D) LAUNCH((projection_kernel<KV, D>), grid, SLOT_THREADS, 0, g, *m)
    FOR_DIM(m->pages.head_dim, DIM)
#undef DIM
    return gpu_launched(g, "projection by slot");
}

template <class KV> static gpu_status run(gpu *g, const gpu_measure *m)
{
    dim3 grid = grid_of(m, m->list.longest);
    switch (m->kind) {
    case GPU_MEASURE_PROJECTION:
        return m->theta == 0.0f ? run_projection<KV>(g, m, grid) : gpu_outside(g, m);
    case GPU_MEASURE_OUTSIDE:
    case GPU_MEASURE_POOLED: return gpu_outside(g, m);
    case GPU_MEASURE_EXPECTED: return gpu_expected(g, m);
    case GPU_MEASURE_KEY_COSINE: return run_cosines<KV>(g, m, grid);
    case GPU_MEASURE_VALUE_NORM:
    case GPU_MEASURE_KEY_NORM:
        LAUNCH(norms_kernel<KV>, grid, GROUP_SLOTS, 0, g, *m);
        return gpu_launched(g, "norms");
    default: return gpu_mass(g, m);
    }
}

gpu_status gpu_measures(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_OK;
    if (m->list.n_kept > 0) s = gpu_mass_kept(g, m);
    if (s != GPU_OK || m->list.longest == 0) return s;
#define RUN(KV) s = run<KV>(g, m)
    FOR_KV(m->pages.format, RUN)
#undef RUN
    if (s == GPU_OK && m->list.n_summed > 0) {
        LAUNCH(add_sums_kernel, grid_of(m, m->list.longest), SLOT_THREADS, 0, g, *m);
        s = gpu_launched(g, "running sums");
    }
    if (s != GPU_OK || m->list.n_paged == 0) return s;
    uint32_t pages = (m->list.longest + m->pages.page_tokens - 1) / m->pages.page_tokens;
    LAUNCH(by_page_kernel, grid_of(m, pages), SLOT_THREADS, 0, g, *m);
    return gpu_launched(g, "measures by page");
}

GPU_CODE(measure, by_page_kernel)
