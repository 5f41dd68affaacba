/* Attention over pages of fp8 e4m3. */
#include "kernels/cuda/attention.cuh"

gpu_status gpu_attend_e4m3(gpu *g, const gpu_attention *a) { return attend<e4m3>(g, a); }

GPU_CODE(attention_e4m3, merge_kernel<128>)
