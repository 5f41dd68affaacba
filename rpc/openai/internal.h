/* What the files of rpc/openai share (private to it). */
#ifndef RPC_OPENAI_INTERNAL_H
#define RPC_OPENAI_INTERNAL_H

#include "rpc/openai/openai.h"

/* ---- fields.c: which fields a body may have ----------------------------------------------------
 */

/* Endpoints, as bits. */
enum {
    FOR_COMPLETION = 1 << 0,
    FOR_CHAT = 1 << 1,
    FOR_TOKENIZE = 1 << 2,
    FOR_DETOKENIZE = 1 << 3,
    FOR_ANY = 15,
};

enum { FIELDS_MAX = 96 };

/* Parses a body that must be a JSON object, and refuses by name what the endpoint does not take.
 * What is left to the engine's parser is whatever `also` (room for FIELDS_MAX) does not name. */
status openai_read_body(const char *body, size_t n, unsigned endpoint, json_t **out,
                        const char **also, error *err);
/* The name of a body's "model": known, else STATUS_NOT_FOUND. The first served one when absent. */
status openai_read_model(service *s, const json_t *body, char **out, error *err);
/* Absent and null leave *out as it is. */
status openai_read_bool(const json_t *body, const char *key, bool *out, error *err);
/* An error of reading a body. */
void openai_body_error(service *s, status why, const error *err, openai_error *out);

/* ---- logprobs.c: tokens described --------------------------------------------------------------
 */

/* Tokens of one place: the one that stands there, then the likeliest. */
typedef struct token_place {
    uint32_t token;
    float logprob; // NaN = has none
    uint32_t rank;
    uint32_t n_top;
    const uint32_t *top_ids;
    const float *top_logprobs;
} token_place;

/* The four lists of a completion's logprobs, without their brackets. Tokens that are no whole
 * characters are written as OpenAI does, "bytes:\xe2\x80". */
typedef struct completion_logprobs {
    strbuf offsets, logprobs, tokens, tops;
} completion_logprobs;

void completion_logprobs_add(completion_logprobs *l, const tokenizer *t, const token_place *p,
                             uint32_t offset);
/* The object; the lists are empty afterwards. */
void completion_logprobs_take(completion_logprobs *l, strbuf *out);
size_t completion_logprobs_size(const completion_logprobs *l);
bool completion_logprobs_failed(const completion_logprobs *l);
void completion_logprobs_destroy(completion_logprobs *l);

/* One member of chat's logprobs.content; a comma before it unless out is empty. */
void chat_logprob_add(strbuf *out, const tokenizer *t, const token_place *p);
/* vLLM's prompt_logprobs: null, then {"id": {"logprob", "rank", "decoded_token"}, …}. */
void prompt_logprobs_put(strbuf *out, const tokenizer *t, const engine_prompt *p, uint32_t n_top);
token_place prompt_place(const engine_prompt *p, uint32_t at, uint32_t n_top);

/* ---- echo.c: the prompt given back
 * --------------------------------------------------------------- */

/* The text of a request's prompt, as sent or decoded. */
void echo_text(service *s, const engine_request *r, const engine_prompt *p, strbuf *out);
/* Its tokens' logprobs, with offsets into that text of `characters`. */
void echo_logprobs(service *s, const engine_request *r, const engine_prompt *p, uint32_t characters,
                   completion_logprobs *out);
uint32_t count_characters(const char *text, size_t n);

#endif
