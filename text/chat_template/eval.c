/* Evaluates expressions, and makes calls. */
#include "text/chat_template/exec.h"

static bool eval_items(render *r, scope *s, const node_list *from, value_kind kind, value *out)
{
    list *l = list_new(r, from->n);
    if (!l) return false;
    for (uint32_t i = 0; i < from->n; i++)
        if (!eval_node(r, s, from->items[i], &l->items[i])) return false;
    l->n = from->n;
    *out = kind == V_TUPLE ? value_tuple(l) : value_list(l);
    return true;
}

static bool eval_dict(render *r, scope *s, const node *n, value *out)
{
    dict *d = dict_new(r, n->items.n / 2);
    if (!d) return false;
    for (uint32_t i = 0; i + 1 < n->items.n; i += 2) {
        value key, item;
        if (!eval_node(r, s, n->items.items[i], &key) ||
            !eval_node(r, s, n->items.items[i + 1], &item))
            return false;
        if (!value_hashable(key))
            return render_fail(r, STATUS_INVALID, "unhashable type: '%s'", value_type(key));
        if (!dict_set(r, d, key, item)) return false;
    }
    *out = value_dict(d);
    return true;
}

static bool eval_slice(render *r, scope *s, const node *n, value *out)
{
    value object, parts[3];
    if (!eval_node(r, s, n->a, &object)) return false;
    for (int i = 0; i < 3; i++) {
        const node *part = n->items.items[i];
        parts[i] = value_none();
        if (part && !eval_node(r, s, part, &parts[i])) return false;
    }
    r->line = n->line;
    return value_slice(r, object, parts[0], parts[1], parts[2], out);
}

static bool eval_concat(render *r, scope *s, const node *n, value *out)
{
    builder b = builder_new(r);
    for (uint32_t i = 0; i < n->items.n; i++) {
        value v;
        if (!eval_node(r, s, n->items.items[i], &v)) return false;
        print_value(&b, v, false);
    }
    return builder_finish(&b, out);
}

static bool compare_values(render *r, compare_op op, value a, value b, bool *out)
{
    bool equal;
    switch (op) {
    case COMPARE_EQ: return value_equal(r, a, b, out);
    case COMPARE_NE:
        if (!value_equal(r, a, b, out)) return false;
        *out = !*out;
        return true;
    case COMPARE_LT: return value_less(r, "<", a, b, out);
    case COMPARE_GT: return value_less(r, ">", b, a, out);
    case COMPARE_LE:
    case COMPARE_GE:
        /* Not computed as the negation of the other order, because with NaN neither holds. */
        if (!(op == COMPARE_LE ? value_less(r, "<=", a, b, out) : value_less(r, ">=", b, a, out)) ||
            !value_equal(r, a, b, &equal))
            return false;
        *out = *out || equal;
        return true;
    case COMPARE_IN: return value_contains(r, b, a, out);
    case COMPARE_NOT_IN:
        if (!value_contains(r, b, a, out)) return false;
        *out = !*out;
        return true;
    }
    return false;
}

/* a < b < c: evaluates each operand once, until one comparison fails. */
static bool eval_compare(render *r, scope *s, const node *n, value *out)
{
    value left, right;
    if (!eval_node(r, s, n->a, &left)) return false;
    for (uint32_t i = 0; i < n->items.n; i++) {
        const node *operand = n->items.items[i];
        bool holds;
        if (!eval_node(r, s, operand->a, &right)) return false;
        r->line = operand->line;
        if (!compare_values(r, (compare_op)operand->op, left, right, &holds)) return false;
        *out = value_bool(holds);
        if (!holds) return true;
        left = right;
    }
    return true;
}

static bool eval_condition(render *r, scope *s, const node *n, value *out)
{
    value test;
    if (!eval_node(r, s, n->b, &test)) return false;
    if (value_truth(test)) return eval_node(r, s, n->a, out);
    if (n->c) return eval_node(r, s, n->c, out);
    builder b = builder_new(r);
    value hint;
    builder_add(&b, TEXT("the inline if-expression on line "));
    builder_printf(&b, "%u", n->line);
    builder_add(&b, TEXT(" evaluated to false and no else section was defined."));
    builder_char(&b, '\0');
    if (!builder_finish(&b, &hint)) return false;
    *out = value_undefined(r, hint.s, (value){0}, (value){0});
    return out->undefined != NULL;
}

static bool eval_logical(render *r, scope *s, const node *n, value *out)
{
    if (!eval_node(r, s, n->a, out)) return false;
    return value_truth(*out) == (n->kind == NODE_OR) || eval_node(r, s, n->b, out);
}

static bool eval_positive(render *r, scope *s, const node *n, value *out)
{
    if (!eval_node(r, s, n->a, out)) return false;
    if (out->kind == V_UNDEFINED) return value_fail_undefined(r, *out);
    if (!value_is_number(*out))
        return render_fail(r, STATUS_INVALID, "bad operand type for unary +: '%s'",
                           value_type(*out));
    if (out->kind == V_BOOL) *out = value_int(out->b);
    return true;
}

/* ---- calls ---- */

static bool eval_arguments(render *r, scope *s, const node *n, call_args *out)
{
    value *positional = render_alloc(r, n->items.n + 1, sizeof *positional);
    keyword_value *keywords = render_alloc(r, n->keywords.n + 1, sizeof *keywords);
    if (!positional || !keywords) return false;
    for (uint32_t i = 0; i < n->items.n; i++)
        if (!eval_node(r, s, n->items.items[i], &positional[i])) return false;
    for (uint32_t i = 0; i < n->keywords.n; i++) {
        keywords[i].name = n->keywords.items[i].name;
        if (!eval_node(r, s, n->keywords.items[i].value, &keywords[i].value)) return false;
    }
    *out = (call_args){positional, n->items.n, keywords, n->keywords.n};
    r->line = n->line;
    return true;
}

