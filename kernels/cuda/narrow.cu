/* Products of many rows with e4m3 weights on tensor cores of 8 bits: x becomes e4m3 with scales of
 * its own. W's bytes become rows, and the library multiplies both; those of experts stay in their
 * tiles, and a kernel multiplies them (grouped_narrow_wide.cu). */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/narrow.cuh"

enum {
    NARROW_THREADS = 256,
    NARROW_GROUP = 128, /* columns that share a scale, where not all of a row do */
    OF_GROUP = NARROW_GROUP / 8,
};
static const float E4M3_MOST = 448.0f;

/* ---- x --------------------------------------------------------------------------------------- */

/* A scale and what x is multiplied by. Rows that are nearly zero become zeros. NaN stays NaN, and
 * an infinity becomes NaN: its row has no scale. */
struct narrow_scale {
    float scale, inverse;
    DEVICE explicit narrow_scale(float largest)
    {
        bool is_zero = largest < 0x1p-100f; /* 448 / largest might not be finite */
        scale = is_zero ? 0.0f : largest / E4M3_MOST;
        inverse = is_zero ? 0.0f : E4M3_MOST / largest;
    }
};

template <class T> static DEVICE void eight_of(const T *x, float out[8])
{
    vec16 v = *(const vec16 *)x;
#pragma unroll
    for (int e = 0; e < 8; e++) out[e] = to_float(T{(uint16_t)(v.w[e / 2] >> e % 2 * 16)});
}

static DEVICE float largest_of(const float x[8], float largest)
{
#pragma unroll
    for (int e = 0; e < 8; e++) largest = fmaxf(largest, fabsf(x[e]));
    return largest;
}

/* Where e4m3 rows of x and their scales go. Columns from k up to `stride` are zeros. */
struct narrow_rows {
    uint8_t *bytes;
    float *scales;
    size_t stride;                     /* bytes from a row to the next */
    size_t scales_of_row, scales_step; /* scales from a row to the next, and from a group */
    bool in_tiles;                     /* columns are in the order of W's tiles (narrow.cuh) */

    DEVICE void put(size_t row, size_t column, vec8 eight) const
    {
        uint8_t *at = bytes + row * stride;
        if (!in_tiles) {
            *(vec8 *)(at + column) = eight;
            return;
        }
        at += column / 32 * 32 + column % 32 / 2;
        *(uint32_t *)at = eight.w[0];
        *(uint32_t *)(at + 16) = eight.w[1];
    }
};

static DEVICE vec8 narrow_eight(const float x[8], float inverse)
{
    vec8 out = {{0, 0}};
#pragma unroll
    for (int e = 0; e < 8; e++)
        out.w[e / 4] |= (uint32_t)from_float<e4m3>(x[e] * inverse).bits << e % 4 * 8;
    return out;
}

/* A block narrows a row, which has one scale. */
template <class T>
static __global__ void __launch_bounds__(NARROW_THREADS)
    narrow_row_kernel(const T *x, size_t k, narrow_rows out)
{
    __shared__ float of_warp[NARROW_THREADS / WARP];
    const T *row = x + blockIdx.x * k;
    float eight[8] = {0, 0, 0, 0, 0, 0, 0, 0}, largest = 0.0f;
    for (size_t i = threadIdx.x * 8; i < k; i += NARROW_THREADS * 8) {
        eight_of(row + i, eight);
        largest = largest_of(eight, largest);
    }
    largest = warp_fold(largest, larger_of_two());
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (int w = 0; w < NARROW_THREADS / WARP; w++) largest = fmaxf(largest, of_warp[w]);
    const narrow_scale s(largest);
    if (threadIdx.x == 0) out.scales[blockIdx.x * out.scales_of_row] = s.scale;
    for (size_t i = threadIdx.x * 8; i < out.stride; i += NARROW_THREADS * 8) {
        if (i < k) eight_of(row + i, eight);
        out.put(blockIdx.x, i, i < k ? narrow_eight(eight, s.inverse) : vec8{{0, 0}});
    }
}

