/* kernels/cuda, private: paged attention with tensor cores: a tile of query rows against steps of
 * slots, online softmax in base 2.
 *
 * Prefill: four warps hold 16 packed rows each and read every slot. Decode: one tile of 16 packed
 * rows (all query heads of a KV head), a step's slots cut over the four warps. A long table is cut
 * into parts, whose results a second kernel merges. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/pages.cuh"

#include <type_traits>

enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    PAD = 8,                /* elements, so that rows of shared memory begin in different banks */
    STRIP = GPU_KEPT_STRIP, /* slots, always of one page */
};

#define LOG2E 1.4426950408889634f

/* The first K of a strip, and its scales. */
struct strip {
    const uint8_t *keys, *scales;
};

/* The layout of shared memory. K and V of 8 bits lie there as they are in their pages, and are
 * widened in registers. */
template <class KV, int D, bool DECODE> struct layout {
    static constexpr int ROW = D + PAD;
    static_assert(PAD * 2 == ROW_PAD, "rows of queries, too");
    static constexpr int STEP = D > 128 && !DECODE ? 32 : 64; /* slots that are read at a time */
    static constexpr int STRIPS = STEP / STRIP;
    static constexpr int Q_ROWS = DECODE ? GPU_DECODE_ROWS : GPU_PREFILL_ROWS;
    static constexpr bool NARROW = sizeof(KV) == 1, SCALED = std::is_same<KV, i8>::value;
    static constexpr size_t Q_BYTES = (size_t)Q_ROWS * ROW * 2;
    static constexpr size_t ROW_BYTES = kv_row<KV, D>::BYTES;
    static constexpr size_t V_AT = STEP * ROW_BYTES;                 /* offset of V in a stage */
    static constexpr size_t SCALE_BYTES = SCALED ? 2 * STEP * 2 : 0; /* a stage's scales */
    static constexpr size_t STAGE_BYTES = 2 * V_AT + SCALE_BYTES;
    static constexpr size_t BYTES = Q_BYTES + 2 * STAGE_BYTES;
    /* The warps' results of a decode tile replace K and V. */
    static_assert((size_t)WARPS * GPU_DECODE_ROWS * (D + 2) * 4 <= BYTES - Q_BYTES || !DECODE,
                  "room to merge");
    static_assert(BYTES + 2 * STRIPS * sizeof(strip) <= GPU_ATTENTION_SHARED(D), "as is asked for");
    static_assert(GPU_ATTENTION_SHARED(D) <= 163 * 1024, "what sm_80 has for a block");
};

struct row_state {
    float max[2], sum[2]; /* for rows g and g + 8 of a warp's 16 */
};

/* ---- into shared memory ---------------------------------------------------------------------- */

/* Starts copying the queries; rows beyond the last are zeros. */
template <class Q, int D>
static DEVICE void fetch_queries(const gpu_attention &a, const gpu_seq &seq, uint32_t head,
                                 uint32_t first, uint32_t rows, Q *out)
{
    const uint32_t chunks = D / 8; /* 16 bytes each */
    uint32_t n_heads = a.kv_heads * a.q_heads;
    for (uint32_t i = threadIdx.x; i < rows * chunks; i += THREADS) {
        uint32_t r = i / chunks, chunk = i % chunks, packed = first + r;
        bool there = packed < seq.n_rows * a.q_heads;
        size_t row = seq.first_row + packed / a.q_heads;
        size_t from = (row * n_heads + head * a.q_heads + packed % a.q_heads) * D + chunk * 8;
        copy_async(out + r * (D + PAD) + chunk * 8, (const Q *)a.q + (there ? from : 0), there);
    }
}

static DEVICE uint32_t page_of(const gpu_attention &a, const table_view &t, uint32_t slot,
                               uint32_t end)
{
    return slot < end ? t.pages[slot / a.pages.page_tokens] : 0;
}

template <class KV>
static DEVICE strip strip_at(const gpu_attention &a, const table_view &t, uint32_t slot,
                             uint32_t page)
{
    uint8_t *tile = t.tiles + page * a.pages.page_bytes;
    uint32_t in = slot % a.pages.page_tokens;
    return strip{tile + in * a.pages.head_dim * sizeof(KV),
                 (const uint8_t *)(scales_at(a.pages, tile) + in)};
}

