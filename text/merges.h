/* Merges that follow from scores: what SentencePiece's vocabularies leave to be found. */
#ifndef TEXT_MERGES_H
#define TEXT_MERGES_H

#include "base/base.h"

typedef struct tok_piece {
    const char *text;
    uint32_t length;
    float score;  /* a number */
    bool is_part; /* of merges, and made by them; others are neither */
} tok_piece;

/* Appends the merges of tokenizer.json, ["left","right"] each with commas between, that
 * transformers makes (convert_slow_tokenizer.py, generate_merges): every way to cut a piece in two
 * pieces, by the piece's score from the highest; of equals the longer left half first, then the
 * longer right one, in characters. A piece that comes twice is STATUS_CORRUPT; so many or so long
 * ones that their merges would fill memory, STATUS_LIMIT. */
status tok_merges_of_scores(const char *where, const tok_piece *pieces, uint32_t n, strbuf *out,
                            error *err);

#endif
