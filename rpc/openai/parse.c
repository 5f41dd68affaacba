/* Parses bodies of /v1/completions and /v1/chat/completions into engine requests. */
#include "rpc/openai/internal.h"
#include "rpc/openai/reasoning.h"
#include "rpc/openai/tools/tools.h"

#include <stdlib.h>
#include <string.h>

enum {
    COMPLETION_MAX_TOKENS = 16,          // OpenAI's default
    SHARED_BYTES_MAX = 16 * 1024 * 1024, // copies of shared fields, over all prompts
};

/* A body being read. */
typedef struct reading {
    service *s;
    json_t *body;
    const char *also[FIELDS_MAX];
    openai_call *call;
} reading;

static status refuse_body(error *err, const char *text)
{
    return error_set(err, STATUS_INVALID, "request: %s", text);
}

/* A member of the body; NULL when it is absent or null. */
static const json_t *body_member(const reading *in, const char *key)
{
    const json_t *v = json_object_get(in->body, key);
    return v && !json_is_null(v) ? v : NULL;
}

/* ---- streaming ------------------------------------------------------------------------------- */

static status read_stream(const reading *in, error *err)
{
    openai_call *c = in->call;
    RETURN_IF_ERROR(openai_read_bool(in->body, "stream", &c->stream, err));
    const json_t *options = body_member(in, "stream_options");
    if (!options) return STATUS_IS_OK;
    if (!json_is_object(options)) return refuse_body(err, "stream_options: must be an object");
    if (!c->stream)
        return refuse_body(err, "stream_options: can only be given when stream is true");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)options, key, value)
    {
        if (strcmp(key, "include_usage") != 0 && strcmp(key, "continuous_usage_stats") != 0 &&
            !(strcmp(key, "include_obfuscation") == 0 && json_is_false(value)))
            return error_set(err, STATUS_INVALID, "request: stream_options.%.40s is not supported",
                             key);
        if (!json_is_boolean(value) && !json_is_null(value))
            return error_set(err, STATUS_INVALID,
                             "request: stream_options.%.40s: must be true or false", key);
    }
    c->include_usage = json_is_true(json_object_get(options, "include_usage"));
    c->continuous_usage = json_is_true(json_object_get(options, "continuous_usage_stats"));
    return STATUS_IS_OK;
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static status read_count(const reading *in, const char *key, bool *given, error *err)
{
    const json_t *v = body_member(in, key);
    json_int_t n = json_integer_value(v);
    *given = v != NULL;
    if (v && (!json_is_integer(v) || n < 0 || n > SAMPLE_LOGPROBS_MAX))
        return error_set(err, STATUS_INVALID, "request: %s: must be an integer in 0 .. %d", key,
                         SAMPLE_LOGPROBS_MAX);
    return STATUS_IS_OK;
}

