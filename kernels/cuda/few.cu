/* Products of few rows. Reading W is their cost, so W is read once, as it lies. A block computes
 * some rows of W: its warps share the columns, tensor cores multiply 16 rows of W by 8 rows of x at
 * a time, and the warps' sums are added in their order. Rows of x may be those of experts. */
#include "kernels/cuda/quant.cuh"

enum {
    FEW_WARPS = 8,
    FEW_BLOCK = FEW_WARPS * WARP,
    AHEAD = 4,    /* tiles of W that are loaded ahead */
    ROWS_OF_8 = 4 /* most groups of 8 rows of x in a block */
};

/* ---- a tile of W --------------------------------------------------------------------------------
 * A lane's part of 16 rows and COLUMNS columns, and the fragments of A made from it: fragment (s,
 * j) is the j-th of two for the s-th 32 columns. BIASED: its elements are those of W and a bias. */

template <class T> struct plain_tile {
    typedef T type;
    enum { COLUMNS = 32, SCALED = 0, BIASED = 0, SPAN = 1 };
    /* The start of a lane's parts of a panel. */
    struct place {
        const T *rows[2];
        uint32_t columns; /* columns from there on */
        DEVICE void turn() {}
    };
    vec16 rows[2];
    static DEVICE place find(const gpu_matrix &w, size_t panel)
    {
        unsigned lane = threadIdx.x % WARP;
        place at = {{NULL, NULL}, (uint32_t)w.k - lane % 4 * 8};
        for (int i = 0; i < 2; i++) {
            size_t row = panel * 16 + lane / 4 + i * 8;
            if (row >= w.n) row = w.n - 1;
            at.rows[i] = (const T *)w.data + row * w.k + lane % 4 * 8;
        }
        if (lane % 4 * 8 >= w.k) at.columns = 0;
        return at;
    }
    DEVICE void load(const place &at, uint32_t tile, int)
    {
        uint32_t column = tile * COLUMNS;
        for (int i = 0; i < 2; i++)
            rows[i] = column < at.columns ? load_once((const vec16 *)(at.rows[i] + column))
                                          : vec16{{0, 0, 0, 0}};
    }
    DEVICE void fragment(int, int j, uint32_t a[4]) const
    {
        a[0] = rows[0].w[2 * j];
        a[1] = rows[1].w[2 * j];
        a[2] = rows[0].w[2 * j + 1];
        a[3] = rows[1].w[2 * j + 1];
    }
    DEVICE float scale(int, int) const { return 1.0f; }
};

/* SPAN: how many of a tile's 32 columns each scale is for. Of 4 bits groups have 32 columns with 1,
 * and 64 or 128 with 2. */
template <class T, int BITS, int SPAN_ = 1> struct quant_tile {
    typedef T type;
    enum { COLUMNS = BITS == 4 ? 64 : 32, SCALED = 1, BIASED = BITS == 4, SPAN = SPAN_ };
    enum { SCALES = COLUMNS / 32 / SPAN, BY_TILE = BITS == 4 && SPAN == 1 };
    struct place {
        const vec16 *tiles;     /* from the first tile of a turn on */
        const uint32_t *scales; /* scales of the panel's groups; BY_TILE: from that tile on */
        uint32_t group;         /* log2 of the group's tiles */
        DEVICE void turn()
        {
            tiles += AHEAD * FEW_BLOCK;
            if (BY_TILE) scales += AHEAD * FEW_WARPS * SCALES * 8;
        }
    };
    vec16 v;
    uint32_t scales[SCALES];
    static DEVICE place find(const gpu_matrix &w, size_t panel)
    {
        unsigned lane = threadIdx.x % WARP, tile = threadIdx.x / WARP;
        size_t tiles = (w.k + COLUMNS - 1) / COLUMNS;
        return place{(const vec16 *)w.data + panel * tiles * WARP + threadIdx.x,
                     (const uint32_t *)w.scales + panel * gpu_groups(&w) * 8 + lane / 4 +
                         (BY_TILE ? tile * SCALES * 8 : 0),
                     w.group == COLUMNS       ? 0u
                     : w.group == 2 * COLUMNS ? 1u
                                              : 2u};
    }
    /* `ahead` of the first tile of the turn. */
    DEVICE void load(const place &at, uint32_t tile, int ahead)
    {
        v = load_once(at.tiles + ahead * FEW_BLOCK);
#pragma unroll
        for (int s = 0; s < SCALES; s++)
            scales[s] = BY_TILE ? at.scales[(ahead * FEW_WARPS * SCALES + s) * 8]
                                : at.scales[(tile >> at.group) * 8];
    }
    DEVICE void fragment(int s, int j, uint32_t a[4]) const
    {
        for (int row = 0; row < 2; row++)
            for (int b = 0; b < 2; b++) {
                if (BITS == 4) a[row + 2 * b] = biased_pair(v.w[2 * s + row], 2 * j + b, T());
                else a[row + 2 * b] = pair_of_bytes(v.w[2 * row + j] ^ 0x80808080u, b, T());
            }
    }
    /* The scale of row g, or of row g + 8, in the s-th 32 columns. */
    DEVICE float scale(int s, int row) const
    {
        uint32_t two = scales[s / SPAN];
        if (BITS == 4) return float_of_bits(row ? two & 0xffff0000u : two << 16);
        return float_of_bits((row ? two >> 16 : two & 0xffffu) << 15);
    }
};

