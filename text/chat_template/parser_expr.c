/* Parses expressions, by recursive descent with Jinja's precedence, loosest first:
 *   if-else < or < and < not < comparisons < + - < ~ < * / // % < ** < unary < postfix < filters,
 *   tests. */
#include "text/chat_template/ast.h"

static status parse_condition(parser *p, node **out);
static status parse_unary(parser *p, bool with_filters, node **out);

static status make_node(parser *p, node_kind kind, uint32_t line, node **out)
{
    *out = parse_node(p, kind, line);
    return *out ? STATUS_IS_OK : parse_no_memory(p);
}

/* Makes a node of the two operands *left and right, in *left. */
static status join_nodes(parser *p, node_kind kind, uint32_t line, node **left, node *right)
{
    node *n;
    RETURN_IF_ERROR(make_node(p, kind, line, &n));
    n->a = *left;
    n->b = right;
    *left = n;
    return STATUS_IS_OK;
}

static status parse_constant(parser *p, value v, node **out)
{
    RETURN_IF_ERROR(make_node(p, NODE_CONST, p->cur.line, out));
    (*out)->constant = v;
    return parse_advance(p);
}

/* Parses a string; adjacent literals, 'a' 'b', are one string. */
static status parse_string(parser *p, node **out)
{
    text all = p->cur.text;
    RETURN_IF_ERROR(parse_constant(p, value_text(all), out));
    while (p->cur.kind == TOKEN_STRING) {
        text more = p->cur.text;
        char *s = arena_alloc(p->mem, all.n + more.n + 1);
        if (!s) return parse_no_memory(p);
        memcpy(s, all.s, all.n);
        memcpy(s + all.n, more.s, more.n);
        all = (text){s, all.n + more.n};
        RETURN_IF_ERROR(parse_advance(p));
    }
    (*out)->constant = value_text(all);
    return STATUS_IS_OK;
}

static status parse_name(parser *p, node **out)
{
    static const struct {
        const char *name;
        value v;
    } constants[] = {
        {"true", {.kind = V_BOOL, .b = true}},
        {"True", {.kind = V_BOOL, .b = true}},
        {"false", {.kind = V_BOOL, .b = false}},
        {"False", {.kind = V_BOOL, .b = false}},
        {"none", {.kind = V_NONE}},
        {"None", {.kind = V_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (text_is(p->cur.text, constants[i].name)) return parse_constant(p, constants[i].v, out);
    if (text_is(p->cur.text, "caller")) p->uses |= USES_CALLER;
    if (text_is(p->cur.text, "varargs")) p->uses |= USES_VARARGS;
    if (text_is(p->cur.text, "kwargs")) p->uses |= USES_KWARGS;
    RETURN_IF_ERROR(make_node(p, NODE_NAME, p->cur.line, out));
    (*out)->name = p->cur.text;
    return parse_advance(p);
}

/* Parses [a, b] or {a: b}; a comma may follow the last item. */
static status parse_display(parser *p, node_kind kind, unsigned close, node **out)
{
    RETURN_IF_ERROR(make_node(p, kind, p->cur.line, out));
    RETURN_IF_ERROR(parse_advance(p));
    while (!token_is_op(&p->cur, close)) {
        node *item;
        if ((*out)->items.n > 0) {
            RETURN_IF_ERROR(parse_expect_op(p, OP1(',')));
            if (token_is_op(&p->cur, close)) break;
        }
        RETURN_IF_ERROR(parse_expression(p, true, &item));
        RETURN_IF_ERROR(node_list_add(p, &(*out)->items, item));
        if (kind != NODE_DICT) continue;
        RETURN_IF_ERROR(parse_expect_op(p, OP1(':')));
        RETURN_IF_ERROR(parse_expression(p, true, &item));
        RETURN_IF_ERROR(node_list_add(p, &(*out)->items, item));
    }
    return parse_expect_op(p, close);
}

static status parse_primary(parser *p, node **out)
{
    switch (p->cur.kind) {
    case TOKEN_NAME: return parse_name(p, out);
    case TOKEN_STRING: return parse_string(p, out);
    case TOKEN_INTEGER: return parse_constant(p, value_int(p->cur.integer), out);
    case TOKEN_FLOAT: return parse_constant(p, value_float(p->cur.real), out);
    default: break;
    }
    if (token_is_op(&p->cur, OP1('('))) {
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_tuple(p, true, NULL, true, out));
        return parse_expect_op(p, OP1(')'));
    }
    if (token_is_op(&p->cur, OP1('['))) return parse_display(p, NODE_LIST, OP1(']'), out);
    if (token_is_op(&p->cur, OP1('{'))) return parse_display(p, NODE_DICT, OP1('}'), out);
    return parse_unexpected(p, "an expression");
}

/* Parses start, stop or step of a slice, each of which may be absent before ':' and ']'. */
static status parse_slice_part(parser *p, node *slice)
{
    node *part = NULL;
    if (!token_is_op(&p->cur, OP1(':')) && !token_is_op(&p->cur, OP1(']')))
        RETURN_IF_ERROR(parse_expression(p, true, &part));
    return node_list_add(p, &slice->items, part);
}

static status parse_subscript(parser *p, node *object, node **out)
{
    uint32_t line = p->cur.line;
    node *key = NULL;
    RETURN_IF_ERROR(parse_advance(p));
    if (!token_is_op(&p->cur, OP1(':'))) RETURN_IF_ERROR(parse_expression(p, true, &key));
    bool slice = token_is_op(&p->cur, OP1(':'));
    RETURN_IF_ERROR(make_node(p, slice ? NODE_SLICE : NODE_ITEM, line, out));
    (*out)->a = object;
    (*out)->b = key;
    if (slice) {
        RETURN_IF_ERROR(node_list_add(p, &(*out)->items, key));
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_slice_part(p, *out));
        if (token_is_op(&p->cur, OP1(':'))) RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_slice_part(p, *out));
    }
    return parse_expect_op(p, OP1(']'));
}

