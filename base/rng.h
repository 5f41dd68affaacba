/* Random numbers: Philox4x32-10, a counter-based generator (Salmon et al., SC'11). The same
 * (key, counter) gives the same numbers on every machine, in any order, on any thread. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

typedef struct philox_block {
    uint32_t v[4];
} philox_block;

philox_block philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi);

/* A sequential stream over philox, for tests, simulations and dummy weights. */
typedef struct rng {
    uint64_t key;
    uint64_t counter;
    philox_block block;
    uint32_t used; /* words of block already given out */
} rng;

rng rng_seed(uint64_t seed);
uint32_t rng_u32(rng *r);
uint64_t rng_u64(rng *r);
uint32_t rng_below(rng *r, uint32_t n); /* [0, n), unbiased; n > 0 */
float rng_unit(rng *r);                 /* [0, 1), 24 bits */
float rng_normal(rng *r);               /* mean 0, variance 1 (Box-Muller) */

#endif
