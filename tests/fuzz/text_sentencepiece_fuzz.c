/* Property: any bytes as tokenizer.model give a document, or a one-line error that begins with the
 * place. Where tokenizer_config.json adds nothing, the document is a tokenizer that encodes to ids
 * of its own vocabulary, which decode to valid UTF-8.
 *
 * Input: a byte of flags (1: legacy, 2: <s> in front, 4: added tokens), the size of
 * added_tokens_decoder, that JSON, the model. */
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer/internal.h"

#include <string.h>

static void check_error(const error *err)
{
    FUZZ_CHECK(strncmp(err->text, "doc: ", 5) == 0 && !strchr(err->text, '\n'));
    FUZZ_CHECK(utf8_valid((const uint8_t *)err->text, strlen(err->text)));
}

static void check_round_trip(const tokenizer *t, const char *text, size_t n)
{
    tok_ids ids = {0};
    strbuf whole = {0};
    error err = {""};
    FUZZ_CHECK(status_ok(tok_encode(t, text, n, true, &ids, &err)));
    for (size_t i = 0; i < ids.n; i++) FUZZ_CHECK(ids.ids[i] < tok_vocab_size(t));
    FUZZ_CHECK(status_ok(tok_decode(t, ids.ids, ids.n, false, &whole, &err)));
    FUZZ_CHECK(utf8_valid((const uint8_t *)whole.data, whole.size));
    strbuf_destroy(&whole);
    tok_ids_destroy(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size - 2 < data[1]) return 0;
    const char *added_text = (const char *)data + 2, *model = added_text + data[1];
    size_t n = size - 2 - data[1];
    json_t *added = NULL;
    if (data[0] & 4) (void)json_read_text("added", added_text, data[1], &added, NULL);
    tok_spm_options o = {.legacy = data[0] & 1, .bos = data[0] & 2 ? "<s>" : NULL, .added = added};
    strbuf json = {0};
    error err = {""};
    status s = tok_spm_convert("doc", model, n, &o, &json, &err);
    if (!status_ok(s)) {
        check_error(&err);
    } else {
        tokenizer *t = NULL;
        s = tok_load_text("doc", json.data, json.size, &t, &err);
        FUZZ_CHECK(status_ok(s) || added);
        if (status_ok(s)) check_round_trip(t, model, n);
        else check_error(&err);
        tok_destroy(t);
    }
    strbuf_destroy(&json);
    json_decref(added);
    return 0;
}
