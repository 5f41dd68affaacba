/* Attention over pages of int8. */
#include "kernels/cuda/attention.cuh"

gpu_status gpu_attend_int8(gpu *g, const gpu_attention *a) { return attend<i8>(g, a); }

GPU_CODE(attention_int8, merge_kernel<128>)
