/* Objects. Their members come in the order of the schema's "properties"; those that it does not
 * name come last. */
#include "engine/grammar/schema.h"

#include <string.h>

enum { NODES_MAX = 60000, NAME_SETS_MAX = 64 };

typedef struct property {
    const char *name;
    expr pair;
    bool required, possible;
} property;

/* Names that are not declared, and their value. Where their characters alone are bounded, `names`
 * has those of up to some length, and longer ones begin with one of `starts`. */
typedef struct other_names {
    language *names;
    language *starts; // NULL: there are no longer ones
    expr rest;        // of a longer name, as it stands in JSON
    expr value;
} other_names;

typedef struct object_reader {
    schema_reader *r;
    const json_t *schema;
    property *items;
    uint32_t n, room, n_required;
    language *names; // of "propertyNames", or NULL
    bool counted;    // "propertyNames" bounds characters alone; `names` is NULL
    uint32_t name_min, name_max;
    language *others;  // names that are not declared and match no pattern
    expr_list extra;   // pairs of other names
    other_names *sets; // the same names and values apart, where "minProperties"
                       // asks for several
    uint32_t n_sets, sets_room;
    uint32_t min, max;
} object_reader;

static expr quoted(build *b, expr inside)
{
    uint32_t rule = rule_create(b, NULL);
    rule_define(b, rule,
                expr_seq(b, (expr[]){expr_words(b, "\""), inside, expr_words(b, "\"")}, 3));
    return expr_rule(b, rule);
}

static expr quoted_language(build *b, const language *l)
{
    return quoted(b, expr_language(b, language_json(b, l)));
}

static expr pair_of(build *b, expr key, expr value)
{
    return expr_seq(b, (expr[]){key, json_colon(b), value}, 3);
}

/* ---- declared properties --------------------------------------------------------------------- */

/* Joins the schemas of the patterns that a name matches with `own` (NULL:
 * nothing yet). */
static const json_t *with_patterns(object_reader *o, const char *name, const json_t *own)
{
    const json_t *patterns = json_object_get(o->schema, "patternProperties");
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value)
    {
        language *l = schema_name_pattern(o->r, pattern);
        if (!build_ok(o->r->b)) return own;
        if (language_has(l, name, strlen(name))) own = own ? schema_merge(o->r, own, value) : value;
    }
    return own;
}

static const json_t *additional(const json_t *schema)
{
    const json_t *own = json_object_get(schema, "additionalProperties");
    return own ? own : json_object_get(schema, "unevaluatedProperties");
}

static uint32_t count_chars(const char *text)
{
    uint32_t n = 0;
    for (; *text; text++) n += ((uint8_t)*text & 0xc0) != 0x80;
    return n;
}

/* Whether "propertyNames" allows the name. */
static bool may_be_named(const object_reader *o, const char *name)
{
    uint32_t n = o->counted ? count_chars(name) : 0;
    if (o->counted) return n >= o->name_min && (n <= o->name_max || o->name_max == REPEAT_MANY);
    return !o->names || language_has(o->names, name, strlen(name));
}

static void add_property(object_reader *o, const char *name, const json_t *value, bool declared)
{
    build *b = o->r->b;
    if (!build_room(b, &o->items, o->n, 1, &o->room, sizeof *o->items)) return;
    property *p = &o->items[o->n++];
    *p = (property){.name = name};
    value = with_patterns(o, name, value);
    if (!value) value = additional(o->schema);
    p->possible = build_ok(b) && !json_is_false(value) && may_be_named(o, name);
    if (!p->possible) return;
    json_t *text = json_string(name);
    if (!text) build_fail(b, STATUS_NO_MEMORY, "out of memory");
    expr key = build_ok(b) ? json_literal(b, text) : 0;
    json_decref(text);
    size_t path = schema_enter(o->r, declared ? "properties" : "required");
    expr e = value ? schema_member(o->r, value, name, -1) : json_expr(b, RULE_VALUE);
    schema_leave(o->r, path);
    if (build_ok(b)) o->items[o->n - 1].pair = pair_of(b, key, e); // the array may have moved
}

