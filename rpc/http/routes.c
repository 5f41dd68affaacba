/* The table of routes, and the handlers. */
#include "rpc/anthropic/anthropic.h"
#include "rpc/http/http.h"

#include <string.h>

static const char JSON[] = "application/json";

/* ---- generation ------------------------------------------------------------------------------ */

typedef bool (*parse_call)(service *s, const char *body, size_t n, openai_call *out,
                           openai_error *err);

/* Answers a call that has been made of the body, or says why it could not be. */
static void answer(http_exchange *x, bool ok, openai_call *call, const openai_error *err)
{
    if (ok) http_generate(x, call);
    else http_reply_error(x, err);
}

static bool admits(http_exchange *x)
{
    openai_error err;
    error text = {{0}};
    status st = generation_admits(x->service, &text);
    if (status_ok(st)) return true;
    openai_error_from(x->service, st, &text, &err);
    http_reply_error(x, &err);
    return false;
}

static void generate(http_exchange *x, parse_call parse)
{
    openai_call call;
    openai_error err;
    if (!admits(x)) return;
    bool ok = parse(x->service, x->body, x->body_bytes, &call, &err);
    answer(x, ok, &call, &err);
}

static void route_responses(http_exchange *x)
{
    openai_call call;
    openai_error err;
    char identity[SERVICE_IDENTITY_BYTES];
    if (!admits(x)) return;
    service_identity(x->service, x->authorization, identity);
    bool ok = openai_parse_response(x->service, identity, x->body, x->body_bytes, &call, &err);
    answer(x, ok, &call, &err);
}

static void route_messages(http_exchange *x) { generate(x, anthropic_parse); }
static void route_completions(http_exchange *x) { generate(x, openai_parse_completion); }
static void route_embeddings(http_exchange *x) { generate(x, openai_parse_embeddings); }
static void route_chat_completions(http_exchange *x) { generate(x, openai_parse_chat); }

/* ---- answers without a generation ------------------------------------------------------------ */

static void reply(http_exchange *x, bool ok, strbuf *body, const openai_error *err)
{
    if (ok) http_reply(x, 200, JSON, body);
    else http_reply_error(x, err);
    strbuf_destroy(body);
}

static void route_tokenize(http_exchange *x)
{
    strbuf body = {0};
    openai_error err;
    bool ok = openai_tokenize(x->service, x->body, x->body_bytes, &body, &err);
    reply(x, ok, &body, &err);
}

static void route_detokenize(http_exchange *x)
{
    strbuf body = {0};
    openai_error err;
    bool ok = openai_detokenize(x->service, x->body, x->body_bytes, &body, &err);
    reply(x, ok, &body, &err);
}

static void render(http_exchange *x, bool chat)
{
    strbuf body = {0};
    openai_error err;
    bool ok = openai_render(x->service, chat, x->body, x->body_bytes, &body, &err);
    reply(x, ok, &body, &err);
}

static void route_render_completion(http_exchange *x) { render(x, false); }
static void route_render_chat(http_exchange *x) { render(x, true); }

static void route_tokenizer_info(http_exchange *x)
{
    strbuf body = {0};
    openai_error err;
    bool ok = openai_tokenizer_info(x->service, &body, &err);
    reply(x, ok, &body, &err);
}

static void route_models(http_exchange *x)
{
    strbuf body = {0};
    openai_models(x->service, &body);
    reply(x, true, &body, NULL);
}

static void route_model(http_exchange *x)
{
    strbuf body = {0};
    openai_error err;
    bool ok = openai_model(x->service, x->rest, &body, &err);
    reply(x, ok, &body, &err);
}

/* The answer is the same whether there is such a session or not. */
static void route_delete_session(http_exchange *x)
{
    strbuf body = {0};
    openai_error why;
    char identity[SERVICE_IDENTITY_BYTES];
    service_identity(x->service, x->authorization, identity);
    bool ok = openai_delete_session(x->service, identity, http_header(x, "octavo-cache-salt"),
                                    x->rest, &body, &why);
    reply(x, ok, &body, &why);
}

static void route_response(http_exchange *x)
{
    strbuf body = {0};
    openai_error why;
    char identity[SERVICE_IDENTITY_BYTES];
    service_identity(x->service, x->authorization, identity);
    bool ok = openai_response(x->service, identity, x->rest, &body, &why);
    reply(x, ok, &body, &why);
}

