/* Property: a file is refused in one line that begins with its name, or its strings, arrays and
 * tensors lie inside it and its tensors do not overlap; the config.json and tokenizer.json made
 * from its metadata are JSON, or are refused in one line too.
 *
 * Input: the file. */
#include "model/load/gguf/gguf_model.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_refusal(status s, const error *err)
{
    FUZZ_CHECK(status_ok(s) || (strncmp(err->text, "file", 4) == 0 && !strchr(err->text, '\n')));
}

static void check_tensors(const gguf *g, size_t size)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[i];
        FUZZ_CHECK(t->begin <= size && t->bytes <= size - t->begin && t->bytes > 0);
        FUZZ_CHECK(t->bytes % t->type->bytes == 0);
        for (size_t j = 0; j < i && i < 64; j++) {
            const gguf_tensor *u = &g->tensors[j];
            FUZZ_CHECK(u->begin + u->bytes <= t->begin || t->begin + t->bytes <= u->begin);
        }
        if (!t->type->decode) continue;
        float out[BLOCK_ELEMENTS_MAX];
        t->type->decode(g->data + t->begin + t->bytes - t->type->bytes, out);
    }
}

static void check_texts(const gguf *g)
{
    error err = {""};
    json_t *config;
    status s = gguf_config(g, &config, &err);
    check_refusal(s, &err);
    if (status_ok(s)) json_decref(config);
    strbuf text = {0};
    s = gguf_tokenizer_json(g, &text, &err);
    check_refusal(s, &err);
    tokenizer *t;
    if (status_ok(s) && status_ok(tok_load_text("file", text.data, text.size, &t, &err)))
        tok_destroy(t);
    strbuf_destroy(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = malloc(size ? size : 1); /* exact, so that over-reads are seen */
    if (!file) return 0;
    if (size) memcpy(file, data, size);
    gguf g;
    error err = {""};
    status s = gguf_parse(&g, "file", file, size, &err);
    check_refusal(s, &err);
    if (status_ok(s)) {
        check_tensors(&g, size);
        check_texts(&g);
    }
    gguf_close(&g);
    free(file);
    return 0;
}
