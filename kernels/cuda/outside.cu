/* The share of each slot along the attention's output, for attention other than the step's own:
 * over the slots before the window (OUTSIDE), pooled over neighbours (POOLED), or of another
 * temperature (theta). The query rows go in waves, so that their weights, which are scratch, stay
 * small. */
#include "kernels/cuda/pages.cuh"

enum {
    SLOT_THREADS = 128,
    ROWS = 8,         /* packed rows with queries or outputs in shared memory at a time */
    OUTPUT_ROWS = 16, /* packed rows of a block of outputs_kernel */
    OUTPUT_STEP = 32, /* slots that such a block reads at a time */
    REACH = 3,        /* neighbours of the pool on either side */
};

#define LOG2E 1.4426950408889634f

/* Rows [first, first + n) of the measured rows; packed row r is query head r % q_heads of row r /
 * q_heads. */
struct wave {
    uint32_t first, n, packed, parts;
    float *weights; /* [kv_heads, packed, longest] */
    float *outputs; /* [kv_heads, packed, dim] */
    float *partial; /* [parts, kv_heads, packed, dim] */
};

/* A row of the wave attends to slots [0, end); returns end. */
static DEVICE uint32_t row_end(const gpu_measure &m, const wave &w, uint32_t packed,
                               uint32_t length)
{
    uint32_t end = length - m.rows + w.first + packed / m.q_heads + 1;
    if (m.kind != GPU_MEASURE_OUTSIDE) return end;
    uint32_t before = length > m.window ? length - m.window : 0;
    return end < before ? end : before;
}

static DEVICE float *weights_of(const gpu_measure &m, const wave &w, uint32_t head, uint32_t packed)
{
    return w.weights + ((size_t)head * w.packed + packed) * m.longest;
}

/* A row's weight of slot j of the table's n slots. */
static DEVICE float weight_at(const gpu_measure &m, const float *row, uint32_t j, uint32_t n)
{
    if (m.kind != GPU_MEASURE_POOLED) return row[j];
    uint32_t from = j > REACH ? j - REACH : 0, to = j + REACH < n ? j + REACH : n - 1;
    float most = row[from];
    for (uint32_t i = from + 1; i <= to; i++) most = fmaxf(most, row[i]);
    return most;
}

/* Loads K (part 0) or V of a slot, 16 bytes at a time. */
template <class KV, int D>
static DEVICE void load_slot(const gpu_measure &m, const table_view &t, uint32_t slot,
                             uint32_t part, float x[D])
{
    union chunk {
        vec16 all;
        KV x[16 / sizeof(KV)];
    };
    const int most = 16 / (int)sizeof(KV);
    const KV *row = (const KV *)key_at(m.pages, t, slot, D * sizeof(KV));
    row += (size_t)part * m.pages.page_tokens * D;
    float scale = kv_scale<KV>(m.pages, t, slot, part);
#pragma unroll
    for (int c = 0; c < D / most; c++) {
        chunk v;
        v.all = ((const vec16 *)row)[c];
#pragma unroll
        for (int i = 0; i < most; i++) x[c * most + i] = to_float(v.x[i]) * scale;
    }
}

