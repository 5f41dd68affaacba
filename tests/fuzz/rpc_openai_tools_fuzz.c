/* Property: for any text and every parser of tool calls, the calls and the content are the same
 * however the text is cut into pieces, arguments follow a call, and arguments made of Python
 * literals are JSON.
 *
 * The first byte picks the parser, the second the pieces' length; the rest is the text. */
#include "rpc/openai/tools/python.h"
#include "rpc/openai/tools/tools.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

typedef struct told {
    strbuf text; // content, and marks for calls
    uint32_t n_calls;
} told;

static void on_content(void *ctx, const char *text, size_t n)
{
    FUZZ_CHECK(n > 0);
    strbuf_append(&((told *)ctx)->text, text, n);
}

static void on_call(void *ctx, const char *name, size_t n)
{
    told *t = ctx;
    FUZZ_CHECK(n > 0 && n <= TOOL_NAME_BYTES_MAX + 1);
    t->n_calls++;
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
    told t = {{0}, 0};
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

static void check_literals(const char *text, size_t n)
{
    strbuf out = {0};
    if (python_arguments(text, n, &out)) {
        json_t *doc = json_loadb(out.data, out.size, JSON_ALLOW_NUL, NULL);
        FUZZ_CHECK(json_is_object(doc));
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
    strbuf_destroy(&whole.text);
    strbuf_destroy(&cut.text);
    check_literals(text, n);
    return 0;
}
