/* Connections and the answers that come over them. */
#include "cli/bench/bench_serve_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    READ_BYTES = 64 << 10,
    BODY_MAX_BYTES = 64 << 10,
    STALLED_BUFFER = 4096, /* receive buffer of a stream that is never read */
};

/* ---- the address ----------------------------------------------------------------------------- */

status serve_target_find(const serve_options *o, serve_target *out, int *fd, error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int code = getaddrinfo(o->host, o->port, &hints, &found);
    if (code != 0) return error_set(err, STATUS_IO, "--url: %s: %s", o->host, gai_strerror(code));
    int s = -1, why = 0;
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next) {
        s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) != 0) {
            why = errno;
            close(s);
            s = -1;
        }
        if (s < 0) continue;
        memcpy(&out->address, a->ai_addr, a->ai_addrlen);
        out->size = a->ai_addrlen;
    }
    freeaddrinfo(found);
    *fd = s;
    if (s >= 0) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "--url: %s:%s: %s", o->host, o->port, strerror(why));
}

/* ---- events of a stream ---------------------------------------------------------------------- */

static uint32_t whole_at(const json_t *object, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(object, key));
    return v < 0 || v > UINT32_MAX ? 0 : (uint32_t)v;
}

/* Some servers send the finish reason in an event of its own. Once all tokens are there, that event
 * counts as no token. */
static void take_choice(client *c, conn *k, const json_t *choice)
{
    const char *text = json_string_value(json_object_get(choice, "text"));
    if (!text) {
        const json_t *delta = json_object_get(choice, "delta");
        text = json_string_value(json_object_get(delta, "content"));
    }
    bool finished = json_is_string(json_object_get(choice, "finish_reason"));
    bool empty = !text || !*text;
    if (!(finished && empty && k->r.call.events == k->r.want)) track_token(c->t, &k->r);
    if (text) track_text(&k->r, text, strlen(text));
    if (finished) k->r.finished = true;
}

static void take_usage(conn *k, const json_t *usage)
{
    k->r.has_usage = true;
    k->r.call.prompt_tokens = whole_at(usage, "prompt_tokens");
    k->r.call.output_tokens = whole_at(usage, "completion_tokens");
    k->r.call.cached_tokens =
        whole_at(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

static void note_error(client *c, serve_end end, const conn *k, const char *json, size_t n)
{
    if (c->t->run->example[end][0]) return;
    json_t *tree = json_loadb(json, n, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(tree, "error"), "message"));
    char text[160];
    snprintf(text, sizeof text, "HTTP %u: %.130s", k->r.call.status,
             message ? message : "without a message");
    track_example(c->t, end, text);
    json_decref(tree);
}

/* The context of the decoder's callbacks. */
typedef struct client_and_conn {
    client *c;
    conn *k;
} client_and_conn;

static void take_event(void *ctx, const char *data, size_t n)
{
    client *c = ((client_and_conn *)ctx)->c;
    conn *k = ((client_and_conn *)ctx)->k;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        k->done = true;
        return;
    }
    json_t *tree = json_loadb(data, n, JSON_ALLOW_NUL, NULL); /* a token may contain a NUL */
    if (!json_is_object(tree)) {
        k->bad_json = true;
        track_example(c->t, SERVE_MALFORMED, "an event that is no JSON object");
    } else if (json_object_get(tree, "error")) {
        k->stream_error = true;
        note_error(c, SERVE_STREAM_ERROR, k, data, n);
    } else {
        /* Usage comes in an event without choices, or (llama-server) in the last event with
         * choices. */
        const json_t *options = json_object_get(tree, "choices");
        const json_t *usage = json_object_get(tree, "usage");
        if (json_array_size(options)) take_choice(c, k, json_array_get(options, 0));
        if (json_is_object(usage)) take_usage(k, usage);
    }
    json_decref(tree);
}

