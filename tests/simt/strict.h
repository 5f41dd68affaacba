/* Checks each memory access of a kernel, as compute-sanitizer does on a GPU. Kernels are compiled
 * with -fsanitize=thread, so that the compiler reports every access; its runtime is not linked, and
 * strict.cc receives the reports.
 *
 *     memory   device allocations to the byte, the launch's shared memory, the thread's own
 *              stack, the arguments; no other memory of the host
 *     races    two threads of a block without a barrier in between (an exchange within a warp is
 *              none), or two blocks of a launch, one of them writing; atomics do not race with
 *              each other
 *     shared   memory that is read before the block has written it
 *     ranks    reads and writes of memory that kernels of several ranks reach, where no flag puts
 *              one rank's access before the other's (ranks.cc)
 *     ahead    a kernel of LAUNCH_EARLY that touches memory before await_previous: it may read what
 *              a kernel of LAUNCH wrote last, as weights are, but nothing that such a kernel, the
 *              library or a copy wrote; nor may it read that by the read-only path behind the call,
 *              since the writer may have run when the reader began */
#ifndef TESTS_SIMT_STRICT_H
#define TESTS_SIMT_STRICT_H

#include "kernels/cuda/simt.cuh"

/* The state of simt.cc. Phases count barriers, blocks and launches: an access of this block since
 * its last barrier has phase `now`, one of this block has `block` or above, one of this launch
 * `launch` or above. Where kernels of other ranks ran meanwhile, that is so since they did. */
struct simt_view {
    const simt_job *job; /* NULL: the host runs */
    const std::function<void()> *body;
    const unsigned char *stack;
    size_t stack_bytes;
    bool ahead; /* the running thread is ahead of await_previous */
    uint32_t launch, block, now;
    const gpu *g;
    uint32_t launch_number, block_number; /* count all launches, and the blocks of this one */
};
extern simt_view simt_seen;
/* Whether this thread of the host runs kernels now. Others may meanwhile prepare launches. */
extern __thread bool simt_here;

#ifdef OCTAVO_SIMT_STRICT
/* A block begins, or goes on after kernels of other ranks; a block ends; a launch ends. */
void simt_block_runs(void);
void simt_block_ends(void);
void simt_launch_ends(void);
/* The library or a copy has written there. */
void simt_note_written(const void *p, size_t n);
/* Whether a flag puts a rank's write, of that phase and thread, before what this thread does. */
bool simt_may_read(uint32_t written, uint16_t writer);
/* This thread reads memory that other ranks may write. */
void simt_note_read(const void *p);
/* Whether flags put all such reads by other ranks before what this thread does now. */
bool simt_may_write(const void *p);
#else
inline void simt_block_runs(void) {}
inline void simt_block_ends(void) {}
inline void simt_launch_ends(void) {}
inline void simt_note_written(const void *, size_t) {}
#endif

/* Device memory: zeroed, aligned as cudaMalloc aligns. */
void *simt_alloc(size_t bytes);
void simt_free(void *p);

#endif
