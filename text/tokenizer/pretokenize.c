#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/unicode.h"

#include <string.h>

/* Limits on the work of matching, so that no pattern and text together run for ever. Trying an item
 * of the pattern costs one unit, and so does passing a byte. A sane pattern needs some tens of
 * units for each byte. */
#define WORK_MAX       (16u << 20)
#define WORK_OF_BYTE   128
#define MATCH_HEAP_KIB (64u << 10)

typedef struct run {
    const tok_steps *list;
    tok_steps_scratch *scratch;
    const uint8_t *start; /* start of the text if nothing came before it; or NULL */
    tok_word_visit visit;
    void *ctx;
    error *err;
} run;

static status run_from(const run *r, unsigned step, const uint8_t *text, size_t n);

static status run_split(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    tok_split split = r->list->steps[step].split;
    for (size_t at = 0; at < n;) {
        size_t end = split(text, n, at);
        RETURN_IF_ERROR(run_from(r, step + 1, text + at, end - at));
        at = end;
    }
    return STATUS_IS_OK;
}

/* ---- matches and gaps ---- */

/* The word that may still grow, and whether its last part was a match. */
typedef struct growing {
    const run *r;
    unsigned step;
    const uint8_t *text;
    size_t start, end;
    bool match;
} growing;

static status close_word(growing *g)
{
    size_t start = g->start;
    g->start = g->end;
    if (start == g->end) return STATUS_IS_OK;
    return run_from(g->r, g->step + 1, g->text + start, g->end - start);
}

/* Takes the next part of the text, which begins where the last one ended. A match may be empty. */
static status add_part(growing *g, size_t end, bool match)
{
    const tok_step *s = &g->r->list->steps[g->step];
    bool before = g->match, joins = false;
    match = match != s->invert;
    g->match = match;
    switch (s->behavior) {
    case TOK_MERGED_WITH_PREVIOUS: joins = match && !before; break;
    case TOK_MERGED_WITH_NEXT: joins = !match && before; break;
    case TOK_CONTIGUOUS: joins = match == before; break;
    default: break;
    }
    if (!joins) RETURN_IF_ERROR(close_word(g));
    g->end = end;
    if (match && s->behavior == TOK_REMOVED) g->start = end;
    return STATUS_IS_OK;
}

static status run_digits(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    growing g = {.r = r, .step = step, .text = text};
    for (size_t at = 0; at < n;) {
        unsigned length;
        size_t gap = at;
        while (at < n &&
               !(tok_unicode_class(tok_unicode_read(text + at, &length)) & UNICODE_NUMBER))
            at += length;
        if (at > gap) RETURN_IF_ERROR(add_part(&g, at, false));
        if (at < n) RETURN_IF_ERROR(add_part(&g, at += length, true));
    }
    return close_word(&g);
}

static status run_literal(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    const tok_step *s = &r->list->steps[step];
    growing g = {.r = r, .step = step, .text = text};
    for (size_t at = 0; at < n;) {
        const uint8_t *found = memmem(text + at, n - at, s->literal, s->n_literal);
        size_t start = found ? (size_t)(found - text) : n;
        if (start > at) RETURN_IF_ERROR(add_part(&g, start, false));
        at = start;
        if (found) RETURN_IF_ERROR(add_part(&g, at += s->n_literal, true));
    }
    return close_word(&g);
}

/* Called at every item of a pattern. Fails the match for good when the work is used up. */
static int count_work(pcre2_callout_block *block, void *data)
{
    tok_steps_scratch *s = data;
    size_t at = block->current_position;
    uint64_t work = 1 + (at > s->work_at ? at - s->work_at : s->work_at - at);
    s->work_at = at;
    if (work > s->work_left) return PCRE2_ERROR_CALLOUT;
    s->work_left -= work;
    return 0;
}

static status prepare_match(const run *r, unsigned step)
{
    tok_steps_scratch *s = r->scratch;
    if (!s->limits) {
        s->limits = pcre2_match_context_create(NULL);
        if (!s->limits) return status_make(STATUS_NO_MEMORY, NULL);
        pcre2_set_callout(s->limits, count_work, s);
        pcre2_set_match_limit(s->limits, UINT32_MAX); /* work_left limits it instead */
        pcre2_set_heap_limit(s->limits, MATCH_HEAP_KIB);
    }
    if (!s->match[step]) s->match[step] = pcre2_match_data_create(1, NULL);
    return s->match[step] ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

/* Matches with the compiled pattern, or by interpretation where the compiled pattern's stack is too
 * small. */
static int match_pattern(const run *r, unsigned step, const uint8_t *text, size_t n, size_t from)
{
    const pcre2_code *code = r->list->steps[step].code;
    pcre2_match_data *match = r->scratch->match[step];
    r->scratch->work_at = from;
    int rc = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK, match, r->scratch->limits);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                       r->scratch->limits);
}

