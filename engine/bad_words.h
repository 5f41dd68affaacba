/* bad_words: texts that an answer never has (private to engine/).
 *
 * As in vLLM, a text stands for its tokens, and for those that it has behind a blank where they are
 * as many and begin otherwise. The last token of such a list is forbidden wherever the answer ends
 * with the tokens before it. A text that other tokens make up is not seen. */
#ifndef ENGINE_BAD_WORDS_H
#define ENGINE_BAD_WORDS_H

#include "base/base.h"
#include "text/tokenizer.h"

/* A list of tokens among bad_words.ids. */
typedef struct bad_word {
    uint32_t from, n;
} bad_word;

/* The lists of a request. All zero: none. */
typedef struct bad_words {
    uint32_t *ids;
    bad_word *list; // [n]
    uint32_t n, longest;
} bad_words;

/* Tokenizes the texts, a JSON array of strings that engine_request_check has accepted. */
status bad_words_create(const tokenizer *t, const json_t *texts, bad_words *out, error *err);
void bad_words_destroy(bad_words *b);

/* The answer's last tokens, as many as some list has before its last one. All zero: none yet. */
typedef struct bad_words_tail {
    uint32_t *ids; // room for longest - 1; NULL until the first token
    uint32_t n;
} bad_words_tail;

/* Appends a token that was drawn. False when memory is out. */
bool bad_words_take(const bad_words *b, bad_words_tail *tail, uint32_t token);
/* Clears the bits of forbidden tokens in a mask of `vocab` tokens. */
void bad_words_ban(const bad_words *b, const bad_words_tail *tail, uint32_t *mask, uint32_t vocab);

#endif
