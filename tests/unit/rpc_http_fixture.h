/* The HTTP front end around an engine with a scripted model, and a client that sends raw bytes. */
#ifndef TESTS_UNIT_RPC_HTTP_FIXTURE_H
#define TESTS_UNIT_RPC_HTTP_FIXTURE_H

#include "rpc/http/http.h"

#include <stdatomic.h>

/* ---- the server ------------------------------------------------------------------------------ */

enum { FIXTURE_SEQS = 8, FIXTURE_ROWS = 128 };

typedef struct scripted {
    backend_info info;
    uint32_t token;          // what every choice samples
    _Atomic bool hold;       // steps wait while set
    _Atomic uint32_t nap_us; // duration of a step
    const step_plan *plan;
    step_result result;
    step_seq_result seqs[FIXTURE_SEQS];
    step_sample samples[FIXTURE_SEQS * 8];
} scripted;

typedef struct fixture {
    scripted model;
    backend backend;
    tokenizer *tokenizer;
    chat_template *chat;
    engine *engine;
    rpc_options options; // a test may change them before fixture_start
    service service;
    http_server *server;
} fixture;

/* max_requests: the engine's limit. */
fixture *fixture_make(uint32_t max_requests);
void fixture_start(fixture *f);
void fixture_stop(fixture *f); // stops the server alone
void fixture_destroy(fixture *f);

uint32_t fixture_in_flight(fixture *f);
/* Waits until n requests are in flight; fails the test after some seconds. */
void wait_in_flight(fixture *f, uint32_t n);
/* Waits until n requests are in flight and the engine has admitted as many. */
void wait_running(fixture *f, uint32_t n);
void wait_aborted(fixture *f, uint64_t n);
void nap_ms(int ms);

/* ---- the client ------------------------------------------------------------------------------ */

int client_open(const fixture *f);
void client_send(int fd, const char *text);
void client_send_bytes(int fd, const void *bytes, size_t n);

/* 0 at the end of the connection. A server that is silent for long fails the test. */
size_t client_receive(int fd, void *out, size_t n);

typedef struct reply {
    unsigned status; // 0: closed without an answer
    char head[4096];
    char *body; // chunks joined; NUL-terminated
    size_t body_bytes;
    bool cut; // the connection ended inside the answer
} reply;

/* Reads one answer and leaves unread what follows it. An answer to HEAD has no body. */
reply client_read(int fd, bool is_head);
void reply_free(reply *r);
/* True when the server has closed the connection and nothing was left to read. */
bool client_at_end(int fd);
/* Sends a request, reads one answer, closes. */
reply ask(const fixture *f, const char *request);
/* POSTs JSON to path on a connection of its own. */
reply post(const fixture *f, const char *path, const char *json);
void send_post(int fd, const char *path, const char *headers, const char *json);
unsigned count_of(const char *text, const char *what);

#endif
