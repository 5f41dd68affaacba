/* What the checks of GPU kernels share: numbers, device arrays, one row of the table for each case.
 */
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
    uint32_t n_sms;
    bool small; /* shapes for slow tools: compute-sanitizer, a GPU that is a CPU */
    unsigned n, n_failed;
} check;

/* A failure of the device or of memory ends the program. */
void check_ok(check *c, gpu_status s);
void *check_device(check *c, const void *host, size_t bytes); /* NULL host: zeros */
void check_fetch(check *c, void *host, const void *device, size_t bytes);
void *check_memory(size_t n, size_t size);

void check_fill(check *c, float *x, size_t n); /* normal */
/* x in `type`, and back. */
void check_narrow(const float *x, size_t n, gpu_type type, void *out);
void check_widen(const void *x, size_t n, gpu_type type, float *out);
float check_e4m3(float x); /* rounded to it */

/* One row: the mean squared difference over the mean square of what is due, and its limit. */
void check_row(check *c, const char *name, const float *due, const float *got, size_t n,
               double limit);

/* W on the device, and what it stands for. */
typedef struct weights {
    kern_matrix cpu;
    gpu_matrix gpu;
    float *values; /* [n, k] */
} weights;

/* Into memory on the device, or with `at` NULL into its own. */
weights check_weights(check *c, size_t n, size_t k, dtype type, unsigned bits,
                      const gpu_matrix *at);
void check_forget_weights(check *c, weights *w, bool device);

void check_rows(check *c);
void check_products(check *c);
void check_pages(check *c);
void check_sample(check *c);

#endif
