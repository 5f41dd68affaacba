/* cuda_experts: a sparse layer's feed-forward on one GPU.
 *
 * What     the layer's matrices and scratch, and how much scratch there must be.
 * Owner    all memory is the caller's.
 * Threads  values and functions without state: any.
 * Units    bytes; elements for strides. Pointers are the device's. */
#ifndef KERNELS_CUDA_CUDA_EXPERTS_H
#define KERNELS_CUDA_CUDA_EXPERTS_H

#include "kernels/cuda/cuda_products.h"

enum { GPU_EXPERTS_MOST = 512 };

/* Whether experts with weights w can be multiplied e4m3 by e4m3 (set_narrow). */
static inline bool gpu_narrows_experts(uint32_t compute, const gpu_matrix *w)
{
    return compute == 90 && gpu_may_narrow(w);
}
/* Experts are multiplied so in steps of more rows than this: more than few.cu multiplies, and more
 * than products of dense layers keep in 16 bits. */
static inline size_t gpu_narrow_experts_from(size_t n_experts, size_t of_row)
{
    size_t few = GPU_FEW_OF_EXPERT * n_experts / of_row;
    return few > GPU_FEW_QUANT_ROWS ? few : (size_t)GPU_FEW_QUANT_ROWS;
}

/* Some entries of one expert. An entry is a row and one of its experts; entries are sorted by
 * expert. */
typedef struct gpu_expert_tile {
    uint32_t expert, first, n; /* n 0: an unused tile */
} gpu_expert_tile;

/* A sparse layer's feed-forward: softmax over the router's logits, the of_row largest (the lowest
 * index of equal ones), SwiGLU in each of those experts, and their weighted sum, by ascending
 * expert. An expert's matrices lie gpu_matrix_bytes behind those of the expert before it. */
typedef struct gpu_experts {
    const float *logits; /* [n_rows, n_experts] */
    uint32_t n_rows, n_experts, of_row;
    bool norm;                /* scales the weights of a row to add up to 1 */
    gpu_matrix gate_up, down; /* the first expert's */
    const void *x;            /* [n_rows, hidden] operands of gate_up */
    const float *switches;    /* [n_rows]: out holds the shared expert's result, whose weights
                                 are their sigmoids. NULL: out is overwritten. */
    float *out;               /* [n_rows, hidden] */
    /* Scratch of entries = n_rows * of_row, also for the rows of products of e4m3 by e4m3: */
    void *wide, *act; /* [entries, 2 ffn] and [entries, ffn] operands */
    float *part;      /* [entries, hidden] */
    uint32_t *words;  /* gpu_expert_words */
} gpu_experts;

/* The most tiles that n_rows rows can have. */
static inline size_t gpu_expert_tiles(size_t n_rows, size_t of_row, size_t n_experts)
{
    return n_experts + n_rows * of_row / 8 + 1;
}
static inline size_t gpu_expert_words(size_t n_rows, size_t of_row, size_t n_experts)
{
    return 3 * gpu_expert_tiles(n_rows, of_row, n_experts) + 5 * n_rows * of_row;
}

#endif
