/* Parses statements: {% … %} and the text between them. */
#include "text/chat_template/ast.h"
#include <stdarg.h>
#include <stdio.h>

/* ---- what both parsers stand on ---- */

status parse_fail(parser *p, const char *fmt, ...)
{
    char message[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return lex_fail(p->err, STATUS_CORRUPT, p->cur.line, "%s", message);
}

status parse_unexpected(parser *p, const char *wanted)
{
    if (p->cur.kind == TOKEN_EOF)
        return parse_fail(p, "unexpected end of template, expected %s", wanted);
    int n = p->cur.text.n > 60 ? 60 : (int)p->cur.text.n;
    return parse_fail(p, "unexpected '%.*s', expected %s", n, p->cur.text.s, wanted);
}

status parse_no_memory(parser *p)
{
    return lex_fail(p->err, STATUS_LIMIT, p->cur.line, "the template is too large to compile");
}

status parse_enter(parser *p)
{
    if (++p->depth > TMPL_MAX_DEPTH / 4)
        return lex_fail(p->err, STATUS_LIMIT, p->cur.line, "nesting deeper than %d levels",
                        TMPL_MAX_DEPTH / 4);
    return STATUS_IS_OK;
}

status parse_advance(parser *p)
{
    p->cur = p->next;
    return lex_next(&p->lex, &p->next);
}

node *parse_node(parser *p, node_kind kind, uint32_t line)
{
    node *n = arena_alloc(p->mem, sizeof *n);
    if (n) {
        n->kind = (uint8_t)kind;
        n->line = line;
    }
    return n;
}

/* Doubles an array in the arena; the old memory is freed with the template. */
static void *grow_list(parser *p, void *items, uint32_t n, uint32_t *capacity, size_t size)
{
    if (n < *capacity) return items;
    uint32_t larger = *capacity ? *capacity * 2 : 4;
    void *moved = arena_alloc_array(p->mem, larger, size);
    if (!moved) return NULL;
    if (n) memcpy(moved, items, n * size);
    *capacity = larger;
    return moved;
}

status node_list_add(parser *p, node_list *l, node *item)
{
    node **items = grow_list(p, l->items, l->n, &l->capacity, sizeof *items);
    if (!items) return parse_no_memory(p);
    l->items = items;
    l->items[l->n++] = item;
    return STATUS_IS_OK;
}

status keyword_list_add(parser *p, keyword_list *l, keyword_node item)
{
    keyword_node *items = grow_list(p, l->items, l->n, &l->capacity, sizeof *items);
    if (!items) return parse_no_memory(p);
    l->items = items;
    l->items[l->n++] = item;
    return STATUS_IS_OK;
}

bool token_is_op(const token *t, unsigned op) { return t->kind == TOKEN_OPERATOR && t->op == op; }

bool token_is_name(const token *t, const char *name)
{
    return t->kind == TOKEN_NAME && text_is(t->text, name);
}

status parse_expect_op(parser *p, unsigned op)
{
    char wanted[5] = {'\'', (char)(op >> 8), (char)(op & 0xff), '\'', 0};
    if (!(op & 0xff)) memcpy(wanted + 2, "'", 2);
    return token_is_op(&p->cur, op) ? parse_advance(p) : parse_unexpected(p, wanted);
}

status parse_expect_name(parser *p, text *out)
{
    if (p->cur.kind != TOKEN_NAME) return parse_unexpected(p, "a name");
    *out = p->cur.text;
    return parse_advance(p);
}

static status expect_keyword(parser *p, const char *name)
{
    return token_is_name(&p->cur, name) ? parse_advance(p) : parse_unexpected(p, name);
}

static status expect_block_end(parser *p)
{
    return p->cur.kind == TOKEN_BLOCK_END ? parse_advance(p)
                                          : parse_unexpected(p, "the end of the tag");
}

/* ---- assignment targets ---- */

static status parse_target(parser *p, bool with_attribute, const char *end_name, node **out);

static status parse_target_item(parser *p, bool with_attribute, node **out)
{
    if (token_is_op(&p->cur, OP1('('))) {
        RETURN_IF_ERROR(parse_enter(p));
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_target(p, with_attribute, NULL, out));
        p->depth--;
        return parse_expect_op(p, OP1(')'));
    }
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (token_is_name(&p->cur, constants[i])) return parse_fail(p, "can't assign to 'const'");
    *out = parse_node(p, NODE_TARGET_NAME, p->cur.line);
    if (!*out) return parse_no_memory(p);
    RETURN_IF_ERROR(parse_expect_name(p, &(*out)->name));
    if (!with_attribute || !token_is_op(&p->cur, OP1('.'))) return STATUS_IS_OK;
    (*out)->kind = NODE_TARGET_ATTRIBUTE;
    RETURN_IF_ERROR(parse_advance(p));
    return parse_expect_name(p, &(*out)->attribute);
}

