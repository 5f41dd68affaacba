/* Declarations shared by the files of rpc/anthropic (private to it). */
#ifndef RPC_ANTHROPIC_INTERNAL_H
#define RPC_ANTHROPIC_INTERNAL_H

#include "rpc/anthropic/anthropic.h"

extern const openai_form anthropic_form;

/* A writer for an answer; NULL when memory is out. */
void *anthropic_writer(void);

/* Adds `messages` to a conversation. *prefilled: the last one is the assistant's, and the answer
 * goes on with its text. */
status anthropic_read_messages(const json_t *messages, chat_turns *t, bool *prefilled, error *err);
/* Adds `system` in front. */
status anthropic_read_system(const json_t *system, chat_turns *t, error *err);

#endif
