/* OpenAI's HTTP shapes (private to rpc/): bodies in, engine requests out; outputs in, JSON or SSE
 * out. The functions are pure but for the tokenizer: no socket, no thread. The shapes are those of
 * OpenAI's API for completions and chat, with vLLM's additional fields and `retention`. */
#ifndef RPC_OPENAI_OPENAI_H
#define RPC_OPENAI_OPENAI_H

#include "rpc/service.h"

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct openai_error {
    unsigned status;        // HTTP's; 0 = no error
    const char *type;       // "BadRequestError", "NotFoundError", …; static
    char param[64];         // the field that is wrong, or ""
    char message[512];      // one line
    uint32_t retry_after_s; // 0 = no such header
} openai_error;

/* Of a refusal by the engine or a parser: status, type and param from its code and text. */
void openai_error_from(service *s, status why, const error *err, openai_error *out);
/* {"error": {"message", "type", "param", "code"}} */
void openai_error_json(const openai_error *e, strbuf *out);

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct openai_call {
    bool chat, stream, include_usage, continuous_usage, echo, return_token_ids;
    bool logprobs;           // asked for
    int32_t prompt_logprobs; // asked for by this name, not by echo; -1 = no
    char *model;             // the name asked for; malloc'd
    engine_request *requests;
    uint32_t n_requests;
    uint32_t n_choices; // of each
} openai_call;

/* Prompts in one body, and choices of all of them. */
enum { OPENAI_PROMPTS_MAX = 256, OPENAI_CHOICES_MAX = 1024 };

/* POST /v1/completions and /v1/chat/completions. On failure err is filled and nothing is left. */
bool openai_parse_completion(service *s, const char *body, size_t n, openai_call *out,
                             openai_error *err);
bool openai_parse_chat(service *s, const char *body, size_t n, openai_call *out, openai_error *err);
void openai_call_destroy(openai_call *c);

/* ---- answers --------------------------------------------------------------------------------- */

/* Outputs become a body, or SSE frames, one token a frame. */
typedef struct openai_answer openai_answer;

/* Takes over *call, whatever comes back; its requests have been submitted. id: the generation's.
 * NULL when memory is out. */
openai_answer *openai_answer_create(service *s, openai_call *call, const char *id);
void openai_answer_destroy(openai_answer *a);
/* Takes one output of g. Streaming: appends its frame to out; else out is untouched until the end.
 * After an output that failed (openai_answer_error) the rest of g is not shown: abort it. */
void openai_answer_take(openai_answer *a, const generation *g, const generation_output *o,
                        strbuf *out);
/* After the last output: usage frame and [DONE], or the whole body. */
void openai_answer_finish(openai_answer *a, strbuf *out);
bool openai_answer_streams(const openai_answer *a);
/* The error that ended a choice, or NULL: a stream has shown it, a whole body is it and has its
 * status. */
const openai_error *openai_answer_error(const openai_answer *a);
/* An error in mid-stream as a frame, with [DONE]. */
void openai_stream_error(const openai_error *e, strbuf *out);

/* ---- the small ones: body in, body out; false = err is filled ----------------------------------
 */

bool openai_tokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err);
bool openai_detokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err);
void openai_models(service *s, strbuf *out);
/* GET /v1/models/NAME */
bool openai_model(service *s, const char *name, strbuf *out, openai_error *err);
void openai_version(service *s, strbuf *out);

#endif
