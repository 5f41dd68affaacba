/* Derives BPE merges from the scores of pieces, since SentencePiece's vocabularies have no
 * merges. */
#ifndef TEXT_MERGES_H
#define TEXT_MERGES_H

#include "base/base.h"

typedef struct tok_piece {
    const char *text;
    uint32_t length;
    float score;  /* not NaN */
    bool is_part; /* may be part and result of merges */
} tok_piece;

/* Appends merges as tokenizer.json writes them, ["left","right"] with commas between. They are
 * those that transformers makes (convert_slow_tokenizer.py, generate_merges): every way to cut a
 * piece in two pieces, by the piece's score from the highest; among equals the longer left half
 * first, then the longer right one, in characters. A piece that occurs twice is STATUS_CORRUPT;
 * pieces so many or so long that their merges would fill memory, STATUS_LIMIT. */
status tok_merges_of_scores(const char *where, const tok_piece *pieces, uint32_t n, strbuf *out,
                            error *err);

#endif
