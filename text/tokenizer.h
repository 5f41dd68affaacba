/* tokenizer: text to token ids and back, from a Hugging Face tokenizer.json.
 *
 * What     BPE over bytes (ByteLevel) or over characters (Metaspace, byte fallback) with its
 *          normalizer, pre-tokenizer, added tokens, post-processor and decoder; equal to the
 *          `tokenizers` library, id for id. Streaming detokenisation that never emits part of a
 *          character. Components it does not know are refused by name when the file is loaded.
 * Owner    the tokenizer owns its tables; outputs go to caller-owned buffers.
 * Threads  a loaded tokenizer is immutable: any number of threads may encode and decode. A
 *          tok_stream belongs to one thread at a time.
 * Units    text in bytes of UTF-8; invalid UTF-8 is replaced first, by one U+FFFD for each longest
 *          beginning of a character (as in Python's and Rust's lossy decoding).
 * Errors   STATUS_UNSUPPORTED names the component, STATUS_CORRUPT the place in the file. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/base.h"

typedef struct tokenizer tokenizer;

/* Loads dir/tokenizer.json or, if there is none, dir/tokenizer.model (SentencePiece's BPE, with
 * tokenizer_config.json beside it) as `transformers` converts it. Ignores "truncation" and
 * "padding", as `transformers` does. */
status tok_load(const char *dir, tokenizer **out, error *err);
/* Like tok_load, from a document in memory; `where` names it in messages. */
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
 * least n / this many ids. 0 when there is no bound (the pipeline drops text, or fuses unknown
 * text). Looks at every token. */
size_t tok_bytes_per_token(const tokenizer *t);

/* Appends the text of ids. Ids outside [0, tok_vocab_size) are STATUS_INVALID; ids inside that the
 * file leaves out have no text. Invalid UTF-8 in the result becomes U+FFFD, as in the library's
 * decode (without clean_up_tokenization_spaces, which edits spaces and cannot be streamed). */
status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, strbuf *out,
                  error *err);

/* The raw bytes that one token stands for (no UTF-8 repair), for logprobs' `bytes`. Borrowed
 * pointer. */
status tok_token_bytes(const tokenizer *t, uint32_t id, const char **bytes, size_t *n);

/* Streaming: feed ids one by one; each call appends the bytes that are now certain (whole
 * characters only). The concatenation over a stream, with tok_stream_finish, equals tok_decode of
 * all its ids, with one exception: where a run of ByteFallback bytes breaks off, the library
 * replaces the whole run, but a stream has already given out the characters before the break. */
typedef struct tok_stream {
    const tokenizer *t;
    bool skip_special;
    bool first;         /* no token yet */
    unsigned strip;     /* spaces still to be dropped at the start */
    uint8_t pending[4]; /* bytes of an incomplete character */
    uint8_t n_pending;
} tok_stream;

void tok_stream_init(tok_stream *s, const tokenizer *t, bool skip_special);
/* Call right after init when the ids continue an earlier text, so that no spaces are dropped at
 * their start. */
void tok_stream_resume(tok_stream *s);
status tok_stream_push(tok_stream *s, uint32_t id, strbuf *out);
/* Ends the stream: appends U+FFFD for an incomplete character. */
void tok_stream_finish(tok_stream *s, strbuf *out);
/* The most bytes that tok_stream_push and a tok_stream_finish after it append. With so much room
 * reserved in `out` they need no memory. Looks at every token. */
size_t tok_stream_room(const tokenizer *t);

#endif