static void read_properties(object_reader *o)
{
    build *b = o->r->b;
    const json_t *properties = json_object_get(o->schema, "properties"), *name;
    const json_t *required = json_object_get(o->schema, "required");
    key_map places = {0};
    const char *key;
    json_t *value;
    size_t i;
    if (properties && !json_is_object(properties))
        schema_fail(o->r, STATUS_INVALID, "properties", "must be an object");
    if (required && !json_is_array(required) && !json_is_boolean(required))
        schema_fail(o->r, STATUS_INVALID, "required", "must be an array");
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        if (!build_ok(b)) return;
        key_map_put(b, &places, hash_bytes(key, strlen(key), 3), o->n);
        add_property(o, key, value, true);
    }
    json_array_foreach(required, i, name)
    {
        key = json_string_value(name);
        if (!key) schema_fail(o->r, STATUS_INVALID, "required", "must have strings alone");
        if (!build_ok(b)) return;
        uint32_t at = key_map_put(b, &places, hash_bytes(key, strlen(key), 3), o->n);
        if (at == o->n) add_property(o, key, NULL, false);
        if (!build_ok(b) || o->items[at].required) continue;
        o->items[at].required = true;
        o->n_required++;
    }
}

/* ---- other names ----------------------------------------------------------------------------- */

/* Whether "minProperties" may ask for several names that are not declared: one
 * that comes twice counts once. */
static bool counts_names(const object_reader *o) { return o->min > o->n_required + 1; }

static void add_other(object_reader *o, expr key, other_names names)
{
    build *b = o->r->b;
    expr_list_add(b, &o->extra, pair_of(b, key, names.value));
    if (!counts_names(o)) return;
    if (build_room(b, &o->sets, o->n_sets, 1, &o->sets_room, sizeof *o->sets))
        o->sets[o->n_sets++] = names;
}

/* Names that the same patterns match, and what those say together. */
typedef struct name_set {
    language *names;
    const json_t *value; // NULL: of no pattern yet
    const char *pattern; // the first of them
} name_set;

/* Splits each set into names that the pattern matches and others. */
static uint32_t split_sets(object_reader *o, name_set *sets, uint32_t n, language *own,
                           const json_t *value, const char *pattern)
{
    build *b = o->r->b;
    for (uint32_t i = 0, before = n; i < before && build_ok(b); i++) {
        language *both = language_and(b, sets[i].names, own);
        if (!build_ok(b) || language_empty(both)) continue;
        const json_t *own_value = sets[i].value ? schema_merge(o->r, sets[i].value, value) : value;
        sets[i].names = language_without(b, sets[i].names, own);
        if (build_ok(b) && n < NAME_SETS_MAX)
            sets[n++] = (name_set){both, own_value, sets[i].value ? sets[i].pattern : pattern};
        else schema_fail(o->r, STATUS_LIMIT, NULL, "too many patterns match the same names");
    }
    return n;
}

static void read_patterns(object_reader *o)
{
    build *b = o->r->b;
    const json_t *patterns = json_object_get(o->schema, "patternProperties");
    const char *pattern;
    json_t *value;
    name_set *sets = build_alloc(b, NAME_SETS_MAX, sizeof *sets);
    uint32_t n = 1;
    if (!sets) return;
    sets[0].names = o->others;
    size_t path = schema_enter(o->r, "patternProperties");
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value)
    {
        language *own = schema_name_pattern(o->r, pattern);
        if (build_ok(b)) n = split_sets(o, sets, n, own, value, pattern);
        if (!build_ok(b)) break;
    }
    for (uint32_t i = 1; i < n && build_ok(b); i++) {
        if (json_is_false(sets[i].value) || language_empty(sets[i].names)) continue;
        expr name = quoted_language(b, sets[i].names);
        expr member = schema_member(o->r, sets[i].value, sets[i].pattern, -1);
        add_other(o, name, (other_names){.names = sets[i].names, .value = member});
    }
    schema_leave(o->r, path);
    o->others = sets[0].names;
}

