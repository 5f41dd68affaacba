/* Masks of tokens over logits. */
#include "kernels/cuda/simt.cuh"

enum { MASK_THREADS = 256 };

/* A warp has as many words as lanes, one at a time, and a lane a token of it, so that stores are
 * side by side. One row of blocks for each row of logits. */
static __global__ void __launch_bounds__(MASK_THREADS)
    mask_kernel(float *logits, uint32_t n, const uint32_t *rows, uint32_t first,
                const uint32_t *words)
{
    uint32_t n_words = (n + 31) / 32, lane = threadIdx.x % WARP;
    float *row = logits + (size_t)(rows[blockIdx.y] - first) * n;
    const uint32_t *mine = words + (size_t)blockIdx.y * n_words;
    uint32_t warps = MASK_THREADS / WARP, warp = blockIdx.x * warps + threadIdx.x / WARP;
    for (uint32_t w = warp * WARP, end = w + WARP; w < end && w < n_words; w++) {
        uint32_t token = w * 32 + lane;
        if (token < n && !(mine[w] >> lane & 1)) row[token] = -INFINITY;
    }
}

gpu_status gpu_mask(gpu *g, float *logits, size_t n, const uint32_t *rows, uint32_t first, size_t m,
                    const uint32_t *words)
{
    size_t n_words = (n + 31) / 32;
    dim3 grid((unsigned)((n_words + MASK_THREADS - 1) / MASK_THREADS), (unsigned)m);
    if (m) LAUNCH(mask_kernel, grid, MASK_THREADS, 0, g, logits, (uint32_t)n, rows, first, words);
    return gpu_launched(g, "mask");
}
