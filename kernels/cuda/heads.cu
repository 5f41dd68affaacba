/* Between the qkv product and attention: bias, head norms, rotation, K and V to their pages. Also
 * changes of pages outside a forward pass: moves of slots, patches of tables. */
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/pages.cuh"

#include <type_traits>

enum {
    HEAD_THREADS = 128,
    GRID_MOST = 65535, /* most blocks along y */
    HEAD_WAVES = 8,    /* blocks for each multiprocessor; fewer rows: several blocks a row */
};

/* Stores a head's K or V in its slot; int8 gives the bits of quant_kv_8 (quant_groups.h). */
template <class KV>
static DEVICE void store_slot(const head_pairs &v, const gpu_pages &p, uint8_t *tile, uint32_t slot,
                              uint32_t part, unsigned lane)
{
    KV *row = (KV *)tile + ((size_t)part * p.page_tokens + slot) * p.head_dim;
    store_head(v, row, p.head_dim / 2, lane);
}
template <>
DEVICE void store_slot<i8>(const head_pairs &v, const gpu_pages &p, uint8_t *tile, uint32_t slot,
                           uint32_t part, unsigned lane)
{
    uint32_t half = p.head_dim / 2, largest = 0; /* largest: bits; those of NaN are above all */
    for (int j = 0; j < PAIRS; j++) {
        uint32_t a = bits_of_float(v.a[j]) & 0x7fffffff, b = bits_of_float(v.b[j]) & 0x7fffffff;
        if (a > largest) largest = a;
        if (b > largest) largest = b;
    }
    largest = warp_fold(largest, larger_of_two());
    bool finite = largest < 0x7f800000u, zeros = float_of_bits(largest) < 0x1p-100f;
    bf16 scale = from_float<bf16>(float_of_bits(largest) / 127.0f);
    if (!finite) scale.bits = 0x7fc0;
    else if (zeros) scale.bits = 0;
    float inverse = finite && !zeros ? 1.0f / to_float(scale) : 0.0f;
    int8_t *row = (int8_t *)tile + ((size_t)part * p.page_tokens + slot) * p.head_dim;
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + j * WARP;
        if (i >= half) continue;
        float a = fminf(fmaxf(v.a[j] * inverse, -127.0f), 127.0f);
        float b = fminf(fmaxf(v.b[j] * inverse, -127.0f), 127.0f);
        row[i] = finite ? (int8_t)rintf(a) : 0;
        row[half + i] = finite ? (int8_t)rintf(b) : 0;
    }
    if (lane == 0) scales_at(p, tile)[part * p.page_tokens + slot] = scale.bits;
}

/* Blocks along y share a row's heads: q heads, k heads, v heads. Each warp takes its heads in
 * turn. */
