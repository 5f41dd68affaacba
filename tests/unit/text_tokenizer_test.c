/* The tokenizer against the results of Hugging Face's library for 10,800 lines
 * (tests/golden/tokenizers/, by tools/make_tokenizer_goldens.py), and corner cases by hand. */
#include "text/tokenizer.h"
#include "text/tokenizer/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/tokenizers/"
enum { N_TOKENIZERS = 3, N_SHAPES = 5 };

static tokenizer *load_file(const char *path)
{
    char *json;
    size_t n;
    error err = {""};
    tokenizer *t = NULL;
    status s = file_read(path, 1u << 24, &json, &n, &err);
    if (status_ok(s)) {
        s = tok_load_text(path, json, n, &t, &err);
        free(json);
    }
    if (!status_ok(s)) fail_msg("%s", err.text);
    return t;
}

/* ---- the golden corpus ---- */

static uint32_t fnv(uint32_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x01000193u;
    return h;
}

#define FNV_START 0x811c9dc5u

typedef struct golden {
    unsigned long n;
    uint32_t ids, decoded;
} golden;

static int hex(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* Parses "text TAB n goldens TAB pieces NL"; returns the next line. */
static const char *parse_line(const char *p, strbuf *text, golden *due, int n, uint32_t *pieces)
{
    char *end;
    strbuf_clear(text);
    for (; *p && *p != '\t'; p++) {
        if (*p != '\\') {
            strbuf_putc(text, *p);
            continue;
        }
        strbuf_putc(text, (char)(hex(p[2]) * 16 + hex(p[3])));
        p += 3;
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(*p, '\t');
        due[i].n = strtoul(p + 1, &end, 10);
        due[i].ids = (uint32_t)strtoul(end + 1, &end, 16);
        due[i].decoded = (uint32_t)strtoul(end + 1, &end, 16);
        p = end;
    }
    assert_int_equal(*p, '\t');
    *pieces = (uint32_t)strtoul(p + 1, &end, 16);
    assert_int_equal(*end, '\n');
    return end + 1;
}

#define LLAMA3(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define TEKKEN_HEAD "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN_TAIL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    LLAMA3("{1,3}"), LLAMA3(""), NULL};
static const char *const tekken[] = {
    "[^\\r\\n\\p{L}\\p{N}]?" TEKKEN_HEAD "*" TEKKEN_TAIL "+|[^\\r\\n\\p{L}\\p{N}]?" TEKKEN_HEAD
    "+" TEKKEN_TAIL "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    NULL};

/* Splits may differ where no merge spans the cut, which ids would not show. */
static bool check_pieces(const char *const *list, const strbuf *text, uint32_t due)
{
    const uint8_t *s = (const uint8_t *)text->data;
    if (text->size == 0 || !utf8_valid(s, text->size)) return true;
    uint32_t hash = FNV_START;
    for (; *list; list++) {
        tok_split split = tok_split_find(*list, strlen(*list));
        assert_non_null(split);
        for (size_t at = 0, end; at < text->size; at = end) {
            end = split(s, text->size, at);
            assert_in_range(end, at + 1, text->size);
            uint32_t length = (uint32_t)(end - at);
            hash = fnv(hash, &length, sizeof length);
        }
    }
    return hash == due;
}

/* No text has fewer ids than the bound from its bytes. */
static void check_bound(const tokenizer *t, size_t n_bytes, size_t n_ids)
{
    size_t most = tok_bytes_per_token(t);
    if (most > 0 && n_ids < n_bytes / most)
        fail_msg("%zu bytes of %zu a token in %zu tokens", n_bytes, most, n_ids);
}

/* Decodes as a stream does, into out, and checks that every part is whole characters. */
static bool stream_decode(const tokenizer *t, const tok_ids *ids, bool skip, strbuf *out)
{
    tok_stream stream;
    tok_stream_init(&stream, t, skip);
    for (size_t i = 0, room = tok_stream_room(t); i < ids->n; i++) {
        size_t before = out->size;
        assert_true(status_ok(tok_stream_push(&stream, ids->ids[i], out)));
        size_t n = out->size - before;
        assert_in_range(n, 0, room);
        if (n > 0 && !utf8_valid((const uint8_t *)out->data + before, n)) return false;
    }
    tok_stream_finish(&stream, out);
    return !out->failed;
}

static void reverse(tok_ids *ids)
{
    for (size_t i = 0; i < ids->n / 2; i++) {
        uint32_t id = ids->ids[i];
        ids->ids[i] = ids->ids[ids->n - 1 - i];
        ids->ids[ids->n - 1 - i] = id;
    }
}

/* The difference, or NULL. */
static const char *check_golden(const tokenizer *t, const strbuf *text, const golden *due)
{
    bool falls_back = tok_find(t, "<0x00>", 6) >= 0;
    tok_ids ids = {0};
    error err;
    const char *wrong = NULL;
    assert_true(
        status_ok(tok_encode(t, text->data ? text->data : "", text->size, true, &ids, &err)));
    check_bound(t, text->size, ids.n);
    if (ids.n != due->n || fnv(FNV_START, ids.ids, ids.n * sizeof *ids.ids) != due->ids)
        wrong = "ids";
    uint32_t hash = FNV_START;
    for (int i = 0; i < 4 && !wrong; i++) {
        strbuf whole = {0}, streamed = {0};
        if (i == 2) reverse(&ids);
        assert_true(status_ok(tok_decode(t, ids.ids, ids.n, i & 1, &whole, &err)));
        bool ok = stream_decode(t, &ids, i & 1, &streamed);
        /* For byte-fallback bytes that end within a character, a stream has given out the text
         * before. */
        bool broken =
            falls_back && whole.size > 0 && memmem(whole.data, whole.size, "\xef\xbf\xbd", 3);
        if (!ok ||
            (!broken && (whole.size != streamed.size ||
                         (whole.size > 0 && memcmp(whole.data, streamed.data, whole.size) != 0))))
            wrong = "streamed text";
        strbuf_putc(&whole, (char)0xff);
        hash = fnv(hash, whole.data, whole.size);
        strbuf_destroy(&whole);
        strbuf_destroy(&streamed);
    }
    if (!wrong && hash != due->decoded) wrong = "decoded text";
    tok_ids_destroy(&ids);
    return wrong;
}

static void compare_corpus(const char *path, const char *const *paths, int n_tokenizers,
                           const char *const *list, unsigned n_lines)
{
    tokenizer *tokenizers[N_SHAPES];
    for (int i = 0; i < n_tokenizers; i++) tokenizers[i] = load_file(paths[i]);
    char *corpus;
    size_t n;
    error err;
    assert_true(status_ok(file_read(path, 1u << 24, &corpus, &n, &err)));
    strbuf text = {0};
    unsigned line = 0, differences = 0;
    for (const char *p = corpus; *p; line++) {
        golden due[N_SHAPES];
        uint32_t pieces;
        p = parse_line(p, &text, due, n_tokenizers, &pieces);
        if (!check_pieces(list, &text, pieces) && ++differences <= 10)
            print_error("%s:%u: pieces differ\n", path, line + 1);
        for (int i = 0; i < n_tokenizers; i++) {
            const char *wrong = check_golden(tokenizers[i], &text, &due[i]);
            if (wrong && ++differences <= 10)
                print_error("%s:%u: %s differ for %s\n", path, line + 1, wrong, paths[i]);
        }
    }
    assert_int_equal(line, n_lines);
    assert_int_equal(differences, 0);
    strbuf_destroy(&text);
    free(corpus);
    for (int i = 0; i < n_tokenizers; i++) tok_destroy(tokenizers[i]);
}

static void corpus_equals_the_library(void **state)
{
    (void)state;
    static const char *const paths[N_TOKENIZERS] = {"models/demo/tokenizer.json",
                                                    GOLDEN "gpt2.json", GOLDEN "llama3.json"};
    compare_corpus(GOLDEN "corpus.txt", paths, N_TOKENIZERS, patterns, 10000);
}

static void shapes_equal_the_library(void **state)
{
    (void)state;
    static const char *const paths[N_SHAPES] = {GOLDEN "llama2.json", GOLDEN "mistral.json",
                                                GOLDEN "gemma.json", GOLDEN "meta.json",
                                                GOLDEN "tekken.json"};
    compare_corpus(GOLDEN "shapes.txt", paths, N_SHAPES, tekken, 800);
}

/* ---- corners ---- */

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

/* A tokenizer from its parts; NULL parts are left out. */
static tokenizer *load(const char *model, const char *added, const char *pre_tokenizer)
{
    strbuf json = {0};
    strbuf_printf(&json, "{\"model\":%s,\"added_tokens\":[%s],\"pre_tokenizer\":%s,\"decoder\":%s}",
                  model, added ? added : "", pre_tokenizer ? pre_tokenizer : BYTE_LEVEL,
                  BYTE_LEVEL);
    tokenizer *t = NULL;
    error err;
    if (!status_ok(tok_load_text("test", json.data, json.size, &t, &err))) fail_msg("%s", err.text);
    strbuf_destroy(&json);
    return t;
}

/* Encodes n bytes of text and compares with the ids written as "1 2 3". */
static void expect_bytes(const tokenizer *t, const char *text, size_t n, const char *due)
{
    tok_ids ids = {0};
    error err;
    assert_true(status_ok(tok_encode(t, text, n, false, &ids, &err)));
    check_bound(t, n, ids.n);
    strbuf got = {0};
    for (size_t i = 0; i < ids.n; i++) strbuf_printf(&got, "%s%u", i ? " " : "", ids.ids[i]);
    if (strcmp(got.data ? got.data : "", due) != 0)
        fail_msg("\"%s\": got %s, due %s", text, got.data ? got.data : "nothing", due);
    strbuf_destroy(&got);
    tok_ids_destroy(&ids);
}

static void expect(const tokenizer *t, const char *text, const char *due)
{
    expect_bytes(t, text, strlen(text), due);
}

static void merges_go_by_rank_and_last_rank_wins(void **state)
{
    (void)state;
    tokenizer *t = load("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,"
                        "\"abc\":7},\"merges\":[[\"b\",\"c\"],\"a b\",\"ab c\"]}",
                        NULL, NULL);
    expect(t, "abc", "0 4");
    expect(t, "abab", "3 3");
    assert_int_equal(tok_vocab_size(t), 8); /* 5 and 6 are unused */
    tok_destroy(t);
    t = load("{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":7},"
             "\"merges\":[\"#version: 0.2\",\"b c\",\"a b\",\"ab c\",\"b c\"]}",
             NULL, NULL);
    expect(t, "abc", "7");
    tok_destroy(t);
}

static void ignore_merges_takes_whole_words(void **state)
{
    (void)state;
    tokenizer *t = load("{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,"
                        "\"aba\":2},\"merges\":[]}",
                        NULL, NULL);
    expect(t, "aba", "2");
    expect(t, "abab", "0 1 0 1");
    tok_destroy(t);
}

static void bytes_without_a_token(void **state)
{
    (void)state;
    tokenizer *t = load("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}", NULL, NULL);
    expect(t, "axxb", "0 1");
    tok_destroy(t);
    t = load(
        "{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"b\":1,\"u\":2},\"merges\":[]}",
        NULL, NULL);
    expect(t, "axxb", "0 2 2 1");
    tok_destroy(t);
    t = load("{\"type\":\"BPE\",\"unk_token\":\"u\",\"fuse_unk\":true,\"vocab\":{\"a\":0,\"b\":1,"
             "\"u\":2},\"merges\":[]}",
             NULL, NULL);
    expect(t, "axxbxx", "0 2 1 2");
    tok_destroy(t);
}

/* Text that rstrip consumes is still searched for tokens, as in the library. */
static void added_tokens_overlap(void **state)
{
    (void)state;
    tokenizer *t = load("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}",
                        "{\"id\":2,\"content\":\"X\",\"rstrip\":true,\"normalized\":false},"
                        "{\"id\":3,\"content\":\" b\",\"lstrip\":true,\"normalized\":false},"
                        "{\"id\":4,\"content\":\"  \",\"normalized\":false}",
                        NULL);
    expect(t, "X  ba", "2 4 1 0");
    expect(t, "X   ba", "2 4 3 0");
    expect(t, "X    a", "2 4 4 0");
    expect(t, "  X  a  b", "4 2 4 0 4 1");
    tok_destroy(t);
}

static void added_tokens_leftmost_longest_alone(void **state)
{
    (void)state;
    tokenizer *t = load("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}",
                        "{\"id\":3,\"content\":\"abcd\"},{\"id\":4,\"content\":\"bc\"},"
                        "{\"id\":5,\"content\":\"X\",\"single_word\":true},"
                        "{\"id\":6,\"content\":\"ab\"}",
                        NULL);
    expect(t, "abcd", "3");
    expect(t, "abc", "6 2");
    expect(t, "bbc", "1 4");
    expect(t, "a-X\xe2\x82\xac", "0 5"); /* neither - nor the euro sign is a word, or has a token */
    expect(t, "aX", "0");
    expect(t, "X\xc3\xa9", "");
    tok_destroy(t);
    t = load("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}",
             "{\"id\":3,\"content\":\"abcd\"},{\"id\":4,\"content\":\"bc\"}", NULL);
    expect(t, "abcab", "0 4 0 1"); /* found inside a prefix of the other */
    tok_destroy(t);
}

/* The library decides by its normalised spelling whether a token is special. */
static void special_by_normalised_spelling(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
        "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL
        ",\"added_tokens\":[{\"id\":1,\"content\":\"e\xcc\x81!\",\"normalized\":true,\"special\":"
        "true},"
        "{\"id\":2,\"content\":\"<s>\",\"normalized\":true,\"special\":true}]}";
    tokenizer *t = NULL;
    error err = {""};
    assert_true(status_ok(tok_load_text("test", json, sizeof json - 1, &t, &err)));
    expect(t, "a\xc3\xa9!e\xcc\x81!<s>", "0 1 1 2");
    strbuf text = {0};
    static const uint32_t ids[] = {0, 1, 2, 0};
    assert_true(status_ok(tok_decode(t, ids, 4, true, &text, &err)));
    assert_string_equal(text.data, "a\xef\xbf\xbd!a"); /* é is a byte of the alphabet */
    strbuf_destroy(&text);
    tok_destroy(t);
}

/* ---- merging against the definition ---- */

enum { N_LETTERS = 3, N_MERGES = 60, WORD_MAX = 400 };

typedef struct merges {
    char tokens[N_LETTERS + N_MERGES][64];
    uint32_t left[N_MERGES], right[N_MERGES];
    uint32_t n;
} merges;

/* Random merges over a, b, c; each joins two existing tokens into a new one. */
static void random_merges(rng *r, merges *m, strbuf *model)
{
    m->n = 0;
    for (uint32_t i = 0; i < N_LETTERS; i++) snprintf(m->tokens[i], 64, "%c", 'a' + (int)i);
    for (int tries = 0; m->n < N_MERGES && tries < 1000; tries++) {
        uint32_t left = rng_below(r, N_LETTERS + m->n), right = rng_below(r, N_LETTERS + m->n);
        char token[64];
        int n = snprintf(token, sizeof token, "%s%s", m->tokens[left], m->tokens[right]);
        bool known = n >= (int)sizeof token;
        for (uint32_t i = 0; i < N_LETTERS + m->n; i++)
            known = known || strcmp(m->tokens[i], token) == 0;
        if (known) continue;
        memcpy(m->tokens[N_LETTERS + m->n], token, sizeof token);
        m->left[m->n] = left;
        m->right[m->n++] = right;
    }
    strbuf_puts(model, "{\"type\":\"BPE\",\"vocab\":{");
    for (uint32_t i = 0; i < N_LETTERS + m->n; i++)
        strbuf_printf(model, "%s\"%s\":%u", i ? "," : "", m->tokens[i], i);
    strbuf_puts(model, "},\"merges\":[");
    for (uint32_t i = 0; i < m->n; i++)
        strbuf_printf(model, "%s\"%s %s\"", i ? "," : "", m->tokens[m->left[i]],
                      m->tokens[m->right[i]]);
    strbuf_puts(model, "]}");
}

/* The definition: while any pair merges, merge the pair of lowest rank, the leftmost first. */
static size_t merge_naively(const merges *m, uint32_t *ids, size_t n)
{
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t k = 0; k < m->n && k < best; k++)
                if (ids[i] == m->left[k] && ids[i + 1] == m->right[k]) {
                    best = k;
                    at = i;
                }
        if (best == UINT32_MAX) return n;
        ids[at] = N_LETTERS + best;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

static void merging_follows_the_definition(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rng r = rng_seed(seed);
        merges m;
        strbuf model = {0};
        random_merges(&r, &m, &model);
        tokenizer *t = load(model.data, NULL, NULL);
        for (int i = 0; i < 60; i++) {
            char word[WORD_MAX];
            uint32_t due[WORD_MAX];
            size_t n = 1 + rng_below(&r, i < 30 ? 40 : WORD_MAX - 1);
            for (size_t k = 0; k < n; k++) {
                due[k] = rng_below(&r, N_LETTERS);
                word[k] = (char)('a' + due[k]);
            }
            tok_ids ids = {0};
            error err;
            assert_true(status_ok(tok_encode(t, word, n, false, &ids, &err)));
            size_t n_due = merge_naively(&m, due, n);
            if (ids.n != n_due || memcmp(ids.ids, due, n_due * sizeof *due) != 0)
                fail_msg("seed %llu, word %d: %.*s", (unsigned long long)seed, i, (int)n, word);
            tok_ids_destroy(&ids);
        }
        strbuf_destroy(&model);
        tok_destroy(t);
    }
}

