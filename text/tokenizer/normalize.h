/* Normalizers: what the text goes through between the two passes of added tokens. */
#ifndef TEXT_TOKENIZER_NORMALIZE_H
#define TEXT_TOKENIZER_NORMALIZE_H

#include "base/base.h"

typedef struct tok_normalizer tok_normalizer;

/* One step. It leaves *text and *n alone when the text is already normal; otherwise it appends the
 * normal text to `out`, which is empty, and points *text and *n at it. */
typedef status (*tok_normalize)(const tok_normalizer *step, const uint8_t **text, size_t *n,
                                strbuf *out);

struct tok_normalizer {
    tok_normalize run;
    const char *pattern, *content; /* of Replace; Prepend has a content alone */
    size_t n_pattern, n_content;   /* n_pattern > 0 */
};

/* Unicode Normalization Form C (UAX #15), as the library knows it: Unicode 9.0. */
status tok_normalize_nfc(const tok_normalizer *step, const uint8_t **text, size_t *n, strbuf *out);
/* The content in front of every text that is not empty. */
status tok_normalize_prepend(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out);
/* The content for every pattern, from left to right. */
status tok_normalize_replace(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out);

#define TOK_NORMALIZERS_MAX      8
#define TOK_NORMALIZED_BYTES_MAX (1u << 30) /* about: positions in one word are 32 bits */

typedef struct tok_normalizers {
    tok_normalizer steps[TOK_NORMALIZERS_MAX];
    unsigned n_steps;
} tok_normalizers;

/* Runs the steps over valid UTF-8; the result lies in the input or in one of the two buffers.
 * STATUS_LIMIT: they make it too long. */
status tok_normalizers_run(const tok_normalizers *list, const uint8_t **text, size_t *n,
                           strbuf buffers[2]);

#endif