static status parse_attribute(parser *p, node *object, node **out)
{
    uint32_t line = p->cur.line;
    RETURN_IF_ERROR(parse_advance(p));
    if (p->cur.kind == TOKEN_INTEGER) {
        RETURN_IF_ERROR(make_node(p, NODE_ITEM, line, out));
        (*out)->a = object;
        return parse_constant(p, value_int(p->cur.integer), &(*out)->b);
    }
    RETURN_IF_ERROR(make_node(p, NODE_ATTR, line, out));
    (*out)->a = object;
    return parse_expect_name(p, &(*out)->name);
}

/* Parses (a, b, name=c) into the node's items and keywords. */
static status parse_arguments(parser *p, node *call)
{
    RETURN_IF_ERROR(parse_expect_op(p, OP1('(')));
    while (!token_is_op(&p->cur, OP1(')'))) {
        if (call->items.n + call->keywords.n > 0) {
            RETURN_IF_ERROR(parse_expect_op(p, OP1(',')));
            if (token_is_op(&p->cur, OP1(')'))) break;
        }
        if (token_is_op(&p->cur, OP1('*')) || token_is_op(&p->cur, OP('*', '*')))
            return lex_fail(p->err, STATUS_UNSUPPORTED, p->cur.line,
                            "'%.*s' in the arguments of a call is not supported",
                            (int)p->cur.text.n, p->cur.text.s);
        if (p->cur.kind == TOKEN_NAME && token_is_op(&p->next, OP1('='))) {
            keyword_node k = {.name = p->cur.text};
            RETURN_IF_ERROR(parse_advance(p));
            RETURN_IF_ERROR(parse_advance(p));
            RETURN_IF_ERROR(parse_expression(p, true, &k.value));
            RETURN_IF_ERROR(keyword_list_add(p, &call->keywords, k));
        } else {
            node *argument;
            if (call->keywords.n > 0)
                return parse_fail(p, "a positional argument follows a keyword argument");
            RETURN_IF_ERROR(parse_expression(p, true, &argument));
            RETURN_IF_ERROR(node_list_add(p, &call->items, argument));
        }
    }
    return parse_advance(p);
}

/* Takes note of a name without a builtin. */
static void note_unknown(parser *p, const node *n)
{
    if (!p->conditional && !p->unknown) p->unknown = n;
}

static status parse_call(parser *p, node *callee, node **out)
{
    RETURN_IF_ERROR(make_node(p, NODE_CALL, p->cur.line, out));
    (*out)->a = callee;
    if (callee->kind == NODE_ATTR && !tmpl_find_method(callee->name, V_MISSING) &&
        !value_hides(callee->name))
        note_unknown(p, callee);
    return parse_arguments(p, *out);
}

