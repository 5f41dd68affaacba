/* What HTTP and gRPC share (private to rpc/): admission, generations, keys, the log line of a
 * request, the events that subscribers read. Knows no protocol.
 *
 * Threads  everything here may be called by any front-end thread; a generation belongs to one. */
#ifndef RPC_SERVICE_H
#define RPC_SERVICE_H

#include "rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- listeners: who wants to know when something changed ------------------------------------- */

/* A place in a list of callbacks; lives inside its owner. */
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
/* After it returns, l is not called again. */
void listeners_remove(listener_list *list, listener *l);
void listeners_tell(listener_list *list);

/* ---- answers, by route and code (answers.c) ----------------------------------------------------
 */

enum { ANSWER_ROWS_MAX = 512, ANSWER_CODE_BYTES = 24 };

typedef struct answer_count {
    const char *surface, *route; // static
    char code[ANSWER_CODE_BYTES];
    uint64_t n;
} answer_count;

typedef struct answer_counts {
    pthread_mutex_t lock;
    answer_count rows[ANSWER_ROWS_MAX];
    size_t n_rows;
    uint32_t lines_left; // of the log, until the next answers_tick
    uint64_t lines_skipped;
} answer_counts;

/* An answer that goes out. */
typedef struct service_answer {
    const char *surface; // "http", "grpc"; static, as is route
    const char *route;   // a path of the table, "other" for what is in none
    const char *code;    // "404", "NOT_FOUND"
    const char *id;      // of the request; NULL = none
    const char *message; // why it was refused; NULL = none
    bool is_refusal;
    bool is_own_message; // nothing of the client's is in it
} service_answer;

/* ---- the service ----------------------------------------------------------------------------- */

/* Why a request was turned away. */
typedef enum service_refusal {
    REFUSED_QUEUE_FULL,
    REFUSED_DRAINING,
    REFUSED_UNAVAILABLE, // the backend is being made anew, or cannot be
    SERVICE_REFUSALS,
} service_refusal;

enum { SERVICE_KEY_BYTES_MAX = 256, SERVICE_ID_BYTES_MAX = 128, SERVICE_BUCKETS = 1024 };
enum { SERVICE_IDENTITY_BYTES = 65 }; // a text

typedef struct service {
    rpc_options o; // engine, model, log, events, keys
    int64_t start_us;
    double start_time; // seconds since 1970
    _Atomic bool draining;
    listener_list state_listeners; // told when `service_is_serving` may have changed
    _Atomic uint32_t in_flight;    // generations
    _Atomic int64_t last_receive_us;
    _Atomic uint64_t next_id;
    uint64_t id_salt;

    _Atomic uint64_t refused[SERVICE_REFUSALS]; // requests turned away
    uint64_t refused_told[SERVICE_REFUSALS];    // of them, in the log (service_tick only)
    int64_t refused_told_us;
    bool was_serving; // at the last service_tick

    struct service_keys *keys; // NULL = open
    answer_counts answers;

    pthread_mutex_t lock;                     // of what follows
    struct generation *live[SERVICE_BUCKETS]; // by the hash of their ids
    double duration_us; // of generations, from start to release, smoothed; 0 = none has ended
} service;

/* Refuses keys that are empty, too long, or hold bytes that no header can carry. */
status service_init(service *s, const rpc_options *options);
/* Every generation has been released. */
void service_destroy(service *s);
/* To be called a few times a second by one thread: tells the state's listeners of what the engine
 * does by itself, and writes at most one line a second about requests turned away. */
void service_tick(service *s);
/* Counts an answer; logs a refusal, ten lines a second at most. */
void service_count_answer(service *s, const service_answer *answer);
void answers_init(answer_counts *a);
void answers_destroy(answer_counts *a);
/* To be called once a second: logs how many lines were left out. */
void answers_tick(service *s);
/* Counts a request that was turned away. Front ends need not: generation_start does. */
void service_count_refusal(service *s, service_refusal why);
const char *service_refusal_name(service_refusal why); // "queue_full", …

void service_drain(service *s);
/* Neither draining nor with a broken or restarting engine. */
bool service_is_serving(service *s);
/* "serving", "draining", "restarting", "broken" */
const char *service_state(service *s);

/* True when `name` is a name the model is served by; "" and NULL are. */
bool service_knows_model(const service *s, const char *name, size_t n);
/* Checks the value of an `authorization` header ("Bearer KEY", NULL = absent) against all keys, in
 * a time that does not tell how much of a key was right. True when no keys of either kind are set.
 */
