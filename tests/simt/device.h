/* Controls of the emulated GPU (simt.h) for tests, beyond the kernel table. */
#ifndef TESTS_SIMT_DEVICE_H
#define TESTS_SIMT_DEVICE_H

#include "kernels/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

gpu_api_fn octavo_cuda_api;
/* The device is lost at the launch or copy after this many; -1: never. */
void simt_fail_after(int launches);
/* Sets a block's shared memory; 163 KB by default. */
void simt_have_shared(size_t bytes);
/* Sets how many multiprocessors the devices have that are opened from now on; 2 by default. */
void simt_have_sms(uint32_t n);
/* A device's clock counts nothing of the host. What copies on the device and kernels ask for takes
 * the time of SIMT_GB_S, matrix instructions and the library's products that of SIMT_TFLOP_S, near
 * what an H100 reaches, and a launch as long as the longer of both. The emulator does not see plain
 * loads and stores: each thread of a launch stands for SIMT_THREAD_BYTES of them. Copies over the
 * bus take the time of SIMT_BUS_GB_S. A launch that is only counted takes the time of its
 * threads. */
enum { SIMT_GB_S = 3000, SIMT_TFLOP_S = 350, SIMT_BUS_GB_S = 50, SIMT_THREAD_BYTES = 16 };
/* Sets how much free memory the devices say that they have that are opened from now on; 1 GB by
 * default. */
void simt_have_memory(uint64_t bytes);
/* Sets the compute capability of the devices that are opened from now on; 80 by default. */
void simt_have_compute(uint32_t capability);
/* Whether launches and copies are done only when they are waited for, which shows pinned memory
 * that the host writes or reads too early. */
void simt_be_late(int late);
/* Whether kernels are counted but do nothing from now on, for tests of the host's work alone. */
void simt_be_idle(int idle);
/* Where launches are late: whether copies on lanes of their own are done as soon as what they wait
 * for allows, instead of when the stream waits for them. */
void simt_copy_early(int early);
/* Which captures fail from now on: none, all, those of every second gpu that is opened, or all, but
 * only when they end. */
enum { SIMT_REFUSE_NONE, SIMT_REFUSE_ALL, SIMT_REFUSE_SOME, SIMT_REFUSE_AT_END };
void simt_refuse_captures(int which);
/* Which gpus share no memory from now on, likewise. */
void simt_refuse_shares(int which);
/* library.cc: whether the library refuses all products of e4m3 when it is asked for a shape, as
 * SIMT_REFUSE_ALL says, and how many were asked for so far. */
void simt_refuse_narrow(int which);
uint64_t simt_narrow_products(void);
/* Sets what the library says of a device when it is opened. */
void simt_probe_narrow(const gpu *g, gpu_facts *facts);
/* Whether there are algorithms of the library to time from now on. */
void simt_time_library(int on);
/* What all emulated GPUs were asked for so far. A launch that is captured counts once, whatever is
 * replayed. */
typedef struct simt_counts {
    uint64_t launches;
    uint64_t early; /* launches of kernels that may start before the one in front has ended */
    uint64_t captures, replays;
    uint64_t collectives; /* calls of a library on the stream, counted as launches are */
    /* Between host and device, on the stream. */
    uint64_t copies_in, bytes_in, copies_out, bytes_out;
    uint64_t waits;             /* of the host for the device */
    uint64_t settled;           /* products whose algorithms were to be timed */
    uint64_t timed, timed_rows; /* products by the library meanwhile, and their rows */
} simt_counts;
simt_counts simt_counted(void);
/* Number of blocks of memory that were not released, and of those of other processes that are
 * mapped. */
uint64_t simt_allocations(void);
uint64_t simt_mapped(void);

#ifdef __cplusplus
}
#endif
#endif
