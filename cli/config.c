#include "cli/config.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reading {
    yaml_parser_t parser;
    const char *source;
    config_file *out;
    json_t *seen; // name to the line where it is given
    error *err;
} reading;

static unsigned line_of(const yaml_event_t *event) { return (unsigned)event->start_mark.line + 1; }

static status refuse(const reading *r, unsigned line, const char *what)
{
    return error_set(r->err, STATUS_INVALID, "%s: line %u: %s", r->source, line, what);
}

static status out_of_memory(const reading *r)
{
    return error_set(r->err, STATUS_NO_MEMORY, "%s: out of memory", r->source);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The anchor or tag of a value; a value with neither is the only one that is taken. */
static bool is_marked(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT: return event->data.scalar.anchor || event->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor || event->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor || event->data.mapping_start.tag;
    case YAML_ALIAS_EVENT: return true;
    default: return false;
    }
}

/* The caller deletes the event if this succeeds. */
static status next_event(reading *r, yaml_event_t *event)
{
    if (!yaml_parser_parse(&r->parser, event)) {
        if (r->parser.error == YAML_MEMORY_ERROR) return out_of_memory(r);
        /* A reader's error has no mark: it tells the offset of the byte. */
        if (r->parser.error == YAML_READER_ERROR)
            return error_set(r->err, STATUS_INVALID, "%s: byte %zu: %s", r->source,
                             r->parser.problem_offset, r->parser.problem);
        return refuse(r, (unsigned)r->parser.problem_mark.line + 1,
                      r->parser.problem ? r->parser.problem : "is not YAML");
    }
    unsigned line = line_of(event);
    bool marked = is_marked(event);
    bool has_nul = event->type == YAML_SCALAR_EVENT &&
                   memchr(event->data.scalar.value, 0, event->data.scalar.length);
    if (!marked && !has_nul) return STATUS_IS_OK;
    yaml_event_delete(event);
    return refuse(r, line,
                  marked ? "anchors, aliases and tags are not taken" : "a value has a NUL");
}

static const char *text_of(const yaml_event_t *scalar)
{
    return (const char *)scalar->data.scalar.value;
}

static bool is_plain(const yaml_event_t *scalar)
{
    return scalar->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_null(const yaml_event_t *scalar)
{
    static const char *const nulls[] = {"", "~", "null"};
    for (size_t i = 0; is_plain(scalar) && i < sizeof nulls / sizeof *nulls; i++)
        if (strcmp(text_of(scalar), nulls[i]) == 0) return true;
    return false;
}

/* ---- values that become JSON ----------------------------------------------------------------- */

/* A number, true, false or null where it is not quoted, else a string. */
static json_t *make_scalar(const yaml_event_t *event)
{
    const char *text = text_of(event);
    json_t *value = NULL;
    if (is_null(event)) return json_null();
    if (is_plain(event) &&
        status_ok(json_read_text("", text, event->data.scalar.length, &value, NULL))) {
        if (json_is_number(value) || json_is_boolean(value)) return value;
        json_decref(value);
    }
    return json_stringn(text, event->data.scalar.length);
}

static status read_value(reading *r, const yaml_event_t *event, int depth, json_t **out);

/* Reads the members behind the event that opened an object. */
static status read_members(reading *r, int depth, json_t *object)
{
    for (;;) {
        yaml_event_t key, event;
        RETURN_IF_ERROR(next_event(r, &key));
        if (key.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&key);
            return STATUS_IS_OK;
        }
        json_t *value = NULL;
        status s = STATUS_IS_OK;
        if (key.type != YAML_SCALAR_EVENT) s = refuse(r, line_of(&key), "a name must be a text");
        else if (json_object_get(object, text_of(&key)))
            s = refuse(r, line_of(&key), "a name is given twice");
        if (status_ok(s)) s = next_event(r, &event);
        if (status_ok(s)) {
            s = read_value(r, &event, depth, &value);
            yaml_event_delete(&event);
        }
        if (status_ok(s) && json_object_set_new(object, text_of(&key), value) != 0)
            s = out_of_memory(r);
        yaml_event_delete(&key);
        RETURN_IF_ERROR(s);
    }
}

static status read_items(reading *r, int depth, json_t *array)
{
    for (;;) {
        yaml_event_t event;
        RETURN_IF_ERROR(next_event(r, &event));
        bool ended = event.type == YAML_SEQUENCE_END_EVENT;
        json_t *value = NULL;
        status s = ended ? STATUS_IS_OK : read_value(r, &event, depth, &value);
        yaml_event_delete(&event);
        if (ended || !status_ok(s)) return s;
        if (json_array_append_new(array, value) != 0) return out_of_memory(r);
    }
}

