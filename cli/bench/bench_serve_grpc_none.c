/* A build without gRPC. */
#include "cli/bench/bench_serve_grpc.h"

status serve_grpc_create(serve_tracker *t, serve_grpc **out, error *err)
{
    (void)t;
    (void)out;
    return error_set(err, STATUS_UNSUPPORTED, "--protocol grpc: this build has no gRPC");
}

void serve_grpc_destroy(serve_grpc *g) { (void)g; }

void serve_grpc_send(serve_grpc *g, const serve_request *r, const char *id, const strbuf *prompt)
{
    (void)g;
    (void)r;
    (void)id;
    (void)prompt;
}

void serve_grpc_wait(serve_grpc *g, int64_t us)
{
    (void)g;
    (void)us;
}

void serve_grpc_sweep(serve_grpc *g) { (void)g; }
