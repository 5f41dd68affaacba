/* rpc: the gRPC and HTTP servers in front of an engine.
 *
 * What     HTTP (libmicrohttpd) as OpenAI and KServe have it; gRPC services octavo.v1, VllmEngine,
 *          KServe v2, health and reflection (gRPC core and protobuf-c). The front ends submit
 *          requests to the engine and stream its outputs from bounded rings; they compute nothing.
 * Owner    a server borrows the engine, the model's facts, the log and the events, which must
 *          outlive it. Options are copied; their pointers are borrowed.
 * Threads  libmicrohttpd's two, one that watches for HTTP clients that go away, one for each of
 *          gRPC's completion queues, two for large requests in each front end, one that reads the
 *          engine's state four times a second, for KV events over ZeroMQ one beside its own, and
 *          one for traces.
 *          Functions may be called on any thread; create and destroy a server on the same one.
 * Units    microseconds, bytes.
 * Errors   a server that cannot start says why in one line (address in use, certificate). A later
 *          error fails the request that met it and no other. */
#ifndef RPC_RPC_H
#define RPC_RPC_H

#include "engine/engine.h"

/* ---- the log: one JSON object a line --------------------------------------------------------- */

typedef struct rpc_log rpc_log;

/* Makes a log that writes whole lines to fd (borrowed). prompts: the lines of requests hold prompt
 * and output text. When the reader stops reading (a full pipe), one line waits 20 ms; later lines
 * are dropped until there is room again, and the next line says how many were dropped. */
status rpc_log_create(int fd, bool prompts, rpc_log **out);
void rpc_log_destroy(rpc_log *log);
/* Writes {"time", "level", "event", "message"}. level: "info", "warning", "error". Any thread may
 * call it. With a NULL log it does nothing. */
void rpc_log_note(rpc_log *log, const char *level, const char *event, const char *message);

/* ---- KV events: blocks of the prefix cache, kept for subscribers ----------------------------- */

typedef struct rpc_events rpc_events;

/* Makes a ring of the last `capacity` events. Make it before the engine, whose on_block feeds
 * it. */
status rpc_events_create(uint32_t capacity, uint32_t page_tokens, rpc_events **out);
void rpc_events_destroy(rpc_events *events);
/* For engine_options.on_block; its ctx is the rpc_events. */
void rpc_events_on_block(void *events, const pkv_block_event *event);

/* ---- the server ------------------------------------------------------------------------------ */

/* Facts about the model that clients can ask for and that requests are checked against. */
typedef struct rpc_model {
    const char *const *names; // served names, at least one; answers carry the one asked for
    size_t n_names;
    const char *dir;
    const char *architecture; // "LlamaForCausalLM"
    const tokenizer *tokenizer;
    const chat_template *chat; // NULL = none
    const char *bos, *eos;     // their text, for the chat template
    engine_defaults defaults;
    const uint32_t *eos_ids;
    uint32_t n_eos_ids;
    int64_t bos_id; // -1 = none
    uint32_t vocab_size, max_model_len, max_logical_len;
    uint32_t page_tokens;
    uint32_t n_pages;  // pages that sequences can have, of a layer and a KV head each
    uint32_t n_blocks; // of page_tokens tokens each, with a page of every layer and KV head
    uint32_t max_batch, max_requests;
    const char *weight_dtype, *kv_dtype, *isa;
} rpc_model;

/* The ranks in other processes. */
typedef struct rpc_workers {
    uint32_t n, up;
    uint64_t lost; // ranks lost so far
} rpc_workers;

/* How many connections beyond max_connections are accepted; half of max_connections where that is
 * less. Requests on them get 503, except requests for health. When they are all taken, the
 * connection that has been idle for the longest is closed for each new one. */
enum { RPC_SURPLUS_CONNECTIONS = 64 };

/* Most bytes of memory that a request was seen to take for each byte of its body, while it is
 * parsed and tokenized, with a fifth on top: 26 for a text of one long word, 25 for token ids, 5
 * for ordinary text. */
enum { RPC_BODY_FACTOR = 32 };

/* While requests that run hold stored responses which have lost their place, so many times the
 * bytes of the store are taken: an API key cannot empty the others' conversations by holding its
 * own. */
enum { RPC_RESPONSES_FACTOR = 2 };

