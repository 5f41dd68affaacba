/* kernels/cuda, private: what grouped.cu, grouped_wide.cu and grouped_narrow_wide.cu share, which
 * multiply tiles of rows of experts: a block's place, and, for operands of 16 bits, stages of both
 * in shared memory. A block multiplies up to 128 rows of x by 128 rows of an expert's W, 64 columns
 * at a time. Both are copied as they lie, and the copies of two further stages are under way.
 *
 * Blocks that run at once share what they read in L2: the tiles of a band, which are neighbours,
 * go through W together. */
#ifndef KERNELS_CUDA_GROUPED_CUH
#define KERNELS_CUDA_GROUPED_CUH

#include "kernels/cuda/quant.cuh"
#include "kernels/cuda/swizzle.cuh"

enum {
    GROUPED_WARPS = 8,
    GROUPED_THREADS = GROUPED_WARPS * WARP,
    GROUPED_STAGES = 3,
    ROWS = GPU_GROUPED_ROWS, /* of x */
    OUTS = 128,              /* rows of W */
    PANELS = OUTS / 16,
    STEP = 64,                                  /* columns of a stage */
    COPIED_ROWS = GROUPED_THREADS / ROW_PIECES, /* that all threads copy at a time */
    LINE = OUTS + 4,                            /* floats of a row of y: no banks collide */
    BAND = 16,                                  /* tiles */
};

static const uint32_t NO_ROW = ~0u;

static_assert(STEP * 2 == ROW_BYTES, "a row of a stage");

/* Where piece `piece` of a row lies. WIDE: as wgmma has it. Otherwise a quarter of a warp reads
 * four pieces of two rows at a time, which are in different halves. */
template <bool WIDE> static DEVICE uint32_t piece_at(uint32_t row, uint32_t piece)
{
    return WIDE ? swizzled_at(row, piece) : row * ROW_BYTES + (piece ^ row % 2 * 4) * 16;
}

static DEVICE uint32_t thread_column() { return threadIdx.x % ROW_PIECES * 8; }

/* Where this thread's j-th piece of a stage's rows lies. */
template <bool WIDE> static DEVICE uint32_t thread_piece(uint32_t j)
{
    return piece_at<WIDE>(j * COPIED_ROWS + threadIdx.x / ROW_PIECES, threadIdx.x % ROW_PIECES);
}

static DEVICE vec16 read_piece(const unsigned char *at) { return *(const vec16 *)at; }

/* This lane's piece of the s-th 32 columns in one of the eight rows from `first` on. */
static DEVICE vec16 lane_piece(const unsigned char *rows, uint32_t first, int s)
{
    uint32_t lane = threadIdx.x % WARP;
    return read_piece(rows + first * ROW_BYTES + piece_at<false>(lane / 4, s * 4 + lane % 4));
}

/* ---- W -----------------------------------------------------------------------------------------
 * A thread's part of OUTS rows from `out` on. fetch starts copying 64 columns of them; what W does
 * not have becomes zeros. fragments makes a panel's operands of the s-th 32 of these columns, in
 * two halves, whose columns are in the order in which a lane reads them (quant.cuh); in_order has
 * them ascending. Values are those of products.cu: integer or float times scale, rounded once. */

/* Makes v[i] of a lane what v[lane % 4] of the i-th of its four neighbours was. */
static DEVICE void transpose_four(uint32_t v[4])
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            uint32_t got = shuffle_xor(upper ? v[i] : v[i + bit], bit);
            if (upper) v[i] = got;
            else v[i + bit] = got;
        }
    }
}