static void route_delete_response(http_exchange *x)
{
    strbuf body = {0};
    openai_error why;
    char identity[SERVICE_IDENTITY_BYTES];
    service_identity(x->service, x->authorization, identity);
    bool ok = openai_delete_response(x->service, identity, x->rest, &body, &why);
    reply(x, ok, &body, &why);
}

static void route_count_tokens(http_exchange *x)
{
    strbuf body = {0};
    openai_error err;
    bool ok = anthropic_count_tokens(x->service, x->body, x->body_bytes, &body, &err);
    reply(x, ok, &body, &err);
}

static void route_version(http_exchange *x)
{
    strbuf body = {0};
    openai_version(x->service, &body);
    reply(x, true, &body, NULL);
}

/* 200 while the service takes new requests; otherwise 503 with the reason. Any answer shows that
 * the process is alive. */
static void route_health(http_exchange *x)
{
    strbuf body = {0};
    char trouble[ENGINE_TROUBLE_BYTES];
    engine_get_trouble(x->service->o.engine, trouble, sizeof trouble);
    strbuf_printf(&body, "{\"status\":\"%s\"", service_state(x->service));
    if (*trouble) {
        strbuf_puts(&body, ",\"reason\":");
        strbuf_json_string(&body, trouble, strlen(trouble));
    }
    strbuf_putc(&body, '}');
    http_reply(x, service_is_serving(x->service) ? 200 : 503, JSON, &body);
    strbuf_destroy(&body);
}

static void route_metrics(http_exchange *x)
{
    strbuf body = {0};
    metrics_text(x->service, &body);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    strbuf_destroy(&body);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const http_route routes[] = {
    /* method, path, needs_key, has_body, handler */
    {"POST", "/v1/completions", true, true, route_completions},
    {"POST", "/v1/chat/completions", true, true, route_chat_completions},
    {"POST", "/v1/completions/render", true, true, route_render_completion},
    {"POST", "/v1/chat/completions/render", true, true, route_render_chat},
    {"POST", "/v1/embeddings", true, true, route_embeddings},
    {"POST", "/v1/responses", true, true, route_responses},
    {"GET", "/v1/responses/", true, false, route_response},
    {"DELETE", "/v1/responses/", true, false, route_delete_response},
    {"POST", "/v1/messages", true, true, route_messages},
    {"POST", "/v1/messages/count_tokens", true, true, route_count_tokens},
    {"GET", "/v1/models", true, false, route_models},
    {"GET", "/v1/models/", true, false, route_model},
    {"DELETE", "/v1/sessions/", true, false, route_delete_session},
    {"POST", "/tokenize", true, true, route_tokenize},
    {"POST", "/detokenize", true, true, route_detokenize},
    {"GET", "/v2", true, false, route_kserve_server},
    {"GET", "/v2/health/live", false, false, route_kserve_live},
    {"GET", "/v2/health/ready", false, false, route_kserve_ready},
    {"GET", "/v2/models/stats", true, false, route_kserve_statistics},
    {"GET", "/v2/models/", true, false, route_kserve_model},
    {"POST", "/v2/models/", true, true, route_kserve_infer},
    {"POST", "/v2/repository/index", true, false, route_kserve_index},
    {"GET", "/tokenizer_info", true, false, route_tokenizer_info},
    {"GET", "/", false, false, route_ui},
    {"GET", "/octavo/page.css", false, false, route_ui_css},
    {"GET", "/octavo/page.js", false, false, route_ui_js},
    {"GET", "/octavo/pages", true, false, route_ui_overview},
    {"GET", "/octavo/pages/", true, false, route_ui_pages},
    {"GET", "/health", false, false, route_health},
    {"GET", "/ready", false, false, route_health},
    {"GET", "/ping", false, false, route_health},
    {"GET", "/version", false, false, route_version},
    {"GET", "/metrics", false, false, route_metrics},
};

const http_route *http_routes(size_t *n)
{
    *n = sizeof routes / sizeof routes[0];
    return routes;
}

bool http_is_heavy(const http_route *route) { return route->handle == route_responses; }

static void put_error(const openai_error *e, const char *id, strbuf *out)
{
    (void)id;
    openai_error_json(e, out);
}

http_error_form http_errors_of(const char *path)
{
    static const char messages[] = "/v1/messages";
    bool is_kserve = strncmp(path, "/v2", 3) == 0 && (path[3] == '/' || path[3] == '\0');
    if (is_kserve) return kserve_put_error;
    return strncmp(path, messages, sizeof messages - 1) == 0 ? anthropic_put_error : put_error;
}