/* Checks the form of logprobs for this endpoint: the engine's parser takes the forms of both. */
static status read_logprobs(const reading *in, error *err)
{
    openai_call *c = in->call;
    bool top = false;
    if (!c->chat) return read_count(in, "logprobs", &c->logprobs, err);
    RETURN_IF_ERROR(openai_read_bool(in->body, "logprobs", &c->logprobs, err));
    RETURN_IF_ERROR(read_count(in, "top_logprobs", &top, err));
    if (!c->logprobs && top && json_integer_value(body_member(in, "top_logprobs")) > 0)
        return refuse_body(err, "top_logprobs: needs logprobs to be true");
    return STATUS_IS_OK;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Sets the prompt logprobs that echo needs, and checks that a request which generates nothing asks
 * for some output. */
static status settle_scoring(const reading *in, engine_request *r, error *err)
{
    openai_call *c = in->call;
    if (c->vectors.pooling) {
        r->pooling = c->vectors.pooling;
        r->score_only = true;
        r->max_tokens = 0;
        return STATUS_IS_OK;
    }
    if (c->echo && r->truncate_prompt_tokens)
        return refuse_body(err, "truncate_prompt_tokens: cannot be combined with echo");
    if (!c->logprobs) r->logprobs = -1;
    c->prompt_logprobs = r->prompt_logprobs;
    if (c->stream && r->prompt_logprobs >= 0)
        return refuse_body(err, "prompt_logprobs: cannot be streamed");
    if (c->echo && c->logprobs) r->prompt_logprobs = larger(r->prompt_logprobs, r->logprobs);
    if (c->echo && r->score_only) r->prompt_logprobs = larger(r->prompt_logprobs, 0);
    if (r->score_only && r->prompt_logprobs < 0)
        return refuse_body(err,
                           "max_tokens: 0 generates nothing: it needs echo or prompt_logprobs");
    return STATUS_IS_OK;
}

/* ---- choices --------------------------------------------------------------------------------- */

/* best_of: more choices are generated than the answer has. They are compared by their logprobs. */
static status read_best_of(const reading *in, engine_request *r, error *err)
{
    openai_call *c = in->call;
    const json_t *v = body_member(in, "best_of");
    json_int_t n = json_integer_value(v);
    uint32_t most = in->s->o.model.max_batch;
    if (most > ENGINE_N_MAX) most = ENGINE_N_MAX;
    if (!v || (json_is_integer(v) && n == r->n)) return STATUS_IS_OK;
    if (!json_is_integer(v) || n < r->n || n > most)
        return error_set(err, STATUS_INVALID, "request: best_of: must be an integer in n .. %u",
                         most);
    if (c->stream)
        return refuse_body(err,
                           "best_of: must equal n in a stream, because only the end tells which "
                           "choices are best");
    c->n_unseen = (uint32_t)n - r->n;
    r->n = (uint32_t)n;
    r->logprobs = larger(r->logprobs, 0);
    return STATUS_IS_OK;
}

/* ---- one request ----------------------------------------------------------------------------- */

/* Reads all fields but the prompt. */
static status read_request(const reading *in, engine_request *r, error *err)
{
    engine_request_init(r, &in->s->o.model.defaults);
    if (!in->call->chat) r->open_max_tokens = COMPLETION_MAX_TOKENS;
    RETURN_IF_ERROR(engine_request_parse(in->body, "request", in->also, r, err));
    if (r->open_max_tokens && r->open_max_tokens < r->min_tokens)
        r->open_max_tokens = r->min_tokens;
    RETURN_IF_ERROR(settle_scoring(in, r, err));
    return in->call->chat ? STATUS_IS_OK : read_best_of(in, r, err);
}

static bool make_requests(openai_call *c, size_t n)
{
    c->requests = calloc(n, sizeof *c->requests);
    return c->requests != NULL;
}

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

/* ---- prompts --------------------------------------------------------------------------------- */

static status set_text(const json_t *text, engine_request *r, error *err)
{
    r->prompt_bytes = json_string_length(text);
    r->prompt = malloc(r->prompt_bytes + 1);
    if (!r->prompt) return out_of_memory(err);
    memcpy(r->prompt, json_string_value(text), r->prompt_bytes + 1);
    return STATUS_IS_OK;
}

static status set_ids(const json_t *list, engine_request *r, error *err)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > INT32_MAX) return refuse_body(err, "prompt: has no tokens");
    r->prompt_token_ids = malloc(n * sizeof *r->prompt_token_ids);
    if (!r->prompt_token_ids) return out_of_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return error_set(err, STATUS_INVALID, "request: prompt: item %zu must be a token id",
                             i);
        r->prompt_token_ids[i] = (uint32_t)id;
    }
    r->n_prompt_token_ids = (uint32_t)n;
    return STATUS_IS_OK;
}

static status set_prompt(const json_t *prompt, engine_request *r, error *err)
{
    if (json_is_string(prompt)) return set_text(prompt, r, err);
    if (json_is_array(prompt)) return set_ids(prompt, r, err);
    return refuse_body(
        err, "prompt: must be a string, a list of strings, a list of token ids, or a list of "
             "such lists");
}

