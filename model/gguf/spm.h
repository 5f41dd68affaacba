/* Merges out of a SentencePiece vocabulary (private to model/gguf/). */
#ifndef MODEL_GGUF_SPM_H
#define MODEL_GGUF_SPM_H

#include "model/gguf/gguf.h"

/* Appends the merges of tokenizer.json, ["left","right"] each with commas between, that
 * transformers makes of pieces and scores: every way to cut a normal piece in two pieces, by score
 * from the highest. types may be NULL. */
status gguf_spm_merges(const char *where, const gguf_value *tokens, const gguf_value *scores,
                       const gguf_value *types, strbuf *out, error *err);

#endif
