/* Prefill attention over pages of bf16 with wgmma, for compute capability 9.0: compiled for sm_90a
 * alone, and launched where gpu_prefill_rows says so.
 *
 * Two warpgroups hold 64 packed rows each, their queries in registers, and share K and V, so that a
 * byte of either is read for 128 rows. K and V of 64 slots are a stage; both lie in shared memory
 * as wgmma reads them, rows of 64 elements swizzled in 128 bytes, the upper 64 dims behind the
 * lower.
 * The scores' products take K as it is and the output's V by its rows, so neither goes through
 * registers. All threads copy stages, 16 bytes each, from wherever pages are: a page may have only
 * 16 tokens, of which TMA would need a box each for K and for V, for the same bytes in flight.
 *
 * While a warpgroup turns scores into weights, the tensor core computes its next scores and what
 * the other warpgroup asked for. A result, and what products in flight read, is left alone until
 * group_wait: the scores alternate between two arrays, and a stage is filled two turns after its
 * last product was asked for. */
#include "kernels/cuda/attention.cuh"

enum {
    WIDE_WARPS = 8, /* of 16 rows each */
    WIDE_THREADS = WIDE_WARPS * WARP,
    WIDE_STEP = GPU_KV_STEP,
    WIDE_STRIPS = WIDE_STEP / STRIP,
    STAGES = 5,
    AHEAD = 3,        /* stages that are being filled, or are full, before the one in use */
    ROW_BYTES = 128,  /* a row of an operand: 64 elements */
    ROW_PIECES = 8,   /* of 16 bytes */
    SWIZZLE_ROWS = 8, /* rows after which the swizzle repeats */
    SWIZZLED = SWIZZLE_ROWS * ROW_BYTES,
    HALF_BYTES = WIDE_STEP * ROW_BYTES, /* 64 dims of K or V */
    WIDE_SHARED = 227 << 10,            /* what a block may have */
};

static_assert(WIDE_WARPS * 16 == GPU_WIDE_ROWS, "a row for each of a tile");

typedef float wide_scores[WIDE_STEP / 8][4];

template <int D> struct wide_layout {
    static constexpr int Q_ROWS = GPU_WIDE_ROWS, STEP = WIDE_STEP;
    static constexpr size_t K_BYTES = (size_t)(D / 64) * HALF_BYTES, STAGE_BYTES = 2 * K_BYTES;
    static constexpr size_t Q_BYTES = (size_t)Q_ROWS * (D + PAD) * 2;
    /* The first stage begins at a multiple of SWIZZLED. */
    static constexpr size_t BYTES = SWIZZLED + STAGES * STAGE_BYTES + Q_BYTES;
    static_assert(BYTES <= WIDE_SHARED - 1024, "a block's shared memory");
};

