/* Declarations shared by the files of rpc/http (private to it).
 *
 * server.c    the daemon and its options          listen.c   addresses and the listening socket
 * exchange.c  one request: head, body, answer     head.c     checks of a request's head
 * pump.c      a generation's outputs to a client  watch.c    clients that vanish, trickle or stall
 * routes.c    the table of paths                  tls.c      certificates
 * work.c      large bodies, which a pool reads    wake.c     suspended connections, woken
 * cors.c      pages of other origins, OPTIONS     compress.c  answers as gzip
 * kserve.c    the routes of /v2              ui.c       the page for people
 * trace.c     headers about traces */
#ifndef RPC_HTTP_INTERNAL_H
#define RPC_HTTP_INTERNAL_H

#include "rpc/http/head.h"
#include "rpc/http/http.h"
#include "rpc/work.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>

enum {
    HTTP_THREADS = 2,
    HTTP_LARGE_BODY_BYTES = 32 * 1024, // the pool parses bodies from this size on (about 0.3 ms)
    HTTP_LARGE_BODIES = 64,            // most bodies of the largest size in memory at once
    HTTP_CONNECTION_BYTES = 32 * 1024, // libmicrohttpd's memory per connection; bounds the head
    HTTP_ID_BYTES_MAX = 128,
    HTTP_COMPRESSED_BYTES_MIN = 1024, // shorter answers are sent as they are
};

/* ---- waking a suspended connection ----------------------------------------------------------- */

typedef struct http_wake http_wake;

/* A thread of libmicrohttpd, and its connections that were woken and are still suspended. */
typedef struct http_worker {
    pthread_t thread;
    bool is_known;              // a connection has been opened on the thread
    _Atomic(http_wake *) woken; // the last one first
} http_worker;

/* Returns once no connection is listed in w->woken. Those that the worker took from the list may
 * still be suspended; libmicrohttpd can be stopped all the same, because the worker ends the loop
 * that resumes each of them before it looks at libmicrohttpd's shutdown. */
void worker_wait(http_worker *w);

/* News for a connection from other threads. libmicrohttpd runs a connection on one thread only, so
 * another thread sets the flags here and has the connection resumed if it is suspended. */
struct http_wake {
    pthread_mutex_t lock;
    http_worker *worker;
    struct MHD_Connection *mhd;
    http_wake *next_woken;
    bool pending;    // news since the last wake_begin
    bool suspended;  // the connection is suspended, and nothing has woken it
    bool leads;      // it was resumed as the first of the worker's woken connections
    bool held;       // another thread works on the request: nothing else resumes it
    bool sending;    // a stream whose frames go out to the client
    bool abort;      // the server stops: end the generation, tell the client
    bool cut;        // the client is gone: close without an answer
    int64_t last_us; // when the connection last asked for more, or was woken
};

typedef enum http_news { NEWS_NONE, NEWS_ABORT, NEWS_CUT } http_news;

void wake_init(http_wake *w, http_worker *worker, struct MHD_Connection *mhd);
/* The connection's thread calls this when the connection is not suspended. */
void wake_destroy(http_wake *w);
/* For engine_notify: an output can be read. */
void wake_notify(void *wake);
void wake_abort(http_wake *w);
void wake_cut(http_wake *w);
/* The connection's thread calls this before it reads outputs. */
http_news wake_begin(http_wake *w);
/* Suspends the connection. False when there was news since wake_begin: read outputs again. */
bool wake_sleep(http_wake *w);
/* From wake_hold to wake_release the connection stays suspended, even when it is cut. */
void wake_hold(http_wake *w);
void wake_release(http_wake *w);
bool wake_is_cut(http_wake *w);
/* The client of a stream has taken nothing since then. */
bool wake_is_stalled(http_wake *w, int64_t since_us);

/* ---- connections and the thread that watches them -------------------------------------------- */

typedef struct exchange exchange;

