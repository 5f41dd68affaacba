/* Paged attention with tensor cores: a tile of query rows against steps of 64 slots, online softmax
 * in base 2.
 *
 * Prefill: four warps hold 16 packed rows each and read every slot. Decode: one tile of 16 packed
 * rows (all query heads of a KV head), a step's slots cut over the four warps; a long table is cut
 * into parts, whose results a second kernel merges. */
#include "kernels/cuda/pages.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    STEP = GPU_KV_STEP,
    PAD = 8, /* elements: rows of shared memory begin in different banks */
};

#define LOG2E 1.4426950408889634f

/* What of shared memory lies where. e4m3 arrives as bytes and is widened into the first K and V. */
template <class KV, int D, bool DECODE> struct layout {
    static constexpr int ROW = D + PAD;
    static constexpr int Q_ROWS = DECODE ? GPU_DECODE_ROWS : GPU_PREFILL_ROWS;
    static constexpr bool NARROW = sizeof(KV) == 1;
    static constexpr int STAGES = NARROW ? 1 : 2;
    static constexpr size_t Q_BYTES = (size_t)Q_ROWS * ROW * 2;
    static constexpr size_t K_BYTES = (size_t)STEP * ROW * 2;
    static constexpr size_t RAW_BYTES = NARROW ? (size_t)STEP * D : 0; /* of K or V of a stage */
    static constexpr size_t BYTES = Q_BYTES + 2 * STAGES * K_BYTES + 4 * RAW_BYTES;
    /* The warps' results of a decode tile, in the place of K and V. */
    static_assert((size_t)WARPS * GPU_DECODE_ROWS * (D + 2) * 4 <=
                      2 * STAGES * K_BYTES + 4 * RAW_BYTES,
                  "room to merge");
};

struct row_state {
    float max[2], sum[2]; /* of rows g and g + 8 of a warp's 16 */
};

/* ---- into shared memory -------------------------------------------------------------------------
 */

template <class Q, int D>
static DEVICE void load_queries(const gpu_attention &a, const gpu_seq &seq, uint32_t head,
                                uint32_t first, uint32_t rows, Q *out)
{
    const uint32_t chunks = D / 8; /* of 16 bytes */
    uint32_t n_heads = a.kv_heads * a.q_heads;
    for (uint32_t i = threadIdx.x; i < rows * chunks; i += THREADS) {
        uint32_t r = i / chunks, chunk = i % chunks, packed = first + r;
        vec16 v = {{0, 0, 0, 0}};
        if (packed < seq.n_rows * a.q_heads) {
            size_t row = seq.first_row + packed / a.q_heads;
            size_t from = (row * n_heads + head * a.q_heads + packed % a.q_heads) * D;
            v = *(const vec16 *)((const Q *)a.q + from + chunk * 8);
        }
        *(vec16 *)(out + r * (D + PAD) + chunk * 8) = v;
    }
}

/* Slots [from, from + STEP) of K and V begin to arrive; those from `end` on are zeros. row: bytes
 * between two slots in shared memory. */
template <class KV, int D>
static DEVICE void fetch(const gpu_attention &a, const table_view &t, uint32_t from, uint32_t end,
                         unsigned char *k, unsigned char *v, uint32_t row)
{
    const uint32_t row_bytes = D * sizeof(KV), chunks = row_bytes / 16;
    size_t values_at = (size_t)a.pages.page_tokens * row_bytes;
    for (uint32_t i = threadIdx.x; i < STEP * chunks; i += THREADS) {
        uint32_t slot = from + i / chunks, chunk = i % chunks;
        bool there = slot < end;
        const uint8_t *src =
            there ? key_at(a.pages, t, slot, row_bytes) + chunk * 16 : a.pages.data;
        copy_async(k + i / chunks * row + chunk * 16, src, there);
        copy_async(v + i / chunks * row + chunk * 16, there ? src + values_at : src, there);
    }
}

template <int D> static DEVICE void widen_step(const unsigned char *raw, f16 *out)
{
    for (uint32_t i = threadIdx.x; i < STEP * D / 16; i += THREADS) {
        uint32_t slot = i / (D / 16), chunk = i % (D / 16);
        const e4m3 *from = (const e4m3 *)raw + slot * D + chunk * 16;
        f16 *to = out + slot * (D + PAD) + chunk * 16;
        for (int j = 0; j < 16; j++) to[j] = widen(from[j]);
    }
}

/* ---- one step -----------------------------------------------------------------------------------
 */

