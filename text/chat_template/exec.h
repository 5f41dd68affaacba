/* Functions that evaluation (eval.c) and execution (exec.c) call in each other. */
#ifndef TEXT_CHAT_TEMPLATE_EXEC_H
#define TEXT_CHAT_TEMPLATE_EXEC_H

#include "text/chat_template/ast.h"
#include "text/chat_template/scope.h"

bool eval_node(render *r, scope *s, const node *n, value *out);
bool eval_call_macro(render *r, const callable *c, const call_args *call, value *out);
/* Makes the call of a call block, with `caller` as an additional keyword argument. */
bool eval_call_block(render *r, scope *s, const node *call, value caller, value *out);
/* loop(items): renders the loop's body again over other items. */
bool exec_recurse(render *r, loop_state *loop, value items, value *out);
bool exec_template(render *r, const node *body);

#endif
