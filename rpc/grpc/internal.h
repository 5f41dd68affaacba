/* Inside rpc/grpc: the front, a call, and what its parts offer each other. Everything runs on the
 * thread of the completion queue, except call_wake and what grpc.h says of the front. */
#ifndef RPC_GRPC_INTERNAL_H
#define RPC_GRPC_INTERNAL_H

#include "rpc/grpc/grpc.h"

#include "rpc/grpc/descriptors.h"
#include "rpc/work.h"
#include <grpc/grpc.h>
#include <grpc/support/time.h>

/* What an event of the queue leads to: its address is the tag. */
typedef struct queue_op {
    void (*done)(void *owner, bool ok);
    void *owner;
} queue_op;

/* ---- the front ------------------------------------------------------------------------------- */

struct grpc_front {
    grpc_front_options o;
    const rpc_service **services; // those given, then health and reflection
    size_t n_services;
    const rpc_method **methods; // of all of them, by path
    size_t n_methods;
    descriptor_set descriptors;
    size_t unpack_limit; // bytes that one unpacked message may take
    uint16_t port;

    grpc_server *server;
    grpc_completion_queue *queue;
    pthread_t thread;
    bool is_started, has_thread;
    _Atomic bool draining, stopping;

    /* The next call to come: asked for as long as the server lives. */
    queue_op arrival, shutdown;
    grpc_call *next_call;
    grpc_call_details next_details;
    grpc_metadata_array next_metadata;

    work_pool work;     // reads large messages; not made where there is no service
    size_t large_bytes; // of messages that it reads, or that wait for it

    rpc_call *first; // all live calls
    size_t n_calls;
    int64_t stop_deadline_us; // calls that have not ended by then are cancelled; 0 = not stopping
    bool was_cancelled;       // grpc_server_cancel_all_calls has been called
    bool is_shut_down;        // no call will come any more
};

enum {
    LARGE_MESSAGE_BYTES = 64 << 10, // from here on a message is read by the pool
    LARGE_MESSAGES = 64,            // of the largest size, read or waiting at once
};

/* The row with this path, or NULL. */
const rpc_method *front_method(const grpc_front *f, const char *path, size_t n);
bool front_is_draining(const grpc_front *f);

/* ---- a call ---------------------------------------------------------------------------------- */

enum { TRAILERS_MAX = 8, DETAILS_BYTES_MAX = 1024 };

/* An idle stream costs one of these, so it stays small: what only the beginning or the end of a
 * call needs is allocated there. */
struct rpc_call {
    grpc_front *front;
    const rpc_method *method; // NULL = refused before a method had it
    grpc_call *call;
    void *state;
    rpc_call *prev, *next; // of the front's live calls
    grpc_metadata_array metadata;

    _Atomic uint32_t references; // one for each op in flight, one until `ended`
    _Atomic bool woken;          // an op of call_wake is in flight
    bool sending, receiving;
    bool said_hello;  // initial metadata have been sent
    bool entered;     // the method has been called
    bool finishing;   // call_finish was called
    bool over;        // nothing can be sent any more; `ended` has been called
    int cancelled;    // written by RECV_CLOSE_ON_SERVER
    int64_t since_us; // when the send in flight, or the wait for the first message, began
    queue_op closed, received, sent, finished, awake;
    grpc_byte_buffer *incoming, *outgoing;
    arena *delivered; // of the message that the method has just been given

    grpc_status_code code;
    grpc_slice details;
    grpc_metadata *trailers; // [n_trailers]
    size_t n_trailers;
};

/* Takes over what has arrived at the front. */
void call_begin(grpc_front *f, grpc_call *call, const grpc_call_details *details,
                grpc_metadata_array *metadata);
/* What there is to say of a call's message: it was unpacked into *a (of which the method may keep
 * it), or s and err say why not. */
void call_deliver(rpc_call *c, arena *a, const ProtobufCMessage *m, status s, const error *err);
/* A message, read on the queue's thread or, when it is large, on one of the pool: call_deliver
 * follows unless the call ends before. The buffer is the message's from now on. */
void call_read(rpc_call *c, grpc_byte_buffer *buffer);
void call_ref(rpc_call *c);
void call_unref(rpc_call *c);
/* A batch without ops: `tag` comes out of the queue. Any thread; holds a reference until then. */
void call_post(rpc_call *c, queue_op *tag);
/* About once a second: ends calls whose client does not read, or sends no request. */
void call_check_stall(rpc_call *c, int64_t now_us);

/* "NOT_FOUND" */
const char *call_code_name(int code);
/* Text for a status: at most DETAILS_BYTES_MAX bytes, valid UTF-8. Returns how many. */
size_t details_text(const char *text, char out[DETAILS_BYTES_MAX]);

/* ---- health and reflection ------------------------------------------------------------------- */

extern const rpc_service health_service;
extern const rpc_service reflection_service, reflection_v1alpha_service;

/* ---- addresses ------------------------------------------------------------------------------- */

enum { ADDRESS_BYTES_MAX = 128 };

/* "host:port" as the first numeric address that it stands for: gRPC would listen on all of them,
 * and call it a success when one works. "unix:/path" as it is. */
status address_resolve(const char *text, char out[ADDRESS_BYTES_MAX], error *err);
/* Why nobody can listen on a numeric address, or NULL when one can: gRPC does not say. */
const char *address_problem(const char *numeric);

/* ---- credentials ----------------------------------------------------------------------------- */

/* NULL files = plain text. */
status credentials_create(const grpc_front_options *o, grpc_server_credentials **out, error *err);

#endif
