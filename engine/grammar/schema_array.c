/* Arrays: elements with schemas of their own, then others, between two bounds. */
#include "engine/grammar/schema.h"

typedef struct array_reader {
    expr_list fixed; // of "prefixItems"
    bool more;       // elements behind them
    expr item;
    uint32_t min, max;
} array_reader;

item_words schema_items(const json_t *s)
{
    const json_t *items = json_object_get(s, "items");
    if (json_is_array(items)) // before draft 2020-12
        return (item_words){items, json_object_get(s, "additionalItems"), "items",
                            "additionalItems"};
    return (item_words){json_object_get(s, "prefixItems"), items, "prefixItems", "items"};
}

static bool read_items(schema_reader *r, const json_t *s, array_reader *a)
{
    item_words words = schema_items(s);
    const json_t *one;
    size_t i;
    if (words.fixed && !json_is_array(words.fixed))
        schema_fail(r, STATUS_INVALID, words.fixed_word, "must be an array");
    json_array_foreach(words.fixed, i, one) if (build_ok(r->b))
        expr_list_add(r->b, &a->fixed, schema_member(r, one, words.fixed_word, (int64_t)i));
    a->more = !json_is_false(words.items);
    if (a->more && build_ok(r->b))
        a->item = words.items ? schema_member(r, words.items, words.items_word, -1)
                              : json_expr(r->b, RULE_VALUE);
    if (json_object_get(s, "unevaluatedItems")) schema_unsupported(r, "unevaluatedItems");
    a->min = schema_bound(r, s, "minItems", 0);
    a->max = schema_bound(r, s, "maxItems", REPEAT_MANY);
    if (!a->more && a->max > a->fixed.n) a->max = a->fixed.n;
    return build_ok(r->b);
}

/* Elements from number i on; `first`: no comma before it. */
static expr elements_behind(build *b, const array_reader *a, uint32_t i)
{
    uint32_t min = a->min > i ? a->min - i : 0;
    uint32_t max = a->max == REPEAT_MANY ? REPEAT_MANY : a->max > i ? a->max - i : 0;
    expr more = expr_then(b, json_comma(b), a->item);
    return a->more && max > 0 ? expr_count(b, more, min, max) : expr_empty(b);
}

static expr elements(build *b, const array_reader *a)
{
    uint32_t n = a->fixed.n < a->max ? a->fixed.n : a->max;
    if (a->max == 0) return expr_empty(b);
    if (n == 0) {
        expr some = expr_then(b, a->item, elements_behind(b, a, 1));
        return a->min > 0 ? some : expr_optional(b, some);
    }
    expr tail = elements_behind(b, a, n);
    for (uint32_t i = n; i-- > 0 && build_ok(b);) {
        expr one = i > 0 ? expr_then(b, json_comma(b), a->fixed.items[i]) : a->fixed.items[i];
        tail = expr_then(b, one, tail);
        if (a->min <= i) tail = expr_optional(b, tail);
    }
    return tail;
}

expr schema_array(schema_reader *r, const json_t *schema)
{
    array_reader a = {0};
    build *b = r->b;
    if (!read_items(r, schema, &a)) return 0;
    if (a.max < a.min) return expr_never(b);
    bool unique = json_is_true(json_object_get(schema, "uniqueItems")) && a.max > 1;
    if (unique && a.fixed.n > 0) schema_unsupported(r, "uniqueItems");
    uint32_t rule = rule_create(b, NULL);
    const json_t *items = json_object_get(schema, "items");
    expr inside = unique ? schema_unique(r, items, a.min, a.max) : elements(b, &a);
    expr parts[] = {expr_words(b, "["), json_space(b), inside, json_space(b), expr_words(b, "]")};
    rule_define(b, rule, expr_seq(b, parts, 5));
    return expr_rule(b, rule);
}
