/* Classes of code points, as the `tokenizers` library's regular expressions and NFC define them
 * (tools/gen_unicode.py writes the tables). */
#ifndef TEXT_TOKENIZER_UNICODE_H
#define TEXT_TOKENIZER_UNICODE_H

#include <stdint.h>

enum {
    UNICODE_LETTER = 1, /* \p{L} */
    UNICODE_NUMBER = 2, /* \p{N} */
    UNICODE_SPACE = 4,  /* White_Space: \s */
    UNICODE_WORD = 8,   /* \w of Rust's regex crate, for single_word */
    /* Not a starter, or NFC_Quick_Check is not Yes: a text without these is in NFC. */
    UNICODE_NFC_ACTIVE = 16,
    /* Newer than the library's NFC, which leaves it unchanged although a current NFC would not. */
    UNICODE_NFC_NEWER = 32,
    UNICODE_HEAD = 64,  /* \p{Lu}, Lt, Lm, Lo, M: may begin a word of tekken's pattern */
    UNICODE_TAIL = 128, /* \p{Ll}, Lm, Lo, M: may continue it */
};

/* Tables in three stages: cp >> 12 -> chunk of 32 blocks -> block of 128 code points -> a byte with
 * the bits above for each of them, eight to a word. */
extern const uint8_t tok_unicode_chunk[];
extern const uint8_t tok_unicode_block[];
extern const uint64_t tok_unicode_words[];

/* The bits of a code point, cp < 0x110000. */
static inline unsigned tok_unicode_class(uint32_t cp)
{
    uint32_t block = tok_unicode_block[(uint32_t)tok_unicode_chunk[cp >> 12] << 5 | (cp >> 7 & 31)];
    return (uint8_t)(tok_unicode_words[block << 4 | (cp >> 3 & 15)] >> (cp & 7) * 8);
}

/* Reads the code point at s, which is valid UTF-8, and its length. */
static inline uint32_t tok_unicode_read(const uint8_t *s, unsigned *length)
{
    if (s[0] < 0x80) {
        *length = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *length = 2;
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    }
    if (s[0] < 0xf0) {
        *length = 3;
        return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    }
    *length = 4;
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

/* Reads the code point that ends right before s, which is valid UTF-8 and not the start of the
 * text. */
static inline uint32_t tok_unicode_read_before(const uint8_t *s)
{
    unsigned length;
    const uint8_t *p = s - 1;
    while ((*p & 0xc0) == 0x80) p--;
    return tok_unicode_read(p, &length);
}

#endif
