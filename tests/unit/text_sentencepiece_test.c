/* tokenizer.model: the result of tok_spm_convert, and its one-line refusals. */
#include "text/merges.h"
#include "text/tokenizer/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED };

/* ---- SentencePiece's protobuf, as its library writes it ---- */

static void put_varint(strbuf *b, uint64_t v)
{
    for (; v > 127; v >>= 7) strbuf_putc(b, (char)(v | 128));
    strbuf_putc(b, (char)v);
}

static void put_bytes(strbuf *b, unsigned field, const void *data, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    strbuf_append(b, data, n);
}

static void put_number(strbuf *b, unsigned field, uint64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_piece(strbuf *b, const char *text, size_t n, float score, unsigned kind)
{
    strbuf p = {0};
    put_bytes(&p, 1, text, n);
    put_varint(&p, 2 << 3 | 5);
    strbuf_append(&p, &score, sizeof score);
    put_number(&p, 3, kind);
    put_bytes(b, 1, p.data, p.size);
    strbuf_destroy(&p);
}

static void put_text(strbuf *b, const char *text, float score, unsigned kind)
{
    put_piece(b, text, strlen(text), score, kind);
}

/* The trainer's and the normalizer's specifications. */
static void put_specs(strbuf *b, unsigned model_type, const char *charsmap)
{
    strbuf s = {0};
    put_number(&s, 3, model_type);
    put_bytes(b, 2, s.data, s.size);
    strbuf_clear(&s);
    put_bytes(&s, 2, charsmap, strlen(charsmap));
    put_number(&s, 3, 1);
    put_bytes(b, 3, s.data, s.size);
    strbuf_destroy(&s);
}

/* Writes a model with U+2581, a, b: "ab" ranks before "▁a", and "▁ab" after both. */
static void put_model(strbuf *b)
{
    put_text(b, "<unk>", 0, UNKNOWN);
    put_text(b, "<s>", 0, CONTROL);
    put_text(b, "</s>", 0, CONTROL);
    put_text(b, "<0xC3>", 0, 6);
    put_text(b, "<0xA9>", 0, 6);
    put_text(b, "ab", -1, NORMAL);
    put_text(b, TOK_METASPACE "a", -2, NORMAL);
    put_text(b, TOK_METASPACE "ab", -3, NORMAL);
    put_text(b, TOK_METASPACE, -4, NORMAL);
    put_text(b, "a", -5, NORMAL);
    put_text(b, "b", -6, NORMAL);
    put_text(b, "<x>", 0, USER_DEFINED);
    put_specs(b, 2, "");
}

/* ---- results ---- */

static status convert(const strbuf *model, const char *added_text, bool legacy, tokenizer **t,
                      error *err)
{
    json_t *added = NULL;
    strbuf json = {0};
    if (added_text)
        assert_true(
            status_ok(json_read_text("added", added_text, strlen(added_text), &added, err)));
    tok_spm_options o = {.legacy = legacy, .bos = "<s>", .added = added};
    err->text[0] = 0;
    status s = tok_spm_convert("f.model", model->data, model->size, &o, &json, err);
    if (status_ok(s)) s = tok_load_text("f.model", json.data, json.size, t, err);
    strbuf_destroy(&json);
    json_decref(added);
    return s;
}

static void expect_ids(const tokenizer *t, const char *text, const char *due, const char *decoded)
{
    tok_ids ids = {0};
    strbuf is = {0};
    error err;
    assert_true(status_ok(tok_encode(t, text, strlen(text), true, &ids, &err)));
    for (size_t i = 0; i < ids.n; i++) strbuf_printf(&is, i ? " %u" : "%u", ids.ids[i]);
    assert_string_equal(is.data, due);
    strbuf_clear(&is);
    assert_true(status_ok(tok_decode(t, ids.ids, ids.n, true, &is, &err)));
    assert_string_equal(is.data, decoded);
    strbuf_destroy(&is);
    tok_ids_destroy(&ids);
}

/* Among equal scores the longer left half goes first, then the longer right half, then the order of
 * pieces. Pieces that cannot be halves are neither made nor used. */
static void merges_of_equal_scores(void **state)
{
    (void)state;
    static const tok_piece pieces[] = {
        {"a", 1, 0, true},   {"b", 1, 0, true},    {"c", 1, 0, true},
        {"ba", 2, -1, true}, {"ab", 2, -1, true},  {"abc", 3, -1, true},
        {"bc", 2, -1, true}, {"cab", 3, -2, true}, {"ca", 2, 5, false},
    };
    strbuf out = {0};
    error err = {{0}};
    assert_true(
        status_ok(tok_merges_of_scores("f", pieces, sizeof pieces / sizeof *pieces, &out, &err)));
    assert_string_equal(out.data, "[\"ab\",\"c\"],[\"a\",\"bc\"],[\"b\",\"a\"],"
                                  "[\"a\",\"b\"],[\"b\",\"c\"],[\"c\",\"ab\"]");
    strbuf_destroy(&out);
}

static void merges_follow_scores(void **state)
{
    (void)state;
    strbuf model = {0};
    put_model(&model);
    for (unsigned legacy = 0; legacy < 2; legacy++) {
        tokenizer *t = NULL;
        error err;
        assert_true(status_ok(convert(&model, NULL, legacy, &t, &err)));
        expect_ids(t, "ab", "1 7", "ab");
        expect_ids(t, "a ab", "1 6 7", "a ab");
        expect_ids(t, "b\xc3\xa9", "1 8 10 3 4", "b\xc3\xa9");
        expect_ids(t, "azz", "1 6 0", "a");
        if (legacy) expect_ids(t, "ab<x>b", "1 7 11 8 10", "ab<x> b");
        else expect_ids(t, "ab<x>b", "1 7 11 10", "ab<x>b");
        tok_destroy(t);
    }
    strbuf_destroy(&model);
}

static void config_renames_pieces(void **state)
{
    (void)state;
    strbuf model = {0};
    tokenizer *t = NULL;
    error err;
    put_model(&model);
    assert_true(status_ok(convert(&model,
                                  "{\"2\": {\"content\": \"<|end|>\", \"special\": true},"
                                  " \"12\": {\"content\": \"<more>\"}}",
                                  false, &t, &err)));
    expect_ids(t, "ab<more>", "1 7 12", "ab<more>");
    assert_int_equal(tok_find(t, "<|end|>", 7), 2);
    assert_int_equal(tok_find(t, "</s>", 4), -1);
    tok_destroy(t);
    strbuf_destroy(&model);
}

/* ---- refusals ---- */

static void refuse(strbuf *model, const char *added, status_code code, const char *due)
{
    tokenizer *t = NULL;
    error err;
    status s = convert(model, added, true, &t, &err);
    if (s.code != code || strcmp(err.text, due) != 0)
        fail_msg("%s: %s\n  due %s: %s", status_text(s.code), err.text, status_text(code), due);
    assert_null(t);
    strbuf_clear(model);
}

static void every_truncation(void **state)
{
    (void)state;
    strbuf model = {0};
    put_model(&model);
    for (size_t n = 0; n < model.size; n++) {
        tokenizer *t = NULL;
        error err;
        char *exact = malloc(n + 1); /* exact, so that over-reads are seen */
        assert_non_null(exact);
        memcpy(exact, model.data, n);
        exact = realloc(exact, n ? n : 1);
        strbuf cut = {.data = exact, .size = n};
        assert_false(status_ok(convert(&cut, NULL, true, &t, &err)) && n < model.size - 8);
        assert_true(!err.text[0] || strncmp(err.text, "f.model: ", 9) == 0);
        tok_destroy(t);
        free(exact);
    }
    strbuf_destroy(&model);
}

static void broken_messages(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } rows[] = {
        {"", 0},
        {"\x0a", 1},                                              /* no length */
        {"\x0a\x05", 2},                                          /* longer than the file */
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},     /* 2^64 - 1 bytes */
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* a varint of eleven bytes */
        {"\x00\x00", 2},                                          /* field 0 */
        {"\x0b\x0c", 2},                                          /* a group */
        {"\x08\x01", 2},                                          /* numbers instead of pieces */
        {"\x0a\x02\x0a\x05", 4},                                  /* a text longer than its piece */
        {"\x0a\x02\x15\x00", 4},                                  /* half a score */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strbuf model = {0};
        strbuf_append(&model, rows[i].bytes, rows[i].n);
        refuse(&model, NULL, STATUS_CORRUPT, "f.model: is no SentencePiece model");
        strbuf_destroy(&model);
    }
}

