/* Finding builtins by name, and binding a call's arguments to their parameters. */
#include "text/chat_template/render.h"

static const builtin *find_builtin(const builtin *table, text name)
{
    for (; table->name; table++)
        if (text_is(name, table->name)) return table;
    return NULL;
}

const builtin *tmpl_find_filter(text name)
{
    const builtin *b = find_builtin(tmpl_filters_text, name);
    return b ? b : find_builtin(tmpl_filters_items, name);
}

const builtin *tmpl_find_test(text name) { return find_builtin(tmpl_tests, name); }
const builtin *tmpl_find_function(text name) { return find_builtin(tmpl_functions, name); }

const builtin *tmpl_find_method(text name, value_kind kind)
{
    for (const builtin *b = tmpl_methods; b->name; b++)
        if ((kind == V_MISSING || (b->kinds >> kind & 1)) && text_is(name, b->name)) return b;
    return NULL;
}

/* The i-th name of "a b c"; the text is empty behind the last one. */
static text parameter(const char *params, size_t i)
{
    for (; i > 0 && *params; i--) {
        params += strcspn(params, " ");
        params += *params == ' ';
    }
    return (text){params, strcspn(params, " ")};
}

static size_t count_parameters(const char *params)
{
    size_t n = *params != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

static bool bind(render *r, const builtin *b, const call_args *call, value *args)
{
    size_t n = count_parameters(b->params);
    if (call->n_positional > n)
        return render_fail(r, STATUS_INVALID, "%s takes at most %zu argument(s), got %zu", b->name,
                           n, call->n_positional);
    for (size_t i = 0; i < BUILTIN_MAX_ARGS; i++)
        args[i] = i < call->n_positional ? call->positional[i] : (value){0};
    for (size_t k = 0; k < call->n_keywords; k++) {
        text name = call->keywords[k].name;
        size_t i = 0;
        while (i < n && !text_equal(parameter(b->params, i), name)) i++;
        if (i == n || arg_given(args[i]))
            return render_fail(r, STATUS_INVALID, "%s got an unexpected keyword argument '%.*s'",
                               b->name, (int)name.n, name.s);
        args[i] = call->keywords[k].value;
    }
    for (size_t i = 0; i < b->required; i++)
        if (!arg_given(args[i])) {
            text name = parameter(b->params, i);
            return render_fail(r, STATUS_INVALID, "%s lacks its argument '%.*s'", b->name,
                               (int)name.n, name.s);
        }
    return true;
}

bool tmpl_call_builtin(render *r, const builtin *b, value self, const call_args *call, value *out)
{
    value args[BUILTIN_MAX_ARGS];
    if (!render_step(r, 0) || (b->params && !bind(r, b, call, args))) return false;
    return b->fn(r, self, args, call, out);
}

bool tmpl_call_test(render *r, const builtin *b, value self, const call_args *call, bool *out)
{
    value v;
    if (!tmpl_call_builtin(r, b, self, call, &v)) return false;
    *out = value_truth(v);
    return true;
}

bool arg_text(render *r, const char *name, value v, text *out)
{
    if (v.kind == V_MISSING || v.kind == V_NONE) return true;
    if (v.kind != V_STRING)
        return render_fail(r, STATUS_INVALID, "%s wants a str, not %s", name, value_type(v));
    *out = text_of(v);
    return true;
}

bool arg_int(render *r, value v, int64_t *out)
{
    if (v.kind == V_MISSING) return true;
    if (!value_is_integer(v))
        return render_fail(r, STATUS_INVALID, "'%s' object cannot be interpreted as an integer",
                           value_type(v));
    *out = value_as_int(v);
    return true;
}
