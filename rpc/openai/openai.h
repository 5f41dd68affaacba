/* OpenAI's HTTP API (private to rpc/): turns bodies into engine requests, and outputs into JSON or
 * SSE. The functions use the service and its tokenizer, but no socket and no thread. Bodies have
 * the shapes of OpenAI's completions and chat, with vLLM's additional fields and `retention`. */
#ifndef RPC_OPENAI_OPENAI_H
#define RPC_OPENAI_OPENAI_H

#include "rpc/service.h"

/* Makes what the endpoints share, with the service's options; false when memory is out. */
bool openai_open(service *s);
void openai_close(service *s);

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct openai_error {
    unsigned status;        // HTTP status; 0 = no error
    const char *type;       // "BadRequestError", "NotFoundError", …; static
    const char *code;       // NULL = the status; static
    char param[64];         // the field that is wrong, or ""
    char message[512];      // one line
    uint32_t retry_after_s; // 0 = no Retry-After header
} openai_error;

/* How another API than chat and completions writes answers (surface.h). */
typedef struct openai_form openai_form;

/* Turns chat's name of a field into the API's own. */
typedef struct openai_name {
    const char *chat, *own;
    bool whole; // own stands for all of the param that begins with chat, its members too
} openai_name;

/* Renames the fields that an error names; the last of the names has no `chat`. */
void openai_rename(const openai_name *names, openai_error *e);
/* Names the prompt of completions, or the input of embeddings, that an error is about by its place
 * among those of the body: "prompt: …" becomes "prompt[1]: …". */
void openai_place_prompt(const char *name, uint32_t n_prompts, uint32_t at, openai_error *e);
/* Fills *out for an error of the engine or a parser: status, type and param follow from the code
 * and the text. */
void openai_error_from(service *s, status why, const error *err, openai_error *out);
/* Appends {"error": {"message", "type", "param", "code"}}. */
void openai_error_json(const openai_error *e, strbuf *out);

/* Limits what is in a JSON body before it is parsed, which takes memory and time. */
status openai_check_amount(const service *s, const char *body, size_t n, error *err);

/* ---- requests -------------------------------------------------------------------------------- */

/* Checks the names of parsers in the options. */
status openai_check_parsers(const rpc_options *o, error *err);
/* Chooses the parsers by the options and the model's chat template. */
void openai_choose_parsers(service *s);

/* The form of the vectors in the answer of POST /v1/embeddings. */
typedef struct openai_vectors {
    uint32_t pooling; // step_pooling; POOLING_NONE = the call is of another endpoint
    bool base64;      // little-endian f32 in base64 instead of a list of numbers
    bool raw;         // not divided by their L2 norm
} openai_vectors;

typedef struct openai_call {
    bool chat, stream, include_usage, continuous_usage, echo, return_token_ids;
    bool logprobs;           // the request asks for logprobs
    bool tokens_by_id;       // logprobs name tokens by "token_id:5"
    int32_t prompt_logprobs; // value of the field of this name (echo does not count); -1 = none
    const struct tool_parser *tools; // finds calls in the answer; NULL = the text stays as it is
    bool one_call;                   // at most one call in an answer
    const struct reasoning_parser *reasoning; // finds reasoning in the answer; NULL = there is none
    bool hides_reasoning;                     // the answer leaves it out
    char id[SERVICE_ID_BYTES_MAX + 1];        // the field request_id; "" = not given
    char *model;                              // the name asked for; malloc'd
    engine_request *requests;
    uint32_t n_requests;
    uint32_t n_choices;  // of each request
    uint32_t n_unseen;   // how many of them the answer leaves out: those of the lowest mean logprob
    size_t stored_bytes; // of a stored conversation, beside the body's
    const openai_form *form; // NULL = chat's or completions' own
    void *writer;            // form's
    openai_vectors vectors;  // given: the answer is one of openai_embeddings
} openai_call;

