/* Sparse layers on the GPU (private to model/): the steps of model/cpu/experts.c as kernels. */
#ifndef MODEL_CUDA_EXPERTS_H
#define MODEL_CUDA_EXPERTS_H

#include "model/cuda/cuda.h"

typedef struct cuda_experts cuda_experts;

status cuda_experts_create(cuda_device *d, const model_config *c, const cuda_weights *w,
                           uint32_t max_rows, cuda_experts **out);
void cuda_experts_destroy(cuda_experts *e);

/* A sparse layer's rows. `normed` is x after its norm, as operands of `type`. */
typedef struct cuda_expert_rows {
    uint32_t n;
    float *x;
    const void *normed;
    gpu_type type;
    void *wide, *act; /* scratch of the shared expert: [n, 2 ffn] and [n, ffn] */
    void *scratch;    /* scratch of the largest product */
    float *out;       /* [n, hidden] */
} cuda_expert_rows;

status cuda_experts_run(cuda_experts *e, const cuda_layer *w, const cuda_expert_rows *rows);

#endif
