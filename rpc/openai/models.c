/* The small endpoints: tokenize, render, detokenize, models, sessions, version. */
#include "rpc/openai/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    DETOKENIZE_MAX = 1 << 17,    // tokens, or the model's context if that is longer
    TOKENIZE_BYTES_MAX = 1 << 18 // of a body: 1 MB would delay other clients by 0.3 s
};

/* ---- /tokenize ------------------------------------------------------------------------------- */

static status read_tokenize(service *s, const json_t *body, const char *const *also,
                            engine_request *r, error *err)
{
    char *model = NULL;
    bool special = false;
    status st = openai_read_model(s, body, &model, err);
    free(model);
    RETURN_IF_ERROR(st);
    RETURN_IF_ERROR(engine_request_parse(body, "request", also, r, err));
    if (!r->prompt == !r->messages)
        return error_set(err, STATUS_INVALID,
                         "request: prompt: one of prompt and messages must be given");
    if (r->messages) RETURN_IF_ERROR(openai_read_bool(body, "add_special_tokens", &special, err));
    if (r->messages) RETURN_IF_ERROR(openai_read_template(s, body, r, err));
    if (special)
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: add_special_tokens: the chat template writes its own");
    return STATUS_IS_OK;
}

/* The last `most` ids, or all of them where it is 0. */
static void put_ids(const tok_ids *ids, size_t most, strbuf *out)
{
    size_t first = most && ids->n > most ? ids->n - most : 0;
    strbuf_putc(out, '[');
    for (size_t i = first; i < ids->n; i++)
        strbuf_printf(out, i > first ? ",%u" : "%u", ids->ids[i]);
    strbuf_putc(out, ']');
}

static void put_tokens(const service *s, const tok_ids *ids, strbuf *out)
{
    strbuf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", ids->n,
                  s->o.model.max_model_len);
    put_ids(ids, 0, out);
    strbuf_puts(out, ",\"token_strs\":null}");
}

static status tokenize_body(service *s, const json_t *body, const char *const *also, strbuf *out,
                            error *err)
{
    engine_request r;
    tok_ids ids = {0};
    engine_request_init(&r, &s->o.model.defaults);
    status st = read_tokenize(s, body, also, &r, err);
    if (status_ok(st)) st = engine_tokenize(s->o.engine, &r, &ids, err);
    if (status_ok(st)) put_tokens(s, &ids, out);
    tok_ids_destroy(&ids);
    engine_request_destroy(&r);
    return st;
}

/* ---- /detokenize ----------------------------------------------------------------------------- */

static status put_text(service *s, const json_t *tokens, strbuf *out, error *err)
{
    size_t most = s->o.model.max_model_len, n = json_array_size(tokens);
    if (most < DETOKENIZE_MAX) most = DETOKENIZE_MAX;
    if (!json_is_array(tokens))
        return error_set(err, STATUS_INVALID, "request: tokens: must be a list of token ids");
    if (n > most)
        return error_set(err, STATUS_LIMIT, "request: tokens: more than %zu of them", most);
    tok_stream d;
    tok_stream_init(&d, s->o.model.tokenizer, false);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(tokens, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= tok_vocab_size(d.t))
            return error_set(err, STATUS_INVALID,
                             "request: tokens: item %zu must be a token id below %u", i,
                             tok_vocab_size(d.t));
        RETURN_IF_ERROR(tok_stream_push(&d, (uint32_t)id, out));
    }
    tok_stream_finish(&d, out);
    return STATUS_IS_OK;
}

static status detokenize_body(service *s, const json_t *body, const char *const *also, strbuf *out,
                              error *err)
{
    (void)also;
    char *model = NULL;
    status st = openai_read_model(s, body, &model, err);
    free(model);
    RETURN_IF_ERROR(st);
    strbuf text = {0};
    st = put_text(s, json_object_get(body, "tokens"), &text, err);
    if (status_ok(st)) {
        strbuf_puts(out, "{\"prompt\":");
        strbuf_json_string(out, text.data ? text.data : "", text.size);
        strbuf_putc(out, '}');
    }
    if (text.failed) st = error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    strbuf_destroy(&text);
    return st;
}

/* ---- tokenize and detokenize ----------------------------------------------------------------- */

typedef status (*small_endpoint)(service *s, const json_t *body, const char *const *also,
                                 strbuf *out, error *err);

static status check_bytes(size_t n, const char *endpoint, error *err)
{
    if (n <= TOKENIZE_BYTES_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "%s takes bodies of at most %d bytes", endpoint,
                     TOKENIZE_BYTES_MAX);
}

