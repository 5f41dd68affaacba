/* The core that HTTP and gRPC share (private to rpc/): admission, generations, keys, the log line
 * of a request, KV events for subscribers. It knows no protocol.
 *
 * Threads  any front-end thread may call any function; only one thread uses a given generation. */
#ifndef RPC_SERVICE_H
#define RPC_SERVICE_H

#include "rpc/otlp/otlp.h"
#include "rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- listeners: callbacks for changes -------------------------------------------------------- */

/* A node in a list of callbacks; it lies inside its owner's struct. */
typedef struct listener {
    engine_notify notify; // must not block; called under the list's lock
    void *ctx;
    struct listener *prev, *next; // NULL when not in a list
} listener;

typedef struct listener_list {
    pthread_mutex_t lock;
    listener *first;
} listener_list;

void listeners_init(listener_list *list);
void listeners_destroy(listener_list *list);
void listeners_add(listener_list *list, listener *l);
/* When this returns, l is not running and is never called again. */
void listeners_remove(listener_list *list, listener *l);
void listeners_notify(listener_list *list);

/* ---- answers, by route and code (answers.c) -------------------------------------------------- */

enum { ANSWER_ROWS_MAX = 512, ANSWER_CODE_BYTES = 24 };

typedef struct answer_count {
    const char *surface, *route; // static
    char code[ANSWER_CODE_BYTES];
    uint64_t n;
    bool of_api;
    uint64_t n_timed;
    double seconds; // of the n_timed answers that have ended
} answer_count;

typedef struct answer_counts {
    pthread_mutex_t lock;
    answer_count rows[ANSWER_ROWS_MAX];
    size_t n_rows;
    /* Log lines that may be written before the next answers_tick: of requests without a valid key,
     * then of each key, so that no sender takes the lines of another. */
    uint8_t *lines_left; // [n_senders]
    uint32_t n_senders;
    uint64_t lines_skipped;
} answer_counts;

/* An answer sent to a client. */
typedef struct service_answer {
    const char *surface; // "http", "grpc"; static, as is route
    const char *route;   // a path of the table of routes; "other" for any other path
    const char *code;    // "404", "NOT_FOUND"
    const char *id;      // of the request; NULL = none
    const char *message; // why the request was refused; NULL = none
    uint32_t key;        // the sender's, by service_key_ok
    bool of_api;         // over HTTP, by a route that clients with keys call, not by a probe
    bool is_refusal;
    bool is_own_message; // the message holds no bytes that the client sent
} service_answer;

/* ---- the service ----------------------------------------------------------------------------- */

/* Why a request was refused. */
typedef enum service_refusal {
    REFUSED_QUEUE_FULL,
    REFUSED_DRAINING,
    REFUSED_UNAVAILABLE, // the backend restarts, or cannot be restarted
    SERVICE_REFUSALS,
} service_refusal;

enum { SERVICE_KEY_BYTES_MAX = 256, SERVICE_ID_BYTES_MAX = 128, SERVICE_BUCKETS = 1024 };
enum { SERVICE_IDENTITY_BYTES = 65, SERVICE_ENGINE_ID_BYTES = 17 }; // with the NUL

typedef struct service {
    rpc_options o; // engine, model, log, events, keys
    int64_t start_us;
    double start_time; // seconds since 1970
    _Atomic bool draining;
    listener_list state_listeners; // called when `service_is_serving` may have changed
    _Atomic uint32_t in_flight;    // generations
    _Atomic int64_t last_receive_us;
    _Atomic uint64_t next_id;
    _Atomic uint64_t body_bytes; // of the bodies that service_take_body has admitted
    uint64_t id_salt;

    _Atomic uint64_t refused[SERVICE_REFUSALS]; // requests refused
    uint64_t refused_logged[SERVICE_REFUSALS];  // how many of them the log counts (service_tick)
    int64_t refused_logged_us;
    _Atomic uint64_t n_idle_closed; // idle HTTP connections closed early, to make room
    uint64_t idle_closed_logged;    // how many of them the log counts (service_tick)
    bool was_serving;               // at the last service_tick

    struct service_keys *keys; // NULL = no keys: open to all
    /* Set by openai_choose_parsers. NULL = none: with leaves_calls calls stay text, otherwise
     * their format is not known. */
    const struct tool_parser *tool_parser;
    const struct reasoning_parser *reasoning_parser;
    bool leaves_calls;
    struct response_store *responses; // of /v1/responses; set by openai_open; NULL = none are kept
    char *tokenizer_info;             // JSON; set by openai_open; NULL = the model has none
    tracer *tracer;                   // set by the server; NULL = requests are not traced
    answer_counts answers;

    pthread_mutex_t lock;                     // guards the fields below
    struct generation *live[SERVICE_BUCKETS]; // by the hash of their ids
    double duration_us; // smoothed time from a generation's start to its release; 0 = not known
} service;

