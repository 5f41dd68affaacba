/* kernels/cuda, private: prefill attention with wgmma, for compute capability 9.0: compiled for
 * sm_90a alone, and launched where gpu_prefill_rows says so.
 *
 * Two warpgroups hold 64 packed rows each and share K and V, so that a byte of either is read for
 * 128 rows. K and V of STEP slots are a stage; both lie in shared memory as wgmma reads them, rows
 * of 64 elements swizzled in 128 bytes, the next 64 dims behind them.
 * The scores' products take K as it is and the output's V by its rows, so neither goes through
 * registers. Queries do, but for heads of 256 dims, whose sums leave no room there.
 *
 * All threads fetch stages, 16 bytes each, from wherever pages are: a page may have only 16 tokens,
 * of which TMA would need a box each for K and for V, for the same bytes in flight. Bytes of pages
 * of 16 bits are copied to their stage. Those of 8 bits are loaded into registers, and a turn later
 * they are widened to f16 and stored in their stage, while the tensor core multiplies.
 *
 * While a warpgroup turns scores into weights, the tensor core computes its next scores and what
 * the other warpgroup asked for. A result, and what products in flight read, is left alone until
 * group_wait: the scores alternate between two arrays, and a stage is filled two turns after its
 * last product was asked for. */
#ifndef KERNELS_CUDA_ATTENTION_WIDE_CUH
#define KERNELS_CUDA_ATTENTION_WIDE_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/swizzle.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    WIDE_WARPS = 8, /* of 16 rows each */
    WIDE_THREADS = WIDE_WARPS * WARP,
    AHEAD = 3,               /* stages that are fetched, or being fetched, before the one in use */
    WIDE_SHARED = 227 << 10, /* what a block may have */
};

static_assert(WIDE_WARPS * 16 == GPU_WIDE_ROWS, "a row for each of a tile");

template <class KV, int D> struct wide_layout {
    static constexpr bool NARROW = sizeof(KV) == 1, SCALED = std::is_same<KV, i8>::value;
    static constexpr bool HOLDS_QUERIES = D <= 128;
    static constexpr int Q_ROWS = GPU_WIDE_ROWS, STEP = D > 128 ? 32 : 64, STRIPS = STEP / STRIP;
    /* A stage that threads store to is filled one turn before its products, and one that is copied
     * two turns. */
    static constexpr int STAGES = NARROW ? 4 : 5;
    static constexpr int BLOCKS = (D + 63) / 64; /* of 64 dims, the last of which may be half one */
    static constexpr size_t BLOCK_BYTES = STEP * ROW_BYTES, Q_BLOCK_BYTES = Q_ROWS * ROW_BYTES;
    static constexpr size_t K_BYTES = BLOCKS * BLOCK_BYTES, STAGE_BYTES = 2 * K_BYTES;
    static constexpr size_t Q_BYTES = BLOCKS * Q_BLOCK_BYTES;
    static constexpr size_t SCALE_BYTES = SCALED ? 2 * STEP * 2 : 0; /* a stage's scales */
    /* The first stage begins at a multiple of SWIZZLED. */
    static constexpr size_t BYTES =
        SWIZZLED + STAGES * STAGE_BYTES + Q_BYTES + (AHEAD + 1) * SCALE_BYTES;
    static_assert(BYTES <= WIDE_SHARED - 1024, "a block's shared memory");
};

/* Where piece `piece` of a row of an operand lies, whose blocks of 64 dims have `block` bytes. */
static DEVICE uint32_t operand_at(uint32_t row, uint32_t piece, uint32_t block)
{
    return swizzled_at(row, piece % ROW_PIECES, piece / ROW_PIECES * block);
}

/* Sixteen dims of a slot, of K (part 0) or V. */
struct narrow_piece {
    uint32_t part, row, sixteen;
};

/* A thread's j-th piece of a stage. Eight neighbouring threads take 64 dims of two slots, so that
 * what they store lies in different banks. */
