/* What retention chooses by, slot by slot: kernels/measure.h says what each kind is. Those that are
 * of scores alone are mass.cu's. */
#include "kernels/cuda/pages.cuh"

enum { SLOT_THREADS = 128 };

static DEVICE float load_typed(const void *x, gpu_type type, size_t at)
{
    switch (type) {
    case GPU_BF16: return to_float(((const bf16 *)x)[at]);
    case GPU_F16: return to_float(((const f16 *)x)[at]);
    default: return ((const float *)x)[at];
    }
}

template <class KV> static DEVICE float norm_of(const KV *x, uint32_t dim)
{
    float sum = 0.0f;
    for (uint32_t d = 0; d < dim; d++) sum += to_float(x[d]) * to_float(x[d]);
    return sqrtf(sum);
}

/* What a query row's projection gives to a slot. q and y [dim] are shared, k and v the slot's. */
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
    return p * along * v_scale;
}

template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) projection_kernel(gpu_measure m)
{
    typedef typename query_of<KV>::type Q;
    __shared__ float q[D], y[D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    bool in = slot < t.length;
    const KV *key = (const KV *)key_at(m.pages, t, in ? slot : 0, D * sizeof(KV));
    const KV *value = key + (size_t)m.pages.page_tokens * D;
    float k_scale = kv_scale<KV>(m.pages, t, in ? slot : 0, 0);
    float v_scale = kv_scale<KV>(m.pages, t, in ? slot : 0, 1);
    float k[D], sum = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d++) k[d] = in ? to_float(key[d]) * k_scale : 0.0f;
    uint32_t heads = m.kv_heads * m.q_heads;
    for (uint32_t i = 0; i < m.rows; i++) {
        uint32_t last = t.length - m.rows + i; /* the slot that the row sits at */
        size_t row =
            (size_t)(m.seq.first_row + m.seq.n_rows - m.rows + i) * heads + head * m.q_heads;
        bool seen = in && slot <= last && (m.layer.window == 0 || slot + m.layer.window > last);
        float of_heads = 0.0f; /* heads first, then rows */
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
    if (in) m.slots[(size_t)head * m.slot_stride + slot] = sum;
}

template <class KV> static __global__ void norms_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    if (slot >= t.length) return;
    uint32_t dim = m.pages.head_dim;
    const KV *x = (const KV *)key_at(m.pages, t, slot, dim * sizeof(KV));
    bool values = m.kind == GPU_MEASURE_VALUE_NORM;
    if (values) x += (size_t)m.pages.page_tokens * dim;
    m.slots[(size_t)head * m.slot_stride + slot] =
        norm_of(x, dim) * kv_scale<KV>(m.pages, t, slot, values);
}

static __global__ void by_page_kernel(gpu_measure m)
{
    uint32_t head = blockIdx.y, page = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    uint32_t from = page * m.pages.page_tokens, to = from + m.pages.page_tokens;
    if (from >= t.length) return;
    if (to > t.length) to = t.length;
    float sum = 0.0f;
    for (uint32_t i = from; i < to; i++) sum += m.slots[(size_t)head * m.slot_stride + i];
    m.by_page[(size_t)head * m.page_stride + page] = sum;
}

/* ---- launches -----------------------------------------------------------------------------------
 */

static unsigned blocks_of(size_t n) { return (unsigned)((n + SLOT_THREADS - 1) / SLOT_THREADS); }

template <class KV> static gpu_status run(gpu *g, const gpu_measure *m)
{
    dim3 grid(blocks_of(m->longest), m->kv_heads);
    if (m->kind == GPU_MEASURE_VALUE_NORM || m->kind == GPU_MEASURE_KEY_NORM) {
        LAUNCH(norms_kernel<KV>, grid, SLOT_THREADS, 0, g, *m);
        return gpu_launched(g, "norms");
    }
    if (m->kind != GPU_MEASURE_PROJECTION) return gpu_mass(g, m);
    switch (m->pages.head_dim) {
    case 32: LAUNCH((projection_kernel<KV, 32>), grid, SLOT_THREADS, 0, g, *m); break;
    case 64: LAUNCH((projection_kernel<KV, 64>), grid, SLOT_THREADS, 0, g, *m); break;
    case 96: LAUNCH((projection_kernel<KV, 96>), grid, SLOT_THREADS, 0, g, *m); break;
    case 128: LAUNCH((projection_kernel<KV, 128>), grid, SLOT_THREADS, 0, g, *m); break;
    case 256: LAUNCH((projection_kernel<KV, 256>), grid, SLOT_THREADS, 0, g, *m); break;
    default: return GPU_UNSUPPORTED;
    }
    return gpu_launched(g, "projection by slot");
}

gpu_status gpu_measures(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_OK;
    if (m->longest == 0) return s;
#define RUN(KV) s = run<KV>(g, m)
    FOR_KV(m->pages.format, RUN)
#undef RUN
    if (s != GPU_OK || !m->by_page) return s;
    uint32_t pages = (m->longest + m->pages.page_tokens - 1) / m->pages.page_tokens;
    LAUNCH(by_page_kernel, dim3(blocks_of(pages), m->kv_heads), SLOT_THREADS, 0, g, *m);
    return gpu_launched(g, "measures by page");
}