/* A thread's part of a tile. */
template <int D> struct wide_work {
    const gpu_attention &a;
    const table_view t;
    const tile_range r;
    strip (*strips)[WIDE_STRIPS]; /* [AHEAD + 1]: those of stage n are at n % (AHEAD + 1) */
    unsigned char *stages;
    uint32_t low[2], high[2];
    row_state state;
    uint32_t q[D / 16][4];
    float o[D / 8][4];

    DEVICE unsigned char *stage(uint32_t n) const
    {
        return stages + n % STAGES * wide_layout<D>::STAGE_BYTES;
    }
    DEVICE uint32_t slot(uint32_t n) const { return r.begin + n * WIDE_STEP; }

    /* Starts copying K and V of stage n; slots from the end on are zeros. Behind the last stage
     * nothing is copied, and the group is empty. */
    DEVICE void fetch(uint32_t n)
    {
        constexpr uint32_t row_bytes = D * 2, pieces = row_bytes / 16;
        const strip *from = strips[n % (AHEAD + 1)];
        unsigned char *to = stage(n);
        size_t values_at = (size_t)a.pages.page_tokens * row_bytes;
        if (slot(n) < r.end) {
#pragma unroll
            for (uint32_t j = 0; j < WIDE_STEP * pieces / WIDE_THREADS; j++) {
                uint32_t i = j * WIDE_THREADS + threadIdx.x, row = i / pieces, piece = i % pieces;
                bool there = slot(n) + row < r.end;
                const uint8_t *src = from[row / STRIP].keys + row % STRIP * row_bytes + piece * 16;
                unsigned char *at = to + piece / ROW_PIECES * HALF_BYTES + row * ROW_BYTES +
                                    (piece % ROW_PIECES ^ row % SWIZZLE_ROWS) * 16;
                copy_async(at, there ? src : a.pages.data, there);
                copy_async(at + wide_layout<D>::K_BYTES, there ? src + values_at : a.pages.data,
                           there);
            }
        }
        copy_commit();
    }

    /* Starts the products of the queries with K of stage n. */
    DEVICE void score(uint32_t n, wide_scores &s)
    {
        uint64_t keys = group_operand(stage(n), 0, SWIZZLED);
        hold(s);
        group_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            multiply_group<false>(s, q[d], keys + (d / 4 * HALF_BYTES + d % 4 * 32) / 16, d > 0,
                                  bf16());
        group_commit();
    }

    /* Makes weights of the scores of stage n and starts their products with V. */
    DEVICE void weigh(uint32_t n, wide_scores &s)
    {
        uint32_t p[WIDE_STEP / 16][4];
        uint64_t values = group_operand(stage(n) + wide_layout<D>::K_BYTES, HALF_BYTES, SWIZZLED);
        hold(s);
        hold(o);
        soften<D, WIDE_STEP>(s, slot(n), low, high, a.scale * LOG2E, &state, o);
#pragma unroll
        for (int i = 0; i < WIDE_STEP / 16; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                p[i][j] =
                    pack2(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1], bf16());
        hold(p);
        hold(o);
        group_fence();
#pragma unroll
        for (int i = 0; i < WIDE_STEP / 16; i++)
            multiply_group<true>(o, p[i], values + i * 16 * ROW_BYTES / 16, true, bf16());
        group_commit();
    }

    /* Waits for stage n: what this thread copied, then what the others did. */
    template <int left> DEVICE void receive()
    {
        copy_wait<left>();
        fence_operands();
        __syncthreads();
    }

    /* Stage n, whose scores are under way in `now`; those of the next one begin in `next`. */
    DEVICE void turn(uint32_t n, wide_scores &now, wide_scores &next)
    {
        receive<AHEAD - 2>(); /* stage n + 1; and all are done with stage n - 2 */
        uint32_t later = slot(n + AHEAD + 1) + threadIdx.x * STRIP;
        uint32_t page = threadIdx.x < WIDE_STRIPS ? page_of(a, t, later, r.end) : 0;
        fetch(n + AHEAD);
        score(n + 1, next);
        group_wait<1>(); /* all but these: the scores in `now`, and the output of stage n - 1 */
        weigh(n, now);
        if (threadIdx.x < WIDE_STRIPS)
            strips[n % (AHEAD + 1)][threadIdx.x] = strip_at<bf16>(a, t, later, page);
    }

    /* The last stage. */
    DEVICE void finish(uint32_t n, wide_scores &now)
    {
        group_wait<0>();
        weigh(n, now);
        group_wait<0>();
        hold(o);
    }
};

