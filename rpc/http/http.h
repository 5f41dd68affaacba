/* The HTTP/1.1 server on libmicrohttpd (private to rpc/): listening, limits, keys, routes, and
 * sending a generation's outputs to a client that may be slow or gone.
 *
 * Threads  two of libmicrohttpd's run the handlers of requests with small bodies, a pool of two
 *          those with large bodies; another watches the sockets for clients that go away. */
#ifndef RPC_HTTP_HTTP_H
#define RPC_HTTP_HTTP_H

#include "rpc/openai/openai.h"
#include "rpc/service.h"

typedef struct http_server http_server;

/* Checks that a server with these options could listen now and that its certificates are good.
 * *fd receives the socket that listens, which the caller closes; -1 when HTTP is off. */
status http_server_check(const rpc_options *o, int *fd, error *err);
/* Listens on s->o.http_address. */
status http_server_create(service *s, http_server **out, error *err);
uint16_t http_server_port(const http_server *h);
/* From now on every answer closes its connection; requests that need the engine get 503. */
void http_server_drain(http_server *h);
/* Aborts running requests, closes connections, and joins the threads. */
void http_server_destroy(http_server *h);

/* ---- one request and its answer -------------------------------------------------------------- */

typedef struct http_exchange {
    service *service;
    const char *path;          // of the route, without a query
    const char *rest;          // the part of the path after a route that ends in "/"
    const char *id;            // x-request-id, or one made here; the answer repeats it
    const char *authorization; // "Bearer KEY" as sent, or of the header x-api-key; NULL = none
    const char *body;          // NUL-terminated
    size_t body_bytes;
} http_exchange;

/* A handler ends with exactly one of these calls. */
void http_reply(http_exchange *x, unsigned code, const char *content_type, const strbuf *body);
void http_reply_error(http_exchange *x, const openai_error *e);
/* Starts the requests of *call (taken over) and answers with their outputs. An error before the
 * first output is answered as a plain error with its own status. */
void http_generate(http_exchange *x, openai_call *call);

/* A header of the request, as its client sent it; NULL without one. */
const char *http_header(const http_exchange *x, const char *name);

typedef struct http_route {
    const char *method; // "GET", "POST", "DELETE"
    const char *path;   // one that ends in "/" matches all below it; "/" is itself alone
    bool needs_key;
    bool has_body;
    void (*handle)(http_exchange *x);
} http_route;

/* The page for people, and its data (ui.c). */
void route_ui(http_exchange *x);
void route_ui_css(http_exchange *x);
void route_ui_js(http_exchange *x);
void route_ui_overview(http_exchange *x);
void route_ui_pages(http_exchange *x);
/* True for these routes, which rpc_options.no_ui takes away. */
bool http_is_ui(const http_route *route);

/* The routes of /v2 (kserve.c), and how their errors are written. */
void route_kserve_server(http_exchange *x);
void route_kserve_live(http_exchange *x);
void route_kserve_ready(http_exchange *x);
void route_kserve_model(http_exchange *x);
void route_kserve_statistics(http_exchange *x);
void route_kserve_index(http_exchange *x);
void route_kserve_infer(http_exchange *x);
void kserve_put_error(const openai_error *e, const char *id, strbuf *out);

/* How errors of this path are written: a function that appends the body. */
typedef void (*http_error_form)(const openai_error *e, const char *id, strbuf *out);
http_error_form http_errors_of(const char *path);

/* True for a route whose work does not end with its body: a stored conversation comes before it. */
bool http_is_heavy(const http_route *route);
/* The table of routes (routes.c). */
const http_route *http_routes(size_t *n);

#endif
