/* Property: any bytes as tokenizer.json give a tokenizer, or a one-line error that begins with the
 * place. A tokenizer that loads encodes any text to ids of its own vocabulary, and decodes them as
 * a whole as it does streamed (except broken characters), in valid UTF-8. A tokenizer that has
 * every byte and changes nothing decodes to the original text.
 *
 * Input: a document, then after the first byte 0xff a text. */
#include "base/base.h"
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"

#include <string.h>

/* Has every byte, a few merges and the Qwen split; written out as JSON. */
static tokenizer *faithful_tokenizer(void)
{
    strbuf json = {0};
    strbuf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
        uint8_t spelled[4];
        unsigned n = utf8_encode(itself ? b : next++, spelled);
        strbuf_json_string(&json, (const char *)spelled, n);
        strbuf_printf(&json, ":%u,", b);
    }
    strbuf_puts(
        &json,
        "\"ab\":256,\"aba\":257,\"aa\":258},\"merges\":[\"a b\",\"ab a\",\"a a\"]},"
        "\"added_tokens\":[{\"id\":259,\"content\":\"<x>\",\"normalized\":false}],"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
        "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
        "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"}}");
    tokenizer *t = NULL;
    error err = {""};
    status s = tok_load_text("faithful", json.data, json.size, &t, &err);
    if (!status_ok(s)) fprintf(stderr, "%s\n", err.text);
    FUZZ_CHECK(status_ok(s));
    strbuf_destroy(&json);
    return t;
}

/* Encodes, decodes in both ways, and leaves the decoded text in `whole`. */
static bool round_trip(const tokenizer *t, const char *text, size_t n, bool special, strbuf *whole)
{
    tok_ids ids = {0};
    error err = {""};
    status s = tok_encode(t, text, n, special, &ids, &err);
    if (!status_ok(s)) {
        FUZZ_CHECK(s.code == STATUS_LIMIT && ids.n == 0 && err.text[0] && !strchr(err.text, '\n'));
        tok_ids_destroy(&ids);
        return false;
    }
    for (size_t i = 0; i < ids.n; i++) FUZZ_CHECK(ids.ids[i] < tok_vocab_size(t));
    size_t most = tok_bytes_per_token(t);
    FUZZ_CHECK(most == 0 || ids.n >= n / most);
    FUZZ_CHECK(status_ok(tok_decode(t, ids.ids, ids.n, special, whole, &err)));
    FUZZ_CHECK(utf8_valid((const uint8_t *)whole->data, whole->size));
    strbuf streamed = {0};
    tok_stream stream;
    size_t room = tok_stream_room(t);
    tok_stream_init(&stream, t, special);
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = streamed.size;
        FUZZ_CHECK(status_ok(tok_stream_push(&stream, ids.ids[i], &streamed)));
        FUZZ_CHECK(streamed.size - before <= room);
        if (streamed.size > before)
            FUZZ_CHECK(utf8_valid((uint8_t *)streamed.data + before, streamed.size - before));
    }
    tok_stream_finish(&stream, &streamed);
    /* For byte-fallback bytes that end within a character, a stream has given out the text
     * before. */
    if (whole->size == 0 || !memmem(whole->data, whole->size, "\xef\xbf\xbd", 3)) {
        FUZZ_CHECK(streamed.size == whole->size);
        FUZZ_CHECK(whole->size == 0 || memcmp(streamed.data, whole->data, whole->size) == 0);
    }
    strbuf_destroy(&streamed);
    tok_ids_destroy(&ids);
    return true;
}

static void check_document(const char *json, size_t n_json, const char *text, size_t n)
{
    tokenizer *t = NULL;
    error err = {""};
    status s = tok_load_text("doc", json, n_json, &t, &err);
    FUZZ_CHECK(status_ok(s) == (t != NULL));
    if (!t) {
        FUZZ_CHECK(strncmp(err.text, "doc: ", 5) == 0 && !strchr(err.text, '\n'));
        FUZZ_CHECK(utf8_valid((const uint8_t *)err.text, strlen(err.text)));
        return;
    }
    strbuf whole = {0};
    round_trip(t, text, n, true, &whole);
    strbuf_clear(&whole);
    round_trip(t, json, n_json, false, &whole);
    strbuf_destroy(&whole);
    tok_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size > 0 ? memchr(data, 0xff, size) : NULL;
    size_t n_json = cut ? (size_t)(cut - data) : size;
    const char *text = cut ? (const char *)cut + 1 : "";
    size_t n = cut ? size - n_json - 1 : 0;
    check_document((const char *)data, n_json, text, n);
    if (n == 0) return 0;
    tokenizer *t = faithful_tokenizer();
    strbuf whole = {0};
    FUZZ_CHECK(round_trip(t, text, n, false, &whole));
    if (utf8_valid((const uint8_t *)text, n))
        FUZZ_CHECK(whole.size == n && (n == 0 || memcmp(whole.data, text, n) == 0));
    strbuf_destroy(&whole);
    tok_destroy(t);
    return 0;
}
