/* Draws with limits, of ranks that have a part of the vocabulary each. The tokens that may be drawn
 * are those whose logit's key is at least some border. A short top_k needs a list of the likeliest
 * logits of each rank; otherwise rounds find the border, in each of which the ranks gather how many
 * tokens, or what mass, they have by the next bits of the keys. Each rank then draws from its own
 * tokens. One block for each draw. */
#include "kernels/cuda/draws.cuh"

enum { KEY_BITS = 8 };

/* The largest logit of all ranks. */
static DEVICE float find_largest(const gpu_joint &j)
{
    float largest = -INFINITY;
    for (uint32_t r = 0; r < j.ranks; r++)
        largest = fmaxf(largest, j.openings[(size_t)r * gridDim.x + blockIdx.x].largest);
    return largest;
}

static DEVICE const gpu_bins &bins_of(const gpu_joint &j, uint32_t rank)
{
    return j.bins[(size_t)rank * gridDim.x + blockIdx.x];
}

static DEVICE bool has_round(const gpu_draw &d, uint32_t round)
{
    return d.by_parts & GPU_KIND_OF_ROUND(round);
}

/* ---- many tokens ----------------------------------------------------------------------------- */

/* Takes over what all ranks found in the round before this one. */
static DEVICE void narrow(const gpu_joint &j, const gpu_draw &d, gpu_search *q)
{
    __shared__ u64 sums[GPU_BINS];
    __shared__ crossing found;
    uint32_t round = j.round - 1, digit = round % GPU_KEY_ROUNDS, bin = threadIdx.x;
    int shift = 32 - KEY_BITS * ((int)digit + 1);
    u64 sum = 0;
    for (uint32_t r = 0; bin < GPU_BINS && r < j.ranks; r++) sum += bins_of(j, r).of[bin];
    u64 total = block_total(sum);
    if (digit == 0) {
        q->before = q->key = 0;
        if (round >= GPU_KEY_ROUNDS) q->target = find_target(total, d.top_p);
        else q->target = d.top_k < total ? d.top_k : 0;
    }
    if (q->target == 0) return; /* the whole block */
    if (bin < GPU_BINS) sums[bin] = sum;
    if (threadIdx.x == 0) found = crossing{q->key, q->before};
    __syncthreads();
    u64 before = q->before;
    for (uint32_t i = bin + 1; i < GPU_BINS; i++) before += sums[i];
    if (bin < GPU_BINS && before < q->target && q->target <= before + sum)
        found = crossing{q->key | bin << shift, before};
    __syncthreads();
    q->key = found.key;
    q->before = found.before;
    if (round == GPU_KEY_ROUNDS - 1) q->least = q->key;
}

