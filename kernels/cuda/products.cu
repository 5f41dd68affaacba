/* Products with weights. Few rows: reading W is the cost, so W is read as it lies, integers
 * and e4m3 floats included. Many rows: the library multiplies, and those become operands first, or,
 * up to some more rows, in registers of a product of our own. */
#include "kernels/cuda/narrow.cuh"
#include "kernels/cuda/quant.cuh"

enum {
    CONVERT_THREADS = 256,
    PANEL = 16, /* kernels.h */
};

/* ---- from the CPU's panels ------------------------------------------------------------------- */

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

/* A thread unpacks eight columns of a row. */
static __global__ void unpack_quant_kernel(const uint8_t *packed, gpu_matrix w)
{
    size_t eights = (w.k + 7) / 8, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n * eights) return;
    size_t row = i / eights, first = i % eights * 8;
    uint32_t words[2] = {0, 0}; /* padding columns stay 0 */
    for (uint32_t e = 0; e < 8 && first + e < w.k; e++) {
        uint32_t q = (uint32_t)packed_quant(w, packed, row, first + e);
        if (w.bits == 8) words[e / 4] |= (q & 255) << e % 4 * 8;
        else words[0] |= q << (4 * (e / 2) + 16 * (e % 2));
    }
    uint32_t *out = (uint32_t *)((uint8_t *)w.data + quant_bytes_at(w, row, first));
    out[0] = words[0];
    if (w.bits == 8) out[1] = words[1];
    if (first % w.group != 0) return;
    const uint16_t *scales = (const uint16_t *)line_at(w, packed, row, first);
    ((uint16_t *)w.scales)[scale_index(w, row, first)] =
        scales[first / w.group % 2 * PANEL + row % PANEL];
}

/* A thread takes eight columns of a row of a matrix of e4m3 floats (kernels.h). */
static __global__ void unpack_float_kernel(const uint8_t *packed, gpu_matrix w)
{
    size_t eights = (w.k + 7) / 8, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.n * eights) return;
    size_t row = i / eights, first = i % eights * 8, groups = w.group ? (w.k - 1) / w.group + 1 : 1;
    vec8 words = {{0, 0}}; /* padding columns stay 0 */
#pragma unroll
    for (uint32_t e = 0; e < 8; e++)
        if (first + e < w.k) words.w[e / 4] |= (uint32_t)packed[row * w.k + first + e] << e % 4 * 8;
    *(vec8 *)((uint8_t *)w.data + quant_bytes_at(w, row, first)) = words;
    if (w.group ? first % w.group != 0 : first != 0) return;
    const float *scales = (const float *)(packed + (w.n * w.k + 15) / 16 * 16);
    ((float *)w.scales)[scale_index(w, row, first)] =
        scales[row * groups + (w.group ? first / w.group : 0)];
}

/* Stores eight columns of a row, of which those behind the last are left out. */
template <class T>
static DEVICE void put_eight(const gpu_matrix &w, size_t row, size_t column, const vec16 &v, T *out)
{
    T *at = out + row * w.k + column;
    if (w.k % 8 == 0) {
        *(vec16 *)at = v;
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (column + e < w.k) at[e] = T{(uint16_t)(v.w[e / 2] >> e % 2 * 16)};
}

/* Makes operands of quantised weights. A warp takes a tile, of which a lane has 16 bytes. */
template <class T, int BITS, bool FLOAT>
static __global__ void __launch_bounds__(CONVERT_THREADS) dequant_kernel(gpu_matrix w, T *out)
{
    typedef scaled_row<T, BITS, FLOAT> weights;
    const uint32_t COLUMNS = BITS == 4 ? 64 : 32;
    uint32_t tiles = (uint32_t)((w.k + COLUMNS - 1) / COLUMNS), panel = blockIdx.x;
    uint32_t tile = blockIdx.y * (CONVERT_THREADS / WARP) + threadIdx.x / WARP;
    if (tile >= tiles) return;
    unsigned lane = threadIdx.x % WARP;
    size_t first_row = (size_t)panel * 16 + lane / 4;
    uint32_t bits = log2_of_group(w), groups = (tiles * COLUMNS + (1u << bits) - 1) >> bits;
    vec16 v = load_once((const vec16 *)w.data + ((size_t)panel * tiles + tile) * WARP + lane);
    if (BITS == 8 && !FLOAT)
        for (int i = 0; i < 4; i++) v.w[i] ^= 0x80808080u;
#pragma unroll
    for (uint32_t s = 0; s < COLUMNS / 32; s++) {
        uint32_t column = tile * COLUMNS + s * 32 + lane % 4 * 8;
        if (column >= w.k) break;
        const auto scales =
            weights::both::at(w.scales, ((size_t)panel * groups + (column >> bits)) * 8 + lane / 4);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            if (first_row + row * 8 >= w.n) break;
            const weights of(scales, row);
            vec16 eight;
#pragma unroll
            for (int i = 0; i < 4; i++)
                eight.w[i] = BITS == 4 ? of.halves(v.w[2 * s + row], i)
                                       : of.bytes(v.w[2 * row + i / 2], i % 2 * 2, i % 2 * 2 + 1);
            put_eight(w, first_row + row * 8, column, eight, out);
        }
    }
}

