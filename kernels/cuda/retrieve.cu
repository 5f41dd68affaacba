/* Rows that read few blocks: representatives of blocks, their scores, the selection, and tables of
 * the pages that are read, for attention. Nothing comes from the host but numbers of rows.
 *
 * Blocks without a representative are listed, and all their marks become one that no other block
 * has. Where rows want a page in different blocks, the greater mark stays, and the other block is
 * not whole: its representative is made again by each thread that scores it, and not kept. */
#include "kernels/cuda/cuda_retrieval.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/rank.cuh"

typedef unsigned long long u64;

enum {
    LIST_THREADS = 128,
    LANES = 16,       /* chains of a score, and of a sum of keys */
    SCORED = 4,       /* candidates of a half warp */
    MAKERS_OF_SM = 8, /* blocks for each multiprocessor */
    DIM_MOST = 256,
};

/* ---- a row's tables and blocks --------------------------------------------------------------- */

static DEVICE table_view view_of(const gpu_retrieval &r, const gpu_sparse_row &s, uint32_t head)
{
    return view_table(r.pages, r.tables, r.layer, r.seqs[s.seq], r.lengths, head);
}

/* The index of a page's tile among all tiles. */
static DEVICE size_t tile_of(const gpu_retrieval &r, const table_view &t, uint32_t page,
                             uint32_t head)
{
    size_t cell = t.pages[page] + t.cell;
    return cell * r.pages.n_tiles + r.layer.first_tile + head % r.layer.heads_per_group;
}

static DEVICE uint16_t *vectors_of(const gpu_retrieval &r, size_t tile)
{
    return r.pages.vectors + tile * 2 * r.pages.head_dim;
}

static DEVICE bool has_row(const gpu_retrieval &r, uint32_t row, gpu_reads reads)
{
    return r.reads[row] == reads;
}

/* Whether the block's representative is of keys that were chosen at the prompt's end. */
static DEVICE bool is_chosen(const gpu_sparse_row &s, uint32_t block)
{
    return s.chosen && block < s.n_known;
}

/* The number of such a block among those of all layers and heads. */
static DEVICE size_t chosen_at(const gpu_retrieval &r, const gpu_sparse_row &s, uint32_t head,
                               uint32_t block)
{
    return ((size_t)r.number * r.kv_heads + head) * s.n_known + block;
}

static DEVICE bool is_left_out(const gpu_retrieval &r, const gpu_sparse_row &s, uint32_t head,
                               uint32_t block)
{
    if (!s.left_out || block >= s.n_known) return false;
    uint32_t lists = r.kv_heads / s.together, words = (s.n_known + WARP - 1) / WARP;
    const uint32_t *bits = s.left_out + ((size_t)r.number * lists + head / s.together) * words;
    return bits[block / WARP] >> block % WARP & 1;
}

/* Whether the block's pages from `page` on, in steps, have its first page's mark, and it is that of
 * the row's representative. */
static DEVICE bool is_made(const gpu_retrieval &r, const gpu_sparse_row &s, const table_view &t,
                           uint32_t head, uint32_t block, uint32_t page, uint32_t step)
{
    uint32_t first = block * s.block_pages;
    gpu_tile_mark mark = r.pages.marks[tile_of(r, t, first, head)];
    uint32_t of = is_chosen(s, block) ? s.made_chosen : s.made_of;
    bool made = (mark & ((1u << GPU_MARK_BITS) - 1)) == of;
    if (is_chosen(s, block)) made = made && mark == s.chosen_marks[chosen_at(r, s, head, block)];
    for (; page < s.block_pages; page += step)
        made = made && r.pages.marks[tile_of(r, t, first + page, head)] == mark;
    return made;
}

/* ---- representatives ------------------------------------------------------------------------- */

/* The key of a slot of a page, in one dim. */
template <class KV>
static DEVICE float key_of(const gpu_pages &p, uint8_t *tile, uint32_t slot, uint32_t d)
{
    const KV *row = (const KV *)tile + (size_t)slot * p.head_dim;
    return to_float(row[d]);
}
template <> DEVICE float key_of<i8>(const gpu_pages &p, uint8_t *tile, uint32_t slot, uint32_t d)
{
    const i8 *row = (const i8 *)tile + (size_t)slot * p.head_dim;
    return product_rounded(to_float(row[d]), to_float(bf16{scales_at(p, tile)[slot]}));
}

