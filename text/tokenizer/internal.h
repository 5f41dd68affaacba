/* Shared by the tokenizer's files. */
#ifndef TEXT_TOKENIZER_INTERNAL_H
#define TEXT_TOKENIZER_INTERNAL_H

#include "text/tokenizer.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/map.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/pretokenize.h"

#define TOK_ID_MAX          ((1u << 24) - 1)
#define TOK_TOKEN_BYTES_MAX 4096 /* longest token, as the file spells it */

/* The text of an id. Ids that the file leaves out have length 0. */
typedef struct tok_entry {
    const char *bytes; /* as decoded */
    uint16_t length;
    bool special; /* left out by skip_special */
    bool byte;    /* a byte that ByteFallback joins to characters */
} tok_entry;

struct tokenizer {
    arena strings;      /* every token's bytes and every pattern */
    tok_entry *entries; // [n_ids]
    tok_entry *firsts;  // [n_ids] texts of a text's first token, when they are different; or NULL
    uint32_t n_ids;
    unsigned strip;        /* spaces that the decoder drops at the start of a text */
    bool byte_level;       /* words are spelled in the byte alphabet; else a model of characters */
    bool cut_at_metaspace; /* no merge crosses the start of a run of U+2581 */
    /* The model's tokens. In a byte-level model, tokens spelled in the byte alphabet are in
     * `words`, by the bytes they stand for, and all others in `others`, by their spelling. In a
     * model of characters all are in `words`. */
    tok_map words, others;
    tok_map added; /* added tokens by content */
    tok_bpe_model bpe;
    tok_added_token *added_tokens; /* those of pass 1, then those of pass 2 */
    tok_added_set raw_pass, normalized_pass;
    tok_normalizers normalizers;
    tok_steps steps;
    tok_ids prefix, suffix; /* ids that the post-processor's template puts around a text */
};

/* Writes the bytes that a token stands for; out has room for n. False when some character is not in
 * the alphabet; then out's content is undefined. */
bool tok_alphabet_bytes(const char *token, size_t n, uint8_t *out, size_t *n_out);

/* The id of one of the model's own tokens, or TOK_NONE. */
uint32_t tok_model_find(const tokenizer *t, const char *token, size_t n);

/* Replaces invalid UTF-8 in b's bytes from `from` on, as in tok_decode's results. */
void tok_repair(strbuf *b, size_t from);

/* The parts of tokenizer.json, in the order they must be loaded. `where` names the document. */
status tok_load_model(tokenizer *t, const char *where, const json_t *model, size_t n_added,
                      error *err);
status tok_load_normalizer(tokenizer *t, const char *where, const json_t *part, error *err);
status tok_load_added_tokens(tokenizer *t, const char *where, const json_t *list, error *err);
status tok_load_pre_tokenizer(tokenizer *t, const char *where, const json_t *part, error *err);
status tok_load_post_processor(tokenizer *t, const char *where, const json_t *part, error *err);
status tok_load_decoder(tokenizer *t, const char *where, const json_t *part, error *err);

/* Whether a pre-tokenizer has ByteLevel somewhere. */
bool tok_has_byte_level(const json_t *part, unsigned depth);

/* Reads members that two kinds of part have: "pattern" and "content" of a Replace (borrowed), and
 * those of a Metaspace. */
status tok_read_replace(const json_t *part, const char *where, const char **pattern,
                        size_t *n_pattern, const char **content, size_t *n_content, error *err);
status tok_read_metaspace(const json_t *part, const char *where, uint8_t replacement[4],
                          unsigned *n_replacement, tok_prepend *prepend, error *err);

/* Converts SentencePiece's tokenizer.model to tokenizer.json. */
typedef struct tok_spm_options {
    bool legacy;         /* as in `transformers`: a space before every piece of text */
    const char *bos;     /* token put before a text; or NULL */
    const json_t *added; /* added_tokens_decoder of tokenizer_config.json, or NULL */
} tok_spm_options;
status tok_spm_convert(const char *where, const void *data, size_t n,
                       const tok_spm_options *options, strbuf *out, error *err);

/* A place in the document, for messages: "file: model.vocab". */
typedef struct tok_place {
    char text[192];
} tok_place;
tok_place tok_place_make(const char *where, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The start of a string from the file, made fit for a one-line message. */
typedef struct tok_shown {
    char text[48];
} tok_shown;
tok_shown tok_show(const char *s, size_t n);

/* Reads the "type" of a part; an error when it is missing. Borrowed. */
status tok_part_type(const json_t *part, const char *where, const char **type, error *err);

#endif