/* Starts copying the scales of slots [from, from + STEP): those of K, then those of V. The scale of
 * a slot from `end` on may be anything. */
template <uint32_t STEP>
static DEVICE void fetch_scales(const gpu_attention &a, const strip *strips, uint32_t from,
                                uint32_t end, unsigned char *to)
{
    if (threadIdx.x >= STEP / STRIP * 4) return;
    uint32_t n = threadIdx.x / 4, part = threadIdx.x % 4 / 2, half = threadIdx.x % 2;
    bool there = from + n * STRIP < end;
    const uint8_t *src = strips[n].scales + part * a.pages.page_tokens * 2 + half * 16;
    copy_async(to + (part * STEP + n * STRIP) * 2 + half * 16, there ? src : a.pages.data, there);
}

/* Starts copying slots [from, from + STEP) of K and V; those from `end` on are zeros. */
template <class KV, int D, bool DECODE>
static DEVICE void fetch(const gpu_attention &a, const strip *strips, uint32_t from, uint32_t end,
                         unsigned char *stage)
{
    typedef layout<KV, D, DECODE> L;
    constexpr uint32_t row_bytes = D * sizeof(KV), chunks = row_bytes / 16;
    constexpr uint32_t of_strip = STRIP * chunks; /* copies of a strip */
    size_t values_at = (size_t)a.pages.page_tokens * row_bytes;
    const uint8_t *keys[L::STRIPS]; /* read once: to the compiler, copies may overwrite them */
#pragma unroll
    for (int s = 0; s < L::STRIPS; s++) keys[s] = strips[s].keys;
#pragma unroll
    for (uint32_t j = 0; j < (L::STEP * chunks + THREADS - 1) / THREADS; j++) {
        uint32_t i = j * THREADS + threadIdx.x, slot = i / chunks, chunk = i % chunks;
        if (L::STEP * chunks % THREADS != 0 && i >= L::STEP * chunks) break;
        bool there = from + slot < end;
        const uint8_t *src =
            of_strip % THREADS == 0 ? keys[j * THREADS / of_strip] : strips[slot / STRIP].keys;
        src = there ? src + slot % STRIP * row_bytes + chunk * 16 : a.pages.data;
        unsigned char *to = stage + slot * L::ROW_BYTES + chunk * 16;
        copy_async(to, src, there);
        copy_async(to + L::V_AT, there ? src + values_at : src, there);
    }
    if (L::SCALED) fetch_scales<L::STEP>(a, strips, from, end, stage + 2 * L::V_AT);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Multiplies scores, or weights, by the scales of their slots. The scale of a slot that is not seen
 * may be anything. */
template <int TOKENS, bool WEIGHTS>
static DEVICE void rescale(float s[TOKENS / 8][4], const unsigned char *scales)
{
    const uint32_t *mine = (const uint32_t *)scales + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
        uint32_t two = mine[n * 4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float by = float_of_bits(i % 2 ? two & 0xffff0000u : two << 16);
            s[n][i] = !WEIGHTS || s[n][i] > 0.0f ? s[n][i] * by : 0.0f;
        }
    }
}

/* Turns scores into weights, and scales o and sum down where a row's maximum grew. Row i sees slots
 * [low[i], high[i]). */
template <int D, int TOKENS>
static DEVICE void soften(float s[TOKENS / 8][4], uint32_t slot, const uint32_t low[2],
                          const uint32_t high[2], float scale, row_state *state, float o[D / 8][4])
{
    uint32_t end = slot + TOKENS, first = slot + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (end > high[i] || slot < low[i]) {
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    uint32_t at = first + n * 8 + j;
                    if (at < low[i] || at >= high[i]) s[n][2 * i + j] = -INFINITY;
                }
        }
        float max = -INFINITY;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) max = fmaxf(max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        max = fmaxf(max, shuffle_xor(max, 1));
        max = fmaxf(max, shuffle_xor(max, 2));
        max = fmaxf(state->max[i], max * scale);
        float anchor = max == -INFINITY ? 0.0f : max; /* no slot seen yet: weights are 0 */
        float fix = exp2_fast(state->max[i] - anchor), sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                sum += s[n][2 * i + j] = exp2_fast(fmaf(s[n][2 * i + j], scale, -anchor));
        state->max[i] = max;
        state->sum[i] = state->sum[i] * fix + sum;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            o[d][2 * i] *= fix;
            o[d][2 * i + 1] *= fix;
        }
    }
}

