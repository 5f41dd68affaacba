/* What a kernel may touch, judged access by access, as compute-sanitizer does on a GPU. Kernels are
 * compiled with -fsanitize=thread, so that the compiler tells every access; its runtime is not
 * linked, strict.cc is what it tells.
 *
 *     memory   allocations of the device to the byte, the launch's shared memory, the thread's own
 *              stack, the arguments; nothing else of the host's
 *     races    two threads of a block without a barrier in between (an exchange within a warp is
 *              none), or two blocks of a launch, one of them writing; atomics against each other
 *              are none
 *     shared   memory that is read before the block has written it */
#ifndef TESTS_SIMT_STRICT_H
#define TESTS_SIMT_STRICT_H

#include "kernels/cuda/simt.cuh"

/* Where simt.cc is. Phases count barriers, blocks and launches: an access of this block since its
 * last barrier has phase `now`, one of this block `block` or above, of this launch `launch`. */
struct simt_view {
    const simt_job *job; /* NULL: the host runs */
    const std::function<void()> *body;
    const unsigned char *stack;
    size_t stack_bytes;
    uint32_t launch, block, now;
};
extern simt_view simt_seen;

/* Memory of the device: zeros, aligned as cudaMalloc's. */
void *simt_alloc(size_t bytes);
void simt_free(void *p);

#endif