static status parse_postfix(parser *p, node *operand, node **out)
{
    for (unsigned depth = 0;; depth++) {
        *out = operand;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "an expression nests too deep");
        if (token_is_op(&p->cur, OP1('.'))) RETURN_IF_ERROR(parse_attribute(p, operand, out));
        else if (token_is_op(&p->cur, OP1('['))) RETURN_IF_ERROR(parse_subscript(p, operand, out));
        else if (token_is_op(&p->cur, OP1('('))) RETURN_IF_ERROR(parse_call(p, operand, out));
        else return STATUS_IS_OK;
        operand = *out;
    }
}

/* Parses the name of a filter or test. It may have dots; no builtin's has, so such a name is
 * refused as a whole. */
static status parse_dotted_name(parser *p, text *out)
{
    RETURN_IF_ERROR(parse_expect_name(p, out));
    while (token_is_op(&p->cur, OP1('.'))) {
        text more;
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_expect_name(p, &more));
        out->n = (size_t)(more.s + more.n - out->s);
    }
    return STATUS_IS_OK;
}

status parse_filters(parser *p, node *operand, bool inline_first, node **out)
{
    *out = operand;
    for (unsigned depth = 0; inline_first || token_is_op(&p->cur, OP1('|')); depth++) {
        node *f;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "too many filters in a row");
        if (!inline_first) RETURN_IF_ERROR(parse_advance(p));
        inline_first = false;
        RETURN_IF_ERROR(make_node(p, NODE_FILTER, p->cur.line, &f));
        RETURN_IF_ERROR(parse_dotted_name(p, &f->name));
        f->builtin = tmpl_find_filter(f->name);
        if (!f->builtin) note_unknown(p, f);
        if (token_is_op(&p->cur, OP1('('))) RETURN_IF_ERROR(parse_arguments(p, f));
        f->a = *out;
        *out = f;
    }
    return STATUS_IS_OK;
}

static bool starts_test_argument(const token *t)
{
    if (token_is_op(t, OP1('[')) || token_is_op(t, OP1('{'))) return true;
    if (t->kind != TOKEN_NAME)
        return t->kind == TOKEN_STRING || t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT;
    return !text_is(t->text, "else") && !text_is(t->text, "or") && !text_is(t->text, "and");
}

static status parse_test(parser *p, node *operand, node **out)
{
    node *test;
    RETURN_IF_ERROR(make_node(p, NODE_TEST, p->cur.line, &test));
    RETURN_IF_ERROR(parse_advance(p));
    bool negated = token_is_name(&p->cur, "not");
    if (negated) RETURN_IF_ERROR(parse_advance(p));
    RETURN_IF_ERROR(parse_dotted_name(p, &test->name));
    test->a = operand;
    test->builtin = tmpl_find_test(test->name);
    if (!test->builtin) note_unknown(p, test);
    if (token_is_op(&p->cur, OP1('('))) {
        RETURN_IF_ERROR(parse_arguments(p, test));
    } else if (starts_test_argument(&p->cur)) {
        node *argument;
        if (token_is_name(&p->cur, "is"))
            return parse_fail(p, "you cannot chain multiple tests with is");
        RETURN_IF_ERROR(parse_primary(p, &argument));
        RETURN_IF_ERROR(parse_postfix(p, argument, &argument));
        RETURN_IF_ERROR(node_list_add(p, &test->items, argument));
    }
    *out = test;
    if (!negated) return STATUS_IS_OK;
    RETURN_IF_ERROR(make_node(p, NODE_NOT, test->line, out));
    (*out)->a = test;
    return STATUS_IS_OK;
}

/* Parses filters, tests and calls, in any order, after an operand. */
static status parse_trailers(parser *p, node *operand, node **out)
{
    for (unsigned depth = 0;; depth++) {
        *out = operand;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "an expression nests too deep");
        if (token_is_op(&p->cur, OP1('|'))) RETURN_IF_ERROR(parse_filters(p, operand, false, out));
        else if (token_is_name(&p->cur, "is")) RETURN_IF_ERROR(parse_test(p, operand, out));
        else if (token_is_op(&p->cur, OP1('('))) RETURN_IF_ERROR(parse_call(p, operand, out));
        else return STATUS_IS_OK;
        operand = *out;
    }
}

