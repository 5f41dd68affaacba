/* The gRPC calls of `octavo bench serve` (private to it): Generate of octavo.v1, all over one
 * connection, as a router has one. One thread. A build without servers has no gRPC. */
#ifndef CLI_BENCH_BENCH_SERVE_GRPC_H
#define CLI_BENCH_BENCH_SERVE_GRPC_H

#include "cli/bench/bench_serve_track.h"

typedef struct serve_grpc serve_grpc;

/* Connects when the first request is sent. *t is borrowed. */
status serve_grpc_create(serve_tracker *t, serve_grpc **out, error *err);
/* Cancels what still runs, without a record of it. */
void serve_grpc_destroy(serve_grpc *g);
/* Sends a copy of r under this id. prompt: a JSON text or list of token ids. How the request ends
 * is recorded in the tracker. */
void serve_grpc_send(serve_grpc *g, const serve_request *r, const char *id, const strbuf *prompt);
/* Handles what has come, after waiting for at most so long. */
void serve_grpc_wait(serve_grpc *g, int64_t us);
/* Ends requests that have taken longer than the limit. */
void serve_grpc_sweep(serve_grpc *g);

#endif
