/* Between the qkv product and attention: bias, head norms, rotation, K and V to their pages. And
 * what happens to pages outside a forward pass: moves of slots, patches of tables. */
#include "kernels/cuda/pages.cuh"

enum {
    HEAD_THREADS = 128,
    PAIRS = 4, /* of a lane: head_dim <= 256 */
};

/* Both halves of each of a lane's pairs: element i and i + half, i = lane, lane + WARP, ... */
struct head_pairs {
    float a[PAIRS], b[PAIRS];
};

static DEVICE head_pairs load_head(const float *x, const float *bias, uint32_t half, unsigned lane)
{
    head_pairs v;
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + j * WARP;
        bool in = i < half;
        v.a[j] = in ? x[i] + (bias ? bias[i] : 0.0f) : 0.0f;
        v.b[j] = in ? x[half + i] + (bias ? bias[half + i] : 0.0f) : 0.0f;
    }
    return v;
}

static DEVICE void norm_head(head_pairs *v, const float *weight, float eps, uint32_t half,
                             unsigned lane)
{
    float sum = 0.0f;
    for (int j = 0; j < PAIRS; j++) sum += v->a[j] * v->a[j] + v->b[j] * v->b[j];
    float scale = 1.0f / sqrtf(warp_sum(sum) / (float)(2 * half) + eps);
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + j * WARP;
        if (i >= half) continue;
        v->a[j] *= scale * weight[i];
        v->b[j] *= scale * weight[half + i];
    }
}

static DEVICE void turn_head(head_pairs *v, const float *angles, uint32_t half, unsigned lane)
{
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + j * WARP;
        if (i >= half) continue;
        float a = v->a[j], b = v->b[j], c = angles[i], s = angles[half + i];
        v->a[j] = a * c - b * s;
        v->b[j] = b * c + a * s;
    }
}

template <class T>
static DEVICE void store_head(const head_pairs &v, T *out, uint32_t half, unsigned lane)
{
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + j * WARP;
        if (i >= half) continue;
        out[i] = from_float<T>(v.a[j]);
        out[half + i] = from_float<T>(v.b[j]);
    }
}

/* A block takes a row, a warp its heads in turn: q heads, k heads, v heads. */
template <class KV> static __global__ void heads_kernel(gpu_heads h)
{
    typedef typename query_of<KV>::type Q;
    uint32_t dim = h.pages.head_dim, half = dim / 2, row = blockIdx.x;
    unsigned lane = threadIdx.x % WARP;
    uint32_t n_q = h.q_heads * h.kv_heads, n = n_q + 2 * h.kv_heads;
    const gpu_seq &seq = h.seqs[h.row_seqs[row]];
    const float *angles = h.angles + (size_t)row * dim;
    for (uint32_t head = threadIdx.x / WARP; head < n; head += blockDim.x / WARP) {
        const float *bias = h.bias ? h.bias + head * dim : NULL;
        head_pairs v = load_head(h.qkv + ((size_t)row * n + head) * dim, bias, half, lane);
        bool is_q = head < n_q, is_k = !is_q && head < n_q + h.kv_heads;
        const float *weight = is_q ? h.q_norm : is_k ? h.k_norm : NULL;
        if (weight) norm_head(&v, weight, h.eps, half, lane);
        if (is_q || is_k) turn_head(&v, angles, half, lane);
        if (is_q) {
            store_head(v, (Q *)h.q + ((size_t)row * n_q + head) * dim, half, lane);
            continue;
        }
        uint32_t kv_head = (head - n_q) % h.kv_heads;
        table_view t = view_table(h.pages, h.tables, h.layer, seq, h.lengths, kv_head);
        uint32_t slot = t.length - seq.n_rows + (row - seq.first_row);
        KV *at = (KV *)key_at(h.pages, t, slot, dim * sizeof(KV));
        if (!is_k) at += (size_t)h.pages.page_tokens * dim;
        store_head(v, at, half, lane);
    }
}

/* ---- moves ------------------------------------------------------------------------------------
 */

/* A warp takes a slot's K, then its V; the rows of one round are read before any is written, and
 * rounds go away from what they write: src and dst may be one page. */
template <class KV> static __global__ void move_kernel(gpu_pages p, gpu_move m, const float *turns)
{
    uint32_t half = p.head_dim / 2, warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    unsigned lane = threadIdx.x % WARP;
    const float *turn = m.turn ? turns + (size_t)(m.turn - 1) * p.head_dim : NULL;
    size_t tile = blockIdx.x * p.tile_bytes;
    const KV *src = (const KV *)(p.data + m.src_page * p.page_bytes + tile);
    KV *dst = (KV *)(p.data + m.dst_page * p.page_bytes + tile);
    for (uint32_t from = 0; from < m.n_slots; from += warps) {
        uint32_t i = from + warp;
        bool in = i < m.n_slots;
        if (m.dst_slot > m.src_slot) i = m.n_slots - 1 - i;
        for (uint32_t part = 0; part < 2; part++) {
            uint32_t first = part * p.page_tokens;
            const KV *x = src + (size_t)(first + m.src_slot + i) * p.head_dim;
            head_pairs v;
            for (int j = 0; j < PAIRS; j++) {
                uint32_t d = lane + j * WARP;
                bool there = in && d < half;
                v.a[j] = there ? to_float(x[d]) : 0.0f;
                v.b[j] = there ? to_float(x[half + d]) : 0.0f;
            }
            if (turn && part == 0) turn_head(&v, turn, half, lane);
            __syncthreads();
            if (in) store_head(v, dst + (size_t)(first + m.dst_slot + i) * p.head_dim, half, lane);
            __syncthreads();
        }
    }
}

/* ---- tables -----------------------------------------------------------------------------------
 */

static __global__ void patch_kernel(uint32_t *pages, const gpu_patch *patches,
                                    const uint32_t *values)
{
    gpu_patch p = patches[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x) pages[p.at + i] = values[p.first + i];
}

/* ---- launches ---------------------------------------------------------------------------------
 */

gpu_status gpu_write_heads(gpu *g, const gpu_heads *h)
{
#define HEADS(KV) LAUNCH(heads_kernel<KV>, h->n_rows, HEAD_THREADS, 0, g, *h)
    if (h->n_rows) FOR_KV(h->pages.format, HEADS)
#undef HEADS
    return gpu_launched(g, "heads");
}

/* One launch for each: a page may be written by one move and read by the next. */
gpu_status gpu_moves(gpu *g, const gpu_pages *pages, const gpu_move *moves, uint32_t n,
                     const float *turns)
{
    for (uint32_t i = 0; i < n; i++) {
#define MOVE(KV)                                                                                   \
    LAUNCH(move_kernel<KV>, pages->n_tiles, HEAD_THREADS, 0, g, *pages, moves[i], turns)
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
