/* A chat's text taken apart (private to rpc/openai): reasoning, content and tool calls of a choice.
 *
 * What is new since it was last written lies in the members; a streamed answer writes and clears
 * them at each token, a whole one writes them at the end. */
#ifndef RPC_OPENAI_TALK_H
#define RPC_OPENAI_TALK_H

#include "rpc/openai/reasoning.h"
#include "rpc/openai/tools/tools.h"

/* A tool call, or what is new of it. */
typedef struct talk_call {
    uint32_t number; // 0, 1, …
    bool begins;     // the call begins here
    strbuf before;   // content between the call in front, or the news' start, and this one
    strbuf name, arguments;
} talk_call;

typedef struct talk_options {
    const reasoning_parser *reasoning; // NULL = there is none
    bool begun;                        // the prompt ends with reasoning's begin mark
    bool hidden;                       // reasoning is left out
    const tool_parser *tools;          // NULL = none
    bool one_call;                     // tool calls but the first are left out
    uint64_t seed;                     // of the ids of calls; the same for no other choice
} talk_options;

typedef struct talk {
    talk_options o;
    reasoning_reader thinker;
    tool_reader reader;
    strbuf reasoning, content; // content: what is behind the last call
    talk_call *calls;          // [n_calls]
    uint32_t n_calls, room;
    uint32_t n_begun; // calls begun in all
    bool skipping;    // the call that is read is left out
    bool failed;
} talk;

/* t must not be moved afterwards. */
void talk_init(talk *t, const talk_options *o);
void talk_take(talk *t, const char *text, size_t n);
void talk_end(talk *t);
/* True when there is nothing new. */
bool talk_is_empty(const talk *t);
void talk_clear(talk *t);
size_t talk_bytes(const talk *t);
bool talk_failed(const talk *t);
void talk_destroy(talk *t);

/* Appends the id of a call. */
void talk_put_id(const talk *t, uint32_t number, strbuf *out);
/* Append the members of a delta (without braces) and those of a message, in OpenAI's form. */
void talk_put_delta(const talk *t, bool first, strbuf *out);
void talk_put_message(const talk *t, strbuf *out);

#endif