/* The least bf16 that is not below x; where `up` is not set, the greatest that is not above x.
 * Infinities and NaN stay what they are. */
static DEVICE uint16_t round_outwards(float x, bool up)
{
    uint32_t bits = bits_of_float(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    bool away = (bits >> 31 == 0) == up; /* from 0 */
    return (uint16_t)((bits >> 16) + (away && (bits & 0xffff) != 0));
}

/* Sums, or largest and smallest values, of the slots i, i + LANES, … of a block. */
struct lanes_of_keys {
    float largest[LANES], smallest[LANES]; /* sums are in `largest` */
};

template <class KV>
static DEVICE void take_all(const gpu_retrieval &r, const gpu_sparse_row &s, const table_view &t,
                            uint32_t first, uint32_t d, lanes_of_keys *l)
{
    const gpu_pages &p = r.pages;
    uint32_t n = s.block_pages * p.page_tokens;
    for (uint32_t strip = 0; strip < n; strip += LANES) {
        uint8_t *tile = t.tiles + t.pages[first + strip / p.page_tokens] * p.page_bytes;
#pragma unroll
        for (uint32_t i = 0; i < LANES; i++) {
            float key = key_of<KV>(p, tile, strip % p.page_tokens + i, d);
            if (s.kind == GPU_REPRESENT_SUM) l->largest[i] += key;
            else {
                l->largest[i] = strip == 0 || key > l->largest[i] ? key : l->largest[i];
                l->smallest[i] = strip == 0 || key < l->smallest[i] ? key : l->smallest[i];
            }
        }
    }
}

/* Adds the evenly spread keys, each once. */
template <class KV>
static DEVICE void take_spread(const gpu_retrieval &r, const gpu_sparse_row &s, const table_view &t,
                               uint32_t first, uint32_t d, lanes_of_keys *l)
{
    const gpu_pages &p = r.pages;
    uint32_t size = s.block_pages * p.page_tokens, before = GPU_NO_ROW;
    for (uint32_t j = 0; j < s.n_keys; j++) {
        uint32_t slot = (2 * j + 1) * size / (2 * s.n_keys);
        if (slot == before) continue;
        before = slot;
        uint8_t *tile = t.tiles + t.pages[first + slot / p.page_tokens] * p.page_bytes;
        float key = key_of<KV>(p, tile, slot % p.page_tokens, d);
#pragma unroll
        for (uint32_t i = 0; i < LANES; i++) l->largest[i] += i == slot % LANES ? key : 0.0f;
    }
}

/* Adds the keys that were chosen at the prompt's end. */
template <class KV>
static DEVICE void take_chosen(const gpu_retrieval &r, const gpu_sparse_row &s, const table_view &t,
                               uint32_t head, uint32_t block, uint32_t d, lanes_of_keys *l)
{
    const gpu_pages &p = r.pages;
    uint32_t size = s.block_pages * p.page_tokens, words = (size + WARP - 1) / WARP;
    const uint32_t *chosen = s.chosen + chosen_at(r, s, head, block) * words;
    for (uint32_t strip = 0; strip < size; strip += LANES) {
        uint32_t bits = chosen[strip / WARP] >> strip % WARP & 0xffff;
        if (bits == 0) continue;
        uint32_t page = t.pages[block * s.block_pages + strip / p.page_tokens];
        uint8_t *tile = t.tiles + page * p.page_bytes;
#pragma unroll
        for (uint32_t i = 0; i < LANES; i++)
            if (bits >> i & 1) l->largest[i] += key_of<KV>(p, tile, strip % p.page_tokens + i, d);
    }
}

/* The two values of a dim of a block's representative, as bf16. */
template <class KV>
static DEVICE void represent(const gpu_retrieval &r, const gpu_sparse_row &s, const table_view &t,
                             uint32_t head, uint32_t block, uint32_t d, uint16_t *largest,
                             uint16_t *smallest)
{
    lanes_of_keys l;
#pragma unroll
    for (uint32_t i = 0; i < LANES; i++) l.largest[i] = l.smallest[i] = 0.0f;
    uint32_t first = block * s.block_pages;
    if (is_chosen(s, block)) take_chosen<KV>(r, s, t, head, block, d, &l);
    else if (s.n_keys) take_spread<KV>(r, s, t, first, d, &l);
    else take_all<KV>(r, s, t, first, d, &l);
    float sum = l.largest[0], most = l.largest[0], least = l.smallest[0];
#pragma unroll
    for (uint32_t i = 1; i < LANES; i++) {
        sum += l.largest[i];
        most = l.largest[i] > most ? l.largest[i] : most;
        least = l.smallest[i] < least ? l.smallest[i] : least;
    }
    *largest =
        s.kind == GPU_REPRESENT_SUM ? from_float<bf16>(sum).bits : round_outwards(most, true);
    *smallest = round_outwards(least, false);
}

/* ---- what is missing ------------------------------------------------------------------------- */

/* Sums the rotated queries of a KV head, positive and negative parts apart for boxes. One warp. */
static DEVICE void fold_queries(const gpu_retrieval &r, const gpu_sparse_row &s, uint32_t head)
{
    uint32_t dim = r.pages.head_dim, half = dim / 2, n = (r.q_heads + 2) * r.kv_heads;
    unsigned lane = threadIdx.x;
    bool apart = s.kind == GPU_REPRESENT_BOX;
    head_pairs sums[2] = {{{0}, {0}}, {{0}, {0}}};
    for (uint32_t g = 0; g < r.q_heads; g++) {
        uint32_t q = head * r.q_heads + g;
        head_pairs v = load_head(r.qkv + ((size_t)s.row * n + q) * dim,
                                 r.bias ? r.bias + q * dim : NULL, half, lane);
        if (r.norm) norm_head(&v, r.norm, r.eps, half, lane);
        rotate_head(&v, r.angles + (size_t)s.row * dim, half, lane);
        for (int j = 0; j < PAIRS; j++) {
            if (!apart || v.a[j] >= 0.0f) sums[0].a[j] += v.a[j];
            else sums[1].a[j] += v.a[j];
            if (!apart || v.b[j] >= 0.0f) sums[0].b[j] += v.b[j];
            else sums[1].b[j] += v.b[j];
        }
    }
    float *out = r.folded + ((size_t)blockIdx.z * r.kv_heads + head) * 2 * dim;
    for (int part = 0; part < 2; part++) store_head(sums[part], out + part * dim, half, lane);
}

/* Lists the candidates without a representative; each gets a mark that no other has. */
static __global__ void missing_kernel(gpu_retrieval r)
{
    const gpu_sparse_row s = r.rows[blockIdx.z];
    uint32_t head = blockIdx.y, block = s.first + blockIdx.x * blockDim.x + threadIdx.x;
    if (!has_row(r, blockIdx.z, GPU_SELECTS)) return;
    if (blockIdx.x == 0 && threadIdx.x < WARP) fold_queries(r, s, head);
    if (block >= s.end || is_left_out(r, s, head, block)) return;
    const table_view t = view_of(r, s, head);
    if (is_made(r, s, t, head, block, 1, 1)) return;
    uint32_t of = is_chosen(s, block) ? s.made_chosen : s.made_of;
    gpu_tile_mark number = atomicAdd(&r.counts[0], (u64)1) + 1;
    u64 at = atomicAdd(&r.counts[1], (u64)1);
    r.unmade[at] = gpu_unmade{number << GPU_MARK_BITS | of, blockIdx.z, head, block};
}

static __global__ void claim_kernel(gpu_retrieval r)
{
    u64 n = r.counts[1];
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const gpu_unmade u = r.unmade[i];
        const gpu_sparse_row s = r.rows[u.row];
        const table_view t = view_of(r, s, u.head);
        if (is_chosen(s, u.block))
            atomicMax(&s.chosen_marks[chosen_at(r, s, u.head, u.block)], u.mark);
        for (uint32_t page = 0; page < s.block_pages; page++)
            atomicMax(&r.pages.marks[tile_of(r, t, u.block * s.block_pages + page, u.head)],
                      u.mark);
    }
}