template <class T, bool WIDE> struct plain_stage {
    typedef T type;
    enum { BYTES = OUTS * ROW_BYTES };
    const T *from;             /* this thread's piece of the first row that it copies */
    uint32_t k, columns, rows; /* a row's columns; columns and rows from there on */

    DEVICE plain_stage(const gpu_matrix &w, uint32_t out)
    {
        uint32_t row = out + threadIdx.x / ROW_PIECES, column = thread_column();
        k = (uint32_t)w.k;
        columns = column < k ? k - column : 0;
        rows = row < w.n ? (uint32_t)w.n - row : 0;
        from = (const T *)w.data + (rows ? row * w.k : 0) + (columns ? column : 0);
    }
    DEVICE void fetch(uint32_t column, unsigned char *to) const
    {
#pragma unroll
        for (uint32_t j = 0; j < OUTS / COPIED_ROWS; j++) {
            bool there = column < columns && j * COPIED_ROWS < rows;
            const T *at = from + (there ? j * COPIED_ROWS * k + column : 0);
            copy_async(to + thread_piece<WIDE>(j), at, there);
        }
    }
    static DEVICE void fragments(const unsigned char *stage, uint32_t panel, int s,
                                 uint32_t a[2][4])
    {
        vec16 low = lane_piece(stage, panel * 16, s), high = lane_piece(stage, panel * 16 + 8, s);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            a[j][0] = low.w[2 * j];
            a[j][1] = high.w[2 * j];
            a[j][2] = low.w[2 * j + 1];
            a[j][3] = high.w[2 * j + 1];
        }
    }
    static DEVICE void in_order(const unsigned char *stage, uint32_t panel, int s, uint32_t a[2][4])
    {
        uint32_t lane = threadIdx.x % WARP, row = panel * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices(a[j], stage + piece_at<true>(row, s * 4 + j * 2 + lane / 16));
    }
};

template <class T, int BITS, bool FLOAT> struct quant_stage {
    typedef T type;
    typedef scaled_row<T, BITS, FLOAT> row;
    enum {
        COLUMNS = BITS == 4 ? 64 : 32,
        TILES = STEP / COLUMNS, /* of a panel */
        TILE_BYTES = WARP * 16,
        PIECES = TILES * WARP,                    /* of a panel */
        COPIED_PANELS = GROUPED_THREADS / PIECES, /* that all threads copy at a time */
        SCALES = 8 * (FLOAT ? 8 : 4),             /* bytes of a panel's scales for 32 columns */
        SCALE_PIECES = SCALES / 16,
        SCALE_THREADS = PANELS * 2 * SCALE_PIECES,
        SCALES_AT = PANELS * TILES * TILE_BYTES,
        BYTES = SCALES_AT + PANELS * 2 * SCALES
    };
    const uint8_t *from, *scales;
    uint32_t panels, tiles;       /* panels from this thread's first one on; tiles of a panel */
    uint32_t groups, column_bits; /* groups of a panel, 0 for a thread that copies none */

    DEVICE quant_stage(const gpu_matrix &w, uint32_t out)
    {
        uint32_t all = (uint32_t)(w.n + 15) / 16, panel = out / 16 + threadIdx.x / PIECES;
        tiles = (uint32_t)((w.k + COLUMNS - 1) / COLUMNS);
        panels = panel < all ? all - panel : 0;
        from = (const uint8_t *)w.data;
        if (panels) from += (size_t)panel * tiles * TILE_BYTES + threadIdx.x % WARP * 16;
        panel = out / 16 + threadIdx.x / (2 * SCALE_PIECES);
        groups = (uint32_t)gpu_groups(&w);
        scales = (const uint8_t *)w.scales;
        if (threadIdx.x >= SCALE_THREADS || panel >= all) groups = 0;
        else scales += (size_t)panel * groups * SCALES + threadIdx.x % SCALE_PIECES * 16;
        column_bits = log2_of_group(w);
    }
    DEVICE void fetch(uint32_t column, unsigned char *to) const
    {
        uint32_t tile = column / COLUMNS + threadIdx.x % PIECES / WARP;
#pragma unroll
        for (uint32_t j = 0; j < PANELS / COPIED_PANELS; j++) {
            bool there = tile < tiles && j * COPIED_PANELS < panels;
            size_t at = ((size_t)j * COPIED_PANELS * tiles + tile) * TILE_BYTES;
            copy_async(to + (j * GROUPED_THREADS + threadIdx.x) * 16, from + (there ? at : 0),
                       there);
        }
        if (threadIdx.x >= SCALE_THREADS) return;
        uint32_t s = threadIdx.x / SCALE_PIECES % 2, group = (column + s * 32) >> column_bits;
        bool there = group < groups;
        copy_async(to + SCALES_AT + threadIdx.x * 16, scales + (there ? (size_t)group * SCALES : 0),
                   there);
    }
    /* This lane's part of a panel, and its two rows. */
    struct part {
        vec16 v;
        row rows[2];
        DEVICE part(const unsigned char *stage, uint32_t panel, int s)
            : part(row::both::at(stage + SCALES_AT + (panel * 2 + s) * SCALES,
                                 threadIdx.x % WARP / 4))
        {
            uint32_t tile = panel * TILES + (TILES == 2 ? s : 0);
            v = read_piece(stage + tile * TILE_BYTES + threadIdx.x % WARP * 16);
            if (BITS == 8 && !FLOAT)
                for (int i = 0; i < 4; i++) v.w[i] ^= 0x80808080u;
        }

      private:
        DEVICE explicit part(const typename row::both &scales) : rows{{scales, 0}, {scales, 1}} {}
    };
    static DEVICE void fragments(const unsigned char *stage, uint32_t panel, int s,
                                 uint32_t a[2][4])
    {
        const part p(stage, panel, s);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int b = 0; b < 2; b++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    a[j][i + 2 * b] = BITS == 8
                                          ? p.rows[i].bytes(p.v.w[2 * i + j], 2 * b, 2 * b + 1)
                                          : p.rows[i].halves(p.v.w[2 * s + i], 2 * j + b);
    }
    static DEVICE void in_order(const unsigned char *stage, uint32_t panel, int s, uint32_t a[2][4])
    {
        const part p(stage, panel, s);
        uint32_t pairs[4]; /* bytes 0 and 2: two columns of the first row; 1 and 3: of the other; of
                            * 4 bits in a byte's lower half */
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = BITS == 8
                           ? pick_bytes(p.v.w[i / 2], p.v.w[2 + i / 2], i % 2 ? 0x7362 : 0x5140)
                           : pick_bytes(p.v.w[2 * s] >> i % 2 * 4, p.v.w[2 * s + 1] >> i % 2 * 4,
                                        i / 2 ? 0x7351 : 0x6240);
        transpose_four(pairs);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[i / 2][r + i % 2 * 2] = BITS == 8 ? p.rows[r].bytes(pairs[i], r, r + 2)
                                                    : p.rows[r].halves(pairs[i], 2 * r);
    }
};

