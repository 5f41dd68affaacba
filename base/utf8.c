#include "base/utf8.h"

#include <string.h>

/* The length of the character that `lead` begins, and the bounds of its second byte, which rule out
 * overlongs, surrogates and code points above U+10FFFF (RFC 3629 section 4). 0 = never a lead. */
static unsigned lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0) *low = 0xa0;
        if (lead == 0xed) *high = 0x9f;
        return 3;
    }
    if (lead > 0xf4) return 0;
    if (lead == 0xf0) *low = 0x90;
    if (lead == 0xf4) *high = 0x8f;
    return 4;
}

/* How many bytes of s[0..n) are a valid beginning of one character, whose full length is
 * *length. */
static unsigned valid_prefix(const uint8_t *s, size_t n, unsigned *length)
{
    uint8_t low, high;
    *length = lead_length(s[0], &low, &high);
    if (*length == 0) return 0;
    unsigned have = 1;
    while (have < *length && have < n && s[have] >= low && s[have] <= high) {
        low = 0x80;
        high = 0xbf;
        have++;
    }
    return have;
}

unsigned utf8_decode(const uint8_t *s, size_t n, uint32_t *cp)
{
    static const uint8_t lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    unsigned length;
    if (valid_prefix(s, n, &length) < length || length == 0) {
        *cp = UINT32_MAX;
        return 1;
    }
    uint32_t value = s[0] & lead_mask[length];
    for (unsigned i = 1; i < length; i++) value = value << 6 | (s[i] & 0x3fu);
    *cp = value;
    return length;
}

unsigned utf8_encode(uint32_t cp, uint8_t out[4])
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

bool utf8_valid(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint64_t eight;
        if (n - i >= sizeof eight) { /* mostly ASCII: eight bytes at once */
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += sizeof eight;
                continue;
            }
        }
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX) return false;
    }
    return true;
}

unsigned utf8_incomplete_tail(const uint8_t *s, size_t n)
{
    for (unsigned back = 1; back <= 3 && back <= n; back++) {
        unsigned length;
        unsigned have = valid_prefix(s + n - back, back, &length);
        if (have == back && back < length) return back;
        if (have > 0) return 0; /* a lead byte of a complete or broken character */
    }
    return 0;
}
