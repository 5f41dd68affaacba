/* A receiver of traces: it takes requests one by one, keeps them, and answers as it is told. */
#ifndef TESTS_UNIT_RPC_OTLP_FIXTURE_H
#define TESTS_UNIT_RPC_OTLP_FIXTURE_H

#include "rpc/otlp/internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { REQUESTS_MAX = 16, HEAD_MAX = 4096, BODY_MAX = 1 << 20, WAIT_S = 120 };

/* Answers of the receiver, in order; the last one repeats. */
#define OK      "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
#define BUSY    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
#define HOLD    NULL // none
#define HANG_UP ""   // none, and the connection is closed

typedef struct receiver {
    int listen_fd, stop_fd;
    char url[64];
    pthread_t thread;
    const char *const *answers;
    size_t n_answers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n, n_connections; // requests, connections so far
    char heads[REQUESTS_MAX][HEAD_MAX];
    Otlp__ExportTraceServiceRequest *bodies[REQUESTS_MAX];
} receiver;

receiver *open_receiver(const char *const *answers, size_t n);
void close_receiver(receiver *r);
/* Waits until n requests have come. */
void await_requests(receiver *r, size_t n);
/* The spans of request i, which must be well-formed. */
const Otlp__ScopeSpans *spans_of(const receiver *r, size_t i);

#endif
