/* gRPC servers on gRPC's C core (private to rpc/): completion queues with a thread each, and each
 * call is a small state machine. A pool of threads unpacks large messages.
 *
 * A method is a row: its path, the message it takes, and callbacks. A call has one queue, and all
 * its callbacks run on that queue's thread, so that the state of a call needs no locks; calls of
 * different queues run at the same time. Other threads call `call_wake` and nothing else. */
#ifndef RPC_GRPC_GRPC_H
#define RPC_GRPC_GRPC_H

#include "rpc/service.h"

#include <grpc/status.h>
#include <protobuf-c/protobuf-c.h>

typedef struct grpc_front grpc_front;
typedef struct rpc_call rpc_call;

/* ---- a method -------------------------------------------------------------------------------- */

typedef struct rpc_method {
    const char *path; // "/octavo.v1.Inference/Generate"
    const ProtobufCMessageDescriptor *input;
    bool open;           // needs no key (health)
    bool admin;          // reads or changes data of other keys: for administrators only
    bool client_streams; // more messages may follow the first
    /* Called for each message of the client. The message lies in the call's arena, which is freed
     * when this returns. Unless client_streams, this must lead to call_finish. */
    void (*message)(rpc_call *c, const ProtobufCMessage *m);
    /* With client_streams, called when the client will send no more messages; otherwise NULL. */
    void (*half_closed)(rpc_call *c);
    /* Called after call_wake, and when the message given to call_send has gone out; call_can_send
     * is true then. NULL for a unary method. */
    void (*writable)(rpc_call *c);
    /* Called when the call is over: finished, cancelled, past its deadline, or its connection is
     * gone. Frees the state that call_set_state was given (NULL when it was not called). It is the
     * last callback, is never called from inside another, and only comes after `message` or
     * `half_closed`. NULL = nothing to free. */
    void (*ended)(rpc_call *c);
} rpc_method;

/* ---- functions for methods ------------------------------------------------------------------- */

service *call_service(const rpc_call *c); // NULL where the front has none
void *call_context(const rpc_call *c);    // grpc_front_options.ctx
grpc_front *call_front(const rpc_call *c);
void call_set_state(rpc_call *c, void *state);
void *call_state(const rpc_call *c);
/* The value of a metadata key (lower case) of the client, or NULL. It is not NUL-terminated. Unless
 * client_streams, it is freed when `message` returns. A key that a method reads belongs to those
 * that must be single (find_duplicate in call.c). */
const char *call_metadata(const rpc_call *c, const char *key, size_t *n);
/* Writes the caller's identity for generation_options. Unless client_streams, call it inside
 * `message`, since it reads the metadata. */
void call_identity(const rpc_call *c, char out[SERVICE_IDENTITY_BYTES]);
/* Gathers the caller's headers about traces. NULL when requests are not traced. Unless
 * client_streams, call it inside `message`, since it reads the metadata, which it points to. */
const trace_headers *call_trace(const rpc_call *c, trace_headers *out);
/* Aborts the generations with these ids that the caller may abort: its own, or, for an
 * administrator, those of any caller. Returns how many. Call it inside `message`, since it reads
 * the metadata. */
uint32_t call_abort(const rpc_call *c, const ProtobufCBinaryData *ids, size_t n);

/* True when call_send would accept a message now. */
bool call_can_send(const rpc_call *c);
/* Sends the initial metadata now, which tells the client that its call was accepted. For calls
 * whose first message may take long. `writable` follows. */
void call_accept(rpc_call *c);
/* Packs and sends m. False when the last message has not gone out, or the call is over: `writable`
 * or `ended` will be called. */
bool call_send(rpc_call *c, const ProtobufCMessage *m);
/* With client_streams: asks for the next message, or the client's half-close. The first message
 * comes without this. */