/* ---- what is kept for measures ----------------------------------------------------------------
 * By a decode tile's warp, whose slots in a step are a strip that ends before `end`. */

/* Where the strip that begins with `slot` is kept, rows of `floats` each. */
static DEVICE float *kept_at(const gpu_attention &a, const gpu_kept &k, const gpu_seq &seq,
                             uint32_t head, uint32_t slot, uint32_t floats)
{
    size_t strip = (size_t)head * k.strips + slot / STRIP;
    return a.kept + k.at + strip * seq.n_rows * a.q_heads * floats;
}

static DEVICE void keep_scores(const gpu_attention &a, const gpu_kept &k, const gpu_seq &seq,
                               uint32_t head, uint32_t slot, uint32_t end, const float s[2][4])
{
    uint32_t packed = threadIdx.x % WARP / 4;
    if (k.strips == 0 || !k.slots || slot >= end) return;
    float *at = kept_at(a, k, seq, head, slot, STRIP) + packed * STRIP + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++, packed += 8, at += 8 * STRIP)
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (packed < seq.n_rows * a.q_heads)
                *(vec8 *)(at + n * 8) =
                    vec8{{bits_of_float(s[n][2 * i]), bits_of_float(s[n][2 * i + 1])}};
}

/* s: weights that are relative to the maximum of their row in `state`. */
static DEVICE void keep_sums(const gpu_attention &a, const gpu_kept &k, const gpu_seq &seq,
                             uint32_t head, uint32_t slot, uint32_t end, const float s[2][4],
                             const row_state &state)
{
    uint32_t packed = threadIdx.x % WARP / 4;
    if (k.strips == 0 || k.slots || slot >= end) return; /* the whole warp */
    float *at = kept_at(a, k, seq, head, slot, 2) + packed * 2;
#pragma unroll
    for (int i = 0; i < 2; i++, packed += 8, at += 16) {
        float sum = s[0][2 * i] + s[0][2 * i + 1] + s[1][2 * i] + s[1][2 * i + 1];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (threadIdx.x % 4 == 0 && packed < seq.n_rows * a.q_heads)
            *(vec8 *)at = vec8{{bits_of_float(sum), bits_of_float(state.max[i])}};
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static DEVICE void put(void *out, gpu_type type, size_t at, float x)
{
    switch (type) {
    case GPU_BF16: ((bf16 *)out)[at] = from_float<bf16>(x); break;
    case GPU_F16: ((f16 *)out)[at] = from_float<f16>(x); break;
    default: ((float *)out)[at] = x; break;
    }
}

/* Stores two elements; `at` is even. */
static DEVICE void put2(void *out, gpu_type type, size_t at, float x, float y)
{
    switch (type) {
    case GPU_BF16: ((uint32_t *)out)[at / 2] = pack2(x, y, bf16()); break;
    case GPU_F16: ((uint32_t *)out)[at / 2] = pack2(x, y, f16()); break;
    default:
        ((float *)out)[at] = x;
        ((float *)out)[at + 1] = y;
        break;
    }
}

/* Index of (packed row, head) in [rows, heads]. */
static DEVICE size_t row_at(const gpu_attention &a, const gpu_seq &seq, uint32_t head,
                            uint32_t packed)
{
    size_t row = seq.first_row + packed / a.q_heads;
    return row * a.kv_heads * a.q_heads + head * a.q_heads + packed % a.q_heads;
}

/* Offset of a part of tiles of `rows` rows: for each packed row D sums of weighted values, then its
 * maximum and its sum. */
template <int D>
static DEVICE size_t part_at(const gpu_attention &a, size_t part, uint32_t head, uint32_t rows)
{
    return (part * a.kv_heads + head) * rows * (D + 2);
}

/* Stores the results of a part; `first` is the tile's first packed row. */
template <int D, bool NARROW = false>
static DEVICE void finish_cut(const gpu_attention &a, const gpu_seq &seq, uint32_t index,
                              uint32_t head, uint32_t first, uint32_t packed,
                              const row_state &state, const float o[D / 8][4])
{
    float *out = a.cut_partial + part_at<D>(a, index, head, a.prefill_rows);
#pragma unroll
    for (int i = 0; i < 2; i++, packed += 8) {
        if (packed >= seq.n_rows * a.q_heads) continue;
        float *row = out + (packed - first) * (D + 2);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            put2(row, GPU_F32, dim_of<NARROW>(d), o[d][2 * i], o[d][2 * i + 1]);
        if (threadIdx.x % 4 == 0) put2(row, GPU_F32, D, state.max[i], state.sum[i]);
    }
}

template <int D, bool NARROW = false>
static DEVICE void finish_prefill(const gpu_attention &a, const gpu_seq &seq, const gpu_tile &tile,
                                  uint32_t index, uint32_t head, uint32_t packed,
                                  const row_state &state, const float o[D / 8][4])
{
    if (tile.parts > 1) {
        finish_cut<D, NARROW>(a, seq, index, head, tile.row, packed, state, o);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++, packed += 8) {
        if (packed >= seq.n_rows * a.q_heads) continue;
        size_t row = row_at(a, seq, head, packed);
        float inverse = state.sum[i] > 0.0f ? 1.0f / state.sum[i] : 0.0f;
        if (a.lse && threadIdx.x % 4 == 0) a.lse[row] = state.max[i] + log2f(state.sum[i]);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            put2(a.out, a.out_type, row * D + dim_of<NARROW>(d), o[d][2 * i] * inverse,
                 o[d][2 * i + 1] * inverse);
    }
}

/* The weight of a result with maximum `max`; 0 for one that saw no slot. */
static DEVICE float share_of(float max, float most)
{
    return max == -INFINITY ? 0.0f : exp2_fast(max - most);
}

/* Merges the warps' results into the result of a part, or of the rows when there is no other
 * part. */
template <int D, bool NARROW>
static DEVICE void finish_decode(const gpu_attention &a, const gpu_seq &seq, const gpu_tile &tile,
                                 uint32_t head, uint32_t part, const row_state &state,
                                 const float o[D / 8][4], float *shared)
{
    const uint32_t row_floats = D + 2, of_warp = GPU_DECODE_ROWS * row_floats;
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads(); /* all warps have read K and V */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *row = shared + (warp * GPU_DECODE_ROWS + lane / 4 + i * 8) * row_floats;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            row[dim_of<NARROW>(d)] = o[d][2 * i];
            row[dim_of<NARROW>(d) + 1] = o[d][2 * i + 1];
        }
        if (lane % 4 == 0) {
            row[D] = state.max[i];
            row[D + 1] = state.sum[i];
        }
    }
    __syncthreads();
    float *out = a.partial + part_at<D>(a, part, head, GPU_DECODE_ROWS);
    for (uint32_t i = threadIdx.x; i < seq.n_rows * a.q_heads * D; i += THREADS) {
        uint32_t packed = i / D, d = i % D;
        const float *row = shared + packed * row_floats;
        float most = -INFINITY, value = 0.0f, sum = 0.0f;
        for (uint32_t w = 0; w < WARPS; w++) most = fmaxf(most, row[w * of_warp + D]);
        for (uint32_t w = 0; w < WARPS; w++) {
            float share = share_of(row[w * of_warp + D], most);
            value += row[w * of_warp + d] * share;
            sum += row[w * of_warp + D + 1] * share;
        }
        if (tile.parts == 1) {
            size_t at = row_at(a, seq, head, packed);
            put(a.out, a.out_type, at * D + d, sum > 0.0f ? value / sum : 0.0f);
            if (a.lse && d == 0) a.lse[at] = most + log2f(sum);
            continue;
        }
        out[packed * row_floats + d] = value;
        if (d == 0) {
            out[packed * row_floats + D] = most;
            out[packed * row_floats + D + 1] = sum;
        }
    }
}