static bool is_target_end(const parser *p, const char *end_name)
{
    return p->cur.kind == TOKEN_BLOCK_END || token_is_op(&p->cur, OP1(')')) ||
           token_is_op(&p->cur, OP1('=')) || (end_name && token_is_name(&p->cur, end_name));
}

static status parse_target(parser *p, bool with_attribute, const char *end_name, node **out)
{
    RETURN_IF_ERROR(parse_target_item(p, with_attribute, out));
    if (!token_is_op(&p->cur, OP1(','))) return STATUS_IS_OK;
    node *tuple = parse_node(p, NODE_TARGET_TUPLE, p->cur.line);
    if (!tuple) return parse_no_memory(p);
    RETURN_IF_ERROR(node_list_add(p, &tuple->items, *out));
    while (token_is_op(&p->cur, OP1(','))) {
        RETURN_IF_ERROR(parse_advance(p));
        if (is_target_end(p, end_name)) break;
        RETURN_IF_ERROR(parse_target_item(p, with_attribute, out));
        RETURN_IF_ERROR(node_list_add(p, &tuple->items, *out));
    }
    *out = tuple;
    return STATUS_IS_OK;
}

/* ---- statements ---- */

/* Parses everything up to a tag whose name is one of `ends` (NULL-terminated), which becomes the
 * current token. */
static status parse_body(parser *p, const char *const *ends, node_list *out);

/* Parses the end of this tag, then everything up to the tag `end`, inclusive. */
static status parse_block(parser *p, const char *end, node_list *out)
{
    const char *const ends[] = {end, NULL};
    if (token_is_op(&p->cur, OP1(':'))) RETURN_IF_ERROR(parse_advance(p));
    RETURN_IF_ERROR(expect_block_end(p));
    RETURN_IF_ERROR(parse_body(p, ends, out));
    return parse_advance(p);
}

static status parse_if(parser *p, node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    node *branch = n;
    p->conditional = true;
    for (;;) {
        RETURN_IF_ERROR(parse_tuple(p, false, NULL, false, &branch->a));
        if (token_is_op(&p->cur, OP1(':'))) RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(expect_block_end(p));
        RETURN_IF_ERROR(parse_body(p, ends, &branch->items));
        bool elif = token_is_name(&p->cur, "elif"), otherwise = token_is_name(&p->cur, "else");
        uint32_t line = p->cur.line;
        RETURN_IF_ERROR(parse_advance(p));
        if (!elif) return otherwise ? parse_block(p, "endif", &n->orelse) : STATUS_IS_OK;
        /* Branches form a list from `n` through b; `else` belongs to the whole statement, not to
         * one branch. */
        branch->b = parse_node(p, NODE_IF, line);
        if (!branch->b) return parse_no_memory(p);
        branch = branch->b;
    }
}

static status parse_for(parser *p, node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    RETURN_IF_ERROR(parse_target(p, false, "in", &n->a));
    RETURN_IF_ERROR(expect_keyword(p, "in"));
    RETURN_IF_ERROR(parse_tuple(p, false, "recursive", false, &n->b));
    p->conditional = false;
    if (token_is_name(&p->cur, "if")) {
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(parse_expression(p, true, &n->c));
    }
    if (token_is_name(&p->cur, "recursive")) {
        n->flag = true;
        RETURN_IF_ERROR(parse_advance(p));
    }
    if (token_is_op(&p->cur, OP1(':'))) RETURN_IF_ERROR(parse_advance(p));
    RETURN_IF_ERROR(expect_block_end(p));
    p->loops++;
    RETURN_IF_ERROR(parse_body(p, ends, &n->items));
    p->loops--;
    bool otherwise = token_is_name(&p->cur, "else");
    RETURN_IF_ERROR(parse_advance(p));
    if (!otherwise) return STATUS_IS_OK;
    unsigned loops = p->loops;
    if (n->flag) p->loops = 0; /* a recursive loop is a function */
    RETURN_IF_ERROR(parse_block(p, "endfor", &n->orelse));
    p->loops = loops;
    return STATUS_IS_OK;
}