/* The names among `base` that are not declared. */
static language *undeclared_of(object_reader *o, const language *base)
{
    build *b = o->r->b;
    expr_list declared = {0};
    for (uint32_t i = 0; i < o->n; i++)
        expr_list_add(b, &declared, expr_words(b, o->items[i].name));
    if (!build_ok(b)) return NULL;
    language *own = language_of(b, expr_alt(b, declared.items, declared.n));
    return own && base ? language_without(b, base, own) : NULL;
}

static language *undeclared(object_reader *o)
{
    return undeclared_of(o, o->names ? o->names : schema_any_text(o->r));
}

static uint32_t longest_declared(const object_reader *o)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t n = count_chars(o->items[i].name);
        if (n > longest) longest = n;
    }
    return longest;
}

/* Any text of min to max characters as they stand in JSON, which a rule counts. */
static expr counted_chars(object_reader *o, uint32_t min, uint32_t max)
{
    build *b = o->r->b;
    language *one = language_chars(b, schema_any_text(o->r), 1, 1);
    return expr_count(b, expr_language(b, language_json(b, one)), min, max);
}

/* The names that are not declared, in quotes, where their characters alone are bounded: those that
 * are no longer than the declared ones, and longer ones, whose characters a rule counts. */
static expr quoted_counted(object_reader *o)
{
    build *b = o->r->b;
    uint32_t longest = longest_declared(o), min = o->name_min, max = o->name_max;
    expr_list all = {0};
    if (o->n > 0 && min <= longest) {
        language *near =
            language_chars(b, schema_any_text(o->r), min, max < longest ? max : longest);
        expr_list_add(b, &all, expr_language(b, language_json(b, undeclared_of(o, near))));
        min = longest + 1;
    }
    if (min <= max && build_ok(b)) expr_list_add(b, &all, counted_chars(o, min, max));
    return quoted(b, expr_alt(b, all.items, all.n));
}

/* The names that are not declared, for add_different, which tells longer ones apart by how they
 * start: telling them apart by all of their characters would take states for each character of the
 * longest. */
static other_names counted_names(object_reader *o)
{
    enum { START_CHARS = 16 };
    build *b = o->r->b;
    language *any = schema_any_text(o->r);
    uint32_t longest = longest_declared(o), min = o->name_min, max = o->name_max;
    uint32_t start = longest > START_CHARS ? longest : START_CHARS;
    other_names out = {
        .names = undeclared_of(o, language_chars(b, any, min, max < start ? max : start))};
    if (max <= start || max < min) return out;
    out.starts = language_chars(b, any, start, start);
    out.rest = counted_chars(o, min > start ? min - start : 1,
                             max == REPEAT_MANY ? REPEAT_MANY : max - start);
    return out;
}

/* The names that are not declared, in quotes; made once for all schemas that declare the same
 * names. */
static expr quoted_others(object_reader *o)
{
    build *b = o->r->b;
    uint64_t hash = o->n;
    for (uint32_t i = 0; i < o->n; i++)
        hash = hash_mix64(hash ^ hash_bytes(o->items[i].name, strlen(o->items[i].name), 4));
    uint32_t fresh = b->n_rules, rule = key_map_put(b, &o->r->other_names, hash, fresh);
    if (rule != fresh || !build_ok(b)) return expr_rule(b, rule);
    rule_create(b, NULL);
    rule_define(b, rule, quoted_language(b, undeclared(o)));
    return expr_rule(b, rule);
}

static void read_others(object_reader *o)
{
    build *b = o->r->b;
    const json_t *more = additional(o->schema);
    const json_t *patterns = json_object_get(o->schema, "patternProperties");
    bool plain = !patterns && !o->names, any = o->n == 0 && plain;
    if (json_is_false(more) && !patterns) return;
    if (!plain) o->others = undeclared(o);
    if (patterns && build_ok(b)) read_patterns(o);
    if (json_is_false(more) || !build_ok(b) || (!plain && language_empty(o->others))) return;
    expr key = o->counted ? quoted_counted(o)
               : any      ? json_expr(b, RULE_STRING)
               : plain    ? quoted_others(o)
                          : quoted_language(b, o->others);
    expr value =
        more ? schema_member(o->r, more, "additionalProperties", -1) : json_expr(b, RULE_VALUE);
    other_names names = {.names = o->others};
    if (plain && counts_names(o))
        names = o->counted ? counted_names(o) : (other_names){.names = undeclared(o)};
    names.value = value;
    add_other(o, key, names);
}

