/* Scores of query rows by slot, summed over the rows, with tensor cores. A block takes 64 slots of
 * a KV head, whose keys stay in registers, and goes over the packed rows, 16 at a time.
 * VALUE_WEIGHT works the same way: values are its keys, the rows of the output projection its
 * queries. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/measured.cuh"

enum { SLOTS = 64, TILE_ROWS = 16 };

/* Loads K (part 0) or V of SLOTS slots, widened; zeros beyond the table. */
template <class KV, class Q, int D>
static DEVICE void load_keys(const gpu_measure &m, const table_view &t, uint32_t first,
                             uint32_t part, Q *out)
{
    const uint32_t row_bytes = D * sizeof(KV), chunks = row_bytes / 16;
    size_t behind = (size_t)part * m.pages.page_tokens * row_bytes;
    for (uint32_t i = threadIdx.x; i < SLOTS * chunks; i += THREADS) {
        uint32_t slot = i / chunks, chunk = i % chunks;
        vec16 v = {{0, 0, 0, 0}};
        if (first + slot < t.length)
            v = load_once(
                (const vec16 *)(key_at(m.pages, t, first + slot, row_bytes) + behind + chunk * 16));
        vec16 *to = (vec16 *)(out + slot * (D + PAD) + chunk * (16 / sizeof(KV)));
        if constexpr (sizeof(KV) == 1) {
            vec16 wide[2];
            for (int w = 0; w < 8; w++) wide[w / 4].w[w % 4] = widen_pair(v.w[w / 2], w % 2, KV());
            to[0] = wide[0];
            to[1] = wide[1];
        } else to[0] = v;
    }
}

/* Loads 16 packed rows of queries from `first` on; zeros beyond n. */
template <class Q, int D>
static DEVICE void load_rows(const gpu_measure &m, size_t row0, uint32_t head, uint32_t first,
                             uint32_t n, Q *out)
{
    const uint32_t chunks = D / 8;
    size_t heads = m.kv_heads * m.q_heads;
    for (uint32_t i = threadIdx.x; i < TILE_ROWS * chunks; i += THREADS) {
        uint32_t packed = first + i / chunks, chunk = i % chunks;
        vec16 v = {{0, 0, 0, 0}};
        size_t row = (row0 + packed / m.q_heads) * heads + head * m.q_heads + packed % m.q_heads;
        if (packed < n) v = *(const vec16 *)((const Q *)m.q + row * D + chunk * 8);
        *(vec16 *)(out + i / chunks * (D + PAD) + chunk * 8) = v;
    }
}

/* Adds rows g and g + 8 of a tile to a lane's four slots (two of each eight). */
template <class KV>
static DEVICE void add_scores(const gpu_measure &m, size_t row0, uint32_t rows, uint32_t head,
                              uint32_t length, uint32_t first, uint32_t slot,
                              const float scales[2][2], const float s[2][4], float sums[2][2])
{
    unsigned lane = threadIdx.x % WARP;
    for (int i = 0; i < 2; i++) {
        uint32_t packed = first + lane / 4 + i * 8;
        if (packed >= rows * m.q_heads) continue;
        size_t row = row0 + packed / m.q_heads;
        uint32_t last = length - rows + packed / m.q_heads; /* the slot that the row sits at */
        float lse = 0.0f;
        if (m.kind == GPU_MEASURE_MASS)
            lse = m.lse[row * m.kv_heads * m.q_heads + head * m.q_heads + packed % m.q_heads];
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < 2; j++) {
                uint32_t at = slot + k * 8 + lane % 4 * 2 + j;
                float score = s[k][2 * i + j] * scales[k][j];
                bool seen = at <= last && (m.layer.window == 0 || at + m.layer.window > last);
                if (m.kind == GPU_MEASURE_RAW) sums[k][j] += score;
                else if (m.kind == GPU_MEASURE_VALUE_WEIGHT) sums[k][j] += fabsf(score);
                else if (seen) sums[k][j] += exp2_fast(fmaf(score, m.scale * LOG2E, -lse));
            }
    }
}