/* ---- the kernels ----------------------------------------------------------------------------- */

/* The slots that a tile reads: [begin, end), begin a multiple of STEP. A part may have none. */
struct tile_range {
    uint32_t begin, end, first_slot, first_row;
};

template <class L>
static DEVICE tile_range range_of(const gpu_attention &a, const gpu_seq &seq, const gpu_tile &tile,
                                  uint32_t length)
{
    tile_range r = {0, 0, length - seq.n_rows, tile.row};
    uint32_t packed = seq.n_rows * a.q_heads;
    uint32_t last_row = r.first_row + L::Q_ROWS < packed ? r.first_row + L::Q_ROWS : packed;
    r.end = r.first_slot + (last_row - 1) / a.q_heads + 1;
    uint32_t oldest = r.first_slot + r.first_row / a.q_heads + 1;
    if (a.layer.window && oldest > a.layer.window) r.begin = oldest - a.layer.window;
    if (r.begin < tile.first) r.begin = tile.first;
    if (r.end > tile.end) r.end = tile.end;
    r.begin = r.begin / L::STEP * L::STEP;
    return r;
}

template <class KV, int D, bool DECODE, bool KEEPS>
static DEVICE void attend_tile(const gpu_attention &a)
{
    await_previous();
    typedef typename query_of<KV>::type Q;
    typedef layout<KV, D, DECODE> L;
    constexpr int STEP = L::STEP, TOKENS = DECODE ? STEP / WARPS : STEP; /* a warp's slots */
    DYNAMIC_SHARED(shared);
    __shared__ strip strips[2][L::STRIPS];
    Q *queries = (Q *)shared;
    unsigned char *stages = shared + L::Q_BYTES;

    /* Later tiles of a sequence see more slots, so they run first. */
    const uint32_t index = DECODE ? blockIdx.x : a.n_prefill - 1 - blockIdx.x;
    const gpu_tile tile = DECODE ? a.decode[index] : a.prefill[index];
    if (tile.parts == 0) return;
    const gpu_seq seq = a.seqs[tile.seq];
    gpu_kept kept = {0, 0, false};
    if (KEEPS) kept = a.kept_of[tile.seq];
    uint32_t head = blockIdx.y, thread = threadIdx.x;
    unsigned lane = thread % WARP, warp = thread / WARP;
    const table_view t = view_table(a.pages, a.tables, a.layer, seq, a.lengths, head);
    const tile_range r = range_of<L>(a, seq, tile, t.length);

    fetch_queries<Q, D>(a, seq, head, r.first_row, L::Q_ROWS, queries);
    copy_commit();
    if (thread < 2 * L::STRIPS) {
        uint32_t slot = r.begin + thread * STRIP;
        strips[thread / L::STRIPS][thread % L::STRIPS] =
            strip_at<KV>(a, t, slot, page_of(a, t, slot, r.end));
    }
    __syncthreads();
    if (r.begin < r.end) fetch<KV, D, DECODE>(a, strips[0], r.begin, r.end, stages);
    copy_commit();
    copy_wait<1>(); /* the queries */
    __syncthreads();
    uint32_t my_row = DECODE ? 0 : warp * 16, low[2], high[2];
    query_rows<D, L::NARROW> q;
    q.load(queries + my_row * L::ROW);
    for (int i = 0; i < 2; i++) {
        uint32_t row = (r.first_row + my_row + lane / 4 + i * 8) / a.q_heads;
        high[i] = row < seq.n_rows ? r.first_slot + row + 1 : 0;
        low[i] = a.layer.window && high[i] > a.layer.window ? high[i] - a.layer.window : 0;
        if (high[i] > r.end) high[i] = r.end;
    }
    row_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float o[D / 8][4];
#pragma unroll
    for (int d = 0; d < D / 8; d++) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.0f;

    uint32_t stage = 0, mine = DECODE ? warp * TOKENS : 0;
    for (uint32_t slot = r.begin; slot < r.end; slot += STEP, stage ^= 1) {
        unsigned char *here = stages + stage * L::STAGE_BYTES;
        if (slot + STEP < r.end)
            fetch<KV, D, DECODE>(a, strips[stage ^ 1], slot + STEP, r.end,
                                 stages + (stage ^ 1) * L::STAGE_BYTES);
        copy_commit();
        /* Loads the page numbers of the step after next while this step is computed. */
        uint32_t later = slot + 2 * STEP + thread * STRIP;
        uint32_t page = thread < L::STRIPS ? page_of(a, t, later, r.end) : 0;
        copy_wait<1>();
        __syncthreads();
        const unsigned char *k = here, *v = here + L::V_AT, *scales = here + 2 * L::V_AT + mine * 2;
        float s[TOKENS / 8][4];
        score<KV, D, TOKENS>(q, k + mine * L::ROW_BYTES, s);
        if (L::SCALED) rescale<TOKENS, false>(s, scales);
        if constexpr (KEEPS) keep_scores(a, kept, seq, head, slot + mine, r.end, s);
        soften<D, TOKENS>(s, slot + mine, low, high, a.scale * LOG2E, &state, o);
        if constexpr (KEEPS) keep_sums(a, kept, seq, head, slot + mine, r.end, s, state);
        if (L::SCALED) rescale<TOKENS, true>(s, scales + STEP * 2);
        weigh<KV, D, TOKENS>(s, v + mine * L::ROW_BYTES, o);
        if (thread < L::STRIPS) strips[stage][thread] = strip_at<KV>(a, t, later, page);
        __syncthreads(); /* before the stage is filled again */
    }
    copy_wait<0>();
    for (int i = 0; i < 2; i++) {
        state.sum[i] += shuffle_xor(state.sum[i], 1);
        state.sum[i] += shuffle_xor(state.sum[i], 2);
    }
    if (L::NARROW) pair_up<D>(o);
    if (DECODE) finish_decode<D, L::NARROW>(a, seq, tile, head, index, state, o, (float *)stages);
    else
        finish_prefill<D, L::NARROW>(a, seq, tile, index, head, r.first_row + my_row + lane / 4,
                                     state, o);
}

