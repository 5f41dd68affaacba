#include "tests/unit/rpc_otlp_fixture.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

/* False when the receiver is to stop. */
static bool readable(const receiver *r, int fd)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = r->stop_fd, .events = POLLIN}};
    assert_true(poll(p, 2, -1) > 0);
    return !p[1].revents;
}

/* Reads at least one byte more. False at the end. */
static bool read_more(const receiver *r, int fd, char *bytes, size_t *n, size_t most)
{
    ssize_t got = readable(r, fd) ? recv(fd, bytes + *n, most - *n, 0) : 0;
    *n += got > 0 ? (size_t)got : 0;
    bytes[*n] = '\0';
    return got > 0;
}

static Otlp__ExportTraceServiceRequest *unpack(const char *head, const char *body, size_t n)
{
    uint8_t *plain = NULL;
    if (strstr(head, "Content-Encoding: gzip\r\n")) {
        z_stream z = {.next_in = (Bytef *)(uintptr_t)body, .avail_in = (uInt)n};
        plain = malloc(BODY_MAX);
        z.next_out = plain;
        z.avail_out = BODY_MAX;
        if (inflateInit2(&z, 15 + 16) != Z_OK || inflate(&z, Z_FINISH) != Z_STREAM_END) abort();
        n = z.total_out;
        inflateEnd(&z);
    }
    Otlp__ExportTraceServiceRequest *m =
        otlp__export_trace_service_request__unpack(NULL, n, plain ? plain : (const uint8_t *)body);
    free(plain);
    return m;
}

static const char *note_request(receiver *r, const char *head, const char *body, size_t n)
{
    Otlp__ExportTraceServiceRequest *m = unpack(head, body, n);
    pthread_mutex_lock(&r->lock);
    size_t i = r->n++;
    if (i < REQUESTS_MAX) {
        snprintf(r->heads[i], HEAD_MAX, "%s", head);
        r->bodies[i] = m;
    } else if (m) {
        otlp__export_trace_service_request__free_unpacked(m, NULL);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return r->answers[i < r->n_answers ? i : r->n_answers - 1];
}

/* Takes one request of a connection. False when the connection is to be closed. */
static bool take_request(receiver *r, int fd, char *bytes)
{
    size_t n = 0;
    char *end;
    bytes[0] = '\0';
    while (!(end = strstr(bytes, "\r\n\r\n")))
        if (!read_more(r, fd, bytes, &n, BODY_MAX)) return false;
    const char *length = strstr(bytes, "Content-Length: ");
    size_t n_head = (size_t)(end - bytes) + 4, n_body = length ? strtoul(length + 16, NULL, 10) : 0;
    while (n < n_head + n_body)
        if (!read_more(r, fd, bytes, &n, BODY_MAX)) return false;
    char head[HEAD_MAX];
    snprintf(head, sizeof head, "%.*s", (int)n_head, bytes);
    const char *answer = note_request(r, head, bytes + n_head, n_body);
    if (!answer) { // until the other side gives up
        n = 0;
        while (read_more(r, fd, bytes, &n, BODY_MAX)) continue;
        return false;
    }
    for (size_t left = strlen(answer); left > 0;) {
        ssize_t put = send(fd, answer + strlen(answer) - left, left, MSG_NOSIGNAL);
        if (put <= 0) return false;
        left -= (size_t)put;
    }
    return *answer != '\0' && !strstr(answer, "Connection: close");
}

static void *run_receiver(void *ctx)
{
    receiver *r = ctx;
    char *bytes = malloc(BODY_MAX + 1);
    while (readable(r, r->listen_fd)) {
        int fd = accept(r->listen_fd, NULL, NULL);
        pthread_mutex_lock(&r->lock);
        r->n_connections++;
        pthread_mutex_unlock(&r->lock);
        while (take_request(r, fd, bytes)) continue;
        close(fd);
    }
    free(bytes);
    return NULL;
}

receiver *open_receiver(const char *const *answers, size_t n)
{
    receiver *r = calloc(1, sizeof *r);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    r->answers = answers;
    r->n_answers = n;
    r->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    r->stop_fd = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(bind(r->listen_fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(r->listen_fd, 8), 0);
    assert_int_equal(getsockname(r->listen_fd, (struct sockaddr *)&address, &size), 0);
    snprintf(r->url, sizeof r->url, "http://127.0.0.1:%u/v1/traces", ntohs(address.sin_port));
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    assert_int_equal(pthread_create(&r->thread, NULL, run_receiver, r), 0);
    return r;
}

void close_receiver(receiver *r)
{
    const uint64_t one = 1;
    assert_int_equal(write(r->stop_fd, &one, sizeof one), sizeof one);
    pthread_join(r->thread, NULL);
    for (size_t i = 0; i < REQUESTS_MAX; i++)
        if (r->bodies[i]) otlp__export_trace_service_request__free_unpacked(r->bodies[i], NULL);
    close(r->listen_fd);
    close(r->stop_fd);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void await_requests(receiver *r, size_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&r->lock);
    while (r->n < n)
        if (pthread_cond_timedwait(&r->changed, &r->lock, &until) != 0)
            fail_msg("%zu of %zu requests have come", r->n, n);
    pthread_mutex_unlock(&r->lock);
}

const Otlp__ScopeSpans *spans_of(const receiver *r, size_t i)
{
    const Otlp__ExportTraceServiceRequest *m = r->bodies[i];
    assert_non_null(m);
    assert_int_equal(m->n_resource_spans, 1);
    assert_int_equal(m->resource_spans[0]->n_scope_spans, 1);
    return m->resource_spans[0]->scope_spans[0];
}