static status parse_unary(parser *p, bool with_filters, node **out)
{
    bool minus = token_is_op(&p->cur, OP1('-'));
    RETURN_IF_ERROR(parse_enter(p));
    if (minus || token_is_op(&p->cur, OP1('+'))) {
        node *sign;
        RETURN_IF_ERROR(make_node(p, minus ? NODE_NEGATE : NODE_POSITIVE, p->cur.line, &sign));
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_unary(p, false, &sign->a));
        *out = sign;
    } else {
        RETURN_IF_ERROR(parse_primary(p, out));
    }
    RETURN_IF_ERROR(parse_postfix(p, *out, out));
    if (with_filters) RETURN_IF_ERROR(parse_trailers(p, *out, out));
    p->depth--;
    return STATUS_IS_OK;
}

/* Binary operators that group to the left, loosest first. */
static const struct {
    unsigned op;
    binary_op binary;
    unsigned level;
} operators[] = {
    {OP1('+'), OP_ADD, 0},     {OP1('-'), OP_SUB, 0},          {OP1('*'), OP_MUL, 2},
    {OP1('/'), OP_DIV, 2},     {OP('/', '/'), OP_FLOORDIV, 2}, {OP1('%'), OP_MOD, 2},
    {OP('*', '*'), OP_POW, 3},
};
enum { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static status parse_binary(parser *p, unsigned level, node **out);

static status parse_concat(parser *p, node **out)
{
    RETURN_IF_ERROR(parse_binary(p, LEVEL_PRODUCT, out));
    if (!token_is_op(&p->cur, OP1('~'))) return STATUS_IS_OK;
    node *all, *item = *out;
    RETURN_IF_ERROR(make_node(p, NODE_CONCAT, p->cur.line, &all));
    RETURN_IF_ERROR(node_list_add(p, &all->items, item));
    while (token_is_op(&p->cur, OP1('~'))) {
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_binary(p, LEVEL_PRODUCT, &item));
        RETURN_IF_ERROR(node_list_add(p, &all->items, item));
    }
    *out = all;
    return STATUS_IS_OK;
}

static status parse_binary(parser *p, unsigned level, node **out)
{
    if (level == LEVEL_UNARY) return parse_unary(p, true, out);
    if (level == LEVEL_CONCAT) return parse_concat(p, out);
    RETURN_IF_ERROR(parse_binary(p, level + 1, out));
    for (unsigned depth = 0;; depth++) {
        size_t k = 0, n = sizeof operators / sizeof *operators;
        while (k < n && !(operators[k].level == level && token_is_op(&p->cur, operators[k].op)))
            k++;
        if (k == n) return STATUS_IS_OK;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "an expression nests too deep");
        uint32_t line = p->cur.line;
        node *right;
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_binary(p, level + 1, &right));
        RETURN_IF_ERROR(join_nodes(p, NODE_BINARY, line, out, right));
        (*out)->op = (uint8_t)operators[k].binary;
    }
}

/* Consumes the comparison operator that starts here; *found is false when there is none. */
static status take_comparison(parser *p, bool *found, compare_op *op)
{
    static const struct {
        unsigned op;
        compare_op compare;
    } table[] = {{OP('=', '='), COMPARE_EQ}, {OP('!', '='), COMPARE_NE},
                 {OP1('<'), COMPARE_LT},     {OP('<', '='), COMPARE_LE},
                 {OP1('>'), COMPARE_GT},     {OP('>', '='), COMPARE_GE}};
    *found = true;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (token_is_op(&p->cur, table[i].op)) {
            *op = table[i].compare;
            return parse_advance(p);
        }
    if (token_is_name(&p->cur, "in")) {
        *op = COMPARE_IN;
        return parse_advance(p);
    }
    *found = token_is_name(&p->cur, "not") && token_is_name(&p->next, "in");
    if (!*found) return STATUS_IS_OK;
    *op = COMPARE_NOT_IN;
    RETURN_IF_ERROR(parse_advance(p));
    return parse_advance(p);
}