template <class KV> static __global__ void heads_kernel(gpu_heads h)
{
    await_previous();
    typedef typename query_of<KV>::type Q;
    uint32_t dim = h.pages.head_dim, half = dim / 2, row = blockIdx.x;
    unsigned lane = threadIdx.x % WARP;
    uint32_t n_q = h.q_heads * h.kv_heads, n = n_q + 2 * h.kv_heads;
    const gpu_seq &seq = h.seqs[h.row_seqs[row]];
    const float *angles = h.angles + (size_t)row * dim;
    uint32_t warps = blockDim.x / WARP;
    for (uint32_t head = blockIdx.y * warps + threadIdx.x / WARP; head < n;
         head += gridDim.y * warps) {
        const float *bias = h.bias ? h.bias + head * dim : NULL;
        head_pairs v = load_head(h.qkv + ((size_t)row * n + head) * dim, bias, half, lane);
        bool is_q = head < n_q, is_k = !is_q && head < n_q + h.kv_heads;
        const float *weight = is_q ? h.q_norm : is_k ? h.k_norm : NULL;
        if (weight) norm_head(&v, weight, h.eps, half, lane);
        if (is_q || is_k) rotate_head(&v, angles, half, lane);
        if (is_q) {
            store_head(v, (Q *)h.q + ((size_t)row * n_q + head) * dim, half, lane);
            continue;
        }
        uint32_t kv_head = (head - n_q) % h.kv_heads;
        table_view t = view_table(h.pages, h.tables, h.layer, seq, h.lengths, kv_head);
        uint32_t slot = t.length - seq.n_rows + (row - seq.first_row);
        uint8_t *tile = t.tiles + t.pages[slot / h.pages.page_tokens] * h.pages.page_bytes;
        store_slot<KV>(v, h.pages, tile, slot % h.pages.page_tokens, !is_k, lane);
    }
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Loads K or V of a slot. */
template <class KV>
static DEVICE head_pairs load_slot(const gpu_pages &p, uint8_t *tile, uint32_t slot, uint32_t part,
                                   unsigned lane)
{
    uint32_t half = p.head_dim / 2, at = part * p.page_tokens + slot;
    const KV *row = (const KV *)tile + (size_t)at * p.head_dim;
    float scale = 1.0f;
    if (std::is_same<KV, i8>::value) scale = to_float(bf16{scales_at(p, tile)[at]});
    head_pairs v;
    for (int j = 0; j < PAIRS; j++) {
        uint32_t d = lane + j * WARP;
        v.a[j] = d < half ? to_float(row[d]) * scale : 0.0f;
        v.b[j] = d < half ? to_float(row[half + d]) * scale : 0.0f;
    }
    return v;
}

/* A page of the moves is `heads` consecutive cells of each of some layer groups. A block does one
 * tile of one of its cells in every move of a chain, in order, because a page may be written by one
 * move and read by the next. In a move, a warp moves a slot's K, V and running sum. src and dst may
 * be one page, so all rows of a round are read before any is written, and rounds proceed away from
 * what they write. int8 that is read and written again keeps its bits. */
template <class KV>
static __global__ void move_kernel(gpu_pages p, uint32_t heads, const gpu_move *moves,
                                   const gpu_chain *chains, const float *rope_shifts)
{
    uint32_t half = p.head_dim / 2, warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    unsigned lane = threadIdx.x % WARP;
    uint32_t of_run = blockIdx.x / p.n_tiles, tile = blockIdx.x % p.n_tiles;
    uint32_t behind = of_run / heads * p.layer_stride + of_run % heads;
    const gpu_chain chain = chains[blockIdx.y];
    for (uint32_t n = 0; n < chain.n; n++) {
        const gpu_move m = moves[chain.first + n];
        const float *rope_shift =
            m.rope_shift ? rope_shifts + (size_t)(m.rope_shift - 1) * p.head_dim : NULL;
        uint32_t src_cell = m.src_page + behind, dst_cell = m.dst_page + behind;
        uint8_t *src = p.data + src_cell * p.page_bytes + tile * p.tile_bytes;
        uint8_t *dst = p.data + dst_cell * p.page_bytes + tile * p.tile_bytes;
        if (p.marks && threadIdx.x == 0) p.marks[(size_t)dst_cell * p.n_tiles + tile] = 0;
        const float *src_sums = p.sums + sums_at(p, src_cell, tile);
        float *dst_sums = p.sums + sums_at(p, dst_cell, tile);
        for (uint32_t from = 0; from < m.n_slots; from += warps) {
            uint32_t i = from + warp;
            bool in = i < m.n_slots;
            if (m.dst_slot > m.src_slot) i = m.n_slots - 1 - i;
            if (!in) i = 0;
            head_pairs k = load_slot<KV>(p, src, m.src_slot + i, 0, lane);
            head_pairs v = load_slot<KV>(p, src, m.src_slot + i, 1, lane);
            float sum = p.sums ? src_sums[m.src_slot + i] : 0.0f;
            if (rope_shift) rotate_head(&k, rope_shift, half, lane);
            __syncthreads();
            if (in && p.sums && lane == 0) dst_sums[m.dst_slot + i] = sum;
            if (in) store_slot<KV>(k, p, dst, m.dst_slot + i, 0, lane);
            if (in) store_slot<KV>(v, p, dst, m.dst_slot + i, 1, lane);
            __syncthreads();
        }
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static __global__ void patch_kernel(uint32_t *pages, const gpu_patch *patches,
                                    const uint32_t *values)
{
    gpu_patch p = patches[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x) pages[p.at + i] = values[p.first + i];
}

/* ---- launches -------------------------------------------------------------------------------- */

gpu_status gpu_write_heads(gpu *g, const gpu_heads *h)
{
    uint32_t warps = HEAD_THREADS / WARP, heads = (h->q_heads + 2) * h->kv_heads;
    uint32_t wanted = HEAD_WAVES * gpu_sms(g) / (h->n_rows ? h->n_rows : 1);
    uint32_t parts = (heads + warps - 1) / warps;
    if (parts > wanted) parts = wanted ? wanted : 1;
#define HEADS(KV) LAUNCH_EARLY(heads_kernel<KV>, dim3(h->n_rows, parts), HEAD_THREADS, 0, g, *h)
    if (h->n_rows) FOR_KV(h->pages.format, HEADS)
#undef HEADS
    return gpu_launched(g, "heads");
}

gpu_status gpu_moves(gpu *g, const gpu_pages *pages, gpu_grain grain, const gpu_move *moves,
                     const gpu_chain *chains, uint32_t n_chains, const float *rope_shifts)
{
    uint32_t layers = grain == GPU_GRAIN_ALL ? pages->layer_groups : 1;
    uint32_t heads = grain == GPU_GRAIN_HEAD ? 1 : pages->run_heads;
    for (uint32_t first = 0; first < n_chains; first += GRID_MOST) {
        uint32_t n = n_chains - first < GRID_MOST ? n_chains - first : (uint32_t)GRID_MOST;
#define MOVE(KV)                                                                                   \
    LAUNCH(move_kernel<KV>, dim3(pages->n_tiles *layers *heads, n), HEAD_THREADS, 0, g, *pages,    \
           heads, moves, chains + first, rope_shifts)
        FOR_KV(pages->format, MOVE)
#undef MOVE
    }
    return gpu_launched(g, "moves");
}

gpu_status gpu_patches(gpu *g, uint32_t *pages, const gpu_patch *patches, uint32_t n,
                       const uint32_t *values)
{
    if (n) LAUNCH(patch_kernel, n, 64, 0, g, pages, patches, values);
    return gpu_launched(g, "patches");
}

GPU_CODE(heads, patch_kernel)
