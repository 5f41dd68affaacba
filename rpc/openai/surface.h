/* How other APIs answer through chat (private to rpc/): /v1/responses and /v1/messages.
 *
 * What     such an API reads a body by the table of fields (fields.c), makes a chat's body of it,
 *          with messages built by chat_turns, and has openai_read_chat make the call. The call's
 *          `form` writes what the answer is made of: reasoning, text and calls, which chat's own
 *          readers found. Nothing about sampling, templates or tools is known here.
 * Owner    a call owns its writer. Functions that take a json_t leave the caller's reference.
 * Errors   texts begin with "request: FIELD: …"; openai_rename turns chat's names of fields into
 *          the API's own. */
#ifndef RPC_OPENAI_SURFACE_H
#define RPC_OPENAI_SURFACE_H

#include "rpc/openai/openai.h"
#include "rpc/openai/talk.h"

/* ---- bodies (fields.c) ----------------------------------------------------------------------- */

/* Endpoints, as bits. */
enum {
    FOR_COMPLETION = 1 << 0,
    FOR_CHAT = 1 << 1,
    FOR_TOKENIZE = 1 << 2,
    FOR_DETOKENIZE = 1 << 3,
    FOR_EMBEDDINGS = 1 << 4,
    FOR_RESPONSES = 1 << 6,
    FOR_MESSAGES = 1 << 7,
};

enum { FIELDS_MAX = 192 };

/* Parses a body, which must be a JSON object, and refuses fields that the endpoint does not take,
 * by name. also [FIELDS_MAX] gets the fields that the engine's parser must skip. */
status openai_read_body(const service *s, const char *body, size_t n, unsigned endpoint,
                        json_t **out, const char **also, error *err);
/* Reads a body's "model", or the first served name when it is absent. STATUS_NOT_FOUND: the model
 * is not served by this name. */
status openai_read_model(service *s, const json_t *body, char **out, error *err);
/* Reads a boolean field; when it is absent or null, *out stays as it is. */
status openai_read_bool(const json_t *body, const char *key, bool *out, error *err);
/* Fills *out for an error in a body. */
void openai_body_error(service *s, status why, const error *err, openai_error *out);

/* Limits what is in the stored turns of a conversation, one after another: *lists counts over all
 * of them. */
status openai_check_stored(const char *turn, size_t n, size_t *lists, error *err);

/* ---- calls (parse.c) ------------------------------------------------------------------------- */

/* Makes a call of a chat's body, whose fields have been checked. *out is zeroed but for `form` and
 * `writer`; after an error it needs openai_call_destroy. */
status openai_read_chat(service *s, json_t *body, openai_call *out, error *err);
/* Makes a call of an embeddings' body, whose texts are in "prompt"; otherwise as openai_read_chat,
 * with `vectors` filled too. */
status openai_read_inputs(service *s, json_t *body, openai_call *out, error *err);
/* A body without the fields `also`: what is left goes to the engine's parser, and is refused where
 * chat alone has such a field. New reference. */
status openai_engine_fields(const json_t *body, const char *const *also, json_t **out, error *err);
/* The tokens of a chat's prompt, as the call would have it. */
status openai_count_tokens(service *s, const openai_call *call, size_t *out, error *err);

/* ---- conversations (turns.c) ----------------------------------------------------------------- */

/* A list of chat's messages. The functions return NULL or do nothing once memory is out (failed).
 * Contents are lists of text parts. The messages are complete once turns_end was called. */
typedef struct chat_turns {
    json_t *messages;
    json_t *thinker;  // the message to which `reasoning` belongs, borrowed; NULL = none
    strbuf reasoning; // gathered in one buffer: a client may send it in very many parts
    bool failed;
} chat_turns;

void turns_init(chat_turns *t);
void turns_destroy(chat_turns *t);
/* A new message, or the last one if it has the role and `joins`. Borrowed. */
json_t *turns_open(chat_turns *t, const char *role, bool joins);
void turns_add_text(chat_turns *t, json_t *message, const char *text, size_t n);
/* Appends to the reasoning of an assistant's message. */
void turns_add_reasoning(chat_turns *t, json_t *message, const char *text, size_t n);
/* Adds a call; arguments are JSON in a string of n bytes. */
void turns_add_call(chat_turns *t, json_t *message, const char *id, const char *name,
                    const char *arguments, size_t n);
/* Adds the text of a content: a string, or a list of parts of one of the types (a NULL-terminated
 * list). Other types are refused by name. */
status turns_add_content(chat_turns *t, json_t *message, const json_t *content,
                         const char *const *types, const char *where, error *err);
/* A new message of the role "tool". Borrowed. */
json_t *turns_open_result(chat_turns *t, const char *call_id);
/* Makes one of the system messages in front, since templates read no second one. */
void turns_join_systems(chat_turns *t);
/* Completes the messages, to which more may be added. */
status turns_end(chat_turns *t, error *err);

/* A member of an object that must be a string with at least one byte and no NUL. */
status turns_need_text(const json_t *object, const char *key, const char *where, const char **out,
                       error *err);

/* ---- answers (answer.c) ---------------------------------------------------------------------- */

typedef struct form_begin {
    const openai_call *call; // its model, and request 0
    const char *id;          // the generation's
    uint32_t prompt_tokens;
} form_begin;

typedef struct form_end {
    engine_finish finish;
    const char *stop_string; // that ended the answer, or NULL
    engine_usage usage;
    const retention_report *report;  // NULL = none
    const retrieval_totals *reading; // NULL = none
    const engine_transfer *transfer; // NULL = none
} form_end;

/* How an API writes an answer, which has one choice. What the functions append to `out` is sent
 * when the call streams, and dropped when it does not. They set out->failed when memory is out. */
struct openai_form {
    const openai_name *names; // the last one has no `chat`
    void (*begin)(void *writer, const form_begin *b, strbuf *out);
    /* The new part of the answer lies in t; called for each token. */
    void (*take)(void *writer, const talk *t, strbuf *out);
    void (*end)(void *writer, const form_end *e, strbuf *out);
    /* An error in mid-stream. */
    void (*fail)(void *writer, const openai_error *why, strbuf *out);
    void (*finish)(void *writer, strbuf *out); // appends the whole body
    size_t (*held)(const void *writer);        // bytes in memory
    const char *starved;                       // ends a stream when memory is out
    void (*destroy)(void *writer);
};

#endif
