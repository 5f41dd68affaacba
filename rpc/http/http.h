/* HTTP/1.1 by libmicrohttpd (private to rpc/): listening, limits, keys, routes, and the pumping of
 * a generation's outputs to a client that may be slow or gone.
 *
 * Threads  libmicrohttpd's (a pool of two) run handlers of small bodies, two of our own those of
 *          large ones; another watches the sockets of running requests for clients that go away. */
#ifndef RPC_HTTP_HTTP_H
#define RPC_HTTP_HTTP_H

#include "rpc/openai/openai.h"
#include "rpc/service.h"

typedef struct http_server http_server;

/* Whether a server with these options could listen, and by these certificates, now. */
status http_server_check(const rpc_options *o, error *err);
/* Listens on s->o.http_address. */
status http_server_create(service *s, http_server **out, error *err);
uint16_t http_server_port(const http_server *h);
/* From now on every answer closes its connection; requests that need the engine get 503. */
void http_server_drain(http_server *h);
/* Aborts what runs, closes, joins. */
void http_server_destroy(http_server *h);

/* ---- one request and its answer -------------------------------------------------------------- */

typedef struct http_exchange {
    service *service;
    const char *path; // of the route, without a query
    const char *rest; // what follows a route that ends in "/"
    const char *id;   // x-request-id, or one made here; echoed in the answer
    const char *body; // NUL-terminated
    size_t body_bytes;
} http_exchange;

/* Exactly one of these ends a handler. */
void http_reply(http_exchange *x, unsigned code, const char *content_type, const strbuf *body);
void http_reply_error(http_exchange *x, const openai_error *e);
/* Starts the requests of *call (taken over) and answers with their outputs: a refusal before the
 * first output becomes a plain error. */
void http_generate(http_exchange *x, openai_call *call);

typedef struct http_route {
    const char *method; // "GET", "POST"
    const char *path;   // one that ends in "/" takes everything below it
    bool needs_key;
    bool has_body;
    void (*handle)(http_exchange *x);
} http_route;

/* The table of routes (routes.c). */
const http_route *http_routes(size_t *n);

#endif
