/* Callers' arguments (structs of any version, settings, parameters of requests), and the errors
 * that callers get. */
#include "lib/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

octavo_status lib_status(status_code code)
{
    switch (code) {
    case STATUS_OK: return OCTAVO_OK;
    case STATUS_NO_PAGES: return OCTAVO_NO_MEMORY;
    case STATUS_QUEUE_FULL: return OCTAVO_QUEUE_FULL;
    case STATUS_INVALID: return OCTAVO_INVALID;
    case STATUS_UNSUPPORTED: return OCTAVO_UNSUPPORTED;
    case STATUS_NOT_FOUND: return OCTAVO_NOT_FOUND;
    case STATUS_CORRUPT: return OCTAVO_CORRUPT;
    case STATUS_LIMIT: return OCTAVO_LIMIT;
    case STATUS_NO_MEMORY: return OCTAVO_NO_MEMORY;
    case STATUS_IO: return OCTAVO_IO;
    case STATUS_ABORTED: return OCTAVO_ABORTED;
    case STATUS_UNAVAILABLE: return OCTAVO_UNAVAILABLE;
    case STATUS_INTERNAL: return OCTAVO_INTERNAL;
    }
    return OCTAVO_INTERNAL;
}

const char *octavo_status_text(octavo_status s)
{
    if (s == OCTAVO_TIMEOUT) return "nothing to read yet";
    if (s == OCTAVO_END) return "everything has been read";
    for (status_code code = STATUS_OK; code <= STATUS_INTERNAL; code++)
        if (code != STATUS_NO_PAGES && lib_status(code) == s) return status_text(code);
    return "unknown status";
}

octavo_status lib_tell(status s, const error *err, char *text, size_t text_bytes)
{
    if (status_ok(s)) return OCTAVO_OK;
    const char *why = *err->text ? err->text : s.message ? s.message : status_text(s.code);
    if (text && text_bytes) snprintf(text, text_bytes, "%s", why);
    return lib_status(s.code);
}

/* ---- structs --------------------------------------------------------------------------------- */

/* No struct is larger: another size is that of a struct which nobody has initialised. */
enum { STRUCT_BYTES_MAX = 4096 };

static bool has_size(const void *given, size_t *size)
{
    if (!given) return false;
    memcpy(size, given, sizeof *size);
    return *size >= sizeof *size && *size <= STRUCT_BYTES_MAX;
}

status lib_check_there(const void *given, const char *name, error *err)
{
    return given ? STATUS_IS_OK : error_set(err, STATUS_INVALID, "%s: is NULL", name);
}

status lib_take_struct(const void *given, const char *name, void *own, size_t bytes, error *err)
{
    size_t size;
    if (!has_size(given, &size))
        return error_set(err, STATUS_INVALID, "octavo_%s: was not made by octavo_%s_init()", name,
                         name);
    for (size_t i = bytes; i < size; i++)
        if (((const uint8_t *)given)[i])
            return error_set(err, STATUS_UNSUPPORTED,
                             "octavo_%s: has a member that this version of the library, " //
                             "%s, does not know",
                             name, octavo_version());
    memset(own, 0, bytes);
    memcpy(own, given, size < bytes ? size : bytes);
    return STATUS_IS_OK;
}

bool lib_give_struct(void *given, const void *own, size_t bytes)
{
    size_t size;
    if (!has_size(given, &size)) return false;
    size_t common = size < bytes ? size : bytes;
    memcpy((uint8_t *)given + sizeof size, (const uint8_t *)own + sizeof size,
           common - sizeof size);
    memset((uint8_t *)given + common, 0, size - common);
    return true;
}

/* ---- settings -------------------------------------------------------------------------------- */

static const arg_flag *find_flag(const arg_command *command, const char *name, size_t n)
{
    for (size_t g = 0; g < command->n_groups; g++)
        for (size_t i = 0; i < command->groups[g].n_flags; i++) {
            const arg_flag *f = &command->groups[g].flags[i];
            if (strlen(f->name) == n && memcmp(f->name, name, n) == 0) return f;
        }
    return NULL;
}

/* A value that is missing must not be taken from the setting behind. */
static status check_setting(const arg_command *command, const char *setting, error *err)
{
    size_t n = strcspn(setting, "=");
    const arg_flag *f = find_flag(command, setting, n);
    if (!f)
        return error_set(err, STATUS_INVALID, "unknown setting '%.*s'", n < 64 ? (int)n : 64,
                         setting);
    if (f->kind == ARG_SWITCH || setting[n] == '=') return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "--%s: needs a value", f->name);
}