template <int D, int STEP> static DEVICE narrow_piece piece_of(uint32_t j)
{
    constexpr uint32_t of_block = 2 * STEP * 4, whole = D / 64 * of_block;
    uint32_t i = j * WIDE_THREADS + threadIdx.x;
    if (j * WIDE_THREADS < whole) {
        uint32_t in = i % of_block;
        return narrow_piece{in / (STEP * 4), in / 4 % STEP, i / of_block * 4 + in % 4};
    }
    i -= whole;
    return narrow_piece{i / (STEP * 2), i / 2 % STEP, D / 64 * 4 + i % 2};
}

/* A thread's part of a tile. */
template <class KV, int D> struct wide_work {
    typedef wide_layout<KV, D> L;
    typedef typename query_of<KV>::type T;
    static constexpr int STEP = L::STEP;
    static constexpr uint32_t PIECES = L::NARROW ? 2 * STEP * (D / 16) / WIDE_THREADS : 1;
    typedef float scores[STEP / 8][4];

    const gpu_attention &a;
    const table_view t;
    const tile_range r;
    strip (*strips)[L::STRIPS]; /* [AHEAD + 1]: those of stage n are at n % (AHEAD + 1) */
    unsigned char *stages, *queries;
    uint32_t low[2] = {}, high[2] = {};
    row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    uint32_t q[L::HOLDS_QUERIES ? D / 16 : 1][4] = {};
    float o[D / 8][4] = {};
    vec16 loaded[PIECES] = {}; /* pages of 8 bits: bytes of the last stage that was fetched */

    DEVICE unsigned char *stage(uint32_t n) const
    {
        return stages + n % L::STAGES * L::STAGE_BYTES;
    }
    DEVICE unsigned char *scales(uint32_t n) const
    {
        return queries + L::Q_BYTES + n % (AHEAD + 1) * L::SCALE_BYTES;
    }
    DEVICE uint32_t slot(uint32_t n) const { return r.begin + n * STEP; }

    /* Starts copying the queries; rows beyond the last are zeros. */
    DEVICE void fetch_queries(const gpu_seq &seq, uint32_t head)
    {
        constexpr uint32_t pieces = D / 8;
        for (uint32_t i = threadIdx.x; i < L::Q_ROWS * pieces; i += WIDE_THREADS) {
            uint32_t row = i / pieces, piece = i % pieces, packed = r.first_row + row;
            bool there = packed < seq.n_rows * a.q_heads;
            size_t from = there ? row_at(a, seq, head, packed) * D + piece * 8 : 0;
            copy_async(queries + operand_at(row, piece, L::Q_BLOCK_BYTES), (const T *)a.q + from,
                       there);
        }
    }

    /* Starts fetching K and V of stage n; slots from the end on are zeros. Behind the last stage
     * nothing is fetched, and the group of copies is empty. */
    DEVICE void fetch(uint32_t n)
    {
        if (slot(n) < r.end) {
            if constexpr (L::NARROW) load(n);
            else copy(n);
            if constexpr (L::SCALED)
                fetch_scales<STEP>(a, strips[n % (AHEAD + 1)], slot(n), r.end, scales(n));
        }
        copy_commit();
    }

    DEVICE void copy(uint32_t n)
    {
        constexpr uint32_t row_bytes = D * 2, pieces = row_bytes / 16;
        const strip *from = strips[n % (AHEAD + 1)];
        unsigned char *to = stage(n);
        size_t values_at = (size_t)a.pages.page_tokens * row_bytes;
#pragma unroll
        for (uint32_t j = 0; j < STEP * pieces / WIDE_THREADS; j++) {
            uint32_t i = j * WIDE_THREADS + threadIdx.x, row = i / pieces, piece = i % pieces;
            bool there = slot(n) + row < r.end;
            const uint8_t *src = from[row / STRIP].keys + row % STRIP * row_bytes + piece * 16;
            unsigned char *at = to + operand_at(row, piece, L::BLOCK_BYTES);
            copy_async(at, there ? src : a.pages.data, there);
            copy_async(at + L::K_BYTES, there ? src + values_at : a.pages.data, there);
        }
    }

    DEVICE void load(uint32_t n)
    {
        const strip *from = strips[n % (AHEAD + 1)];
        size_t values_at = (size_t)a.pages.page_tokens * D;
#pragma unroll
        for (uint32_t j = 0; j < PIECES; j++) {
            narrow_piece p = piece_of<D, STEP>(j);
            const uint8_t *src = from[p.row / STRIP].keys + p.row % STRIP * D + p.sixteen * 16;
            if (p.part) src += values_at;
            loaded[j] = vec16{{0, 0, 0, 0}};
            if (slot(n) + p.row < r.end) loaded[j] = load_once((const vec16 *)src);
        }
    }

    /* Stores what was loaded of stage n, widened. */
    DEVICE void widen(uint32_t n)
    {
        if (slot(n) >= r.end) return;
#pragma unroll
        for (uint32_t j = 0; j < PIECES; j++) {
            narrow_piece p = piece_of<D, STEP>(j);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t *from = loaded[j].w + 2 * i;
                *(vec16 *)(stage(n) + p.part * L::K_BYTES +
                           operand_at(p.row, p.sixteen * 2 + i, L::BLOCK_BYTES)) =
                    vec16{{widen_pair(from[0], 0, KV()), widen_pair(from[0], 1, KV()),
                           widen_pair(from[1], 0, KV()), widen_pair(from[1], 1, KV())}};
            }
        }
    }

    /* Loads a warp's rows of the queries, which the block has copied. */
    DEVICE void hold_queries()
    {
        const uint32_t lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane % 16;
#pragma unroll
        for (uint32_t d = 0; d < D / 16; d++)
            load_matrices(q[d], queries + operand_at(row, d * 2 + lane / 16, L::Q_BLOCK_BYTES));
        hold(q);
    }

    /* Starts the products of the queries with K of stage n. */
    DEVICE void score(uint32_t n, scores &s)
    {
        uint64_t keys = group_operand(stage(n), 0, SWIZZLED);
        uint64_t rows =
            group_operand(queries + threadIdx.x / WARPGROUP * 64 * ROW_BYTES, 0, SWIZZLED);
        hold(s);
        group_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint64_t of_keys = keys + (d / 4 * L::BLOCK_BYTES + d % 4 * 32) / 16;
            if constexpr (L::HOLDS_QUERIES) multiply_group<false>(s, q[d], of_keys, d > 0, T());
            else
                multiply_group(s, rows + (d / 4 * L::Q_BLOCK_BYTES + d % 4 * 32) / 16, of_keys,
                               d > 0, T());
        }
        group_commit();
    }

    /* Makes weights of the scores of stage n and starts their products with V. */
    DEVICE void weigh(uint32_t n, scores &s)
    {
        uint32_t p[STEP / 16][4];
        uint64_t values = group_operand(stage(n) + L::K_BYTES, L::BLOCK_BYTES, SWIZZLED);
        hold(s);
        hold(o);
        if constexpr (L::SCALED) rescale<STEP, false>(s, scales(n));
        soften<D, STEP>(s, slot(n), low, high, a.scale * LOG2E, &state, o);
        if constexpr (L::SCALED) rescale<STEP, true>(s, scales(n) + STEP * 2);
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                p[i][j] = pack2(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1], T());
        hold(p);
        hold(o);
        group_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
            multiply_group<true>(o, p[i], values + i * 16 * ROW_BYTES / 16, true, T());
        group_commit();
    }

    /* Waits for stage n: what this thread copied or stored, then what the others did. */
    template <int left> DEVICE void receive()
    {
        copy_wait<left>();
        fence_operands();
        __syncthreads();
    }

    /* Fetches the first stages, and receives the queries and stage 0. */
    DEVICE void begin()
    {
        for (uint32_t n = 0; n < AHEAD; n++) {
            fetch(n);
            if constexpr (L::NARROW)
                if (n + 1 < AHEAD) widen(n);
        }
        receive<AHEAD - 1>();
        if constexpr (L::HOLDS_QUERIES) hold_queries();
    }

    /* Stage n, whose scores are under way in `now`; those of the next one begin in `next`. */
    DEVICE void turn(uint32_t n, scores &now, scores &next)
    {
        receive<AHEAD - 2>(); /* stage n + 1; and all are done with stage n - 2 */
        uint32_t later = slot(n + AHEAD + 1) + threadIdx.x * STRIP;
        uint32_t page = threadIdx.x < L::STRIPS ? page_of(a, t, later, r.end) : 0;
        if constexpr (!L::NARROW) fetch(n + AHEAD);
        score(n + 1, next);
        if constexpr (L::NARROW) {
            widen(n + AHEAD - 1);
            fetch(n + AHEAD);
        }
        group_wait<1>(); /* all but these: the scores in `now`, and the output of stage n - 1 */
        weigh(n, now);
        if (threadIdx.x < L::STRIPS)
            strips[n % (AHEAD + 1)][threadIdx.x] = strip_at<KV>(a, t, later, page);
    }

    /* The last stage. */
    DEVICE void finish(uint32_t n, scores &now)
    {
        group_wait<0>();
        weigh(n, now);
        group_wait<0>();
        hold(o);
    }
};

