/* The front, its queues and the call, shared by the files of rpc/grpc.
 *
 * A call belongs to one queue: all its events come out there, so its state needs no lock. On other
 * threads run call_wake, the pool's jobs, the grpc_front functions of grpc.h, and the arrival: gRPC
 * gives a new call to any queue, whose thread passes it on to the call's own. */
#ifndef RPC_GRPC_INTERNAL_H
#define RPC_GRPC_INTERNAL_H

#include "rpc/grpc/grpc.h"

#include "rpc/grpc/descriptors.h"
#include "rpc/grpc/gate.h"
#include "rpc/work.h"
#include <grpc/grpc.h>
#include <grpc/support/time.h>

/* The callback for an event of the queue; its address is the event's tag. */
typedef struct queue_op {
    void (*done)(void *owner, bool ok);
    void *owner;
} queue_op;

/* ---- queues ---------------------------------------------------------------------------------- */

/* A completion queue and its thread. Other threads touch what is atomic, and nothing else. */
typedef struct front_queue {
    grpc_front *front;
    grpc_completion_queue *queue;
    pthread_t thread;
    bool has_thread;
    bool is_shut_down; // no more calls will come
    bool was_refused;  // the live calls of a stopping server have been refused
    queue_op arrival, shutdown, awake;

    /* The next incoming call that gRPC gives to this queue: one is always requested while the
     * server runs. It will belong to next_owner. */
    struct front_queue *next_owner;
    grpc_call *next_call;
    grpc_call_details next_details;
    grpc_metadata_array next_metadata;

    rpc_call *first;           // live calls
    _Atomic uint32_t n_calls;  // live calls, those passed on to this queue, and those requested
    _Atomic(rpc_call *) woken; // calls that are to begin or were woken, the last one first
} front_queue;

/* ---- calls without a key (open.c) ------------------------------------------------------------ */

enum {
    OPEN_CALLS_MAX = 16, // of one connection: more than there are services to watch
    OPEN_BUCKETS = 1024,
};

/* Calls of the methods that need no key, by their connections. */
typedef struct open_calls {
    pthread_mutex_t lock;
    rpc_call *first[OPEN_BUCKETS];
} open_calls;

/* Counts a call. False: its connection has too many. */
bool open_enter(rpc_call *c);
/* The call's memory is free. */
void open_leave(rpc_call *c);

/* ---- the front ------------------------------------------------------------------------------- */

struct grpc_front {
    grpc_front_options o;
    const rpc_service **services; // those given at creation, then health and reflection
    size_t n_services;
    const rpc_method **methods; // of all services, sorted by path
    size_t n_methods;
    descriptor_set descriptors;
    size_t unpack_limit; // most bytes of one unpacked message
    uint16_t port;

    grpc_server *server;
    front_queue *queues; // [n_queues]
    uint32_t n_queues;
    bool is_started;
    _Atomic bool draining, stopping;
    open_calls open;

    work_pool work;             // reads large messages; not made without a service
    _Atomic size_t large_bytes; // of messages that the pool reads, or that wait for it

    /* For the first queue's thread. */
    gate *gate;
    bool is_full;             // no new connection is let in
    int64_t full_log_us;      // when the log last said so; 0 = never
    int64_t stop_deadline_us; // calls that still run then are cancelled; 0 = not stopping
    bool was_cancelled;       // grpc_server_cancel_all_calls has been called
};

enum {
    LARGE_MESSAGE_BYTES = 64 << 10, // a message of at least this size is read by the pool
    LARGE_MESSAGES = 64,            // most messages of the largest size, read or waiting at once
};

/* The row with this path, or NULL. */
const rpc_method *front_method(const grpc_front *f, const char *path, size_t n);
bool front_is_draining(const grpc_front *f);

/* ---- a call ---------------------------------------------------------------------------------- */

enum { TRAILERS_MAX = 8, DETAILS_BYTES_MAX = 1024 };

/* Each idle stream costs one rpc_call, so it is small: data that only the start or the end of a
 * call needs are allocated then. */