static void broken_pieces(void **state)
{
    (void)state;
    static const char no_text[] = "f.model: piece 1 is no text with a score";
    static const struct {
        const char *text;
        size_t n;
        float score;
        const char *due;
    } rows[] = {
        {"", 0, 0, no_text},
        {"\xff", 1, 0, no_text},
        {"a\0b", 3, 0, no_text},
        {"b", 1, 0.0f / 0.0f, no_text},
        {"a", 1, 0, "f.model: piece 1 comes a second time"},
    };
    strbuf model = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text(&model, "a", 0, NORMAL);
        put_piece(&model, rows[i].text, rows[i].n, rows[i].score, NORMAL);
        put_specs(&model, 2, "");
        refuse(&model, NULL, STATUS_CORRUPT, rows[i].due);
    }
    strbuf_destroy(&model);
}

static void other_kinds(void **state)
{
    (void)state;
    strbuf model = {0};
    put_text(&model, "a", 0, NORMAL);
    refuse(&model, NULL, STATUS_UNSUPPORTED, "f.model: a model that is no BPE is not supported");
    put_text(&model, "a", 0, NORMAL);
    put_specs(&model, 2, "nmt_nfkc");
    refuse(&model, NULL, STATUS_UNSUPPORTED,
           "f.model: a normalizer that is not identity is not supported");
    put_model(&model);
    refuse(&model, "{\"x\": {\"content\": \"a\"}}", STATUS_CORRUPT,
           "f.model: added_tokens_decoder of tokenizer_config.json: \"x\" is no token");
    put_model(&model);
    refuse(&model, "{\"2\": 2}", STATUS_CORRUPT,
           "f.model: added_tokens_decoder of tokenizer_config.json: \"2\" is no token");
    put_model(&model);
    refuse(&model, "{\"2\": {\"content\": \"<s>\"}}", STATUS_CORRUPT,
           "f.model: piece 2 comes a second time");
    strbuf_destroy(&model);
}