/* quant_tile for e4m3 floats. */
template <class T> struct float_tile {
    typedef T type;
    enum { COLUMNS = 32, SCALED = 1, BIASED = 0, SPAN = 1 };
    struct place {
        const vec16 *tiles;
        const vec8 *scales; /* scales of the panel's groups */
        uint32_t group;     /* log2 of the group's tiles; 31: one group has all */
        DEVICE void turn() {}
    };
    vec16 v;
    vec8 scales;
    static DEVICE place find(const gpu_matrix &w, size_t panel)
    {
        unsigned lane = threadIdx.x % WARP;
        size_t tiles = (w.k + COLUMNS - 1) / COLUMNS;
        return place{(const vec16 *)w.data + panel * tiles * WARP + lane,
                     (const vec8 *)w.scales + panel * gpu_groups(&w) * 8 + lane / 4,
                     w.group == 0    ? 31u
                     : w.group == 32 ? 0u
                     : w.group == 64 ? 1u
                                     : 2u};
    }
    DEVICE void load(const place &at, uint32_t tile, int)
    {
        v = load_once(at.tiles + (size_t)tile * WARP);
        scales = at.scales[(tile >> at.group) * 8];
    }
    DEVICE void fragment(int, int j, uint32_t a[4]) const
    {
        for (int row = 0; row < 2; row++)
            for (int b = 0; b < 2; b++) a[row + 2 * b] = pair_of_floats(v.w[2 * row + j], b, T());
    }
    DEVICE float scale(int, int row) const { return float_of_bits(scales.w[row]); }
};

/* ---- a block --------------------------------------------------------------------------------- */

struct few_job {
    gpu_matrix w; /* experts: the first one's */
    const void *x;
    void *y;
    uint32_t m;
    bool y_f32;
    gpu_experts_list experts; /* tiles NULL: none */
};

/* The rows of x and y of a block: entry r of x is row x_rows[first + r], or first + r when x_rows
 * is NULL. */
struct few_rows {
    const uint32_t *x_rows;
    uint32_t first, n;
};

/* A lane's rows of x, one of every eight, from the first tile of a turn on. Rows beyond the last
 * one read the last one; their sums are not stored. */
template <class C, int N> struct x_place {
    typedef typename C::type T;
    const T *rows[N];
    uint32_t columns; /* from a lane's first one on */
    DEVICE x_place(const few_job &job, const few_rows &of)
    {
        unsigned lane = threadIdx.x % WARP;
        for (uint32_t n = 0; n < N; n++) {
            uint32_t r = n * 8 + lane / 4;
            size_t row = of.first + (r < of.n ? r : of.n - 1);
            if (of.x_rows) row = of.x_rows[row];
            rows[n] =
                (const T *)job.x + row * job.w.k + threadIdx.x / WARP * C::COLUMNS + lane % 4 * 8;
        }
        columns = job.w.k > lane % 4 * 8 ? (uint32_t)job.w.k - lane % 4 * 8 : 0;
    }
    /* The s-th 32 columns of a tile. */
    DEVICE vec16 load(int n, uint32_t tile, int ahead, int s) const
    {
        bool in = tile * C::COLUMNS + s * 32 < columns;
        const T *at = rows[n] + ahead * FEW_WARPS * C::COLUMNS + s * 32;
        return in ? *(const vec16 *)at : vec16{{0, 0, 0, 0}};
    }
    DEVICE void turn()
    {
        for (int n = 0; n < N; n++) rows[n] += AHEAD * FEW_WARPS * C::COLUMNS;
    }
};