/* Counts the prompts; a list of token ids is one prompt. */
static status count_prompts(const reading *in, const json_t *prompt, size_t *n, error *err)
{
    const json_t *first = json_array_get(prompt, 0);
    *n = json_is_array(prompt) && !json_is_integer(first) ? json_array_size(prompt) : 1;
    size_t most = in->s->o.model.max_requests;
    if (most == 0 || most > OPENAI_PROMPTS_MAX) most = OPENAI_PROMPTS_MAX;
    if (!prompt) return refuse_body(err, "prompt: must be given");
    if (*n == 0) return refuse_body(err, "prompt: the list is empty");
    if (*n > most)
        return error_set(err, STATUS_LIMIT, "request: prompt: a list has at most %zu prompts",
                         most);
    return STATUS_IS_OK;
}

/* The bytes of the strings in a list, roughly as they take memory. */
static size_t bytes_of_strings(const json_t *list)
{
    enum { NODE_BYTES = 64 };
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        bytes += NODE_BYTES + json_string_length(json_array_get(list, i));
    return bytes;
}

/* Limits the memory of n requests: each holds a copy of the other fields, whose size the client
 * decides. */
static status check_amount(const engine_request *first, size_t n, error *err)
{
    size_t shared = first->n_bias * (sizeof *first->bias_ids + sizeof *first->bias) +
                    first->n_stop_token_ids * sizeof *first->stop_token_ids +
                    first->n_allowed_token_ids * sizeof *first->allowed_token_ids +
                    bytes_of_strings(first->bad_words) +
                    (first->cache_salt ? strlen(first->cache_salt) : 0) + first->form.n;
    if (n > 1 && shared > SHARED_BYTES_MAX / n)
        return error_set(
            err, STATUS_LIMIT,
            "request: prompt: too many prompts for so long a logit_bias, "
            "stop_token_ids, allowed_token_ids, bad_words, cache_salt or form of the answer");
    if (first->n > OPENAI_CHOICES_MAX / n)
        return error_set(err, STATUS_LIMIT, "request: n: more than %d choices over all prompts",
                         OPENAI_CHOICES_MAX);
    return STATUS_IS_OK;
}

static status read_prompts(const reading *in, error *err)
{
    openai_call *c = in->call;
    const json_t *prompt = body_member(in, "prompt");
    size_t n;
    RETURN_IF_ERROR(count_prompts(in, prompt, &n, err));
    if (!make_requests(c, n)) return out_of_memory(err);
    bool list = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    for (size_t i = 0; i < n; i++) {
        engine_request *r = &c->requests[c->n_requests++];
        RETURN_IF_ERROR(read_request(in, r, err));
        if (i == 0) RETURN_IF_ERROR(check_amount(r, n, err));
        RETURN_IF_ERROR(set_prompt(list ? json_array_get(prompt, i) : prompt, r, err));
    }
    return STATUS_IS_OK;
}

/* ---- the two endpoints ----------------------------------------------------------------------- */

static status read_completion(const reading *in, error *err)
{
    RETURN_IF_ERROR(openai_read_bool(in->body, "echo", &in->call->echo, err));
    return read_prompts(in, err);
}

/* Tools go to the chat template unless tool_choice is "none", and their calls are parsed out of the
 * answer. An answer that is forced to calls is nothing else: it has no reasoning before them. */
