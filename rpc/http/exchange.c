/* One request: its head is checked at libmicrohttpd's first call, its body gathered, and its
 * route's handler run at the last call. A refusal is sent after a small body has been read, so that
 * the connection stays usable. A request that cannot be framed, or whose body is large or of
 * unknown length, is refused at once, and its connection closed. */
#include "rpc/http/internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PROGRESS_BYTES = 64 * 1024 };

static const char out_of_memory[] = "out of memory";

/* ---- life ------------------------------------------------------------------------------------ */

/* Makes a query one argument: no route reads a query, and libmicrohttpd takes memory of the
 * connection's pool for each argument and neither answers nor closes when that runs out. uri is
 * libmicrohttpd's own buffer, which it splits into arguments after this call. */
static void join_arguments(const char *uri)
{
    char *at = uri ? strchr(uri, '?') : NULL;
    for (; at && *at; at++)
        if (*at == '&') *at = '_';
}

void *exchange_begin(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    http_server *h = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    http_connection *c = info ? info->socket_context : NULL;
    exchange *e = c ? calloc(1, sizeof *e) : NULL;
    if (!e) return NULL;
    e->server = h;
    e->connection = c;
    c->exchange = e;
    e->mhd = mhd;
    e->begin_us = clock_now_us();
    e->target = uri;
    e->target_bytes = uri ? strlen(uri) : 0;
    e->target_ok = head_is_target(uri, e->target_bytes);
    join_arguments(uri);
    e->x = (http_exchange){.service = h->service, .path = "", .rest = "", .id = e->id, .body = ""};
    wake_init(&e->wake, c->worker, mhd);
    watch_began(&h->watch, c, &e->wake);
    return e;
}

/* An answer's name in the counts; `text` takes the code. e may be NULL. */
static service_answer name_answer(const exchange *e, unsigned code, char text[ANSWER_CODE_BYTES])
{
    const http_route *route = e ? e->route : NULL;
    snprintf(text, ANSWER_CODE_BYTES, "%u", code);
    return (service_answer){.surface = "http",
                            .route = route ? route->path : "other",
                            .code = text,
                            .of_api = route && route->needs_key && !http_is_ui(route)};
}

static void time_answer(const exchange *e)
{
    char text[ANSWER_CODE_BYTES];
    service_answer a = name_answer(e, e->sent_code, text);
    service_time_answer(e->server->service, &a, (double)(clock_now_us() - e->begin_us) / 1e6);
}

/* The body is gone, and what was made of it. */
static void forget_body(exchange *e)
{
    exchange_drop_body(e);
    service_give_body(e->server->service, e->body_taken);
    e->body_taken = 0;
}

static void end_exchange(exchange *e)
{
    if (e->sent_code) time_answer(e);
    pump_destroy(e); // the engine does not notify the wake after this
    watch_ended(&e->server->watch, e->connection);
    wake_destroy(&e->wake);
    forget_body(e);
    compress_destroy(e);
    strbuf_destroy(&e->out);
    e->connection->exchange = NULL;
    free(e);
}

void exchange_completed(void *cls, struct MHD_Connection *mhd, void **state,
                        enum MHD_RequestTerminationCode why)
{
    exchange *e = *state;
    (void)cls;
    (void)mhd;
    (void)why;
    if (!e) return;
    *state = NULL;
    end_exchange(e);
}

