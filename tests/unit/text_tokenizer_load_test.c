/* Files that tok_load refuses, each with one line that names the place. */
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL   "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define BYTES   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define DECODER "\"decoder\":" BYTES
#define ENDS    "\"pre_tokenizer\":" BYTES "," DECODER

static status load(const char *json, size_t n, error *err)
{
    tokenizer *t = NULL;
    err->text[0] = 0;
    status s = tok_load_text("f.json", json, n, &t, err);
    assert_true(status_ok(s) == (t != NULL));
    tok_destroy(t);
    return s;
}

static void expect(const char *json, status_code code, const char *due)
{
    error err;
    status s = load(json, strlen(json), &err);
    bool one_line = !strchr(err.text, '\n') && utf8_valid((uint8_t *)err.text, strlen(err.text));
    if (s.code == code && one_line && strcmp(err.text, due) == 0) return;
    fail_msg("%s\n  gives %s: %s\n  due   %s: %s", json, status_text(s.code), err.text,
             status_text(code), due);
}

typedef struct row {
    const char *json;
    status_code code;
    const char *due;
} row;

static void check(const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) expect(rows[i].json, rows[i].code, rows[i].due);
}

static void models(void **state)
{
    (void)state;
#define WITH(model) "{\"model\":" model "," ENDS "}"
#define BPE(more)   WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]," more "}")
    static const row rows[] = {
        {WITH(MODEL), STATUS_OK, ""},
        {"[]", STATUS_CORRUPT, "f.json: the document is no JSON object"},
        {"{" ENDS "}", STATUS_CORRUPT, "f.json: model: must be an object"},
        {"{\"version\":\"2.0\",\"model\":" MODEL "}", STATUS_UNSUPPORTED,
         "f.json: version \"2.0\" is not supported"},
        {WITH("{}"), STATUS_CORRUPT, "f.json: model: no \"type\""},
        {WITH("{\"type\":\"Unigram\"}"), STATUS_UNSUPPORTED,
         "f.json: model: type \"Unigram\" is not supported"},
        {WITH("{\"type\":\"Bad\\n\\u0007name\"}"), STATUS_UNSUPPORTED,
         "f.json: model: type \"Bad??name\" is not supported"},
        {BPE("\"byte_fallback\":true"), STATUS_UNSUPPORTED,
         "f.json: model: byte_fallback with ByteLevel is not supported"},
        {BPE("\"byte_fallback\":1"), STATUS_CORRUPT,
         "f.json: model: \"byte_fallback\" must be a boolean, not a number"},
        {BPE("\"dropout\":0.1"), STATUS_UNSUPPORTED, "f.json: model: dropout is not supported"},
        {BPE("\"continuing_subword_prefix\":\"##\""), STATUS_UNSUPPORTED,
         "f.json: model: continuing_subword_prefix is not supported"},
        {BPE("\"end_of_word_suffix\":\"</w>\""), STATUS_UNSUPPORTED,
         "f.json: model: end_of_word_suffix is not supported"},
        {BPE("\"end_of_word_suffix\":\"\",\"dropout\":0.0,\"unk_token\":null"), STATUS_OK, ""},
        {BPE("\"unk_token\":\"u\""), STATUS_CORRUPT,
         "f.json: model: unk_token \"u\" is not in the vocabulary"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

static void vocab_and_merges(void **state)
{
    (void)state;
#define VOCAB(vocab)   WITH("{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":[]}")
#define MERGES(merges) WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":" merges "}")
    static const row rows[] = {
        {VOCAB("[]"), STATUS_CORRUPT, "f.json: model: vocab: must be an object"},
        {VOCAB("{}"), STATUS_OK, ""},
        {VOCAB("{\"a\":\"0\"}"), STATUS_CORRUPT,
         "f.json: model: vocab: the id of \"a\" must be an integer in [0, 16777215]"},
        {VOCAB("{\"a\":-1}"), STATUS_CORRUPT,
         "f.json: model: vocab: the id of \"a\" must be an integer in [0, 16777215]"},
        {VOCAB("{\"a\":16777215}"), STATUS_LIMIT,
         "f.json: model: vocab: id 16777215 is too large for 1 tokens"},
        {VOCAB("{\"a\":4294967296}"), STATUS_LIMIT,
         "f.json: model: vocab: id 4294967296 is too large for 1 tokens"},
        {VOCAB("{\"a\":7,\"b\":7}"), STATUS_CORRUPT,
         "f.json: model: vocab: two tokens have id 7, one is \"b\""},
        {VOCAB("{\"a\":0,\"a\":1}"), STATUS_CORRUPT,
         "f.json: line 1, column 39: duplicate object key near '\"a\":1},\"merges\":'"},
        {MERGES("{}"), STATUS_CORRUPT, "f.json: model: merges: must be an array"},
        {MERGES("[\"a b c\"]"), STATUS_CORRUPT,
         "f.json: model: merges[0]: must be \"a b\" or [\"a\", \"b\"]"},
        {MERGES("[\"ab\"]"), STATUS_CORRUPT,
         "f.json: model: merges[0]: must be \"a b\" or [\"a\", \"b\"]"},
        {MERGES("[[\"a\"]]"), STATUS_CORRUPT,
         "f.json: model: merges[0]: must be \"a b\" or [\"a\", \"b\"]"},
        {MERGES("[[\"a\",1]]"), STATUS_CORRUPT,
         "f.json: model: merges[0]: must be \"a b\" or [\"a\", \"b\"]"},
        {MERGES("[\"#version: 1\",\"a x\"]"), STATUS_CORRUPT,
         "f.json: model: merges[1]: \"x\" is not in the vocabulary"},
        {MERGES("[[\"a\",\"b\"]]"), STATUS_CORRUPT,
         "f.json: model: merges[0]: \"ab\" is not in the vocabulary"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

static void added_tokens(void **state)
{
    (void)state;
#define ADDED(list) "{\"model\":" MODEL ",\"added_tokens\":" list "," ENDS "}"
    static const row rows[] = {
        {ADDED("{}"), STATUS_CORRUPT, "f.json: added_tokens must be an array"},
        {ADDED("[1]"), STATUS_CORRUPT, "f.json: added_tokens[0]: must be an object"},
        {ADDED("[{\"content\":\"x\"}]"), STATUS_CORRUPT, "f.json: added_tokens[0]: no \"id\""},
        {ADDED("[{\"id\":16777216,\"content\":\"x\"}]"), STATUS_CORRUPT,
         "f.json: added_tokens[0]: \"id\" is 16777216, must be between 0 and 16777215"},
        {ADDED("[{\"id\":3}]"), STATUS_CORRUPT, "f.json: added_tokens[0]: no \"content\""},
        {ADDED("[{\"id\":3,\"content\":\"\"}]"), STATUS_OK, ""},
        {ADDED("[{\"id\":3,\"content\":\"x\"},{\"id\":4,\"content\":\"y\",\"lstrip\":0}]"),
         STATUS_CORRUPT, "f.json: added_tokens[1]: \"lstrip\" must be a boolean, not a number"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

static void parts(void **state)
{
    (void)state;
#define NORMALIZER(part) "{\"model\":" MODEL ",\"normalizer\":" part "," ENDS "}"
#define PRE(part)        "{\"model\":" MODEL ",\"pre_tokenizer\":" part "," DECODER "}"
#define POST(part)       "{\"model\":" MODEL ",\"post_processor\":" part "," ENDS "}"
#define SPLIT(more)                                                                                \
    PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\"," more "}," BYTES "]}")
    static const row rows[] = {
        {NORMALIZER("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"), STATUS_OK, ""},
        {NORMALIZER("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                    "\"Lowercase\"}]}"),
         STATUS_UNSUPPORTED,
         "f.json: normalizer: normalizers[1]: type \"Lowercase\" is not supported"},
        {NORMALIZER("{}"), STATUS_CORRUPT, "f.json: normalizer: no \"type\""},
        {NORMALIZER("\"NFC\""), STATUS_CORRUPT,
         "f.json: normalizer: must be an object, not a string"},
        {PRE("null"), STATUS_UNSUPPORTED,
         "f.json: decoder: \"ByteLevel\" without a pre_tokenizer ByteLevel is not supported"},
        {PRE("{\"type\":\"Whitespace\"}"), STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: type \"Whitespace\" is not supported"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":"
             "\"_\"}," BYTES "]}"),
         STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: pretokenizers[0]: Metaspace with ByteLevel is not supported"},
        {PRE("{\"type\":\"Sequence\"}"), STATUS_CORRUPT,
         "f.json: pre_tokenizer: \"pretokenizers\" must be an array"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES ",{\"type\":\"Split\"}]}"),
         STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: pretokenizers[1]: \"Split\" after ByteLevel is not supported"},
        {SPLIT("\"pattern\":{\"Regex\":\"a\"}"), STATUS_CORRUPT,
         "f.json: pre_tokenizer: pretokenizers[0]: no \"behavior\""},
        {SPLIT("\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"MergedWithNext\""), STATUS_OK, ""},
        {SPLIT("\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Merged\""), STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: pretokenizers[0]: behavior \"Merged\" is not supported"},
        {SPLIT("\"pattern\":\"a\",\"behavior\":\"Isolated\""), STATUS_CORRUPT,
         "f.json: pre_tokenizer: pretokenizers[0]: \"pattern\" must be {\"Regex\": text} or "
         "{\"String\": text}"},
        {SPLIT("\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\""), STATUS_CORRUPT,
         "f.json: pre_tokenizer: pretokenizers[0]: pattern: missing closing parenthesis"},
        {POST("{\"type\":\"RobertaProcessing\"}"), STATUS_UNSUPPORTED,
         "f.json: post_processor: type \"RobertaProcessing\" is not supported"},
        {"{\"model\":" MODEL ",\"pre_tokenizer\":" BYTES "}", STATUS_UNSUPPORTED,
         "f.json: decoder: none is not supported"},
        {"{\"model\":" MODEL ",\"pre_tokenizer\":" BYTES ",\"decoder\":{\"type\":\"Fuse\"}}",
         STATUS_UNSUPPORTED, "f.json: decoder: \"Fuse\" with ByteLevel is not supported"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

/* Parts of character-based models. */
static void character_parts(void **state)
{
    (void)state;
#define FUSE          "{\"type\":\"Fuse\"}"
#define CHARS(parts)  "{\"model\":" MODEL "," parts "}"
#define META(more)    CHARS("\"pre_tokenizer\":{\"type\":\"Metaspace\"," more "},\"decoder\":" FUSE)
#define DECODERS(...) CHARS("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" __VA_ARGS__ "]}")
#define NORMAL(part)  CHARS("\"normalizer\":" part ",\"decoder\":" FUSE)
#define STRIP(more)   "{\"type\":\"Strip\"," more "}"
#define SPACE_START   "\"content\":\" \",\"start\":1,\"stop\":0"
    static const row rows[] = {
        {CHARS("\"decoder\":" FUSE), STATUS_OK, ""},
        {CHARS("\"decoder\":{\"type\":\"WordPiece\"}"), STATUS_UNSUPPORTED,
         "f.json: decoder: type \"WordPiece\" is not supported"},
        {META("\"replacement\":\"_\""), STATUS_OK, ""},
        {META("\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":false"), STATUS_OK, ""},
        {META("\"split\":false"), STATUS_CORRUPT, "f.json: pre_tokenizer: no \"replacement\""},
        {META("\"replacement\":\"__\""), STATUS_CORRUPT,
         "f.json: pre_tokenizer: \"replacement\" must be one character"},
        {META("\"replacement\":\"\""), STATUS_CORRUPT,
         "f.json: pre_tokenizer: \"replacement\" must be one character"},
        {META("\"replacement\":\"_\",\"prepend_scheme\":\"last\""), STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: prepend_scheme \"last\" is not supported"},
        {META("\"replacement\":\"_\",\"add_prefix_space\":false"), STATUS_UNSUPPORTED,
         "f.json: pre_tokenizer: add_prefix_space false with prepend_scheme \"always\" is not "
         "supported"},
        {NORMAL("{\"type\":\"Prepend\",\"prepend\":\"_\"}"), STATUS_OK, ""},
        {NORMAL("{\"type\":\"Prepend\"}"), STATUS_CORRUPT, "f.json: normalizer: no \"prepend\""},
        {NORMAL("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}"),
         STATUS_UNSUPPORTED, "f.json: normalizer: a Regex pattern is not supported"},
        {NORMAL("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"}"),
         STATUS_UNSUPPORTED, "f.json: normalizer: an empty pattern is not supported"},
        {NORMAL("{\"type\":\"Replace\",\"pattern\":{},\"content\":\"b\"}"), STATUS_CORRUPT,
         "f.json: normalizer: pattern: no \"String\""},
        {DECODERS("{\"type\":\"ByteFallback\"}," FUSE "," STRIP(SPACE_START)), STATUS_OK, ""},
        {DECODERS(FUSE ",{\"type\":\"ByteFallback\"}"), STATUS_UNSUPPORTED,
         "f.json: decoder: decoders[1]: at this place is not supported"},
        {DECODERS(STRIP(SPACE_START)), STATUS_UNSUPPORTED,
         "f.json: decoder: decoders[0]: without Fuse before it is not supported"},
        {DECODERS(FUSE "," STRIP("\"content\":\" \",\"start\":1,\"stop\":1")), STATUS_UNSUPPORTED,
         "f.json: decoder: decoders[1]: anything but spaces at the start is not supported"},
        {DECODERS(FUSE "," BYTES), STATUS_UNSUPPORTED,
         "f.json: decoder: decoders[1]: \"ByteLevel\" without a pre_tokenizer ByteLevel is not "
         "supported"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}," BYTES "]}"),
         STATUS_OK, ""},
        {"{\"model\":" MODEL ",\"pre_tokenizer\":" BYTES
         ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[]}}",
         STATUS_UNSUPPORTED, "f.json: decoder: without ByteLevel is not supported"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

static void templates(void **state)
{
    (void)state;
#define A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define S "{\"SpecialToken\":{\"id\":\"s\",\"type_id\":0}}"
#define TEMPLATE(single, ids)                                                                      \
    POST("{\"type\":\"TemplateProcessing\",\"single\":" single                                     \
         ",\"special_tokens\":{\"s\":{\"id\":\"s\",\"ids\":" ids "}}}")
    static const row rows[] = {
        {TEMPLATE("[" S "," A "," S "]", "[0,1]"), STATUS_OK, ""},
        {TEMPLATE("[" S "," A "]", "[3]"), STATUS_CORRUPT,
         "f.json: post_processor: single[0]: special_tokens[\"s\"].ids[0] is no id of the "
         "vocabulary"},
        {TEMPLATE("[" S "," A "]", "[-1]"), STATUS_CORRUPT,
         "f.json: post_processor: single[0]: special_tokens[\"s\"].ids[0] is no id of the "
         "vocabulary"},
        {TEMPLATE("[" S "," A "]", "7"), STATUS_CORRUPT,
         "f.json: post_processor: single[0]: no special_tokens[\"s\"].ids"},
        {TEMPLATE("[" S "]", "[1]"), STATUS_UNSUPPORTED,
         "f.json: post_processor: a template without Sequence A is not supported"},
        {TEMPLATE("[" A "," A "]", "[1]"), STATUS_UNSUPPORTED,
         "f.json: post_processor: single[1]: a second Sequence is not supported"},
        {TEMPLATE("[{}]", "[1]"), STATUS_CORRUPT,
         "f.json: post_processor: single[0]: must be a SpecialToken or Sequence A"},
        {TEMPLATE("\"$A\"", "[1]"), STATUS_CORRUPT,
         "f.json: post_processor: \"single\" must be an array"},
    };
    check(rows, sizeof rows / sizeof *rows);
}

/* Patterns that Oniguruma and PCRE2 would read differently. */
static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *due;
    } rows[] = {
        {"\\\\w+", "\\w at byte 0"},
        {"a\\\\h", "\\h at byte 1"},
        {"\\\\p{Han}", "a \\p that is no general category at byte 0"},
        {"\\\\pL", "a \\p that is no general category at byte 0"},
        {"[a\\\\S]", "\\S in a class at byte 2"},
        {"[a[b]]", "a class within a class at byte 2"},
        {"[a&&b]", "a class intersection (&&) at byte 2"},
        {"[]a]", "a class that starts with ] at byte 1"},
        {"[a", "a class without its ] at byte 2"},
        {"a{1,3}+", "an interval followed by + at byte 1"},
        {"a{,3}", "a { that starts no {n}, {n,} or {n,m} at byte 1"},
        {"(?m:a)", "this kind of group at byte 0"},
        {"(?<name>a)", "this kind of group at byte 0"},
        {"(*UCP)a", "this kind of group at byte 0"},
        {"\\\\x41", "this \\x or \\u at byte 0"},
        {"\\\\u12", "this \\x or \\u at byte 0"},
        {"a\\\\", "a lone backslash at byte 1"},
        {"\\\\1", "\\1 at byte 0"},
        {"(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
         "nesting this deep at byte 64"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strbuf json = {0}, due = {0};
        strbuf_printf(&json, SPLIT("\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\""),
                      rows[i].pattern);
        strbuf_printf(&due,
                      "f.json: pre_tokenizer: pretokenizers[0]: %s of the pattern is not supported",
                      rows[i].due);
        expect(json.data, STATUS_UNSUPPORTED, due.data);
        strbuf_destroy(&json);
        strbuf_destroy(&due);
    }
}

static void every_truncation(void **state)
{
    (void)state;
    char *json;
    size_t n;
    error err;
    assert_true(
        status_ok(file_read("tests/golden/tokenizers/llama3.json", 1u << 24, &json, &n, &err)));
    while (n > 0 && json[n - 1] != '}') n--;
    assert_true(status_ok(load(json, n, &err)));
    for (size_t cut = 0; cut < n; cut += cut < 200 || cut > n - 200 ? 1 : 997) {
        status s = load(json, cut, &err);
        assert_int_equal(s.code, STATUS_CORRUPT);
        assert_ptr_equal(strstr(err.text, "f.json: line "), err.text);
        assert_null(strchr(err.text, '\n'));
    }
    free(json);
}

static void missing_folder(void **state)
{
    (void)state;
    tokenizer *t;
    error err;
    status s = tok_load("tests/golden/no such folder", &t, &err);
    assert_false(status_ok(s));
    assert_non_null(strstr(err.text, "tests/golden/no such folder/tokenizer.json"));
}

static void oversized_tokens(void **state)
{
    (void)state;
    strbuf token = {0}, json = {0};
    while (token.size < 5000) strbuf_putc(&token, 'x');
    strbuf_printf(&json, VOCAB("{\"%s\":5}"), token.data);
    expect(json.data, STATUS_LIMIT, "f.json: model: vocab: token 5 has 5000 bytes, more than 4096");
    strbuf_clear(&json);
    strbuf_printf(&json, ADDED("[{\"id\":3,\"content\":\"%s\"}]"), token.data);
    expect(json.data, STATUS_LIMIT,
           "f.json: added_tokens[0]: \"content\" has more than 4096 bytes");
    strbuf_destroy(&token);
    strbuf_destroy(&json);
}

/* Merges whose halves are not tokens may have any length. */
static void oversized_merges(void **state)
{
    (void)state;
    strbuf half = {0}, json = {0};
    while (half.size < 1u << 20) strbuf_putc(&half, 'x');
    strbuf_printf(&json,
                  "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"%s\",\"%s\"]]},"
                  "\"decoder\":" FUSE "}",
                  half.data, half.data);
    expect(json.data, STATUS_CORRUPT,
           "f.json: model: merges[0]: \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" is not "
           "in the "
           "vocabulary");
    strbuf_destroy(&half);
    strbuf_destroy(&json);
}

/* `n_tokens` tokens of 1 000 x, and `n` decoders that make `content` of each x. */
static void expect_decoders(unsigned n_tokens, unsigned n, const char *content, status_code code,
                            const char *due)
{
    char xs[1001];
    strbuf json = {0};
    memset(xs, 'x', 1000);
    xs[1000] = 0;
    strbuf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0");
    for (unsigned i = 1; i <= n_tokens; i++) strbuf_printf(&json, ",\"%s%u\":%u", xs, i, i);
    strbuf_puts(&json, "}},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[");
    for (unsigned i = 0; i < n; i++)
        strbuf_printf(&json,
                      "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"%s\"}",
                      i ? "," : "", content);
    strbuf_puts(&json, "]}}");
    expect(json.data, code, due);
    strbuf_destroy(&json);
}

/* The decoded vocabulary may be far larger than the file. */
static void growing_decoders(void **state)
{
    (void)state;
    expect_decoders(1, 16, "x", STATUS_OK, "");
    expect_decoders(1, 17, "x", STATUS_LIMIT,
                    "f.json: decoder: decoders[16]: more than 16 decoders");
    expect_decoders(1, 2, "xxxxxxxxx", STATUS_LIMIT,
                    "f.json: decoder: decoders[1]: makes a token of more than 65535 bytes");
    expect_decoders(1500, 1, "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
                    STATUS_LIMIT,
                    "f.json: decoder: decoders[0]: makes tokens of more than 67108864 bytes "
                    "together");
}

/* The bound on tokens for bytes of text; there is none where bytes may be dropped. */
static void bytes_of_a_token(void **state)
{
    (void)state;
    static const char dropping[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
    error err;
    tokenizer *t = NULL;
    assert_true(status_ok(tok_load("models/demo", &t, &err)));
    assert_in_range(tok_bytes_per_token(t), 4, 64);
    tok_destroy(t);
    if (!status_ok(tok_load_text("test", dropping, sizeof dropping - 1, &t, &err)))
        fail_msg("%s", err.text);
    assert_int_equal(tok_bytes_per_token(t), 0);
    tok_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_token),
        cmocka_unit_test(models),
        cmocka_unit_test(vocab_and_merges),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(parts),
        cmocka_unit_test(templates),
        cmocka_unit_test(patterns),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test(missing_folder),
        cmocka_unit_test(oversized_tokens),
        cmocka_unit_test(character_parts),
        cmocka_unit_test(oversized_merges),
        cmocka_unit_test(growing_decoders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
