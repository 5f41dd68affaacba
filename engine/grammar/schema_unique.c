/* "uniqueItems" of arrays whose elements are few values: a way through the sets of those that came.
 * Which elements other arrays have had is more than a state can say. */
#include "engine/grammar/schema.h"

#include <string.h>

enum { VALUES_MOST = 16, SETS_MOST = 512 };

/* The values that an element may have, or more; NULL: they are not a list. */
static const json_t *listed_values(schema_reader *r, const json_t *items)
{
    json_t *only = json_object_get(items, "const"), *list = json_object_get(items, "enum");
    const char *type = json_string_value(json_object_get(items, "type"));
    if (only) return schema_keep(r, json_pack("[O]", only));
    if (list) return list;
    if (type && strcmp(type, "boolean") == 0) return schema_keep(r, json_pack("[b, b]", 1, 0));
    return NULL;
}

/* The different ones among them, each as the expression of an element that has it. */
static bool read_values(schema_reader *r, const json_t *items, const json_t *list, expr_list *out)
{
    const json_t *values[VALUES_MOST], *value;
    size_t i;
    json_array_foreach(list, i, value)
    {
        bool known = false;
        if (!build_work(r->b, VALUES_MOST) || json_is_object(value) || json_is_array(value))
            return false;
        for (uint32_t k = 0; k < out->n; k++) known |= schema_same(r, values[k], value);
        if (known) continue;
        if (out->n == VALUES_MOST) return false;
        json_t *one = json_copy((json_t *)(uintptr_t)items);
        if (!one || json_object_set_new(one, "enum", json_pack("[O]", value)) != 0) {
            json_decref(one);
            build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
            return false;
        }
        values[out->n] = value;
        uint32_t rule = rule_create(r->b, NULL);
        rule_define(r->b, rule, schema_member(r, schema_keep(r, one), "items", -1));
        expr_list_add(r->b, out, expr_rule(r->b, rule));
        if (!build_ok(r->b)) return false;
    }
    return true;
}

/* Numbers the sets of at most `max` of n values from 2 on, behind the start and the end. Returns
 * the next number, or 0 where they are too many. */
static uint32_t number_sets(uint32_t n, uint32_t max, uint32_t *numbers)
{
    uint32_t next = 2;
    for (uint32_t set = 1; set < 1u << n; set++) {
        if ((uint32_t)__builtin_popcount(set) > max) continue;
        if (next == SETS_MOST) return 0;
        numbers[set] = next++;
    }
    return next;
}

expr schema_unique(schema_reader *r, const json_t *items, uint32_t min, uint32_t max)
{
    build *b = r->b;
    expr_list values = {0};
    arc_list arcs = {0};
    const json_t *flat = json_is_object(items) ? schema_flat(r, items) : NULL;
    const json_t *list = json_is_object(flat) ? listed_values(r, flat) : NULL;
    uint32_t *numbers = NULL, n_nodes = 0;
    if (list && read_values(r, flat, list, &values) && build_work(b, 1u << values.n))
        numbers = build_alloc(b, 1u << values.n, sizeof *numbers);
    if (numbers) n_nodes = number_sets(values.n, max, numbers);
    if (build_ok(b) && n_nodes == 0) schema_unsupported(r, "uniqueItems");
    if (!build_ok(b)) return 0;
    if (min == 0) arc_list_add(b, &arcs, 0, 1, expr_empty(b));
    for (uint32_t set = 0; set < 1u << values.n && build_ok(b); set++) {
        uint32_t came = (uint32_t)__builtin_popcount(set);
        if (came > max) continue;
        if (set && came >= min) arc_list_add(b, &arcs, numbers[set], 1, expr_empty(b));
        for (uint32_t k = 0; k < values.n && came < max; k++) {
            if (set >> k & 1) continue;
            expr one = set ? expr_then(b, json_comma(b), values.items[k]) : values.items[k];
            arc_list_add(b, &arcs, set ? numbers[set] : 0, numbers[set | 1u << k], one);
        }
    }
    return build_ok(b) ? expr_graph(b, arcs.items, arcs.n, n_nodes) : 0;
}
