/* Executes statements: output, control flow, assignment, macros. */
#include "text/chat_template/exec.h"

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED } flow;

static flow exec_node(render *r, scope *s, const node *n);

static flow exec_body(render *r, scope *s, const node_list *body)
{
    for (uint32_t i = 0; i < body->n; i++) {
        flow f = exec_node(r, s, body->items[i]);
        if (f != FLOW_ON) return f;
    }
    return FLOW_ON;
}

/* ---- capturing output ---- */

typedef struct capture {
    strbuf text;
    strbuf *out;
    size_t out_limit;
} capture;

/* Directs output to the capture. All open captures share the limit of the output. */
static void capture_begin(render *r, capture *c)
{
    *c = (capture){.out = r->out, .out_limit = r->out_limit};
    r->out_limit -= r->out->size < r->out_limit ? r->out->size : r->out_limit;
    r->out = &c->text;
}

/* Directs output back to its former place; the captured text becomes *out when ok. */
static bool capture_end(render *r, capture *c, bool ok, value *out)
{
    if (ok) {
        builder b = builder_new(r);
        builder_add(&b, (text){c->text.data, c->text.size});
        ok = builder_finish(&b, out);
    }
    r->out = c->out;
    r->out_limit = c->out_limit;
    strbuf_destroy(&c->text);
    return ok;
}

static flow capture_body(render *r, scope *s, const node_list *body, value *out)
{
    capture c;
    capture_begin(r, &c);
    flow f = exec_body(r, s, body);
    bool ok = capture_end(r, &c, f == FLOW_ON, out);
    return f == FLOW_ON && !ok ? FLOW_FAILED : f;
}

/* ---- assignment ---- */

static bool assign(render *r, scope *s, const node *target, value v);

static bool unpack_value(render *r, scope *s, const node *target, value v)
{
    value *items;
    size_t n, wanted = target->items.n;
    if (!value_items(r, v, &items, &n)) return false;
    if (n > wanted)
        return render_fail(r, STATUS_INVALID, "too many values to unpack (expected %zu)", wanted);
    if (n < wanted)
        return render_fail(r, STATUS_INVALID, "not enough values to unpack (expected %zu, got %zu)",
                           wanted, n);
    for (size_t i = 0; i < n; i++)
        if (!assign(r, s, target->items.items[i], items[i])) return false;
    return true;
}

static bool assign(render *r, scope *s, const node *target, value v)
{
    value object;
    if (target->kind == NODE_TARGET_NAME) return scope_set(r, s, target->name, v);
    if (target->kind == NODE_TARGET_TUPLE) return unpack_value(r, s, target, v);
    if (!scope_get(r, s, target->name, &object)) return false;
    if (object.kind != V_NAMESPACE)
        return render_fail(r, STATUS_INVALID, "cannot assign attribute on non-namespace object");
    if (target->attribute.s[0] == '_')
        return render_fail(r, STATUS_INVALID,
                           "a namespace cannot have the attribute '%.*s': it begins with '_'",
                           (int)target->attribute.n, target->attribute.s);
    return dict_set(r, object.dict, value_text(target->attribute), v);
}

static flow exec_set(render *r, scope *s, const node *n)
{
    value v;
    return eval_node(r, s, n->b, &v) && assign(r, s, n->a, v) ? FLOW_ON : FLOW_FAILED;
}

/* Makes a scope in which NODE_CAPTURED finds the text that `body` renders. */
static flow captured_scope(render *r, scope *s, const node_list *body, scope **out)
{
    value v;
    scope *inner = scope_new(r, s);
    *out = scope_new(r, s);
    if (!inner || !*out) return FLOW_FAILED;
    flow f = capture_body(r, inner, body, &v);
    if (f == FLOW_ON && !scope_set(r, *out, (text){"", 0}, v)) return FLOW_FAILED;
    return f;
}

static flow exec_set_block(render *r, scope *s, const node *n)
{
    scope *with_text;
    value v;
    flow f = captured_scope(r, s, &n->items, &with_text);
    if (f != FLOW_ON) return f;
    return eval_node(r, with_text, n->b, &v) && assign(r, s, n->a, v) ? FLOW_ON : FLOW_FAILED;
}

static bool write_value(render *r, value v)
{
    return value_str(r, v, &v) && render_write(r, text_of(v));
}

static flow exec_filter_block(render *r, scope *s, const node *n)
{
    scope *with_text;
    value v;
    flow f = captured_scope(r, s, &n->items, &with_text);
    if (f != FLOW_ON) return f;
    return eval_node(r, with_text, n->b, &v) && write_value(r, v) ? FLOW_ON : FLOW_FAILED;
}

/* ---- control flow ---- */

static flow exec_if(render *r, scope *s, const node *n)
{
    for (const node *branch = n; branch; branch = branch->b) {
        value test;
        if (!eval_node(r, s, branch->a, &test)) return FLOW_FAILED;
        if (value_truth(test)) return exec_body(r, s, &branch->items);
    }
    return exec_body(r, s, &n->orelse);
}

