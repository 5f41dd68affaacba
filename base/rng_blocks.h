/* Many blocks of philox (base/rng.h) at once, in less than half of the time. */
#ifndef BASE_RNG_BLOCKS_H
#define BASE_RNG_BLOCKS_H

#include "base/rng.h"

#include <stddef.h>

/* out[i] = philox4x32(key, counter_lo, counter_hi + i), i < n. */
void philox4x32_blocks(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, size_t n,
                       philox_block *out);

#endif
