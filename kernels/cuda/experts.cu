/* A sparse layer: routes rows to experts, sorts them by expert into tiles, multiplies, and adds up
 * the results. How many rows an expert has is known on the device alone: the number of launched
 * tiles is the most that any distribution has, and the rest of them end at once. */
#include "kernels/cuda/narrow.cuh"

enum {
    ROUTE_THREADS = 128,
    SORT_THREADS = 256,
    LANE_EXPERTS = GPU_EXPERTS_MOST / WARP,
    FEW_ROWS = 32, /* of a tile of few.cu */
};

/* ---- routing --------------------------------------------------------------------------------- */

/* A lane's experts are j * WARP + lane. The key of a chosen expert is -2, of a NaN -1. */
struct lane_experts {
    float p[LANE_EXPERTS], key[LANE_EXPERTS];
};

static DEVICE void probabilities(const float *logits, uint32_t n, lane_experts *v)
{
    unsigned lane = threadIdx.x % WARP;
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++) {
        uint32_t i = j * WARP + lane;
        v->p[j] = i < n ? logits[i] : -INFINITY;
        max = fmaxf(max, v->p[j]);
    }
    max = warp_fold(max, larger_of_two());
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++) {
        uint32_t i = j * WARP + lane;
        if (i < n) sum += v->p[j] = expf(v->p[j] - max);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++) {
        uint32_t i = j * WARP + lane;
        v->p[j] /= sum;
        v->key[j] = i >= n ? -3.0f : v->p[j] >= 0.0f ? v->p[j] : -1.0f;
    }
}

/* Sets the warp's largest key to -2; of equal keys, the one of the lowest index. */
static DEVICE void choose_one(lane_experts *v)
{
    unsigned lane = threadIdx.x % WARP;
    float best = -4.0f;
    uint32_t at = 0;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++)
        if (v->key[j] > best) {
            best = v->key[j];
            at = j * WARP + lane;
        }
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        float other = shuffle_xor(best, mask);
        uint32_t other_at = shuffle_xor(at, mask);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++)
        if (at == j * WARP + lane) v->key[j] = -2.0f;
}

/* A warp routes a row: writes its experts, ascending, and their weights. */
static __global__ void route_kernel(gpu_experts e, uint32_t *chosen, float *weights)
{
    await_previous();
    uint32_t row = blockIdx.x * (ROUTE_THREADS / WARP) + threadIdx.x / WARP;
    unsigned lane = threadIdx.x % WARP;
    if (row >= e.n_rows) return; /* the whole warp */
    lane_experts v;
    probabilities(e.logits + (size_t)row * e.n_experts, e.n_experts, &v);
    for (uint32_t k = 0; k < e.of_row; k++) choose_one(&v);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++)
        if (v.key[j] == -2.0f) sum += v.p[j];
    sum = e.norm ? warp_sum(sum) : 1.0f;
    uint32_t before = 0;
#pragma unroll
    for (int j = 0; j < LANE_EXPERTS; j++) {
        uint32_t taken = warp_ballot(v.key[j] == -2.0f);
        if (v.key[j] == -2.0f) {
            size_t at = (size_t)row * e.of_row + before + count_bits(taken & ((1u << lane) - 1));
            chosen[at] = j * WARP + lane;
            weights[at] = v.p[j] / sum;
        }
        before += count_bits(taken);
    }
}

/* ---- by experts ------------------------------------------------------------------------------ */

/* The entries to sort; entry i belongs to row i / of_row. */
struct sorting {
    const uint32_t *chosen;
    const float *weights;
    uint32_t entries, of_row, n_experts, tile_rows, n_tiles;
    uint32_t *rows, *places;
    float *shares;
    gpu_expert_tile *tiles;
};