bool service_key_ok(const service *s, const char *authorization);
/* Whether the sender of such a value may read and change what belongs to other keys: the value
 * holds an administrator's key, or no keys of either kind are set. */
bool service_is_admin(const service *s, const char *authorization);
/* Who asks, from such a value that service_key_ok has taken: a digest of the key, so that the key
 * itself goes no further. "" when no keys are set. */
void service_identity(const service *s, const char *authorization,
                      char out[SERVICE_IDENTITY_BYTES]);
/* Seconds after which a client that was turned away may try again: a quarter of what requests take,
 * waiting included, 1 to 60. */
uint32_t service_retry_after_s(service *s);

/* ---- generations: requests that are answered together ---------------------------------------- */

typedef struct generation generation;

typedef struct generation_options {
    const char *id;       // for the log and for Abort; copied; "" or NULL = made here
    const char *surface;  // "http", "octavo.v1", "vllm", "kserve"; static
    engine_notify notify; // as engine_submit's: something can be read
    void *notify_ctx;
    const char *identity; // of the sessions and ids, from service_identity; NULL = ""
} generation_options;

/* Submits n requests (an array of prompts has one each), all with the same number of choices. All
 * or nothing: when one is refused, those before it are aborted, and notify is not called after the
 * return. STATUS_UNAVAILABLE while draining. An id that a live generation of the same identity has,
 * or one that is too long, is STATUS_INVALID. notify may come before this returns. */
status generation_start(service *s, const engine_request *requests, uint32_t n,
                        const generation_options *o, generation **out, error *err);

typedef struct generation_output {
    uint32_t index;   // prompt * n_choices + choice
    uint32_t request; // which of the requests
    engine_output out;
} generation_output;

/* What generation_start would say to any request now, so that one that is turned away costs nothing
 * but this. STATUS_IS_OK is no promise. */
status generation_admits(service *s, error *err);

/* False when nothing can be read now. Pointers in *out are valid until the next read. */
bool generation_read(generation *g, generation_output *out);
/* Every choice of every request has ended and been read. */
bool generation_ended(const generation *g);
const char *generation_id(const generation *g);
/* Of one of its requests: valid from its first output on. */
engine_prompt generation_prompt(const generation *g, uint32_t request);
void generation_abort(generation *g);
/* Aborts what still runs, writes a log line for each request, frees. notify is not called after. */
void generation_release(generation *g);
/* Aborts the live generation of this identity with this id, or with identity NULL those of all
 * identities with this id. Returns how many there were. Any thread may call it. */
uint32_t service_abort(service *s, const char *identity, const char *id, size_t n);

/* ---- KV events for subscribers (events.c) ---------------------------------------------------- */

typedef struct kv_event {
    uint64_t sequence; // 1, 2, 3, …
    double time;       // seconds since 1970
    enum { KV_STORED, KV_REMOVED, KV_CLEARED } kind;
    uint64_t hash, parent;
    bool hidden;            // stored under a salt or for a session: its tokens are not published
    const uint32_t *tokens; // [page_tokens] when stored and not hidden
} kv_event;

/* The sequence number that the next event will have. */
uint64_t rpc_events_next(rpc_events *e);
/* Of the oldest event kept; rpc_events_next when there is none. */
uint64_t rpc_events_oldest(rpc_events *e);
/* Copies event `sequence` (tokens into `tokens`, room for page_tokens). STATUS_NOT_FOUND: not yet.
 * STATUS_LIMIT: no longer kept. */
status rpc_events_read(rpc_events *e, uint64_t sequence, kv_event *out, uint32_t *tokens);
listener_list *rpc_events_listeners(rpc_events *e);

/* ---- lines of the log (log.c) ---------------------------------------------------------------- */

/* Texts of clients are cut to so much in a line. */
enum { RPC_LOG_TEXT_MAX = 16384 };

bool rpc_log_shows_prompts(const rpc_log *log);
/* A line begins so, goes on by members, and ends in the log; then the strbuf is empty. */
void rpc_log_begin(strbuf *line, const char *level, const char *event);
void rpc_log_text(strbuf *line, const char *key, const char *text, size_t n);
void rpc_log_number(strbuf *line, const char *key, uint64_t value);
void rpc_log_ms(strbuf *line, const char *key, double us); // in milliseconds
void rpc_log_end(rpc_log *log, strbuf *line);

/* ---- text ------------------------------------------------------------------------------------ */

/* The Prometheus page: engine, pages, retention, service. */
void metrics_text(service *s, strbuf *out);

#endif
