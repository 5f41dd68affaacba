/* Attention over pages in host memory on the CPU (private to model/). In a step that only decodes,
 * the pages that its rows read and do not write stay where they are (window.h). While the device
 * attends to the pages that it has, the CPU attends to the others, and both parts are merged by
 * their sums of exponentials. Each such layer waits for the device.
 *
 * Threads  the backend's one calls; the pool's threads compute. */
#ifndef MODEL_CUDA_FAR_H
#define MODEL_CUDA_FAR_H

#include "model/cuda/window.h"

typedef struct cuda_far cuda_far;

typedef struct cuda_far_options {
    cuda_device *device;
    cuda_window *window;
    const gpu_pages *pages; /* borrowed, as the next two */
    const model_config *config;
    thread_pool *pool;
    const char *isa;
    pkv_geometry geometry;
    uint32_t max_seqs;
} cuda_far_options;

status cuda_far_create(const cuda_far_options *options, cuda_far **out, error *err);
void cuda_far_destroy(cuda_far *f);

/* The step's shares have one row each; cuda_window_plan has planned it so. */
void cuda_far_start(cuda_far *f, const step_plan *plan);
/* Whether rows of this layer read pages that stay in host memory. */
bool cuda_far_has(const cuda_far *f, uint32_t layer);
/* Before the device's attention, once its queries are written: fetches them. */
status cuda_far_begin(cuda_far *f, const void *q);
/* After the device's attention was launched, with lse: makes its output that over all pages. */
status cuda_far_add(cuda_far *f, uint32_t layer, const gpu_attention *device_part);

#endif