/* Iterates over matches as the library does: an empty match right behind the last match does not
 * count, and the search continues one character further. */
static status run_pattern(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    RETURN_IF_ERROR(prepare_match(r, step));
    pcre2_match_data *match = r->scratch->match[step];
    growing g = {.r = r, .step = step, .text = text};
    size_t from = 0, done = 0;
    while (from <= n) {
        int rc = match_pattern(r, step, text, n, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0)
            return error_set(r->err, STATUS_LIMIT,
                             "text is too hard for the tokenizer's split pattern (PCRE2 error %d)",
                             rc);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
        size_t start = ends[0], end = ends[1];
        if (start == end && done == end) {
            from++;
            while (from < n && (text[from] & 0xc0) == 0x80) from++;
            continue;
        }
        if (start > done) RETURN_IF_ERROR(add_part(&g, start, false));
        RETURN_IF_ERROR(add_part(&g, end, true));
        from = done = end;
    }
    if (done < n) RETURN_IF_ERROR(add_part(&g, n, false));
    return close_word(&g);
}

/* ---- what is put in front ---- */

static status run_prefix_space(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    if (text[0] == ' ') return run_from(r, step + 1, text, n);
    strbuf *b = &r->scratch->prefixed;
    strbuf_clear(b);
    strbuf_putc(b, ' ');
    strbuf_append(b, text, n);
    if (b->failed) return status_make(STATUS_NO_MEMORY, NULL);
    return run_from(r, step + 1, (const uint8_t *)b->data, b->size);
}

static status run_metaspace(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    const tok_step *s = &r->list->steps[step];
    strbuf *b = &r->scratch->prefixed;
    bool replaced = text[0] == ' ' ||
                    (n >= s->n_replacement && memcmp(text, s->replacement, s->n_replacement) == 0);
    bool prepend =
        s->prepend == TOK_PREPEND_ALWAYS || (s->prepend == TOK_PREPEND_FIRST && text == r->start);
    size_t spaces = prepend && !replaced;
    for (size_t i = 0; i < n; i++) spaces += text[i] == ' ';
    strbuf_clear(b);
    if (!strbuf_reserve(b, n + spaces * s->n_replacement))
        return status_make(STATUS_NO_MEMORY, NULL);
    if (prepend && !replaced) strbuf_append(b, s->replacement, s->n_replacement);
    uint8_t *out = (uint8_t *)b->data + b->size;
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ') {
            *out++ = text[i];
            continue;
        }
        memcpy(out, s->replacement, s->n_replacement);
        out += s->n_replacement;
    }
    b->size = (size_t)(out - (uint8_t *)b->data);
    return run_from(r, step + 1, (const uint8_t *)b->data, b->size);
}

static status run_from(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    if (step == r->list->n_steps) return r->visit(r->ctx, text, n);
    switch (r->list->steps[step].kind) {
    case TOK_STEP_SPLIT: return run_split(r, step, text, n);
    case TOK_STEP_PATTERN: return run_pattern(r, step, text, n);
    case TOK_STEP_LITERAL: return run_literal(r, step, text, n);
    case TOK_STEP_DIGITS: return run_digits(r, step, text, n);
    case TOK_STEP_METASPACE: return run_metaspace(r, step, text, n);
    default: return run_prefix_space(r, step, text, n);
    }
}

status tok_steps_run(const tok_steps *list, tok_steps_scratch *s, const uint8_t *text, size_t n,
                     bool first, tok_word_visit visit, void *ctx, error *err)
{
    run r = {list, s, first ? text : NULL, visit, ctx, err};
    return run_from(&r, 0, text, n);
}

void tok_steps_destroy(tok_steps *list)
{
    for (unsigned i = 0; i < list->n_steps; i++) pcre2_code_free(list->steps[i].code);
    list->n_steps = 0;
}

tok_steps_scratch tok_steps_scratch_make(size_t text_bytes)
{
    return (tok_steps_scratch){.work_left = WORK_MAX + (uint64_t)text_bytes * WORK_OF_BYTE};
}

void tok_steps_scratch_destroy(tok_steps_scratch *s)
{
    for (unsigned i = 0; i < TOK_STEPS_MAX; i++) pcre2_match_data_free(s->match[i]);
    pcre2_match_context_free(s->limits);
    strbuf_destroy(&s->prefixed);
}
