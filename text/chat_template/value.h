/* Values of the template language: Python's, as far as templates can see them.
 *
 * A value is 16 bytes and passed by value; its data lives in the arena of the render (or, for
 * constants, of the compiled template). Containers never change once another value can see them,
 * with one exception, as in Jinja: the attributes of a namespace. Strings are UTF-8, counted in
 * bytes here and in code points wherever a template looks. */
#ifndef TEXT_CHAT_TEMPLATE_VALUE_H
#define TEXT_CHAT_TEMPLATE_VALUE_H

#include "base/base.h"

typedef struct render render;
typedef struct value value;
typedef struct builtin builtin;
typedef struct node node;
typedef struct scope scope;
typedef struct loop_state loop_state;

typedef enum value_kind {
    V_MISSING, /* an argument that was not given; templates never see it */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_NAMESPACE,
    V_RANGE,
    V_VIEW,     /* dict.keys(), .values(), .items() */
    V_ITER,     /* a generator: its items can be taken once */
    V_LOOP,     /* `loop` inside a for */
    V_CALLABLE, /* macro, caller, function, bound method */
} value_kind;

/* A borrowed piece of text. */
typedef struct text {
    const char *s;
    size_t n;
} text;

#define TEXT(literal) ((text){literal, sizeof(literal) - 1})

typedef struct list {
    value *items;
    size_t n;
    size_t capacity;
} list;

typedef struct dict_entry dict_entry;
typedef struct dict {
    dict_entry *entries; /* in order of insertion */
    size_t n;
    size_t capacity;
} dict;

typedef struct range {
    int64_t start, stop, step;
    size_t n;
} range;

typedef struct undefined undefined;
typedef struct view view;
typedef struct iter iter;
typedef struct callable callable;

struct value {
    uint8_t kind;  /* value_kind */
    bool safe;     /* V_STRING: made by `safe`: text added to it is escaped */
    uint32_t size; /* V_STRING: bytes */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        list *list;
        dict *dict;
        const range *range;
        const undefined *undefined;
        const view *view;
        iter *iter;
        loop_state *loop;
        const callable *callable;
    };
};

struct dict_entry {
    value key;
    value item;
};

/* Why a value is undefined, for the error when the template uses it. */
struct undefined {
    const char *hint; /* the whole message, or NULL */
    value object;     /* V_MISSING: it was a variable */
    value name;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    const dict *dict;
};

struct iter {
    value *items;
    size_t n;
    size_t next;
};

struct callable {
    const builtin *builtin; /* a function, or a method with `self` */
    value self;
    const node *macro; /* a macro, or the body of a call block */
    scope *scope;      /* where the macro was defined */
};

static inline value value_none(void) { return (value){.kind = V_NONE}; }
static inline value value_bool(bool b) { return (value){.kind = V_BOOL, .b = b}; }
static inline value value_int(int64_t i) { return (value){.kind = V_INT, .i = i}; }
static inline value value_float(double f) { return (value){.kind = V_FLOAT, .f = f}; }
static inline value value_text(text t)
{
    return (value){.kind = V_STRING, .size = (uint32_t)t.n, .s = t.s};
}
static inline text text_of(value v) { return (text){v.s, v.size}; }
static inline bool text_equal(text a, text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}
static inline bool text_is(text a, const char *s)
{
    return a.n == strlen(s) && memcmp(a.s, s, a.n) == 0;
}
static inline bool value_is_number(value v) { return v.kind >= V_BOOL && v.kind <= V_FLOAT; }
static inline bool value_is_integer(value v) { return v.kind == V_BOOL || v.kind == V_INT; }
static inline int64_t value_as_int(value v) { return v.kind == V_BOOL ? v.b : v.i; }
static inline double value_as_float(value v)
{
    return v.kind == V_FLOAT ? v.f : (double)value_as_int(v);
}

/* ---- value.c: making and taking apart. Functions that return bool fail through render (render.h)
 * ---- */

value value_undefined(render *r, const char *hint, value object, value name);
/* Fails with the message of an undefined value. */
bool value_fail_undefined(render *r, value v);
/* Python's name of the type: 'str', 'NoneType'. */
const char *value_type(value v);
bool value_truth(value v);
bool value_callable(value v);

list *list_new(render *r, size_t capacity);
bool list_push(render *r, list *l, value item);
value value_list(list *l);
value value_tuple(list *l);

dict *dict_new(render *r, size_t capacity);
/* Looks a key up. NULL when it is absent (an unhashable key is always absent). */
const value *dict_get(render *r, const dict *d, value key);
const value *dict_get_text(render *r, const dict *d, text key);
bool dict_set(render *r, dict *d, value key, value item);
bool value_hashable(value v);
value value_dict(dict *d);
bool value_view(render *r, enum view_kind kind, const dict *d, value *out);
bool value_iter(render *r, list *items, value *out);

/* Gets the items of anything that Python can iterate over; consumes a generator. */
bool value_items(render *r, value v, value **items, size_t *n);
/* len(v). */
bool value_length(render *r, value v, size_t *n);

/* Python's ==, < and in. For a > b, test whether b is less than a; the operator appears in
 * errors. */
bool value_equal(render *r, value a, value b, bool *out);
bool value_less(render *r, const char *op, value a, value b, bool *out);
bool value_contains(render *r, value container, value item, bool *out);
/* Python's sorted(), stable. keys[i] belongs to items[i]; both are reordered. */
bool value_sort(render *r, value *items, value *keys, size_t n, bool reverse);

/* Makes a deep copy of a jansson value; strings are borrowed from the document. */
bool value_from_json(render *r, const json_t *j, value *out);

#endif