static status parse_captured(parser *p, node **out)
{
    *out = parse_node(p, NODE_CAPTURED, p->cur.line);
    return *out ? STATUS_IS_OK : parse_no_memory(p);
}

static status parse_set(parser *p, node *n)
{
    RETURN_IF_ERROR(parse_target(p, true, NULL, &n->a));
    if (token_is_op(&p->cur, OP1('='))) {
        RETURN_IF_ERROR(parse_advance(p));
        return parse_tuple(p, true, NULL, false, &n->b);
    }
    n->kind = NODE_SET_BLOCK;
    p->conditional = false;
    RETURN_IF_ERROR(parse_captured(p, &n->b));
    RETURN_IF_ERROR(parse_filters(p, n->b, false, &n->b));
    return parse_block(p, "endset", &n->items);
}

static status parse_filter_block(parser *p, node *n)
{
    p->conditional = false;
    RETURN_IF_ERROR(parse_captured(p, &n->b));
    RETURN_IF_ERROR(parse_filters(p, n->b, true, &n->b));
    return parse_block(p, "endfilter", &n->items);
}

static status parse_with(parser *p, node *n)
{
    while (p->cur.kind != TOKEN_BLOCK_END) {
        keyword_node k = {0};
        if (n->keywords.n > 0) RETURN_IF_ERROR(parse_expect_op(p, OP1(',')));
        RETURN_IF_ERROR(parse_target_item(p, false, &k.target));
        RETURN_IF_ERROR(parse_expect_op(p, OP1('=')));
        RETURN_IF_ERROR(parse_expression(p, true, &k.value));
        RETURN_IF_ERROR(keyword_list_add(p, &n->keywords, k));
    }
    p->conditional = false;
    return parse_block(p, "endwith", &n->items);
}

static status parse_parameters(parser *p, node *n)
{
    RETURN_IF_ERROR(parse_expect_op(p, OP1('(')));
    while (!token_is_op(&p->cur, OP1(')'))) {
        keyword_node k = {0};
        if (n->keywords.n > 0) RETURN_IF_ERROR(parse_expect_op(p, OP1(',')));
        RETURN_IF_ERROR(parse_expect_name(p, &k.name));
        if (token_is_op(&p->cur, OP1('='))) {
            RETURN_IF_ERROR(parse_advance(p));
            RETURN_IF_ERROR(parse_expression(p, true, &k.value));
        } else if (n->keywords.n > 0 && n->keywords.items[n->keywords.n - 1].value) {
            return parse_fail(p, "non-default argument follows default argument");
        }
        RETURN_IF_ERROR(keyword_list_add(p, &n->keywords, k));
    }
    return parse_advance(p);
}

/* Parses the body of a macro or call block. Code inside cannot leave loops outside. */
static status parse_function_body(parser *p, node *n, const char *end)
{
    unsigned loops = p->loops, uses = p->uses;
    p->loops = p->uses = 0;
    p->conditional = false;
    RETURN_IF_ERROR(parse_block(p, end, &n->items));
    n->uses = (uint8_t)p->uses;
    p->loops = loops;
    p->uses |= uses;
    return STATUS_IS_OK;
}

static status parse_macro(parser *p, node *n)
{
    p->conditional = false;
    RETURN_IF_ERROR(parse_expect_name(p, &n->name));
    RETURN_IF_ERROR(parse_parameters(p, n));
    return parse_function_body(p, n, "endmacro");
}

static status parse_call_block(parser *p, node *n)
{
    if (token_is_op(&p->cur, OP1('('))) RETURN_IF_ERROR(parse_parameters(p, n));
    RETURN_IF_ERROR(parse_expression(p, true, &n->a));
    if (n->a->kind != NODE_CALL) return parse_fail(p, "expected call");
    n->name = TEXT("caller");
    return parse_function_body(p, n, "endcall");
}

/* Parses a generation block, which marks the assistant's text for training masks: renders its
 * body. */