/* ---- different names ------------------------------------------------------------------------- */

/* DIFFERENT_MOST: the largest number of names that are not declared and have to be different. */
enum { DIFFERENT_MOST = 9, CLASSES_MOST = 10, WEIGHTS = 3 };

/* Names are divided into n classes: with each byte, a class becomes class *
 * weight + byte, modulo n. A state cannot say which names came, but which
 * classes did: names of several classes are as many names. */
typedef struct name_classes {
    uint32_t n, weight;
} name_classes;

static uint32_t next_class(name_classes d, uint32_t class, uint32_t byte)
{
    return (class * d.weight + byte) % d.n;
}

static language *names_of_class(build *b, uint32_t class, name_classes d)
{
    language_writer w = {.b = b};
    for (uint32_t at = 0; at < d.n && build_ok(b); at++) {
        writer_state(&w, at == class);
        for (uint32_t c = 0; c < 256; c++) writer_edge(&w, c, c, next_class(d, at, c));
    }
    return build_ok(b) ? writer_finish(&w) : NULL;
}

/* States and the classes of texts that lead there. */
typedef struct class_search {
    name_classes d;
    uint16_t *reached; // [states]: classes as bits
    uint32_t *stack, n;
} class_search;

static void meet_class(class_search *x, uint32_t state, uint32_t class)
{
    if (!(x->reached[state] >> class & 1)) x->stack[x->n++] = state * x->d.n + class;
    x->reached[state] |= (uint16_t)(1u << class);
}

/* Returns the classes that names of a language are of, as bits. */
static uint32_t classes_of(build *b, const language *l, name_classes d)
{
    class_search x = {.d = d};
    uint32_t found = 0;
    build_scratch(b);
    x.reached = build_alloc(b, l->n_states, sizeof *x.reached);
    x.stack = build_alloc(b, (size_t)l->n_states * d.n, sizeof *x.stack);
    if (build_ok(b)) {
        memset(x.reached, 0, l->n_states * sizeof *x.reached);
        meet_class(&x, 0, 0);
    }
    while (x.n > 0 && found != (1u << d.n) - 1) {
        uint32_t state = x.stack[--x.n] / d.n, class = x.stack[x.n] % d.n;
        uint32_t from = l->first[state], to = l->first[state + 1];
        if (!build_work(b, 1 + (to - from) * d.n)) break;
        if (l->ends[state]) found |= 1u << class;
        for (const byte_edge *e = l->edges + from; e < l->edges + to; e++)
            for (uint32_t c = e->lo; c <= e->hi && c < e->lo + d.n; c++) // others lead there again
                meet_class(&x, e->to, next_class(d, class, c));
    }
    build_keep(b);
    build_forget(b);
    return found;
}

/* With more classes than names are asked for, most names are of different ones.
 * Few names may be of one class alone: then the division with the most classes
 * is taken. */
static name_classes divide_names(object_reader *o, uint32_t need)
{
    uint32_t most = 0, first = need <= 4 ? 2 * need : need;
    name_classes best = {first, 1};
    for (uint32_t n = first; n <= CLASSES_MOST; n++) {
        for (uint32_t weight = 1; weight <= WEIGHTS && build_ok(o->r->b); weight++) {
            name_classes d = {n, weight};
            uint32_t found = 0;
            for (uint32_t i = 0; i < o->n_sets; i++) {
                found |= classes_of(o->r->b, o->sets[i].names, d);
                if (o->sets[i].starts) found |= classes_of(o->r->b, o->sets[i].starts, d);
            }
            uint32_t size = (uint32_t)__builtin_popcount(found);
            if (size > most) best = d;
            if (size > most) most = size;
            if (size == n) return d;
        }
    }
    return best;
}

