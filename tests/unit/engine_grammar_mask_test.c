/* A mask has exactly the tokens that the matcher accepts, and forced text is all that may come:
 * for each kind of source and for texts that are drawn from the masks themselves, the mask is
 * compared with every token of a vocabulary tried alone. The vocabulary has bytes, parts of
 * characters, and tokens across JSON's borders. */
#include "engine/grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKENS = 1600, TEXTS = 6, STEPS = 40 };

typedef struct fixture {
    uint32_t settled, unsettled; // forced texts whose settled bytes are all; and are fewer
    grammar_token tokens[N_TOKENS];
    char bytes[N_TOKENS][48];
    grammar_vocab *vocab;
    rng random;
} fixture;

static void add(fixture *f, uint32_t t, const char *s, size_t n)
{
    memcpy(f->bytes[t], s, n);
    f->tokens[t] = (grammar_token){f->bytes[t], (uint32_t)n};
}

/* Single bytes, then random strings of pieces; some tokens are equal, and some are empty. */
static int open_fixture(void **state)
{
    static const char *const pieces[] = {
        "{",  "}",    "[",      "]",    "\"",       "\\",       ":",    ",",        " ",     "\n",
        "a",  "b",    "ab",     "name", "x-",       "true",     "null", "1",        "0",     "-",
        ".",  "25",   "e",      "\\u",  "\\n",      "d8",       "00e9", "\xc3\xa9", "\xc3",  "\xa9",
        "\t", "the ", "\": \"", "\",",  "\xf0\x9f", "\x98\x80", "+",    "(",        "value", "zz"};
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->random = rng_seed(21);
    for (uint32_t t = 0; t < 256; t++) add(f, t, &(char){(char)t}, 1);
    for (uint32_t t = 256; t < N_TOKENS; t++) {
        char text[48];
        size_t n = 0;
        for (uint32_t k = 1 + rng_u32(&f->random) % 4; k > 0; k--) {
            const char *piece = pieces[rng_u32(&f->random) % (sizeof pieces / sizeof *pieces)];
            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
        }
        add(f, t, text, t % 97 == 0 ? 0 : n);
    }
    add(f, 300, "abababababababababababababababababababababab", 44);
    assert_true(status_ok(grammar_vocab_create(f->tokens, N_TOKENS, &f->vocab)));
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    grammar_vocab_destroy(f->vocab);
    free(f);
    return 0;
}

static void compare(fixture *f, grammar_matcher *m, const uint32_t *mask, const char *source)
{
    uint32_t n = grammar_accepted(m);
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        bool listed = mask[t / 32] >> t % 32 & 1, ok = status_ok(grammar_accept(m, t));
        grammar_rollback(m, n);
        if (listed != ok)
            fail_msg("%s: token %u '%.*s' is %s after %u tokens", source, t, (int)f->tokens[t].n,
                     f->tokens[t].bytes,
                     listed ? "in the mask and refused" : "accepted and not in the mask", n);
    }
}

/* A token of the mask; longer ones are drawn more often, so that texts cross borders. */
static uint32_t draw(fixture *f, const uint32_t *mask)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t tries = 0; tries < 4; tries++) {
        uint32_t from = rng_u32(&f->random) % N_TOKENS;
        for (uint32_t i = 0; i < N_TOKENS; i++) {
            uint32_t t = (from + i) % N_TOKENS;
            if (!(mask[t / 32] >> t % 32 & 1)) continue;
            if (best == UINT32_MAX || f->tokens[t].n > f->tokens[best].n) best = t;
            break;
        }
    }
    return best;
}

/* Whether a token that may come behind the first `at` bytes of a forced text reaches past it. */
static bool reaches_past(fixture *f, grammar_matcher *m, const strbuf *text, size_t at)
{
    uint32_t mask[(N_TOKENS + 31) / 32], before = grammar_accepted(m);
    bool found = false;
    assert_true(status_ok(grammar_accept_bytes(m, text->data, at)));
    assert_true(status_ok(grammar_mask(m, mask)));
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        if (!(mask[t / 32] >> t % 32 & 1)) continue;
        size_t n = text->size - at < f->tokens[t].n ? text->size - at : f->tokens[t].n;
        assert_memory_equal(text->data + at, f->tokens[t].bytes, n);
        found |= f->tokens[t].n > text->size - at;
    }
    grammar_rollback(m, before);
    return found;
}

static void check_forced(fixture *f, grammar_matcher *m, const char *source)
{
    strbuf text = {0};
    size_t settled;
    assert_true(status_ok(grammar_forced(m, 40, &text, &settled)));
    assert_true(settled <= text.size);
    for (size_t at = 0; at <= settled && at < text.size; at++)
        if (reaches_past(f, m, &text, at) != (at == settled))
            fail_msg("%s: %zu of the bytes '%s' are settled, and not %zu", source, settled,
                     text.data, at);
    f->settled += text.size > 0 && settled == text.size;
    f->unsettled += settled > 0 && settled < text.size;
    strbuf_destroy(&text);
}

static void follow(fixture *f, grammar *g, const char *source)
{
    uint32_t mask[(N_TOKENS + 31) / 32];
    grammar_matcher *m = grammar_matcher_create(g);
    assert_non_null(m);
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_true(status_ok(grammar_mask(m, mask)));
        compare(f, m, mask, source);
        check_forced(f, m, source);
        uint32_t t = draw(f, mask);
        if (t == UINT32_MAX) {
            assert_true(grammar_may_end(m)); // no text leads where nothing follows
            break;
        }
        assert_true(status_ok(grammar_accept(m, t)));
    }
    grammar_matcher_destroy(m);
}

