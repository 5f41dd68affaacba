/* Normalizers, which change the text between the two passes of added tokens. */
#ifndef TEXT_TOKENIZER_NORMALIZE_H
#define TEXT_TOKENIZER_NORMALIZE_H

#include "base/base.h"

typedef struct tok_normalizer tok_normalizer;

/* One step. If the text is already normal, leaves *text and *n unchanged. Otherwise appends the
 * normal text to `out`, which is empty, and sets *text and *n to it. */
typedef status (*tok_normalize)(const tok_normalizer *step, const uint8_t **text, size_t *n,
                                strbuf *out);

struct tok_normalizer {
    tok_normalize run;
    const char *pattern, *content; /* pattern of Replace; Prepend has only a content */
    size_t n_pattern, n_content;   /* n_pattern > 0 */
};

/* Unicode Normalization Form C (UAX #15) of Unicode 9.0, which the library uses. */
status tok_normalize_nfc(const tok_normalizer *step, const uint8_t **text, size_t *n, strbuf *out);
/* Puts the content before every text that is not empty. */
status tok_normalize_prepend(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out);
/* Replaces every pattern by the content, from left to right. */
status tok_normalize_replace(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out);

#define TOK_NORMALIZERS_MAX      8
#define TOK_NORMALIZED_BYTES_MAX (1u << 30) /* approximate: a word has 32-bit positions */

typedef struct tok_normalizers {
    tok_normalizer steps[TOK_NORMALIZERS_MAX];
    unsigned n_steps;
} tok_normalizers;

/* Runs the steps over valid UTF-8; the result lies in the input or in one of the two buffers.
 * STATUS_LIMIT: the text became too long. */
status tok_normalizers_run(const tok_normalizers *list, const uint8_t **text, size_t *n,
                           strbuf buffers[2]);

#endif