typedef struct http_connection {
    int fd;
    exchange *exchange; // the request in progress, from its first line on; the worker's own
    bool surplus;       // beyond max_connections: its requests get 503, and must come soon
    bool lingers;       // it ends with an answer that did not wait for the request's body
    http_worker *worker;
    gnutls_typed_vdata_st purpose;
    /* The watch's lock guards the fields below. */
    struct http_connection *prev, *next;
    int64_t deadline_us; // for the whole of the next request; 0 = none
    int64_t idle_us;     // when it was opened, its last request ended, or it was last looked at
    bool looks_idle;     // it had no unread bytes then
    http_wake *wake;     // of the request in progress, from its first line on
    bool in_work;        // the request's head is complete; otherwise the connection counts as idle
    bool polled;         // fd is in the epoll set
    bool cut;            // shut down; libmicrohttpd closes it
    bool running;        // the request waits for the engine
    bool hung_up;        // the client has closed its side
    bool is_lingering;   // in the list of those that linger
} http_connection;

typedef struct http_watch {
    pthread_mutex_t lock;
    pthread_t thread;
    bool started;
    int epoll_fd, wake_fd;
    int64_t request_us, stall_us;
    uint32_t max_connections, most;  // without the surplus, and with it
    uint32_t n_live;                 // connections that are not cut
    _Atomic uint64_t *n_idle_closed; // idle connections closed before request_us was over
    http_connection *first;
    http_connection *lingering; // closed by libmicrohttpd; fd is a copy
    uint32_t n_lingering;
    http_connection *dead; // closed; the thread frees them, as it may hold events for them
    uint32_t n_busy;       // connections with a request in progress
    bool stop, aborting, closing;
} http_watch;

/* most: of connections, with the surplus. *s gives the limits and counts what is closed early. */
status watch_create(http_watch *w, service *s, uint32_t most, error *err);
/* Aborts all requests; cuts the connections of those that have not ended after patience_us. */
void watch_end_all(http_watch *w, int64_t patience_us);
void watch_destroy(http_watch *w);

/* Once `most` are open, the connection that has been idle for the longest is closed, so that there
 * is always room for the next one. NULL when memory is out. */
http_connection *watch_opened(http_watch *w, int fd);
/* Call it before the fd is closed. c is freed a little later. If c->lingers, the socket stays open
 * for a while, and what the client still sends is dropped: closing a socket with unread bytes is a
 * reset, and the client might lose the answer. */
void watch_closed(http_watch *w, http_connection *c);
/* A request begins; wake must not be NULL. */
void watch_began(http_watch *w, http_connection *c, http_wake *wake);
/* The request's head is complete: the connection is not closed to make room. */
void watch_has_head(http_watch *w, http_connection *c);
/* More of the request has come: its deadline starts anew. */
void watch_progress(http_watch *w, http_connection *c);
/* The request is complete: it has no deadline any more. */
void watch_complete(http_watch *w, http_connection *c);
/* The request waits for the engine: if its client leaves, it is cut at once. */
void watch_runs(http_watch *w, http_connection *c);
/* The request was answered, or its connection closed. */
void watch_ended(http_watch *w, http_connection *c);

/* ---- large bodies (work.c) ------------------------------------------------------------------- */

typedef struct compression compression;

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
    http_worker workers[HTTP_THREADS];
    pthread_mutex_t workers_lock;   // for their threads
    struct MHD_Response *no_memory; // answer to requests when memory is out
    int listen_fd;                  // -1 = none
    uint16_t port;
    http_watch watch;
    work_pool work;
    http_tls tls;
    _Atomic bool draining, closing;
    _Atomic size_t body_bytes; // of all bodies in memory
};

/* Listens on "host:port", "[address]:port" or ":port". Errors name the address. */
status http_listen(const char *address, int *fd, uint16_t *port, error *err);

/* ---- one request ----------------------------------------------------------------------------- */

/* How outputs of a generation become an answer. */
typedef struct answer_form {
    void (*take)(void *answer, const generation *g, const generation_output *o, strbuf *out);
    void (*finish)(void *answer, strbuf *out);
    bool (*streams)(const void *answer);              // NULL: the answer comes whole
    const openai_error *(*error)(const void *answer); // NULL while there is none
    size_t (*json_bytes)(const void *answer);         // of JSON before other bytes; 0, NULL: all
    void (*destroy)(void *answer);
} answer_form;

typedef enum http_stage {
    STAGE_HEAD,
    STAGE_BODY,
    STAGE_WORKING, // the handler runs on a thread of work.c
    STAGE_WAITING, // for outputs
    STAGE_ANSWERED,
} http_stage;