/* Keeps the items for which the loop's condition holds. */
static bool select_items(render *r, const node *n, scope *outer, value **items, size_t *count)
{
    list *l = list_new(r, *count);
    if (!l) return false;
    for (size_t i = 0; i < *count; i++) {
        value test;
        scope *s = scope_new(r, outer);
        if (!s || !assign(r, s, n->a, (*items)[i]) || !eval_node(r, s, n->c, &test)) return false;
        if (value_truth(test) && !list_push(r, l, (*items)[i])) return false;
    }
    *items = l->items;
    *count = l->n;
    return true;
}

static flow run_loop(render *r, const node *n, scope *outer, value over, unsigned depth0)
{
    value *items;
    size_t count;
    if (!value_items(r, over, &items, &count)) return FLOW_FAILED;
    if (n->c && !select_items(r, n, outer, &items, &count)) return FLOW_FAILED;
    loop_state *l = render_alloc(r, 1, sizeof *l);
    if (!l) return FLOW_FAILED;
    *l = (loop_state){.items = items, .n = count, .depth0 = depth0, .loop = n, .outer = outer};
    value loop = {.kind = V_LOOP, .loop = l};
    bool completed = false;
    for (; l->index0 < count; l->index0++) {
        scope *s = scope_new(r, outer); /* each iteration has a scope of its own */
        if (!s || !scope_set(r, s, TEXT("loop"), loop) || !assign(r, s, n->a, items[l->index0]))
            return FLOW_FAILED;
        flow f = exec_body(r, s, &n->items);
        if (f == FLOW_FAILED) return f;
        if (f == FLOW_BREAK) break;
        completed |= f == FLOW_ON;
    }
    /* `else` runs if no iteration reached its end, as in Jinja; break and continue end one
     * early. */
    if (completed) return FLOW_ON;
    scope *s = scope_new(r, outer);
    return s ? exec_body(r, s, &n->orelse) : FLOW_FAILED;
}

static flow exec_for(render *r, scope *s, const node *n)
{
    value over;
    if (!eval_node(r, s, n->b, &over)) return FLOW_FAILED;
    r->line = n->line;
    return run_loop(r, n, s, over, 0);
}

bool exec_recurse(render *r, loop_state *loop, value items, value *out)
{
    capture c;
    if (!loop->loop->flag)
        return render_fail(r, STATUS_INVALID,
                           "The loop must have the 'recursive' marker to be called recursively.");
    capture_begin(r, &c);
    flow f = run_loop(r, loop->loop, loop->outer, items, loop->depth0 + 1);
    return capture_end(r, &c, f != FLOW_FAILED, out);
}

static flow exec_with(render *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, s);
    if (!inner) return FLOW_FAILED;
    for (uint32_t i = 0; i < n->keywords.n; i++) {
        value v;
        if (!eval_node(r, s, n->keywords.items[i].value, &v) ||
            !assign(r, inner, n->keywords.items[i].target, v))
            return FLOW_FAILED;
    }
    return exec_body(r, inner, &n->items);
}

/* ---- macros ---- */

static bool make_macro(render *r, scope *s, const node *n, value *out)
{
    callable *c = render_alloc(r, 1, sizeof *c);
    if (!c) return false;
    *c = (callable){.macro = n, .scope = s};
    *out = (value){.kind = V_CALLABLE, .callable = c};
    return true;
}

static const keyword_value *find_keyword(const call_args *call, text name)
{
    for (size_t i = 0; i < call->n_keywords; i++)
        if (text_equal(call->keywords[i].name, name)) return &call->keywords[i];
    return NULL;
}

static bool bind_parameter(render *r, scope *s, const keyword_node *p, const call_args *call,
                           size_t i)
{
    value v;
    const keyword_value *k = find_keyword(call, p->name);
    if (i < call->n_positional) {
        v = call->positional[i];
    } else if (k) {
        v = k->value;
    } else if (p->value) {
        if (!eval_node(r, s, p->value, &v)) return false;
    } else {
        value hint;
        builder b = builder_new(r);
        builder_add(&b, TEXT("parameter '"));
        builder_add(&b, p->name);
        builder_add(&b, TEXT("' was not provided"));
        builder_char(&b, '\0');
        if (!builder_finish(&b, &hint)) return false;
        v = value_undefined(r, hint.s, (value){0}, value_text(p->name));
    }
    return scope_set(r, s, p->name, v);
}

/* Whether a keyword names a parameter that the first n_positional arguments have not filled. */
static bool is_open_parameter(const node *macro, size_t n_positional, text name)
{
    for (size_t i = n_positional; i < macro->keywords.n; i++)
        if (text_equal(macro->keywords.items[i].name, name)) return true;
    return false;
}

