/* Paged attention. Each format of KV has a file, because they take long to compile
 * (attention.cuh). */
#include "kernels/cuda/simt.cuh"

gpu_status gpu_attend(gpu *g, const gpu_attention *a)
{
    switch (a->pages.format) {
    case GPU_KV_BF16: return gpu_attend_bf16(g, a);
    case GPU_KV_F16: return gpu_attend_f16(g, a);
    case GPU_KV_INT8: return gpu_attend_int8(g, a);
    default: return gpu_attend_e4m3(g, a);
    }
}