template <int D> static __global__ void __launch_bounds__(WIDE_THREADS) wide_kernel(gpu_attention a)
{
    typedef wide_layout<D> L;
    DYNAMIC_SHARED(shared);
    __shared__ strip strips[AHEAD + 1][WIDE_STRIPS];
    /* Later tiles of a sequence see more slots, so they run first. */
    const uint32_t index = a.n_prefill - 1 - blockIdx.x;
    const gpu_tile tile = a.prefill[index];
    if (tile.parts == 0) return;
    const gpu_seq seq = a.seqs[tile.seq];
    const uint32_t head = blockIdx.y, thread = threadIdx.x;
    const table_view t = view_table(a.pages, a.tables, a.layer, seq, a.lengths, head);
    const tile_range r = range_of<L>(a, seq, tile, t.length);
    const uint32_t my_row = thread / WARP * 16, lane = thread % WARP;
    if (r.begin >= r.end) { /* a part without slots: behind a shorter table, or before a window */
        const row_state none = {{-INFINITY, -INFINITY}, {0, 0}};
        const float zeros[D / 8][4] = {};
        finish_cut<D>(a, seq, index, head, r.first_row, r.first_row + my_row + lane / 4, none,
                      zeros);
        return;
    }
    unsigned char *stages = shared + (SWIZZLED - shared_address(shared) % SWIZZLED) % SWIZZLED;
    bf16 *queries = (bf16 *)(stages + STAGES * L::STAGE_BYTES);
    wide_work<D> w = {a,  t, r, strips, stages, {0, 0}, {0, 0}, {{-INFINITY, -INFINITY}, {0, 0}},
                      {}, {}};

    fetch_queries<bf16, D, WIDE_THREADS>(a, seq, head, r.first_row, L::Q_ROWS, queries);
    copy_commit();
    if (thread < (AHEAD + 1) * WIDE_STRIPS) {
        uint32_t slot = r.begin + thread * STRIP;
        strips[thread / WIDE_STRIPS][thread % WIDE_STRIPS] =
            strip_at<bf16>(a, t, slot, page_of(a, t, slot, r.end));
    }
    __syncthreads();
    for (uint32_t n = 0; n < AHEAD; n++) w.fetch(n);

    for (int i = 0; i < 2; i++) {
        uint32_t row = (r.first_row + my_row + lane / 4 + i * 8) / a.q_heads;
        w.high[i] = row < seq.n_rows ? r.first_slot + row + 1 : 0;
        w.low[i] = a.layer.window && w.high[i] > a.layer.window ? w.high[i] - a.layer.window : 0;
    }
    w.template receive<AHEAD - 1>(); /* the queries and stage 0 */
    const bf16 *mine = queries + (my_row + lane % 16) * (D + PAD) + lane / 16 * 8;
#pragma unroll
    for (int d = 0; d < D / 16; d++) load_matrices(w.q[d], mine + d * 16);
    hold(w.q);

    wide_scores even = {}, odd = {};
    uint32_t n = 0, last = (r.end - r.begin - 1) / WIDE_STEP;
    w.score(0, even);
    for (; n + 1 < last; n += 2) {
        w.turn(n, even, odd);
        w.turn(n + 1, odd, even);
    }
    if (n < last) {
        w.turn(n, even, odd);
        w.finish(last, odd);
    } else {
        w.finish(last, even);
    }
    copy_wait<0>();
    for (int i = 0; i < 2; i++) {
        w.state.sum[i] += shuffle_xor(w.state.sum[i], 1);
        w.state.sum[i] += shuffle_xor(w.state.sum[i], 2);
    }
    finish_prefill<D>(a, seq, tile, index, head, r.first_row + my_row + lane / 4, w.state, w.o);
}

template <int D> static gpu_status run_wide(gpu *g, const gpu_attention *a)
{
    if (a->n_prefill == 0) return GPU_OK;
    gpu_status s = gpu_allow_shared(g, (const void *)wide_kernel<D>, wide_layout<D>::BYTES);
    if (s != GPU_OK) return s;
    LAUNCH(wide_kernel<D>, dim3(a->n_prefill, a->kv_heads), WIDE_THREADS, wide_layout<D>::BYTES, g,
           *a);
    return gpu_launched(g, "prefill attention with wgmma");
}

gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a)
{
    if (a->pages.format != GPU_KV_BF16) return GPU_UNSUPPORTED;
    switch (a->pages.head_dim) {
    case 64: return run_wide<64>(g, a);
    case 128: return run_wide<128>(g, a);
    default: return GPU_UNSUPPORTED;
    }
}

GPU_CODE(attention_wide, wide_kernel<128>)
