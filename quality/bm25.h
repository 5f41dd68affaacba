/* The baseline that compresses no cache: the prompt has only the best chunks of the context by
 * BM25, in their order (private to quality/). */
#ifndef QUALITY_BM25_H
#define QUALITY_BM25_H

#include "text/tokenizer.h"

enum { BM25_CHUNK_TOKENS = 128 };

/* Appends the chunks of `text` that score best for `query`: at least one, else as many as fit into
 * `tokens`. */
status bm25_choose(const tokenizer *t, const char *text, size_t n, const char *query,
                   uint32_t tokens, strbuf *out, error *err);

#endif