static void other_patterns_run_on_pcre2(void **state)
{
    (void)state;
    static const char model[] =
        "{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"1\":2,\"\xc4\xa0\":"
        "3,"
        "\"aa\":4,\"11\":5,\"\xc4\xa0\xc4\xa0\":6,\"aa1\":7,\".\":8,"
        "\"\xc4\x8a\":9,\"\xc3\x99\xc2\xa3\xc3\x99\xc2\xa3\":10},\"merges\":[]}";
    static const struct {
        const char *split, *text, *due;
    } rows[] = {
        {"{\"Regex\":\"\\\\p{L}+|\\\\p{N}+\"},\"behavior\":\"Isolated\",\"invert\":false",
         "aa11 aa", "4 5 3 4"},
        {"{\"Regex\":\"\\\\p{L}+|\\\\p{N}+\"},\"behavior\":\"Removed\",\"invert\":true", "aa11  aa",
         "4 5 4"},
        {"{\"Regex\":\"\\\\s\"},\"behavior\":\"Removed\",\"invert\":false", "aa  aa1", "4 7"},
        {"{\"Regex\":\"[^\\\\s]{2}\"},\"behavior\":\"Isolated\",\"invert\":false", "aa11  aaa",
         "4 5 6 4 0"},
        {"{\"String\":\"11\"},\"behavior\":\"Isolated\",\"invert\":false", "aa1111", "4 5 5"},
        {"{\"Regex\":\"(?=1)\"},\"behavior\":\"Isolated\",\"invert\":false", "aa11", "4 2 2"},
        {"{\"Regex\":\"^aa\"},\"behavior\":\"Isolated\",\"invert\":false", "aa\naa", "4 9 4"},
        {"{\"Regex\":\"\\\\d\\\\d\"},\"behavior\":\"Isolated\",\"invert\":false",
         "a\xd9\xa3\xd9\xa3", "0 10"}, /* Arabic digits */
        {"{\"String\":\".\"},\"behavior\":\"Isolated\",\"invert\":false", "aa.", "4 8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char pre[256];
        snprintf(pre, sizeof pre,
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":%s}"
                 "," BYTE_LEVEL "]}",
                 rows[i].split);
        tokenizer *t = load(model, NULL, pre);
        expect(t, rows[i].text, rows[i].due);
        tok_destroy(t);
    }
}

static void broken_utf8_becomes_replacement_characters(void **state)
{
    (void)state;
    tokenizer *t = load_file("models/demo/tokenizer.json");
    static const struct {
        const char *broken, *repaired;
    } rows[] = {
        {"a\x80z", "a\xef\xbf\xbdz"},
        {"\xe2\x82z", "\xef\xbf\xbdz"}, /* one for the beginning of a character */
        {"\xe2\x28\xa1", "\xef\xbf\xbd(\xef\xbf\xbd"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* no beginning */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tok_ids a = {0}, b = {0};
        error err;
        assert_true(
            status_ok(tok_encode(t, rows[i].broken, strlen(rows[i].broken), false, &a, &err)));
        assert_true(
            status_ok(tok_encode(t, rows[i].repaired, strlen(rows[i].repaired), false, &b, &err)));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
        tok_ids_destroy(&a);
        tok_ids_destroy(&b);
    }
    tok_destroy(t);
}

static void lookups(void **state)
{
    (void)state;
    tokenizer *t = load_file(GOLDEN "llama3.json");
    int32_t bos = tok_find(t, "<|begin_of_text|>", 17), odd = tok_find(t, "\xc4\xa0odd", 5);
    assert_true(bos > 0 && tok_is_special(t, (uint32_t)bos));
    assert_true(odd > 0 && !tok_is_special(t, (uint32_t)odd));
    assert_int_equal(tok_find(t, "no such token", 13), -1);
    assert_int_equal(tok_find(t, " ", 1), -1); /* the model spells it U+0120 */
    assert_true(tok_find(t, "\xc4\xa0", 2) >= 0);
    const char *bytes;
    size_t n;
    assert_true(status_ok(tok_token_bytes(t, (uint32_t)odd, &bytes, &n)));
    assert_int_equal(n, 4);
    assert_memory_equal(bytes, " odd", 4); /* added tokens use the byte alphabet too */
    uint32_t size = tok_vocab_size(t);
    strbuf text = {0};
    error err;
    assert_int_equal(tok_token_bytes(t, size, &bytes, &n).code, STATUS_INVALID);
    assert_int_equal(tok_decode(t, &size, 1, false, &text, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "not in the vocabulary"));
    assert_int_equal(text.size, 0);
    tok_stream stream;
    tok_stream_init(&stream, t, false);
    assert_int_equal(tok_stream_push(&stream, size, &text).code, STATUS_INVALID);
    assert_false(tok_is_special(t, size));
    tok_destroy(t);
}

static void encode_appends(void **state)
{
    (void)state;
    tokenizer *t = load_file(GOLDEN "llama3.json");
    tok_ids ids = {0};
    error err;
    assert_true(status_ok(tok_encode(t, "the", 3, false, &ids, &err)));
    size_t n = ids.n;
    assert_true(status_ok(tok_encode(t, "the the", 7, true, &ids, &err)));
    assert_int_equal(ids.ids[n], tok_find(t, "<|begin_of_text|>", 17));
    assert_memory_equal(ids.ids + n + 1, ids.ids, n * sizeof *ids.ids);
    assert_true(status_ok(tok_encode(t, NULL, 0, true, &ids, &err)));
    assert_int_equal(ids.ids[ids.n - 1], tok_find(t, "<|begin_of_text|>", 17));
    tok_ids_destroy(&ids);
    tok_destroy(t);
}

/* A megabyte of one character must neither take long nor fail: each case was quadratic in a version
 * of some tokenizer. Only correctness is checked; a quadratic case would exceed the test's time
 * limit. */
static void long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a",        " ", "\n", "\r\n ", "'", "\xcc\x81\xcc\xa7",
                                        "<|im_",    "7", "ab", "\xc3",  "<", "\xe1\x84\x80",
                                        " \xcc\x81"};
    static const char *const paths[N_TOKENIZERS] = {"models/demo/tokenizer.json",
                                                    GOLDEN "gpt2.json", GOLDEN "llama3.json"};
    for (int k = 0; k < N_TOKENIZERS; k++) {
        tokenizer *t = load_file(paths[k]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            strbuf text = {0}, back = {0};
            while (text.size < 1000000) strbuf_puts(&text, units[i]);
            tok_ids ids = {0};
            error err;
            assert_true(status_ok(tok_encode(t, text.data, text.size, false, &ids, &err)));
            assert_true(status_ok(tok_decode(t, ids.ids, ids.n, false, &back, &err)));
            bool prefixed = k == 1 && units[i][0] != ' ';
            bool changed = units[i][0] == '\xc3' || (k != 1 && strstr(units[i], "\xcc\x81\xcc"));
            if (!changed) {
                assert_int_equal(back.size, text.size + prefixed);
                assert_memory_equal(back.data + prefixed, text.data, text.size);
            } else {
                assert_true(back.size >= text.size);
            }
            tok_ids_destroy(&ids);
            strbuf_destroy(&text);
            strbuf_destroy(&back);
        }
        tok_destroy(t);
    }
}