/* Sixteen threads narrow a row's group of 128 columns. Row blockIdx.x; rows from m on are zeros. */
template <class T>
static __global__ void __launch_bounds__(NARROW_THREADS)
    narrow_group_kernel(const T *x, size_t m, size_t k, narrow_rows out)
{
    size_t row = blockIdx.x, column = ((size_t)blockIdx.y * NARROW_THREADS + threadIdx.x) * 8;
    float eight[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < m && column < k) eight_of(x + row * k + column, eight);
    float largest = largest_of(eight, 0.0f);
    largest = warp_fold<OF_GROUP>(largest, larger_of_two());
    if (column >= out.stride) return;
    const narrow_scale s(largest);
    if (column % NARROW_GROUP == 0)
        out.scales[row * out.scales_of_row + column / NARROW_GROUP * out.scales_step] = s.scale;
    out.put(row, column, narrow_eight(eight, s.inverse));
}

/* ---- W --------------------------------------------------------------------------------------- */

/* A warp makes rows of a tile's bytes, and columns of the scales [groups][n] of which the tile has
 * the first one. */
static __global__ void rows_kernel(gpu_matrix w, uint8_t *out, float *scales)
{
    uint32_t tiles = (uint32_t)((w.k + 31) / 32); /* side by side */
    uint32_t tile = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (tile >= (uint32_t)(w.n / 16) * tiles) return;
    unsigned lane = threadIdx.x % WARP;
    size_t row = tile / tiles * 16 + lane / 4, column = tile % tiles * 32 + lane % 4 * 8;
    vec16 both = load_once((const vec16 *)w.data + (size_t)tile * WARP + lane);
    if (column >= w.k) return;
    *(vec8 *)(out + row * w.k + column) = vec8{{both.w[0], both.w[1]}};
    *(vec8 *)(out + (row + 8) * w.k + column) = vec8{{both.w[2], both.w[3]}};
    if (w.group ? column % w.group != 0 : column != 0) return;
    size_t at = (w.group ? column / w.group : 0) * w.n + row;
    scales[at] = scale_at(w, row, column);
    scales[at + 8] = scale_at(w, row + 8, column);
}

/* ---- y --------------------------------------------------------------------------------------- */

static DEVICE vec16 scaled(vec16 v, float of_x, const vec16 *of_w, float)
{
    vec16 w = *of_w;
#pragma unroll
    for (int e = 0; e < 4; e++)
        v.w[e] = bits_of_float(float_of_bits(v.w[e]) * (of_x * float_of_bits(w.w[e])));
    return v;
}
static DEVICE vec16 scaled(vec16 v, float of_x, const vec16 *of_w, bf16)
{
    vec16 w[2] = {of_w[0], of_w[1]};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float low = of_x * float_of_bits(w[e / 2].w[e % 2 * 2]);
        float high = of_x * float_of_bits(w[e / 2].w[e % 2 * 2 + 1]);
        v.w[e] = pack2(to_float(bf16{(uint16_t)v.w[e]}) * low,
                       to_float(bf16{(uint16_t)(v.w[e] >> 16)}) * high, bf16());
    }
    return v;
}