template <class KV, int D, bool DECODE>
static __global__ void __launch_bounds__(THREADS) attention_kernel(gpu_attention a)
{
    attend_tile<KV, D, DECODE, false>(a);
}

/* Decode tiles in steps that measure mass. */
template <class KV, int D>
static __global__ void __launch_bounds__(THREADS) keeping_kernel(gpu_attention a)
{
    attend_tile<KV, D, true, true>(a);
}

constexpr uint32_t MERGE_THREADS = 256, MERGE_SHARES = 1024;

/* The weighted sum of every GROUPS-th part, from `group` on, with eight loads at a time. */
template <uint32_t GROUPS>
static DEVICE float weigh_parts(const float *at, size_t of_part, const float *shares,
                                uint32_t group, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t first = group; first < n; first += 8 * GROUPS) {
        float v[8];
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t p = first + j * GROUPS;
            v[j] = p < n ? at[p * of_part] : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t p = first + j * GROUPS;
            sum += v[j] * (p < n ? shares[p] : 0.0f);
        }
    }
    return sum;
}

/* Tiles that may be parts, the results of these, and the most packed rows of a tile. */
struct merge_work {
    const gpu_tile *tiles;
    const float *partial;
    uint32_t rows;
};

/* Merges the parts of a packed row into its output. The blocks of a tile's parts, gridDim.z for
 * each, share its rows: with n blocks, block i takes rows i, i + n, i + 2 n, ... Threads form
 * groups of D, which share the parts, so that long tables do not become long chains of loads. */
