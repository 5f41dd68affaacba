/* Products with weights: what is read for a few rows is W, so it is read as it lies, integers
 * included; for many rows the library multiplies, and integers become operands first. */
#include "kernels/cuda/simt.cuh"

enum {
    FEW_ROWS = 4,       /* of operands as they are: beyond, the library is as fast */
    FEW_ROWS_QUANT = 8, /* of integers */
    FEW_THREADS = 128,
    CONVERT_THREADS = 256,
    PANEL = 16, /* kernels.h */
};

/* ---- elements -----------------------------------------------------------------------------------
 */

static DEVICE int quant_at(const gpu_matrix &w, size_t row, size_t column)
{
    if (w.bits == 8) return ((const int8_t *)w.data)[row * w.k + column];
    int pair = ((const uint8_t *)w.data)[(row * w.k + column) / 2];
    return (column % 2 ? pair >> 4 : pair & 15) - 8;
}

static DEVICE float scale_at(const gpu_matrix &w, size_t row, size_t column)
{
    size_t groups = (w.k + w.group - 1) / w.group;
    return to_float(((const bf16 *)w.scales)[row * groups + column / w.group]);
}

/* ---- from the CPU's panels ----------------------------------------------------------------------
 */

static __global__ void unpack_kernel(const uint8_t *packed, size_t n, size_t k, size_t bytes,
                                     uint8_t *out)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * k) return;
    size_t row = i / k, column = i % k, pair = bytes == 2 ? 2 : 1, pairs = (k + pair - 1) / pair;
    size_t from =
        ((row / PANEL * pairs + column / pair) * PANEL + row % PANEL) * pair + column % pair;
    for (size_t b = 0; b < bytes; b++) out[i * bytes + b] = packed[from * bytes + b];
}

/* The line of scales before a pair of groups. */
static DEVICE const uint8_t *line_at(const gpu_matrix &w, const uint8_t *packed, size_t row,
                                     size_t column)
{
    size_t two = 2 * (size_t)w.group, line = 64 + two * PANEL * w.bits / 8;
    size_t lines = (w.k + two - 1) / two;
    return packed + (row / PANEL * lines + column / two) * line;
}

static DEVICE int packed_quant(const gpu_matrix &w, const uint8_t *packed, size_t row,
                               size_t column)
{
    size_t in_line = column % (2 * (size_t)w.group), i = in_line % w.group, lane = row % PANEL;
    const uint8_t *group =
        line_at(w, packed, row, column) + 64 + in_line / w.group * w.group * PANEL * w.bits / 8;
    if (w.bits == 8) return (int8_t)group[i / 4 * 64 + lane * 4 + i % 4];
    int pair = group[i / 8 * 64 + lane * 4 + i % 4];
    return i / 4 % 2 ? pair >> 4 : pair & 15;
}

/* A thread makes two columns. */
static __global__ void unpack_quant_kernel(const uint8_t *packed, gpu_matrix w)
{
    size_t i = 2 * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= w.n * w.k) return;
    size_t row = i / w.k, column = i % w.k;
    int a = packed_quant(w, packed, row, column), b = packed_quant(w, packed, row, column + 1);
    if (w.bits == 8) {
        ((int8_t *)w.data)[i] = (int8_t)a;
        ((int8_t *)w.data)[i + 1] = (int8_t)b;
    } else {
        ((uint8_t *)w.data)[i / 2] = (uint8_t)(a | b << 4);
    }
    if (column % w.group != 0) return;
    size_t groups = (w.k + w.group - 1) / w.group;
    const uint16_t *scales = (const uint16_t *)line_at(w, packed, row, column);
    ((uint16_t *)w.scales)[row * groups + column / w.group] =
        scales[column / w.group % 2 * PANEL + row % PANEL];
}

template <class T> static __global__ void dequant_kernel(gpu_matrix w, T *out)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n * w.k) return;
    size_t row = i / w.k, column = i % w.k;
    out[i] = from_float<T>((float)quant_at(w, row, column) * scale_at(w, row, column));
}

/* ---- few rows -----------------------------------------------------------------------------------
 */

/* Columns of a row that stand in 16 bytes of W, as floats before their scale. */
template <class T> struct plain_chunk {
    enum { COLUMNS = 8 };
    static DEVICE float at(const vec16 &v, int i)
    {
        uint32_t word = v.w[i / 2];
        T x;
        x.bits = (uint16_t)(i % 2 ? word >> 16 : word);
        return to_float(x);
    }
    static DEVICE float scale(const gpu_matrix &, size_t, size_t) { return 1.0f; }
};

struct int8_chunk {
    enum { COLUMNS = 16 };
    static DEVICE float at(const vec16 &v, int i)
    {
        return (float)(int8_t)(v.w[i / 4] >> i % 4 * 8);
    }
    static DEVICE float scale(const gpu_matrix &w, size_t row, size_t column)
    {
        return scale_at(w, row, column);
    }
};

struct int4_chunk {
    enum { COLUMNS = 32 };
    static DEVICE float at(const vec16 &v, int i)
    {
        return (float)((int)(v.w[i / 8] >> i % 8 * 4 & 15) - 8);
    }
    static DEVICE float scale(const gpu_matrix &w, size_t row, size_t column)
    {
        return scale_at(w, row, column);
    }
};