static status read_tools(const reading *in, engine_request *r, error *err)
{
    openai_call *c = in->call;
    const json_t *tools = body_member(in, "tools");
    tool_choice choice;
    bool many = true;
    RETURN_IF_ERROR(openai_read_bool(in->body, "parallel_tool_calls", &many, err));
    RETURN_IF_ERROR(openai_read_tool_choice(in->body, &choice, err));
    bool forced = choice.kind == TOOL_CHOICE_FORCED;
    if (tools && !json_is_array(tools)) return refuse_body(err, "tools: must be a list of tools");
    if (choice.kind == TOOL_CHOICE_NONE) return STATUS_IS_OK;
    if (json_array_size(tools) == 0)
        return forced ? refuse_body(err, "tool_choice: needs tools") : STATUS_IS_OK;
    c->tools = in->s->tool_parser;
    const chat_template *chat = in->s->o.model.chat;
    bool shown = !chat || tmpl_uses(chat, "tools"); /* the engine refuses those that are not */
    if (shown && !c->tools && !in->s->leaves_calls)
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: tools: the chat template does not tell the format of this "
                         "model's calls: the server needs --tool-call-parser");
    c->one_call = !many;
    if (c->tools && c->tools->special) r->skip_special_tokens = false;
    r->tools = json_incref((json_t *)tools);
    if (!forced || !shown) return STATUS_IS_OK;
    c->reasoning = NULL;
    return openai_force_calls(c->tools, &choice, tools, many, r, err);
}

static status read_reasoning(const reading *in, engine_request *r, error *err)
{
    openai_call *c = in->call;
    bool shown = true;
    RETURN_IF_ERROR(openai_read_bool(in->body, "include_reasoning", &shown, err));
    c->hides_reasoning = !shown;
    /* An answer that is held to a form is all of it: there is no reasoning before. */
    c->reasoning = r->form.given ? NULL : in->s->reasoning_parser;
    if (c->reasoning && c->reasoning->special) r->skip_special_tokens = false;
    return STATUS_IS_OK;
}

static status read_chat(const reading *in, error *err)
{
    openai_call *c = in->call;
    if (!body_member(in, "messages")) return refuse_body(err, "messages: must be given");
    if (!make_requests(c, 1)) return out_of_memory(err);
    c->n_requests = 1;
    RETURN_IF_ERROR(read_request(in, c->requests, err));
    RETURN_IF_ERROR(check_amount(c->requests, 1, err));
    RETURN_IF_ERROR(openai_read_template(in->s, in->body, c->requests, err));
    RETURN_IF_ERROR(read_reasoning(in, c->requests, err));
    return read_tools(in, c->requests, err);
}

/* The id is sent back in a header, too. */
static status read_id(const reading *in, error *err)
{
    const json_t *v = body_member(in, "request_id");
    const char *id = json_string_value(v);
    size_t n = json_string_length(v);
    bool usable = id && n > 0 && n < sizeof in->call->id;
    if (!v) return STATUS_IS_OK;
    for (size_t i = 0; usable && i < n; i++) usable = id[i] > 0x20 && id[i] < 0x7f;
    if (usable) memcpy(in->call->id, id, n);
    return usable ? STATUS_IS_OK
                  : error_set(err, STATUS_INVALID,
                              "request: request_id: must be a string of 1 to %d visible ASCII "
                              "characters and no blank",
                              SERVICE_ID_BYTES_MAX);
}

/* A body that comes whole has no place for progress. */
static status read_progress(const reading *in, error *err)
{
    bool progress = false;
    RETURN_IF_ERROR(openai_read_bool(in->body, "progress", &progress, err));
    if (progress && !in->call->stream)
        return refuse_body(err, "progress: can only be true when stream is");
    for (uint32_t i = 0; i < in->call->n_requests; i++) in->call->requests[i].progress = progress;
    return STATUS_IS_OK;
}

/* llm-d's sidecar sets both names, of completions too. */
static status check_names(const reading *in, error *err)
{
    const json_t *most = body_member(in, "max_tokens"),
                 *same = body_member(in, "max_completion_tokens");
    if (!most || !same || json_equal((json_t *)most, (json_t *)same)) return STATUS_IS_OK;
    return refuse_body(err, "max_completion_tokens: differs from max_tokens, its older name");
}