void exchange_end_with(http_connection *c)
{
    if (c->exchange) end_exchange(c->exchange);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuse_request(exchange *e, unsigned code, const char *type, const char *message)
{
    e->refusal = (openai_error){.status = code, .type = type};
    snprintf(e->refusal.message, sizeof e->refusal.message, "%s", message);
    e->is_own_refusal = true;
}

static const char *type_of(unsigned code)
{
    if (code == 401) return "AuthenticationError";
    if (code == 404) return "NotFoundError";
    return code >= 500 ? "ServiceUnavailableError" : "BadRequestError";
}

static void refuse_plain(exchange *e, unsigned code, const char *message)
{
    refuse_request(e, code, type_of(code), message);
}

static void count_answer(service *s, const exchange *e, unsigned code)
{
    char text[ANSWER_CODE_BYTES];
    service_answer a = name_answer(e, code, text);
    /* The page asks for the map of a request until it is told that the request has ended: such
     * answers would take the lines of refusals away. */
    a.is_refusal = code >= 400 && !(code == 404 && e && e->route && http_is_ui(e->route));
    a.is_own_message = !e || !e->why || e->is_own_why;
    a.message = !e ? out_of_memory : e->why;
    if (!a.message && code == 503) a.message = service_state(s); /* /health says so, too */
    if (e) a.id = e->id;
    if (e) a.key = e->key;
    service_count_answer(s, &a);
}

/* libmicrohttpd refuses by itself what it cannot read (a head or a chunk's first line that is too
 * long or malformed, another HTTP version), and calls no handler then. All that it tells is a line
 * for its log, whose first argument is the code that the client gets. */
void exchange_library_says(void *cls, const char *format, va_list args)
{
    static const char refusal[] = "Error processing request (HTTP response code is %u ";
    http_server *h = cls;
    if (strncmp(format, refusal, sizeof refusal - 1) != 0) return;
    char text[ANSWER_CODE_BYTES];
    snprintf(text, sizeof text, "%u", va_arg(args, unsigned));
    service_answer a = {.surface = "http",
                        .route = "other",
                        .code = text,
                        .message = "libmicrohttpd could not read the request",
                        .is_refusal = true,
                        .is_own_message = true};
    service_count_answer(h->service, &a);
}

/* ---- the head -------------------------------------------------------------------------------- */

static enum MHD_Result add_field(void *ctx, enum MHD_ValueKind kind, const char *name,
                                 size_t name_bytes, const char *value, size_t value_bytes)
{
    http_head *h = ctx;
    (void)kind;
    if (!value) value = "";
    if (h->n_fields < HTTP_FIELDS_MAX)
        h->fields[h->n_fields] = (http_field){name, value, name_bytes, value_bytes};
    h->n_fields++;
    return MHD_YES;
}

static void gather_head(exchange *e, const char *method, const char *version, http_head *out)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(e->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    out->method = method;
    out->target = e->target;
    out->target_bytes = e->target_bytes;
    out->target_ok = e->target_ok;
    out->version = version;
    out->n_fields = 0;
    out->bytes = info ? info->header_size : 0;
    MHD_get_connection_values_n(e->mhd, MHD_HEADER_KIND, add_field, out);
}

const char *http_header(const http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(((const exchange *)x)->mhd, MHD_HEADER_KIND, name);
}

/* Takes the client's x-request-id if it can be sent back in a header; otherwise makes an id. */
static void choose_id(exchange *e, const http_head *head)
{
    const http_field *f = head_find(head, "x-request-id");
    bool usable = f && f->value_bytes > 0 && f->value_bytes <= HTTP_ID_BYTES_MAX;
    for (size_t i = 0; usable && i < f->value_bytes; i++)
        usable = f->value[i] > 0x20 && f->value[i] < 0x7f;
    e->has_own_id = usable;
    if (usable) memcpy(e->id, f->value, f->value_bytes);
    else {
        service *s = e->server->service;
        uint64_t n = atomic_fetch_add(&s->next_id, 1) + 1;
        snprintf(e->id, sizeof e->id, "%016llx",
                 (unsigned long long)hash_mix64(s->id_salt ^ hash_mix64(n)));
    }
}

static bool path_matches(const http_route *r, const char *path)
{
    size_t n = strlen(r->path);
    if (n == 1 || r->path[n - 1] != '/') return strcmp(path, r->path) == 0;
    return strncmp(path, r->path, n) == 0 && path[n] != 0;
}

static void add_method(char *list, size_t size, const char *method)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s%s", n ? ", " : "", method,
             strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

static void choose_route(exchange *e, const char *path, const char *method)
{
    size_t n;
    const http_route *routes = http_routes(&n);
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (size_t i = 0; i < n; i++) {
        if (!path_matches(&routes[i], path)) continue;
        if (http_is_ui(&routes[i]) && e->server->service->o.no_ui) continue;
        e->route = &routes[i]; // that of the path, even if the method is wrong
        if (strcmp(routes[i].method, method) == 0) return;
        add_method(e->allow, sizeof e->allow, routes[i].method);
    }
    e->is_options = *e->allow && strcmp(method, "OPTIONS") == 0;
    if (e->is_options) add_method(e->allow, sizeof e->allow, method);
    else if (*e->allow)
        refuse_request(e, 405, "BadRequestError", "this path does not support this method");
    else refuse_plain(e, 404, "there is no such path");
}

static bool begins_with(const char *text, const char *word)
{
    return strncasecmp(text, word, strlen(word)) == 0;
}

/* True when the body cannot be meant as JSON. A browser, which names the page's origin, must name
 * JSON: it sends what has another type, or none, from every page without asking by OPTIONS. */
static bool is_not_json(const http_head *head)
{
    static const char json[] = "application/json";
    const http_field *f = head_find(head, "content-type");
    const char *type = f ? f->value : "";
    if (begins_with(type, "application/x-www-form-urlencoded") || begins_with(type, "multipart/"))
        return true;
    bool named = begins_with(type, json) && strchr("; \t", type[sizeof json - 1]);
    return head_find(head, "origin") && !named;
}

static bool is_encoded(const http_head *head)
{
    const http_field *f = head_find(head, "content-encoding");
    return f && f->value_bytes > 0 && strcasecmp(f->value, "identity") != 0;
}

/* Anthropic's clients send their key in a header of its own. */
static void find_key(exchange *e, const http_head *head)
{
    const http_field *f = head_find(head, "authorization"), *key = head_find(head, "x-api-key");
    if (f) e->x.authorization = f->value;
    else if (key && key->value_bytes <= SERVICE_KEY_BYTES_MAX) {
        snprintf(e->bearer, sizeof e->bearer, "Bearer %s", key->value);
        e->x.authorization = e->bearer;
    }
}

/* Finds the request's route; refuses the request for the first reason found. */
static void judge_head(exchange *e, const http_head *head, const http_framing *framing,
                       const char *url)
{
    service *s = e->server->service;
    url = head_path(url);
    if (!head_unescape(url, strlen(url), e->path, sizeof e->path)) {
        refuse_plain(e, 404, "there is no such path");
        return;
    }
    choose_route(e, e->path, head->method);
    if (e->refusal.status || e->is_options) return;
    e->x.path = e->route->path;
    size_t n = strlen(e->route->path);
    if (e->route->path[n - 1] == '/') e->x.rest = e->path + n;
    find_key(e, head);
    if (e->route->needs_key && !service_key_ok(s, e->x.authorization, &e->key))
        refuse_plain(e, 401, "the API key is missing or wrong");
    else if (e->route->has_body && is_not_json(head))
        refuse_plain(e, 415,
                     "content-type: must be application/json (curl: use --json instead of -d, or "
                     "add -H 'Content-Type: application/json')");
    else if (e->route->has_body && is_encoded(head))
        refuse_plain(e, 415, "content-encoding: is not supported: send the body as it is");
    else if (e->route->has_body && !framing->chunked && framing->length == 0)
        refuse_plain(e, 400, "the request has no body");
}

#define TOO_LARGE "the request's body is too large (--max-body)"

/* Checks that must be answered at once: the rest of the connection cannot be trusted, or is too
 * large to read. */
static http_verdict check_head(exchange *e, const http_head *head, http_framing *framing)
{
    size_t most = e->server->service->o.max_body_bytes;
    http_verdict v = head_check(head, framing);
    if (v.status) return v;
    if (!head_is_plain(head)) return (http_verdict){400, "a header field is malformed"};
    if (framing->length > most) return (http_verdict){413, TOO_LARGE};
    return v;
}

/* Sends the refusal before the body has come, so that the connection must end with it. */
static void refuse_at_once(exchange *e)
{
    e->close = true;
    e->connection->lingers = true;
    http_reply_error(&e->x, &e->refusal);
}

static void begin_request(exchange *e, const char *method, const char *url, const char *version)
{
    http_head head;
    http_framing framing;
    watch_has_head(&e->server->watch, e->connection);
    gather_head(e, method, version, &head);
    choose_id(e, &head);
    e->takes_gzip = head_takes_gzip(&head);
    http_verdict v = check_head(e, &head, &framing);
    if (v.status) {
        refuse_plain(e, v.status, v.message);
        refuse_at_once(e);
        return;
    }
    judge_head(e, &head, &framing, url);
    /* Requests for health are answered on surplus connections, too. */
    bool is_surplus = e->connection->surplus && (!e->route || e->route->needs_key);
    if (is_surplus) {
        refuse_plain(e, 503, "too many connections");
        e->refusal.retry_after_s = service_retry_after_s(e->server->service);
    }
    bool is_small = !framing.chunked && framing.length < HTTP_LARGE_BODY_BYTES;
    if (is_surplus || (e->refusal.status && (!is_small || framing.expects_continue))) {
        refuse_at_once(e);
        return;
    }
    /* A chunked body can hide another request, so the connection is closed after it. */
    e->close = framing.chunked || e->connection->surplus || atomic_load(&e->server->draining);
    e->stage = STAGE_BODY;
}

/* ---- the body -------------------------------------------------------------------------------- */

void exchange_drop_body(exchange *e)
{
    atomic_fetch_sub(&e->server->body_bytes, e->body.size);
    strbuf_destroy(&e->body);
    e->body = (strbuf){0};
    e->x.body = "";
    e->x.body_bytes = 0;
}

/* Appends to the body; refuses the request when all bodies together take too much memory. */
static void keep_body(exchange *e, const char *data, size_t n)
{
    service *s = e->server->service;
    size_t most = HTTP_LARGE_BODIES * s->o.max_body_bytes, before = e->body.size;
    if (service_take_body(s, n)) {
        e->body_taken += n;
        strbuf_append(&e->body, data, n);
        n = e->body.size - before;
        if (atomic_fetch_add(&e->server->body_bytes, n) + n <= most) return;
    }
    refuse_plain(e, 503, "too many large requests, or too little memory for more");
    e->refusal.retry_after_s = service_retry_after_s(s);
    forget_body(e);
}

/* Takes more of the body. A body that is too large is read and dropped, so that the client gets the
 * refusal; false when it has twice the largest size. */
static bool take_body(exchange *e, const char *data, size_t n)
{
    size_t most = e->server->service->o.max_body_bytes;
    e->body_received += n;
    if (e->body_received > 2 * most) return false;
    if (e->body_received > most) {
        refuse_plain(e, 413, TOO_LARGE);
        e->close = true;
        forget_body(e);
    }
    if (!e->refusal.status && e->route->has_body && !e->is_options) keep_body(e, data, n);
    if (e->body_received - e->body_reported >= PROGRESS_BYTES) {
        e->body_reported = e->body_received;
        watch_progress(&e->server->watch, e->connection);
    }
    return true;
}

static void complete(exchange *e)
{
    watch_complete(&e->server->watch, e->connection);
    if (!e->refusal.status && e->body.failed) refuse_plain(e, 503, out_of_memory);
    if (!e->refusal.status && e->is_options) {
        cors_answer_options(e);
        return;
    }
    if (!e->refusal.status && e->route->has_body && e->body.size == 0)
        refuse_plain(e, 400, "the request has no body");
    if (e->refusal.status) {
        http_reply_error(&e->x, &e->refusal);
        return;
    }
    if (e->body.data) e->x.body = e->body.data;
    e->x.body_bytes = e->body.size;
    if (e->body.size >= HTTP_LARGE_BODY_BYTES || http_is_heavy(e->route))
        http_work_put(&e->server->work, e);
    else e->route->handle(&e->x);
}

enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_bytes, void **state)
{
    exchange *e = *state;
    http_server *h = cls;
    if (!e) {
        count_answer(h->service, NULL, 503);
        return MHD_queue_response(mhd, 503, h->no_memory);
    }
    if (e->stage == STAGE_HEAD) begin_request(e, method, url, version);
    else if (e->stage == STAGE_BODY && *data_bytes > 0) {
        e->failed = !take_body(e, data, *data_bytes);
        *data_bytes = 0;
    } else if (e->stage == STAGE_BODY) complete(e);
    else if (e->stage == STAGE_WORKING) http_work_resumed(e);
    else if (e->stage == STAGE_WAITING) pump_resumed(e);
    return e->failed ? MHD_NO : MHD_YES;
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool add_header(struct MHD_Response *r, const char *name, const char *value)
{
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

void exchange_send(exchange *e, unsigned code, struct MHD_Response *response)
{
    http_server *h = e->server;
    e->stage = STAGE_ANSWERED;
    bool ok = response && (!*e->id || add_header(response, "X-Request-Id", e->id));
    ok = ok && cors_add_headers(e, response);
    if (e->close || atomic_load(&h->draining))
        ok = ok && add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (!ok) {
        code = 503;
        e->why = out_of_memory;
        e->is_own_why = true;
    }
    e->failed = MHD_queue_response(e->mhd, code, ok ? response : h->no_memory) != MHD_YES;
    if (response) MHD_destroy_response(response);
    e->sent_code = code;
    count_answer(h->service, e, code);
}

/* A response that sends e->out without a copy: e->out lives until the request is completed. */
static struct MHD_Response *response_of_out(exchange *e, const char *content_type)
{
    if (e->out.failed) return NULL;
    bool pays = compress_pays(e);
    char json_bytes[24];
    snprintf(json_bytes, sizeof json_bytes, "%zu", e->json_bytes);
    struct MHD_Response *r =
        pays && e->takes_gzip
            ? compress_response(e)
            : MHD_create_response_from_buffer(e->out.size, e->out.data, MHD_RESPMEM_PERSISTENT);
    if (r && (!add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, content_type) ||
              (pays && !add_header(r, MHD_HTTP_HEADER_VARY, "Accept-Encoding")) ||
              (e->is_page && !ui_add_headers(r)) ||
              (e->json_bytes && !add_header(r, "Inference-Header-Content-Length", json_bytes)))) {
        MHD_destroy_response(r);
        r = NULL;
    }
    return r;
}

void exchange_send_out(exchange *e, unsigned code, const char *content_type)
{
    exchange_send(e, code, response_of_out(e, content_type));
}

void http_reply(http_exchange *x, unsigned code, const char *content_type, const strbuf *body)
{
    exchange *e = (exchange *)x;
    strbuf_clear(&e->out);
    strbuf_append(&e->out, body->data ? body->data : "", body->size);
    e->out.failed |= body->failed;
    e->reply_code = code;
    e->reply_type = content_type;
    if (e->stage != STAGE_WORKING) exchange_send_out(e, code, content_type);
}

void http_reply_error(http_exchange *x, const openai_error *why)
{
    exchange *e = (exchange *)x;
    char seconds[16];
    if (e->stage == STAGE_WORKING) {
        e->refusal = *why;
        return;
    }
    e->why = why->message;
    /* A 503 tells of the server's state alone. */
    e->is_own_why = (why == &e->refusal && e->is_own_refusal) || why->status == 503;
    strbuf_clear(&e->out);
    http_errors_of(e->path)(why, e->id, &e->out);
    struct MHD_Response *r = response_of_out(e, "application/json");
    bool ok = r != NULL;
    if (why->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%u", why->retry_after_s);
        ok = ok && add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    }
    if (why->status == 401) ok = ok && add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (why->status == 405) ok = ok && add_header(r, MHD_HTTP_HEADER_ALLOW, e->allow);
    if (!ok && r) MHD_destroy_response(r);
    exchange_send(e, why->status, ok ? r : NULL);
}