static __global__ void __launch_bounds__(DRAW_THREADS)
    bins_kernel(gpu_sampling s, gpu_joint j, gpu_bins *bins)
{
    __shared__ digits all;
    const gpu_draw d = s.draws[blockIdx.x];
    bool has_before = j.round > 0 && has_round(d, j.round - 1), has_this = has_round(d, j.round);
    if (d.row == GPU_NO_DRAW || (!has_before && !has_this)) return; /* the whole block */
    gpu_search q = {0, 0, 0, 0};
    if (has_before) {
        q = j.searches[blockIdx.x];
        narrow(j, d, &q);
    }
    if (threadIdx.x == 0) j.searches[blockIdx.x] = q;
    uint32_t digit = j.round % GPU_KEY_ROUNDS;
    int shift = 32 - KEY_BITS * ((int)digit + 1);
    if (!has_this || (digit && q.target == 0)) return; /* the whole block */
    for (uint32_t i = threadIdx.x; i < GPU_BINS; i += DRAW_THREADS) all.low[i] = all.high[i] = 0;
    __syncthreads();
    float largest = find_largest(j);
    const kept k = {largest + d.log_min_p, q.least, NO_TOKEN};
    bool weighs = j.round >= GPU_KEY_ROUNDS;
    for_each(s.scratch + (size_t)blockIdx.x * s.n_vocab, s.n_vocab, [&](float v, uint32_t i) {
        uint32_t key = key_of(v);
        if (!is_kept(k, v, i) || (digit && (key ^ q.key) >> (shift + KEY_BITS))) return;
        u64 weight = weighs ? mass_of(v, largest) : 1;
        if (weight) add_to_bin(all, key >> shift & (GPU_BINS - 1), weight);
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < GPU_BINS; i += DRAW_THREADS)
        bins[blockIdx.x].of[i] = bin_of(all, i);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* Keeps the tokens above a key, and of those that have it the first `need` of all ranks. The ranks
 * before this one have `earlier` of them, this one `own`. */
static DEVICE void keep_first(digits &all, const gpu_sampling &s, const float *x, uint32_t key,
                              u64 need, u64 earlier, u64 own, kept *k)
{
    u64 left = need > earlier ? need - earlier : 0;
    k->key = key;
    if (left < own) k->id = left ? s.first + find_index(all, x, s.n_vocab, key, left) : s.first - 1;
}

/* How many tokens of one mass it takes; the mass of a row that has no softmax may be 0. */
static DEVICE u64 count_needed(u64 mass, u64 each)
{
    return each ? (mass + each - 1) / each : mass;
}

static DEVICE void keep_found(digits &all, const gpu_sampling &s, const gpu_joint &j,
                              const gpu_draw &d, const float *x, float largest, kept *k)
{
    gpu_search q = j.searches[blockIdx.x];
    if (has_round(d, j.round - 1)) narrow(j, d, &q);
    k->key = q.least;
    if (!(d.by_parts & GPU_WEIGHED) || q.target == 0) return; /* the whole block */
    u64 each = mass_of(value_of(q.key), largest), earlier = 0;
    uint32_t bin = q.key % GPU_BINS;
    for (uint32_t r = 0; r < j.rank; r++) earlier += bins_of(j, r).of[bin];
    keep_first(all, s, x, q.key, count_needed(q.target - q.before, each),
               count_needed(earlier, each), count_needed(bins_of(j, j.rank).of[bin], each), k);
}

/* Calls f(logit, tokens that have it, rank) for the thread's part of all lists. */
template <class F> static DEVICE void each_listed(const gpu_joint &j, F f)
{
    for (uint32_t i = threadIdx.x; i < j.ranks * GPU_LIST_MOST; i += DRAW_THREADS) {
        uint32_t rank = i / GPU_LIST_MOST, at = i % GPU_LIST_MOST;
        const gpu_opening &o = j.openings[(size_t)rank * gridDim.x + blockIdx.x];
        uint32_t n = at == GPU_LIST_MOST - 1 ? o.n_last : at < o.n_above;
        if (n) f(o.list[at], n, rank);
    }
}

static DEVICE void keep_listed(digits &all, const gpu_sampling &s, const gpu_joint &j,
                               const gpu_draw &d, const float *x, float largest, kept *k)
{
    const kept in_reach = *k;
    u64 left = 0, total = 0, earlier = 0, own = 0;
    each_listed(j, [&](float v, uint32_t n, uint32_t) { left += is_kept(in_reach, v, 0) ? n : 0; });
    left = block_total(left);
    /* Lists that end before top_k have all tokens; one that has top_k may be followed by others. */
    if (d.top_k <= left)
        k->key = find_crossing(all, d.top_k, [&](auto add) {
                     each_listed(j, [&](float v, uint32_t n, uint32_t) {
                         if (is_kept(in_reach, v, 0)) add(key_of(v), n);
                     });
                 }).key;
    if (d.top_p >= 1.0f) return; /* the whole block */
    const kept before = *k;
    each_listed(j, [&](float v, uint32_t n, uint32_t) {
        if (is_kept(before, v, 0)) total += n * mass_of(v, largest);
    });
    u64 target = find_target(block_total(total), d.top_p);
    if (target == 0) return; /* the whole block */
    crossing c = find_crossing(all, target, [&](auto add) {
        each_listed(j, [&](float v, uint32_t n, uint32_t) {
            if (is_kept(before, v, 0)) add(key_of(v), n * mass_of(v, largest));
        });
    });
    each_listed(j, [&](float v, uint32_t n, uint32_t rank) {
        if (key_of(v) != c.key) return;
        earlier += rank < j.rank ? n : 0;
        own += rank == j.rank ? n : 0;
    });
    earlier = block_total(earlier);
    own = block_total(own);
    u64 need = count_needed(target - c.before, mass_of(value_of(c.key), largest));
    keep_first(all, s, x, c.key, need, earlier, own, k);
}

static __global__ void __launch_bounds__(DRAW_THREADS)
    limited_kernel(gpu_sampling s, gpu_joint j, gpu_part *parts)
{
    __shared__ digits all;
    const gpu_draw d = s.draws[blockIdx.x];
    if (d.row == GPU_NO_DRAW || !(d.by_parts & GPU_LIMITED)) return; /* the whole block */
    const float *x = s.scratch + (size_t)blockIdx.x * s.n_vocab;
    float largest = find_largest(j);
    kept k = {largest + d.log_min_p, 0, NO_TOKEN};
    if (d.by_parts & GPU_LISTED) keep_listed(all, s, j, d, x, largest, &k);
    else if (d.by_parts & (GPU_COUNTED | GPU_WEIGHED)) keep_found(all, s, j, d, x, largest, &k);
    best drawn = draw_token(x, s.first, s.n_vocab, d, k);
    if (threadIdx.x > 0) return;
    parts[blockIdx.x].drawn = drawn.value;
    parts[blockIdx.x].drawn_token = drawn.id;
}

gpu_status gpu_find_bins(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_bins *bins)
{
    if (s->n) LAUNCH(bins_kernel, s->n, DRAW_THREADS, 0, g, *s, *j, bins);
    return gpu_launched(g, "bins of draws");
}

gpu_status gpu_draw_kept(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_part *parts)
{
    if (s->n) LAUNCH(limited_kernel, s->n, DRAW_THREADS, 0, g, *s, *j, parts);
    return gpu_launched(g, "draws with limits");
}

GPU_CODE(limits, limited_kernel)