/* Pairs whose names are of the class. */
static expr pairs_of_class(object_reader *o, uint32_t class, name_classes d)
{
    build *b = o->r->b;
    expr_list pairs = {0};
    language *own = names_of_class(b, class, d);
    for (uint32_t i = 0; i < o->n_sets && build_ok(b); i++) {
        const other_names *set = &o->sets[i];
        language *names = language_and(b, set->names, own);
        if (build_ok(b) && !language_empty(names))
            expr_list_add(b, &pairs, pair_of(b, quoted_language(b, names), set->value));
        language *starts = set->starts ? language_and(b, set->starts, own) : NULL;
        if (!starts || language_empty(starts)) continue;
        expr start = expr_language(b, language_json(b, starts));
        expr_list_add(b, &pairs, pair_of(b, quoted(b, expr_then(b, start, set->rest)), set->value));
    }
    if (!build_ok(b)) return 0;
    uint32_t rule = rule_create(b, NULL);
    rule_define(b, rule, expr_alt(b, pairs.items, pairs.n));
    return expr_rule(b, rule);
}

/* From one member before node `from` on until `need` different names came,
 * behind node `to`. `nodes`: how many there are. */
static void add_different(object_reader *o, arc_list *arcs, uint32_t from, uint32_t to,
                          uint32_t need, uint32_t *nodes)
{
    build *b = o->r->b;
    name_classes d = divide_names(o, need);
    uint32_t n = d.n, behind[1u << CLASSES_MOST] = {0};
    expr pairs[CLASSES_MOST];
    for (uint32_t k = 0; k < n; k++) pairs[k] = pairs_of_class(o, k, d);
    for (uint32_t set = 1; set < 1u << n; set++) {
        if ((uint32_t)__builtin_popcount(set) >= need) continue;
        behind[set] = *nodes;
        *nodes += 2;
        arc_list_add(b, arcs, behind[set], behind[set] + 1, json_comma(b));
    }
    for (uint32_t set = 0; set < 1u << n && build_ok(b); set++) {
        uint32_t before = set ? behind[set] + 1 : from, came = (uint32_t)__builtin_popcount(set);
        for (uint32_t k = 0; k < n && came < need; k++) {
            bool again = set >> k & 1;
            if (again && o->max != REPEAT_MANY) continue;
            uint32_t next = again ? behind[set] : came + 1 == need ? to : behind[set | 1u << k];
            arc_list_add(b, arcs, before, next, pairs[k]);
        }
    }
}

/* ---- the graph of members -------------------------------------------------------------------- */

/* Node numbers: 0 the start, 1 the end; then for each place i of the declared
 * properties and count c of members so far: one before a member of place i or
 * later, and one behind a member. */
static uint32_t before_node(const object_reader *o, uint32_t levels, uint32_t i, uint32_t c)
{
    (void)o;
    return 2 + 2 * (i * levels + c);
}

static expr closing(build *b) { return expr_then(b, json_space(b), expr_words(b, "}")); }

static void add_arcs(object_reader *o, arc_list *arcs, uint32_t levels, uint32_t i, uint32_t c,
                     expr extra, bool may_end)
{
    build *b = o->r->b;
    bool bounded = o->max != REPEAT_MANY, full = bounded && c >= o->max;
    uint32_t more = c + 1 < levels ? c + 1 : c, before = before_node(o, levels, i, c);
    if (i < o->n) {
        const property *p = &o->items[i];
        if (p->possible && !full)
            arc_list_add(b, arcs, before, before_node(o, levels, i + 1, more) + 1, p->pair);
        if (!p->required)
            arc_list_add(b, arcs, before, before_node(o, levels, i + 1, c), expr_empty(b));
    } else if (o->extra.n > 0 && !full && c + 1 >= o->min) {
        arc_list_add(b, arcs, before, before_node(o, levels, i, more) + 1, extra);
    }
    if (!full) arc_list_add(b, arcs, before + 1, before, json_comma(b));
    if (may_end && c >= o->min) arc_list_add(b, arcs, before + 1, 1, closing(b));
}