template <class KV>
static __global__ void __launch_bounds__(LIST_THREADS) make_kernel(gpu_retrieval r)
{
    u64 n = r.counts[1];
    for (u64 i = blockIdx.x; i < n; i += gridDim.x) {
        const gpu_unmade u = r.unmade[i];
        const gpu_sparse_row s = r.rows[u.row];
        const table_view t = view_of(r, s, u.head);
        bool whole = true;
        for (uint32_t page = 0; whole && page < s.block_pages; page++)
            whole = r.pages.marks[tile_of(r, t, u.block * s.block_pages + page, u.head)] == u.mark;
        if (!whole) continue;
        uint16_t *out = vectors_of(r, tile_of(r, t, u.block * s.block_pages, u.head));
        for (uint32_t d = threadIdx.x; d < r.pages.head_dim; d += blockDim.x)
            represent<KV>(r, s, t, u.head, u.block, d, &out[d], &out[r.pages.head_dim + d]);
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* One of the 16 chains of a score, by the representative beside the block's first page. */
static DEVICE float chain_of(const gpu_retrieval &r, const gpu_sparse_row &s, const uint16_t *v,
                             const float *folded)
{
    uint32_t n = r.pages.head_dim * (s.kind == GPU_REPRESENT_BOX ? 2 : 1);
    uint16_t values[2 * DIM_MOST / LANES];
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 2 * DIM_MOST / LANES; i++)
        values[i] = i * LANES < n ? v[i * LANES + threadIdx.x % LANES] : 0;
#pragma unroll
    for (uint32_t i = 0; i < 2 * DIM_MOST / LANES; i++)
        if (i * LANES < n)
            sum = fmaf(folded[i * LANES + threadIdx.x % LANES], to_float(bf16{values[i]}), sum);
    return sum;
}

/* The same where the representative is another block's. */
template <class KV>
static DEVICE float chain_of_keys(const gpu_retrieval &r, const gpu_sparse_row &s,
                                  const table_view &t, uint32_t head, uint32_t block,
                                  const float *folded)
{
    uint32_t n = r.pages.head_dim * (s.kind == GPU_REPRESENT_BOX ? 2 : 1);
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t d = threadIdx.x % LANES; d < n; d += LANES) {
        uint16_t values[2];
        represent<KV>(r, s, t, head, block, d % r.pages.head_dim, &values[0], &values[1]);
        sum = fmaf(folded[d], to_float(bf16{values[d >= r.pages.head_dim]}), sum);
    }
    return sum;
}