struct exchange {
    http_exchange x; // the part that handlers see; must be first
    http_server *server;
    http_connection *connection;
    struct MHD_Connection *mhd;
    const http_route *route;
    http_stage stage;
    int64_t begin_us;
    unsigned sent_code; // of the answer; 0 = none is sent
    const char *target; // as it was sent
    size_t target_bytes;
    bool target_ok;
    char id[HTTP_ID_BYTES_MAX + 1];
    bool has_own_id;                        // the id is the client's header
    char bearer[8 + SERVICE_KEY_BYTES_MAX]; // of x-api-key, as an Authorization header has it
    uint32_t key;                           // its number, by service_key_ok
    char path[512];                         // without escapes; the longest has a session's id
    openai_error refusal; // decided before the answer could be sent; status 0 = none
    bool is_own_refusal;  // refusal's message holds no bytes of the client
    const char *why;      // message of the refusal that is sent
    bool is_own_why;      // why holds no bytes of the client
    char allow[48];       // methods of the path, for the Allow header
    bool is_options;      // answered by cors_answer_options
    bool close;           // the connection ends with this request
    bool failed;          // no answer could be made
    bool takes_gzip;      // head_takes_gzip
    bool is_page;         // the answer has the headers of ui_add_headers
    strbuf body;
    size_t body_received, body_reported;
    size_t body_taken; // counted by service_take_body
    http_wake wake;
    generation *generation;
    const answer_form *form; // of answer
    void *answer;
    size_t json_bytes;        // of `out`, where other bytes follow them; 0 = all is of one kind
    strbuf out;               // the answer's body, or frames not yet sent
    compression *compression; // of `out`; NULL = sent as it is
    size_t out_sent;
    const char *last_words; // text sent after `out`, static; NULL = none
    bool ended;             // nothing follows `out` and last_words
    work_job job;           // of STAGE_WORKING
    unsigned reply_code; // status of `out` when the handler on the pool has replied; 0 = it has not
    const char *reply_type;
};

/* libmicrohttpd's callbacks; cls is the server. */
void *exchange_begin(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_bytes, void **state);
void exchange_completed(void *cls, struct MHD_Connection *mhd, void **state,
                        enum MHD_RequestTerminationCode why);
/* Ends the request of a connection that libmicrohttpd has closed. libmicrohttpd 0.9.75 does not
 * complete a request with whose head it fails twice: many cookies fill the connection's memory, the
 * refusal of that takes the memory of all fields, and then there is no host. */
void exchange_end_with(http_connection *c);

/* libmicrohttpd's logger: counts the answers that libmicrohttpd gives by itself. cls is the
 * server. */
void exchange_library_says(void *cls, const char *format, va_list args);

/* Gathers the request's headers about traces. NULL when requests are not traced. */
const trace_headers *http_trace(const exchange *e, trace_headers *out);

/* Frees the request's body. What was made of it still counts (body_taken). */
void exchange_drop_body(exchange *e);
/* Answers with a response, which is released, and the headers that all answers have. NULL means
 * that there was no memory for the response; the client is told so. */
void exchange_send(exchange *e, unsigned code, struct MHD_Response *response);
/* Answers with e->out. */
void exchange_send_out(exchange *e, unsigned code, const char *content_type);

/* True when `out` is long enough to be compressed for clients that take it. */
bool compress_pays(const exchange *e);
/* A response that sends e->out as gzip, which lives until compress_destroy; NULL when memory is
 * out. */
struct MHD_Response *compress_response(exchange *e);
void compress_destroy(exchange *e);

/* Adds the headers that bind a page in a browser to its own files; false when memory is out. */
bool ui_add_headers(struct MHD_Response *r);

/* Checks the origins in the options. */
status cors_check(const rpc_options *o, error *err);
/* Adds the headers by which a browser shows the answer to a page of an allowed origin; false when
 * memory is out. */
bool cors_add_headers(const exchange *e, struct MHD_Response *r);
/* Answers an OPTIONS request with what e's path takes. */
void cors_answer_options(exchange *e);

/* Answers with the outputs of e->generation, which has begun, through `answer` (taken over). */
void pump_begin(exchange *e, const answer_form *form, void *answer);
/* Continues a request that waits for outputs, after its connection was resumed. */
void pump_resumed(exchange *e);
void pump_destroy(exchange *e);

#endif
