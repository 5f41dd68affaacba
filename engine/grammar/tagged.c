/* JSON values between texts, such as calls of tools: each value has a schema of its own and stands
 * between its own two texts. */
#include "engine/grammar/internal.h"

static expr text_of(build *b, const json_t *of, const char *key)
{
    const json_t *text = json_object_get(of, key);
    size_t n = json_string_length(text);
    if (text && !json_is_string(text))
        build_fail(b, STATUS_INVALID, "\"%s\" must be a string", key);
    return build_ok(b) && n ? expr_text(b, json_string_value(text), n) : expr_empty(b);
}

/* Errors of a schema begin with the value's name. Its references stay within its own schema. */
static expr read_value(build *b, const json_t *value, size_t i)
{
    const char *name = json_string_value(json_object_get(value, "name"));
    expr begin = text_of(b, value, "begin"), end = text_of(b, value, "end");
    if (!build_ok(b)) return 0;
    uint32_t rule = front_schema(b, json_object_get(value, "schema"));
    if (build_ok(b)) return expr_seq(b, (expr[]){begin, expr_rule(b, rule), end}, 3);
    if (name) error_prefix(b->err, "%s", name);
    else error_prefix(b->err, "values[%zu]", i);
    return 0;
}

/* A rule for one of the values. */
static expr read_values(build *b, const json_t *list)
{
    expr_list all = {0};
    uint32_t rule = rule_create(b, "value");
    if (json_array_size(list) == 0)
        build_fail(b, STATUS_INVALID, "\"values\" must be an array, not empty");
    for (size_t i = 0; build_ok(b) && i < json_array_size(list); i++)
        expr_list_add(b, &all, read_value(b, json_array_get(list, i), i));
    if (!build_ok(b)) return 0;
    rule_define(b, rule, expr_alt(b, all.items, all.n));
    return expr_rule(b, rule);
}

static expr read_source(build *b, const json_t *doc)
{
    expr value = read_values(b, json_object_get(doc, "values"));
    if (!build_ok(b) || !json_is_true(json_object_get(doc, "many"))) return value;
    expr more = expr_then(b, text_of(b, doc, "separator"), value);
    expr parts[] = {text_of(b, doc, "begin"), value, expr_repeat(b, more, 0, REPEAT_MANY),
                    text_of(b, doc, "end")};
    return build_ok(b) ? expr_seq(b, parts, 4) : 0;
}

uint32_t front_tagged(build *b, const char *text, size_t n)
{
    json_t *doc = NULL;
    error err;
    uint32_t root = rule_create(b, "root");
    status s = json_read_text("tagged", text, n, &doc, &err);
    if (!status_ok(s)) build_fail(b, s.code, "%s", err.text);
    expr e = build_ok(b) ? read_source(b, doc) : 0;
    if (build_ok(b)) rule_define(b, root, e);
    json_decref(doc);
    return root;
}
