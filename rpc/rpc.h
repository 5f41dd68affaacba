/* rpc: gRPC and HTTP in front of an engine.
 *
 * What     OpenAI-compatible HTTP (libmicrohttpd); gRPC services octavo.v1, VllmEngine, KServe v2,
 *          health and reflection (gRPC core and protobuf-c). Front ends enqueue requests and stream
 *          from the engine's bounded rings; nothing here computes.
 * Owner    a server borrows engine, model facts, log and events: they must outlive it. Options are
 *          copied, what they point to is borrowed.
 * Threads  one or two of libmicrohttpd, one that watches for clients that go away, one for gRPC's
 *          completion queue, one that looks at the engine's state four times a second. Functions
 *          here: any thread, create and destroy from one.
 * Units    microseconds, bytes.
 * Errors   a server that cannot start says why in one line (address in use, certificate); later
 *          trouble belongs to the request that has it. */
#ifndef RPC_RPC_H
#define RPC_RPC_H

#include "engine/engine.h"

/* ---- the log: one JSON object a line --------------------------------------------------------- */

typedef struct rpc_log rpc_log;

/* Writes to fd (borrowed), a line at a time. prompts: requests' lines hold prompt and output text.
 * A reader that does not read (a full pipe) holds a writer up for 20 ms, once: from then on lines
 * are dropped until there is room, and the next line says how many were. */
status rpc_log_create(int fd, bool prompts, rpc_log **out);
void rpc_log_destroy(rpc_log *log);
/* {"time", "level", "event", "message"}. level: "info", "warning", "error". Any thread. A NULL log
 * swallows everything. */
void rpc_log_note(rpc_log *log, const char *level, const char *event, const char *message);

/* ---- KV events: blocks of the prefix cache, kept for subscribers ----------------------------- */

typedef struct rpc_events rpc_events;

/* Keeps the last `capacity` events. Made before the engine, whose on_block feeds it. */
status rpc_events_create(uint32_t capacity, uint32_t page_tokens, rpc_events **out);
void rpc_events_destroy(rpc_events *events);
/* An engine_options.on_block; ctx is the rpc_events. */
void rpc_events_on_block(void *events, const pkv_block_event *event);

/* ---- the server ------------------------------------------------------------------------------ */

/* What clients are told about the model, and what requests are checked against. */
typedef struct rpc_model {
    const char *const *names; // served names, at least one; answers carry the one asked for
    size_t n_names;
    const char *dir;
    const char *architecture; // "LlamaForCausalLM"
    const tokenizer *tokenizer;
    const chat_template *chat; // NULL = none
    const char *bos, *eos;     // texts for the template
    engine_defaults defaults;
    const uint32_t *eos_ids;
    uint32_t n_eos_ids;
    int64_t bos_id; // -1 = none
    uint32_t vocab_size, max_model_len;
    uint32_t page_tokens;
    uint32_t n_pages; // that sequences can have
    uint32_t max_batch, max_requests;
    const char *weight_dtype, *kv_dtype, *isa;
} rpc_model;

/* Ranks in other processes. */
typedef struct rpc_workers {
    uint32_t n, up;
    uint64_t lost; // so far
} rpc_workers;

/* Connections beyond max_connections that are still taken, or half of max_connections where that is
 * less. Requests on them are answered by 503, except those for health. */
enum { RPC_SURPLUS_CONNECTIONS = 64 };

/* Whether this can be a bearer key: 1 to 256 visible ASCII characters, as a header carries them. */
bool rpc_key_is_valid(const char *key);

typedef struct rpc_options {
    engine *engine;
    rpc_model model;
    rpc_log *log;
    rpc_events *events;
    const char *version;      // of octavo
    const char *http_address; // "host:port", "[::]:port"; port 0 = any free one; NULL = no HTTP
    const char *grpc_address;
    const char *tls_cert, *tls_key; // PEM files; NULL = plain text
    const char *tls_client_ca;      // PEM file: clients must show a certificate it signed
    const char *const *api_keys;    // bearer keys of clients
    size_t n_api_keys;
    /* Bearer keys of administrators. They may do all that a client's key may, and also read KV
     * events, call FlushCache and abort any request. Where there are clients' keys alone these
     * calls are refused; a server without keys of either kind is open to all. */
    const char *const *admin_keys;
    size_t n_admin_keys;
    size_t max_body_bytes;        // of an HTTP body and of a gRPC message
    uint32_t max_connections;     // HTTP; RPC_SURPLUS_CONNECTIONS more are told to come again
    uint32_t max_streams;         // gRPC, for each connection
    int64_t stall_timeout_us;     // a stream that its client has not read for so long is aborted
    int64_t keepalive_timeout_us; // idle connections, and HTTP headers or bodies that trickle in
    void (*workers)(void *ctx, rpc_workers *out); // any thread; NULL: there are none
    void *workers_ctx;
} rpc_options;

typedef struct rpc_server rpc_server;

/* Tries the addresses and certificates of such a server, so that an error in them is reported
 * before a model is loaded. Checks nothing else. */
status rpc_server_check(const rpc_options *options, error *err);
/* Listens and serves when it returns. */
status rpc_server_create(const rpc_options *options, rpc_server **out, error *err);
uint16_t rpc_server_http_port(const rpc_server *s); // 0 = none
uint16_t rpc_server_grpc_port(const rpc_server *s);
/* Health turns NOT_SERVING and nothing new is admitted; what runs goes on. */
void rpc_server_drain(rpc_server *s);
/* Requests admitted whose answers have not gone out whole. */
uint32_t rpc_server_in_flight(const rpc_server *s);
/* Aborts what still runs (its clients are told), stops listening, joins the threads. */
void rpc_server_destroy(rpc_server *s);

#endif
