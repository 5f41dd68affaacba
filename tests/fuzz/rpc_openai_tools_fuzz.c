/* Property: for any text and every parser of tool calls, the calls and the content are the same
 * however the text is cut into pieces, arguments follow a call, arguments made of Python literals
 * are JSON, and no byte is lost outside of calls: the text is the content with gaps, and each gap
 * begins with a mark or an object, holds a call, and ends with what can end one.
 *
 * The first byte picks the parser, the second the pieces' length; the rest is the text. */
#include "rpc/openai/tools/python.h"
#include "rpc/openai/tools/tools.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { CHECKED_BYTES_MAX = 1024 }; /* of texts that are looked for lost bytes */

typedef struct told {
    strbuf text; // content, and marks for calls
    uint32_t n_calls;
    strbuf content;                 // content alone
    size_t ends[CHECKED_BYTES_MAX]; // of the content in front of each gap with calls
    size_t n_gaps;
} told;

static void on_content(void *ctx, const char *text, size_t n)
{
    FUZZ_CHECK(n > 0);
    strbuf_append(&((told *)ctx)->text, text, n);
    strbuf_append(&((told *)ctx)->content, text, n);
}

static void on_call(void *ctx, const char *name, size_t n)
{
    told *t = ctx;
    FUZZ_CHECK(n > 0 && n <= TOOL_NAME_BYTES_MAX + 1);
    t->n_calls++;
    bool same = t->n_gaps > 0 && t->ends[t->n_gaps - 1] == t->content.size;
    if (!same && t->n_gaps < CHECKED_BYTES_MAX) t->ends[t->n_gaps++] = t->content.size;
    strbuf_puts(&t->text, "\x01");
    strbuf_append(&t->text, name, n);
    strbuf_puts(&t->text, "\x02");
}

static void on_arguments(void *ctx, const char *text, size_t n)
{
    told *t = ctx;
    FUZZ_CHECK(t->n_calls > 0);
    strbuf_append(&t->text, text, n);
}

static told tell(const tool_parser *parser, const char *text, size_t n, size_t piece)
{
    told t = {0};
    const talk_sink sink = {&t, on_content, on_call, on_arguments};
    tool_reader r;
    tool_reader_init(&r, parser, &sink);
    for (size_t at = 0; at < n; at += piece)
        tool_reader_take(&r, text + at, piece < n - at ? piece : n - at);
    tool_reader_end(&r);
    FUZZ_CHECK(!r.failed && !t.text.failed);
    tool_reader_destroy(&r);
    return t;
}

/* ---- lost bytes ------------------------------------------------------------------------------ */

static bool begins(const char *text, size_t n, const char *word)
{
    return n >= strlen(word) && memcmp(text, word, strlen(word)) == 0;
}

/* The bytes of brackets with what is in them, or of all that is left; 0 = there are none. */
static size_t bracketed(const char *text, size_t n, const char *opening, const char *quotes)
{
    size_t depth = 0;
    char quote = 0;
    if (n == 0 || text[0] != opening[0]) return 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (quote) {
            if (c == '\\') i++;
            else if (c == quote) quote = 0;
        } else if (c && strchr(quotes, c)) quote = c;
        else if (c && strchr(opening, c)) depth++;
        else if (c && strchr(")]}", c) && (c != ')' || opening[0] == '(') && --depth == 0)
            return i + 1;
    }
    return n;
}

/* The bytes from `from` (which is in front) to the first `to`, without it; 0 = it is not so. */
static size_t head(const char *text, size_t n, const char *from, const char *to)
{
    if (!begins(text, n, from)) return 0;
    const char *hit = memmem(text, n, to, strlen(to));
    return hit && (size_t)(hit - text) <= 2 * TOOL_HEAD_BYTES_MAX ? (size_t)(hit - text) : 0;
}

/* The bytes from DeepSeek's mark to the call's object; between two marks may be anything. */
static size_t deepseek_head(const char *text, size_t n)
{
    static const char begin[] = "<｜tool▁call▁begin｜>", separator[] = "<｜tool▁sep｜>";
    size_t word = head(text, n, begin, separator);
    size_t name = word ? head(text + word, n - word, separator, "{") : 0;
    return name ? word + name : 0;
}

