/* Property: for any bytes, strbuf_json_string writes a JSON literal that json_read_text accepts,
 * and valid UTF-8 comes back byte for byte. Parsed as JSON themselves, the bytes give the value
 * that jansson's own reader gives, or a one-line error that begins with the place. */
#include "base/base.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check_string(const uint8_t *data, size_t size)
{
    strbuf text = {0};
    strbuf_json_string(&text, (const char *)data, size);
    FUZZ_CHECK(!text.failed);
    json_t *value;
    error err;
    FUZZ_CHECK(status_ok(json_read_text("literal", text.data, text.size, &value, &err)));
    FUZZ_CHECK(json_is_string(value));
    if (utf8_valid(data, size)) {
        FUZZ_CHECK(json_string_length(value) == size);
        FUZZ_CHECK(memcmp(json_string_value(value), data, size) == 0);
    }
    json_decref(value);
    strbuf_destroy(&text);
}

static void check_document(const uint8_t *data, size_t size)
{
    json_t *value = NULL;
    error err;
    status s = json_read_text("doc", (const char *)data, size, &value, &err);
    json_t *due = json_loadb((const char *)data, size,
                             JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    FUZZ_CHECK(status_ok(s) == (value != NULL));
    /* jansson accepts a NUL after the value; this reader does not. */
    bool may_differ = !value && size > 0 && memchr(data, 0, size);
    FUZZ_CHECK(may_differ ||
               ((due != NULL) == (value != NULL) && (!due || json_equal(due, value))));
    json_decref(due);
    if (!value) {
        FUZZ_CHECK(strncmp(err.text, "doc: line ", 10) == 0 && !strchr(err.text, '\n'));
        FUZZ_CHECK(utf8_valid((const uint8_t *)err.text, strlen(err.text)));
    }
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_string(data, size);
    check_document(data, size);
    return 0;
}