/* Fails for keys that are empty, too long, or hold bytes that no header can carry. */
status service_init(service *s, const rpc_options *options);
/* Call it after every generation has been released. */
void service_destroy(service *s);
/* Writes the engine id of vLLM's connectors, which is another one at each start of the server
 * (transfer_params.c). */
void service_engine_id(const service *s, char id[SERVICE_ENGINE_ID_BYTES]);
/* Appends what became of a request's kv_transfer_params as vLLM's answers have it: for another
 * server to fetch the prompt by, or where the prompt's K and V came from (transfer_params.c). */
void service_put_transfer(const service *s, const engine_transfer *t, strbuf *out);
/* One thread calls this a few times a second. It calls the state's listeners when the engine has
 * changed its state by itself, and logs refused requests and connections closed early, each in at
 * most one line a second. */
void service_tick(service *s);
/* Counts an answer; logs it if it is a refusal, in at most ten lines a second for each key and ten
 * for requests without one. */
void service_count_answer(service *s, const service_answer *answer);
/* Adds the time from a request's head to its answer's end, for an answer that was counted. */
void service_time_answer(service *s, const service_answer *answer, double seconds);
/* False when memory is out. */
bool answers_init(answer_counts *a, uint32_t n_keys);
void answers_destroy(answer_counts *a);
/* Called once a second: logs how many lines were skipped, and allows ten new ones. */
void answers_tick(service *s);
/* Counts a refused request. Front ends need not call it: generation_start does. */
void service_count_refusal(service *s, service_refusal why);
const char *service_refusal_name(service_refusal why); // "queue_full", …

void service_drain(service *s);
/* True unless the service is draining, or the engine is broken or restarting. */
bool service_is_serving(service *s);
/* "serving", "draining", "restarting", "broken" */
const char *service_state(service *s);

/* True when the model is served by `name`; "" and NULL stand for its first name. */
bool service_knows_model(const service *s, const char *name, size_t n);
/* Checks the value of an `authorization` header ("Bearer KEY", NULL = absent) against all keys. The
 * time taken does not show how much of a key was right. True when the service has no keys. *number
 * (unless NULL) receives the key's number, from 1 to service_key_count; 0 without a valid key. */
bool service_key_ok(const service *s, const char *authorization, uint32_t *number);
uint32_t service_key_count(const service *s);
/* True when a sender of this `authorization` value may read and change what belongs to other keys:
 * the value holds an administrator's key, or the service has no keys. */
bool service_is_admin(const service *s, const char *authorization);
/* Writes the identity of the sender of an `authorization` value that service_key_ok accepted: a
 * digest of the key, so that the key itself is passed no further. "" when there are no keys. */
void service_identity(const service *s, const char *authorization,
                      char out[SERVICE_IDENTITY_BYTES]);
/* Counts n more bytes of a request's body; false, and nothing is counted, when the memory for
 * bodies (rpc_options.body_memory_bytes) would be exceeded. */
bool service_take_body(service *s, size_t n);
/* The request that took n bytes in all is over. */
void service_give_body(service *s, size_t n);
/* Seconds after which a refused client may try again: a quarter of the usual duration of a request
 * (with its time in the queue), 1 to 60. */
uint32_t service_retry_after_s(service *s);

/* ---- generations: engine requests that share one answer -------------------------------------- */

typedef struct generation generation;

typedef struct generation_options {
    const char *id;       // for the log and for Abort; copied; "" or NULL: one is made
    const char *surface;  // "http", "octavo.v1", "vllm", "kserve"; static
    engine_notify notify; // as engine_submit's: called when an output can be read
    void *notify_ctx;
    const char *identity; // owner of the sessions and the id (service_identity); NULL = ""
    bool shares_id;       // other live generations may have the id; an Abort of it ends them all
    const trace_headers *trace; // the request's headers about traces; NULL = it has none
    uint32_t *refused;          // receives the number of a request that is refused; NULL: untold
} generation_options;

