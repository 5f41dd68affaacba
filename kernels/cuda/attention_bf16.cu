/* Attention over pages of bf16. */
#include "kernels/cuda/attention.cuh"

gpu_status gpu_attend_bf16(gpu *g, const gpu_attention *a) { return attend<bf16>(g, a); }

GPU_CODE(attention_bf16, merge_kernel<128>)
