/* The connections of `octavo bench serve` (private to it): connecting, sending, decoding the
 * stream, judging the answer. One thread. */
#ifndef CLI_BENCH_BENCH_SERVE_CLIENT_H
#define CLI_BENCH_BENCH_SERVE_CLIENT_H

#include "cli/bench/bench_serve_http.h"
#include "cli/bench/bench_serve_track.h"

#include <sys/socket.h>

/* The server's address, looked up once. */
typedef struct serve_target {
    struct sockaddr_storage address;
    socklen_t size;
} serve_target;

/* Finds the first of the host's addresses that takes a connection; *fd receives that connection,
 * which is blocking. */
status serve_target_find(const serve_options *o, serve_target *out, int *fd, error *err);

typedef enum conn_state {
    CONN_CONNECTING,
    CONN_SENDING,
    CONN_READING,
    CONN_IDLE,
    CONN_STALLED
} conn_state;

typedef struct conn {
    int fd;
    conn_state state;
    uint32_t watched;       // epoll's mask
    bool reused, got_bytes; // this request uses a kept connection; bytes of its answer came
    bool done, stream_error, bad_json;
    serve_request r;
    strbuf out; // the request
    size_t sent;
    http_response http;
    sse_reader sse;
    strbuf body;  // beginning of an answer that is no stream
    size_t place; // index in client.conns
    struct conn *next_idle;
} conn;

typedef struct client {
    serve_tracker *t;
    serve_target target;
    int epoll;
    conn **conns; // all, including idle ones
    size_t n_conns, conns_capacity;
    conn *idle;
} client;

/* Takes an idle connection, or makes one; its `out` is empty. NULL when memory is out. */
conn *client_take(client *c);
/* Sends k->out; how the request ends is recorded in run->calls. */
void client_send(client *c, conn *k);
/* Handles epoll's events for k, which may be freed by this call. */
void client_event(client *c, conn *k, uint32_t events);
/* Ends requests that have taken longer than the limit. */
void client_sweep(client *c);
void client_close_all(client *c);

#endif