template <class KV, int D>
static __global__ void __launch_bounds__(WIDE_THREADS) wide_kernel(gpu_attention a)
{
    typedef wide_layout<KV, D> L;
    DYNAMIC_SHARED(shared);
    __shared__ strip strips[AHEAD + 1][L::STRIPS];
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
    wide_work<KV, D> w = {a, t, r, strips, stages, stages + L::STAGES * L::STAGE_BYTES};

    w.fetch_queries(seq, head);
    copy_commit();
    if (thread < (AHEAD + 1) * L::STRIPS) {
        uint32_t slot = r.begin + thread * STRIP;
        strips[thread / L::STRIPS][thread % L::STRIPS] =
            strip_at<KV>(a, t, slot, page_of(a, t, slot, r.end));
    }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        uint32_t row = (r.first_row + my_row + lane / 4 + i * 8) / a.q_heads;
        w.high[i] = row < seq.n_rows ? r.first_slot + row + 1 : 0;
        w.low[i] = a.layer.window && w.high[i] > a.layer.window ? w.high[i] - a.layer.window : 0;
    }
    w.begin();

    typename wide_work<KV, D>::scores even = {}, odd = {};
    uint32_t n = 0, last = (r.end - r.begin - 1) / L::STEP;
    hold(odd);
    hold(w.o); /* written before a product is under way, behind which they would have to wait */
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
    /* Read again, because the loop has no registers for them. */
    const gpu_tile mine = a.prefill[index];
    finish_prefill<D>(a, a.seqs[mine.seq], mine, index, head, mine.row + my_row + lane / 4, w.state,
                      w.o);
}

template <class KV, int D> static gpu_status run_wide(gpu *g, const gpu_attention *a)
{
    if (a->n_prefill == 0) return GPU_OK;
    const size_t bytes = wide_layout<KV, D>::BYTES;
    gpu_status s = gpu_allow_shared(g, (const void *)wide_kernel<KV, D>, bytes);
    if (s != GPU_OK) return s;
    LAUNCH((wide_kernel<KV, D>), dim3(a->n_prefill, a->kv_heads), WIDE_THREADS, bytes, g, *a);
    return gpu_launched(g, "prefill attention with wgmma");
}

template <class KV> static gpu_status attend_wide(gpu *g, const gpu_attention *a)
{
    switch (a->pages.head_dim) {
    case 64: return run_wide<KV, 64>(g, a);
    case 96: return run_wide<KV, 96>(g, a);
    case 128: return run_wide<KV, 128>(g, a);
    case 256: return run_wide<KV, 256>(g, a);
    default: return GPU_UNSUPPORTED;
    }
}

#endif
