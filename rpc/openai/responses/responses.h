/* OpenAI's Responses API over chat (private to rpc/openai).
 *
 * parse.c  a body as a chat's body      items.c  items of `input` as messages
 * write.c  events, and the response     store.c  responses that later requests go on from */
#ifndef RPC_OPENAI_RESPONSES_RESPONSES_H
#define RPC_OPENAI_RESPONSES_RESPONSES_H

#include "rpc/openai/responses/store.h"
#include "rpc/openai/surface.h"

/* An answer that is written. The parser fills the first members. */
typedef struct response_writer {
    service *s;
    char id[RESPONSE_ID_BYTES];
    char identity[SERVICE_IDENTITY_BYTES];
    bool store;              // keep the response
    stored_response *before; // a reference; NULL = none
    strbuf turn;             // the request's own messages, a JSON list
    strbuf echo;             // members that repeat the request
    char *session, *salt;    // NULL = none

    const char *model;                                                // the call's
    int64_t created;                                                  // seconds since 1970
    uint32_t sequence;                                                // of the next event
    enum { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } item; // that is written
    uint32_t n_items;                                                 // begun
    strbuf text, name, call_id;                                       // of the item
    strbuf output;                  // items that ended, with commas between them
    strbuf said, thought, calls;    // the whole answer, as the next turn's message has it
    uint32_t n_tokens, n_reasoning; // tokens so far; those up to the last of the reasoning
    strbuf reports;                 // members: retention, retrieval
    strbuf body;                    // the whole response
} response_writer;

extern const openai_form response_form;

/* Adds `input` to the messages. */
status response_read_input(const json_t *input, chat_turns *turns, error *err);

#endif
