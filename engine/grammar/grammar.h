/* grammar: which tokens may come next, so that an answer has the form that a request asks for.
 *
 * What     compiles a JSON Schema, "any JSON object", a regular expression, a list of choices or a
 *          GBNF grammar into one pushdown automaton over bytes; follows the tokens of an answer
 *          through it; and says which tokens of the vocabulary may come next (docs/structured.md).
 * Owner    grammar_create gives one reference, grammar_hold another; grammar_release gives one
 *          back. A matcher holds a reference of its grammar. The vocabulary must outlive the
 *          grammars that are made for it.
 * Threads  a vocabulary and a grammar may be used by any number of threads: what they work out
 *          late, they publish under a lock. A matcher belongs to one thread at a time.
 * Bounds   compiling takes at most GRAMMAR_SOURCE_MAX bytes of text, about 400 MiB of memory and
 *          a fixed number of operations, whatever the text says. A matcher ends with STATUS_LIMIT
 *          where a text could be read in too many ways at once, or its readings take more than
 *          128 MiB.
 * Shapes   a mask is words [grammar_mask_words(n_tokens)] of 32 bits: bit t % 32 of word t / 32
 *          stands for token t.
 * Errors   STATUS_INVALID: the source is wrong; STATUS_UNSUPPORTED: it asks for something that
 *          cannot be kept; STATUS_LIMIT: it is too large. A schema's place is its JSON pointer. */
#ifndef ENGINE_GRAMMAR_GRAMMAR_H
#define ENGINE_GRAMMAR_GRAMMAR_H

#include "base/base.h"

#define GRAMMAR_SOURCE_MAX ((size_t)4 << 20)

typedef struct grammar grammar;
typedef struct grammar_vocab grammar_vocab;
typedef struct grammar_matcher grammar_matcher;

/* A token's bytes. n = 0: the grammar never allows the token (special tokens, holes). */
typedef struct grammar_token {
    const char *bytes;
    uint32_t n;
} grammar_token;

/* Sorts the tokens [n] into a trie. The bytes are copied. */
status grammar_vocab_create(const grammar_token *tokens, uint32_t n, grammar_vocab **out);
void grammar_vocab_destroy(grammar_vocab *v);

/* The kinds of source: name, text of the source. */
#define GRAMMAR_KINDS(X)                                                                           \
    X(JSON_SCHEMA, "a JSON Schema (draft 2020-12)")                                                \
    X(JSON_OBJECT, "none: any JSON object")                                                        \
    X(REGEX, "a regular expression, which the whole answer matches")                               \
    X(CHOICE, "a JSON array of strings, one of which is the answer")                               \
    X(GBNF, "rules as llama.cpp writes them; `root` is the answer")                                \
    X(TAGGED, "a JSON object, see below: JSON values between texts")

/* The object of GRAMMAR_TAGGED:
 *   values     array of {"schema", "begin", "end", "name"}: one of them is the answer, a JSON value
 *              of its schema between the texts `begin` and `end`; messages call it by its `name`
 *   many       true: one value or more, with the text `separator` between them, and the texts
 *              `begin` before and `end` behind all of them
 * A text that is absent is empty. */

typedef enum grammar_kind {
#define GRAMMAR_KIND(name, text) GRAMMAR_##name,
    GRAMMAR_KINDS(GRAMMAR_KIND)
#undef GRAMMAR_KIND
} grammar_kind;

typedef struct grammar_source {
    grammar_kind kind;
    const char *text;
    size_t n;
    bool compact; // JSON without white space, but ", " and ": " between values
} grammar_source;

/* Compiles a source for a vocabulary. Without one (NULL) the grammar only follows bytes. */
status grammar_create(const grammar_source *source, grammar_vocab *v, grammar **out, error *err);
grammar *grammar_hold(grammar *g);
void grammar_release(grammar *g);
/* The bytes that the grammar takes, with the masks that it has worked out and kept. */
size_t grammar_bytes(grammar *g);

/* At the beginning of an answer. NULL when memory is out. */
grammar_matcher *grammar_matcher_create(grammar *g);
void grammar_matcher_destroy(grammar_matcher *m);

/* Follows the bytes of one token. STATUS_INVALID when the grammar does not allow them; the matcher
 * is then as it was. */
status grammar_accept_bytes(grammar_matcher *m, const void *bytes, size_t n);
/* Follows a token of the vocabulary as grammar_accept_bytes follows bytes. */
status grammar_accept(grammar_matcher *m, uint32_t token);
/* How many tokens (calls of the two above) were followed. */
uint32_t grammar_accepted(const grammar_matcher *m);
/* Goes back to where the first n tokens had been followed. */
void grammar_rollback(grammar_matcher *m, uint32_t n);

/* Whether the answer may end here. */
bool grammar_may_end(const grammar_matcher *m);

static inline uint32_t grammar_mask_words(uint32_t n_tokens) { return (n_tokens + 31) / 32; }
/* Writes the mask of the tokens that may come next. Tokens that end an answer are the caller's:
 * they may come where grammar_may_end. */
status grammar_mask(grammar_matcher *m, uint32_t *mask);

/* Appends the bytes that have to come next, at most `most`, as long as there is one way alone and
 * the answer may not end. No token that may come next and begins among the first *settled of them
 * reaches past them all. The matcher stays where it is. */
status grammar_forced(grammar_matcher *m, size_t most, strbuf *out, size_t *settled);

#endif
