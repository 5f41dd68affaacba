/* kernels/cuda, private: the best of a list by a block of SELECT_THREADS threads, of equal ones the
 * first, as paged_kv/retention/rank.c selects. */
#ifndef KERNELS_CUDA_RANK_CUH
#define KERNELS_CUDA_RANK_CUH

#include "kernels/cuda/simt.cuh"

enum { SELECT_THREADS = 256 };

/* Larger scores have larger keys, both zeros one; NaN is below everything, and no key is 0. */
static DEVICE uint32_t rank_key(float score)
{
    if (score != score) return 1;
    if (score == 0.0f) score = 0.0f; /* -0 */
    uint32_t bits = bits_of_float(score);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* How many of the block's threads before this one say yes. *total: how many of all. */
static DEVICE uint32_t rank_among(bool yes, uint32_t *total)
{
    __shared__ uint32_t of_warp[SELECT_THREADS / WARP];
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t votes = warp_ballot(yes), before = count_bits(votes & ((1u << lane) - 1));
    __syncthreads(); /* the previous call's of_warp may still be read */
    if (lane == 0) of_warp[warp] = count_bits(votes);
    __syncthreads();
    *total = 0;
    for (unsigned w = 0; w < SELECT_THREADS / WARP; w++) {
        if (w < warp) before += of_warp[w];
        *total += of_warp[w];
    }
    return before;
}

/* The want-th greatest key, and how many of the keys equal to it are among the `want` greatest. */
struct threshold {
    uint32_t key, ties;
};

static DEVICE threshold find_threshold(const uint32_t *keys, uint32_t n, uint32_t want)
{
    __shared__ uint32_t bins[256];
    __shared__ threshold found;
    uint32_t known = 0;
    if (threadIdx.x == 0) found = threshold{0, want};
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += SELECT_THREADS) bins[i] = 0;
        __syncthreads();
        uint32_t so_far = found.key;
        for_each(keys, n, [&](uint32_t key, uint32_t) {
            if ((key & known) == so_far) atomicAdd(&bins[key >> shift & 255], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t bin = 255;
            for (; bin > 0 && bins[bin] < found.ties; bin--) found.ties -= bins[bin];
            found.key |= bin << shift;
        }
        known |= 255u << shift;
        __syncthreads();
    }
    return found;
}

#endif