/* A block scales a row of y; a thread as many elements at a time as 16 bytes have. */
template <class T>
static __global__ void __launch_bounds__(NARROW_THREADS)
    scale_kernel(T *y, size_t n, const float *w_scales, const float *x_scales)
{
    const size_t EACH = 16 / sizeof(T);
    float of_x = x_scales[blockIdx.x];
    for (size_t i = threadIdx.x * EACH; i < n; i += NARROW_THREADS * EACH) {
        vec16 *at = (vec16 *)(y + blockIdx.x * n + i);
        *at = scaled(*at, of_x, (const vec16 *)(w_scales + i), T());
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Takes `bytes` of scratch. */
static uint8_t *take(uint8_t **at, size_t bytes)
{
    uint8_t *mine = *at;
    *at += round_up(bytes, GPU_NARROW_ALIGNED);
    return mine;
}

/* Narrows m rows of x, and makes as many more of zeros as `all` has. */
template <class T>
static gpu_status narrow(gpu *g, const gpu_matrix *w, const T *x, size_t m, size_t all,
                         const narrow_rows &out)
{
    if (w->group) {
        const size_t each = NARROW_THREADS * 8;
        dim3 blocks((unsigned)all, (unsigned)((out.stride + each - 1) / each));
        LAUNCH(narrow_group_kernel<T>, blocks, NARROW_THREADS, 0, g, x, m, w->k, out);
    } else {
        LAUNCH(narrow_row_kernel<T>, (unsigned)m, NARROW_THREADS, 0, g, x, w->k, out);
    }
    return gpu_launched(g, "e4m3 operands");
}

static gpu_status narrow_of(gpu *g, const gpu_matrix *w, const void *x, size_t m, size_t all,
                            const narrow_rows &out)
{
    return w->type == GPU_BF16 ? narrow(g, w, (const bf16 *)x, m, all, out)
                               : narrow(g, w, (const f16 *)x, m, all, out);
}

template <class T> static gpu_status scale(gpu *g, const gpu_floats *f, T *y)
{
    LAUNCH(scale_kernel<T>, (unsigned)f->m, NARROW_THREADS, 0, g, y, f->n, f->w_scales,
           f->x_scales);
    return gpu_launched(g, "scales of a product");
}

gpu_status gpu_narrow_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                              gpu_type y_type, void *scratch)
{
    gpu_floats f = gpu_floats();
    size_t warps = NARROW_THREADS / WARP;
    uint8_t *at = (uint8_t *)scratch;
    f.n = w->n;
    f.k = w->k;
    f.by_group = w->group != 0;
    f.m = f.by_group ? gpu_product_rows(m) : m;
    uint8_t *w_rows = take(&at, f.n * f.k), *x_rows = take(&at, f.m * f.k);
    float *w_scales = (float *)take(&at, f.n * gpu_groups(w) * sizeof(float));
    float *x_scales = (float *)take(&at, f.m * gpu_groups(w) * sizeof(float));
    f.w = w_rows;
    f.x = x_rows;
    f.w_scales = w_scales;
    f.x_scales = x_scales;
    gpu_scaled scaled = gpu_library_scales(g, &f, y, y_type);
    if (scaled == GPU_SCALED_NEVER) return GPU_UNSUPPORTED;
    size_t tiles = w->n / 16 * ((w->k + 31) / 32);
    LAUNCH(rows_kernel, (unsigned)((tiles + warps - 1) / warps), NARROW_THREADS, 0, g, *w, w_rows,
           w_scales);
    gpu_status s = gpu_launched(g, "rows of e4m3 weights");
    if (s != GPU_OK) return s;
    s = narrow_of(g, w, x, m, f.m, {x_rows, x_scales, f.k, 1, f.m, false});
    if (s == GPU_OK) s = gpu_library_floats(g, &f, y, y_type);
    if (s != GPU_OK || scaled == GPU_SCALED_HERE) return s;
    return y_type == GPU_F32 ? scale(g, &f, (float *)y) : scale(g, &f, (bf16 *)y);
}

gpu_status gpu_narrow_experts(gpu *g, const gpu_matrix *w, const void *x, size_t m,
                              const gpu_experts_list *list, uint32_t n_tiles, void *y,
                              gpu_type y_type, void *scratch)
{
    uint8_t *rows = (uint8_t *)scratch;
    size_t stride = gpu_narrow_stride(w);
    float *scales = (float *)(rows + m * stride);
    gpu_status s = narrow_of(g, w, x, m, m, {rows, scales, stride, gpu_narrow_scales(w), 1, true});
    if (s != GPU_OK) return s;
    return gpu_grouped_narrow(g, {*w, rows, y, y_type == GPU_F32, *list, n_tiles, 0}, scales);
}

GPU_CODE(narrow, rows_kernel)