/* Half a warp scores a block. */
template <class KV>
static __global__ void __launch_bounds__(LIST_THREADS) score_kernel(gpu_retrieval r)
{
    __shared__ float folded[2 * DIM_MOST];
    const gpu_sparse_row s = r.rows[blockIdx.z];
    uint32_t head = blockIdx.y, dim = r.pages.head_dim, half = threadIdx.x / LANES;
    uint32_t block = s.first + (blockIdx.x * (LIST_THREADS / LANES) + half) * SCORED;
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) r.counts[1] = 0;
    if (!has_row(r, blockIdx.z, GPU_SELECTS)) return;
    const float *from = r.folded + ((size_t)blockIdx.z * r.kv_heads + head) * 2 * dim;
    for (uint32_t i = threadIdx.x; i < 2 * dim; i += LIST_THREADS) folded[i] = from[i];
    __syncthreads();
    const table_view t = view_of(r, s, head);
    uint32_t *out = r.scores + s.first_score + head * (s.end - s.first);
    for (uint32_t i = 0; i < SCORED; i++, block++) {
        bool there = block < s.end;
        bool scored = there && !is_left_out(r, s, head, block);
        uint32_t made = scored && is_made(r, s, t, head, block, threadIdx.x % LANES, LANES);
        for (int mask = LANES / 2; mask > 0; mask /= 2) made &= shuffle_xor(made, mask);
        float sum = 0.0f;
        if (made)
            sum = chain_of(r, s, vectors_of(r, tile_of(r, t, block * s.block_pages, head)), folded);
        else if (scored) sum = chain_of_keys<KV>(r, s, t, head, block, folded);
        sum = warp_fold<LANES>(sum, sum_of_two());
        if (there && threadIdx.x % LANES == 0) out[block - s.first] = bits_of_float(sum);
    }
}

