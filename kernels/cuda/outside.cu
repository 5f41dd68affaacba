/* The share of each slot along the attention's output, for attention other than the step's own:
 * over the slots before the window (OUTSIDE), pooled over neighbours (POOLED), or of another
 * temperature (theta). The query rows go in waves, so that their weights, which are scratch, stay
 * small. */
#include "kernels/cuda/measured.cuh"

enum {
    SLOT_THREADS = 128,
    ROWS = 8,         /* packed rows with queries or outputs in shared memory at a time */
    OUTPUT_ROWS = 16, /* packed rows of a block of outputs_kernel */
    OUTPUT_STEP = 32, /* slots that such a block reads at a time */
    REACH = 3,        /* neighbours of the pool on either side */
};

#define LOG2E 1.4426950408889634f

/* The rows of a sequence that are measured at a time, from `first` on; packed row r is query head
 * r % q_heads of row r / q_heads. */
struct wave {
    gpu_measured s;
    uint32_t first, packed, parts; /* packed is 0 after the last wave, and where none is due */
    float *weights;                /* [kv_heads, packed, longest] */
    float *outputs;                /* [kv_heads, packed, dim] */
    float *partial;                /* [parts, kv_heads, packed, dim] */
};

static DEVICE wave wave_of(const gpu_measure &m, uint32_t number)
{
    wave w;
    w.s = measured_of(m);
    w.first = number * w.s.wave;
    uint32_t left = is_measured(m, w.s) && w.first < w.s.rows ? w.s.rows - w.first : 0;
    w.packed = (left < w.s.wave ? left : w.s.wave) * m.q_heads;
    w.parts = (w.s.longest + GPU_OUTPUT_SLOTS - 1) / GPU_OUTPUT_SLOTS;
    size_t rows = (size_t)m.kv_heads * w.packed;
    w.weights = scratch_of(m, w.s);
    w.outputs = w.weights + rows * w.s.longest;
    w.partial = w.outputs + rows * m.pages.head_dim;
    return w;
}

/* A row of the wave attends to slots [0, end); returns end. */
static DEVICE uint32_t row_end(const gpu_measure &m, const wave &w, uint32_t packed,
                               uint32_t length)
{
    uint32_t end = length - w.s.rows + w.first + packed / m.q_heads + 1;
    if (m.kind != GPU_MEASURE_OUTSIDE) return end;
    uint32_t before = length > m.window ? length - m.window : 0;
    return end < before ? end : before;
}

static DEVICE float *weights_of(const wave &w, uint32_t head, uint32_t packed)
{
    return w.weights + ((size_t)head * w.packed + packed) * w.s.longest;
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
static __global__ void __launch_bounds__(SLOT_THREADS) scores_kernel(gpu_measure m, uint32_t number)
{
    typedef typename query_of<KV>::type Q;
    __shared__ float q[ROWS][D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    wave w = wave_of(m, number);
    table_view t = view_measured(m, w.s, head);
    if (!w.packed || blockIdx.x * SLOT_THREADS >= t.length) return; /* the whole block */
    float k[D];
    load_slot<KV, D>(m, t, slot < t.length ? slot : 0, 0, k);
    size_t row0 = first_measured(w.s) + w.first;
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
                weights_of(w, head, first + r)[slot] = dot<D>(q[r], k) * m.scale * LOG2E;
    }
}

/* One block for each row: turns its scores into weights, 0 where it sees nothing. */
static __global__ void softmax_kernel(gpu_measure m, uint32_t number)
{
    uint32_t packed = blockIdx.x, head = blockIdx.y;
    wave w = wave_of(m, number);
    if (packed >= w.packed) return; /* the whole block */
    table_view t = view_measured(m, w.s, head);
    float *row = weights_of(w, head, packed), max = -INFINITY, sum = 0.0f;
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

/* A block takes 16 packed rows and one part of the slots; a thread takes every 128th element. The
 * blocks of a part follow one another. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS)
    outputs_kernel(gpu_measure m, uint32_t number, uint32_t blocks)
{
    enum { OF_THREAD = OUTPUT_ROWS * D / SLOT_THREADS };
    __shared__ float v[OUTPUT_STEP][D], p[OUTPUT_ROWS][OUTPUT_STEP];
    uint32_t head = blockIdx.y, part = blockIdx.x / blocks, from, to;
    uint32_t first = blockIdx.x % blocks * OUTPUT_ROWS;
    wave w = wave_of(m, number);
    if (part >= w.parts || first >= w.packed) return; /* the whole block */
    table_view t = view_measured(m, w.s, head);
    output_range(m, t.length, &from, &to);
    uint32_t start = part * GPU_OUTPUT_SLOTS, end = start + GPU_OUTPUT_SLOTS;
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
                in ? weight_at(m, weights_of(w, head, r), slot, t.length) : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < OUTPUT_STEP; j++)
#pragma unroll
            for (int i = 0; i < OF_THREAD; i++) {
                unsigned e = threadIdx.x + i * SLOT_THREADS;
                sums[i] += p[e / D][j] * v[j][e % D];
            }
    }
    float *out = w.partial + (((size_t)part * m.kv_heads + head) * w.packed + first) * D;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        unsigned e = threadIdx.x + i * SLOT_THREADS;
        if (first + e / D < w.packed) out[e] = sums[i];
    }
}