/* scores [2 tiles of 8 slots for each 16] of a warp's 16 rows with TOKENS slots from k on. */
template <class Q, int D, int TOKENS>
static DEVICE void score(const uint32_t q[D / 16][4], const Q *k, float s[TOKENS / 8][4])
{
    unsigned lane = threadIdx.x % WARP;
    const Q *mine = k + (lane / 16 * 8 + lane % 8) * (D + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
#pragma unroll
        for (int n = 0; n < TOKENS / 16; n++) {
            uint32_t b[4];
            load_matrices(b, mine + n * 16 * (D + PAD) + d * 16);
            multiply(s[2 * n], q[d], b[0], b[1], Q());
            multiply(s[2 * n + 1], q[d], b[2], b[3], Q());
        }
    }
}

/* Scores become weights; what stands in o and sum shrinks where a row's maximum grew. Row i sees
 * slots [low[i], high[i]). */
template <int D, int TOKENS>
static DEVICE void soften(float s[TOKENS / 8][4], uint32_t slot, const uint32_t low[2],
                          const uint32_t high[2], float scale, row_state *state, float o[D / 8][4])
{
    slot += threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float max = state->max[i];
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t at = slot + n * 8 + j;
                float *x = &s[n][2 * i + j];
                *x = at >= low[i] && at < high[i] ? *x * scale : -INFINITY;
                max = fmaxf(max, *x);
            }
        }
        max = fmaxf(max, shuffle_xor(max, 1));
        max = fmaxf(max, shuffle_xor(max, 2));
        float anchor = max == -INFINITY ? 0.0f : max; /* nothing seen yet: weights are 0 */
        float fix = exp2f(state->max[i] - anchor), sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) sum += s[n][2 * i + j] = exp2f(s[n][2 * i + j] - anchor);
        }
        state->max[i] = max;
        state->sum[i] = state->sum[i] * fix + sum;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            o[d][2 * i] *= fix;
            o[d][2 * i + 1] *= fix;
        }
    }
}

/* o += weights * V of TOKENS slots from v on. */
template <class Q, int D, int TOKENS>
static DEVICE void weigh(const float s[TOKENS / 8][4], const Q *v, float o[D / 8][4])
{
    unsigned lane = threadIdx.x % WARP;
    const Q *mine = v + lane % 16 * (D + PAD) + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < TOKENS / 16; n++) {
        const float *low = s[2 * n], *high = s[2 * n + 1];
        uint32_t p[4] = {pack2(low[0], low[1], Q()), pack2(low[2], low[3], Q()),
                         pack2(high[0], high[1], Q()), pack2(high[2], high[3], Q())};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            load_matrices_turned(b, mine + n * 16 * (D + PAD) + d * 16);
            multiply(o[2 * d], p, b[0], b[1], Q());
            multiply(o[2 * d + 1], p, b[2], b[3], Q());
        }
    }
}

/* ---- results ------------------------------------------------------------------------------------
 */

static DEVICE void put(void *out, gpu_type type, size_t at, float x)
{
    switch (type) {
    case GPU_BF16: ((bf16 *)out)[at] = from_float<bf16>(x); break;
    case GPU_F16: ((f16 *)out)[at] = from_float<f16>(x); break;
    default: ((float *)out)[at] = x; break;
    }
}

/* Index of (packed row, head) in [rows, heads]. */
static DEVICE size_t row_at(const gpu_attention &a, const gpu_seq &seq, uint32_t head,
                            uint32_t packed)
{
    size_t row = seq.first_row + packed / a.q_heads;
    return row * a.kv_heads * a.q_heads + head * a.q_heads + packed % a.q_heads;
}

template <int D>
static DEVICE void finish_prefill(const gpu_attention &a, const gpu_seq &seq, uint32_t head,
                                  uint32_t packed, const row_state &state, const float o[D / 8][4])
{
    for (int i = 0; i < 2; i++, packed += 8) {
        if (packed >= seq.n_rows * a.q_heads) continue;
        size_t row = row_at(a, seq, head, packed);
        float inverse = state.sum[i] > 0.0f ? 1.0f / state.sum[i] : 0.0f;
        if (a.lse && threadIdx.x % 4 == 0) a.lse[row] = state.max[i] + log2f(state.sum[i]);
        size_t at = row * D + threadIdx.x % 4 * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            put(a.out, a.out_type, at + d * 8, o[d][2 * i] * inverse);
            put(a.out, a.out_type, at + d * 8 + 1, o[d][2 * i + 1] * inverse);
        }
    }
}

/* A part: for each packed row D sums of weighted values, then its maximum and its sum. */
template <int D> static DEVICE size_t part_at(const gpu_attention &a, size_t part, uint32_t head)
{
    return (part * a.kv_heads + head) * GPU_DECODE_ROWS * (D + 2);
}

/* The weights by which results with these maxima count: 0 of one that saw nothing. */
static DEVICE float share_of(float max, float most)
{
    return max == -INFINITY ? 0.0f : exp2f(max - most);
}

