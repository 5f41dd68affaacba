#include "base/hash.h"

#include <string.h>

/* Odd constants with about half their bits set (digits of pi). */
#define K0 0x243f6a8885a308d3ull
#define K1 0x13198a2e03707345ull
#define K2 0xa4093822299f31d1ull
#define K3 0x082efa98ec4e6c89ull

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Both halves of the 128-bit product: one multiplication mixes 16 bytes. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed)
{
    const uint8_t *p = data;
    size_t left = size;
    uint64_t h = hash_mix64(seed ^ K0);

    if (left > 64) { /* four independent lanes keep the multiplier busy */
        uint64_t lane[4] = {h, h ^ K1, h ^ K2, h ^ K3};
        do {
            lane[0] = fold(load64(p) ^ K0, load64(p + 8) ^ lane[0]);
            lane[1] = fold(load64(p + 16) ^ K1, load64(p + 24) ^ lane[1]);
            lane[2] = fold(load64(p + 32) ^ K2, load64(p + 40) ^ lane[2]);
            lane[3] = fold(load64(p + 48) ^ K3, load64(p + 56) ^ lane[3]);
            p += 64;
            left -= 64;
        } while (left > 64);
        h = fold(lane[0] ^ K1, lane[1] ^ K2) ^ fold(lane[2] ^ K3, lane[3] ^ K0);
    }
    for (; left > 16; p += 16, left -= 16) h = fold(load64(p) ^ K1, load64(p + 8) ^ h);

    uint64_t a = 0, b = 0; /* the last 0..16 bytes, in overlapping reads */
    if (left >= 8) {
        a = load64(p);
        b = load64(p + left - 8);
    } else if (left >= 4) {
        a = load32(p);
        b = load32(p + left - 4);
    } else if (left > 0) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[left / 2] << 8 | p[left - 1];
    }
    return hash_mix64(fold(a ^ K2, b ^ h) ^ fold(h ^ K3, size ^ K1));
}