static expr graph_of(object_reader *o)
{
    build *b = o->r->b;
    arc_list arcs = {0};
    uint32_t possible = 0, last = 0; // last: behind the last required property
    for (uint32_t i = 0; i < o->n; i++) {
        possible += o->items[i].possible;
        if (o->items[i].required) last = i + 1;
    }
    if (o->min <= o->n_required) o->min = 0;
    if (o->extra.n == 0 && o->max >= possible) o->max = REPEAT_MANY;
    uint64_t top = o->max != REPEAT_MANY ? o->max : o->min;
    if ((top + 1) * (o->n + 1) > NODES_MAX) {
        schema_fail(o->r, STATUS_UNSUPPORTED,
                    o->max != REPEAT_MANY ? "maxProperties" : "minProperties", "too large");
        return 0;
    }
    uint32_t levels = (uint32_t)top + 1;
    expr open = expr_then(b, expr_words(b, "{"), json_space(b));
    expr extra = expr_alt(b, o->extra.items, o->extra.n);
    arc_list_add(b, &arcs, 0, before_node(o, levels, 0, 0), open);
    if (last == 0 && o->min == 0)
        arc_list_add(b, &arcs, 0, 1, expr_then(b, open, expr_words(b, "}")));
    for (uint32_t i = 0; i <= o->n && build_ok(b); i++)
        for (uint32_t c = 0; c < levels && build_ok(b); c++)
            add_arcs(o, &arcs, levels, i, c, extra, i >= last);
    uint32_t nodes = 2 + 2 * (o->n + 1) * levels;
    for (uint32_t c = 0; o->extra.n > 0 && c + 1 < o->min && o->min < levels && build_ok(b); c++) {
        if (c > o->n || c < o->n_required) continue; // so many declared ones cannot have come
        if (o->min - c > DIFFERENT_MOST)
            schema_fail(o->r, STATUS_UNSUPPORTED, "minProperties", "too large");
        else
            add_different(o, &arcs, before_node(o, levels, o->n, c),
                          before_node(o, levels, o->n, o->min) + 1, o->min - c, &nodes);
    }
    if (b->failure.code == STATUS_LIMIT) { // of languages; fuel that ran out fails again
        b->failure = STATUS_IS_OK;
        schema_fail(o->r, STATUS_LIMIT, "minProperties", "too large for these names of members");
    }
    return build_ok(b) ? expr_graph(b, arcs.items, arcs.n, nodes) : 0;
}

/* Whether "propertyNames" bounds characters and says nothing else. */
static bool reads_bounds(object_reader *o, const json_t *names)
{
    const char *key, *type = json_string_value(json_object_get(names, "type"));
    json_t *value;
    if (!json_is_object(names) || (type && strcmp(type, "string") != 0)) return false;
    json_object_foreach((json_t *)(uintptr_t)names, key, value)
    {
        bool known = (type && strcmp(key, "type") == 0) || strcmp(key, "minLength") == 0 ||
                     strcmp(key, "maxLength") == 0;
        if (!known && schema_restricts(key)) return false;
    }
    size_t path = schema_enter(o->r, "propertyNames");
    o->name_min = schema_bound(o->r, names, "minLength", 0);
    o->name_max = schema_bound(o->r, names, "maxLength", REPEAT_MANY);
    schema_leave(o->r, path);
    return true;
}

expr schema_object(schema_reader *r, const json_t *schema)
{
    object_reader o = {.r = r, .schema = schema};
    const json_t *names = json_object_get(schema, "propertyNames");
    o.min = schema_bound(r, schema, "minProperties", 0);
    o.counted = names && !json_object_get(schema, "patternProperties") && reads_bounds(&o, names);
    if (names && !o.counted) o.names = schema_names(r, names);
    o.max = schema_bound(r, schema, "maxProperties", REPEAT_MANY);
    if (build_ok(r->b)) read_properties(&o);
    if (build_ok(r->b)) read_others(&o);
    if (!build_ok(r->b)) return 0;
    if (o.n == 0 && o.extra.n == 1 && !additional(schema) && !names && o.min == 0 &&
        o.max == REPEAT_MANY && !json_object_get(schema, "patternProperties"))
        return json_expr(r->b, RULE_OBJECT);
    uint32_t rule = rule_create(r->b, NULL);
    rule_define(r->b, rule, graph_of(&o));
    return expr_rule(r->b, rule);
}
