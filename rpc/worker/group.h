/* Inside a coordinator's group (private to rpc/worker): its links, and what its files offer each
 * other.
 *
 *   threads that make ranks   group.c      ask.c: a call, an answer, one after the other
 *   the engine's thread       proxy.c      plans and results; one queue for all ranks' streams:
 *                                          the failure of one ends the wait for another
 *   the heartbeats' thread    heartbeat.c  Health at all ranks, by a queue of its own */
#ifndef RPC_WORKER_GROUP_H
#define RPC_WORKER_GROUP_H

#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"

#include <grpc/grpc.h>
#include <pthread.h>

typedef struct worker_link worker_link;

/* What an event of the streams' queue leads to: its address is the tag. */
typedef struct stream_op {
    void (*done)(worker_link *l, bool ok);
    worker_link *link;
} stream_op;

/* The Step call of a rank. Touched by whoever drives the group's backends, but for `call`. */
typedef struct stream {
    grpc_call
        *call; // NULL = none; made and let go of under the group's lock, so that others may cancel
    uint32_t n_ops; // in flight
    bool sending, ended;
    bool answered; // the plan's result has come, be it a wrong one
    stream_op begun, sent, received, over;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_slice packed;     // the plan while it is sent,
    size_t n_sent;         // how much of it has been given to gRPC,
    uint64_t step;         // and its step
    assembly parts;        // of the result, if it comes in parts
    grpc_status_code code; // of `over`
    grpc_slice details;
    const step_plan *plan;
    status status; // of collecting it
    result_store store;
    arena message; // what the result points into
    char trouble[512];
} stream;

/* A call of one message and one answer. */
typedef struct unary_call {
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_status_code code;
    grpc_slice details;
} unary_call;

/* Sends m on x->call; `tag` comes out of the call's queue when all of it is over. False: gRPC takes
 * none of it. Either way it is to be ended. */
bool unary_begin(unary_call *x, const ProtobufCMessage *m, void *tag);
/* Frees all but the call. */
void unary_end(unary_call *x);

/* What a rank has said of itself among the others (peers.c). */
typedef struct peer_view {
    bool says;             // it can tell
    comm_wait wait;        // the last it said,
    int64_t said_us;       // and when
    uint32_t sent_round;   // the last whose messages it has sent,
    int64_t sent_since_us; // which was first said then
    bool suspects;         // it waits for a message that wait.peer has sent: since that was known
    comm_wait since;       // it has said this first
} peer_view;

/* The Health call of a rank: the heartbeats' thread's. */
typedef struct heartbeat {
    unary_call call;   // its call NULL = none in flight
    int64_t begun_us;  // when it did
    int64_t due_us;    // when the next one begins
    bool must_be_ours; // the worker had the session when it began
} heartbeat;

struct worker_link {
    worker_group *group;
    uint32_t rank;
    const char *address;
    grpc_channel *channel;
    grpc_completion_queue *answers; // of `asking`
    bool has_session;               // Configure was asked: the worker may have the session
    worker_config config;
    rank_facts facts;
    stream stream;
    heartbeat beat;

    /* Under the group's lock. */
    grpc_call *asking; // a call of the thread that makes the rank
    bool configured;   // the worker has said so: it has the session
    bool beating;      // its heart is listened to
    bool beat_flies;   // beat.call is in flight
    int64_t last_beat_us;
    bool lost;
    bool in_reach; // lost to its peers alone: it can be told
    bool counted;  // among the lost of this session
    bool interrupted;
    bool up;                  // it answered when it was asked last
    int64_t unheard_since_us; // it took a connection then, and has answered nothing since; 0 = no
    peer_view view;
    char reason[256]; // why it was lost
};

struct worker_group {
    worker_group_options o;
    worker_link *links;           // [o.n]
    grpc_completion_queue *steps; // of all streams
    grpc_completion_queue *beats;
    pthread_t heart;
    bool has_heart;

    /* The plan as bytes, for the ranks that have not been sent it yet. */
    grpc_slice packed;
    uint64_t packed_step;
    uint32_t packed_left;
    int64_t
        grace_until_us; // a rank has lost its peers: until then it may be told which one is lost

    pthread_mutex_t lock; // of all that follows
    pthread_cond_t changed;
    bool stop, given_up;
    void (*on_loss)(void *ctx, const char *why);
    void *on_loss_ctx;
    uint64_t n_lost;
    uint64_t session;
    uint32_t n_arrived; // ranks that are being made; n = 0: the next one begins a session
    uint32_t n_made;    // of them
    bool failed;        // the session cannot go on: nobody is waited for
    uint32_t failed_rank;
    comm_address *addresses; // [o.n] of this session's comms
    uint32_t n_addresses;
};

/* ---- group.c --------------------------------------------------------------------------------- */

int64_t group_silence_us(const worker_group *g);
size_t group_part_bytes(const worker_group *g);
/* The session cannot go on: ends all waits. Any thread. */
void group_fail(worker_group *g, uint32_t rank);
/* STATUS_IO: what is said where another rank has failed. */
status group_failure(const worker_group *g, error *err);
/* "rank 1 (10.0.0.2:7000): " before a text. */
void link_prefix(const worker_link *l, error *err);
/* With the group's lock held: the session ends for this rank. */
void link_count_loss(worker_link *l);

/* ---- ask.c: calls that are waited for -------------------------------------------------------- */

gpr_timespec time_at(int64_t us); // of our clock
/* Opens the channel. STATUS_INVALID: the files of certificates. */
status link_connect(worker_link *l, error *err);
/* Shuts what link_connect opened. */
void link_disconnect(worker_link *l);

typedef struct answer {
    arena memory; // to be destroyed when the status is ok
    const ProtobufCMessage *message;
} answer;

typedef struct question {
    const char *path; // "/octavo.worker.v1.Worker/Join"
    const ProtobufCMessage *message;
    const ProtobufCMessageDescriptor *answer;
    int64_t timeout_us;
    bool is_last; // asked though the session has failed
} question;

/* STATUS_IO: the session has failed elsewhere. */
status link_ask(worker_link *l, const question *q, answer *out, error *err);

grpc_byte_buffer *bytes_of_message(const ProtobufCMessage *m);
/* All bytes of a buffer; the caller unrefs. False: compressed, or broken. */
bool bytes_read(grpc_byte_buffer *buffer, grpc_slice *out);
/* What a call ended with, as text of ours. */
void text_of_status(grpc_slice details, char *out, size_t size);

/* ---- heartbeat.c ----------------------------------------------------------------------------- */

status heart_start(worker_group *g, error *err);
void heart_stop(worker_group *g);
void heart_listen(worker_link *l); // from now on its silence is noticed
void heart_leave(worker_link *l);  // nothing of it is in flight any more when this returns

/* ---- peers.c: ranks that reach us and not each other ----------------------------------------- */

/* With the group's lock held. Takes what a rank has said of itself to its last beat (NULL:
 * nothing). True: it is cut off from a peer, for why. */
bool peer_is_cut_off(worker_link *l, const comm_wait *said, char *why, size_t size);

/* ---- proxy.c --------------------------------------------------------------------------------- */

extern const backend_ops proxy_ops; // ctx is the link
status stream_open(worker_link *l, error *err);
void stream_close(worker_link *l);
/* Ends the session at the worker, as far as it can still be reached. */
void link_end_session(worker_link *l);

#endif