static status parse_generation(parser *p, node *n)
{
    n->flag = true;
    p->conditional = false;
    return parse_block(p, "endgeneration", &n->items);
}

static status parse_loop_control(parser *p, node *n)
{
    if (p->loops == 0)
        return lex_fail(p->err, STATUS_CORRUPT, n->line, "'%s' outside a loop",
                        n->kind == NODE_BREAK ? "break" : "continue");
    return STATUS_IS_OK;
}

static const struct {
    const char *name;
    node_kind kind;
    status (*parse)(parser *p, node *n);
} statements[] = {
    {"if", NODE_IF, parse_if},
    {"for", NODE_FOR, parse_for},
    {"set", NODE_SET, parse_set},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"with", NODE_WITH, parse_with},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALL_BLOCK, parse_call_block},
    {"generation", NODE_BODY, parse_generation},
    {"break", NODE_BREAK, parse_loop_control},
    {"continue", NODE_CONTINUE, parse_loop_control},
};

static status parse_statement(parser *p, node **out)
{
    text name = p->cur.text;
    uint32_t line = p->cur.line;
    bool conditional = p->conditional;
    if (p->cur.kind != TOKEN_NAME) return parse_unexpected(p, "a tag's name");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!text_is(name, statements[i].name)) continue;
        *out = parse_node(p, statements[i].kind, line);
        if (!*out) return parse_no_memory(p);
        RETURN_IF_ERROR(parse_enter(p));
        RETURN_IF_ERROR(parse_advance(p));
        RETURN_IF_ERROR(statements[i].parse(p, *out));
        p->conditional = conditional;
        p->depth--;
        return expect_block_end(p);
    }
    return lex_fail(p->err, STATUS_UNSUPPORTED, line, "unknown tag '%.*s'",
                    name.n > 60 ? 60 : (int)name.n, name.s);
}

static status parse_output(parser *p, node **out)
{
    uint32_t line = p->cur.line;
    RETURN_IF_ERROR(parse_advance(p));
    *out = parse_node(p, NODE_OUTPUT, line);
    if (!*out) return parse_no_memory(p);
    RETURN_IF_ERROR(parse_tuple(p, true, NULL, false, &(*out)->a));
    return p->cur.kind == TOKEN_VARIABLE_END ? parse_advance(p)
                                             : parse_unexpected(p, "the end of the expression");
}

static bool is_end(const parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (token_is_name(&p->cur, *ends)) return true;
    return false;
}

static status parse_body(parser *p, const char *const *ends, node_list *out)
{
    for (;;) {
        node *n = NULL;
        switch (p->cur.kind) {
        case TOKEN_EOF:
            if (!ends) return STATUS_IS_OK;
            return parse_fail(p, "unexpected end of template, expected '%s'", ends[0]);
        case TOKEN_DATA:
            n = parse_node(p, NODE_DATA, p->cur.line);
            if (!n) return parse_no_memory(p);
            n->constant = value_text(p->cur.text);
            RETURN_IF_ERROR(parse_advance(p));
            break;
        case TOKEN_VARIABLE_BEGIN: RETURN_IF_ERROR(parse_output(p, &n)); break;
        case TOKEN_BLOCK_BEGIN:
            RETURN_IF_ERROR(parse_advance(p));
            if (is_end(p, ends)) return STATUS_IS_OK;
            RETURN_IF_ERROR(parse_statement(p, &n));
            break;
        default: return parse_unexpected(p, "text or a tag");
        }
        RETURN_IF_ERROR(node_list_add(p, out, n));
    }
}

status parse_template(parser *p, node **out)
{
    RETURN_IF_ERROR(parse_advance(p));
    RETURN_IF_ERROR(parse_advance(p));
    *out = parse_node(p, NODE_BODY, 1);
    if (!*out) return parse_no_memory(p);
    RETURN_IF_ERROR(parse_body(p, NULL, &(*out)->items));
    const node *n = p->unknown;
    if (!n) return STATUS_IS_OK;
    const char *kind = n->kind == NODE_FILTER ? "filter" : n->kind == NODE_TEST ? "test" : "method";
    return lex_fail(p->err, STATUS_UNSUPPORTED, n->line, "unknown %s '%.*s'", kind,
                    n->name.n > 200 ? 200 : (int)n->name.n, n->name.s);
}
