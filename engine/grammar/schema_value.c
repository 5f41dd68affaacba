/* Values that a list names, beside other words of its schema: those stay that the words allow. */
#include "engine/grammar/schema.h"

#include <math.h>
#include <string.h>

/* The operations that a comparison with the value may take: one for each value within it, and more
 * for long texts. */
static uint64_t weight_of(const json_t *value)
{
    uint64_t weight = 1 + json_string_length(value) / 64;
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(value, i, one) weight += weight_of(one);
    json_object_foreach((json_t *)(uintptr_t)value, key, one) weight += weight_of(one);
    return weight;
}

bool schema_lists(schema_reader *r, const json_t *list, const json_t *value)
{
    json_t *one;
    size_t i;
    if (!build_work(r->b, json_array_size(list) * weight_of(value))) return false;
    json_array_foreach(list, i, one) if (json_equal(one, (json_t *)(uintptr_t)value)) return true;
    return false;
}

static bool number_fits(const json_t *s, double x)
{
    const json_t *min = json_object_get(s, "minimum"), *max = json_object_get(s, "maximum");
    const json_t *above = json_object_get(s, "exclusiveMinimum");
    const json_t *below = json_object_get(s, "exclusiveMaximum");
    double low = json_number_value(min), high = json_number_value(max); // 0 where they are none
    double times = x / json_number_value(json_object_get(s, "multipleOf"));
    if (json_object_get(s, SCHEMA_NOT_WHOLE) && x == floor(x)) return false;
    if (min && (x < low || (json_is_true(above) && x == low))) return false; // draft 4
    if (max && (x > high || (json_is_true(below) && x == high))) return false;
    if (json_is_number(above) && x <= json_number_value(above)) return false;
    if (json_is_number(below) && x >= json_number_value(below)) return false;
    return !isfinite(times) || fabs(times - round(times)) <= 1e-9 * fmax(1, fabs(times));
}

static bool refuse_beside(schema_reader *r, const char *word)
{
    schema_fail(r, STATUS_UNSUPPORTED, word, "beside a list of arrays and objects");
    return false;
}

static bool member_fits(schema_reader *r, const json_t *s, const char *key, const json_t *v);

/* How many schemas of a list allow the value. */
static size_t count_fitting(schema_reader *r, const json_t *list, const char *key, const json_t *v)
{
    const json_t *one;
    size_t n = 0, i;
    json_array_foreach(list, i, one) n += build_ok(r->b) && member_fits(r, one, key, v);
    return n;
}

/* Whether the member's schema, if there is one, allows the value. */
static bool member_fits(schema_reader *r, const json_t *s, const char *key, const json_t *v)
{
    if (!s || json_is_true(s) || !build_work(r->b, 1)) return true;
    if (!json_is_object(s)) return false;
    size_t path = schema_enter(r, key);
    const json_t *flat = schema_flat(r, s), *list = json_object_get(flat, "enum");
    const json_t *any = json_object_get(flat, "anyOf"), *single = json_object_get(flat, "oneOf");
    json_t *only = json_object_get(flat, "const");
    bool fits = !json_is_false(flat) && (!list || schema_lists(r, list, v)) &&
                (!only || json_equal(only, (json_t *)(uintptr_t)v));
    if (fits && build_ok(r->b))
        fits = !json_is_object(flat) || schema_admits(r, flat, v, schema_text(r, flat));
    fits = fits && (!any || count_fitting(r, any, "anyOf", v) > 0) &&
           (!single || count_fitting(r, single, "oneOf", v) == 1);
    schema_leave(r, path);
    return fits;
}

static bool array_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const json_t *items = json_object_get(s, "items"), *one;
    size_t n = json_array_size(v), i;
    if (n < schema_bound(r, s, "minItems", 0)) return false;
    if (n > schema_bound(r, s, "maxItems", UINT32_MAX)) return false;
    if (json_object_get(s, "prefixItems")) return refuse_beside(r, "prefixItems");
    if (json_is_array(items)) return refuse_beside(r, "items");
    json_array_foreach(v, i, one) if (!member_fits(r, items, "items", one)) return false;
    return true;
}

/* Whether the patterns that a name matches allow its value. *known: it matches some. */
static bool patterns_fit(schema_reader *r, const json_t *s, const char *name, const json_t *v,
                         bool *known)
{
    const char *pattern;
    json_t *own;
    json_object_foreach(json_object_get(s, "patternProperties"), pattern, own)
    {
        const language *l = regex_language(r->b, pattern, strlen(pattern), false);
        if (!l || !build_ok(r->b)) return false;
        if (!language_has(l, name, strlen(name))) continue;
        *known = true;
        if (!member_fits(r, own, "patternProperties", v)) return false;
    }
    return true;
}

static bool object_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const json_t *names = json_object_get(s, "required"), *name;
    const json_t *more = json_object_get(s, "additionalProperties");
    size_t n = json_object_size(v), i;
    const char *key;
    json_t *value;
    if (n < schema_bound(r, s, "minProperties", 0)) return false;
    if (n > schema_bound(r, s, "maxProperties", UINT32_MAX)) return false;
    if (json_object_get(s, "propertyNames")) return refuse_beside(r, "propertyNames");
    if (!build_work(r->b, json_array_size(names))) return false;
    json_array_foreach(names, i, name)
    {
        if (json_is_string(name) && !json_object_get(v, json_string_value(name))) return false;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const json_t *own = json_object_get(json_object_get(s, "properties"), key);
        bool known = own, fits = member_fits(r, own, "properties", value);
        fits = fits && patterns_fit(r, s, key, value, &known);
        if (!fits || !(known || member_fits(r, more, "additionalProperties", value))) return false;
    }
    return true;
}

bool schema_admits(schema_reader *r, const json_t *s, const json_t *v, const language *text)
{
    const json_t *not = json_object_get(s, SCHEMA_NOT_VALUES), *one;
    size_t i;
    if (!schema_type_fits(r, s, v) || !build_work(r->b, json_array_size(not ))) return false;
    json_array_foreach(
        not, i, one) if (json_equal((json_t *)(uintptr_t)one, (json_t *)(uintptr_t)v)) return false;
    if (json_is_string(v) && text)
        return language_has(text, json_string_value(v), json_string_length(v));
    if (json_is_number(v)) return number_fits(s, json_number_value(v));
    if (json_is_array(v)) return array_fits(r, s, v);
    return !json_is_object(v) || object_fits(r, s, v);
}
