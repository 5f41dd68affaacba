/* Products of many rows of experts: y = x W^T for tiles of rows that belong to one expert each. The
 * list of tiles lies on the device, so that nothing waits for the host. A quantised matrix of a
 * dense layer is multiplied as one expert's, without a list.
 *
 * A lane reads 16 bytes of a row of x: of every 32 columns the eight from 8 t on, as quant.cuh has
 * W, and W of 16 bits is read likewise. So both operands have their columns in the same, other
 * order, which a sum over all columns does not notice, and quantised W becomes 16-bit operands in
 * registers without an exchange between lanes. */
#include "kernels/cuda/grouped.cuh"

enum {
    WARP_PANELS = 2,                                /* of W, of each warp */
    X_WARPS = GROUPED_WARPS * WARP_PANELS / PANELS, /* warps that share these panels */
    WARP_EIGHTS = ROWS / 8 / X_WARPS,               /* groups of eight rows of x */
    AT_ONCE = 2,                                    /* of these */
};

/* A thread's part of a block. The warp's rows of x are every X_WARPS-th eight, so that warps of a
 * short tile have about as many. */
template <class W> struct grouped_work {
    typedef typename W::type T;
    typedef grouped_stages<W, false> stages;
    static constexpr size_t STAGES_BYTES = GROUPED_STAGES * stages::STAGE_BYTES;
    static constexpr size_t Y_BYTES = ROWS * LINE * sizeof(float);
    static constexpr size_t BYTES = STAGES_BYTES > Y_BYTES ? STAGES_BYTES : Y_BYTES;

    uint32_t first_panel, of_x, eights;
    float sums[WARP_PANELS][WARP_EIGHTS][4];

    DEVICE explicit grouped_work(const gpu_expert_tile &tile)
    {
        uint32_t warp = threadIdx.x / WARP;
        first_panel = warp / X_WARPS * WARP_PANELS;
        of_x = warp % X_WARPS;
        eights = ((tile.n + 7) / 8 + X_WARPS - 1 - of_x) / X_WARPS;
#pragma unroll
        for (int p = 0; p < WARP_PANELS; p++)
#pragma unroll
            for (int n = 0; n < WARP_EIGHTS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[p][n][i] = 0.0f;
    }

    /* Adds a stage's products. Rows behind the tile's are left out, AT_ONCE eights at a time. */
    DEVICE void add(const unsigned char *of_rows)
    {
        const unsigned char *of_w = of_rows + stages::X_BYTES;
#pragma unroll
        for (int s = 0; s < STEP / 32; s++) {
            uint32_t a[WARP_PANELS][2][4];
#pragma unroll
            for (int p = 0; p < WARP_PANELS; p++) W::fragments(of_w, first_panel + p, s, a[p]);
#pragma unroll
            for (int i = 0; i < WARP_EIGHTS; i += AT_ONCE) {
                if ((uint32_t)i >= eights) break; /* the whole warp */
                vec16 b[AT_ONCE];
#pragma unroll
                for (int e = 0; e < AT_ONCE; e++)
                    b[e] = lane_piece(of_rows, ((i + e) * X_WARPS + of_x) * 8, s);
#pragma unroll
                for (int e = 0; e < AT_ONCE; e++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
#pragma unroll
                        for (int p = 0; p < WARP_PANELS; p++)
                            multiply(sums[p][i + e], a[p][j], b[e].w[2 * j], b[e].w[2 * j + 1],
                                     T());
            }
        }
    }

    /* Writes y to shared memory. */
    DEVICE void put(float *y) const
    {
        uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (int p = 0; p < WARP_PANELS; p++)
#pragma unroll
            for (int n = 0; n < WARP_EIGHTS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t row = (n * X_WARPS + of_x) * 8 + lane % 4 * 2 + i % 2;
                    y[row * LINE + (first_panel + p) * 16 + lane / 4 + i / 2 * 8] = sums[p][n][i];
                }
    }
};

template <class W>
static __global__ void __launch_bounds__(GROUPED_THREADS, 2) grouped_kernel(grouped_job job)
{
    DYNAMIC_SHARED(shared);
    __shared__ uint32_t rows[ROWS];
    const block_place at(job, OUTS);
    const gpu_expert_tile tile = tile_of(job, at.tile);
    if (tile.n == 0) return; /* the whole block */
    list_rows(job, tile, rows);
    const grouped_stages<W, false> stages(job, matrix_of(job.w, tile.expert), at.out, rows, shared);
    grouped_work<W> work(tile);
#pragma unroll
    for (uint32_t n = 0; n + 1 < GROUPED_STAGES; n++) stages.template fetch<ROWS>(n);
    for (uint32_t n = 0; n < stages.count(); n++) {
        copy_wait<GROUPED_STAGES - 2>();
        __syncthreads(); /* and all are done with stage n - 1 */
        stages.template fetch<ROWS>(n + GROUPED_STAGES - 1);
        work.add(stages.at(n));
    }
    copy_wait<0>();
    __syncthreads();
    work.put((float *)shared);
    __syncthreads();
    store_rows<typename W::type>(job, tile, at.out, (const float *)shared);
}

/* ---- other matrices ----------------------------------------------------------------------------
 * Operands of 32 bits, or rows that do not begin at a multiple of 16 bytes: products without tensor
 * cores. A block multiplies 64 rows of x by 64 of W; a thread has 4 by 4 of their sums. */

enum {
    ANY_SIDE = 64,
    ANY_STEP = 16,
    ANY_LINE = ANY_SIDE + 4,
    ANY_THREADS = 256,
    ANY_ROW_THREADS = ANY_SIDE / 4,
};

/* Eight columns of a row, or those of them that are there. */
template <class T> static DEVICE void load_eight(const T *row, size_t column, size_t k, float v[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = column + e < k ? to_float(row[column + e]) : 0.0f;
}
template <class T>
static DEVICE void load_eight(const gpu_matrix &w, size_t row, size_t column, float v[8])
{
    if (w.bits == 0) {
        load_eight((const T *)w.data + row * w.k, column, w.k, v);
        return;
    }
    float scale = scale_at(w, row, column);
    quant_eight(w, row, column, v);
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = column + e < w.k ? to_float(from_float<T>(v[e] * scale)) : 0.0f;
}

template <class T>
static __global__ void __launch_bounds__(ANY_THREADS) grouped_any_kernel(grouped_job job)
{
    __shared__ float of_x[ANY_STEP][ANY_LINE], of_w[ANY_STEP][ANY_LINE];
    const block_place at(job, ANY_SIDE);
    const gpu_expert_tile tile = job.list.tiles[at.tile];
    uint32_t first = blockIdx.y * ANY_SIDE; /* row of the tile */
    if (first >= tile.n) return;            /* the whole block */
    const gpu_matrix w = matrix_of(job.w, tile.expert);
    uint32_t side = threadIdx.x / (ANY_THREADS / 2), of_side = threadIdx.x % (ANY_THREADS / 2);
    uint32_t mine = of_side / 2, eight = of_side % 2 * 8; /* what this thread loads */
    uint32_t row = threadIdx.x / ANY_ROW_THREADS * 4, out = threadIdx.x % ANY_ROW_THREADS * 4;
    const T *x = NULL;
    if (side == 0 && first + mine < tile.n)
        x = (const T *)job.x + (size_t)row_of(job.list, tile.first + first + mine) * w.k;
    float sums[4][4];
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = 0.0f;
    for (size_t column = 0; column < w.k; column += ANY_STEP) {
        float v[8];
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = 0.0f;
        if (column + eight < w.k) {
            if (x) load_eight(x, column + eight, w.k, v);
            else if (side == 1 && at.out + mine < w.n)
                load_eight<T>(w, at.out + mine, column + eight, v);
        }
        __syncthreads(); /* all are done with the columns before */
#pragma unroll
        for (int e = 0; e < 8; e++) (side == 0 ? of_x : of_w)[eight + e][mine] = v[e];
        __syncthreads();
#pragma unroll
        for (int c = 0; c < ANY_STEP; c++) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = of_x[c][row + i];
                b[i] = of_w[c][out + i];
            }
#pragma unroll
            for (int i = 0; i < 16; i++) sums[i / 4][i % 4] += a[i / 4] * b[i % 4];
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t r = first + row + i / 4, n = at.out + out + i % 4;
        if (r >= tile.n || n >= w.n) continue;
        size_t to = (tile.first + r) * w.n + n;
        if (job.y_f32) ((float *)job.y)[to] = sums[i / 4][i % 4];
        else ((T *)job.y)[to] = from_float<T>(sums[i / 4][i % 4]);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class W> static gpu_status launch(gpu *g, const grouped_job &job)
{
    gpu_status s = gpu_allow_shared(g, (const void *)grouped_kernel<W>, grouped_work<W>::BYTES);
    if (s != GPU_OK) return s;
    LAUNCH(grouped_kernel<W>, grouped_blocks(job, OUTS), GROUPED_THREADS, grouped_work<W>::BYTES, g,
           job);
    return gpu_launched(g, "product of experts");
}

template <class T> static gpu_status launch_type(gpu *g, const grouped_job &job)
{
    if (job.w.is_float) return launch<quant_stage<T, 8, true>>(g, job);
    if (job.w.bits == 8) return launch<quant_stage<T, 8, false>>(g, job);
    if (job.w.bits == 4) return launch<quant_stage<T, 4, false>>(g, job);
    return launch<plain_stage<T, false>>(g, job);
}

/* Products of 16-bit operands with rows that begin at multiples of 16 bytes. */
static gpu_status multiply_tiles(gpu *g, const grouped_job &job)
{
    if (job.w.type == GPU_BF16 && gpu_compute(g) == 90) return gpu_grouped_wide(g, job);
    return job.w.type == GPU_BF16 ? launch_type<bf16>(g, job) : launch_type<f16>(g, job);
}

gpu_status gpu_staged_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                              gpu_type y_type)
{
    uint32_t rows = (uint32_t)m, n_tiles = (rows + ROWS - 1) / ROWS;
    return multiply_tiles(g, {*w, x, y, y_type == GPU_F32, {NULL, NULL}, n_tiles, rows});
}

gpu_status gpu_grouped_product(gpu *g, const gpu_matrix *w, const void *x,
                               const gpu_experts_list *list, uint32_t n_tiles, void *y,
                               gpu_type y_type)
{
    const grouped_job job = {*w, x, y, y_type == GPU_F32, *list, n_tiles, 0};
    if (gpu_takes_few(w)) return multiply_tiles(g, job);
    const dim3 blocks(grouped_blocks(job, ANY_SIDE), ROWS / ANY_SIDE);
#define ANY(T) LAUNCH(grouped_any_kernel<T>, blocks, ANY_THREADS, 0, g, job)
    FOR_TYPE(w->type, ANY)
#undef ANY
    return gpu_launched(g, "product of experts");
}

GPU_CODE(grouped, grouped_any_kernel<float>)
