/* The compiled template: a tree in an arena, and the lexer and parser that make it. */
#ifndef TEXT_CHAT_TEMPLATE_AST_H
#define TEXT_CHAT_TEMPLATE_AST_H

#include "text/chat_template/render.h"

typedef enum node_kind {
    /* Expressions. The comment of each kind names the members of a node that it uses. */
    NODE_CONST,     /* constant */
    NODE_NAME,      /* name */
    NODE_LIST,      /* items */
    NODE_TUPLE,     /* items */
    NODE_DICT,      /* items: key, value, key, value */
    NODE_ATTR,      /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    NODE_CALL,      /* a(items, keywords) */
    NODE_FILTER,    /* a | builtin(items, keywords); a NULL inside set and filter blocks */
    NODE_TEST,      /* a is builtin(items, keywords) */
    NODE_NOT,       /* a */
    NODE_NEGATE,    /* a */
    NODE_POSITIVE,  /* a */
    NODE_AND,       /* a, b */
    NODE_OR,        /* a, b */
    NODE_BINARY,    /* op: binary_op; a, b */
    NODE_CONCAT,    /* items */
    NODE_COMPARE,   /* a, then items, each a NODE_OPERAND */
    NODE_OPERAND,   /* op: compare_op; a */
    NODE_CONDITION, /* a if b else c (c may be NULL) */
    NODE_CAPTURED,  /* the text that a set or filter block rendered */
    /* Statements. */
    NODE_DATA,         /* constant */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* a: items; b: the next elif, a NODE_IF; orelse */
    NODE_FOR,          /* a: target, b: iterable, c: condition; items, orelse */
    NODE_SET,          /* a: target, b: value */
    NODE_SET_BLOCK,    /* a: target, b: filters over NODE_CAPTURED or NULL; items */
    NODE_FILTER_BLOCK, /* b: filters over NODE_CAPTURED; items */
    NODE_WITH,         /* keywords: target, value; items */
    NODE_MACRO,        /* name, parameters, items */
    NODE_CALL_BLOCK,   /* a: the call; parameters, items: the body */
    NODE_BODY,         /* items, in a scope of its own when `scoped` */
    NODE_BREAK,
    NODE_CONTINUE,
    /* Assignment targets. */
    NODE_TARGET_NAME,      /* name */
    NODE_TARGET_ATTRIBUTE, /* name.attribute */
    NODE_TARGET_TUPLE,     /* items */
} node_kind;

typedef enum compare_op {
    COMPARE_EQ,
    COMPARE_NE,
    COMPARE_LT,
    COMPARE_LE,
    COMPARE_GT,
    COMPARE_GE,
    COMPARE_IN,
    COMPARE_NOT_IN,
} compare_op;

typedef struct keyword_node {
    text name;
    node *value;  /* a parameter's default, or NULL */
    node *target; /* NODE_WITH */
} keyword_node;

typedef struct node_list {
    node **items;
    uint32_t n;
    uint32_t capacity;
} node_list;

typedef struct keyword_list {
    keyword_node *items;
    uint32_t n;
    uint32_t capacity;
} keyword_list;

/* Names supplied by calls that a macro's body uses. */
enum { USES_CALLER = 1, USES_VARARGS = 2, USES_KWARGS = 4 };

struct node {
    uint8_t kind; /* node_kind */
    uint8_t op;   /* binary_op or compare_op */
    uint8_t uses; /* NODE_MACRO, NODE_CALL_BLOCK */
    bool flag;    /* NODE_BODY: scoped; NODE_FOR: recursive */
    uint32_t line;
    text name;
    text attribute;
    value constant;
    const builtin *builtin;
    node *a, *b, *c;
    node_list items;
    node_list orelse;
    keyword_list keywords; /* call arguments, macro parameters, with's assignments */
};

struct chat_template {
    arena mem;
    node *body;
    text source; /* with its line ends normalised */
};

/* ---- lexer.c ---- */

typedef enum token_kind {
    TOKEN_EOF,
    TOKEN_DATA,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR, /* op: one or two characters, as in OP('/', '/') */
} token_kind;

#define OP(a, b) ((unsigned)(a) << 8 | (unsigned)(b))
#define OP1(a)   OP(a, 0)

typedef struct token {
    token_kind kind;
    uint32_t line;
    unsigned op;
    text text; /* as written; for data and strings their value */
    int64_t integer;
    double real;
} token;

enum { LEX_MAX_BRACKETS = 256 };

typedef struct lexer {
    arena *mem;
    error *err;
    const char *s; /* normalised source */
    size_t n;
    size_t pos;
    uint32_t line;
    enum { LEX_DATA, LEX_TAG, LEX_RAW, LEX_BLOCK, LEX_VARIABLE } state;
    bool line_starting; /* the last character read ended a line */
    unsigned depth;     /* open brackets */
    char brackets[LEX_MAX_BRACKETS];
} lexer;

/* Copies the source into the arena with its line ends normalised and the last one removed. */
status lex_init(lexer *l, arena *mem, const char *source, size_t n, error *err);
status lex_next(lexer *l, token *out);
/* Sets the error "chat_template:LINE: message". */
status lex_fail(error *err, status_code code, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Computes the value of a string literal from the text between its quotes (lexer_string.c). */
status lex_unescape(lexer *l, text raw, text *out);

/* ---- parser.c (statements), parser_expr.c ---- */

typedef struct parser {
    lexer lex;
    token cur;
    token next;
    arena *mem;
    error *err;
    unsigned depth;
    unsigned loops; /* for statements around the current place, within this macro */
    unsigned uses;  /* USES_*: names seen since the innermost macro began */
    /* conditional: the current place is inside an `if`, statement or expression. A name without a
     * builtin there fails only when it is evaluated, as in Jinja; elsewhere the template is
     * refused. unknown: the first such name elsewhere, or NULL. */
    bool conditional;
    const node *unknown;
} parser;

status parse_template(parser *p, node **out);
status parse_expression(parser *p, bool with_condition, node **out);
/* Parses one expression, or several with commas: a tuple. */
status parse_tuple(parser *p, bool with_condition, const char *end_name, bool parentheses,
                   node **out);
/* Parses filters after an operand (NULL: in a block); the first without its '|' when
 * `inline_first`. */
status parse_filters(parser *p, node *operand, bool inline_first, node **out);

status parse_advance(parser *p);
status parse_fail(parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
status parse_unexpected(parser *p, const char *wanted);
/* Enters one level of nesting, or refuses. */
status parse_enter(parser *p);
node *parse_node(parser *p, node_kind kind, uint32_t line); /* NULL: out of memory */
status parse_no_memory(parser *p);
status node_list_add(parser *p, node_list *l, node *item);
status keyword_list_add(parser *p, keyword_list *l, keyword_node item);
bool token_is_op(const token *t, unsigned op);
bool token_is_name(const token *t, const char *name);
/* Consumes the expected operator or name; refuses anything else. */
status parse_expect_op(parser *p, unsigned op);
status parse_expect_name(parser *p, text *out);

#endif