/* The name of a Python call; its parenthesis follows. */
static size_t python_name(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
                     (text[i] >= '0' && text[i] <= '9') || text[i] == '_' || text[i] == '.'))
        i++;
    return i < n && text[i] == '(' ? i : 0;
}

/* Bytes of a call, its marks, or what may stand between calls; 0 = other text is in front. inside:
 * a malformed call may end at each of them. */
static size_t call_bytes(const tool_parser *p, const char *text, size_t n, bool *inside)
{
    static const char *const marks[] = {
        "<tool_call>",          "</tool_call>",        "<|python_tag|>",
        "<|python_start|>",     "<|python_end|>",      "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>", "```",
    };
    bool python = p == &tool_parser_pythonic;
    size_t size = python ? 0 : bracketed(text, n, "{[", "\"");
    *inside = size > 0;
    if (size == 0 && python) size = python_name(text, n);
    if (size == 0 && python) size = bracketed(text, n, "([{", "\"'");
    if (size == 0 && p == &tool_parser_deepseek) size = deepseek_head(text, n);
    if (size == 0 && p == &tool_parser_mistral) size = head(text, n, "[TOOL_CALLS]", "{");
    for (size_t i = 0; i < sizeof marks / sizeof marks[0] && size == 0; i++) {
        if (begins(text, n, marks[i])) size = strlen(marks[i]);
        else if (n < strlen(marks[i]) && memcmp(text, marks[i], n) == 0) size = n;
    }
    return size > 0 ? size : text[0] && strchr(" \n\r\t,;[]", text[0]) != NULL;
}

/* Sets ends[i] where a gap that begins at `at` may end. */
static void mark_ends(const tool_parser *p, const char *text, size_t n, size_t at, bool *ends)
{
    bool inside;
    while (at < n) {
        size_t size = call_bytes(p, text + at, n - at, &inside);
        if (size == 0) break;
        for (size_t i = 1; i < size && inside; i++) ends[at + i] = true;
        at += size;
        ends[at] = true;
    }
}

/* Follows the content through the text, with all places at which each part of it may be. */
static void check_nothing_is_lost(const tool_parser *p, const told *t, const char *text, size_t n)
{
    bool at[CHECKED_BYTES_MAX + 1] = {true}, found = false;
    size_t from = 0;
    for (size_t gap = 0; gap <= t->n_gaps; gap++) {
        size_t size = (gap < t->n_gaps ? t->ends[gap] : t->content.size) - from;
        bool next[CHECKED_BYTES_MAX + 1] = {false};
        for (size_t i = 0; i + size <= n; i++) {
            if (!at[i] || (size && memcmp(text + i, t->content.data + from, size) != 0)) continue;
            found |= gap == t->n_gaps && i + size == n;
            if (gap < t->n_gaps) mark_ends(p, text, n, i + size, next);
        }
        memcpy(at, next, sizeof at);
        from += size;
    }
    FUZZ_CHECK(found);
}

static void check_literals(const char *text, size_t n)
{
    strbuf out = {0};
    if (python_arguments(text, n, &out)) {
        json_error_t why; // JSON has numbers of any size, its reader here has not
        json_t *doc = json_loadb(out.data, out.size, JSON_ALLOW_NUL, &why);
        FUZZ_CHECK(json_is_object(doc) || json_error_code(&why) == json_error_numeric_overflow);
        json_decref(doc);
    }
    strbuf_destroy(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    size_t n_parsers, n = size - 2, piece = 1 + data[1] % 16;
    const tool_parser *const *parsers = tool_parsers(&n_parsers);
    const tool_parser *parser = parsers[data[0] % n_parsers];
    const char *text = (const char *)data + 2;
    told whole = tell(parser, text, n, n), cut = tell(parser, text, n, piece);
    FUZZ_CHECK(whole.n_calls == cut.n_calls && whole.text.size == cut.text.size);
    FUZZ_CHECK(whole.text.size == 0 || memcmp(whole.text.data, cut.text.data, cut.text.size) == 0);
    if (n <= CHECKED_BYTES_MAX) check_nothing_is_lost(parser, &cut, text, n);
    strbuf_destroy(&whole.text);
    strbuf_destroy(&cut.text);
    strbuf_destroy(&whole.content);
    strbuf_destroy(&cut.content);
    check_literals(text, n);
    return 0;
}