/* For character-based models: one word where there is no split, U+2581 before every run. */
static void long_words(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a",    " ",       "  a", "\xe2\x96\x81", "e ", "\xe4\xba\xba", "\xf0\x9f\x98\x80",
        "[INS", "<|end|> "};
    static const char *const paths[] = {GOLDEN "llama2.json", GOLDEN "gemma.json",
                                        GOLDEN "meta.json"};
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        tokenizer *t = load_file(paths[k]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            strbuf text = {0}, back = {0};
            while (text.size < 600000) strbuf_puts(&text, units[i]);
            tok_ids ids = {0};
            error err;
            assert_true(status_ok(tok_encode(t, text.data, text.size, false, &ids, &err)));
            assert_true(status_ok(tok_decode(t, ids.ids, ids.n, false, &back, &err)));
            assert_true(ids.n > 0 && back.size > 0);
            tok_ids_destroy(&ids);
            strbuf_destroy(&text);
            strbuf_destroy(&back);
        }
        tok_destroy(t);
    }
}

/* Pushes ids written as "<0xF0>" one by one; compares each result, with | between. */
static void expect_stream(const tokenizer *t, bool resumed, const char *const *tokens,
                          const char *due)
{
    tok_stream s;
    strbuf out = {0};
    tok_stream_init(&s, t, true);
    if (resumed) tok_stream_resume(&s);
    for (; *tokens; tokens++) {
        int32_t id = tok_find(t, *tokens, strlen(*tokens));
        if (id < 0) fail_msg("no token %s", *tokens);
        assert_true(status_ok(tok_stream_push(&s, (uint32_t)id, &out)));
        strbuf_putc(&out, '|');
    }
    tok_stream_finish(&s, &out);
    assert_string_equal(out.data, due);
    strbuf_destroy(&out);
}

