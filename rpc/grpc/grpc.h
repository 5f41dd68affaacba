/* gRPC by its C core (private to rpc/): one completion queue, one thread, calls as small state
 * machines. Large messages are unpacked by threads of a pool.
 *
 * A method is a row: its path, the message it takes, and callbacks. All callbacks run on the
 * queue's thread, so that a method needs no locks of its own; other threads only call `call_wake`.
 */
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
    bool open;           // needs no key: health
    bool admin;          // reads or changes what others have: for administrators
    bool client_streams; // more messages may follow the first
    /* Each message of the client. It lies in the call's arena and is gone when this returns. Unless
     * client_streams, this must lead to call_finish sooner or later. */
    void (*message)(rpc_call *c, const ProtobufCMessage *m);
    /* client_streams: the client has said all it had to say. NULL otherwise. */
    void (*half_closed)(rpc_call *c);
    /* Woken by call_wake, or the message given to call_send has gone out: call_can_send is true.
     * NULL = unary. */
    void (*writable)(rpc_call *c);
    /* The call is over: finished, cancelled, past its deadline, or its connection is gone. Frees
     * what `call_set_state` holds (NULL when `message` set nothing). Always the last callback,
     * never from inside another, and only after `message` or `half_closed`; NULL = nothing to free.
     */
    void (*ended)(rpc_call *c);
} rpc_method;

/* ---- what a method can do -------------------------------------------------------------------- */

service *call_service(const rpc_call *c); // NULL where the front has none
void *call_context(const rpc_call *c);    // grpc_front_options.ctx
grpc_front *call_front(const rpc_call *c);
void call_set_state(rpc_call *c, void *state);
void *call_state(const rpc_call *c);
/* The value of a metadata key of the client (lower case), or NULL. Not NUL-terminated. Unless
 * client_streams, gone when `message` has returned. */
const char *call_metadata(const rpc_call *c, const char *key, size_t *n);
/* Who calls, for generation_options; of the metadata, too. */
void call_identity(const rpc_call *c, char out[SERVICE_IDENTITY_BYTES]);
/* service_abort of what the caller may abort: its own requests, an administrator anybody's. Inside
 * `message`, like the two before. */
uint32_t call_abort(const rpc_call *c, const ProtobufCBinaryData *ids, size_t n);

/* True when call_send would take a message now. */
bool call_can_send(const rpc_call *c);
/* Tells the client now that its call was taken (its initial metadata), where the first message may
 * be long in coming. `writable` follows. */
void call_accept(rpc_call *c);
/* Packs and sends. False when the last one is still on its way or the call is over: `writable` will
 * come, or `ended`. */
bool call_send(rpc_call *c, const ProtobufCMessage *m);
/* client_streams: ready for the next message, or to hear of the end. (The first comes unasked.) */
void call_receive(rpc_call *c);
/* Inside `message`: the message, and all that lies in its arena, is the method's from now on. */
arena call_keep_message(rpc_call *c);
/* Trailing metadata; copied. Keys that end in "-bin" take any bytes; what a header may not hold is
 * left out. False when memory is out. */
bool call_add_trailer(rpc_call *c, const char *key, const void *value, size_t n);
/* Ends the call after what has been sent. Once. */
void call_finish(rpc_call *c, grpc_status_code code, const char *details);
/* call_send and call_finish with OK. */
void call_reply(rpc_call *c, const ProtobufCMessage *m);
/* call_finish by a status of ours; one that says "not now" carries when to try again: trailing
 * metadata retry-after-ms, and google.rpc.RetryInfo in grpc-status-details-bin. */
void call_fail(rpc_call *c, status s, const error *err);
grpc_status_code call_code_of(status_code code);
/* An engine_notify: any thread, under any lock. `writable` follows, once for any number of calls.
 */
void call_wake(void *call);

/* Bytes of a message into a string of ours and back. */
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
    service *service; // NULL = none: no keys, healthy as long as it listens
    void *ctx;
    const char *address;            // "host:port", "unix:/path"
    const char *tls_cert, *tls_key; // PEM files; NULL = plain text
    const char *tls_client_ca;
    size_t max_message_bytes;
    uint32_t max_streams;
    int64_t stall_timeout_us; // a client that has not read for so long is given up; 0 = never
    /* So long is waited for a call's first message, and for a call on a connection; 0 = for ever.
     */
    int64_t keepalive_timeout_us;
} grpc_front_options;

/* Checks that a server could listen at this address now. */
status grpc_front_check(const char *address, error *err);
/* Listens with these services, and with health and reflection. The array is borrowed, and so is
 * what the options point to. */
status grpc_front_create_for(const grpc_front_options *o, const rpc_service *const *services,
                             size_t n_services, grpc_front **out, error *err);
/* By s->o, on s->o.grpc_address. */
status grpc_front_create(service *s, const rpc_service *const *services, size_t n_services,
                         grpc_front **out, error *err);
uint16_t grpc_front_port(const grpc_front *f);
/* New calls of methods that are not `open` are answered UNAVAILABLE. */
void grpc_front_drain(grpc_front *f);
void grpc_front_destroy(grpc_front *f);
const rpc_service *const *grpc_front_services(const grpc_front *f, size_t *n);

/* ---- for clients of our own ------------------------------------------------------------------ */

/* Unpacks into *a (initialised here with a limit; destroy it whatever comes back). STATUS_INVALID:
 * not such a message. STATUS_LIMIT: it takes more than `limit` bytes. */
status message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                      size_t limit, arena *a, const ProtobufCMessage **out, error *err);
/* A PEM file as text that the caller frees; NULL in *out for no path. The error begins with
 * `field`. */
status pem_read(const char *field, const char *path, char **out, error *err);
/* gRPC writes to stderr in a form of its own, also about what is answered to clients anyway: no
 * more, unless GRPC_VERBOSITY is set. */
void grpc_keep_quiet(void);

#endif
