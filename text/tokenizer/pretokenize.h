/* Pre-tokenizers: cut normalised text into the words that BPE works on.
 *
 * The splits of GPT-2, Llama 3, Qwen and tekken are matched by hand (splits.c) over Unicode 16,
 * which is what the library's engine (Oniguruma) knows. Any other pattern runs on PCRE2, translated
 * where the two engines disagree and refused where that is not possible (pattern.c); its \p classes
 * are those of the PCRE2 that is linked, so characters younger than that may split otherwise than
 * in the library. */
#ifndef TEXT_TOKENIZER_PRETOKENIZE_H
#define TEXT_TOKENIZER_PRETOKENIZE_H

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The end of the piece that starts at `at`; at < n, and the result is in (at, n]. */
typedef size_t (*tok_split)(const uint8_t *text, size_t n, size_t at);

/* The matcher of a pattern, or NULL when none is written for it. */
tok_split tok_split_find(const char *pattern, size_t n);
/* GPT-2's, which ByteLevel brings along. */
size_t tok_split_gpt2(const uint8_t *text, size_t n, size_t at);

#define TOK_METASPACE "\xe2\x96\x81" /* U+2581, which stands for a space */

/* In front of every run of U+2581. */
size_t tok_split_metaspace(const uint8_t *text, size_t n, size_t at);

/* Compiles a pattern of Oniguruma's syntax for PCRE2, with a callout at every item, by which
 * matching is paid for. */
status tok_pattern_compile(const char *where, const char *pattern, size_t n, pcre2_code **out,
                           error *err);

typedef enum tok_step_kind {
    TOK_STEP_SPLIT,        /* by a matcher that covers every text */
    TOK_STEP_PATTERN,      /* by PCRE2; between matches there may be gaps */
    TOK_STEP_LITERAL,      /* matches are one string */
    TOK_STEP_DIGITS,       /* numbers are the matches */
    TOK_STEP_PREFIX_SPACE, /* a space in front of what does not start with one */
    TOK_STEP_METASPACE     /* a character for every space, and one in front */
} tok_step_kind;

/* What becomes of matches and of the gaps between them. */
typedef enum tok_behavior {
    TOK_ISOLATED,
    TOK_REMOVED,
    TOK_MERGED_WITH_PREVIOUS, /* a match and the gap before it are one word */
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS /* matches without a gap are one word */
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
    tok_prepend prepend;    /* of METASPACE */
    uint8_t replacement[4]; /* likewise: what a space becomes */
    unsigned n_replacement;
} tok_step;

#define TOK_STEPS_MAX 16

typedef struct tok_steps {
    tok_step steps[TOK_STEPS_MAX];
    unsigned n_steps;
} tok_steps;

void tok_steps_destroy(tok_steps *list);

typedef status (*tok_word_visit)(void *ctx, const uint8_t *word, size_t n);

/* What one tok_encode call reuses from piece to piece. */
typedef struct tok_steps_scratch {
    pcre2_match_data *match[TOK_STEPS_MAX];
    pcre2_match_context *limits;
    strbuf prefixed;    /* there is one step at most that puts something in front */
    uint64_t work_left; /* what all matching by PCRE2 may still cost */
    size_t work_at;     /* where in the text it was last paid for */
} tok_steps_scratch;

/* For texts of text_bytes together. */
tok_steps_scratch tok_steps_scratch_make(size_t text_bytes);
void tok_steps_scratch_destroy(tok_steps_scratch *s);

/* Calls visit for every word of the text, in order; text: valid UTF-8, n > 0. first: nothing came
 * before this text, no added token either. */
status tok_steps_run(const tok_steps *list, tok_steps_scratch *s, const uint8_t *text, size_t n,
                     bool first, tok_word_visit visit, void *ctx, error *err);

#endif
