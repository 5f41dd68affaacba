/* Variables at run time, in a chain of scopes, innermost first, and the state behind `loop`. */
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
    unsigned depth0;  /* depth of a recursive loop, from 0 */
    const node *loop; /* the statement */
    scope *outer;     /* the scope around it */
    value changed;    /* last arguments of loop.changed(): a tuple, or V_MISSING */
};

scope *scope_new(render *r, scope *parent);
bool scope_set(render *r, scope *s, text name, value v);
/* Looks a name up: a variable of the template, one of the caller's, a builtin function, or
 * undefined. */
bool scope_get(render *r, const scope *s, text name, value *out);

#endif