struct rpc_call {
    front_queue *queue;
    const rpc_method *method; // NULL = no method has the call's path
    grpc_call *call;
    void *state;
    rpc_call *prev, *next; // of the queue's live calls
    rpc_call *next_woken;
    rpc_call *next_open; // of those that open_enter has counted
    uint64_t open_peer;  // a hash of its connection's peer; 0 = it is not counted
    grpc_slice path;     // until the call begins
    grpc_metadata_array metadata;

    _Atomic uint32_t references; // one for each op in flight, and one until `over`
    _Atomic bool woken;          // among the queue's woken calls
    bool sending, receiving;
    bool begun;         // on its own queue
    bool metadata_sent; // the initial metadata have been sent
    bool entered;       // the method has been called
    bool finishing;     // call_finish was called
    bool over;          // nothing more can be sent; `ended` has been called
    bool was_closed;    // on_closed left the end to on_received
    bool gets_code;     // the client is told `code` even if the call counts as cancelled
    int cancelled;      // written by RECV_CLOSE_ON_SERVER
    uint32_t key;       // its number, by service_key_ok
    int64_t since_us;   // when the send in flight, or the wait for the first message, began
    queue_op closed, received, sent, finished;
    grpc_byte_buffer *incoming, *outgoing;
    arena *delivered;  // arena of the message while `message` runs
    size_t body_taken; // counted by service_take_body

    grpc_status_code code;
    grpc_slice details;
    /* Why the call is refused, for the log: static, quotes nothing of the client. NULL: the log
     * shows the details, and only where it shows prompts. */
    const char *why;
    grpc_metadata *trailers; // [n_trailers]
    size_t n_trailers;
};

/* Makes a call of what has arrived at any of the front's queues, and passes it on to its own, q,
 * which counts it already. Takes over call and metadata. */
void call_arrive(front_queue *q, grpc_call *call, const grpc_call_details *details,
                 grpc_metadata_array *metadata);
/* Gives a call its message, which was unpacked into *a (the method may keep the arena), or fails
 * the call with s and err when unpacking failed. */
void call_deliver(rpc_call *c, arena *a, const ProtobufCMessage *m, status s, const error *err);
/* Reads a message and takes over its buffer. The queue's thread reads it, or a thread of the pool
 * when it is large. call_deliver follows, unless the call ends before. */
void call_read(rpc_call *c, grpc_byte_buffer *buffer);
/* The event of a queue's woken calls: begins those that have arrived, and tells the others that
 * they may write. */
void call_on_awake(void *queue, bool ok);
void call_ref(rpc_call *c);
void call_unref(rpc_call *c);
/* Starts a batch without ops, so that `tag` comes out of the call's queue; the call keeps a
 * reference until then. gRPC refuses no such batch. Any thread. */
void call_post(rpc_call *c, queue_op *tag);
/* Called about once a second: ends calls whose client does not read, or sends no request. */
void call_check_stall(rpc_call *c, int64_t now_us);

/* "NOT_FOUND" */
const char *call_code_name(int code);
/* Makes text fit for a status: at most DETAILS_BYTES_MAX bytes of valid UTF-8. Returns how many. */
size_t details_text(const char *text, char out[DETAILS_BYTES_MAX]);

/* ---- health and reflection ------------------------------------------------------------------- */

extern const rpc_service health_service;
extern const rpc_service reflection_service, reflection_v1alpha_service;

/* ---- addresses ------------------------------------------------------------------------------- */

enum { ADDRESS_BYTES_MAX = 128 };

/* Resolves "host:port" to its first numeric address: gRPC would listen on all addresses of the
 * host, and succeed if one works. "unix:/path" stays as it is. */
status address_resolve(const char *text, char out[ADDRESS_BYTES_MAX], error *err);
/* The reason why a numeric address cannot be listened on, or NULL when it can. gRPC does not give
 * one. */
const char *address_problem(const char *numeric);

/* ---- credentials ----------------------------------------------------------------------------- */

/* NULL files = plain text. */
status credentials_create(const grpc_front_options *o, grpc_server_credentials **out, error *err);

#endif