/* An answer has one place for what becomes of its prompt, and a stream that hands over has none. */
static status check_transfer(const reading *in, error *err)
{
    const openai_call *c = in->call;
    const engine_request *r = c->requests;
    if (!r->hands_over && !r->takes_over) return STATUS_IS_OK;
    if (c->n_requests > 1) return refuse_body(err, "kv_transfer_params: is for one prompt");
    if (r->hands_over && c->stream)
        return refuse_body(err, "kv_transfer_params: do_remote_decode: stream must be false");
    return STATUS_IS_OK;
}

static status read_call(reading *in, error *err)
{
    openai_call *c = in->call;
    RETURN_IF_ERROR(openai_read_model(in->s, in->body, &c->model, err));
    RETURN_IF_ERROR(read_id(in, err));
    RETURN_IF_ERROR(read_stream(in, err));
    RETURN_IF_ERROR(read_logprobs(in, err));
    RETURN_IF_ERROR(openai_read_bool(in->body, "return_token_ids", &c->return_token_ids, err));
    RETURN_IF_ERROR(
        openai_read_bool(in->body, "return_tokens_as_token_ids", &c->tokens_by_id, err));
    RETURN_IF_ERROR(check_names(in, err));
    RETURN_IF_ERROR(c->chat ? read_chat(in, err) : read_completion(in, err));
    RETURN_IF_ERROR(read_progress(in, err));
    RETURN_IF_ERROR(check_transfer(in, err));
    c->n_choices = c->requests[0].n;
    return STATUS_IS_OK;
}

static bool parse_body(service *s, bool chat, const char *body, size_t n, openai_call *out,
                       openai_error *failure)
{
    error err = {{0}};
    *out = (openai_call){.chat = chat, .prompt_logprobs = -1};
    reading in = {.s = s, .call = out};
    status st =
        openai_read_body(s, body, n, chat ? FOR_CHAT : FOR_COMPLETION, &in.body, in.also, &err);
    if (status_ok(st)) st = read_call(&in, &err);
    json_decref(in.body);
    if (status_ok(st)) return true;
    openai_call_destroy(out);
    openai_body_error(s, st, &err, failure);
    return false;
}

bool openai_parse_completion(service *s, const char *body, size_t n, openai_call *out,
                             openai_error *err)
{
    return parse_body(s, false, body, n, out, err);
}

bool openai_parse_chat(service *s, const char *body, size_t n, openai_call *out, openai_error *err)
{
    return parse_body(s, true, body, n, out, err);
}

status openai_read_chat(service *s, json_t *body, openai_call *out, error *err)
{
    reading in = {.s = s, .body = body, .call = out};
    out->chat = true;
    out->prompt_logprobs = -1;
    openai_list_fields(FOR_CHAT, in.also);
    return read_call(&in, err);
}

/* "prompt" is read here, "retention" by the engine: a vector is of all tokens, whatever the server
 * does with other requests. */
status openai_read_inputs(service *s, json_t *body, openai_call *out, error *err)
{
    reading in = {.s = s, .body = body, .call = out, .also = {"prompt", "model", "request_id"}};
    json_t *full = json_pack("{s:s}", "method", "full");
    if (json_object_set_new(body, "retention", full) != 0) return out_of_memory(err);
    out->prompt_logprobs = -1;
    out->n_choices = 1;
    RETURN_IF_ERROR(openai_read_model(s, body, &out->model, err));
    RETURN_IF_ERROR(read_id(&in, err));
    return read_prompts(&in, err);
}

status openai_count_tokens(service *s, const openai_call *call, size_t *out, error *err)
{
    tok_ids ids = {0};
    status st = engine_tokenize(s->o.engine, call->requests, &ids, err);
    *out = ids.n;
    tok_ids_destroy(&ids);
    return st;
}

void openai_call_destroy(openai_call *c)
{
    if (c->form && c->writer) c->form->destroy(c->writer);
    for (uint32_t i = 0; i < c->n_requests; i++) engine_request_destroy(&c->requests[i]);
    free(c->requests);
    free(c->model);
    *c = (openai_call){0};
}
