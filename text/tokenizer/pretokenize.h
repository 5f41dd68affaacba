/* Pre-tokenizers: cut normalised text into the words that BPE works on.
 *
 * The splits of GPT-2, Llama 3, Qwen and tekken are matched by hand (splits.c) over Unicode 16,
 * which the library's engine (Oniguruma) knows. Any other pattern runs on PCRE2. It is translated
 * where the two engines disagree, and refused where that is not possible (pattern.c). Its \p
 * classes are those of the PCRE2 that is linked, so newer characters may split in another way than
 * in the library. */
#ifndef TEXT_TOKENIZER_PRETOKENIZE_H
#define TEXT_TOKENIZER_PRETOKENIZE_H

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The end of the piece that starts at `at`; at < n, and the result is in (at, n]. */
typedef size_t (*tok_split)(const uint8_t *text, size_t n, size_t at);

/* The hand-written matcher of a pattern, or NULL. */
tok_split tok_split_find(const char *pattern, size_t n);
/* The matcher of GPT-2's pattern, which ByteLevel includes. */
size_t tok_split_gpt2(const uint8_t *text, size_t n, size_t at);

#define TOK_METASPACE "\xe2\x96\x81" /* U+2581, which stands for a space */

/* Cuts before every run of U+2581. */
size_t tok_split_metaspace(const uint8_t *text, size_t n, size_t at);

/* Compiles a pattern of Oniguruma's syntax for PCRE2, with a callout at every item, which counts
 * the work of matching. */
status tok_pattern_compile(const char *where, const char *pattern, size_t n, pcre2_code **out,
                           error *err);

typedef enum tok_step_kind {
    TOK_STEP_SPLIT,        /* a hand-written matcher, without gaps */
    TOK_STEP_PATTERN,      /* PCRE2; there may be gaps between matches */
    TOK_STEP_LITERAL,      /* every match is one fixed string */
    TOK_STEP_DIGITS,       /* every match is a number character */
    TOK_STEP_PREFIX_SPACE, /* puts a space before text that has none */
    TOK_STEP_METASPACE     /* a character for every space, and one at the start */
} tok_step_kind;

/* How matches and gaps become words. */
typedef enum tok_behavior {
    TOK_ISOLATED,
    TOK_REMOVED,
    TOK_MERGED_WITH_PREVIOUS, /* joins a match to the gap before it */
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS /* joins matches without a gap between */
} tok_behavior;

typedef enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER } tok_prepend;

typedef struct tok_step {
    tok_step_kind kind;
    tok_split split;
    pcre2_code *code;    /* owned */
    const char *literal; /* borrowed */
    size_t n_literal;    /* > 0 */
    tok_behavior behavior;
    bool invert;            /* matches are gaps, and gaps matches */
    tok_prepend prepend;    /* METASPACE only */
    uint8_t replacement[4]; /* METASPACE only: replaces a space */
    unsigned n_replacement;
} tok_step;

#define TOK_STEPS_MAX 16

typedef struct tok_steps {
    tok_step steps[TOK_STEPS_MAX];
    unsigned n_steps;
} tok_steps;

void tok_steps_destroy(tok_steps *list);

typedef status (*tok_word_visit)(void *ctx, const uint8_t *word, size_t n);

/* Buffers that one tok_encode call reuses for all pieces. */
typedef struct tok_steps_scratch {
    pcre2_match_data *match[TOK_STEPS_MAX];
    pcre2_match_context *limits;
    strbuf prefixed;    /* of the one step that may put something in front */
    uint64_t work_left; /* work that matching by PCRE2 may still do */
    size_t work_at;     /* where in the text work was last counted */
} tok_steps_scratch;

/* Buffers for texts of text_bytes together. */
tok_steps_scratch tok_steps_scratch_make(size_t text_bytes);
void tok_steps_scratch_destroy(tok_steps_scratch *s);

/* Calls visit for every word of the text, in order. text: valid UTF-8, n > 0. first: nothing came
 * before this text, not even an added token. */
status tok_steps_run(const tok_steps *list, tok_steps_scratch *s, const uint8_t *text, size_t n,
                     bool first, tok_word_visit visit, void *ctx, error *err);

#endif