/* Counts the entries and tiles of the experts before `expert`. Every warp does the same. */
static DEVICE void count_before(const uint32_t *counts, uint32_t expert, uint32_t tile_rows,
                                uint32_t *entries, uint32_t *tiles)
{
    uint32_t n = 0, t = 0;
    for (uint32_t i = threadIdx.x % WARP; i < expert; i += WARP) {
        n += counts[i];
        t += (counts[i] + tile_rows - 1) / tile_rows;
    }
    *entries = warp_fold(n, sum_of_two());
    *tiles = warp_fold(t, sum_of_two());
}

/* One block for each expert: it counts all entries, and places its own in their order. */
static __global__ void __launch_bounds__(SORT_THREADS) sort_kernel(sorting s)
{
    await_previous();
    __shared__ uint32_t counts[GPU_EXPERTS_MOST], of_warp[SORT_THREADS / WARP];
    uint32_t expert = blockIdx.x, at, tiles;
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (uint32_t i = threadIdx.x; i < GPU_EXPERTS_MOST; i += SORT_THREADS) counts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s.entries; i += SORT_THREADS)
        atomicAdd(&counts[s.chosen[i]], 1u);
    __syncthreads();
    count_before(counts, expert, s.tile_rows, &at, &tiles);
    uint32_t mine = counts[expert], n = (mine + s.tile_rows - 1) / s.tile_rows;
    bool last = expert + 1 == s.n_experts;
    for (uint32_t i = threadIdx.x; i < n; i += SORT_THREADS) {
        uint32_t left = mine - i * s.tile_rows;
        s.tiles[tiles + i] = {expert, at + i * s.tile_rows,
                              left < s.tile_rows ? left : s.tile_rows};
    }
    for (uint32_t i = tiles + n + threadIdx.x; last && i < s.n_tiles; i += SORT_THREADS)
        s.tiles[i] = {0, 0, 0};
    for (uint32_t from = 0; from < s.entries; from += SORT_THREADS) {
        uint32_t i = from + threadIdx.x;
        bool is_mine = i < s.entries && s.chosen[i] == expert;
        uint32_t those = warp_ballot(is_mine), before = at;
        __syncthreads(); /* the last round's of_warp may still be read */
        if (lane == 0) of_warp[warp] = count_bits(those);
        __syncthreads();
        for (unsigned w = 0; w < SORT_THREADS / WARP; w++) {
            if (w < warp) before += of_warp[w];
            at += of_warp[w];
        }
        if (!is_mine) continue;
        before += count_bits(those & ((1u << lane) - 1));
        s.rows[before] = i / s.of_row;
        s.shares[before] = s.weights[i];
        s.places[i] = before;
    }
}

/* out of a row: its share of the shared expert's result, or 0, plus its experts' parts,
 * ascending. */
