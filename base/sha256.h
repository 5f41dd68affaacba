/* SHA-256 (FIPS 180-4), for fingerprints that other programs check. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_HEX_BYTES = 65 };

typedef struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64]; // input that does not fill a block yet
} sha256;

void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t n);
/* Writes the digest in lower-case hexadecimal with a NUL. Nothing can be added afterwards. */
void sha256_finish(sha256 *s, char out[SHA256_HEX_BYTES]);

#endif