/* A thread converts eight elements to another type. */
template <class T, class U> static __global__ void convert_kernel(const T *x, size_t eights, U *out)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= eights) return;
    vec16 v;
    for (int e = 0; e < 4; e++)
        v.w[e] = pack2(to_float(x[i * 8 + 2 * e]), to_float(x[i * 8 + 2 * e + 1]), U());
    *(vec16 *)(out + i * 8) = v;
}

/* ---- launches -------------------------------------------------------------------------------- */

static unsigned blocks_of(size_t n)
{
    return (unsigned)((n + CONVERT_THREADS - 1) / CONVERT_THREADS);
}

gpu_status gpu_unpack(gpu *g, const void *packed, const gpu_matrix *w)
{
    size_t n = w->n * w->k;
    if (w->is_float)
        LAUNCH(unpack_float_kernel, blocks_of(w->n * ((w->k + 7) / 8)), CONVERT_THREADS, 0, g,
               (const uint8_t *)packed, *w);
    else if (w->bits)
        LAUNCH(unpack_quant_kernel, blocks_of(w->n * ((w->k + 7) / 8)), CONVERT_THREADS, 0, g,
               (const uint8_t *)packed, *w);
    else
        LAUNCH(unpack_kernel, blocks_of(n), CONVERT_THREADS, 0, g, (const uint8_t *)packed, w->n,
               w->k, (size_t)(w->type == GPU_F32 ? 4 : 2), (uint8_t *)w->data);
    return gpu_launched(g, "unpack");
}

template <class T> static gpu_status dequant(gpu *g, const gpu_matrix *w, T *out)
{
    const size_t columns = gpu_tile_columns(w->bits), of_block = CONVERT_THREADS / WARP * columns;
    dim3 blocks((unsigned)((w->n + 15) / 16), (unsigned)((w->k + of_block - 1) / of_block));
    auto kernel = w->is_float    ? dequant_kernel<T, 8, true>
                  : w->bits == 8 ? dequant_kernel<T, 8, false>
                                 : dequant_kernel<T, 4, false>;
    LAUNCH(kernel, blocks, CONVERT_THREADS, 0, g, *w, out);
    return gpu_launched(g, "operands of quantised weights");
}

template <class U> static gpu_status operands(gpu *g, const gpu_matrix *w, U *out)
{
    size_t eights = w->n * w->k / 8;
    if (w->bits) return dequant(g, w, out);
#define CONVERT(T)                                                                                 \
    LAUNCH((convert_kernel<T, U>), blocks_of(eights), CONVERT_THREADS, 0, g, (const T *)w->data,   \
           eights, out)
    FOR_TYPE(w->type, CONVERT)
#undef CONVERT
    return gpu_launched(g, "operands of another type");
}

gpu_status gpu_operands(gpu *g, const gpu_matrix *w, gpu_type type, void *scratch, const void **out)
{
    *out = scratch;
    if (w->bits == 0 && w->type == type) {
        *out = w->data;
        return GPU_OK;
    }
    if (w->k % 8 != 0) return GPU_UNSUPPORTED;
    return type == GPU_BF16 ? operands(g, w, (bf16 *)scratch) : operands(g, w, (f16 *)scratch);
}

gpu_status gpu_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                       gpu_type y_type, void *scratch)
{
    if (m == 0) return GPU_OK;
    bool invariant = gpu_is_invariant(g);
    size_t few = w->bits ? gpu_few_of(g).quant_rows : gpu_few_of(g).rows;
    if (gpu_takes_few(w) && m <= few && !invariant) return gpu_few_product(g, w, x, m, y, y_type);
    if (w->bits == 0) return gpu_library_product(g, w, x, m, y, y_type);
    if (!invariant && gpu_takes_narrow(g, w)) {
        gpu_status narrow = gpu_narrow_product(g, w, x, m, y, y_type, scratch);
        if (narrow != GPU_UNSUPPORTED) return narrow;
    }
    if (gpu_takes_few(w) && m <= gpu_few_of(g).staged_rows && !invariant)
        return gpu_staged_product(g, w, x, m, y, y_type);
    gpu_status s =
        w->type == GPU_BF16 ? dequant(g, w, (bf16 *)scratch) : dequant(g, w, (f16 *)scratch);
    gpu_matrix whole = *w;
    whole.data = scratch;
    whole.bits = 0;
    whole.is_float = false;
    return s == GPU_OK ? gpu_library_product(g, &whole, x, m, y, y_type) : s;
}

gpu_status gpu_settle(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                      gpu_type y_type, void *scratch)
{
    gpu_status s = GPU_OK;
    if (!gpu_library_times(g, true)) return s;
    for (size_t rows = 0; rows < m && s == GPU_OK;) {
        rows = gpu_rounded_rows(rows + 1);
        s = gpu_product(g, w, x, rows < m ? rows : m, y, y_type, scratch);
        if (s == GPU_UNSUPPORTED) s = GPU_OK; /* a step that needs it says so */
    }
    (void)gpu_library_times(g, false);
    return s;
}

GPU_CODE(products, unpack_kernel)
