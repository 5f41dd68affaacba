/* Shared by the checks of GPU kernels: random numbers, device arrays, and one output row per
 * case. */
#ifndef TESTS_CUDA_CHECK_H
#define TESTS_CUDA_CHECK_H

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"
#include "kernels/measure.h"

typedef struct check {
    const gpu_api *api;
    gpu *g;
    kern_context *ref;
    thread_pool *pool;
    rng random;
    uint32_t n_sms, compute;
    bool narrow_rows, narrow_groups; /* of gpu_facts */
    bool small; /* shapes for slow tools: compute-sanitizer, a GPU that is a CPU */
    unsigned n, n_failed;
} check;

/* An error of the device, or no memory, ends the program. */
void check_ok(check *c, gpu_status s);
void *check_device(check *c, const void *host, size_t bytes); /* host NULL: zeros */
/* Memory for results and scratch, filled with NaN, so that an element that a kernel does not write
 * is seen, and one that it reads before. */
void *check_output(check *c, size_t bytes);
void check_fetch(check *c, void *host, const void *device, size_t bytes);
void *check_memory(size_t n, size_t size);

void check_fill(check *c, float *x, size_t n); /* normally distributed */
/* Rounds x to `type` into out; check_widen converts back. */
void check_narrow(const float *x, size_t n, gpu_type type, void *out);
void check_widen(const void *x, size_t n, gpu_type type, float *out);
float check_e4m3(float x); /* x rounded to e4m3 */
/* Rounds x [m, k] as products of e4m3 by e4m3 do: to e4m3 times a scale for each row, or for each
 * `group` columns of one. */
void check_round_rows(float *x, size_t m, size_t k, size_t group);

/* Prints one row: mean squared error over the mean square of the expected values, and its limit. */
void check_row(check *c, const char *name, const float *due, const float *got, size_t n,
               double limit);

/* A weight matrix on the device, and its values as f32. */
typedef struct weights {
    kern_matrix cpu;
    gpu_matrix gpu;
    float *values; /* [n, k] */
} weights;

/* How weights lie: `bits` 0: as `type`; 8 and 4: integers, or e4m3 floats, with a scale for each
 * row and `group` columns; 0: all columns, of floats alone. */
typedef struct check_form {
    dtype type;
    uint8_t bits, group;
    bool is_float;
} check_form;

/* Packs the weights into device memory at `at`, or into memory of their own with `at` NULL. */
weights check_weights(check *c, size_t n, size_t k, check_form form, const gpu_matrix *at);
void check_forget_weights(check *c, weights *w, bool device);
gpu_matrix check_matrix(size_t n, size_t k, check_form form); /* without data */
/* due [m, n] = x [m, k] * W^T. */
void check_product_due(const weights *w, const float *x, size_t m, float *due);

void check_rows(check *c);
void check_products(check *c);
void check_narrows(check *c);
void check_experts(check *c);
void check_pages(check *c);
void check_wide(check *c);
void check_sample(check *c);
void check_retrieve(check *c);
void check_ranks(check *c);
void check_early(check *c);

#endif
