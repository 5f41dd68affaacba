/* 64-bit hashing of bytes: fast, seeded, not cryptographic. Users that must not be fooled by
 * collisions also compare the keys (the prefix cache does). */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A finaliser with full avalanche (splitmix64's). */
static inline uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed);

#endif