/* ---- the selection --------------------------------------------------------------------------- */

/* A block of threads selects one list, ascending. */
static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(gpu_retrieval r)
{
    const gpu_sparse_row s = r.rows[blockIdx.y];
    uint32_t list = blockIdx.x, n = s.end - s.first, first_head = list * s.together;
    if (!has_row(r, blockIdx.y, GPU_SELECTS) || first_head >= r.kv_heads) return;
    uint32_t *keys = r.scores + s.first_score + first_head * n;
    for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS) {
        float sum = float_of_bits(keys[i]);
        for (uint32_t h = 1; h < s.together; h++) sum += float_of_bits(keys[h * n + i]);
        if (s.chosen && s.first + i >= s.n_known) sum *= s.late_weight;
        keys[i] = is_left_out(r, s, first_head, s.first + i) ? 0 : rank_key(sum);
    }
    __syncthreads();
    threshold least = {0xffffffffu, 0};
    if (n > 0) least = find_threshold(keys, n, s.top);
    uint32_t *out = r.blocks + s.first_list + list * s.room, ties = 0, done = 0, some;
    uint32_t n_blocks = (s.n_slots - 1) / (s.block_pages * r.pages.page_tokens) + 1;
    for (uint32_t from = 0; from < n_blocks; from += SELECT_THREADS) {
        uint32_t block = from + threadIdx.x;
        bool is_candidate = block >= s.first && block < s.end;
        uint32_t key = is_candidate ? keys[block - s.first] : 0;
        bool tied = is_candidate && key == least.key;
        uint32_t tie = ties + rank_among(tied, &some);
        ties += some;
        bool reads =
            block < n_blocks && (!is_candidate || key > least.key || (tied && tie < least.ties));
        uint32_t at = done + rank_among(reads, &some);
        done += some;
        if (reads) out[at] = block;
    }
}

/* The layer's kept lists of a row. */
static DEVICE uint32_t *kept_list(const gpu_retrieval &r, const gpu_sparse_row &s, uint32_t list)
{
    uint32_t lists = r.kv_heads / s.together;
    return s.kept + ((size_t)r.number * lists + list) * s.kept_room;
}

