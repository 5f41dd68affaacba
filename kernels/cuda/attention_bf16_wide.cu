/* Prefill attention with wgmma over pages of bf16. */
#include "kernels/cuda/attention_wide.cuh"

gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, bf16) { return attend_wide<bf16>(g, a); }

GPU_CODE(attention_bf16_wide, wide_kernel<bf16, 128>)