/* A warp makes one output of each of M rows (those of m and beyond are its last again). */
template <class C, class T, int M>
static __global__ void __launch_bounds__(FEW_THREADS)
    few_kernel(gpu_matrix w, const T *x, uint32_t m, void *y, bool y_f32)
{
    size_t row = (size_t)blockIdx.x * (FEW_THREADS / WARP) + threadIdx.x / WARP;
    unsigned lane = threadIdx.x % WARP;
    if (row >= w.n) return; /* a whole warp */
    const vec16 *data = (const vec16 *)w.data + row * (w.k / C::COLUMNS);
    float sums[M];
#pragma unroll
    for (int r = 0; r < M; r++) sums[r] = 0.0f;
#pragma unroll 2
    for (size_t chunk = lane; chunk < w.k / C::COLUMNS; chunk += WARP) {
        vec16 v = data[chunk];
        float scale = C::scale(w, row, chunk * C::COLUMNS), part[M];
#pragma unroll
        for (int r = 0; r < M; r++) part[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < C::COLUMNS; i += 8) {
#pragma unroll
            for (int r = 0; r < M; r++) {
                size_t at = (r < (int)m ? r : m - 1) * w.k + chunk * C::COLUMNS + i;
                vec16 xs = *(const vec16 *)(x + at);
#pragma unroll
                for (int j = 0; j < 8; j++) part[r] += C::at(v, i + j) * plain_chunk<T>::at(xs, j);
            }
        }
#pragma unroll
        for (int r = 0; r < M; r++) sums[r] += part[r] * scale;
    }
#pragma unroll
    for (int r = 0; r < M; r++) {
        float sum = warp_sum(sums[r]);
        if (lane != 0 || r >= (int)m) continue;
        if (y_f32) ((float *)y)[r * w.n + row] = sum;
        else ((T *)y)[r * w.n + row] = from_float<T>(sum);
    }
}

template <class C, class T>
static gpu_status run_few(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                          gpu_type y_type)
{
    unsigned blocks = (unsigned)((w->n + FEW_THREADS / WARP - 1) / (FEW_THREADS / WARP));
    auto kernel = m == 1 ? few_kernel<C, T, 1> : m <= 4 ? few_kernel<C, T, 4> : few_kernel<C, T, 8>;
    LAUNCH(kernel, blocks, FEW_THREADS, 0, g, *w, (const T *)x, (uint32_t)m, y, y_type == GPU_F32);
    return gpu_launched(g, "product of few rows");
}

template <class T>
static gpu_status run_few_of(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                             gpu_type y_type)
{
    switch (w->bits) {
    case 8: return run_few<int8_chunk, T>(g, w, x, m, y, y_type);
    case 4: return run_few<int4_chunk, T>(g, w, x, m, y, y_type);
    default: return run_few<plain_chunk<T>, T>(g, w, x, m, y, y_type);
    }
}

/* ---- launches -----------------------------------------------------------------------------------
 */

static unsigned blocks_of(size_t n)
{
    return (unsigned)((n + CONVERT_THREADS - 1) / CONVERT_THREADS);
}

gpu_status gpu_unpack(gpu *g, const void *packed, const gpu_matrix *w)
{
    size_t n = w->n * w->k;
    if (w->bits)
        LAUNCH(unpack_quant_kernel, blocks_of((n + 1) / 2), CONVERT_THREADS, 0, g,
               (const uint8_t *)packed, *w);
    else
        LAUNCH(unpack_kernel, blocks_of(n), CONVERT_THREADS, 0, g, (const uint8_t *)packed, w->n,
               w->k, (size_t)(w->type == GPU_F32 ? 4 : 2), (uint8_t *)w->data);
    return gpu_launched(g, "unpack");
}

static bool goes_few(const gpu_matrix *w, size_t m)
{
    size_t columns = w->bits == 4 ? 32 : w->bits == 8 ? 16 : 8;
    return w->type != GPU_F32 && w->k % columns == 0 &&
           m <= (size_t)(w->bits ? FEW_ROWS_QUANT : FEW_ROWS);
}

gpu_status gpu_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                       gpu_type y_type, void *scratch)
{
    if (m == 0) return GPU_OK;
    if (goes_few(w, m))
        return w->type == GPU_BF16 ? run_few_of<bf16>(g, w, x, m, y, y_type)
                                   : run_few_of<f16>(g, w, x, m, y, y_type);
    if (w->bits == 0) return gpu_library_product(g, w, x, m, y, y_type);
    size_t n = w->n * w->k;
    if (w->type == GPU_BF16)
        LAUNCH(dequant_kernel<bf16>, blocks_of(n), CONVERT_THREADS, 0, g, *w, (bf16 *)scratch);
    else LAUNCH(dequant_kernel<f16>, blocks_of(n), CONVERT_THREADS, 0, g, *w, (f16 *)scratch);
    gpu_status s = gpu_launched(g, "operands of integers");
    gpu_matrix whole = *w;
    whole.data = scratch;
    whole.bits = 0;
    return s == GPU_OK ? gpu_library_product(g, &whole, x, m, y, y_type) : s;
}
