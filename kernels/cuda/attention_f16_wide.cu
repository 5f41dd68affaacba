/* Prefill attention with wgmma over pages of f16. */
#include "kernels/cuda/attention_wide.cuh"

gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, f16) { return attend_wide<f16>(g, a); }

GPU_CODE(attention_f16_wide, wide_kernel<f16, 128>)
