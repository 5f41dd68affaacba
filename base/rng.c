#include "base/rng.h"

#include <math.h>

philox_block philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi)
{
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0;
        uint64_t p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (philox_block){{c0, c1, c2, c3}};
}

rng rng_seed(uint64_t seed) { return (rng){.key = seed, .used = 4}; }

uint32_t rng_u32(rng *r)
{
    if (r->used == 4) {
        r->block = philox4x32(r->key, r->counter++, 0);
        r->used = 0;
    }
    return r->block.v[r->used++];
}

uint64_t rng_u64(rng *r)
{
    uint64_t high = rng_u32(r);
    return high << 32 | rng_u32(r);
}

/* Lemire, "Fast random integer generation in an interval" (2019), algorithm 5. */
uint32_t rng_below(rng *r, uint32_t n)
{
    uint64_t m = (uint64_t)rng_u32(r) * n;
    if ((uint32_t)m < n) {
        uint32_t threshold = -n % n;
        while ((uint32_t)m < threshold) m = (uint64_t)rng_u32(r) * n;
    }
    return (uint32_t)(m >> 32);
}

float rng_unit(rng *r) { return (float)(rng_u32(r) >> 8) * 0x1p-24f; }

float rng_normal(rng *r)
{
    float u = ((float)(rng_u32(r) >> 8) + 1.0f) * 0x1p-24f; /* (0, 1]: log is finite */
    float v = rng_unit(r);
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318530717958647692f * v);
}
