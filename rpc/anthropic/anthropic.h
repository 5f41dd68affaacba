/* Anthropic's Messages API over chat (private to rpc/): bodies into calls, outputs into messages or
 * events. What a model's answer is made of is found by rpc/openai.
 *
 * parse.c  a body as a chat's body      blocks.c  content blocks as messages
 * write.c  events, and the message      error.c   errors in Anthropic's form */
#ifndef RPC_ANTHROPIC_ANTHROPIC_H
#define RPC_ANTHROPIC_ANTHROPIC_H

#include "rpc/openai/surface.h"

/* Parse the body of POST /v1/messages. False: *err is filled, and *out needs no destroy. */
bool anthropic_parse(service *s, const char *body, size_t n, openai_call *out, openai_error *err);
/* POST /v1/messages/count_tokens: {"input_tokens": N}. */
bool anthropic_count_tokens(service *s, const char *body, size_t n, strbuf *out, openai_error *err);
/* Appends {"type": "error", "error": {"type", "message"}, "request_id"}; id: NULL = none. */
void anthropic_put_error(const openai_error *e, const char *id, strbuf *out);

#endif
