/* tokenizer: text to token ids and back, from a Hugging Face tokenizer.json.
 *
 * What     BPE over bytes (ByteLevel) or over characters (Metaspace, byte fallback) with its
 *          normalizer, pre-tokenizer, added tokens, post-processor and decoder; equal to the
 *          `tokenizers` library, id for id. Streaming detokenisation that never emits part of a
 *          character. Components it does not know are refused by name when the file is loaded.
 * Owner    the tokenizer owns its tables; outputs go to caller-owned buffers.
 * Threads  a loaded tokenizer is immutable: any number of threads may encode and decode. A
 *          tok_stream belongs to one thread at a time.
 * Units    text in bytes of UTF-8; bytes that are not UTF-8 are replaced by U+FFFD first, one for
 *          each longest beginning of a character (as Python's and Rust's lossy decoding do).
 * Errors   STATUS_UNSUPPORTED names the component; STATUS_CORRUPT the place in the file. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/base.h"

typedef struct tokenizer tokenizer;

/* Loads dir/tokenizer.json, or, without one, dir/tokenizer.model (SentencePiece's BPE, with
 * tokenizer_config.json beside it) as `transformers` converts it. Its "truncation" and "padding"
 * are ignored, as `transformers` does. */
status tok_load(const char *dir, tokenizer **out, error *err);
/* The same from a document in memory; `where` names it in messages. */
status tok_load_text(const char *where, const char *json, size_t n, tokenizer **out, error *err);
void tok_destroy(tokenizer *t);

/* One more than the largest id, added tokens included. */
uint32_t tok_vocab_size(const tokenizer *t);
/* The id of an exact token (added tokens included), or -1. */
int32_t tok_find(const tokenizer *t, const char *token, size_t n);
bool tok_is_special(const tokenizer *t, uint32_t id);

typedef struct tok_ids {
    uint32_t *ids; /* malloc'd, grown by tok_encode */
    size_t n;
    size_t capacity;
} tok_ids;

/* Appends the ids of text to out. add_special: run the post-processor's template (BOS and such).
 * Special tokens written out in the text are recognised, as Hugging Face does. */
status tok_encode(const tokenizer *t, const char *text, size_t n, bool add_special, tok_ids *out,
                  error *err);
void tok_ids_destroy(tok_ids *ids);
/* The most bytes of a text that one of its ids can stand for, so that a text of n bytes has at
 * least n / this many ids; 0 when there is no bound (the pipeline drops text, or joins what it does
 * not know). Looks at every token. */
size_t tok_bytes_per_token(const tokenizer *t);

/* Appends the text of ids. Ids outside [0, tok_vocab_size) are STATUS_INVALID, ids in it that the
 * file leaves out are nothing. Invalid UTF-8 in the result becomes U+FFFD, as the library's decode
 * does (without clean_up_tokenization_spaces, which edits spaces and cannot be streamed). */
status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, strbuf *out,
                  error *err);

/* The raw bytes one token stands for (no UTF-8 repair), for logprobs' `bytes`. Borrowed pointer. */
status tok_token_bytes(const tokenizer *t, uint32_t id, const char **bytes, size_t *n);

/* Streaming: feed ids one by one; each call appends the bytes that are now certain (whole
 * characters only). The concatenation over a stream, with tok_stream_finish, equals tok_decode of
 * all its ids; but where ByteFallback meets a run of bytes that breaks off, the library takes all
 * of the run for broken, and a stream has given out the characters before the break. */
typedef struct tok_stream {
    const tokenizer *t;
    bool skip_special;
    bool first;         /* no token yet */
    unsigned strip;     /* spaces still to be dropped at the start */
    uint8_t pending[4]; /* the start of a character whose rest is still to come */
    uint8_t n_pending;
} tok_stream;

void tok_stream_init(tok_stream *s, const tokenizer *t, bool skip_special);
/* Right after init: the ids go on where a text ended, so nothing is dropped at their start. */
void tok_stream_resume(tok_stream *s);
status tok_stream_push(tok_stream *s, uint32_t id, strbuf *out);
/* What is pending can no longer be completed: U+FFFD for it. */
void tok_stream_finish(tok_stream *s, strbuf *out);

#endif
