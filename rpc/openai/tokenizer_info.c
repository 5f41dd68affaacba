/* The configuration of the model's tokenizer: the file that the model's folder has. */
#include "rpc/openai/internal.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 16 << 20, TEMPLATE_BYTES_MAX = 4 << 20, PATH_BYTES = 4096 };

/* Reads chat_template.jinja, which goes before the template of the configuration, where there is
 * one. */
static status add_template(const char *dir, json_t *config, error *err)
{
    char path[PATH_BYTES], *text;
    size_t n;
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "chat_template.jinja", err));
    if (!file_exists(path)) return STATUS_IS_OK;
    RETURN_IF_ERROR(file_read(path, TEMPLATE_BYTES_MAX, &text, &n, err));
    int failed = json_object_set_new(config, "chat_template", json_stringn(text, n));
    free(text);
    return failed ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
}

static status put_config(const char *dir, json_t *config, strbuf *out, error *err)
{
    RETURN_IF_ERROR(add_template(dir, config, err));
    /* Paths of the machine that trained the model. */
    json_object_del(config, "vocab_file");
    json_object_del(config, "merges_file");
    int failed = 0;
    if (!json_is_string(json_object_get(config, "tokenizer_class")))
        failed =
            json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    char *text = failed ? NULL : json_write(config, JSON_COMPACT);
    if (text) strbuf_puts(out, text);
    bool ok = text && !out->failed;
    free(text);
    return ok ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static status read_config(const char *dir, strbuf *out, error *err)
{
    char path[PATH_BYTES];
    json_t *config = NULL;
    status st = file_join(path, sizeof path, dir, "tokenizer_config.json", err);
    if (status_ok(st)) st = json_read_file(path, CONFIG_BYTES_MAX, &config, err);
    if (status_ok(st) && !json_is_object(config))
        st = error_set(err, STATUS_IO, "tokenizer_config.json: must be a JSON object");
    if (status_ok(st)) st = put_config(dir, config, out, err);
    json_decref(config);
    return st;
}

/* A model runs without the file, too: its tokenizer.json is enough. */
char *tokenizer_info_read(const char *dir)
{
    error ignored;
    strbuf text = {0};
    if (dir && status_ok(read_config(dir, &text, &ignored))) return text.data;
    strbuf_destroy(&text);
    return NULL;
}

bool openai_tokenizer_info(service *s, strbuf *out, openai_error *failure)
{
    error err;
    if (s->tokenizer_info) {
        strbuf_puts(out, s->tokenizer_info);
        return true;
    }
    status st = error_set(&err, STATUS_NOT_FOUND,
                          "The model has no tokenizer_config.json that could be read.");
    openai_error_from(s, st, &err, failure);
    return false;
}