template <class KV, int D>
static __global__ void __launch_bounds__(THREADS) mass_kernel(gpu_measure m)
{
    typedef typename query_of<KV>::type Q;
    DYNAMIC_SHARED(shared);
    Q *keys = (Q *)shared, *rows = keys + SLOTS * (D + PAD);
    uint32_t head = blockIdx.y, first = blockIdx.x * SLOTS;
    gpu_measured seq = measured_of(m);
    bool weighs = m.kind == GPU_MEASURE_VALUE_WEIGHT; /* rows of o stand for those of queries */
    uint32_t part = weighs, n_rows = weighs ? (uint32_t)m.o.n : seq.rows, n = n_rows * m.q_heads;
    size_t row0 = weighs ? 0 : first_measured(seq);
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    table_view t = view_measured(m, seq, head);
    if (!is_measured(m, seq) || first >= t.length) return; /* the whole block */
    load_keys<KV, Q, D>(m, t, first, part, keys);
    __syncthreads();
    uint32_t k[D / 16][4], slot = first + warp * 16;
    const Q *mine = keys + (warp * 16 + lane / 16 * 8 + lane % 8) * (D + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < D / 16; d++) load_matrices(k[d], mine + d * 16);
    float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}, scales[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            uint32_t at = slot + i * 8 + lane % 4 * 2 + j;
            scales[i][j] = at < t.length ? kv_scale<KV>(m.pages, t, at, part) : 1.0f;
        }
    for (uint32_t r = 0; r < n; r += TILE_ROWS) {
        __syncthreads(); /* all have read the previous tile */
        load_rows<Q, D>(m, row0, head, r, n, rows);
        __syncthreads();
        float s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
        const Q *tile = rows + lane % 16 * (D + PAD) + lane / 16 * 8;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t a[4];
            load_matrices(a, tile + d * 16);
            multiply(s[0], a, k[d][0], k[d][1], Q());
            multiply(s[1], a, k[d][2], k[d][3], Q());
        }
        add_scores<KV>(m, row0, n_rows, head, t.length, r, slot, scales, s, sums);
    }
    float *out = slots_of(m, seq, head);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            for (int mask = 4; mask < WARP; mask *= 2) sums[i][j] += shuffle_xor(sums[i][j], mask);
            uint32_t at = slot + i * 8 + lane % 4 * 2 + j;
            if (lane < 4 && at < t.length) out[at] = sums[i][j];
        }
}

template <class KV, int D> static gpu_status run_mass(gpu *g, const gpu_measure *m)
{
    const size_t bytes = (size_t)(SLOTS + TILE_ROWS) * (D + PAD) * 2;
    auto kernel = mass_kernel<KV, D>;
    dim3 grid((m->list.longest + SLOTS - 1) / SLOTS, m->kv_heads, m->list.n);
    LAUNCH(kernel, grid, THREADS, bytes, g, *m);
    return gpu_launched(g, "mass by slot");
}

template <class KV> static gpu_status run_dim(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_UNSUPPORTED;
#define DIM(D) s = run_mass<KV, D>(g, m)
    FOR_DIM(m->pages.head_dim, DIM)
#undef DIM
    return s;
}

gpu_status gpu_mass(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_OK;
    gpu_measure job = *m;
    if (m->kind == GPU_MEASURE_VALUE_WEIGHT)
        s = gpu_operands(g, &m->o, gpu_query_type(m->pages.format), m->scratch, &job.q);
    if (s != GPU_OK) return s;
#define RUN(KV) s = run_dim<KV>(g, &job)
    FOR_KV(m->pages.format, RUN)
#undef RUN
    return s;
}

GPU_CODE(mass, mass_kernel<bf16, 128>)