/* Gives a row the blocks of the row that it follows, and those that were begun since. */
static __global__ void follow_kernel(gpu_retrieval r)
{
    const gpu_sparse_row s = r.rows[blockIdx.y];
    uint32_t list = blockIdx.x;
    if (!has_row(r, blockIdx.y, GPU_FOLLOWS) || list * s.together >= r.kv_heads) return;
    const gpu_sparse_row *leader = s.leader == GPU_NO_ROW ? NULL : &r.rows[s.leader];
    const uint32_t *from =
        leader ? r.blocks + leader->first_list + list * leader->room : kept_list(r, s, list);
    uint32_t *out = r.blocks + s.first_list + list * s.room;
    for (uint32_t i = threadIdx.x; i < s.n_list; i += blockDim.x)
        out[i] = i < s.n_leader ? from[i] : s.added + i - s.n_leader;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The cells that a KV head of a row reads, in order: a table of GPU_GRAIN_LIST. A row that selected
 * keeps its list for those that follow it in later steps. */
static __global__ void gather_kernel(gpu_retrieval r)
{
    const gpu_sparse_row s = r.rows[blockIdx.y];
    uint32_t head = blockIdx.x, at = blockIdx.y * r.kv_heads + head, list = head / s.together;
    const table_view t = view_of(r, s, head);
    bool all = has_row(r, blockIdx.y, GPU_READS_ALL);
    const uint32_t *blocks = r.blocks + s.first_list + list * s.room;
    uint32_t size = s.block_pages * r.pages.page_tokens;
    uint32_t n = all ? (s.n_slots - 1) / size + 1 : s.n_list;
    uint32_t slots = (n - 1) * size + (s.n_slots - 1) % size + 1;
    uint32_t pages = (slots + r.pages.page_tokens - 1) / r.pages.page_tokens;
    uint32_t *out = r.pages_of + (size_t)at * r.page_stride;
    for (uint32_t i = threadIdx.x; i < pages; i += blockDim.x) {
        uint32_t block = all ? i / s.block_pages : blocks[i / s.block_pages];
        out[i] = t.pages[block * s.block_pages + i % s.block_pages] + t.cell;
    }
    if (threadIdx.x == 0) r.lengths_of[at] = slots;
    if (!s.keeps || !has_row(r, blockIdx.y, GPU_SELECTS) || head % s.together != 0) return;
    uint32_t *kept = kept_list(r, s, list);
    for (uint32_t i = threadIdx.x; i < s.n_list; i += blockDim.x) kept[i] = blocks[i];
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* Clears the marks of the pages that a sequence's last rows lie in, in one of its tables. */
static __global__ void unmark_kernel(gpu_pages p, gpu_tables tables, const gpu_seq *seqs,
                                     const uint32_t *lengths)
{
    const gpu_seq s = seqs[blockIdx.y];
    uint32_t groups = p.layer_groups * tables.head_groups, table = blockIdx.x;
    uint32_t n_tables = s.grain == GPU_GRAIN_ALL     ? 1
                        : s.grain == GPU_GRAIN_LAYER ? p.layer_groups
                                                     : groups;
    if (table >= n_tables) return;
    uint32_t layers = s.grain == GPU_GRAIN_ALL ? p.layer_groups : 1;
    uint32_t heads = s.grain == GPU_GRAIN_HEAD ? 1 : p.run_heads;
    uint32_t of_page = layers * heads * p.n_tiles, end = lengths[s.lengths + table];
    uint32_t from = (end - s.n_rows) / p.page_tokens, to = (end - 1) / p.page_tokens + 1;
    const uint32_t *pages = tables.pages + ((size_t)s.table + table) * tables.row;
    for (uint32_t i = threadIdx.x; i < (to - from) * of_page; i += blockDim.x) {
        uint32_t in = i % of_page, tile = in % p.n_tiles, cell = in / p.n_tiles;
        size_t at =
            pages[from + i / of_page] + (size_t)cell / heads * p.layer_stride + cell % heads;
        p.marks[at * p.n_tiles + tile] = 0;
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class KV> static void launch_selection(gpu *g, const gpu_retrieval *r)
{
    const uint32_t n = r->most_candidates, threads = LIST_THREADS;
    const uint32_t scored = LIST_THREADS / LANES * SCORED, makers = MAKERS_OF_SM * gpu_sms(g);
    if (n > 0) {
        LAUNCH(missing_kernel, dim3((n + threads - 1) / threads, r->kv_heads, r->n_rows), threads,
               0, g, *r);
        LAUNCH(claim_kernel, makers, threads, 0, g, *r);
        LAUNCH(make_kernel<KV>, makers, threads, 0, g, *r);
        LAUNCH(score_kernel<KV>, dim3((n + scored - 1) / scored, r->kv_heads, r->n_rows), threads,
               0, g, *r);
    }
    LAUNCH(select_kernel, dim3(r->kv_heads, r->n_rows), SELECT_THREADS, 0, g, *r);
}

gpu_status gpu_retrieve(gpu *g, const gpu_retrieval *r)
{
    if (r->n_rows == 0) return GPU_OK;
#define SELECT(KV) launch_selection<KV>(g, r)
    if (r->selects) FOR_KV(r->pages.format, SELECT)
#undef SELECT
    if (r->follows) LAUNCH(follow_kernel, dim3(r->kv_heads, r->n_rows), LIST_THREADS, 0, g, *r);
    if (r->gathers) LAUNCH(gather_kernel, dim3(r->kv_heads, r->n_rows), LIST_THREADS, 0, g, *r);
    return gpu_launched(g, "retrieval");
}

gpu_status gpu_unmark(gpu *g, const gpu_pages *pages, const gpu_tables *tables, const gpu_seq *seqs,
                      uint32_t n, const uint32_t *lengths)
{
    uint32_t most = pages->layer_groups * tables->head_groups;
    if (n) LAUNCH(unmark_kernel, dim3(most, n), LIST_THREADS, 0, g, *pages, *tables, seqs, lengths);
    return gpu_launched(g, "marks");
}

GPU_CODE(retrieve, missing_kernel)
