/* What tests ask of the GPU on the CPU (simt.h) beyond its table. */
#ifndef TESTS_SIMT_DEVICE_H
#define TESTS_SIMT_DEVICE_H

#include "kernels/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

gpu_api_fn octavo_cuda_api;
/* The device is lost at the launch or copy after so many; -1: never. */
void simt_fail_after(int launches);
/* Blocks of memory that nobody has released. */
uint64_t simt_allocations(void);

#ifdef __cplusplus
}
#endif
#endif