template <int D> static DEVICE float dot(const float *shared, const float x[D])
{
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d++) sum += shared[d] * x[d];
    return sum;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Scores times log2 e: a thread takes one slot and all rows. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) scores_kernel(gpu_measure m, wave w)
{
    typedef typename query_of<KV>::type Q;
    __shared__ float q[ROWS][D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    if (blockIdx.x * SLOT_THREADS >= t.length) return; /* the whole block */
    float k[D];
    load_slot<KV, D>(m, t, slot < t.length ? slot : 0, 0, k);
    size_t row0 = m.seq.first_row + m.seq.n_rows - m.rows + w.first;
    for (uint32_t first = 0; first < w.packed; first += ROWS) {
        __syncthreads(); /* all have read q */
        for (uint32_t i = threadIdx.x; i < ROWS * D; i += SLOT_THREADS) {
            uint32_t r = first + i / D;
            size_t row = (row0 + r / m.q_heads) * m.kv_heads + head;
            if (r < w.packed)
                q[i / D][i % D] =
                    to_float(((const Q *)m.q)[(row * m.q_heads + r % m.q_heads) * D + i % D]);
        }
        __syncthreads();
        for (uint32_t r = 0; r < ROWS && first + r < w.packed; r++)
            if (slot < row_end(m, w, first + r, t.length))
                weights_of(m, w, head, first + r)[slot] = dot<D>(q[r], k) * m.scale * LOG2E;
    }
}

/* One block for each row: turns its scores into weights, 0 where it sees nothing. */
static __global__ void softmax_kernel(gpu_measure m, wave w)
{
    uint32_t packed = blockIdx.x, head = blockIdx.y;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    float *row = weights_of(m, w, head, packed), max = -INFINITY, sum = 0.0f;
    uint32_t end = row_end(m, w, packed, t.length);
    for (uint32_t j = threadIdx.x; j < end; j += blockDim.x) max = fmaxf(max, row[j]);
    max = block_max(max);
    for (uint32_t j = threadIdx.x; j < end; j += blockDim.x) sum += exp2f(row[j] - max);
    sum = block_sum(sum);
    float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (uint32_t j = threadIdx.x; j < t.length; j += blockDim.x)
        row[j] = j < end ? exp2f(row[j] - max) * inverse : 0.0f;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* The slots whose weighted values make up an output. */
static DEVICE void output_range(const gpu_measure &m, uint32_t n, uint32_t *from, uint32_t *to)
{
    *from = 0;
    *to = n;
    if (m.kind == GPU_MEASURE_OUTSIDE) *to = n > m.window ? n - m.window : 0;
    if (m.kind != GPU_MEASURE_POOLED) return;
    uint32_t chunks = (n + m.chunk - 1) / m.chunk, last = m.window / m.chunk;
    uint64_t end = chunks > last ? (uint64_t)(chunks - last) * m.chunk : 0;
    *from = m.chunk;
    *to = end < n ? (uint32_t)end : n;
}

/* A block takes 16 packed rows and one part of the slots; a thread takes every 128th element. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) outputs_kernel(gpu_measure m, wave w)
{
    enum { OF_THREAD = OUTPUT_ROWS * D / SLOT_THREADS };
    __shared__ float v[OUTPUT_STEP][D], p[OUTPUT_ROWS][OUTPUT_STEP];
    uint32_t head = blockIdx.y, first = blockIdx.z * OUTPUT_ROWS, from, to;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    output_range(m, t.length, &from, &to);
    uint32_t start = blockIdx.x * GPU_OUTPUT_SLOTS, end = start + GPU_OUTPUT_SLOTS;
    if (start < from) start = from;
    if (end > to) end = to;
    float sums[OF_THREAD];
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) sums[i] = 0.0f;
    for (uint32_t at = start; at < end; at += OUTPUT_STEP) {
        __syncthreads(); /* all have read v and p */
        for (uint32_t i = threadIdx.x; i < OUTPUT_STEP * D; i += SLOT_THREADS) {
            uint32_t slot = at + i / D;
            if (slot >= end) slot = end - 1;
            const KV *row = (const KV *)key_at(m.pages, t, slot, D * sizeof(KV));
            row += (size_t)m.pages.page_tokens * D;
            v[i / D][i % D] = to_float(row[i % D]) * kv_scale<KV>(m.pages, t, slot, 1);
        }
        for (uint32_t i = threadIdx.x; i < OUTPUT_ROWS * OUTPUT_STEP; i += SLOT_THREADS) {
            uint32_t r = first + i / OUTPUT_STEP, slot = at + i % OUTPUT_STEP;
            bool in = r < w.packed && slot < end;
            p[i / OUTPUT_STEP][i % OUTPUT_STEP] =
                in ? weight_at(m, weights_of(m, w, head, r), slot, t.length) : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < OUTPUT_STEP; j++)
#pragma unroll
            for (int i = 0; i < OF_THREAD; i++) {
                unsigned e = threadIdx.x + i * SLOT_THREADS;
                sums[i] += p[e / D][j] * v[j][e % D];
            }
    }
    float *out = w.partial + (((size_t)blockIdx.x * m.kv_heads + head) * w.packed + first) * D;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        unsigned e = threadIdx.x + i * SLOT_THREADS;
        if (first + e / D < w.packed) out[e] = sums[i];
    }
}

static __global__ void add_parts_kernel(wave w, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (uint32_t part = 0; part < w.parts; part++) sum += w.partial[part * n + i];
    w.outputs[i] = sum;
}