template <int D>
static __global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(gpu_attention a, merge_work w)
{
    await_previous();
    constexpr uint32_t GROUPS = MERGE_THREADS / D;
    __shared__ float shares[MERGE_SHARES], values[MERGE_THREADS];
    const size_t row_floats = D + 2, of_part = a.kv_heads * w.rows * row_floats;
    const gpu_tile tile = w.tiles[blockIdx.x];
    if (tile.parts <= 1) return;
    const gpu_seq seq = a.seqs[tile.seq];
    uint32_t head = blockIdx.y, group = threadIdx.x / D, d = threadIdx.x % D;
    uint32_t end = seq.n_rows * a.q_heads;
    if (end > tile.row + w.rows) end = tile.row + w.rows;
    const float *parts = w.partial + part_at<D>(a, tile.part, head, w.rows);
    for (uint32_t packed = tile.row + (blockIdx.x - tile.part) * gridDim.z + blockIdx.z;
         packed < end; packed += tile.parts * gridDim.z) {
        const float *row = parts + (packed - tile.row) * row_floats;
        float most = -INFINITY, sum = 0.0f, value = 0.0f;
        for (uint32_t p = threadIdx.x; p < tile.parts; p += MERGE_THREADS)
            most = fmaxf(most, row[p * of_part + D]);
        most = block_max(most);
        for (uint32_t first = 0; first < tile.parts; first += MERGE_SHARES) {
            uint32_t n = tile.parts - first < MERGE_SHARES ? tile.parts - first : MERGE_SHARES;
            const float *some = row + first * of_part;
            __syncthreads(); /* shares have been read */
            for (uint32_t p = threadIdx.x; p < n; p += MERGE_THREADS) {
                shares[p] = share_of(some[p * of_part + D], most);
                sum += some[p * of_part + D + 1] * shares[p];
            }
            __syncthreads();
            if (group < GROUPS) value += weigh_parts<GROUPS>(some + d, of_part, shares, group, n);
        }
        sum = block_sum(sum);
        values[threadIdx.x] = value;
        __syncthreads();
        if (group != 0) continue;
        for (uint32_t i = 1; i < GROUPS; i++) value += values[i * D + d];
        size_t at = row_at(a, seq, head, packed);
        put(a.out, a.out_type, at * D + d, sum > 0.0f ? value / sum : 0.0f);
        if (a.lse && d == 0) a.lse[at] = most + log2f(sum);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class KV, int D, bool DECODE>
static gpu_status run(gpu *g, const gpu_attention *a, uint32_t n)
{
    auto kernel = DECODE && a->kept ? keeping_kernel<KV, D> : attention_kernel<KV, D, DECODE>;
    const size_t bytes = layout<KV, D, DECODE>::BYTES;
    if (n == 0) return GPU_OK;
    gpu_status s = gpu_allow_shared(g, (const void *)kernel, bytes);
    if (s != GPU_OK) return s;
    LAUNCH_EARLY(kernel, dim3(n, a->kv_heads), THREADS, bytes, g, *a);
    return gpu_launched(g, DECODE ? "decode attention" : "prefill attention");
}

/* `shares`: blocks for each tile and head. */
template <int D>
static gpu_status merge(gpu *g, const gpu_attention *a, uint32_t n, uint32_t shares,
                        const merge_work &w)
{
    if (n == 0) return GPU_OK;
    LAUNCH_EARLY(merge_kernel<D>, dim3(n, a->kv_heads, shares), MERGE_THREADS, 0, g, *a, w);
    return gpu_launched(g, "merge of attention");
}

/* Each block merges few of a prefill tile's rows, so that two parts do not have long turns. */
constexpr uint32_t CUT_SHARES = 16;

template <class KV, int D> static gpu_status run_all(gpu *g, const gpu_attention *a)
{
    bool wide = a->prefill_rows == GPU_WIDE_ROWS;
    gpu_status s = wide ? gpu_attend_wide(g, a, KV()) : run<KV, D, false>(g, a, a->n_prefill);
    if (s == GPU_OK)
        s = merge<D>(g, a, a->n_cut, CUT_SHARES, {a->prefill, a->cut_partial, a->prefill_rows});
    if (s == GPU_OK) s = run<KV, D, true>(g, a, a->n_decode);
    if (s != GPU_OK || a->whole) return s;
    return merge<D>(g, a, a->n_decode, 1, {a->decode, a->partial, GPU_DECODE_ROWS});
}

template <class KV> static gpu_status attend(gpu *g, const gpu_attention *a)
{
    switch (a->pages.head_dim) {
    case 32: return run_all<KV, 32>(g, a);
    case 64: return run_all<KV, 64>(g, a);
    case 96: return run_all<KV, 96>(g, a);
    case 128: return run_all<KV, 128>(g, a);
    case 256: return run_all<KV, 256>(g, a);
    default: return GPU_UNSUPPORTED;
    }
}

#endif
