/* Variables at run time: a chain of scopes, innermost first; and the state behind `loop`. */
#ifndef TEXT_CHAT_TEMPLATE_SCOPE_H
#define TEXT_CHAT_TEMPLATE_SCOPE_H

#include "text/chat_template/render.h"

typedef struct binding {
    text name;
    value value;
} binding;

struct scope {
    scope *parent;
    binding *items;
    size_t n;
    size_t capacity;
};

struct loop_state {
    const value *items;
    size_t n;
    size_t index0;
    unsigned depth0;  /* of a recursive loop */
    const node *loop; /* the statement */
    scope *outer;     /* the scope around it */
    value changed;    /* what loop.changed() was given last: a tuple, or V_MISSING */
};

scope *scope_new(render *r, scope *parent);
bool scope_set(render *r, scope *s, text name, value v);
/* A template's variable, the caller's, a builtin function, or undefined. */
bool scope_get(render *r, const scope *s, text name, value *out);

#endif
