/* Products of many rows of experts of e4m3 by e4m3 with wgmma, for compute capability 9.0: compiled
 * for sm_90a alone.
 *
 * A warp has a panel of 16 rows of W in registers, as its tiles have them; two warpgroups share the
 * rows of x, which lie in shared memory as wgmma reads them. The tensor core keeps fewer bits of a
 * sum than f32 has, and scales may be those of 128 columns: so a thread adds up the sums of 128
 * columns itself, times both scales. While it does, the tensor core multiplies the other half of
 * the rows, or the next columns of a tile of up to 64 rows. */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/narrow.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    NARROW_STEP = 128,  /* columns of a stage: a row's bytes are ROW_BYTES */
    NARROW_STAGES = 5,  /* one is multiplied, and one before it may still be */
    NARROW_AHEAD = 3,   /* so many are under way */
    NARROW_HALF = 64,   /* rows of x of a product */
    NARROW_OPERANDS = 4 /* of 32 columns, of a stage */
};

/* A block's stages of 128 columns, and a thread's part in filling them: rows of x, tiles of W, the
 * scales of W's rows, and four scales of each row of x, of which the stage's is one. */
struct narrow_stages {
    enum {
        TILE_BYTES = WARP * 16,
        PANEL_BYTES = NARROW_OPERANDS * TILE_BYTES,
        PANEL_PIECES = PANEL_BYTES / 16,
        COPIED_PANELS = GROUPED_THREADS / PANEL_PIECES, /* that all threads copy at a time */
        SCALES = 16 * 4,                                /* bytes of a panel's */
        SCALE_PIECES = SCALES / 16,
        W_AT = ROWS * ROW_BYTES,
        SCALES_AT = W_AT + PANELS * PANEL_BYTES,
        X_SCALES_AT = SCALES_AT + PANELS * SCALES,
        STAGE_BYTES = (X_SCALES_AT + ROWS * 16 + SWIZZLED - 1) / SWIZZLED * SWIZZLED,
    };
    unsigned char *const first;
    /* This thread's pieces: rows of x, their scales, W's first panel and its scales. One
     * that is not there is NULL, and zeros are copied. */
    const uint8_t *x[ROWS / COPIED_ROWS];
    const float *x_scales;
    const uint8_t *w, *w_scales;
    const uint8_t *const any; /* an address of global memory */
    uint32_t panels, tiles;   /* panels from the thread's first one on; tiles of a panel */
    uint32_t columns, groups, n_stages; /* columns from the piece on; groups of a row */
    bool by_group;

    DEVICE narrow_stages(const grouped_job &job, const gpu_matrix &mine, const float *of_x,
                         uint32_t out, const uint32_t *rows, unsigned char *shared)
        : first(shared), x_scales(NULL), w(NULL), w_scales(NULL), any((const uint8_t *)job.x)
    {
        const size_t stride = gpu_narrow_stride(&mine);
        uint32_t all = (uint32_t)mine.n / 16, panel = out / 16 + threadIdx.x / PANEL_PIECES;
        uint32_t piece = threadIdx.x % ROW_PIECES * 16;
        columns = stride > piece ? (uint32_t)stride - piece : 0;
        tiles = (uint32_t)stride / 32;
        groups = (uint32_t)gpu_groups(&mine);
        n_stages = (uint32_t)((stride + 2 * NARROW_STEP - 1) / (2 * NARROW_STEP)) * 2;
        by_group = mine.group != 0;
#pragma unroll
        for (uint32_t j = 0; j < ROWS / COPIED_ROWS; j++) {
            uint32_t row = rows[j * COPIED_ROWS + threadIdx.x / ROW_PIECES];
            x[j] = row != NO_ROW ? any + row * stride + piece : NULL;
        }
        if (threadIdx.x >= ROWS && rows[threadIdx.x - ROWS] != NO_ROW)
            x_scales = of_x + rows[threadIdx.x - ROWS] * gpu_narrow_scales(&mine);
        panels = panel < all ? all - panel : 0;
        w = (const uint8_t *)mine.data;
        if (panels)
            w += ((size_t)panel * tiles + threadIdx.x % PANEL_PIECES / WARP) * TILE_BYTES +
                 threadIdx.x % WARP * 16;
        panel = out / 16 + threadIdx.x / SCALE_PIECES;
        if (threadIdx.x < PANELS * SCALE_PIECES && panel < all)
            w_scales = (const uint8_t *)mine.scales + (size_t)panel * groups * SCALES +
                       threadIdx.x % SCALE_PIECES * 16;
    }

    DEVICE unsigned char *at(uint32_t n) const { return first + n % NARROW_STAGES * STAGE_BYTES; }
    DEVICE uint32_t group(uint32_t n) const { return by_group ? n : 0; }

