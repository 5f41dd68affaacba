#include "model/tokenizer/pretokenize.h"

/* What one match may cost, so that no pattern and text together run away: far above what a sane
 * pattern needs for a megabyte of one class. */
#define MATCH_STEPS_MAX 50000000u
#define MATCH_HEAP_KIB  (64u << 10)

typedef struct run {
    const tok_steps *list;
    tok_steps_scratch *scratch;
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

static status prepare_match(const run *r, unsigned step)
{
    tok_steps_scratch *s = r->scratch;
    if (!s->limits) {
        s->limits = pcre2_match_context_create(NULL);
        if (!s->limits) return status_make(STATUS_NO_MEMORY, NULL);
        pcre2_set_match_limit(s->limits, MATCH_STEPS_MAX);
        pcre2_set_heap_limit(s->limits, MATCH_HEAP_KIB);
    }
    if (!s->match[step]) s->match[step] = pcre2_match_data_create(1, NULL);
    return s->match[step] ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

/* Finds as the library's iterator does: an empty match right behind the last match does not count,
 * and the search goes on one character further. */
static status run_pattern(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    const tok_step *s = &r->list->steps[step];
    RETURN_IF_ERROR(prepare_match(r, step));
    pcre2_match_data *match = r->scratch->match[step];
    size_t from = 0, done = 0;
    while (from <= n) {
        int rc = pcre2_match(s->code, text, n, from, PCRE2_NO_UTF_CHECK, match, r->scratch->limits);
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
        if (start > done && s->keep_gaps)
            RETURN_IF_ERROR(run_from(r, step + 1, text + done, start - done));
        if (end > start && s->keep_matches)
            RETURN_IF_ERROR(run_from(r, step + 1, text + start, end - start));
        from = done = end;
    }
    if (done < n && s->keep_gaps) return run_from(r, step + 1, text + done, n - done);
    return STATUS_IS_OK;
}

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

static status run_from(const run *r, unsigned step, const uint8_t *text, size_t n)
{
    if (step == r->list->n_steps) return r->visit(r->ctx, text, n);
    switch (r->list->steps[step].kind) {
    case TOK_STEP_SPLIT: return run_split(r, step, text, n);
    case TOK_STEP_PATTERN: return run_pattern(r, step, text, n);
    default: return run_prefix_space(r, step, text, n);
    }
}

status tok_steps_run(const tok_steps *list, tok_steps_scratch *s, const uint8_t *text, size_t n,
                     tok_word_visit visit, void *ctx, error *err)
{
    run r = {list, s, visit, ctx, err};
    return run_from(&r, 0, text, n);
}

void tok_steps_destroy(tok_steps *list)
{
    for (unsigned i = 0; i < list->n_steps; i++) pcre2_code_free(list->steps[i].code);
    list->n_steps = 0;
}

void tok_steps_scratch_destroy(tok_steps_scratch *s)
{
    for (unsigned i = 0; i < TOK_STEPS_MAX; i++) pcre2_match_data_free(s->match[i]);
    pcre2_match_context_free(s->limits);
    strbuf_destroy(&s->prefixed);
}