/* ---- a block --------------------------------------------------------------------------------- */

struct grouped_job {
    gpu_matrix w; /* the first expert's */
    const void *x;
    void *y;
    bool y_f32;
    gpu_experts_list list; /* tiles NULL: one matrix, all m rows of x in their order */
    uint32_t n_tiles, m;
};

/* A block's part of a product: rows of W from `out` on by a tile. */
struct block_place {
    uint32_t tile, out;
    DEVICE block_place(const grouped_job &job, uint32_t outs)
    {
        uint32_t across = (uint32_t)((job.w.n + outs - 1) / outs),
                 band = blockIdx.x / (BAND * across);
        uint32_t left = job.n_tiles - band * BAND, tiles = left < BAND ? left : (uint32_t)BAND;
        uint32_t in = blockIdx.x - band * BAND * across;
        tile = band * BAND + in % tiles;
        out = in / tiles * outs;
    }
};

static DEVICE gpu_expert_tile tile_of(const grouped_job &job, uint32_t index)
{
    if (job.list.tiles) return job.list.tiles[index];
    uint32_t first = index * ROWS, left = job.m - first;
    return gpu_expert_tile{0, first, left < ROWS ? left : (uint32_t)ROWS};
}

static DEVICE gpu_matrix matrix_of(const gpu_matrix &first, uint32_t expert)
{
    gpu_matrix w = first;
    w.data = (uint8_t *)w.data + expert * gpu_matrix_bytes(&w);
    w.scales = (uint8_t *)w.scales + expert * gpu_scale_bytes(&w);
    return w;
}

static DEVICE uint32_t row_of(const gpu_experts_list &list, uint32_t entry)
{
    return list.rows ? list.rows[entry] : entry;
}

/* Stores four elements of y, of which `n` are there. */
template <class T>
static DEVICE void store_four(const grouped_job &job, size_t at, const float v[4], size_t n)
{
    if (job.w.n % 4 == 0) {
        if (job.y_f32)
            *(vec16 *)((float *)job.y + at) = vec16{{bits_of_float(v[0]), bits_of_float(v[1]),
                                                     bits_of_float(v[2]), bits_of_float(v[3])}};
        else *(vec8 *)((T *)job.y + at) = vec8{{pack2(v[0], v[1], T()), pack2(v[2], v[3], T())}};
        return;
    }
    for (size_t e = 0; e < 4 && e < n; e++) {
        if (job.y_f32) ((float *)job.y)[at + e] = v[e];
        else ((T *)job.y)[at + e] = from_float<T>(v[e]);
    }
}