static bool call_value(render *r, value callee, const call_args *args, value *out)
{
    if (callee.kind == V_UNDEFINED) return value_fail_undefined(r, callee);
    if (callee.kind == V_LOOP) {
        if (args->n_positional != 1 || args->n_keywords != 0)
            return render_fail(r, STATUS_INVALID, "loop() takes the items of a recursive loop");
        return exec_recurse(r, callee.loop, args->positional[0], out);
    }
    if (callee.kind != V_CALLABLE)
        return render_fail(r, STATUS_INVALID, "'%s' object is not callable", value_type(callee));
    const callable *c = callee.callable;
    return c->macro ? eval_call_macro(r, c, args, out)
                    : tmpl_call_builtin(r, c->builtin, c->self, args, out);
}

static bool eval_call(render *r, scope *s, const node *n, const value *caller, value *out)
{
    value callee;
    call_args args;
    if (!eval_node(r, s, n->a, &callee) || !eval_arguments(r, s, n, &args)) return false;
    if (caller) {
        keyword_value *more = render_alloc(r, args.n_keywords + 1, sizeof *more);
        if (!more) return false;
        if (args.n_keywords) memcpy(more, args.keywords, args.n_keywords * sizeof *more);
        more[args.n_keywords++] = (keyword_value){TEXT("caller"), *caller};
        args.keywords = more;
    }
    return call_value(r, callee, &args, out);
}

bool eval_call_block(render *r, scope *s, const node *call, value caller, value *out)
{
    return eval_call(r, s, call, &caller, out);
}

static bool fail_unknown(render *r, const node *n)
{
    return render_fail(r, STATUS_UNSUPPORTED, "unknown %s '%.*s'",
                       n->kind == NODE_FILTER ? "filter" : "test",
                       n->name.n > 200 ? 200 : (int)n->name.n, n->name.s);
}

static bool eval_filter(render *r, scope *s, const node *n, value *out)
{
    static const char *const plain[] = {"safe",  "string",  "tojson", "length",
                                        "count", "default", "d"};
    value self;
    call_args args;
    if (!eval_node(r, s, n->a, &self) || !eval_arguments(r, s, n, &args)) return false;
    if (!n->builtin) return fail_unknown(r, n);
    bool known = self.kind != V_STRING || !self.safe;
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !known; i++)
        known = text_is(n->name, plain[i]);
    if (!known)
        return render_fail(r, STATUS_UNSUPPORTED, "filter '%.*s' of safe text is not supported",
                           (int)n->name.n, n->name.s);
    return tmpl_call_builtin(r, n->builtin, self, &args, out);
}

static bool eval_test(render *r, scope *s, const node *n, value *out)
{
    value self;
    call_args args;
    bool truth;
    if (!eval_node(r, s, n->a, &self) || !eval_arguments(r, s, n, &args)) return false;
    if (!n->builtin) return fail_unknown(r, n);
    if (!tmpl_call_test(r, n->builtin, self, &args, &truth)) return false;
    *out = value_bool(truth);
    return true;
}

static bool eval_two(render *r, scope *s, const node *n, value *a, value *b)
{
    if (!eval_node(r, s, n->a, a) || !eval_node(r, s, n->b, b)) return false;
    r->line = n->line;
    return true;
}

static bool eval_any(render *r, scope *s, const node *n, value *out)
{
    value a, b;
    switch ((node_kind)n->kind) {
    case NODE_CONST: *out = n->constant; return true;
    case NODE_NAME: return scope_get(r, s, n->name, out);
    case NODE_CAPTURED: return scope_get(r, s, (text){"", 0}, out);
    case NODE_LIST: return eval_items(r, s, &n->items, V_LIST, out);
    case NODE_TUPLE: return eval_items(r, s, &n->items, V_TUPLE, out);
    case NODE_DICT: return eval_dict(r, s, n, out);
    case NODE_ATTR: return eval_node(r, s, n->a, &a) && value_get_attr(r, a, n->name, out);
    case NODE_ITEM: return eval_two(r, s, n, &a, &b) && value_get_item(r, a, b, out);
    case NODE_SLICE: return eval_slice(r, s, n, out);
    case NODE_CALL: return eval_call(r, s, n, NULL, out);
    case NODE_FILTER: return eval_filter(r, s, n, out);
    case NODE_TEST: return eval_test(r, s, n, out);
    case NODE_NEGATE: return eval_node(r, s, n->a, &a) && value_negate(r, a, out);
    case NODE_POSITIVE: return eval_positive(r, s, n, out);
    case NODE_AND:
    case NODE_OR: return eval_logical(r, s, n, out);
    case NODE_BINARY:
        return eval_two(r, s, n, &a, &b) && value_binary(r, (binary_op)n->op, a, b, out);
    case NODE_CONCAT: return eval_concat(r, s, n, out);
    case NODE_COMPARE: return eval_compare(r, s, n, out);
    case NODE_CONDITION: return eval_condition(r, s, n, out);
    case NODE_NOT:
        if (!eval_node(r, s, n->a, &a)) return false;
        *out = value_bool(!value_truth(a));
        return true;
    default: return render_fail(r, STATUS_INTERNAL, "a statement is no expression");
    }
}

bool eval_node(render *r, scope *s, const node *n, value *out)
{
    if (!render_enter(r)) return false;
    r->line = n->line;
    bool ok = render_step(r, 0) && eval_any(r, s, n, out);
    render_leave(r);
    return ok;
}