void call_receive(rpc_call *c);
/* Call it inside `message`: the method takes over the arena in which the message lies. */
arena call_keep_message(rpc_call *c);
/* Adds trailing metadata (copied). A key that ends in "-bin" takes any bytes; a value of another
 * key that no header can hold is left out. False when memory is out. */
bool call_add_trailer(rpc_call *c, const char *key, const void *value, size_t n);
/* Ends the call once its sent messages have gone out. Only the first call has an effect. */
void call_finish(rpc_call *c, grpc_status_code code, const char *details);
/* As call_finish, with a static text, which the log shows: it quotes nothing of the client. */
void call_refuse(rpc_call *c, grpc_status_code code, const char *why);
/* Sends m and ends the call with OK. */
void call_reply(rpc_call *c, const ProtobufCMessage *m);
/* Ends the call with the gRPC code for s. For a passing error the trailing metadata say when to try
 * again: retry-after-ms, and google.rpc.RetryInfo in grpc-status-details-bin. */
void call_fail(rpc_call *c, status s, const error *err);
grpc_status_code call_code_of(status_code code);
/* For engine_notify: may be called on any thread, under any lock. `writable` follows, once for any
 * number of calls. */
void call_wake(void *call);

/* Wraps bytes as a field of a message, without a copy. */
static inline ProtobufCBinaryData call_bytes(const char *s, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)s};
}

/* ---- the server ------------------------------------------------------------------------------ */

/* A service: its methods, and the name that health and reflection list. */
typedef struct rpc_service {
    const char *name; // "octavo.v1.Inference"
    const rpc_method *methods;
    size_t n_methods;
} rpc_service;

typedef struct grpc_front_options {
    service *service; // NULL = no keys, and health is SERVING while the front listens
    void *ctx;
    const char *address;            // "host:port", "unix:/path"
    const char *tls_cert, *tls_key; // PEM files; NULL = plain text
    const char *tls_client_ca;
    size_t max_message_bytes;
    uint32_t max_streams;
    uint32_t max_descriptors; // of connections; those beyond wait until others are closed
    int64_t stall_timeout_us; // a call whose client reads nothing for so long ends; 0 = never
    /* How long the front waits for a call's first message, and for a call on an idle connection;
     * 0 = for ever. */
    int64_t keepalive_timeout_us;
    uint32_t threads; // queues, with a thread each; 0 = 1: then methods share state without locks
} grpc_front_options;

/* Checks that a server could listen at this address now. */
status grpc_front_check(const char *address, error *err);
/* Listens and serves these services, health and reflection. The array and the options' pointers are
 * borrowed. */
status grpc_front_create_for(const grpc_front_options *o, const rpc_service *const *services,
                             size_t n_services, grpc_front **out, error *err);
/* As grpc_front_create_for, with the options of s->o, on s->o.grpc_address. */
status grpc_front_create(service *s, const rpc_service *const *services, size_t n_services,
                         grpc_front **out, error *err);
uint16_t grpc_front_port(const grpc_front *f);
/* From now on new calls of methods that are not `open` get UNAVAILABLE. */
void grpc_front_drain(grpc_front *f);
void grpc_front_destroy(grpc_front *f);
const rpc_service *const *grpc_front_services(const grpc_front *f, size_t *n);

/* ---- also for octavo's own clients ----------------------------------------------------------- */

/* Unpacks into *a (initialised here with a limit; destroy it even after an error). STATUS_INVALID:
 * the bytes are no such message. STATUS_LIMIT: unpacked it takes more than `limit` bytes. */
status message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                      size_t limit, arena *a, const ProtobufCMessage **out, error *err);
/* Reads a PEM file into *out, which the caller frees; a NULL path gives NULL. The error begins with
 * `field`. */
status pem_read(const char *field, const char *path, char **out, error *err);
/* Stops gRPC from writing to stderr, where it also writes about errors that clients get as answers.
 * Does nothing if GRPC_VERBOSITY is set. Failed assertions are still written. */
void grpc_keep_quiet(void);

#endif
