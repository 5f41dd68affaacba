/* The attention of a prompt's end says which blocks later selections are limited to, and which
 * keys stand for a block (docs/retrieval.md, section 4). */
#include "kernels/cuda/cuda_retrieval.h"
#include "kernels/cuda/rank.cuh"

static DEVICE uint32_t blocks_of(const gpu_observed &o) { return o.n_prompt / o.block_tokens; }

/* The mass of a block's slots and a quarter of a block on each side, ascending. */
static __global__ void pool_kernel(gpu_observed o)
{
    uint32_t n = blocks_of(o), block = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (block >= n) return;
    const float *mass = o.mass + (size_t)head * o.n_prompt;
    uint32_t more = o.block_tokens / 4, from = block * o.block_tokens, to = from + o.block_tokens;
    from -= from < more ? from : more;
    to += o.n_prompt - to < more ? o.n_prompt - to : more;
    float sum = 0.0f;
    for (uint32_t slot = from; slot < to; slot++) sum += mass[slot];
    o.pooled[(size_t)head * n + block] = sum;
}

/* Sets bit i of `bits` where yes says so, for i < n rounded up to whole words. */
template <class F> static DEVICE void write_bits(uint32_t n, uint32_t *bits, F yes)
{
    for (uint32_t from = 0; from < n; from += SELECT_THREADS) {
        uint32_t i = from + threadIdx.x, word = warp_ballot(yes(i));
        if (i % WARP == 0 && i < n) bits[i / WARP] = word;
    }
}

/* A block of threads marks the blocks that a run of KV heads leaves out. */
static __global__ void __launch_bounds__(SELECT_THREADS) preselect_kernel(gpu_observed o)
{
    uint32_t n = blocks_of(o), list = blockIdx.x, lists = o.kv_heads / o.together;
    uint32_t n_candidates = o.end - o.first;
    uint32_t *keys = o.keys + (size_t)list * o.together * o.n_prompt, ties = 0;
    uint32_t *bits = o.left_out + ((size_t)o.number * lists + list) * ((n + WARP - 1) / WARP);
    const float *pooled = o.pooled + (size_t)list * o.together * n;
    for (uint32_t i = threadIdx.x; i < n_candidates; i += SELECT_THREADS) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < o.together; h++) sum += pooled[h * n + o.first + i];
        keys[i] = rank_key(sum);
    }
    __syncthreads();
    threshold least = find_threshold(keys, n_candidates, o.n_left);
    write_bits(n, bits, [&](uint32_t block) {
        uint32_t some;
        bool is_candidate = block >= o.first && block < o.end;
        uint32_t key = is_candidate ? keys[block - o.first] : 0;
        bool tied = is_candidate && key == least.key;
        uint32_t tie = ties + rank_among(tied, &some);
        ties += some;
        return is_candidate && key <= least.key && !(tied && tie < least.ties);
    });
}

/* A block of threads marks the slots of a block whose keys stand for it. */
static __global__ void __launch_bounds__(SELECT_THREADS) choose_kernel(gpu_observed o)
{
    uint32_t n = o.block_tokens, block = blockIdx.x, head = blockIdx.y, ties = 0;
    size_t first = (size_t)head * o.n_prompt + (size_t)block * n;
    size_t number = ((size_t)o.number * o.kv_heads + head) * blocks_of(o) + block;
    uint32_t *keys = o.keys + first, *bits = o.chosen + number * ((n + WARP - 1) / WARP);
    for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS)
        keys[i] = rank_key(o.mass[first + i]);
    __syncthreads();
    threshold least = {0, n}; /* all slots */
    if (o.n_chosen < n) least = find_threshold(keys, n, o.n_chosen);
    write_bits(n, bits, [&](uint32_t slot) {
        uint32_t some, key = slot < n ? keys[slot] : 0;
        bool tied = slot < n && key == least.key;
        uint32_t tie = ties + rank_among(tied, &some);
        ties += some;
        return slot < n && (key > least.key || (tied && tie < least.ties));
    });
}

gpu_status gpu_observe(gpu *g, const gpu_observed *o)
{
    const uint32_t n = o->n_prompt / o->block_tokens, threads = 128;
    if (n == 0) return GPU_OK;
    if (o->n_left > 0) {
        LAUNCH(pool_kernel, dim3((n + threads - 1) / threads, o->kv_heads), threads, 0, g, *o);
        LAUNCH(preselect_kernel, o->kv_heads / o->together, SELECT_THREADS, 0, g, *o);
    }
    if (o->n_chosen > 0) LAUNCH(choose_kernel, dim3(n, o->kv_heads), SELECT_THREADS, 0, g, *o);
    return gpu_launched(g, "the prompt's end");
}

GPU_CODE(observe, pool_kernel)