static status read_value(reading *r, const yaml_event_t *event, int depth, json_t **out)
{
    if (depth >= CONFIG_DEPTH_MAX) return refuse(r, line_of(event), "is nested too deeply");
    status s = STATUS_IS_OK;
    bool object = event->type == YAML_MAPPING_START_EVENT;
    bool array = event->type == YAML_SEQUENCE_START_EVENT;
    json_t *value = object ? json_object() : array ? json_array() : make_scalar(event);
    if (!value) return out_of_memory(r);
    if (object) s = read_members(r, depth + 1, value);
    if (array) s = read_items(r, depth + 1, value);
    if (status_ok(s)) *out = value;
    else json_decref(value);
    return s;
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Takes over value, which may be NULL when memory ran out. */
static status add_setting(reading *r, const char *name, char *value, unsigned line, bool item)
{
    arg_settings *all = &r->out->settings;
    char *copy = value ? strdup(name) : NULL;
    /* Grows at powers of two. */
    if (copy && (all->n & (all->n - 1)) == 0) {
        arg_setting *grown = realloc(all->items, (all->n ? 2 * all->n : 1) * sizeof *grown);
        if (grown) all->items = grown;
        else free(copy), copy = NULL;
    }
    if (!copy) {
        free(value);
        return out_of_memory(r);
    }
    all->items[all->n++] = (arg_setting){copy, value, line, item};
    return STATUS_IS_OK;
}

static status add_value(reading *r, const char *name, const yaml_event_t *event, bool item)
{
    unsigned line = line_of(event);
    if (event->type == YAML_SCALAR_EVENT) {
        if (!is_null(event)) return add_setting(r, name, strdup(text_of(event)), line, item);
        return error_set(r->err, STATUS_INVALID, "%s: line %u: %.64s: has no value", r->source,
                         line, name);
    }
    json_t *value;
    RETURN_IF_ERROR(read_value(r, event, 1, &value));
    char *text = json_write(value, JSON_COMPACT);
    json_decref(value);
    return add_setting(r, name, text, line, item);
}

static status add_list(reading *r, const char *name)
{
    for (;;) {
        yaml_event_t event;
        RETURN_IF_ERROR(next_event(r, &event));
        bool ended = event.type == YAML_SEQUENCE_END_EVENT;
        status s = ended ? STATUS_IS_OK : add_value(r, name, &event, true);
        yaml_event_delete(&event);
        if (ended || !status_ok(s)) return s;
    }
}

static status check_name(reading *r, const yaml_event_t *key)
{
    if (key->type != YAML_SCALAR_EVENT)
        return refuse(r, line_of(key), "the name of a flag must be a text");
    const char *name = text_of(key);
    if (strcmp(name, "config") == 0 || strcmp(name, "help") == 0)
        return error_set(r->err, STATUS_INVALID, "%s: line %u: %s: belongs on the command line",
                         r->source, line_of(key), name);
    const json_t *before = json_object_get(r->seen, name);
    if (before)
        return error_set(r->err, STATUS_INVALID, "%s: line %u: %.64s: is given in line %d too",
                         r->source, line_of(key), name, (int)json_integer_value(before));
    if (json_object_set_new(r->seen, name, json_integer(line_of(key))) == 0) return STATUS_IS_OK;
    return out_of_memory(r);
}

/* Reads the flags behind the event that opened the top. */
static status read_flags(reading *r)
{
    for (;;) {
        yaml_event_t key, event;
        RETURN_IF_ERROR(next_event(r, &key));
        bool ended = key.type == YAML_MAPPING_END_EVENT;
        status s = ended ? STATUS_IS_OK : check_name(r, &key);
        if (!ended && status_ok(s)) s = next_event(r, &event);
        if (!ended && status_ok(s)) {
            bool list = event.type == YAML_SEQUENCE_START_EVENT;
            s = list ? add_list(r, text_of(&key)) : add_value(r, text_of(&key), &event, false);
            yaml_event_delete(&event);
        }
        yaml_event_delete(&key);
        if (ended || !status_ok(s)) return s;
    }
}

/* Reads a stream of one document, or of none. */
static status read_stream(reading *r)
{
    bool has_document = false;
    for (;;) {
        yaml_event_t event;
        RETURN_IF_ERROR(next_event(r, &event));
        yaml_event_type_t type = event.type;
        unsigned line = line_of(&event);
        yaml_event_delete(&event);
        switch (type) {
        case YAML_STREAM_END_EVENT: return STATUS_IS_OK;
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_DOCUMENT_START_EVENT:
            if (has_document) return refuse(r, line, "a second document begins");
            has_document = true;
            break;
        case YAML_MAPPING_START_EVENT: RETURN_IF_ERROR(read_flags(r)); break;
        default: return refuse(r, line, "must be lines of \"flag: value\"");
        }
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

status config_parse(const char *source, const char *text, size_t n, config_file *out, error *err)
{
    *out = (config_file){0};
    out->settings.source = strdup(source);
    reading r = {.source = source, .out = out, .seen = json_object(), .err = err};
    status s = STATUS_IS_OK;
    if (!out->settings.source || !r.seen || !yaml_parser_initialize(&r.parser)) {
        s = out_of_memory(&r);
    } else {
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
        s = read_stream(&r);
        yaml_parser_delete(&r.parser);
    }
    json_decref(r.seen);
    if (!status_ok(s)) config_destroy(out);
    return s;
}

status config_read(const char *path, config_file *out, error *err)
{
    char *text;
    size_t n;
    *out = (config_file){0};
    status s = file_read(path, CONFIG_BYTES_MAX, &text, &n, err);
    if (!status_ok(s)) return s;
    s = config_parse(path, text, n, out, err);
    free(text);
    return s;
}

void config_destroy(config_file *c)
{
    for (size_t i = 0; i < c->settings.n; i++) {
        free((char *)c->settings.items[i].name);
        free((char *)c->settings.items[i].value);
    }
    free(c->settings.items);
    free((char *)c->settings.source);
    *c = (config_file){0};
}
