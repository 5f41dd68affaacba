/* Reasoning in the text of a model (private to rpc/openai): what stands between two marks at the
 * beginning of an answer.
 *
 * A reader takes the text of one choice piece by piece; the result does not depend on the cuts. */
#ifndef RPC_OPENAI_REASONING_H
#define RPC_OPENAI_REASONING_H

#include "engine/engine.h"

typedef struct reasoning_parser {
    const char *name; // value of --reasoning-parser
    const char *help;
    const char *begins, *ends; // the marks
    bool always;               // an answer begins with reasoning even without the mark
    bool special;              // the marks are special tokens, which the text must show
} reasoning_parser;

typedef struct reasoning_reader {
    const reasoning_parser *parser;
    int state;
    strbuf pending; // bytes that may belong to a mark, or are white space before one
    size_t blanks;  // the first of them, known to be white space
} reasoning_reader;

/* Receives the text that a reader finds; both functions get whole characters. */
typedef struct reasoning_sink {
    void *ctx;
    void (*reasoning)(void *ctx, const char *text, size_t n);
    void (*answer)(void *ctx, const char *text, size_t n);
} reasoning_sink;

const reasoning_parser *reasoning_parsers(size_t *n);
/* NULL: no such parser. */
const reasoning_parser *reasoning_parser_find(const char *name);
/* The first parser whose end mark the template mentions; NULL when it mentions none. */
const reasoning_parser *reasoning_parser_of(const chat_template *t);

/* True when the prompt's tokens end with the begin mark: the answer goes on behind it. */
bool reasoning_is_begun(const reasoning_parser *p, const tokenizer *t, const engine_prompt *prompt);

/* begun: the begin mark stands before the text. */
void reasoning_init(reasoning_reader *r, const reasoning_parser *parser, bool begun);
void reasoning_take(reasoning_reader *r, const reasoning_sink *sink, const char *text, size_t n);
void reasoning_end(reasoning_reader *r, const reasoning_sink *sink);
void reasoning_destroy(reasoning_reader *r);

#endif
