/* Prefill attention with wgmma over pages of int8. */
#include "kernels/cuda/attention_wide.cuh"

gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, i8) { return attend_wide<i8>(g, a); }

GPU_CODE(attention_int8_wide, wide_kernel<i8, 128>)
