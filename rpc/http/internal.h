/* What the files of this folder share.
 *
 * server.c    the daemon and its options          listen.c   addresses and the listening socket
 * exchange.c  one request: head, body, answer     head.c     what a request's head may look like
 * pump.c      a generation's outputs to a client  watch.c    clients that vanish, trickle or stall
 * routes.c    the table of paths                  tls.c      certificates
 * work.c      large bodies, which a pool of threads reads */
#ifndef RPC_HTTP_INTERNAL_H
#define RPC_HTTP_INTERNAL_H

#include "rpc/http/head.h"
#include "rpc/http/http.h"
#include "rpc/work.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>

enum {
    HTTP_THREADS = 2,
    HTTP_LARGE_BODY_BYTES = 32 * 1024, // from here on a body is read by those: about 0.3 ms
    HTTP_LARGE_BODIES = 64,            // of the largest size, being read at once
    HTTP_CONNECTION_BYTES = 32 * 1024, // libmicrohttpd's memory for one: bounds a request's head
    HTTP_ID_BYTES_MAX = 128,
};

/* ---- a sleeping connection, and who wakes it ------------------------------------------------- */

/* libmicrohttpd runs a connection on its own thread only. Whoever else has news for it leaves a
 * note here and, when the connection sleeps (is suspended), resumes it. */
typedef struct http_wake {
    pthread_mutex_t lock;
    struct MHD_Connection *mhd;
    bool pending;    // news since the last wake_begin
    bool suspended;  // between suspension and resumption
    bool held;       // another thread works on the request: nothing resumes it meanwhile
    bool sending;    // a stream: what was read is on its way to the client
    bool abort;      // the server stops: end the generation, tell the client
    bool cut;        // the client is gone: close without a word
    int64_t last_us; // when the connection last asked for more, or was resumed
} http_wake;

typedef enum http_news { NEWS_NONE, NEWS_ABORT, NEWS_CUT } http_news;

void wake_init(http_wake *w, struct MHD_Connection *mhd);
void wake_destroy(http_wake *w);
/* An engine_notify: something can be read. */
void wake_notify(void *wake);
void wake_abort(http_wake *w);
void wake_cut(http_wake *w);
/* The connection's thread, before it looks for outputs. */
http_news wake_begin(http_wake *w);
/* Suspends the connection; false when there has been news since wake_begin: look again. */
bool wake_sleep(http_wake *w);
/* Between the two the connection sleeps whatever comes, a cut too. */
void wake_hold(http_wake *w);
void wake_release(http_wake *w);
bool wake_is_cut(http_wake *w);

/* ---- connections and the thread that watches them -------------------------------------------- */

typedef struct http_connection {
    int fd;
    bool surplus; // beyond max_connections: gets a 503
    gnutls_typed_vdata_st purpose;
    /* Under the watch's lock. */
    struct http_connection *prev, *next;
    int64_t deadline_us; // for the whole of the next request; 0 = none
    http_wake *wake;     // of the request in progress
    bool polled;         // fd is in the epoll set
    bool running;        // the request waits for the engine
    bool hung_up;        // the client has closed its side
} http_connection;

typedef struct http_watch {
    pthread_mutex_t lock;
    pthread_t thread;
    bool started;
    int epoll_fd, wake_fd;
    int64_t request_us, stall_us;
    http_connection *first;
    http_connection *dead; // closed; freed by the thread, which may hold an event for one
    uint32_t n_busy;       // with a request in progress
    bool stop, aborting, closing;
} http_watch;

status watch_create(http_watch *w, int64_t request_us, int64_t stall_us, error *err);
/* Everything that runs is told to end; what has not after `patience_us` is cut. */
void watch_end_all(http_watch *w, int64_t patience_us);
void watch_destroy(http_watch *w);