static void check(fixture *f, grammar_kind kind, const char *text, bool compact)
{
    grammar_source source = {.kind = kind, .text = text, .n = strlen(text), .compact = compact};
    grammar *g = NULL;
    error err = {{0}};
    if (!status_ok(grammar_create(&source, f->vocab, &g, &err))) fail_msg("%s: %s", text, err.text);
    for (uint32_t i = 0; i < TEXTS; i++) follow(f, g, text);
    grammar_release(g);
}

static void test_schemas(void **state)
{
    static const char *const schemas[] = {
        "{}",
        "{\"type\":\"string\"}",
        "{\"type\":\"string\",\"maxLength\":9}",
        "{\"type\":\"string\",\"minLength\":6,\"maxLength\":60}",
        "{\"type\":\"string\",\"minLength\":3}",
        "{\"type\":\"string\",\"minLength\":7}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":5},\"minItems\":6}",
        "{\"pattern\":\"^[ab]+(e|\\\\n)?\"}",
        "{\"pattern\":\"^(a|1|\\\\s)*$\",\"maxLength\":7}",
        "{\"properties\":{\"name\":{\"maxLength\":12},\"a\":{\"type\":\"number\"},\"ab\":{}}}",
        "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"enum\":[\"a\",\"ab\",\"value\"]}},"
        "\"required\":[\"b\",\"zz\"],\"additionalProperties\":{\"type\":\"null\"}}",
        "{\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"null\"]},\"minItems\":3,"
        "\"maxItems\":9}",
        "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}},{\"type\":\"number\","
        "\"minimum\":-25.5},{\"type\":\"string\",\"maxLength\":5},{\"const\":\"abab\"}]}",
        "{\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},\"additionalProperties\":"
        "{\"type\":\"string\"},\"maxProperties\":3}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        check(*state, GRAMMAR_JSON_SCHEMA, schemas[i], i % 2);
    check(*state, GRAMMAR_JSON_OBJECT, "", false);
}

static void test_other_sources(void **state)
{
    static const char *const rules[] = {
        "root ::= value\nvalue ::= object | \"\\\"\" [^\"\\\\]* \"\\\"\" | [0-9]+ | \"true\"\n"
        "object ::= \"{\" (pair (\",\" ws pair)*)? \"}\"\npair ::= \"\\\"\" [a-z]+ \"\\\":\" ws "
        "value\n"
        "ws ::= [ \\n\\t]*",
        "root ::= root \"+\" term | term\nterm ::= [ab]{1,30} | \"(\" root \")\"",
        "root ::= line{2,50}\nline ::= [^\\n]* \"\\n\"",
        "root ::= text text\ntext ::= [^\\n]{0,20}", // two readings of every text
        "root ::= a \"x\" | [^x]{3,40} \"-\"\na ::= \"ab\" a | \"ab\"",
        "root ::= b \"x\"?\nb ::= (\"a\" b | [a-z ] \"-\"?) (\"n\" b)?",
        "root ::= \"\\\"\"? t \"\\\"\"\nt ::= [^\\\"] t | \"\"",
        "root ::= x | y\nx ::= \"a\"? y\ny ::= (\"b\" x)? | \"a\" \"n\"? y",
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        check(*state, GRAMMAR_GBNF, rules[i], false);
    check(*state, GRAMMAR_REGEX, ".*", false);
    check(*state, GRAMMAR_REGEX, "(the |name|[0-9]{2,5}\\.)+", false);
    check(
        *state, GRAMMAR_TAGGED,
        "{\"values\":[{\"begin\":\"name: \",\"schema\":{\"maxLength\":9}},{\"begin\":\"[\",\"end\":"
        "\"]\",\"schema\":{\"type\":\"object\"}}],\"many\":true,\"separator\":\"\\n\"}",
        true);
    check(*state, GRAMMAR_CHOICE, "[\"a\",\"ab\",\"name\",\"name: value\"]", false);
    check(*state, GRAMMAR_REGEX, "value: (true|null), the name(a{2})?zz", false);
    const fixture *f = *state;
    assert_true(f->settled > 20 && f->unsettled > 20);
}

/* A rule of any text that is written with a call of itself is no more work than a repetition: a
 * mask over many tokens does not end for too many ways to read them. */
static void test_recursive_text(void **state)
{
    enum { LETTERS = 12, CHARS = 5, N = LETTERS * LETTERS * LETTERS * LETTERS * LETTERS };
    static const char source[] = "root ::= \"x\"? t \"\\n\"\nt ::= [^\\n] t | \"\"";
    const grammar_source from = {GRAMMAR_GBNF, source, sizeof source - 1, false};
    grammar_token *tokens = malloc(N * sizeof *tokens);
    char *bytes = malloc(N * CHARS);
    uint32_t *mask = malloc(N / 8 + sizeof *mask);
    grammar_vocab *v;
    grammar *g;
    error err;
    (void)state;
    assert_true(tokens && bytes && mask);
    for (uint32_t t = 0; t < N; t++) {
        uint32_t rest = t;
        for (uint32_t i = 0; i < CHARS; i++, rest /= LETTERS)
            bytes[t * CHARS + i] = (char)('a' + rest % LETTERS);
        tokens[t] = (grammar_token){bytes + t * CHARS, CHARS};
    }
    assert_true(status_ok(grammar_vocab_create(tokens, N, &v)));
    assert_true(status_ok(grammar_create(&from, v, &g, &err)));
    grammar_matcher *m = grammar_matcher_create(g);
    assert_true(status_ok(grammar_mask(m, mask)));
    for (uint32_t w = 0; w < N / 32; w++) assert_int_equal(mask[w], UINT32_MAX);
    grammar_matcher_destroy(m);
    grammar_release(g);
    grammar_vocab_destroy(v);
    free(mask);
    free(bytes);
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_other_sources),
        cmocka_unit_test(test_recursive_text),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