/* ---- along the outputs ----------------------------------------------------------------------- */

/* A thread takes one slot and all rows; heads are added up first. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) along_kernel(gpu_measure m, wave w)
{
    __shared__ float y[ROWS][D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    table_view t = view_table(m.pages, m.tables, m.layer, m.seq, m.lengths, head);
    if (blockIdx.x * SLOT_THREADS >= t.length) return; /* the whole block */
    bool in = slot < t.length;
    float v[D], *out = m.slots + (size_t)head * m.slot_stride + slot;
    load_slot<KV, D>(m, t, in ? slot : 0, 1, v);
    float sum = in && w.first > 0 ? *out : 0.0f, of_heads = 0.0f;
    for (uint32_t first = 0; first < w.packed; first += ROWS) {
        __syncthreads(); /* all have read y */
        for (uint32_t i = threadIdx.x; i < ROWS * D; i += SLOT_THREADS)
            if (first + i / D < w.packed)
                y[i / D][i % D] = w.outputs[((size_t)head * w.packed + first) * D + i];
        __syncthreads();
        for (uint32_t r = 0; in && r < ROWS && first + r < w.packed; r++) {
            const float *row = weights_of(m, w, head, first + r);
            float along = dot<D>(y[r], v);
            if (m.add != 0.0f) along += m.add;
            of_heads += weight_at(m, row, slot, t.length) * along;
            if ((first + r + 1) % m.q_heads != 0) continue;
            sum += of_heads;
            of_heads = 0.0f;
        }
    }
    if (in) *out = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class KV, int D> static gpu_status run_wave(gpu *g, const gpu_measure *m, const wave *w)
{
    dim3 slots((m->longest + SLOT_THREADS - 1) / SLOT_THREADS, m->kv_heads);
    dim3 parts(w->parts, m->kv_heads, (w->packed + OUTPUT_ROWS - 1) / OUTPUT_ROWS);
    size_t n = (size_t)m->kv_heads * w->packed * D;
    gpu_measure output = *m; /* the measure whose attention makes the outputs */
    if (m->theta != 0.0f) output.scale /= m->theta;
    LAUNCH((scores_kernel<KV, D>), slots, SLOT_THREADS, 0, g, output, *w);
    LAUNCH(softmax_kernel, dim3(w->packed, m->kv_heads), 256, 0, g, output, *w);
    LAUNCH((outputs_kernel<KV, D>), parts, SLOT_THREADS, 0, g, output, *w);
    LAUNCH(add_parts_kernel, (unsigned)((n + 255) / 256), 256, 0, g, *w, n);
    if (m->theta != 0.0f) {
        LAUNCH((scores_kernel<KV, D>), slots, SLOT_THREADS, 0, g, *m, *w);
        LAUNCH(softmax_kernel, dim3(w->packed, m->kv_heads), 256, 0, g, *m, *w);
    }
    LAUNCH((along_kernel<KV, D>), slots, SLOT_THREADS, 0, g, *m, *w);
    return gpu_launched(g, "projection of other attention");
}

template <class KV> static gpu_status run_dim(gpu *g, const gpu_measure *m, const wave *w)
{
    gpu_status s = GPU_UNSUPPORTED;
#define DIM(D) s = run_wave<KV, D>(g, m, w)
    FOR_DIM(m->pages.head_dim, DIM)
#undef DIM
    return s;
}

gpu_status gpu_outside(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_OK;
    uint32_t most = gpu_measure_wave(m);
    for (uint32_t first = 0; s == GPU_OK && first < m->rows; first += most) {
        wave w = {first, m->rows - first < most ? m->rows - first : most, 0, 0, NULL, NULL, NULL};
        w.packed = w.n * m->q_heads;
        w.parts = (m->longest + GPU_OUTPUT_SLOTS - 1) / GPU_OUTPUT_SLOTS;
        size_t rows = (size_t)m->kv_heads * w.packed;
        w.weights = (float *)m->scratch;
        w.outputs = w.weights + rows * m->longest;
        w.partial = w.outputs + rows * m->pages.head_dim;
#define RUN(KV) s = run_dim<KV>(g, m, &w)
        FOR_KV(m->pages.format, RUN)
#undef RUN
    }
    return s;
}
