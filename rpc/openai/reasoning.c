/* Finds the reasoning in a text. */
#include "rpc/openai/reasoning.h"

#include "rpc/openai/tools/tools.h"

#include <string.h>

/* ---- the table ------------------------------------------------------------------------------- */

/* A template chooses the first row whose end mark it mentions. */
static const reasoning_parser parsers[] = {
    {"qwen3", "Qwen 3 and others: <think> and </think>", "<think>", "</think>", false, false},
    {"deepseek_r1", "DeepSeek R1, QwQ: the same, with reasoning even before a lone </think>",
     "<think>", "</think>", true, false},
    {"mistral", "Magistral: [THINK] and [/THINK]", "[THINK]", "[/THINK]", false, true},
    {"granite", "Granite 3.2: “Here is my thought process:” and “Here is my response:”",
     "Here is my thought process:", "Here is my response:", false, false},
};

enum { N_PARSERS = sizeof parsers / sizeof parsers[0] };

const reasoning_parser *reasoning_parsers(size_t *n)
{
    *n = N_PARSERS;
    return parsers;
}

const reasoning_parser *reasoning_parser_find(const char *name)
{
    for (size_t i = 0; i < N_PARSERS; i++)
        if (strcmp(parsers[i].name, name) == 0) return &parsers[i];
    return NULL;
}

const reasoning_parser *reasoning_parser_of(const chat_template *t)
{
    for (size_t i = 0; i < N_PARSERS; i++)
        if (tmpl_mentions(t, parsers[i].ends)) return &parsers[i];
    return NULL;
}

bool reasoning_is_begun(const reasoning_parser *p, const tokenizer *t, const engine_prompt *prompt)
{
    enum { TAIL = 16 };
    strbuf text = {0};
    tok_stream d;
    tok_stream_init(&d, t, false);
    tok_stream_resume(&d);
    uint32_t from = prompt->n_tokens > TAIL ? prompt->n_tokens - TAIL : 0;
    for (uint32_t i = from; i < prompt->n_tokens; i++)
        if (prompt->tokens[i] >= tok_vocab_size(t) ||
            !status_ok(tok_stream_push(&d, prompt->tokens[i], &text)))
            break;
    size_t n = text.size, length = strlen(p->begins);
    while (n > 0 && tool_blanks(text.data + n - 1, 1)) n--;
    bool begun = n >= length && memcmp(text.data + n - length, p->begins, length) == 0;
    strbuf_destroy(&text);
    return begun;
}

/* ---- reading --------------------------------------------------------------------------------- */

enum { AT_START, BEFORE_REASONING, IN_REASONING, BEFORE_ANSWER, IN_ANSWER };

void reasoning_init(reasoning_reader *r, const reasoning_parser *parser, bool begun)
{
    *r = (reasoning_reader){.parser = parser, .state = begun ? BEFORE_REASONING : AT_START};
}

/* How many bytes of white space are in front. Those that were seen before are not looked at again,
 * however much of it a model writes. */
static size_t take_blanks(reasoning_reader *r, const char *text, size_t n)
{
    size_t seen = r->blanks < n ? r->blanks : n; // memory may have been out for the pending ones
    r->blanks = 0;
    return seen + tool_blanks(text + seen, n - seen);
}

/* White space before the mark is dropped with it. */
static size_t read_start(reasoning_reader *r, const char *text, size_t n, bool last)
{
    const char *mark = r->parser->begins;
    size_t blanks = take_blanks(r, text, n), rest = n - blanks, length = strlen(mark);
    if (rest >= length && memcmp(text + blanks, mark, length) == 0) {
        r->state = BEFORE_REASONING;
        return blanks + length;
    }
    bool may_come = rest < length && memcmp(text + blanks, mark, rest) == 0;
    if (!may_come || last) r->state = r->parser->always ? IN_REASONING : IN_ANSWER;
    else r->blanks = blanks;
    return 0;
}

/* White space at the end is held back, since it is dropped before the mark. */
static size_t read_reasoning(reasoning_reader *r, const reasoning_sink *sink, const char *text,
                             size_t n, bool last)
{
    bool found;
    size_t blanks = take_blanks(r, text, n);
    size_t at = blanks + tool_find(text + blanks, n - blanks, r->parser->ends, last, &found);
    size_t shown = at;
    while (shown > blanks && tool_blanks(text + shown - 1, 1)) shown--;
    if (shown == blanks) shown = 0;
    if (shown) sink->reasoning(sink->ctx, text, shown);
    if (found) r->state = BEFORE_ANSWER;
    else if (!last && shown == 0) r->blanks = blanks;
    return found ? at + strlen(r->parser->ends) : last ? n : shown;
}

static size_t read_some(reasoning_reader *r, const reasoning_sink *sink, const char *text, size_t n,
                        bool last)
{
    size_t blanks;
    switch (r->state) {
    case AT_START: return read_start(r, text, n, last);
    case IN_REASONING: return read_reasoning(r, sink, text, n, last);
    case IN_ANSWER: sink->answer(sink->ctx, text, n); return n;
    default:
        blanks = tool_blanks(text, n);
        if (blanks < n) r->state++;
        return blanks;
    }
}

static size_t feed(reasoning_reader *r, const reasoning_sink *sink, const char *text, size_t n,
                   bool last)
{
    size_t at = 0;
    while (at < n) {
        int state = r->state;
        size_t took = read_some(r, sink, text + at, n - at, last);
        if (took == 0 && r->state == state) break;
        at += took;
    }
    return at;
}

void reasoning_take(reasoning_reader *r, const reasoning_sink *sink, const char *text, size_t n)
{
    if (r->pending.size == 0) {
        size_t took = feed(r, sink, text, n, false);
        strbuf_append(&r->pending, text + took, n - took);
    } else {
        strbuf_append(&r->pending, text, n);
        if (r->pending.failed) return;
        size_t took = feed(r, sink, r->pending.data, r->pending.size, false);
        r->pending.size -= took;
        memmove(r->pending.data, r->pending.data + took, r->pending.size);
    }
}

void reasoning_end(reasoning_reader *r, const reasoning_sink *sink)
{
    if (r->pending.size) feed(r, sink, r->pending.data, r->pending.size, true);
    strbuf_clear(&r->pending);
}

void reasoning_destroy(reasoning_reader *r) { strbuf_destroy(&r->pending); }
