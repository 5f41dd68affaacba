/* The state of one render, its limits, and the tables of builtins. */
#ifndef TEXT_CHAT_TEMPLATE_RENDER_H
#define TEXT_CHAT_TEMPLATE_RENDER_H

#include "text/chat_template.h"
#include "text/chat_template/value.h"

/* Deepest nesting of expressions, statements, calls and containers: bounds the C stack. */
enum { TMPL_MAX_DEPTH = 512 };

struct render {
    arena *mem;
    uint64_t steps_left;
    unsigned depth;
    strbuf *out;      /* present output: the caller's, or a capture's */
    size_t out_limit; /* largest allowed size of `out` */
    size_t max_output;
    int64_t now_unix;
    const dict *vars;
    unsigned line; /* line of the node being evaluated */
    status_code failed;
    error *err;
};

/* ---- render.c ---- */

/* Each returns false, so that callers write `return render_fail(…)`. The first failure wins. */
bool render_fail(render *r, status_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Like render_fail, with text from the template in place of a format: one line, cut to fit. */
bool render_fail_text(render *r, text message);
/* Counts one step and `work` bytes or items of work. Fails when the limit is reached. */
bool render_step(render *r, size_t work);
bool render_enter(render *r);
static inline void render_leave(render *r) { r->depth--; }
/* Allocates zeroed memory of the render; NULL after failing. */
void *render_alloc(render *r, size_t n, size_t size);
bool render_write(render *r, text t);

/* A string under construction. */
typedef struct builder {
    render *r;
    char *s;
    size_t n;
    size_t capacity;
    bool failed;
} builder;

builder builder_new(render *r);
void builder_add(builder *b, text t);
void builder_char(builder *b, char c);
void builder_code_point(builder *b, uint32_t cp);
void builder_printf(builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets *out to the finished string. False when memory ran out on the way. */
bool builder_finish(builder *b, value *out);

/* ---- builtins: filters, tests, methods and functions are rows of the same shape ---- */

typedef struct keyword_value {
    text name;
    value value;
} keyword_value;

typedef struct call_args {
    const value *positional;
    size_t n_positional;
    const keyword_value *keywords;
    size_t n_keywords;
} call_args;

enum { BUILTIN_MAX_ARGS = 6 };

/* A builtin. `self` is the value that is filtered, tested, or whose method is called. args has one
 * entry for each name in `params` (V_MISSING when not given). If params is NULL, only `call` has
 * the arguments, as written. */
struct builtin {
    const char *name;
    const char *params; /* "sep maxsplit"; NULL: any */
    unsigned required;  /* how many of `params` must be given */
    bool (*fn)(render *r, value self, const value *args, const call_args *call, value *out);
    unsigned kinds; /* methods: a mask of 1 << value_kind */
};

/* A table ends with a row without a name. */
extern const builtin tmpl_filters_text[];
extern const builtin tmpl_filters_items[];
extern const builtin tmpl_tests[];
extern const builtin tmpl_methods[];
extern const builtin tmpl_functions[];

const builtin *tmpl_find_filter(text name);
const builtin *tmpl_find_test(text name);
const builtin *tmpl_find_function(text name);
/* Finds a method; kind V_MISSING finds a method of any kind. */
const builtin *tmpl_find_method(text name, value_kind kind);

/* Binds arguments to parameters and calls. */
bool tmpl_call_builtin(render *r, const builtin *b, value self, const call_args *call, value *out);
/* Like tmpl_call_builtin, for tests, whose result is true or false. */
bool tmpl_call_test(render *r, const builtin *b, value self, const call_args *call, bool *out);

/* ---- arguments ---- */

static inline bool arg_given(value v) { return v.kind != V_MISSING; }
static inline bool arg_truth(value v) { return v.kind != V_MISSING && value_truth(v); }
/* Reads a string argument; V_MISSING and None leave *out unchanged. */
bool arg_text(render *r, const char *name, value v, text *out);
bool arg_int(render *r, value v, int64_t *out);

/* ---- access.c ---- */

/* obj.name, obj[key] and obj[start:stop:step] with Jinja's rules. */
bool value_get_attr(render *r, value obj, text name, value *out);
/* Whether lists or mappings have a method of this name that Jinja's sandbox hides. */
bool value_hides(text name);
bool value_get_item(render *r, value obj, value key, value *out);
bool value_slice(render *r, value obj, value start, value stop, value step, value *out);
/* Follows a path such as "a.b.0", as filters take it: each part by value_get_item. */
bool value_get_path(render *r, value obj, value path, value *out);

/* ---- operators.c ---- */

typedef enum binary_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW } binary_op;
bool value_binary(render *r, binary_op op, value a, value b, value *out);
bool value_negate(render *r, value v, value *out);
/* Python's format % arguments. */
bool value_percent_format(render *r, text format, value arguments, value *out);
/* Python's format.format(arguments). */
bool value_brace_format(render *r, text format, const call_args *call, value *out);

/* ---- print.c: Python's str(), repr() and json.dumps() ---- */

bool value_str(render *r, value v, value *out);
bool value_repr(render *r, value v, value *out);
void print_value(builder *b, value v, bool repr);

typedef struct json_style {
    bool ensure_ascii;
    bool sort_keys;
    bool pretty; /* one item per line, indented by `indent` */
    text indent;
    text item_separator;
    text key_separator;
} json_style;
bool value_to_json(render *r, value v, const json_style *style, value *out);

/* ---- text.c: code points, white space, case ---- */

size_t text_length(text t);               /* code points */
size_t text_offset(text t, size_t index); /* bytes before code point `index`, at most t.n */
size_t text_char_size(text t, size_t at); /* bytes of the character at byte `at` */
bool code_point_is_space(uint32_t cp);
bool code_point_is_printable(uint32_t cp);
/* Python's strip(): white space when chars.s is NULL. */
text text_strip(text t, text chars, bool left, bool right);
/* The first position of needle at or after `from`, or SIZE_MAX. */
size_t text_find(text t, text needle, size_t from);
size_t text_rfind(text t, text needle);
enum text_case { CASE_LOWER, CASE_UPPER, CASE_CAPITALIZE, CASE_TITLE };
bool text_to_case(render *r, text t, enum text_case to, value *out);
/* str.splitlines(): the line at *at without its end; moves *at behind the end. */
bool text_next_line(text t, size_t *at, text *line);
enum text_class { CLASS_ALPHA, CLASS_ALNUM, CLASS_DIGIT, CLASS_SPACE, CLASS_LOWER, CLASS_UPPER };
/* str.isalpha() and so on. */
bool text_is_class(text t, enum text_class wanted);
bool text_replace(render *r, text t, text from, text to, int64_t count, value *out);

#endif
