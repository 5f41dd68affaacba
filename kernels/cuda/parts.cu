/* Draws of ranks that have a part of the vocabulary each: from the parts that sample.cu makes, or
 * from whole rows, which are joined of all ranks' logits. */
#include "kernels/cuda/simt.cuh"

enum { PART_THREADS = 256, JOIN_THREADS = 256 };

/* The larger value; of equal ones the first rank's, whose tokens are lower. NaN never wins. */
static DEVICE void keep_better(float *value, uint32_t *token, float v, uint32_t t)
{
    bool wins = t != GPU_NO_TOKEN && (*token == GPU_NO_TOKEN || v > *value);
    if (!wins) return;
    *value = v;
    *token = t;
}

static __global__ void __launch_bounds__(PART_THREADS)
    decide_kernel(const gpu_part *parts, uint32_t ranks, size_t n, const gpu_draw *draws,
                  gpu_drawn *drawn)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || draws[i].row == GPU_NO_DRAW || !draws[i].by_parts) return;
    gpu_part best = {-INFINITY, GPU_NO_TOKEN, -INFINITY, GPU_NO_TOKEN, 0};
    for (uint32_t r = 0; r < ranks; r++) {
        const gpu_part p = parts[r * n + i];
        keep_better(&best.largest, &best.largest_token, p.largest, p.largest_token);
        keep_better(&best.drawn, &best.drawn_token, p.drawn, p.drawn_token);
        best.is_nan |= p.is_nan;
    }
    uint32_t token = best.drawn_token;
    if (token == GPU_NO_TOKEN) token = best.largest_token;
    gpu_drawn *out = drawn + draws[i].result;
    out->token = token == GPU_NO_TOKEN ? 0 : token; /* a row of NaN alone */
    out->undefined = !has_softmax(best.largest, best.is_nan);
    out->logprob = NAN;
    out->rank = out->n_top = 0;
}

/* Blocks along y are rows. */
static __global__ void __launch_bounds__(JOIN_THREADS)
    join_kernel(const float *parts, size_t slice, size_t vocab, float *out)
{
    size_t row = blockIdx.y, n = gridDim.y;
    size_t token = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= vocab) return;
    out[row * vocab + token] = parts[(token / slice * n + row) * slice + token % slice];
}

gpu_status gpu_decide(gpu *g, const gpu_part *parts, uint32_t ranks, size_t n,
                      const gpu_draw *draws, gpu_drawn *drawn)
{
    unsigned blocks = (unsigned)((n + PART_THREADS - 1) / PART_THREADS);
    if (n) LAUNCH(decide_kernel, blocks, PART_THREADS, 0, g, parts, ranks, n, draws, drawn);
    return gpu_launched(g, "decisions of draws");
}

gpu_status gpu_join(gpu *g, const float *parts, size_t n, size_t slice, size_t vocab, float *out)
{
    dim3 grid((unsigned)((vocab + JOIN_THREADS - 1) / JOIN_THREADS), (unsigned)n);
    if (n) LAUNCH(join_kernel, grid, JOIN_THREADS, 0, g, parts, slice, vocab, out);
    return gpu_launched(g, "joining of logits");
}

GPU_CODE(parts, join_kernel)
