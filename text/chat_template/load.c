/* Loads the template of a model folder. */
#include "text/chat_template/ast.h"
#include <stdlib.h>

enum { CONFIG_MAX = 16 << 20, TEMPLATE_MAX = 1 << 20, PATH_BYTES = 4096 };

/* Reads a special token: a text, or an object with the text under "content". */
static status special_token(const json_t *config, const char *key, strbuf *out, error *err)
{
    const json_t *special = json_object_get(config, key);
    if (json_is_object(special)) special = json_object_get(special, "content");
    if (!special || json_is_null(special)) return STATUS_IS_OK;
    if (!json_is_string(special))
        return error_set(err, STATUS_CORRUPT, "tokenizer_config.json: '%s' is no text", key);
    strbuf_append(out, json_string_value(special), json_string_length(special));
    return out->failed ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
}

/* Picks the template named "default" from a list of named ones. */
static status named_template(const json_t *templates, const json_t **out, error *err)
{
    size_t i;
    json_t *item;
    json_array_foreach(templates, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || strcmp(name, "default") != 0) continue;
        *out = json_object_get(item, "template");
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "tokenizer_config.json: 'chat_template' has no template named 'default'");
}

static status from_config(const json_t *config, bool want_template, chat_template **out,
                          strbuf *bos, strbuf *eos, error *err)
{
    RETURN_IF_ERROR(special_token(config, "bos_token", bos, err));
    RETURN_IF_ERROR(special_token(config, "eos_token", eos, err));
    const json_t *source = json_object_get(config, "chat_template");
    if (!want_template) return STATUS_IS_OK;
    if (json_is_array(source)) RETURN_IF_ERROR(named_template(source, &source, err));
    if (!source || json_is_null(source)) return STATUS_IS_OK;
    if (!json_is_string(source))
        return error_set(err, STATUS_CORRUPT, "tokenizer_config.json: 'chat_template' is no text");
    status s = tmpl_compile(json_string_value(source), json_string_length(source), out, err);
    if (!status_ok(s)) error_prefix(err, "tokenizer_config.json");
    return s;
}

/* Loads chat_template.jinja, which Hugging Face prefers to the template in the configuration. */
static status from_file(const char *path, chat_template **out, error *err)
{
    char *source;
    size_t n;
    RETURN_IF_ERROR(file_read(path, TEMPLATE_MAX, &source, &n, err));
    status s = tmpl_compile(source, n, out, err);
    free(source);
    if (!status_ok(s)) error_prefix(err, "%s", path);
    return s;
}

status tmpl_load(const char *dir, chat_template **out, strbuf *bos, strbuf *eos, error *err)
{
    char jinja[PATH_BYTES], path[PATH_BYTES];
    *out = NULL;
    RETURN_IF_ERROR(file_join(jinja, sizeof jinja, dir, "chat_template.jinja", err));
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "tokenizer_config.json", err));
    bool has_file = file_exists(jinja);
    status s = STATUS_IS_OK;
    if (file_exists(path)) {
        json_t *config;
        RETURN_IF_ERROR(json_read_file(path, CONFIG_MAX, &config, err));
        s = from_config(config, !has_file, out, bos, eos, err);
        json_decref(config);
    }
    if (status_ok(s) && has_file) s = from_file(jinja, out, err);
    return s;
}