template <int D>
static DEVICE void finish_decode(const gpu_attention &a, uint32_t head, uint32_t part,
                                 const row_state &state, const float o[D / 8][4], float *shared)
{
    const uint32_t row_floats = D + 2;
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads(); /* all have read K and V */
    for (int i = 0; i < 2; i++) {
        float *row = shared + (warp * GPU_DECODE_ROWS + lane / 4 + i * 8) * row_floats;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            row[d * 8 + lane % 4 * 2] = o[d][2 * i];
            row[d * 8 + lane % 4 * 2 + 1] = o[d][2 * i + 1];
        }
        if (lane % 4 == 0) {
            row[D] = state.max[i];
            row[D + 1] = state.sum[i];
        }
    }
    __syncthreads();
    float *out = a.partial + part_at<D>(a, part, head);
    const uint32_t of_warp = GPU_DECODE_ROWS * row_floats;
    for (uint32_t i = threadIdx.x; i < of_warp; i += THREADS) {
        const float *maxima = shared + i / row_floats * row_floats + D;
        float most = maxima[0], sum = 0.0f;
        for (uint32_t w = 1; w < WARPS; w++) most = fmaxf(most, maxima[w * of_warp]);
        for (uint32_t w = 0; w < WARPS; w++)
            sum += shared[w * of_warp + i] * share_of(maxima[w * of_warp], most);
        out[i] = i % row_floats == D ? most : sum;
    }
}

/* ---- the kernels --------------------------------------------------------------------------------
 */

template <class KV, int D, bool DECODE>
static __global__ void __launch_bounds__(THREADS) attention_kernel(gpu_attention a)
{
    typedef typename query_of<KV>::type Q;
    typedef layout<KV, D, DECODE> L;
    constexpr int TOKENS = DECODE ? STEP / WARPS : STEP; /* of a warp in a step */
    DYNAMIC_SHARED(memory);
    Q *queries = (Q *)memory, *keys = (Q *)(memory + L::Q_BYTES);
    unsigned char *raw = memory + L::Q_BYTES + 2 * L::STAGES * L::K_BYTES;

    const gpu_tile tile = DECODE ? a.decode[blockIdx.x] : a.prefill[blockIdx.x];
    const gpu_seq seq = a.seqs[tile.seq];
    uint32_t head = blockIdx.y;
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    table_view t = view_table(a.pages, a.tables, a.layer, seq, a.lengths, head);
    uint32_t first_slot = t.length - seq.n_rows, first_row = DECODE ? 0 : tile.first;

    /* The slots that any row of the tile sees. */
    uint32_t packed = seq.n_rows * a.q_heads;
    uint32_t last_row = first_row + L::Q_ROWS < packed ? first_row + L::Q_ROWS : packed;
    uint32_t begin = 0, end = first_slot + (last_row - 1) / a.q_heads + 1;
    uint32_t oldest = first_slot + first_row / a.q_heads + 1;
    if (a.layer.window && oldest > a.layer.window) begin = oldest - a.layer.window;
    if (DECODE) {
        uint32_t to = tile.first + a.part_slots;
        if (begin < tile.first) begin = tile.first;
        if (end > to) end = to;
    }
    begin = begin / STEP * STEP;

    load_queries<Q, D>(a, seq, head, first_row, L::Q_ROWS, queries);
    __syncthreads();
    uint32_t q[D / 16][4], low[2], high[2];
    uint32_t my_row = DECODE ? 0 : warp * 16;
    {
        const Q *mine = queries + (my_row + lane % 16) * L::ROW + lane / 16 * 8;
#pragma unroll
        for (int d = 0; d < D / 16; d++) load_matrices(q[d], mine + d * 16);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t row = (first_row + my_row + lane / 4 + i * 8) / a.q_heads;
        high[i] = row < seq.n_rows ? first_slot + row + 1 : 0;
        low[i] = a.layer.window && high[i] > a.layer.window ? high[i] - a.layer.window : 0;
        if (high[i] > end) high[i] = end;
        if (DECODE && low[i] < tile.first) low[i] = tile.first;
    }
    row_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float o[D / 8][4];
#pragma unroll
    for (int d = 0; d < D / 8; d++) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.0f;

    /* Stage i % 2 of K and V; V follows K. */
    const size_t stage_bytes = L::NARROW ? 2 * L::RAW_BYTES : 2 * L::K_BYTES;
    const size_t v_at = L::NARROW ? L::RAW_BYTES : L::K_BYTES;
    const uint32_t row_bytes = L::NARROW ? D : L::ROW * 2;
    unsigned char *stages = L::NARROW ? raw : (unsigned char *)keys;
    if (begin < end) fetch<KV, D>(a, t, begin, end, stages, stages + v_at, row_bytes);
    copy_commit();
    uint32_t stage = 0;
    for (uint32_t slot = begin; slot < end; slot += STEP, stage ^= 1) {
        unsigned char *here = stages + stage * stage_bytes;
        unsigned char *there = stages + (stage ^ 1) * stage_bytes;
        if (slot + STEP < end) fetch<KV, D>(a, t, slot + STEP, end, there, there + v_at, row_bytes);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        Q *k = (Q *)here, *v = (Q *)(here + v_at);
        if (L::NARROW) {
            k = keys;
            v = keys + STEP * L::ROW;
            widen_step<D>(here, (f16 *)k);
            widen_step<D>(here + v_at, (f16 *)v);
            __syncthreads();
        }
        uint32_t mine = DECODE ? warp * TOKENS : 0;
        float s[TOKENS / 8][4];
        score<Q, D, TOKENS>(q, k + mine * L::ROW, s);
        soften<D, TOKENS>(s, slot + mine, low, high, a.scale * LOG2E, &state, o);
        weigh<Q, D, TOKENS>(s, v + mine * L::ROW, o);
        __syncthreads(); /* before the stage is filled again */
    }
    copy_wait<0>();
    for (int i = 0; i < 2; i++) {
        state.sum[i] += shuffle_xor(state.sum[i], 1);
        state.sum[i] += shuffle_xor(state.sum[i], 2);
    }
    if (DECODE) finish_decode<D>(a, head, blockIdx.x, state, o, (float *)keys);
    else finish_prefill<D>(a, seq, head, first_row + my_row + lane / 4, state, o);
}

