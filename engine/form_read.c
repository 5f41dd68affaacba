/* The fields of a request that hold its answer to a form: OpenAI's, vLLM's and llama.cpp's. */
#include "engine/form.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct form_place {
    const char *where, *key; // where: "" = the key stands alone in messages
    engine_form *out;
    error *err;
} form_place;

static status refuse(const form_place *p, const char *what)
{
    return error_set(p->err, STATUS_INVALID, "%s%s%s: %s", p->where, *p->where ? ": " : "", p->key,
                     what);
}

bool form_copy(const engine_form *from, engine_form *to)
{
    *to = *from;
    if (!from->given) return true;
    to->text = malloc(from->n + 1);
    if (!to->text) return false;
    memcpy(to->text, from->text, from->n + 1);
    return true;
}

void form_destroy(engine_form *f)
{
    free(f->text);
    *f = (engine_form){0};
}

static status set_text(const form_place *p, grammar_kind kind, const char *text, size_t n)
{
    engine_form *f = p->out;
    if (f->given && strcmp(f->field, p->key) != 0)
        return error_set(p->err, STATUS_INVALID, "%s%s%s: %s gives a form already", p->where,
                         *p->where ? ": " : "", p->key, f->field);
    free(f->text);
    f->given = false;
    f->text = malloc(n + 1);
    if (!f->text) return error_set(p->err, STATUS_NO_MEMORY, "%s: out of memory", p->key);
    memcpy(f->text, text, n);
    f->text[n] = '\0';
    f->n = n;
    f->kind = kind;
    f->given = true;
    for (size_t i = 0; i < sizeof f->field - 1 && p->key[i]; i++) {
        f->field[i] = p->key[i];
        f->field[i + 1] = '\0';
    }
    return STATUS_IS_OK;
}

static status set_json(const form_place *p, grammar_kind kind, const json_t *value)
{
    char *text = json_write(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return error_set(p->err, STATUS_NO_MEMORY, "%s: out of memory", p->key);
    status s = set_text(p, kind, text, strlen(text));
    free(text);
    return s;
}

/* A schema, or the text of one. */
static status set_schema(const form_place *p, const json_t *value)
{
    if (json_is_string(value))
        return set_text(p, GRAMMAR_JSON_SCHEMA, json_string_value(value),
                        json_string_length(value));
    if (!json_is_object(value) && !json_is_boolean(value))
        return refuse(p, "must be a JSON Schema");
    return set_json(p, GRAMMAR_JSON_SCHEMA, value);
}

static status set_string(const form_place *p, grammar_kind kind, const json_t *value)
{
    if (!json_is_string(value) || json_string_length(value) == 0)
        return refuse(p, "must be a string, not empty");
    return set_text(p, kind, json_string_value(value), json_string_length(value));
}

/* {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema":
 * ...}}; "strict" changes nothing, because every schema is kept to the letter. */
static status read_response_format(const form_place *p, const json_t *value)
{
    const char *type = json_word(json_object_get(value, "type"));
    const json_t *named = json_object_get(value, "json_schema");
    if (!type) return refuse(p, "must be an object whose \"type\" is a string without NUL");
    if (strcmp(type, "text") == 0) return STATUS_IS_OK;
    if (strcmp(type, "json_object") == 0) {
        const json_t *schema = json_object_get(value, "schema"); // llama.cpp's form of a schema
        return schema ? set_schema(p, schema) : set_text(p, GRAMMAR_JSON_OBJECT, "", 0);
    }
    if (strcmp(type, "json_schema") != 0)
        return refuse(p, "\"type\" must be \"text\", \"json_object\" or \"json_schema\"");
    const json_t *schema = json_object_get(named, "schema");
    if (!schema) schema = json_object_get(value, "schema");
    if (!schema) return refuse(p, "\"json_schema\" must have a \"schema\"");
    return set_schema(p, schema);
}

static status read_option(const form_place *p, const char *key, const json_t *value)
{
    if (strcmp(key, "json") == 0) return set_schema(p, value);
    if (strcmp(key, "regex") == 0) return set_string(p, GRAMMAR_REGEX, value);
    if (strcmp(key, "choice") == 0) return set_json(p, GRAMMAR_CHOICE, value);
    if (strcmp(key, "grammar") == 0) return set_string(p, GRAMMAR_GBNF, value);
    if (json_is_false(value) || strcmp(key, "disable_fallback") == 0) return STATUS_IS_OK;
    if (strcmp(key, "json_object") == 0) return set_text(p, GRAMMAR_JSON_OBJECT, "", 0);
    if (strcmp(key, "disable_any_whitespace") == 0) {
        p->out->compact = json_is_true(value);
        return STATUS_IS_OK;
    }
    return error_set(p->err, STATUS_UNSUPPORTED, "%s%s%s: '%.64s' is not supported", p->where,
                     *p->where ? ": " : "", p->key, key);
}

static status read_structured_outputs(const form_place *p, const json_t *value)
{
    const char *key;
    json_t *option;
    unsigned forms = 0;
    if (!json_is_object(value)) return refuse(p, "must be an object");
    json_object_foreach((json_t *)(uintptr_t)value, key, option)
    {
        if (json_is_null(option)) continue;
        forms += strncmp(key, "disable_", 8) != 0 && !json_is_false(option);
        RETURN_IF_ERROR(read_option(p, key, option));
    }
    return forms == 1 ? STATUS_IS_OK : refuse(p, "must give one form");
}

status form_read(const char *where, const char *key, const json_t *value, engine_form *out,
                 error *err)
{
    form_place p = {where, key, out, err};
    if (strcmp(key, "response_format") == 0) return read_response_format(&p, value);
    if (strcmp(key, "structured_outputs") == 0) return read_structured_outputs(&p, value);
    if (strcmp(key, "guided_regex") == 0) return set_string(&p, GRAMMAR_REGEX, value);
    if (strcmp(key, "guided_choice") == 0) return set_json(&p, GRAMMAR_CHOICE, value);
    if (strcmp(key, "guided_grammar") == 0 || strcmp(key, "grammar") == 0)
        return set_string(&p, GRAMMAR_GBNF, value);
    return set_schema(&p, value); // guided_json, json_schema
}

status engine_request_read_form(engine_request *r, const char *field, const json_t *value,
                                error *err)
{
    return read_structured_outputs(&(form_place){"", field, &r->form, err}, value);
}

status engine_request_set_form(engine_request *r, const char *field, grammar_kind kind,
                               const char *text, size_t n, error *err)
{
    const form_place p = {"", field, &r->form, err};
    if (n == 0 && kind != GRAMMAR_JSON_OBJECT) return refuse(&p, "must not be empty");
    return set_text(&p, kind, n ? text : "", n);
}
