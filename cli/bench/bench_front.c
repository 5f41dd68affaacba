#include "cli/bench/bench_front.h"

#include "rpc/rpc.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    BODY_BYTES_MAX = 8 << 20,
    CONNECTIONS_MAX = 4096,
    STREAMS_MAX = 1024,
    TIMEOUT_S = 60,
};

struct bench_front {
    rpc_server *server;
};

status bench_front_open(const bench_front_options *o, bench_front **out, error *err)
{
    static const char *const names[] = {"null"};
    rpc_options r = {
        .engine = o->engine,
        .model = {.names = names,
                  .n_names = 1,
                  .dir = "",
                  .architecture = "null",
                  .tokenizer = o->tokenizer,
                  .bos = "",
                  .eos = "",
                  .defaults = {.top_p = 1, .repetition_penalty = 1},
                  .bos_id = -1,
                  .vocab_size = o->vocab_size,
                  .max_model_len = o->max_model_len,
                  .page_tokens = o->page_tokens,
                  .n_pages = o->n_pages,
                  .n_blocks = o->n_blocks,
                  .max_batch = o->max_batch,
                  .max_requests = o->max_requests,
                  .weight_dtype = "none",
                  .kv_dtype = "none",
                  .isa = "none"},
        .version = OCTAVO_VERSION,
        .http_address = o->http,
        .grpc_address = o->grpc,
        .otlp_traces_endpoint = o->traces,
        .grpc_threads = 2, /* as octavo serve */
        .max_body_bytes = BODY_BYTES_MAX,
        .max_connections = CONNECTIONS_MAX,
        .max_grpc_descriptors = CONNECTIONS_MAX,
        .max_streams = STREAMS_MAX,
        .stall_timeout_us = INT64_C(1000000) * TIMEOUT_S,
        .keepalive_timeout_us = INT64_C(1000000) * TIMEOUT_S,
    };
    bench_front *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = rpc_server_create(&r, &f->server, err);
    if (!status_ok(st)) {
        free(f);
        return st;
    }
    if (o->http) fprintf(stderr, "HTTP at port %u\n", rpc_server_http_port(f->server));
    if (o->grpc) fprintf(stderr, "gRPC at port %u\n", rpc_server_grpc_port(f->server));
    *out = f;
    return STATUS_IS_OK;
}

void bench_front_close(bench_front *f)
{
    if (!f) return;
    rpc_server_destroy(f->server);
    free(f);
}
