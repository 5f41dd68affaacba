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
/* What a block may have; 163 KB otherwise. */
void simt_have_shared(size_t bytes);
/* Whether launches and copies are done only when somebody waits: what the host writes into pinned
 * memory too early, or reads from it, shows. Not with a library that adds up at once. */
void simt_be_late(int late);
/* Whether captures fail from now on, and how many graphs have been replayed. */
void simt_refuse_captures(int refuse);
uint64_t simt_replays(void);
/* Blocks of memory that nobody has released. */
uint64_t simt_allocations(void);

#ifdef __cplusplus
}
#endif
#endif