static status parse_compare(parser *p, node **out)
{
    RETURN_IF_ERROR(parse_binary(p, LEVEL_SUM, out));
    node *n = NULL;
    for (;;) {
        bool found;
        compare_op op = COMPARE_EQ;
        uint32_t line = p->cur.line;
        RETURN_IF_ERROR(take_comparison(p, &found, &op));
        if (!found) break;
        if (!n) {
            RETURN_IF_ERROR(make_node(p, NODE_COMPARE, line, &n));
            n->a = *out;
            *out = n;
        }
        node *operand;
        RETURN_IF_ERROR(make_node(p, NODE_OPERAND, line, &operand));
        operand->op = (uint8_t)op;
        RETURN_IF_ERROR(parse_binary(p, LEVEL_SUM, &operand->a));
        RETURN_IF_ERROR(node_list_add(p, &n->items, operand));
    }
    return STATUS_IS_OK;
}

static status parse_not(parser *p, node **out)
{
    if (!token_is_name(&p->cur, "not")) return parse_compare(p, out);
    RETURN_IF_ERROR(parse_enter(p));
    RETURN_IF_ERROR(make_node(p, NODE_NOT, p->cur.line, out));
    RETURN_IF_ERROR(parse_advance(p));
    RETURN_IF_ERROR(parse_not(p, &(*out)->a));
    p->depth--;
    return STATUS_IS_OK;
}

static status parse_logical(parser *p, bool either, node **out)
{
    RETURN_IF_ERROR(either ? parse_logical(p, false, out) : parse_not(p, out));
    for (unsigned depth = 0; token_is_name(&p->cur, either ? "or" : "and"); depth++) {
        uint32_t line = p->cur.line;
        node *right;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "an expression nests too deep");
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(either ? parse_logical(p, false, &right) : parse_not(p, &right));
        RETURN_IF_ERROR(join_nodes(p, either ? NODE_OR : NODE_AND, line, out, right));
    }
    return STATUS_IS_OK;
}

static status parse_condition(parser *p, node **out)
{
    const node *unknown = p->unknown;
    RETURN_IF_ERROR(parse_enter(p));
    RETURN_IF_ERROR(parse_logical(p, true, out));
    for (unsigned depth = 0; token_is_name(&p->cur, "if"); depth++) {
        node *n;
        if (depth > TMPL_MAX_DEPTH) return parse_fail(p, "an expression nests too deep");
        RETURN_IF_ERROR(make_node(p, NODE_CONDITION, p->cur.line, &n));
        RETURN_IF_ERROR(parse_advance(p));
        n->a = *out;
        RETURN_IF_ERROR(parse_logical(p, true, &n->b));
        if (token_is_name(&p->cur, "else")) {
            RETURN_IF_ERROR(parse_advance(p));
            RETURN_IF_ERROR(parse_condition(p, &n->c));
        }
        p->unknown = unknown; /* everything in it is conditional */
        *out = n;
    }
    p->depth--;
    return STATUS_IS_OK;
}

status parse_expression(parser *p, bool with_condition, node **out)
{
    if (with_condition) return parse_condition(p, out);
    RETURN_IF_ERROR(parse_enter(p));
    RETURN_IF_ERROR(parse_logical(p, true, out));
    p->depth--;
    return STATUS_IS_OK;
}

static bool is_tuple_end(const parser *p, const char *end_name)
{
    return p->cur.kind == TOKEN_VARIABLE_END || p->cur.kind == TOKEN_BLOCK_END ||
           token_is_op(&p->cur, OP1(')')) || (end_name && token_is_name(&p->cur, end_name));
}

status parse_tuple(parser *p, bool with_condition, const char *end_name, bool parentheses,
                   node **out)
{
    node *first = NULL, *tuple = NULL;
    uint32_t line = p->cur.line;
    if (!is_tuple_end(p, end_name)) RETURN_IF_ERROR(parse_expression(p, with_condition, &first));
    *out = first;
    if (first && !token_is_op(&p->cur, OP1(','))) return STATUS_IS_OK;
    if (!first && !parentheses) return parse_unexpected(p, "an expression");
    RETURN_IF_ERROR(make_node(p, NODE_TUPLE, line, &tuple));
    if (first) RETURN_IF_ERROR(node_list_add(p, &tuple->items, first));
    while (token_is_op(&p->cur, OP1(','))) {
        node *item;
        RETURN_IF_ERROR(parse_advance(p));
        if (is_tuple_end(p, end_name)) break;
        RETURN_IF_ERROR(parse_expression(p, with_condition, &item));
        RETURN_IF_ERROR(node_list_add(p, &tuple->items, item));
    }
    *out = tuple;
    return STATUS_IS_OK;
}
