/* Added tokens: strings that are searched in the text before it is normalised (`normalized` false)
 * or after, regardless of the model.
 *
 * Search is leftmost-longest by an Aho-Corasick automaton (Aho and Corasick 1975), one for each of
 * the two passes; then single_word, lstrip and rstrip apply, in the order of the library's
 * added_vocabulary.rs. */
#ifndef TEXT_TOKENIZER_ADDED_TOKENS_H
#define TEXT_TOKENIZER_ADDED_TOKENS_H

#include "base/base.h"

typedef struct tok_added_token {
    const char *pattern; /* what is searched: the content, normalised if `normalized` */
    uint32_t length;     /* > 0 */
    uint32_t id;
    bool single_word, lstrip, rstrip;
} tok_added_token;

typedef struct tok_added_node tok_added_node;

/* The tokens of one pass. */
typedef struct tok_added_set {
    const tok_added_token *tokens; /* borrowed */
    size_t n_tokens;
    tok_added_node *nodes; /* NULL when there are no tokens */
    size_t n_nodes;
    bool first[256]; /* bytes that start a pattern */
} tok_added_set;

/* The first of several tokens with the same pattern wins (the library picks one at random). */
status tok_added_set_create(tok_added_set *set, const tok_added_token *tokens, size_t n_tokens);
void tok_added_set_destroy(tok_added_set *set);

/* Called for every part of the text in order, with a token's id, or TOK_NONE for text between
 * tokens. */
typedef status (*tok_added_visit)(void *ctx, const uint8_t *text, size_t n, uint32_t id);

/* text: valid UTF-8. */
status tok_added_set_split(const tok_added_set *set, const uint8_t *text, size_t n,
                           tok_added_visit visit, void *ctx);

#endif
