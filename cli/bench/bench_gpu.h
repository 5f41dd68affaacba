/* The speed of a GPU (private to cli/): its limits, and its kernels beside them, through the
 * plugin's table (kernels/cuda/cuda_kernels.h).
 *
 * After the first failure every later call does nothing: times are NaN, allocations are NULL, and
 * bench_gpu_status returns that failure. */
#ifndef CLI_BENCH_BENCH_GPU_H
#define CLI_BENCH_BENCH_GPU_H

#include "base/base.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct bench_gpu {
    const gpu_api *api;
    gpu *g;
    gpu_facts facts;
    gpu_status state;    // the first failure
    size_t cold;         // bytes that no cache holds
    uint32_t divide;     // matrix sides are divided by it; 1 unless emulated
    uint32_t part_slots; // of a tile of attention; 0: what the backend takes
    uint32_t
        prefill_rows; // of a prefill tile of attention, which say the kernel; 0: of all that run
    rng random;
    double copy_gb_s, product_tflop_s; // set by bench_gpu_limits
    size_t side;                       // rows and columns of the large product's matrices
    void *buffers[5];                  // of bench_gpu_limits: two of `cold` bytes, then W, x, y
} bench_gpu;

/* Opens the device with a stream of its own, beside a backend's. */
status bench_gpu_open(const gpu_api *api, uint32_t ordinal, bench_gpu *out, error *err);
void bench_gpu_close(bench_gpu *b);

/* Measures the device's limits: bytes read and written by a copy, and a large product of the
 * library with matrices of `type`. */
status bench_gpu_limits(bench_gpu *b, gpu_type type, error *err);

/* Options of bench_gpu_kernels, which times each kernel on shapes of an 8B Llama and prints a line
 * for each. */
typedef struct bench_gpu_kernels_options {
    gpu_type type; // of the operands
    uint8_t bits;  // of the weights: 8, 4, or 0 for `type`
    bool is_float; // they are e4m3, with a scale for each 128 columns of a row
    gpu_kv_format kv;
    size_t most_rows;      // the largest number of rows in a product
    uint32_t part_slots;   // slots that a block of attention reads, or 0 for the usual number
    uint32_t prefill_rows; // of gpu_attention, or 0 for every kernel that runs here
    gpu_few few;           // 0 for the usual number
} bench_gpu_kernels_options;
status bench_gpu_kernels(bench_gpu *b, const bench_gpu_kernels_options *o, error *err);
/* A matrix of that many rows and columns, or of a part of both where the device is emulated, with
 * the options' weights. Its memory is the caller's to set. */
gpu_matrix bench_gpu_shape(const bench_gpu *b, const bench_gpu_kernels_options *o, size_t n,
                           size_t k);
/* Times sparse layers, as a part of bench_gpu_kernels (bench_gpu_experts.c). */
void bench_gpu_experts(bench_gpu *b, const bench_gpu_kernels_options *o);
/* Times a layer of a decode step as a graph (bench_gpu_layer.c). */
void bench_gpu_layer(bench_gpu *b, const bench_gpu_kernels_options *o);

/* ---- shared by both -------------------------------------------------------------------------- */

static inline bool bench_gpu_is_well(const bench_gpu *b) { return b->state == GPU_OK; }
void bench_gpu_note(bench_gpu *b, gpu_status s);
status bench_gpu_status(const bench_gpu *b, error *err);
/* Allocates device memory; NULL after a failure. `noise` fills it with random numbers, so that
 * nothing is zero; none of their bytes is a NaN of e4m3. */
void *bench_gpu_alloc(bench_gpu *b, size_t bytes, bool noise);
void *bench_gpu_send(bench_gpu *b, const void *host, size_t bytes);
void bench_gpu_release(bench_gpu *b, void *const *device, size_t n);

/* Makes call number i, counting from 0. bench_gpu_time returns the microseconds of one call, as the
 * mean of n; an emulated device makes one call. */
typedef void bench_gpu_call(void *ctx, size_t i);
double bench_gpu_time(bench_gpu *b, bench_gpu_call *fn, void *ctx, size_t n);

#endif
