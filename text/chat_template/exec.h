/* What evaluation and execution need of each other. */
#ifndef TEXT_CHAT_TEMPLATE_EXEC_H
#define TEXT_CHAT_TEMPLATE_EXEC_H

#include "text/chat_template/ast.h"
#include "text/chat_template/scope.h"

bool eval_node(render *r, scope *s, const node *n, value *out);
bool eval_call_macro(render *r, const callable *c, const call_args *call, value *out);
/* The call of a call block, with `caller` as one more keyword argument. */
bool eval_call_block(render *r, scope *s, const node *call, value caller, value *out);
/* Renders a loop's body again over other items: loop(items). */
bool exec_recurse(render *r, loop_state *loop, value items, value *out);
bool exec_template(render *r, const node *body);

#endif