/* sums [R panels][N groups of 8 rows of x] += a tile of each panel, which is `ahead` of the turn's
 * first. A product of x with minus_bias takes the bias of W away. */
template <class C, int R, int N>
static DEVICE void add_tile(const x_place<C, N> &x_at, const uint32_t minus_bias[4], const C w[R],
                            uint32_t tile, int ahead, float sums[R][N][4])
{
    typedef typename C::type T;
#pragma unroll
    for (int s = 0; s < C::COLUMNS / 32; s += C::SPAN) {
        vec16 x[C::SPAN][N];
        float first[N][4]; /* parts begin with it: it takes the bias of all rows of W away */
#pragma unroll
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) first[n][i] = 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * C::SPAN; j++) {
                vec16 &v = x[j / 2][n];
                if (j % 2 == 0) v = x_at.load(n, tile, ahead, s + j / 2);
                if (C::BIASED)
                    multiply(first[n], minus_bias, v.w[j % 2 * 2], v.w[j % 2 * 2 + 1], T());
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            float part[N][4];
#pragma unroll
            for (int j = 0; j < 2 * C::SPAN; j++) {
                uint32_t a[4];
                w[r].fragment(s + j / 2, j % 2, a);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const vec16 &v = x[j / 2][n];
                    const float *before = j > 0 ? part[n] : C::SCALED ? first[n] : sums[r][n];
                    multiply(part[n], a, v.w[j % 2 * 2], v.w[j % 2 * 2 + 1], before, T());
                }
            }
            float low = w[r].scale(s, 0), high = w[r].scale(s, 1);
#pragma unroll
            for (int n = 0; n < N; n++)
                for (int i = 0; i < 4; i++)
                    sums[r][n][i] =
                        C::SCALED ? sums[r][n][i] + part[n][i] * (i < 2 ? low : high) : part[n][i];
        }
    }
}

/* Adds up the warps' sums [16 R rows of W][8 N rows of x] and stores them. */
template <class T, int R, int N>
static DEVICE void finish(const few_job &job, const few_rows &rows, size_t panel,
                          const float sums[R][N][4], float *shared)
{
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int OUT = R * 16, ALL = OUT * N * 8;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N; n++)
            for (int i = 0; i < 4; i++) {
                int of_w = r * 16 + lane / 4 + i / 2 * 8, of_x = n * 8 + lane % 4 * 2 + i % 2;
                shared[warp * ALL + of_x * OUT + of_w] = sums[r][n][i];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < ALL; i += FEW_BLOCK) {
        size_t row = panel * 16 + i % OUT, r = i / OUT;
        if (row >= job.w.n || r >= rows.n) continue;
        float sum = 0.0f;
        for (int k = 0; k < FEW_WARPS; k++) sum += shared[k * ALL + i];
        size_t at = (rows.first + r) * job.w.n + row;
        if (job.y_f32) ((float *)job.y)[at] = sum;
        else ((T *)job.y)[at] = from_float<T>(sum);
    }
}