static bool answer_small(service *s, unsigned endpoint, small_endpoint run, const char *body,
                         size_t n, strbuf *out, openai_error *failure)
{
    error err = {{0}};
    json_t *doc = NULL;
    const char *also[FIELDS_MAX];
    status st = STATUS_IS_OK;
    if (endpoint == FOR_TOKENIZE) st = check_bytes(n, "/tokenize", &err);
    if (status_ok(st)) st = openai_read_body(s, body, n, endpoint, &doc, also, &err);
    if (status_ok(st)) st = run(s, doc, also, out, &err);
    json_decref(doc);
    if (status_ok(st)) return true;
    openai_body_error(s, st, &err, failure);
    return false;
}

bool openai_tokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err)
{
    return answer_small(s, FOR_TOKENIZE, tokenize_body, body, n, out, err);
}

bool openai_detokenize(service *s, const char *body, size_t n, strbuf *out, openai_error *err)
{
    return answer_small(s, FOR_DETOKENIZE, detokenize_body, body, n, out, err);
}

/* ---- render: the prompts of a request for an answer, as tokens ------------------------------- */

static status put_prompts(service *s, const openai_call *call, strbuf *out, error *err)
{
    status st = STATUS_IS_OK;
    for (uint32_t i = 0; i < call->n_requests && status_ok(st); i++) {
        const engine_request *r = &call->requests[i];
        tok_ids ids = {0};
        if (r->truncate_prompt_tokens < 0)
            return error_set(err, STATUS_INVALID,
                             "truncate_prompt_tokens: render takes a number of tokens, not -1");
        st = engine_tokenize(s->o.engine, r, &ids, err);
        strbuf_puts(out, i ? ",{\"token_ids\":" : "{\"token_ids\":");
        put_ids(&ids, (size_t)r->truncate_prompt_tokens, out);
        strbuf_putc(out, '}');
        tok_ids_destroy(&ids);
    }
    return st;
}

bool openai_render(service *s, bool chat, const char *body, size_t n, strbuf *out,
                   openai_error *failure)
{
    error err = {{0}};
    openai_call call;
    status st = check_bytes(n, "render", &err);
    if (status_ok(st)) {
        bool parsed = chat ? openai_parse_chat(s, body, n, &call, failure)
                           : openai_parse_completion(s, body, n, &call, failure);
        if (!parsed) return false;
        if (!chat) strbuf_putc(out, '[');
        st = put_prompts(s, &call, out, &err);
        if (!chat) strbuf_putc(out, ']');
        openai_call_destroy(&call);
    }
    if (status_ok(st)) return true;
    openai_body_error(s, st, &err, failure);
    return false;
}

/* ---- models ---------------------------------------------------------------------------------- */

static void put_string(strbuf *out, const char *text)
{
    strbuf_json_string(out, text, strlen(text));
}

static void put_model(const service *s, const char *name, strbuf *out)
{
    strbuf_puts(out, "{\"id\":");
    put_string(out, name);
    strbuf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"octavo\",\"root\":",
                  (long long)s->start_time);
    put_string(out, s->o.model.dir);
    strbuf_printf(out, ",\"parent\":null,\"max_model_len\":%u,\"max_logical_len\":%u}",
                  s->o.model.max_model_len, s->o.model.max_logical_len);
}

void openai_models(service *s, strbuf *out)
{
    strbuf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < s->o.model.n_names; i++) {
        if (i) strbuf_putc(out, ',');
        put_model(s, s->o.model.names[i], out);
    }
    strbuf_puts(out, "]}");
}

bool openai_model(service *s, const char *name, strbuf *out, openai_error *err)
{
    if (name[0] && service_knows_model(s, name, strlen(name))) {
        put_model(s, name, out);
        return true;
    }
    error text;
    status st = error_set(&text, STATUS_NOT_FOUND, "The model `%.128s` does not exist.", name);
    openai_body_error(s, st, &text, err);
    return false;
}

bool openai_delete_session(service *s, const char *identity, const char *salt, const char *id,
                           strbuf *out, openai_error *err)
{
    error text;
    const engine_request r = {.identity = (char *)(uintptr_t)identity,
                              .cache_salt = (char *)(uintptr_t)salt,
                              .session = (char *)(uintptr_t)id};
    bool fits = strlen(id) <= ENGINE_SESSION_BYTES_MAX;
    status st = fits ? engine_forget_session(s->o.engine, &r)
                     : error_set(&text, STATUS_INVALID, "session: must have 1 to %d bytes",
                                 ENGINE_SESSION_BYTES_MAX);
    if (status_ok(st)) {
        strbuf_puts(out, "{\"id\":");
        put_string(out, id);
        strbuf_puts(out, ",\"object\":\"session\",\"deleted\":true}");
        return true;
    }
    if (fits) st = error_set(&text, st.code, "session: too many are being deleted at once");
    openai_error_from(s, st, &text, err);
    return false;
}

void openai_version(service *s, strbuf *out)
{
    strbuf_puts(out, "{\"version\":");
    put_string(out, s->o.version);
    strbuf_putc(out, '}');
}