static void take_body(void *ctx, const char *bytes, size_t n)
{
    conn *k = ((client_and_conn *)ctx)->k;
    if (k->http.status == 200 && k->http.is_event_stream) {
        sse_feed(&k->sse, bytes, n, take_event, ctx);
    } else {
        size_t room = BODY_MAX_BYTES - k->body.size;
        strbuf_append(&k->body, bytes, n < room ? n : room);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void watch_socket(client *c, conn *k, uint32_t mask)
{
    if (k->watched == mask) return;
    struct epoll_event e = {.events = mask, .data.ptr = k};
    epoll_ctl(c->epoll, EPOLL_CTL_MOD, k->fd, &e);
    k->watched = mask;
}

static void conn_destroy(client *c, conn *k)
{
    if (k->fd >= 0) close(k->fd);
    c->conns[k->place] = c->conns[--c->n_conns];
    c->conns[k->place]->place = k->place;
    strbuf_destroy(&k->out);
    strbuf_destroy(&k->body);
    http_response_destroy(&k->http);
    sse_destroy(&k->sse);
    free(k);
}

static void forget_idle(client *c, conn *k)
{
    conn **at = &c->idle;
    while (*at != k) at = &(*at)->next_idle;
    *at = k->next_idle;
}

static serve_end judge_answer(client *c, const conn *k)
{
    const serve_call *r = &k->r.call;
    if (r->status == 503 || r->status == 429) return SERVE_REJECTED;
    if (r->status != 200) return SERVE_STATUS;
    if (k->stream_error) return SERVE_STREAM_ERROR;
    if (!k->http.is_event_stream || k->sse.failed || k->bad_json) return SERVE_MALFORMED;
    if (!k->done) return SERVE_NO_DONE;
    return track_judge(c->t, &k->r);
}

/* Ends the request; its connection is kept when `keep` is set. */
static void end_call(client *c, conn *k, serve_end end, bool keep)
{
    if (!k->r.never_read && (end == SERVE_STATUS || end == SERVE_REJECTED))
        note_error(c, end, k, k->body.data ? k->body.data : "", k->body.size);
    track_end(c->t, &k->r, end);
    if (!keep || k->r.never_read) {
        conn_destroy(c, k);
        return;
    }
    k->state = CONN_IDLE;
    k->next_idle = c->idle;
    c->idle = k;
}

static void end_by_errno(client *c, conn *k, serve_end end, int code)
{
    track_example(c->t, end, code ? strerror(code) : "closed by the server");
    end_call(c, k, end, false);
}

/* Begins to connect a socket to the server. False: k has ended. */
static bool conn_open(client *c, conn *k)
{
    int one = 1, small = STALLED_BUFFER;
    k->fd = socket(c->target.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (k->fd >= 0) {
        setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (k->r.never_read) setsockopt(k->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        k->state = CONN_CONNECTING;
        k->watched = EPOLLIN | EPOLLOUT;
        struct epoll_event e = {.events = k->watched, .data.ptr = k};
        c->t->run->connections++;
        if ((connect(k->fd, (struct sockaddr *)&c->target.address, c->target.size) == 0 ||
             errno == EINPROGRESS) &&
            epoll_ctl(c->epoll, EPOLL_CTL_ADD, k->fd, &e) == 0)
            return true;
    }
    end_by_errno(c, k, SERVE_CONNECT, errno);
    return false;
}

/* The connection broke. The server may have closed a kept connection just as the request was sent:
 * the request is sent again on a new connection, as any client would. */
static void end_broken(client *c, conn *k, int code)
{
    if (!k->reused || k->got_bytes) {
        end_by_errno(c, k, k->state == CONN_CONNECTING ? SERVE_CONNECT : SERVE_CLOSED, code);
        return;
    }
    close(k->fd);
    k->reused = false;
    k->sent = 0;
    c->t->run->retried++;
    conn_open(c, k);
}

static void send_some(client *c, conn *k)
{
    ssize_t n = send(k->fd, k->out.data + k->sent, k->out.size - k->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        end_broken(c, k, errno);
        return;
    }
    if (n > 0) k->sent += (size_t)n;
    bool all = k->sent == k->out.size;
    k->state = !all ? CONN_SENDING : k->r.never_read ? CONN_STALLED : CONN_READING;
    watch_socket(c, k, !all ? EPOLLIN | EPOLLOUT : k->r.never_read ? 0 : EPOLLIN);
}

/* False: k has ended or is idle. */
static bool take_bytes(client *c, conn *k, const char *bytes, size_t n)
{
    client_and_conn both = {c, k};
    size_t used;
    http_outcome got = http_response_feed(&k->http, bytes, n, &used, take_body, &both);
    k->r.call.status = k->http.status;
    if (k->r.vanish_after && k->r.call.events >= k->r.vanish_after) {
        end_call(c, k, SERVE_VANISHED, false);
        return false;
    }
    if (got == HTTP_MORE) return true;
    if (got == HTTP_BAD) track_example(c->t, SERVE_MALFORMED, k->http.wrong);
    bool keep = got == HTTP_WHOLE && used == n && k->http.keep_alive && k->state == CONN_READING;
    end_call(c, k, got == HTTP_BAD ? SERVE_MALFORMED : judge_answer(c, k), keep);
    return false;
}

static void receive(client *c, conn *k)
{
    char bytes[READ_BYTES];
    ssize_t n = recv(k->fd, bytes, sizeof bytes, 0);
    if (n > 0) {
        k->got_bytes = true;
        take_bytes(c, k, bytes, (size_t)n);
    } else if (n == 0 && k->got_bytes && http_response_end(&k->http) == HTTP_WHOLE) {
        end_call(c, k, judge_answer(c, k), false);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        end_broken(c, k, n == 0 ? 0 : errno);
    }
}

/* ---- the client ------------------------------------------------------------------------------ */

conn *client_take(client *c)
{
    conn *k = c->idle;
    if (k) {
        c->idle = k->next_idle;
    } else {
        if (c->n_conns == c->conns_capacity) {
            size_t capacity = c->conns_capacity ? c->conns_capacity * 2 : 64;
            conn **grown = alloc_resize(NULL, c->conns, capacity, sizeof *grown);
            if (!grown) return NULL;
            c->conns = grown;
            c->conns_capacity = capacity;
        }
        k = calloc(1, sizeof *k);
        if (!k) return NULL;
        k->fd = -1;
        k->place = c->n_conns;
        c->conns[c->n_conns++] = k;
    }
    strbuf_clear(&k->out);
    return k;
}

void client_send(client *c, conn *k)
{
    k->got_bytes = k->done = k->stream_error = k->bad_json = false;
    k->sent = 0;
    http_response_reset(&k->http);
    sse_reset(&k->sse);
    strbuf_clear(&k->body);
    track_start(c->t, &k->r);
    k->reused = k->fd >= 0;
    if (k->reused) send_some(c, k);
    else conn_open(c, k);
}

static int socket_error(int fd)
{
    int code = 0;
    socklen_t size = sizeof code;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
    return code;
}

void client_event(client *c, conn *k, uint32_t events)
{
    switch (k->state) {
    case CONN_IDLE: /* an event without a request: the connection is of no more use */
        forget_idle(c, k);
        conn_destroy(c, k);
        return;
    case CONN_STALLED: end_broken(c, k, socket_error(k->fd)); return;
    case CONN_CONNECTING:
        if (events & (EPOLLERR | EPOLLHUP)) end_broken(c, k, socket_error(k->fd));
        else if (events & EPOLLOUT) send_some(c, k);
        return;
    case CONN_SENDING: /* an answer may come before all has been sent */
        if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(c, k);
        else send_some(c, k);
        return;
    case CONN_READING: receive(c, k); return;
    }
}

void client_sweep(client *c)
{
    int64_t oldest = c->t->now_us - (int64_t)(c->t->o->timeout_s * 1e6);
    for (size_t i = c->n_conns; i-- > 0;) {
        conn *k = c->conns[i];
        if (k->r.never_read || k->state == CONN_IDLE || k->r.start_us > oldest) continue;
        end_call(c, k, SERVE_TIMEOUT, false);
    }
}

void client_close_all(client *c)
{
    while (c->n_conns) {
        conn *k = c->conns[c->n_conns - 1];
        free(k->r.call.itls);
        conn_destroy(c, k);
    }
    free(c->conns);
}