template <class C, int R, int N>
static __global__ void __launch_bounds__(FEW_BLOCK) few_kernel(few_job job)
{
    __shared__ float shared[FEW_WARPS * R * 16 * N * 8];
    few_rows rows = {job.experts.rows, blockIdx.y * N * 8, job.m};
    const bool listed = job.experts.tiles != NULL;
    if (listed) {
        await_previous(); /* a kernel of the step lists the tiles */
        gpu_expert_tile tile = job.experts.tiles[blockIdx.y];
        if (tile.n == 0) return; /* the whole block */
        rows.first = tile.first;
        rows.n = tile.n;
        job.w.data = (uint8_t *)job.w.data + tile.expert * gpu_matrix_bytes(&job.w);
        job.w.scales = (uint8_t *)job.w.scales + tile.expert * gpu_scale_bytes(&job.w);
    } else {
        rows.n = job.m - rows.first < N * 8 ? job.m - rows.first : N * 8;
    }
    size_t panel = (size_t)blockIdx.x * R, panels = (job.w.n + 15) / 16;
    uint32_t tiles = (uint32_t)((job.w.k + C::COLUMNS - 1) / C::COLUMNS);
    typename C::place mine[R];
    for (int r = 0; r < R; r++)
        mine[r] = C::find(job.w, panel + r < panels ? panel + r : panels - 1);
    float sums[R][N][4];
#pragma unroll
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++)
            for (int i = 0; i < 4; i++) sums[r][n][i] = 0.0f;
    C ring[AHEAD][R];
    uint32_t first = threadIdx.x / WARP;
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
        for (int r = 0; r < R; r++)
            if (first + a * FEW_WARPS < tiles) ring[a][r].load(mine[r], first + a * FEW_WARPS, a);
    if (!listed) await_previous(); /* W is on its way by then */
    x_place<C, N> x(job, rows);
    uint32_t bias[1][4]; /* held: a constant would be moved to four registers again and again */
    for (int i = 0; i < 4; i++) bias[0][i] = minus_bias(typename C::type());
    hold(bias);
    for (uint32_t tile = first; tile < tiles; tile += AHEAD * FEW_WARPS) {
#pragma unroll
        for (int r = 0; r < R; r++) mine[r].turn();
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t now = tile + a * FEW_WARPS, next = now + AHEAD * FEW_WARPS;
            if (now >= tiles) break; /* the whole warp */
            add_tile<C, R, N>(x, bias[0], ring[a], now, a, sums);
#pragma unroll
            for (int r = 0; r < R; r++)
                if (next < tiles) ring[a][r].load(mine[r], next, a);
        }
        x.turn();
    }
    finish<typename C::type, R, N>(job, rows, panel, sums, shared);
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class C, int R>
static void launch(gpu *g, const few_job &job, uint32_t rows, uint32_t n_tiles)
{
    size_t panels = (job.w.n + 15) / 16;
    auto kernel = rows <= 8    ? few_kernel<C, R, 1>
                  : rows <= 16 ? few_kernel<C, R, 2>
                               : few_kernel<C, R, ROWS_OF_8>;
    uint32_t of_block = rows <= 8 ? 8 : rows <= 16 ? 16 : ROWS_OF_8 * 8;
    uint32_t y = job.experts.tiles ? n_tiles : (job.m + of_block - 1) / of_block;
    LAUNCH_EARLY(kernel, dim3((unsigned)((panels + R - 1) / R), y), FEW_BLOCK, 0, g, job);
}

/* A block takes two panels, which share their reads of x, where enough blocks remain. */
template <class C>
static gpu_status run(gpu *g, const few_job &job, uint32_t rows, uint32_t n_tiles)
{
    size_t blocks = (job.w.n + 31) / 32 * (n_tiles ? n_tiles : 1);
    if (blocks >= 2 * gpu_sms(g)) launch<C, 2>(g, job, rows, n_tiles);
    else launch<C, 1>(g, job, rows, n_tiles);
    return gpu_launched(g, "product of few rows");
}

template <class T>
static gpu_status run_type(gpu *g, const few_job &job, uint32_t rows, uint32_t n_tiles)
{
    if (job.w.is_float) return run<float_tile<T>>(g, job, rows, n_tiles);
    switch (job.w.bits) {
    case 8: return run<quant_tile<T, 8>>(g, job, rows, n_tiles);
    case 4:
        if (job.w.group == 32) return run<quant_tile<T, 4>>(g, job, rows, n_tiles);
        return run<quant_tile<T, 4, 2>>(g, job, rows, n_tiles);
    default: return run<plain_tile<T>>(g, job, rows, n_tiles);
    }
}

static gpu_status run_job(gpu *g, const few_job &job, uint32_t rows, uint32_t n_tiles)
{
    if (job.w.type == GPU_BF16) return run_type<bf16>(g, job, rows, n_tiles);
    return run_type<f16>(g, job, rows, n_tiles);
}

gpu_status gpu_few_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                           gpu_type y_type)
{
    few_job job = {*w, x, y, (uint32_t)m, y_type == GPU_F32, {NULL, NULL}};
    return run_job(g, job, (uint32_t)m, 0);
}

gpu_status gpu_few_experts(gpu *g, const gpu_matrix *w, const void *x, const gpu_experts_list *list,
                           uint32_t n_tiles, uint32_t tile_rows, void *y, gpu_type y_type)
{
    few_job job = {*w, x, y, 0, y_type == GPU_F32, *list};
    return run_job(g, job, tile_rows, n_tiles);
}

GPU_CODE(few, few_kernel<plain_tile<bf16>, 1, 1>)
