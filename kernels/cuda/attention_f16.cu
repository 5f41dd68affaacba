/* Attention over pages of f16. */
#include "kernels/cuda/attention.cuh"

gpu_status gpu_attend_f16(gpu *g, const gpu_attention *a) { return attend<f16>(g, a); }

GPU_CODE(attention_f16, merge_kernel<128>)