static status add_word(char **words, size_t *n, const char *name, const char *rest, error *err)
{
    if (asprintf(&words[*n], "--%s%s", name, rest) >= 0) {
        (*n)++;
        return STATUS_IS_OK;
    }
    words[*n] = NULL;
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static status make_words(const octavo_engine_options *o, const arg_command *command, char **words,
                         size_t *n, error *err)
{
    RETURN_IF_ERROR(add_word(words, n, "", "", err)); /* stands for the program */
    RETURN_IF_ERROR(add_word(words, n, "model=", o->model, err));
    for (size_t i = 0; o->settings && o->settings[i]; i++) {
        RETURN_IF_ERROR(check_setting(command, o->settings[i], err));
        RETURN_IF_ERROR(add_word(words, n, o->settings[i], "", err));
    }
    return STATUS_IS_OK;
}

status lib_read_settings(const octavo_engine_options *o, octavo_engine *e, error *err)
{
    enum { SETTINGS_MAX = 1000 };
    if (!o->model) return error_set(err, STATUS_INVALID, "model: is missing");
    const arg_group groups[] = {model_flags_group(&e->flags), retention_flags_group(&e->retention),
                                retention_flags_server_group(&e->retention)};
    const arg_command command = {.groups = groups, .n_groups = sizeof groups / sizeof *groups};
    size_t n = 0, n_settings = 0;
    while (o->settings && o->settings[n_settings] && n_settings < SETTINGS_MAX) n_settings++;
    if (n_settings == SETTINGS_MAX)
        return error_set(err, STATUS_INVALID, "settings: do not end with NULL");
    e->words = calloc(n_settings + 3, sizeof *e->words);
    if (!e->words) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    RETURN_IF_ERROR(make_words(o, &command, e->words, &n, err));
    if (args_parse(&command, (int)n, e->words, NULL, err) != ARG_OUTCOME_RUN)
        return status_make(STATUS_INVALID, NULL);
    return retention_flags_read(&e->retention, err);
}

/* ---- parameters of a request ----------------------------------------------------------------- */

/* Puts a value, which it takes over, into the object of fields. */
static status put_field(json_t *fields, const char *name, json_t *value, error *err)
{
    if (json_object_get(fields, name)) {
        json_decref(value);
        return error_set(err, STATUS_INVALID, "request: %s: is given twice", name);
    }
    if (value && json_object_set_new(fields, name, value) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "request: %s: out of memory", name);
}

static status put_text(json_t *fields, const char *name, const char *text, error *err)
{
    if (!text) return STATUS_IS_OK;
    if (!utf8_valid((const uint8_t *)text, strlen(text)))
        return error_set(err, STATUS_INVALID, "request: %s: is not UTF-8", name);
    return put_field(fields, name, json_string_nocheck(text), err);
}

static status put_json(json_t *fields, const char *name, const char *text, error *err)
{
    json_t *value;
    if (!text) return STATUS_IS_OK;
    RETURN_IF_ERROR(json_read_argument(name, text, strlen(text), &value, err));
    return put_field(fields, name, value, err);
}

/* A method's word, such as chunkkv:0.25 or quest:4096, or JSON. */
static status put_method(json_t *fields, const char *name, const char *text, error *err)
{
    bool one_word = text && isalpha((unsigned char)*text);
    return (one_word ? put_text : put_json)(fields, name, text, err);
}

static status put_params(const octavo_params *p, json_t *fields, error *err)
{
    RETURN_IF_ERROR(put_text(fields, "prompt", p->prompt, err));
    RETURN_IF_ERROR(put_text(fields, "session", p->session, err));
    RETURN_IF_ERROR(put_json(fields, "messages", p->messages, err));
    RETURN_IF_ERROR(put_method(fields, "retention", p->retention, err));
    RETURN_IF_ERROR(put_method(fields, "retrieval", p->retrieval, err));
    if (p->max_tokens == 0) return STATUS_IS_OK;
    return put_field(fields, "max_tokens", json_integer(p->max_tokens), err);
}

static status copy_token_ids(const octavo_params *p, engine_request *out, error *err)
{
    if (!p->token_ids) return STATUS_IS_OK;
    if (out->prompt_token_ids)
        return error_set(err, STATUS_INVALID, "request: prompt_token_ids: is given twice");
    if (p->n_token_ids == 0 || p->n_token_ids > INT32_MAX)
        return error_set(err, STATUS_INVALID, "request: token_ids: n_token_ids is %zu",
                         p->n_token_ids);
    out->prompt_token_ids = malloc(p->n_token_ids * sizeof *p->token_ids);
    if (!out->prompt_token_ids)
        return error_set(err, STATUS_NO_MEMORY, "request: token_ids: out of memory");
    memcpy(out->prompt_token_ids, p->token_ids, p->n_token_ids * sizeof *p->token_ids);
    out->n_prompt_token_ids = (uint32_t)p->n_token_ids;
    return STATUS_IS_OK;
}

status lib_read_params(const octavo_params *p, const engine_defaults *defaults, engine_request *out,
                       error *err)
{
    json_t *fields = NULL;
    engine_request_init(out, defaults);
    if (p->fields)
        RETURN_IF_ERROR(json_read_argument("fields", p->fields, strlen(p->fields), &fields, err));
    else if (!(fields = json_object()))
        return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    status s = STATUS_IS_OK;
    if (!json_is_object(fields))
        s = error_set(err, STATUS_INVALID, "fields: must be a JSON object");
    if (status_ok(s)) s = put_params(p, fields, err);
    if (status_ok(s)) s = engine_request_parse(fields, "request", NULL, out, err);
    if (status_ok(s)) s = copy_token_ids(p, out, err);
    json_decref(fields);
    return s;
}