/* True when key can be a bearer key: 1 to 256 visible ASCII characters, as headers carry them. */
bool rpc_key_is_valid(const char *key);

typedef struct rpc_options {
    engine *engine;
    rpc_model model;
    rpc_log *log;
    rpc_events *events;
    const char *version;      // octavo's version
    const char *commit;       // that it was built from; "" or NULL = not known
    const char *http_address; // "host:port", "[::]:port"; port 0 = any free port; NULL = no HTTP
    const char *grpc_address;
    /* JSON of vLLM's --kv-events-config: KV events are published over ZeroMQ. NULL = they are not.
     * Where the server has keys, no address that other machines reach is listened on. */
    const char *kv_events_config;
    /* The URL (OTLP over HTTP) that gets a span of each request. NULL = there are none. More
     * settings are OpenTelemetry's environment variables (docs/serving.md). */
    const char *otlp_traces_endpoint;
    const char *kv_role;            // vLLM's kv_role of engine_options.transfer; NULL = none
    const char *tls_cert, *tls_key; // PEM files; NULL = plain text
    const char *tls_client_ca;      // PEM file: clients must show a certificate it signed
    const char *const *api_keys;    // bearer keys of clients
    size_t n_api_keys;
    /* Bearer keys of administrators. An administrator may do all that a client may, and also read
     * KV events, call FlushCache and abort any request. A server that has only clients' keys
     * refuses these calls; a server without any keys is open to all. */
    const char *const *admin_keys;
    size_t n_admin_keys;
    const char *const *cors_origins; // pages whose scripts may read answers; "*" = all
    size_t n_cors_origins;
    size_t max_body_bytes; // of an HTTP body and of a gRPC message
    /* Memory that requests may take together, each RPC_BODY_FACTOR bytes for a byte of its body
     * from the body's arrival to the end of the answer. A request beyond it is refused as when the
     * queue is full. Room for less than one max_body_bytes refuses the largest bodies always. 0 =
     * no limit but that of 64 of the largest bodies. */
    uint64_t body_memory_bytes;
    uint32_t max_connections;      // HTTP; RPC_SURPLUS_CONNECTIONS more are answered by 503
    uint32_t max_grpc_descriptors; // of gRPC connections; those beyond wait
    uint32_t max_streams;          // gRPC, for each connection
    uint32_t grpc_threads;         // completion queues, with a thread each; 0 = 1
    int64_t stall_timeout_us;      // a stream whose client reads nothing for so long is aborted
    int64_t keepalive_timeout_us;  // for idle connections and for HTTP requests that come slowly
    /* The format of tool calls in a chat's answer, by the name of its parser. NULL and "auto": what
     * the chat template tells; "none": calls stay text. */
    const char *tool_call_parser;
    const char *reasoning_parser; // likewise, of reasoning
    uint64_t responses_bytes;     // of stored answers of /v1/responses; 0 = none are stored.
                                  // RPC_RESPONSES_FACTOR times as much where requests hold some
    int64_t responses_ttl_us;     // after which one that nobody used is forgotten
    bool no_ui;                   // HTTP serves no page at / and no data for it
    bool request_templates;       // a request may bring a chat template of its own
    void (*workers)(void *ctx, rpc_workers *out); // called on any thread; NULL: no workers
    void *workers_ctx;
} rpc_options;

typedef struct rpc_server rpc_server;

/* Tries the addresses and certificates, and nothing else, so that an error in them is reported
 * before a model is loaded. */
status rpc_server_check(const rpc_options *options, error *err);
/* The server listens and serves when this returns. */
status rpc_server_create(const rpc_options *options, rpc_server **out, error *err);
uint16_t rpc_server_http_port(const rpc_server *s); // 0 = none
uint16_t rpc_server_grpc_port(const rpc_server *s);
/* Sets health to NOT_SERVING and admits no new request; admitted requests go on. */
void rpc_server_drain(rpc_server *s);
/* How many admitted requests have not been answered completely. */
uint32_t rpc_server_in_flight(const rpc_server *s);
/* rpc_server_destroy will send the spans that are left as far as that is done at this time of the
 * monotonic clock, or, where it has passed, within a second. Without this call it sends none. */
void rpc_server_flush_until(rpc_server *s, int64_t until_us);
/* Aborts all requests (their clients get an error), stops listening, and joins the threads. */
void rpc_server_destroy(rpc_server *s);

#endif
