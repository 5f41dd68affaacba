/* Between strict_test.cc and strict_early.cc. */
#ifndef TESTS_SIMT_STRICT_TEST_H
#define TESTS_SIMT_STRICT_TEST_H

#include "kernels/cuda/wgmma.cuh"
#include "tests/simt/device.h"
#include "tests/simt/strict.h"

enum { THREADS = 64 };

static inline unsigned self(void) { return threadIdx.x; }

/* Runs the work in a process of its own, and reads its output. True where it ends well, or with
 * `says`, where it is refused with these words. Prints the result. */
bool is_found(const char *name, const char *says, const std::function<void()> &work);
/* The number of defects around await_previous that are not found. */
unsigned check_early(void);

#endif