/* A block merges the parts of one sequence and KV head: that of the tile which is its first. */
template <int D> static __global__ void merge_kernel(gpu_attention a)
{
    const uint32_t row_floats = D + 2, of_part = a.kv_heads * GPU_DECODE_ROWS * row_floats;
    const gpu_tile tile = a.decode[blockIdx.x];
    if (tile.part != blockIdx.x) return;
    const gpu_seq seq = a.seqs[tile.seq];
    uint32_t head = blockIdx.y;
    const float *parts = a.partial + part_at<D>(a, tile.part, head);
    for (uint32_t i = threadIdx.x; i < seq.n_rows * a.q_heads * D; i += blockDim.x) {
        uint32_t packed = i / D, d = i % D;
        const float *row = parts + packed * row_floats;
        float most = -INFINITY, sum = 0.0f, value = 0.0f;
        for (uint32_t p = 0; p < tile.parts; p++) most = fmaxf(most, row[p * of_part + D]);
        for (uint32_t p = 0; p < tile.parts; p++) {
            float share = share_of(row[p * of_part + D], most);
            value += row[p * of_part + d] * share;
            sum += row[p * of_part + D + 1] * share;
        }
        size_t at = row_at(a, seq, head, packed);
        put(a.out, a.out_type, at * D + d, sum > 0.0f ? value / sum : 0.0f);
        if (a.lse && d == 0) a.lse[at] = most + log2f(sum);
    }
}

/* ---- launches -----------------------------------------------------------------------------------
 */

template <class KV, int D, bool DECODE>
static gpu_status run(gpu *g, const gpu_attention *a, uint32_t n)
{
    auto kernel = attention_kernel<KV, D, DECODE>;
    const size_t bytes = layout<KV, D, DECODE>::BYTES;
    if (n == 0) return GPU_OK;
    gpu_allow_shared((const void *)kernel, bytes);
    LAUNCH(kernel, dim3(n, a->kv_heads), THREADS, bytes, g, *a);
    return gpu_launched(g, DECODE ? "decode attention" : "prefill attention");
}

template <class KV, int D> static gpu_status run_all(gpu *g, const gpu_attention *a)
{
    gpu_status s = run<KV, D, false>(g, a, a->n_prefill);
    if (s == GPU_OK) s = run<KV, D, true>(g, a, a->n_decode);
    if (s != GPU_OK || a->n_decode == 0) return s;
    LAUNCH(merge_kernel<D>, dim3(a->n_decode, a->kv_heads), THREADS, 0, g, *a);
    return gpu_launched(g, "merge of attention");
}

template <class KV> static gpu_status run_format(gpu *g, const gpu_attention *a)
{
    switch (a->pages.head_dim) {
    case 32: return run_all<KV, 32>(g, a);
    case 64: return run_all<KV, 64>(g, a);
    case 128: return run_all<KV, 128>(g, a);
    default: return GPU_UNSUPPORTED;
    }
}

gpu_status gpu_attend(gpu *g, const gpu_attention *a)
{
    switch (a->pages.format) {
    case GPU_KV_BF16: return run_format<bf16>(g, a);
    case GPU_KV_F16: return run_format<f16>(g, a);
    default: return run_format<e4m3>(g, a);
    }
}