/* An unknown numeric field is ignored. */
static void unknown_fields(void **state)
{
    (void)state;
    strbuf model = {0};
    tokenizer *t = NULL;
    error err;
    put_number(&model, 9, 1);
    put_model(&model);
    assert_true(status_ok(convert(&model, NULL, true, &t, &err)));
    tok_destroy(t);
    strbuf_destroy(&model);
}

/* Files that would take more work than their size: each piece is looked up in as many halves as it
 * has characters. */
static void long_pieces(void **state)
{
    (void)state;
    enum { LONGEST = 4096 };
    char *a = malloc(LONGEST + 1);
    strbuf model = {0}, added = {0};
    assert_non_null(a);
    memset(a, 'a', LONGEST + 1);
    put_piece(&model, a, LONGEST + 1, 0, NORMAL);
    refuse(&model, NULL, STATUS_LIMIT, "f.model: piece 0 has more than 4096 bytes");
    for (size_t n = 1; n <= LONGEST; n++) put_piece(&model, a, n, (float)n, NORMAL);
    put_specs(&model, 2, "");
    refuse(&model, NULL, STATUS_LIMIT, "f.model: too many long pieces");
    put_model(&model);
    strbuf_puts(&added, "{\"2\": {\"content\": \"");
    while (added.size < 1u << 20) strbuf_append(&added, a, LONGEST);
    strbuf_puts(&added, "\"}}");
    refuse(&model, added.data, STATUS_LIMIT,
           "f.model: added_tokens_decoder of tokenizer_config.json: \"2\" has more than 4096 "
           "bytes");
    strbuf_destroy(&model);
    strbuf_destroy(&added);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_follow_scores),  cmocka_unit_test(merges_of_equal_scores),
        cmocka_unit_test(config_renames_pieces), cmocka_unit_test(every_truncation),
        cmocka_unit_test(broken_messages),       cmocka_unit_test(broken_pieces),
        cmocka_unit_test(other_kinds),           cmocka_unit_test(unknown_fields),
        cmocka_unit_test(long_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