/* Submits n requests (one for each prompt of an array), all with the same number of choices. When
 * one request is refused, those before it are aborted, and notify is not called after the return.
 * STATUS_UNAVAILABLE: the service is draining. STATUS_INVALID: the id is too long, or a live
 * generation of the same identity has it and neither shares it. notify may be called before
 * this returns. */
status generation_start(service *s, const engine_request *requests, uint32_t n,
                        const generation_options *o, generation **out, error *err);

typedef struct generation_output {
    uint32_t index;   // prompt * n_choices + choice
    uint32_t request; // index of the request
    engine_output out;
} generation_output;

/* Returns the error with which generation_start would refuse any request now, so that a request can
 * be refused before it is read. After STATUS_IS_OK generation_start can still refuse. */
status generation_admits(service *s, error *err);

/* Reads one output. False when there is none now. The text in *out is valid until the next read,
 * other pointers until the release. */
bool generation_read(generation *g, generation_output *out);
/* True when the end of every choice of every request has been read. */
bool generation_ended(const generation *g);
const char *generation_id(const generation *g);
/* The prompt of one request, known once the request's first output has been read. */
engine_prompt generation_prompt(const generation *g, uint32_t request);
const float *generation_pooled(const generation *g, uint32_t request, uint32_t *n);
/* The factor that makes the L2 norm of such a vector 1; 0 where it has none. */
float generation_scale_of(const float *values, uint32_t n);
void generation_abort(generation *g);
/* Aborts choices that still run, logs a line for each request, ends its span, and frees the
 * generation. notify is not called after this returns. */
void generation_release(generation *g);
/* Aborts the live generation that has this identity and id; with identity NULL, all live ones that
 * have this id. Returns how many it aborted. Any thread may call it. */
uint32_t service_abort(service *s, const char *identity, const char *id, size_t n);

/* ---- for people to look at (pages.c) --------------------------------------------------------- */

/* Both append a JSON object about live generations of this identity, or with identity NULL of all,
 * and wait for nothing. Any thread may call them.
 * service_pages      the map of the pages of the first request of a generation; false when none is
 *                    so named
 * service_overview   the pool, and which generations are live */
bool service_pages(service *s, const char *identity, const char *id, strbuf *out);
void service_overview(service *s, const char *identity, strbuf *out);

/* ---- KV events for subscribers (events.c) ---------------------------------------------------- */

typedef struct kv_event {
    uint64_t sequence; // 1, 2, 3, …
    double time;       // seconds since 1970
    enum { KV_STORED, KV_REMOVED, KV_CLEARED } kind;
    uint64_t hash, parent;
    bool hidden;            // stored under a salt or for a session: its tokens stay private
    const uint32_t *tokens; // [page_tokens] when stored and not hidden
} kv_event;

/* The sequence number that the next event will have. */
uint64_t rpc_events_next(rpc_events *e);
/* The sequence number of the oldest event kept; rpc_events_next when there is none. */
uint64_t rpc_events_oldest(rpc_events *e);
/* Copies event `sequence`, its tokens into tokens [page_tokens]. STATUS_NOT_FOUND: it has not
 * happened yet. STATUS_LIMIT: it is no longer kept. */
status rpc_events_read(rpc_events *e, uint64_t sequence, kv_event *out, uint32_t *tokens);
listener_list *rpc_events_listeners(rpc_events *e);

/* ---- lines of the log (log.c) ---------------------------------------------------------------- */

/* A text of a client is cut to so many bytes in a line. */
enum { RPC_LOG_TEXT_MAX = 16384 };

bool rpc_log_shows_prompts(const rpc_log *log);
/* A line is begun, gets members (text, number, ms), and is ended: rpc_log_end writes it to the log
 * and leaves the strbuf empty. */
void rpc_log_begin(strbuf *line, const char *level, const char *event);
void rpc_log_text(strbuf *line, const char *key, const char *text, size_t n);
void rpc_log_number(strbuf *line, const char *key, uint64_t value);
void rpc_log_ms(strbuf *line, const char *key, double us); // in milliseconds
void rpc_log_end(rpc_log *log, strbuf *line);

/* ---- text ------------------------------------------------------------------------------------ */

/* Appends the Prometheus page: engine, pages, retention, service. */
void metrics_text(service *s, strbuf *out);

#endif
