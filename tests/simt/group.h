/* Between simt.cc, group.cc and strict.cc: what wgmma needs of the fibers. */
#ifndef TESTS_SIMT_GROUP_H
#define TESTS_SIMT_GROUP_H

#include "kernels/cuda/simt.cuh"

enum {
    SHARED_BYTES = 232448, /* a block's shared memory on sm_90 */
    THREADS_MOST = 1024,
    GROUP = 128, /* threads of a warpgroup */
};

/* Ends the process with the kernel's name. */
void simt_refuse(const char *why);
/* All threads of this warpgroup meet, at the same line; the last one to arrive does `last`. */
void simt_meet_group(int line, const std::function<void()> &last);
/* A block of n threads has ended: no product may be under way. */
void simt_group_ends(unsigned n);
#ifdef OCTAVO_SIMT_STRICT
/* Whether a byte of this shared memory was written in a later phase (simt_view). */
bool simt_written_since(const void *p, size_t n, uint32_t phase);
#else
inline bool simt_written_since(const void *, size_t, uint32_t) { return false; }
#endif

#endif