/* A block's stages, and a thread's part in filling them: 64 columns of x, then those of W. */
template <class W, bool WIDE> struct grouped_stages {
    typedef typename W::type T;
    static constexpr size_t X_BYTES = ROWS * ROW_BYTES;
    static constexpr size_t STAGE_BYTES = (X_BYTES + W::BYTES + SWIZZLED - 1) / SWIZZLED * SWIZZLED;

    const W w;
    unsigned char *const first;
    const uint32_t *const rows; /* of x, of the tile; NO_ROW behind them */
    const T *const x;           /* this thread's piece of row 0 */
    const uint32_t k, columns;  /* a row's columns; those from the piece on */

    DEVICE grouped_stages(const grouped_job &job, const gpu_matrix &mine, uint32_t out,
                          const uint32_t *of_tile, unsigned char *shared)
        : w(mine, out), first(shared), rows(of_tile), x((const T *)job.x + thread_column()),
          k((uint32_t)mine.k), columns(k > thread_column() ? k - thread_column() : 0)
    {
    }

    DEVICE unsigned char *at(uint32_t n) const { return first + n % GROUPED_STAGES * STAGE_BYTES; }
    DEVICE uint32_t count() const { return (k + STEP - 1) / STEP; }

    /* Starts copying stage n, with N rows of x; behind the last stage the group is empty. */
    template <int N> DEVICE void fetch(uint32_t n) const
    {
        uint32_t column = n * STEP;
        if (column < k) {
            unsigned char *to = at(n);
#pragma unroll
            for (uint32_t j = 0; j < N / COPIED_ROWS; j++) {
                uint32_t row = rows[j * COPIED_ROWS + threadIdx.x / ROW_PIECES];
                bool there = row != NO_ROW && column < columns;
                copy_async(to + thread_piece<WIDE>(j), there ? x + (size_t)row * k + column : x,
                           there);
            }
            w.fetch(column, to + X_BYTES);
        }
        copy_commit();
    }
};

/* Writes the rows of x of a tile's entries to shared memory. */
static DEVICE void list_rows(const grouped_job &job, const gpu_expert_tile &tile, uint32_t *rows)
{
    if (threadIdx.x < ROWS)
        rows[threadIdx.x] =
            threadIdx.x < tile.n ? row_of(job.list, tile.first + threadIdx.x) : NO_ROW;
    __syncthreads();
}

/* Writes a thread's sums of a product of wgmma, of N * 8 rows from `first` on, to y in shared
 * memory, whose lines are of LINE. */
template <int N> static DEVICE void put_sums(const float (&sums)[N][4], uint32_t first, float *y)
{
    uint32_t lane = threadIdx.x % WARP, out = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[(first + n * 8 + lane % 4 * 2 + i % 2) * LINE + out + i / 2 * 8] = sums[n][i];
}

/* Stores y of a tile, which lies in shared memory in lines of LINE, in whole rows. */
template <class T>
static DEVICE void store_rows(const grouped_job &job, const gpu_expert_tile &tile, uint32_t out,
                              const float *y)
{
    uint32_t lane = threadIdx.x % WARP;
    size_t n = job.w.n, column = out + lane * 4;
    if (column >= n) return;
    for (uint32_t row = threadIdx.x / WARP; row < tile.n; row += GROUPED_WARPS)
        store_four<T>(job, (tile.first + row) * n + column, y + row * LINE + lane * 4, n - column);
}

static inline unsigned grouped_blocks(const grouped_job &job, uint32_t outs)
{
    return (unsigned)((job.w.n + outs - 1) / outs) * job.n_tiles;
}

/* grouped_wide.cu: operands of bf16, for compute capability 9.0. */
gpu_status gpu_grouped_wide(gpu *g, const grouped_job &job);
/* grouped_narrow_wide.cu: of e4m3, for 9.0 too. job.x and x_scales are as narrow.cuh says. */
gpu_status gpu_grouped_narrow(gpu *g, const grouped_job &job, const float *x_scales);

#endif
