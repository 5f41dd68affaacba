/* Turns tokenizer.json into tables: the document, and the places and names in its errors. */
#include "text/tokenizer/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (512u << 20)

tok_place tok_place_make(const char *where, const char *fmt, ...)
{
    tok_place place;
    int n = snprintf(place.text, sizeof place.text, "%s: ", where);
    va_list args;
    va_start(args, fmt);
    if (n >= 0 && (size_t)n < sizeof place.text)
        vsnprintf(place.text + n, sizeof place.text - (size_t)n, fmt, args);
    va_end(args);
    return place;
}

tok_shown tok_show(const char *s, size_t n)
{
    tok_shown shown;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t cp;
        unsigned length = utf8_decode((const uint8_t *)s + i, n - i, &cp);
        if (at + length + 4 > sizeof shown.text) {
            memcpy(shown.text + at, "...", 3);
            at += 3;
            break;
        }
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == UINT32_MAX) shown.text[at++] = '?';
        else
            for (unsigned k = 0; k < length; k++) shown.text[at++] = s[i + k];
        i += length - 1;
    }
    shown.text[at] = 0;
    return shown;
}

status tok_part_type(const json_t *part, const char *where, const char **type, error *err)
{
    RETURN_IF_ERROR(json_get_string(part, where, "type", type, err));
    if (*type) return STATUS_IS_OK;
    return error_set(err, STATUS_CORRUPT, "%s: no \"type\"", where);
}

static status load_parts(tokenizer *t, const char *where, const json_t *doc, error *err)
{
    if (!json_is_object(doc))
        return error_set(err, STATUS_CORRUPT, "%s: the document is no JSON object", where);
    const char *version;
    RETURN_IF_ERROR(json_get_string(doc, where, "version", &version, err));
    if (version && strcmp(version, "1.0") != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: version \"%s\" is not supported", where,
                         tok_show(version, strlen(version)).text);
    const json_t *added = json_object_get(doc, "added_tokens");
    t->byte_level = tok_has_byte_level(json_object_get(doc, "pre_tokenizer"), 0);
    RETURN_IF_ERROR(
        tok_load_model(t, where, json_object_get(doc, "model"), json_array_size(added), err));
    RETURN_IF_ERROR(tok_load_normalizer(t, where, json_object_get(doc, "normalizer"), err));
    RETURN_IF_ERROR(tok_load_added_tokens(t, where, added, err));
    RETURN_IF_ERROR(tok_load_pre_tokenizer(t, where, json_object_get(doc, "pre_tokenizer"), err));
    RETURN_IF_ERROR(tok_load_post_processor(t, where, json_object_get(doc, "post_processor"), err));
    /* "truncation" and "padding" concern batches in training. They are ignored, as in
     * `transformers`, which sets them anew for every call. */
    return tok_load_decoder(t, where, json_object_get(doc, "decoder"), err);
}

static status load_document(const char *where, json_t *doc, tokenizer **out, error *err)
{
    tokenizer *t = alloc_zeroed(NULL, 1, sizeof *t);
    status s = status_make(STATUS_NO_MEMORY, NULL);
    if (t) {
        arena_init(&t->strings, 64u << 10, 0);
        s = load_parts(t, where, doc, err);
    }
    json_decref(doc);
    if (status_ok(s)) {
        *out = t;
        return s;
    }
    tok_destroy(t);
    if (s.code == STATUS_NO_MEMORY)
        return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    /* The getters call a wrong type invalid; here the file is corrupt. */
    if (s.code == STATUS_INVALID) s = status_make(STATUS_CORRUPT, status_text(STATUS_CORRUPT));
    return s;
}

status tok_load_text(const char *where, const char *json, size_t n, tokenizer **out, error *err)
{
    json_t *doc;
    RETURN_IF_ERROR(json_read_text(where, json, n, &doc, err));
    return load_document(where, doc, out, err);
}

/* Loads tokenizer.model with the settings of tokenizer_config.json. */
static status load_sentencepiece(const char *path, const json_t *config, tokenizer **out,
                                 error *err)
{
    const json_t *bos = json_object_get(config, "bos_token");
    if (json_is_object(bos)) bos = json_object_get(bos, "content");
    bool add_bos;
    tok_spm_options o = {.added = json_object_get(config, "added_tokens_decoder")};
    RETURN_IF_ERROR(json_get_bool(config, "tokenizer_config.json", "legacy", true, &o.legacy, err));
    RETURN_IF_ERROR(
        json_get_bool(config, "tokenizer_config.json", "add_bos_token", true, &add_bos, err));
    if (add_bos) o.bos = json_is_string(bos) ? json_string_value(bos) : "<s>";
    char *data;
    size_t n;
    RETURN_IF_ERROR(file_read(path, FILE_BYTES_MAX, &data, &n, err));
    strbuf json = {0};
    status s = tok_spm_convert(path, data, n, &o, &json, err);
    free(data);
    if (status_ok(s)) s = tok_load_text(path, json.data, json.size, out, err);
    strbuf_destroy(&json);
    return s;
}

static status load_model_folder(const char *dir, const char *path, tokenizer **out, error *err)
{
    char config_path[4096];
    json_t *config = NULL;
    RETURN_IF_ERROR(file_join(config_path, sizeof config_path, dir, "tokenizer_config.json", err));
    if (file_exists(config_path))
        RETURN_IF_ERROR(json_read_file(config_path, FILE_BYTES_MAX, &config, err));
    status s = load_sentencepiece(path, config, out, err);
    json_decref(config);
    return s;
}

status tok_load(const char *dir, tokenizer **out, error *err)
{
    char path[4096], model[4096];
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "tokenizer.json", err));
    RETURN_IF_ERROR(file_join(model, sizeof model, dir, "tokenizer.model", err));
    if (!file_exists(path) && file_exists(model)) return load_model_folder(dir, model, out, err);
    json_t *doc;
    RETURN_IF_ERROR(json_read_file(path, FILE_BYTES_MAX, &doc, err));
    return load_document(path, doc, out, err);
}

void tok_destroy(tokenizer *t)
{
    if (!t) return;
    tok_ids_destroy(&t->prefix);
    tok_ids_destroy(&t->suffix);
    tok_steps_destroy(&t->steps);
    tok_added_set_destroy(&t->raw_pass);
    tok_added_set_destroy(&t->normalized_pass);
    alloc_free(NULL, t->added_tokens);
    tok_bpe_destroy(&t->bpe);
    tok_map_destroy(&t->words);
    tok_map_destroy(&t->others);
    tok_map_destroy(&t->added);
    alloc_free(NULL, t->entries);
    alloc_free(NULL, t->firsts);
    arena_destroy(&t->strings);
    alloc_free(NULL, t);
}