/* The most prompts in one body, and the most choices over all prompts. */
enum { OPENAI_PROMPTS_MAX = 256, OPENAI_CHOICES_MAX = 1024 };

/* Parse bodies of POST /v1/completions and /v1/chat/completions. False: *err is filled, and *out
 * needs no destroy. */
bool openai_parse_completion(service *s, const char *body, size_t n, openai_call *out,
                             openai_error *err);
bool openai_parse_chat(service *s, const char *body, size_t n, openai_call *out, openai_error *err);
/* POST /v1/responses, of this identity, whose stored responses it may go on from. */
bool openai_parse_response(service *s, const char *identity, const char *body, size_t n,
                           openai_call *out, openai_error *err);
/* POST /v1/embeddings */
bool openai_parse_embeddings(service *s, const char *body, size_t n, openai_call *out,
                             openai_error *err);
/* How errors of the call name fields; NULL: as chat and completions do. */
const openai_name *openai_names_of(const openai_call *c);
void openai_call_destroy(openai_call *c);

/* ---- answers --------------------------------------------------------------------------------- */

/* Builds an answer from outputs: one body, or SSE frames with one token each. */
typedef struct openai_answer openai_answer;

/* Takes over *call in every case; its requests have been submitted. id: the generation's. NULL when
 * memory is out. */
openai_answer *openai_answer_create(service *s, openai_call *call, const char *id);
void openai_answer_destroy(openai_answer *a);
/* Takes one output of g. A streaming answer appends its frame to out; a whole body is written by
 * openai_answer_finish. After an output that failed (openai_answer_error) the rest of g is not
 * shown: abort it. */
void openai_answer_take(openai_answer *a, const generation *g, const generation_output *o,
                        strbuf *out);
/* Call it after the last output: appends the usage frame and [DONE], or the whole body. */
void openai_answer_finish(openai_answer *a, strbuf *out);
bool openai_answer_streams(const openai_answer *a);
/* The error that ended a choice, or NULL. A stream has shown the error already; otherwise the error
 * is the whole answer. */
const openai_error *openai_answer_error(const openai_answer *a);
/* The text that ends a stream when memory is out; static. */
const char *openai_answer_starved(const openai_answer *a);

/* ---- embeddings (embeddings.c) --------------------------------------------------------------- */

/* Builds the answer to a call whose vectors are given, which comes whole. The functions are those
 * of openai_answer. */
typedef struct openai_embeddings openai_embeddings;
openai_embeddings *openai_embeddings_create(service *s, openai_call *call);
void openai_embeddings_destroy(openai_embeddings *e);
void openai_embeddings_take(openai_embeddings *e, const generation *g, const generation_output *o);
void openai_embeddings_finish(openai_embeddings *e, strbuf *out);
const openai_error *openai_embeddings_error(const openai_embeddings *e);

/* ---- small endpoints: body in, body out; false = *err is filled ------------------------------ */

bool openai_tokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err);
bool openai_detokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err);
/* The tokens of the prompts of a body for chat or completions, as vLLM's routes of the name give
 * them to routers. */
bool openai_render(service *s, bool chat, const char *body, size_t n, strbuf *out,
                   openai_error *err);
/* The configuration of the model's tokenizer, as Hugging Face writes it. */
bool openai_tokenizer_info(service *s, strbuf *out, openai_error *err);
void openai_models(service *s, strbuf *out);
/* GET /v1/models/NAME */
bool openai_model(service *s, const char *name, strbuf *out, openai_error *err);
/* DELETE /v1/sessions/ID, of this identity and salt (NULL = none). */
bool openai_delete_session(service *s, const char *identity, const char *salt, const char *id,
                           strbuf *out, openai_error *err);
/* GET and DELETE /v1/responses/ID, of this identity. */
bool openai_response(service *s, const char *identity, const char *id, strbuf *out,
                     openai_error *err);
bool openai_delete_response(service *s, const char *identity, const char *id, strbuf *out,
                            openai_error *err);
void openai_version(service *s, strbuf *out);

#endif
