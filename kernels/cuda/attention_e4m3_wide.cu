/* Prefill attention with wgmma over pages of fp8 e4m3. */
#include "kernels/cuda/attention_wide.cuh"

gpu_status gpu_attend_wide(gpu *g, const gpu_attention *a, e4m3) { return attend_wide<e4m3>(g, a); }

GPU_CODE(attention_e4m3_wide, wide_kernel<e4m3, 128>)