    /* Starts copying stage n, with N rows of x; behind the last stage the group is empty. */
    template <int N> DEVICE void fetch(uint32_t n) const
    {
        if (n < n_stages) {
            fetch_operands<N>(n, at(n));
            fetch_scales(n, at(n));
        }
        copy_commit();
    }
    template <int N> DEVICE void fetch_operands(uint32_t n, unsigned char *to) const
    {
        uint32_t column = n * NARROW_STEP, tile = n * NARROW_OPERANDS;
        uint32_t left = tile + threadIdx.x % PANEL_PIECES / WARP < tiles ? panels : 0;
#pragma unroll
        for (uint32_t j = 0; j < N / COPIED_ROWS; j++) {
            bool there = x[j] && column < columns;
            copy_async(to + thread_piece<true>(0) + j * COPIED_ROWS * ROW_BYTES,
                       there ? x[j] + column : any, there);
        }
#pragma unroll
        for (uint32_t j = 0; j < PANELS / COPIED_PANELS; j++) {
            bool there = j * COPIED_PANELS < left;
            size_t from = (size_t)(j * COPIED_PANELS * tiles + tile) * TILE_BYTES;
            copy_async(to + W_AT + (j * GROUPED_THREADS + threadIdx.x) * 16, there ? w + from : any,
                       there);
        }
    }
    DEVICE void fetch_scales(uint32_t n, unsigned char *to) const
    {
        bool there = group(n) < groups;
        if (threadIdx.x >= ROWS) {
            bool has = there && x_scales;
            copy_async(to + X_SCALES_AT + (threadIdx.x - ROWS) * 16,
                       has ? (const void *)(x_scales + group(n) / 4 * 4) : any, has);
        } else if (threadIdx.x < PANELS * SCALE_PIECES) {
            bool has = there && w_scales;
            copy_async(to + SCALES_AT + threadIdx.x * 16,
                       has ? w_scales + (size_t)group(n) * SCALES : any, has);
        }
    }
};

/* A thread's part of a block whose tile has up to HALVES * NARROW_HALF rows. Products go one after
 * the other, half by half of a stage; each leaves its sums in one of two sets of registers. */
template <int HALVES> struct narrow_product {
    uint32_t a[2][NARROW_OPERANDS][4];
    float fresh[2][8][4], sums[HALVES][8][4];

    DEVICE narrow_product()
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 32; i++) sums[h][i / 4][i % 4] = 0.0f;
    }

    /* This warp's operands of a stage: bytes of a tile as they lie, the columns in the order that x
     * has. */
    static DEVICE void read(const unsigned char *stage, uint32_t to[NARROW_OPERANDS][4])
    {
        const unsigned char *panel = stage + narrow_stages::W_AT +
                                     threadIdx.x / WARP * narrow_stages::PANEL_BYTES +
                                     threadIdx.x % WARP * 16;
#pragma unroll
        for (int j = 0; j < NARROW_OPERANDS; j++) {
            vec16 both = read_piece(panel + j * narrow_stages::TILE_BYTES);
            to[j][0] = both.w[0];
            to[j][1] = both.w[2];
            to[j][2] = both.w[1];
            to[j][3] = both.w[3];
        }
    }

    /* Starts the product of a stage's operands with half h of the rows. */
    static DEVICE void start(const unsigned char *stage, int h,
                             uint32_t (&of_w)[NARROW_OPERANDS][4], float (&to)[8][4])
    {
        uint64_t x = group_operand(stage + h * NARROW_HALF * ROW_BYTES, 0, SWIZZLED);
        hold(of_w);
        hold(to);
        group_fence();
#pragma unroll
        for (int j = 0; j < NARROW_OPERANDS; j++)
            multiply_group(to, of_w[j], x + j * 32 / 16, j > 0, e4m3());
        group_commit();
    }

    /* Adds what a product of stage n and half h has left, times the scales. */
    static DEVICE void add(const narrow_stages &of, uint32_t n, int h, float (&from)[8][4],
                           float (&to)[8][4])
    {
        uint32_t lane = threadIdx.x % WARP;
        const unsigned char *stage = of.at(n);
        const float *of_x = (const float *)(stage + narrow_stages::X_SCALES_AT) +
                            (h * NARROW_HALF + lane % 4 * 2) * 4 + of.group(n) % 4;
        const vec8 of_w = ((const vec8 *)(stage + narrow_stages::SCALES_AT))[threadIdx.x / 4];
        const float scales[2] = {float_of_bits(of_w.w[0]), float_of_bits(of_w.w[1])};
        hold(from);
#pragma unroll
        for (int e = 0; e < 8; e++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[e][i] += from[e][i] * (of_x[(e * 8 + i % 2) * 4] * scales[i / 2]);
    }

    /* Waits for stage n, and starts copying one into the place of a stage before the last. */
    static DEVICE void arrive(const narrow_stages &of, uint32_t n)
    {
        copy_wait<NARROW_AHEAD - 1>();
        fence_operands();
        __syncthreads(); /* and all are done with stage n - 2 */
        of.template fetch<HALVES * NARROW_HALF>(n + NARROW_AHEAD);
    }

    /* A turn of the loop: two stages. No product is under way from one turn to the next, or else
     * the compiler would have each waited for at once. */
    DEVICE void turn(const narrow_stages &of, uint32_t n)
    {
        arrive(of, n);
        read(of.at(n), a[0]);
        start(of.at(n), 0, a[0], fresh[0]);
        if (HALVES == 2) {
            start(of.at(n), 1, a[0], fresh[1]);
            group_wait<1>();
            add(of, n, 0, fresh[0], sums[0]);
        }
        arrive(of, n + 1);
        read(of.at(n + 1), a[1]);
        if (HALVES == 2) {
            start(of.at(n + 1), 0, a[1], fresh[0]);
            group_wait<1>();
            add(of, n, 1, fresh[1], sums[HALVES - 1]);
            start(of.at(n + 1), 1, a[1], fresh[1]);
            group_wait<1>();
            add(of, n + 1, 0, fresh[0], sums[0]);
        } else {
            start(of.at(n + 1), 0, a[1], fresh[1]);
            group_wait<1>();
            add(of, n, 0, fresh[0], sums[0]);
        }
        group_wait<0>();
        add(of, n + 1, HALVES - 1, fresh[1], sums[HALVES - 1]);
    }

    DEVICE void run(const narrow_stages &of)
    {
#pragma unroll
        for (uint32_t n = 0; n < NARROW_AHEAD; n++) of.template fetch<HALVES * NARROW_HALF>(n);
        for (uint32_t n = 0; n < of.n_stages; n += 2) turn(of, n);
        copy_wait<0>();
        __syncthreads();
    }

    /* Writes y to shared memory. */
    DEVICE void put(float *y) const
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) put_sums(sums[h], h * NARROW_HALF, y);
        __syncthreads();
    }
};

