/* Normalizers: what the text goes through between the two passes of added tokens. */
#ifndef MODEL_TOKENIZER_NORMALIZE_H
#define MODEL_TOKENIZER_NORMALIZE_H

#include "base/base.h"

/* One step. It leaves *text and *n alone when the text is already normal; otherwise it appends the
 * normal text to `out`, which is empty, and points *text and *n at it. */
typedef status (*tok_normalize)(const uint8_t **text, size_t *n, strbuf *out);

/* Unicode Normalization Form C (UAX #15), as the library knows it: Unicode 9.0. */
status tok_normalize_nfc(const uint8_t **text, size_t *n, strbuf *out);

#define TOK_NORMALIZERS_MAX 8

typedef struct tok_normalizers {
    tok_normalize steps[TOK_NORMALIZERS_MAX];
    unsigned n_steps;
} tok_normalizers;

/* Runs the steps over valid UTF-8; the result lies in the input or in one of the two buffers. */
status tok_normalizers_run(const tok_normalizers *list, const uint8_t **text, size_t *n,
                           strbuf buffers[2]);

#endif
