/* kernels/cuda, private: products of e4m3 by e4m3. narrow.cu makes the operands; the library
 * multiplies them (library.cu, and on the CPU tests/simt/library.cc), and those of experts
 * grouped_narrow_wide.cu. */
#ifndef KERNELS_CUDA_NARROW_CUH
#define KERNELS_CUDA_NARROW_CUH

#include "kernels/cuda/simt.cuh"

/* y [m, n] = x [m, k] * w [n, k]^T, both e4m3, row by row and without gaps. n and k are multiples
 * of 16. Scales: w_scales [n] and x_scales [m], or by_group w_scales [groups][n] and x_scales
 * [groups][m] of groups of 128 columns, where m is a multiple of 4. */
struct gpu_floats {
    size_t n, k, m;
    bool by_group;
    const uint8_t *w, *x;
    const float *w_scales, *x_scales;
};

/* How the scales come into y. HERE: the library applies them. AFTER: a kernel multiplies the
 * library's result by them, which is possible with scales by row alone. NEVER: the library has no
 * such product. */
enum gpu_scaled { GPU_SCALED_NEVER, GPU_SCALED_AFTER, GPU_SCALED_HERE };

/* Says how gpu_library_floats goes with these addresses and shapes. Asks the library once for each
 * shape. */
gpu_scaled gpu_library_scales(gpu *g, const gpu_floats *f, const void *y, gpu_type y_type);
/* The product, with its scales applied if gpu_library_scales has said HERE. */
gpu_status gpu_library_floats(gpu *g, const gpu_floats *f, void *y, gpu_type y_type);

/* Whether gpu_narrow_product may be asked for W: set_narrow is on, and W's shape is one that the
 * library takes. */
static inline bool gpu_takes_narrow(gpu *g, const gpu_matrix *w)
{
    return gpu_is_narrow(g) && gpu_may_narrow(w);
}
/* gpu_product so. GPU_UNSUPPORTED: the library has no such product, and nothing was launched. */
gpu_status gpu_narrow_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                              gpu_type y_type, void *scratch);

/* ---- experts ---------------------------------------------------------------------------------
 * Rows of x are as long as those of W's tiles. Of every 32 columns, the first four of the eight
 * from 8 t on lie from byte 4 t on, the other four 16 bytes behind: a lane has those of W as they
 * are, and both operands have one order. A row's scales follow one another. */

/* Bytes of a row of x, and its scales, which fill whole pieces of 16 bytes. */
static GPU_INLINE size_t gpu_narrow_stride(const gpu_matrix *w) { return (w->k + 31) / 32 * 32; }
static GPU_INLINE size_t gpu_narrow_scales(const gpu_matrix *w)
{
    return (gpu_groups(w) + 3) / 4 * 4;
}

/* Whether gpu_narrow_experts may be asked for W. Batch-invariant mode has no such tiles. */
static inline bool gpu_takes_narrow_experts(gpu *g, const gpu_matrix *w)
{
    return gpu_is_narrow(g) && gpu_narrows_experts(gpu_compute(g), w);
}
/* Multiplies as gpu_grouped_product does, but e4m3 by e4m3. The entries' rows are among m rows of
 * x. 4 bytes of scratch for each element of these are enough. */
gpu_status gpu_narrow_experts(gpu *g, const gpu_matrix *w, const void *x, size_t m,
                              const gpu_experts_list *list, uint32_t n_tiles, void *y,
                              gpu_type y_type, void *scratch);

#endif
