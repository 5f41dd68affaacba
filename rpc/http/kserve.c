/* KServe's HTTP API, /v2, with the extensions that Triton's clients use: what gRPC answers, as
 * JSON. */
#include "rpc/http/internal.h"
#include "rpc/services/kserve_describe.h"
#include "rpc/services/kserve_http.h"

#include <stdlib.h>
#include <string.h>

static const char JSON[] = "application/json";

/* ---- errors ---------------------------------------------------------------------------------- */

void kserve_put_error(const openai_error *e, const char *id, strbuf *out)
{
    (void)id;
    strbuf_puts(out, "{\"error\":");
    strbuf_json_string(out, e->message, strlen(e->message));
    strbuf_putc(out, '}');
}

static void reply_status(http_exchange *x, status st, const error *err)
{
    openai_error why;
    openai_error_from(x->service, st, err, &why);
    http_reply_error(x, &why);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static void tell_json(void *body, const ProtobufCMessage *message)
{
    kserve_write_message(message, body);
}

static void reply_body(http_exchange *x, status st, const error *err, strbuf *body)
{
    if (status_ok(st)) http_reply(x, 200, JSON, body);
    else reply_status(x, st, err);
    strbuf_destroy(body);
}

static void reply_description(http_exchange *x, kserve_describe describe, const kserve_model *which)
{
    strbuf body = {0};
    error err = {{0}};
    reply_body(x, describe(x->service, which, tell_json, &body, &err), &err, &body);
}

void route_kserve_server(http_exchange *x)
{
    reply_description(x, kserve_describe_server, &(kserve_model){.name = {0, NULL}});
}

void route_kserve_statistics(http_exchange *x)
{
    reply_description(x, kserve_describe_statistics, &(kserve_model){.name = {0, NULL}});
}

/* An array, where gRPC has a message with a list. */
static void tell_index(void *body, const ProtobufCMessage *message)
{
    const Inference__RepositoryIndexResponse *m =
        (const Inference__RepositoryIndexResponse *)message;
    strbuf_putc(body, '[');
    for (size_t i = 0; i < m->n_models; i++) {
        if (i) strbuf_putc(body, ',');
        kserve_write_message(&m->models[i]->base, body);
    }
    strbuf_putc(body, ']');
}

/* The body, which may ask for models that are ready alone, is not read: there is one model. */
void route_kserve_index(http_exchange *x)
{
    strbuf body = {0};
    error err = {{0}};
    status st = kserve_describe_index(x->service, false, tell_index, &body, &err);
    reply_body(x, st, &err, &body);
}

/* The configuration itself, where gRPC has a message around it. */
static void tell_config(void *body, const ProtobufCMessage *message)
{
    kserve_write_message(&((const Inference__ModelConfigResponse *)message)->config->base, body);
}

/* ---- paths of a model ------------------------------------------------------------------------ */

/* Takes an ending such as "/infer" off the text. */
static bool cut_end(ProtobufCBinaryData *text, const char *end)
{
    size_t n = strlen(end);
    if (text->len < n || memcmp(text->data + text->len - n, end, n) != 0) return false;
    text->len -= n;
    return true;
}

/* Splits NAME or NAME/versions/VERSION. A name may have slashes. */
static kserve_model split_model(ProtobufCBinaryData text)
{
    static const char between[] = "/versions/";
    const size_t n = sizeof between - 1;
    kserve_model m = {.name = text};
    for (size_t i = text.len; i-- > n;) {
        if (memcmp(text.data + i + 1 - n, between, n) != 0) continue;
        m.version = (ProtobufCBinaryData){text.len - i - 1, text.data + i + 1};
        m.name.len = i + 1 - n;
        break;
    }
    return m;
}

static ProtobufCBinaryData rest_of(const http_exchange *x)
{
    return (ProtobufCBinaryData){strlen(x->rest), (uint8_t *)(uintptr_t)x->rest};
}

static void reply_ready(http_exchange *x, const kserve_model *which)
{
    error err = {{0}};
    strbuf body = {0};
    service *s = x->service;
    status st = kserve_check_model(s, which->name, which->version, &err);
    if (status_ok(st) && !service_is_serving(s))
        st = error_set(&err, STATUS_UNAVAILABLE, "the server is %s", service_state(s));
    if (status_ok(st)) {
        Inference__ModelReadyResponse m = INFERENCE__MODEL_READY_RESPONSE__INIT;
        m.ready = true;
        kserve_write_message(&m.base, &body);
    }
    reply_body(x, st, &err, &body);
}

void route_kserve_model(http_exchange *x)
{
    ProtobufCBinaryData rest = rest_of(x);
    bool ready = cut_end(&rest, "/ready");
    bool config = !ready && cut_end(&rest, "/config");
    bool stats = !ready && !config && cut_end(&rest, "/stats");
    kserve_model which = split_model(rest);
    if (ready) reply_ready(x, &which);
    else if (config) {
        strbuf body = {0};
        error err = {{0}};
        status st = kserve_describe_config(x->service, &which, tell_config, &body, &err);
        reply_body(x, st, &err, &body);
    } else reply_description(x, stats ? kserve_describe_statistics : kserve_describe_model, &which);
}

/* ---- health ---------------------------------------------------------------------------------- */

void route_kserve_live(http_exchange *x)
{
    strbuf body = {0};
    strbuf_puts(&body, "{\"live\":true}");
    http_reply(x, 200, JSON, &body);
    strbuf_destroy(&body);
}

void route_kserve_ready(http_exchange *x)
{
    strbuf body = {0};
    bool ready = service_is_serving(x->service);
    strbuf_printf(&body, "{\"ready\":%s}", ready ? "true" : "false");
    http_reply(x, ready ? 200 : 503, JSON, &body);
    strbuf_destroy(&body);
}

/* ---- inference ------------------------------------------------------------------------------- */

static void take_output(void *answer, const generation *g, const generation_output *o, strbuf *out)
{
    (void)g;
    (void)out;
    kserve_answer_take(answer, o);
}

static void finish(void *answer, strbuf *out) { kserve_answer_finish(answer, out); }
static void destroy(void *answer) { kserve_answer_destroy(answer); }
static const openai_error *error_of(const void *answer) { return kserve_answer_error(answer); }
static size_t head_of(const void *answer) { return kserve_answer_json_bytes(answer); }

static const answer_form kserve_form = {
    .take = take_output,
    .finish = finish,
    .error = error_of,
    .json_bytes = head_of,
    .destroy = destroy,
};

/* The bytes of JSON at the body's beginning: all of it without the header that says so. */
static status count_json(const http_exchange *x, size_t *out, error *err)
{
    const char *text = http_header(x, "inference-header-content-length");
    size_t n = text ? 0 : x->body_bytes;
    size_t digits = text ? strspn(text, "0123456789") : 0;
    bool good = !text || (digits > 0 && digits < 12 && !text[digits]);
    for (size_t i = 0; good && i < digits; i++) n = n * 10 + (size_t)(text[i] - '0');
    *out = n;
    if (good && n <= x->body_bytes) return STATUS_IS_OK;
    return error_set(
        err, STATUS_INVALID,
        "inference-header-content-length: must be an integer of at most %zu, the bytes "
        "of the body",
        x->body_bytes);
}

static status start(exchange *e, const kserve_model *which, kserve_answer **out, error *err)
{
    service *s = e->server->service;
    size_t n;
    json_t *json = NULL;
    char identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    service_identity(s, e->x.authorization, identity);
    generation_options o = {.id = e->id,
                            .surface = "kserve",
                            .notify = wake_notify,
                            .notify_ctx = &e->wake,
                            .identity = identity,
                            .shares_id = true,
                            .trace = http_trace(e, &trace)};
    RETURN_IF_ERROR(generation_admits(s, err));
    RETURN_IF_ERROR(count_json(&e->x, &n, err));
    RETURN_IF_ERROR(openai_check_amount(s, e->x.body, n, err));
    RETURN_IF_ERROR(json_read_text("body", e->x.body, n, &json, err));
    const kserve_body body = {.json = json,
                              .bytes = (const uint8_t *)e->x.body + n,
                              .n_bytes = e->x.body_bytes - n,
                              .model = which->name,
                              .version = which->version};
    status st = kserve_http_start(s, &body, &o, out, &e->generation, err);
    json_decref(json);
    return st;
}

void route_kserve_infer(http_exchange *x)
{
    exchange *e = (exchange *)x;
    ProtobufCBinaryData rest = rest_of(x);
    error err = {{0}};
    kserve_answer *answer = NULL;
    bool infer = cut_end(&rest, "/infer");
    kserve_model which = split_model(rest);
    status st = infer ? start(e, &which, &answer, &err)
                      : error_set(&err, STATUS_NOT_FOUND, "there is no such path");
    if (status_ok(st)) pump_begin(e, &kserve_form, answer);
    else reply_status(x, st, &err);
}