static void streams_of_characters(void **state)
{
    (void)state;
    tokenizer *t = load_file(GOLDEN "llama2.json"), *meta = load_file(GOLDEN "meta.json");
#define SMILE "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"
    static const char *const smile[] = {"\xe2\x96\x81", "a", SMILE, "<0x41>", "a", NULL};
    expect_stream(t, false, smile, "|a||||\xf0\x9f\x98\x80|A|a|");
    expect_stream(t, true, smile, " |a||||\xf0\x9f\x98\x80|A|a|");
    static const char *const spaces[] = {"<0x20>", "<0x20>", "a", "<0x20>", NULL};
    expect_stream(t, false, spaces, "| |a| |");
    static const char *const special[] = {"[INST]", "\xe2\x96\x81", "a", NULL};
    expect_stream(t, false, special, "||a|");
    /* U+FFFD for every byte of an incomplete character. */
    static const char *const broken[] = {SMILE, "<0xF0>", "<0x9F>", "a", "<0xFF>", "<0xE2>", NULL};
    expect_stream(t, false, broken,
                  "|||\xf0\x9f\x98\x80|||\xef\xbf\xbd\xef\xbf\xbd"
                  "a|\xef\xbf\xbd||\xef\xbf\xbd");
    static const char *const ends[] = {"<0xE2>", "<0xE2>", "<0x41>", NULL};
    expect_stream(t, false, ends,
                  "|\xef\xbf\xbd|\xef\xbf\xbd"
                  "A|");
    /* Metaspace's decoder drops U+2581 in the first token given out; it has no byte fallback. */
    static const char *const metaspace[] = {"[INST]", "\xe2\x96\x81", "\xe2\x96\x81", "<0x41>",
                                            NULL};
    expect_stream(meta, false, metaspace, "|| |<0x41>|");
    expect_stream(meta, true, metaspace, "| | |<0x41>|");
    tok_destroy(t);
    tok_destroy(meta);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpus_equals_the_library),
        cmocka_unit_test(shapes_equal_the_library),
        cmocka_unit_test(merges_go_by_rank_and_last_rank_wins),
        cmocka_unit_test(ignore_merges_takes_whole_words),
        cmocka_unit_test(bytes_without_a_token),
        cmocka_unit_test(added_tokens_overlap),
        cmocka_unit_test(added_tokens_leftmost_longest_alone),
        cmocka_unit_test(special_by_normalised_spelling),
        cmocka_unit_test(merging_follows_the_definition),
        cmocka_unit_test(other_patterns_run_on_pcre2),
        cmocka_unit_test(broken_utf8_becomes_replacement_characters),
        cmocka_unit_test(lookups),
        cmocka_unit_test(encode_appends),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(long_words),
        cmocka_unit_test(streams_of_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