static const size_t NARROW_Y_BYTES = ROWS * LINE * sizeof(float);
static const size_t NARROW_STAGES_BYTES = (size_t)NARROW_STAGES * narrow_stages::STAGE_BYTES;
static_assert(NARROW_STAGES_BYTES >= NARROW_Y_BYTES, "y lies where the stages were");
/* The first stage begins at a multiple of SWIZZLED. */
static const size_t NARROW_BYTES = SWIZZLED + NARROW_STAGES_BYTES;

template <class T>
static __global__ void __launch_bounds__(GROUPED_THREADS, 1)
    grouped_narrow_kernel(grouped_job job, const float *x_scales)
{
    DYNAMIC_SHARED(shared);
    __shared__ uint32_t rows[ROWS];
    const block_place at(job, OUTS);
    const gpu_expert_tile tile = job.list.tiles[at.tile];
    if (tile.n == 0) return; /* the whole block */
    list_rows(job, tile, rows);
    unsigned char *aligned = shared + (SWIZZLED - shared_address(shared) % SWIZZLED) % SWIZZLED;
    const narrow_stages stages(job, matrix_of(job.w, tile.expert), x_scales, at.out, rows, aligned);
    if (tile.n > NARROW_HALF) {
        narrow_product<2> product;
        product.run(stages);
        product.put((float *)aligned);
    } else {
        narrow_product<1> product;
        product.run(stages);
        product.put((float *)aligned);
    }
    store_rows<T>(job, tile, at.out, (const float *)aligned);
}

template <class T> static gpu_status launch(gpu *g, const grouped_job &job, const float *x_scales)
{
    gpu_status s = gpu_allow_shared(g, (const void *)grouped_narrow_kernel<T>, NARROW_BYTES);
    if (s != GPU_OK) return s;
    LAUNCH(grouped_narrow_kernel<T>, grouped_blocks(job, OUTS), GROUPED_THREADS, NARROW_BYTES, g,
           job, x_scales);
    return gpu_launched(g, "product of experts of e4m3");
}

gpu_status gpu_grouped_narrow(gpu *g, const grouped_job &job, const float *x_scales)
{
    return job.w.type == GPU_BF16 ? launch<bf16>(g, job, x_scales) : launch<f16>(g, job, x_scales);
}

GPU_CODE(grouped_narrow_wide, grouped_narrow_kernel<bf16>)