/* Binds positional arguments beyond the parameters to `varargs`. */
static bool bind_varargs(render *r, scope *s, const node *macro, const call_args *call)
{
    size_t n = macro->keywords.n;
    bool wanted = macro->uses & USES_VARARGS;
    if (call->n_positional > n && !wanted)
        return render_fail(r, STATUS_INVALID, "macro '%.*s' takes not more than %zu argument(s)",
                           (int)macro->name.n, macro->name.s, n);
    if (!wanted) return true;
    list *l = list_new(r, 0);
    if (!l) return false;
    for (size_t i = n; i < call->n_positional; i++)
        if (!list_push(r, l, call->positional[i])) return false;
    return scope_set(r, s, TEXT("varargs"), value_tuple(l));
}

/* Binds keyword arguments that are no parameters: `caller`, and the rest to `kwargs`. */
static bool bind_keywords(render *r, scope *s, const node *macro, const call_args *call)
{
    bool caller = (macro->uses & USES_CALLER) && !is_open_parameter(macro, 0, TEXT("caller"));
    dict *rest = dict_new(r, 0);
    if (!rest) return false;
    if (caller) {
        const keyword_value *k = find_keyword(call, TEXT("caller"));
        value v = k ? k->value : value_undefined(r, "No caller defined", (value){0}, (value){0});
        if (!scope_set(r, s, TEXT("caller"), v)) return false;
    }
    for (size_t i = 0; i < call->n_keywords; i++) {
        const keyword_value *k = &call->keywords[i];
        if (is_open_parameter(macro, call->n_positional, k->name) ||
            (caller && text_is(k->name, "caller")))
            continue;
        if (!(macro->uses & USES_KWARGS))
            return render_fail(r, STATUS_INVALID, "macro '%.*s' takes no keyword argument '%.*s'",
                               (int)macro->name.n, macro->name.s, (int)k->name.n, k->name.s);
        if (!dict_set(r, rest, value_text(k->name), k->value)) return false;
    }
    return !(macro->uses & USES_KWARGS) || scope_set(r, s, TEXT("kwargs"), value_dict(rest));
}

bool eval_call_macro(render *r, const callable *c, const call_args *call, value *out)
{
    const node *macro = c->macro;
    scope *s = scope_new(r, c->scope);
    if (!s || !render_enter(r)) return false;
    if (!bind_varargs(r, s, macro, call) || !bind_keywords(r, s, macro, call)) return false;
    for (uint32_t i = 0; i < macro->keywords.n; i++)
        if (!bind_parameter(r, s, &macro->keywords.items[i], call, i)) return false;
    flow f = capture_body(r, s, &macro->items, out);
    render_leave(r);
    return f == FLOW_ON;
}

static flow exec_macro(render *r, scope *s, const node *n)
{
    value v;
    return make_macro(r, s, n, &v) && scope_set(r, s, n->name, v) ? FLOW_ON : FLOW_FAILED;
}

static flow exec_call_block(render *r, scope *s, const node *n)
{
    value caller, v;
    return make_macro(r, s, n, &caller) && eval_call_block(r, s, n->a, caller, &v) &&
                   write_value(r, v)
               ? FLOW_ON
               : FLOW_FAILED;
}

/* ---- */

static flow exec_output(render *r, scope *s, const node *n)
{
    value v;
    return eval_node(r, s, n->a, &v) && write_value(r, v) ? FLOW_ON : FLOW_FAILED;
}

static flow exec_scoped(render *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, s);
    return inner ? exec_body(r, inner, &n->items) : FLOW_FAILED;
}

static flow exec_any(render *r, scope *s, const node *n)
{
    switch ((node_kind)n->kind) {
    case NODE_DATA: return render_write(r, text_of(n->constant)) ? FLOW_ON : FLOW_FAILED;
    case NODE_OUTPUT: return exec_output(r, s, n);
    case NODE_IF: return exec_if(r, s, n);
    case NODE_FOR: return exec_for(r, s, n);
    case NODE_SET: return exec_set(r, s, n);
    case NODE_SET_BLOCK: return exec_set_block(r, s, n);
    case NODE_FILTER_BLOCK: return exec_filter_block(r, s, n);
    case NODE_WITH: return exec_with(r, s, n);
    case NODE_MACRO: return exec_macro(r, s, n);
    case NODE_CALL_BLOCK: return exec_call_block(r, s, n);
    case NODE_BODY: return exec_scoped(r, s, n);
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: render_fail(r, STATUS_INTERNAL, "an expression is no statement"); return FLOW_FAILED;
    }
}

static flow exec_node(render *r, scope *s, const node *n)
{
    r->line = n->line;
    if (!render_step(r, 0) || !render_enter(r)) return FLOW_FAILED;
    flow f = exec_any(r, s, n);
    render_leave(r);
    return f;
}

bool exec_template(render *r, const node *body)
{
    scope *s = scope_new(r, NULL);
    return s && exec_body(r, s, &body->items) == FLOW_ON;
}
