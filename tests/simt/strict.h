/* Checks each memory access of a kernel, as compute-sanitizer does on a GPU. Kernels are compiled
 * with -fsanitize=thread, so that the compiler reports every access; its runtime is not linked, and
 * strict.cc receives the reports.
 *
 *     memory   device allocations to the byte, the launch's shared memory, the thread's own
 *              stack, the arguments; no other memory of the host
 *     races    two threads of a block without a barrier in between (an exchange within a warp is
 *              none), or two blocks of a launch, one of them writing; atomics do not race with
 *              each other
 *     shared   memory that is read before the block has written it */
#ifndef TESTS_SIMT_STRICT_H
#define TESTS_SIMT_STRICT_H

#include "kernels/cuda/simt.cuh"

/* The state of simt.cc. Phases count barriers, blocks and launches: an access of this block since
 * its last barrier has phase `now`, one of this block has `block` or above, one of this launch
 * `launch` or above. */
struct simt_view {
    const simt_job *job; /* NULL: the host runs */
    const std::function<void()> *body;
    const unsigned char *stack;
    size_t stack_bytes;
    uint32_t launch, block, now;
};
extern simt_view simt_seen;
/* Whether this thread of the host runs kernels now. Others may meanwhile prepare launches. */
extern thread_local bool simt_here;

/* Device memory: zeroed, aligned as cudaMalloc aligns. */
void *simt_alloc(size_t bytes);
void simt_free(void *p);

#endif
