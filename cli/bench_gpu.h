/* The speed of a GPU (private to cli/): its limits, and its kernels beside them, through the
 * plugin's table (kernels/cuda/cuda_kernels.h).
 *
 * After the first failure nothing is done any more: times are NaN, and whoever asks gets a status.
 */
#ifndef CLI_BENCH_GPU_H
#define CLI_BENCH_GPU_H

#include "base/base.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct bench_gpu {
    const gpu_api *api;
    gpu *g;
    gpu_facts facts;
    gpu_status state; // the first failure
    size_t cold;      // bytes that no cache holds
    uint32_t divide;  // shapes are so many times smaller: on an emulated device, not 1
    rng random;
    double copy_gb_s, product_tflop_s; // of bench_gpu_limits
    size_t side;                       // of the large product
    void *buffers[5];                  // of the limits: two of `cold` bytes, and W, x, y
} bench_gpu;

/* A gpu of its own on the device, beside a backend's. */
status bench_gpu_open(const gpu_api *api, uint32_t ordinal, bench_gpu *out, error *err);
void bench_gpu_close(bench_gpu *b);

/* What the device can do: bytes read and written by a copy, and a large product with matrices of
 * `type` by the library. */
status bench_gpu_limits(bench_gpu *b, gpu_type type, error *err);

/* The kernels on shapes of an 8B Llama, a line for each. */
typedef struct bench_gpu_kernels_options {
    gpu_type type; // of operands
    uint8_t bits;  // of weights: 8, 4, or 0 for `type`
    gpu_kv_format kv;
    size_t most_rows; // of a product
} bench_gpu_kernels_options;
status bench_gpu_kernels(bench_gpu *b, const bench_gpu_kernels_options *o, error *err);

/* ---- what both are made of --------------------------------------------------------------------
 */

static inline bool bench_gpu_is_well(const bench_gpu *b) { return b->state == GPU_OK; }
void bench_gpu_note(bench_gpu *b, gpu_status s);
status bench_gpu_status(const bench_gpu *b, error *err);
/* NULL after a failure. `noise`: random numbers, no zeros; none of their bytes is a NaN of e4m3. */
void *bench_gpu_alloc(bench_gpu *b, size_t bytes, bool noise);
void *bench_gpu_send(bench_gpu *b, const void *host, size_t bytes);
void bench_gpu_release(bench_gpu *b, void *const *device, size_t n);

/* Microseconds of one of n calls, i counting from 0; on an emulated device one is enough. */
typedef void bench_gpu_call(void *ctx, size_t i);
double bench_gpu_time(bench_gpu *b, bench_gpu_call *fn, void *ctx, size_t n);

#endif
