/* Property: any template and variables give text, or a one-line error with the template's line; a
 * failed rendering leaves the output unchanged; the limits hold; rendering again gives the same.
 * Input: the source, a NUL, the variables as JSON. */
#include "tests/fuzz/fuzz.h"
#include "text/chat_template.h"

#include <string.h>

/* Tight for some inputs, so that every error path is taken. */
static tmpl_limits limits_for(size_t size)
{
    return (tmpl_limits){
        .max_steps = size & 1 ? 100000 : 1000,
        .max_output = 1 << 16,
        .max_memory = size & 2 ? 8 << 20 : 128 << 10,
    };
}

static void check_error(const error *err)
{
    size_t n = strlen(err->text);
    FUZZ_CHECK(strncmp(err->text, "chat_template:", 14) == 0 && !strchr(err->text, '\n'));
    FUZZ_CHECK(utf8_valid((const uint8_t *)err->text, n));
}

static void render_twice(const chat_template *t, const json_t *vars, tmpl_limits limits)
{
    strbuf out[2] = {{0}, {0}};
    status s[2];
    for (int i = 0; i < 2; i++) {
        error err = {""};
        strbuf_puts(&out[i], "kept");
        s[i] = tmpl_render(t, vars, 1721952000, &limits, &out[i], &err);
        FUZZ_CHECK(out[i].size >= 4 && memcmp(out[i].data, "kept", 4) == 0);
        FUZZ_CHECK(out[i].size <= 4 + limits.max_output);
        FUZZ_CHECK(utf8_valid((const uint8_t *)out[i].data, out[i].size));
        if (status_ok(s[i])) continue;
        FUZZ_CHECK(s[i].code != STATUS_INTERNAL && out[i].size == 4);
        check_error(&err);
    }
    FUZZ_CHECK(s[0].code == s[1].code && out[0].size == out[1].size);
    FUZZ_CHECK(memcmp(out[0].data, out[1].data, out[0].size) == 0);
    strbuf_destroy(&out[0]);
    strbuf_destroy(&out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    chat_template *t = NULL;
    error err = {""};
    json_t *vars = NULL;
    if (end) (void)json_read_text("vars", (const char *)end + 1, size - n - 1, &vars, NULL);
    if (!json_is_object(vars)) {
        json_decref(vars);
        vars = json_object();
    }
    if (status_ok(tmpl_compile((const char *)data, n, &t, &err)))
        render_twice(t, vars, limits_for(size));
    else check_error(&err);
    tmpl_destroy(t);
    json_decref(vars);
    return 0;
}
