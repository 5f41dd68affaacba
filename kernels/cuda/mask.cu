/* Masks of tokens over logits. */
#include "kernels/cuda/simt.cuh"

enum { MASK_THREADS = 256 };

/* A warp has as many words as lanes, one at a time, and a lane a token of it, so that stores are
 * side by side. One row of blocks for each row of logits. word: the first that has tokens here. */
static __global__ void __launch_bounds__(MASK_THREADS)
    mask_kernel(float *logits, uint32_t n, uint32_t first_token, const uint32_t *masks,
                const uint32_t *words, uint32_t n_words, uint32_t word)
{
    await_previous();
    uint32_t lane = threadIdx.x % WARP, warps = MASK_THREADS / WARP, mask = masks[blockIdx.y];
    if (mask == 0) return;
    float *row = logits + (size_t)blockIdx.y * n;
    const uint32_t *mine = words + mask - 1;
    uint32_t warp = blockIdx.x * warps + threadIdx.x / WARP;
    for (uint32_t w = word + warp * WARP, end = w + WARP; w < end && w < n_words; w++) {
        uint32_t at = w * 32 + lane - first_token; /* wraps for tokens before the first one */
        if (at < n && !(mine[w] >> lane & 1)) row[at] = -INFINITY;
    }
}

gpu_status gpu_mask(gpu *g, float *logits, size_t n, uint32_t first_token, const uint32_t *masks,
                    size_t m, const uint32_t *words, size_t n_words)
{
    uint32_t word = first_token / 32;
    size_t some = (first_token + n + 31) / 32 - word;
    dim3 grid((unsigned)((some + MASK_THREADS - 1) / MASK_THREADS), (unsigned)m);
    if (m)
        LAUNCH_EARLY(mask_kernel, grid, MASK_THREADS, 0, g, logits, (uint32_t)n, first_token, masks,
                     words, (uint32_t)n_words, word);
    return gpu_launched(g, "mask");
}

GPU_CODE(mask, mask_kernel)
