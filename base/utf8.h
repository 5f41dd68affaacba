/* Strict UTF-8 (RFC 3629: no surrogates, no overlongs, at most U+10FFFF). */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from s[0..n), n > 0. Returns the bytes used and sets *cp; for an invalid
 * byte returns 1 and sets *cp to UINT32_MAX. */
unsigned utf8_decode(const uint8_t *s, size_t n, uint32_t *cp);
/* Writes 1 to 4 bytes; returns how many. cp must be a scalar value. */
unsigned utf8_encode(uint32_t cp, uint8_t out[4]);
bool utf8_valid(const uint8_t *s, size_t n);
/* The number of trailing bytes of s that begin a character which more bytes could complete
 * (0..3). */
unsigned utf8_incomplete_tail(const uint8_t *s, size_t n);

#endif