static __global__ void add_parts_kernel(gpu_measure m, uint32_t number)
{
    wave w = wave_of(m, number);
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t n = (size_t)m.kv_heads * w.packed * m.pages.head_dim;
    if (i >= n) return;
    float sum = 0.0f;
    for (uint32_t part = 0; part < w.parts; part++) sum += w.partial[part * n + i];
    w.outputs[i] = sum;
}

/* ---- along the outputs ----------------------------------------------------------------------- */

/* A thread takes one slot and all rows; heads are added up first. */
template <class KV, int D>
static __global__ void __launch_bounds__(SLOT_THREADS) along_kernel(gpu_measure m, uint32_t number)
{
    __shared__ float y[ROWS][D];
    uint32_t head = blockIdx.y, slot = blockIdx.x * SLOT_THREADS + threadIdx.x;
    wave w = wave_of(m, number);
    table_view t = view_measured(m, w.s, head);
    if (blockIdx.x * SLOT_THREADS >= t.length || !w.packed) return; /* the whole block */
    bool in = slot < t.length;
    float v[D], *out = slots_of(m, w.s, head) + slot;
    load_slot<KV, D>(m, t, in ? slot : 0, 1, v);
    float sum = in && w.first > 0 ? *out : 0.0f, of_heads = 0.0f;
    for (uint32_t first = 0; first < w.packed; first += ROWS) {
        __syncthreads(); /* all have read y */
        for (uint32_t i = threadIdx.x; i < ROWS * D; i += SLOT_THREADS)
            if (first + i / D < w.packed)
                y[i / D][i % D] = w.outputs[((size_t)head * w.packed + first) * D + i];
        __syncthreads();
        for (uint32_t r = 0; in && r < ROWS && first + r < w.packed; r++) {
            const float *row = weights_of(w, head, first + r);
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

template <class KV, int D> static gpu_status run_wave(gpu *g, const gpu_measure *m, uint32_t number)
{
    uint32_t n = m->list.n, packed = m->list.wave * m->q_heads;
    uint32_t blocks = (packed + OUTPUT_ROWS - 1) / OUTPUT_ROWS;
    uint32_t parts = (m->list.longest + GPU_OUTPUT_SLOTS - 1) / GPU_OUTPUT_SLOTS;
    size_t elements = (size_t)m->kv_heads * packed * D;
    dim3 slots((m->list.longest + SLOT_THREADS - 1) / SLOT_THREADS, m->kv_heads, n);
    dim3 rows(packed, m->kv_heads, n), sums((unsigned)((elements + 255) / 256), 1, n);
    gpu_measure output = *m; /* the measure whose attention makes the outputs */
    if (m->theta != 0.0f) output.scale /= m->theta;
    LAUNCH((scores_kernel<KV, D>), slots, SLOT_THREADS, 0, g, output, number);
    LAUNCH(softmax_kernel, rows, 256, 0, g, output, number);
    LAUNCH((outputs_kernel<KV, D>), dim3(parts * blocks, m->kv_heads, n), SLOT_THREADS, 0, g,
           output, number, blocks);
    LAUNCH(add_parts_kernel, sums, 256, 0, g, *m, number);
    if (m->theta != 0.0f) {
        LAUNCH((scores_kernel<KV, D>), slots, SLOT_THREADS, 0, g, *m, number);
        LAUNCH(softmax_kernel, rows, 256, 0, g, *m, number);
    }
    LAUNCH((along_kernel<KV, D>), slots, SLOT_THREADS, 0, g, *m, number);
    return gpu_launched(g, "projection of other attention");
}

template <class KV> static gpu_status run_dim(gpu *g, const gpu_measure *m, uint32_t number)
{
    gpu_status s = GPU_UNSUPPORTED;
#define DIM(D) s = run_wave<KV, D>(g, m, number)
    FOR_DIM(m->pages.head_dim, DIM)
#undef DIM
    return s;
}

gpu_status gpu_outside(gpu *g, const gpu_measure *m)
{
    gpu_status s = GPU_OK;
    for (uint32_t number = 0; s == GPU_OK && number < m->list.waves; number++) {
#define RUN(KV) s = run_dim<KV>(g, m, number)
        FOR_KV(m->pages.format, RUN)
#undef RUN
    }
    return s;
}

GPU_CODE(outside, softmax_kernel)
