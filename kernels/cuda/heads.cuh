/* kernels/cuda, private: a head in the registers of a warp, from the qkv product to rotation. */
#ifndef KERNELS_CUDA_HEADS_CUH
#define KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/simt.cuh"

enum { PAIRS = 4 }; /* pairs of a lane: head_dim <= 256 */

/* Both halves of a lane's pairs: elements i and i + half, for i = lane, lane + WARP, ... */
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

static DEVICE void rotate_head(head_pairs *v, const float *angles, uint32_t half, unsigned lane)
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

#endif