static __global__ void combine_kernel(gpu_experts e, size_t hidden, const uint32_t *places,
                                      const float *shares)
{
    await_previous();
    size_t row = blockIdx.x;
    float share = 0.0f;
    if (e.switches) share = 1.0f / (1.0f + expf(-e.switches[row]));
    for (size_t d = threadIdx.x; d < hidden; d += blockDim.x) {
        float sum = e.switches ? e.out[row * hidden + d] * share : 0.0f;
        for (uint32_t k = 0; k < e.of_row; k++) {
            uint32_t at = places[row * e.of_row + k];
            sum += shares[at] * e.part[at * hidden + d];
        }
        e.out[row * hidden + d] = sum;
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The pieces of scratch. */
struct cuts {
    uint32_t *chosen, *rows, *places;
    float *weights, *shares;
    gpu_expert_tile *tiles;
};

static cuts cut(const gpu_experts *e)
{
    size_t entries = (size_t)e->n_rows * e->of_row;
    cuts c;
    c.tiles = (gpu_expert_tile *)e->words;
    c.chosen = (uint32_t *)(c.tiles + gpu_expert_tiles(e->n_rows, e->of_row, e->n_experts));
    c.rows = c.chosen + entries;
    c.places = c.rows + entries;
    c.weights = (float *)(c.places + entries);
    c.shares = c.weights + entries;
    return c;
}

/* The tiles of a layer, and how they are multiplied. narrow: e4m3 by e4m3 where W allows it. */
struct tiling {
    gpu_experts_list list;
    uint32_t n_tiles, tile_rows;
    bool narrow;
};

/* Products of the tiles' entries, whose rows are among m rows of x, with W: many rows or few. */
static gpu_status multiply_tiles(gpu *g, const tiling &t, const gpu_matrix *w, const void *x,
                                 size_t m, void *y, gpu_type y_type, void *scratch)
{
    if (t.narrow && gpu_takes_narrow_experts(g, w))
        return gpu_narrow_experts(g, w, x, m, &t.list, t.n_tiles, y, y_type, scratch);
    if (t.tile_rows == GPU_GROUPED_ROWS)
        return gpu_grouped_product(g, w, x, &t.list, t.n_tiles, y, y_type);
    return gpu_few_experts(g, w, x, &t.list, t.n_tiles, t.tile_rows, y, y_type);
}

/* Scratch is what is written later, and then what is no longer read. */
static gpu_status run_tiles(gpu *g, const gpu_experts *e, tiling t, uint32_t entries)
{
    gpu_type type = e->gate_up.type;
    gpu_status s = multiply_tiles(g, t, &e->gate_up, e->x, e->n_rows, e->wide, type, e->part);
    if (s == GPU_OK) s = gpu_gate(g, e->wide, entries, e->down.k, false, e->act, type);
    t.list.rows = NULL;
    if (s == GPU_OK) s = multiply_tiles(g, t, &e->down, e->act, entries, e->part, GPU_F32, e->wide);
    return s;
}

/* The rows of a tile. In batch-invariant mode products of few rows take all: what they sum up does
 * not depend on the rows of an expert. */
static uint32_t rows_of_tile(const gpu *g, const gpu_experts *e, uint32_t entries)
{
    bool few = entries <= gpu_few_of(g).of_expert * e->n_experts || gpu_is_invariant(g);
    if (!few || !gpu_takes_few(&e->gate_up) || !gpu_takes_few(&e->down)) return GPU_GROUPED_ROWS;
    return entries <= 4 * e->n_experts ? 8 : FEW_ROWS;
}

gpu_status gpu_run_experts(gpu *g, const gpu_experts *e)
{
    uint32_t entries = e->n_rows * e->of_row;
    if (entries == 0) return GPU_OK;
    if (e->n_experts > GPU_EXPERTS_MOST || e->gate_up.type != e->down.type) return GPU_UNSUPPORTED;
    uint32_t tile_rows = rows_of_tile(g, e, entries);
    uint32_t n_tiles = (entries < e->n_experts ? entries : e->n_experts) + entries / tile_rows;
    cuts c = cut(e);
    LAUNCH_EARLY(route_kernel, (e->n_rows + ROUTE_THREADS / WARP - 1) / (ROUTE_THREADS / WARP),
                 ROUTE_THREADS, 0, g, *e, c.chosen, c.weights);
    sorting s = {c.chosen, c.weights, entries,  e->of_row, e->n_experts, tile_rows,
                 n_tiles,  c.rows,    c.places, c.shares,  c.tiles};
    LAUNCH_EARLY(sort_kernel, e->n_experts, SORT_THREADS, 0, g, s);
    gpu_status status = gpu_launched(g, "routing");
    bool narrow = tile_rows == GPU_GROUPED_ROWS &&
                  e->n_rows > gpu_narrow_experts_from(e->n_experts, e->of_row);
    if (status == GPU_OK)
        status = run_tiles(g, e, {{c.tiles, c.rows}, n_tiles, tile_rows, narrow}, entries);
    if (status != GPU_OK) return status;
    LAUNCH_EARLY(combine_kernel, e->n_rows, SORT_THREADS, 0, g, *e, e->down.n, c.places, c.shares);
    return gpu_launched(g, "sum of experts");
}

GPU_CODE(experts, route_kernel)