/* NULL when memory is out. */
http_connection *watch_opened(http_watch *w, int fd);
/* Before the fd is closed. Frees c, a little later. */
void watch_closed(http_watch *w, http_connection *c);
/* A request begins; `wake` may be NULL only in watch_ended. */
void watch_began(http_watch *w, http_connection *c, http_wake *wake);
/* More of it has come: the client has the full time again. */
void watch_progress(http_watch *w, http_connection *c);
/* It is complete: no deadline any more. */
void watch_complete(http_watch *w, http_connection *c);
/* It waits for the engine: a client that leaves is cut at once. */
void watch_runs(http_watch *w, http_connection *c);
/* Answered, or given up. */
void watch_ended(http_watch *w, http_connection *c);

/* ---- large bodies (work.c) ------------------------------------------------------------------- */

typedef struct exchange exchange;

/* Called on the connection's thread: queues the exchange, whose handler runs on a thread of w. */
void http_work_put(work_pool *w, exchange *e);
/* Called on the connection's thread once the handler is done: sends the answer. */
void http_work_resumed(exchange *e);

/* ---- TLS ------------------------------------------------------------------------------------- */

typedef struct http_tls {
    char *cert, *key, *client_ca; // PEM texts; NULL = none
} http_tls;

status tls_load(const rpc_options *o, http_tls *out, error *err);
void tls_destroy(http_tls *t);
/* Makes the handshake of this connection fail without a certificate that client_ca signed. */
void tls_require_client(http_connection *c, gnutls_session_t session);

/* ---- the server ------------------------------------------------------------------------------ */

struct http_server {
    service *service;
    struct MHD_Daemon *daemon;
    struct MHD_Response *no_memory; // of requests that find none
    int listen_fd;                  // -1 = none
    uint16_t port;
    http_watch watch;
    work_pool work;
    http_tls tls;
    _Atomic bool draining, closing;
    _Atomic uint32_t n_connections;
    _Atomic size_t body_bytes; // of requests being read
};

/* "host:port", "[address]:port", ":port"; error names the address. */
status http_listen(const char *address, int *fd, uint16_t *port, error *err);

/* ---- one request ----------------------------------------------------------------------------- */

typedef enum http_stage {
    STAGE_HEAD,
    STAGE_BODY,
    STAGE_WORKING, // the handler runs on a thread of work.c
    STAGE_WAITING, // for outputs
    STAGE_ANSWERED,
} http_stage;

struct exchange {
    http_exchange x; // first: handlers know nothing else
    http_server *server;
    http_connection *connection;
    struct MHD_Connection *mhd;
    const http_route *route;
    http_stage stage;
    const char *target; // as it came
    size_t target_bytes;
    bool target_ok;
    char id[HTTP_ID_BYTES_MAX + 1];
    char path[256];       // without escapes
    openai_error refusal; // decided before the answer could be sent; status 0 = none
    bool is_own_refusal;  // nothing of the client's is in its message
    const char *why;      // of a refusal that goes out: its message; is_own_why as above
    bool is_own_why;
    char allow[32]; // methods, of a 405
    bool close;     // the connection ends with this request
    bool failed;    // no answer could be made
    strbuf body;
    size_t body_received, body_told;
    http_wake wake;
    generation *generation;
    openai_answer *answer;
    strbuf out; // the answer's body, or the frames on their way
    size_t out_sent;
    const char *last_words; // what still follows `out`, static; NULL = nothing
    bool ended;             // nothing follows these
    work_job job;           // when STAGE_WORKING
    unsigned reply_code; // of `out`, when STAGE_WORKING ends by an answer at once; 0 = it does not
    const char *reply_type;
};

/* libmicrohttpd's callbacks; cls is the server. */
void *exchange_begin(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_bytes, void **state);
void exchange_completed(void *cls, struct MHD_Connection *mhd, void **state,
                        enum MHD_RequestTerminationCode why);

/* The body is of no more use. */
void exchange_drop_body(exchange *e);
/* Answers with a response, which this call releases, plus the headers that all answers have. NULL
 * means that there was no memory for the response, and the client is told so. */
void exchange_send(exchange *e, unsigned code, struct MHD_Response *response);
/* Answers with e->out. */
void exchange_send_out(exchange *e, unsigned code, const char *content_type);

/* A request that waits for outputs was resumed. */
void pump_resumed(exchange *e);
void pump_destroy(exchange *e);

#endif
