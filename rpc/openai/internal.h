/* Declarations shared by the files of rpc/openai (private to it). */
#ifndef RPC_OPENAI_INTERNAL_H
#define RPC_OPENAI_INTERNAL_H

#include "rpc/openai/surface.h"

/* ---- fields.c -------------------------------------------------------------------------------- */

/* also [FIELDS_MAX] gets the fields of the endpoint that the engine's parser must skip. */
void openai_list_fields(unsigned endpoint, const char **also);

/* Reads the fields that are variables of the chat template into r, whose other fields have been
 * read, and checks that r may bring a template of its own. */
status openai_read_template(service *s, const json_t *body, engine_request *r, error *err);

/* The end of a stream when memory is out (error.c). */
extern const char openai_starved[];

/* ---- tool_choice.c: answers that are held to tool calls -------------------------------------- */

typedef struct tool_choice {
    enum { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_FORCED } kind;
    const char *name; // of the one function that must be called, the body's; NULL = any
} tool_choice;

status openai_read_tool_choice(const json_t *body, tool_choice *out, error *err);
/* Holds r's answer to calls of the tools, in the parser's form and with arguments of their schemas:
 * one call, or, with `many` and no name, one or more. */
status openai_force_calls(const struct tool_parser *parser, const tool_choice *choice,
                          const json_t *tools, bool many, engine_request *r, error *err);

/* ---- logprobs.c: tokens with their logprobs -------------------------------------------------- */

/* One position in a text: its token, and the likeliest tokens there. */
typedef struct token_place {
    uint32_t token;
    bool by_id;    // tokens are written as "token_id:5"
    float logprob; // NaN = none
    uint32_t rank;
    uint32_t n_top;
    const uint32_t *top_ids;
    const float *top_logprobs;
} token_place;

/* The four lists of a completion's logprobs, without their brackets. A token that is not made of
 * whole characters is written as OpenAI writes it: "bytes:\xe2\x80". */
typedef struct completion_logprobs {
    strbuf offsets, logprobs, tokens, tops;
} completion_logprobs;

void completion_logprobs_add(completion_logprobs *l, const tokenizer *t, const token_place *p,
                             uint32_t offset);
/* Appends the JSON object to out and empties the lists. */
void completion_logprobs_take(completion_logprobs *l, strbuf *out);
size_t completion_logprobs_size(const completion_logprobs *l);
bool completion_logprobs_failed(const completion_logprobs *l);
void completion_logprobs_destroy(completion_logprobs *l);

/* Appends one member of chat's logprobs.content, with a comma before it unless out is empty. */
void chat_logprob_add(strbuf *out, const tokenizer *t, const token_place *p);
/* Appends vLLM's prompt_logprobs: null, then {"id": {"logprob", "rank", "decoded_token"}, …}. */
void prompt_logprobs_put(strbuf *out, const tokenizer *t, const engine_prompt *p, uint32_t n_top);
token_place prompt_place(const engine_prompt *p, uint32_t at, uint32_t n_top);

/* ---- tokenizer_info.c ------------------------------------------------------------------------ */

/* The answer of openai_tokenizer_info for the model in this folder, as the caller's memory. NULL:
 * the folder has no file that can be read. */
char *tokenizer_info_read(const char *dir);

/* ---- echo.c: the prompt in the answer -------------------------------------------------------- */

/* Appends the text of a request's prompt, as it was sent, or decoded from token ids. */
void echo_text(service *s, const engine_request *r, const engine_prompt *p, strbuf *out);
/* Adds the logprobs of the prompt's tokens, with offsets into the text of echo_text, which has
 * `characters` characters. by_id: as in token_place. */
void echo_logprobs(service *s, const engine_request *r, const engine_prompt *p, uint32_t characters,
                   bool by_id, completion_logprobs *out);
uint32_t count_characters(const char *text, size_t n);

#endif
