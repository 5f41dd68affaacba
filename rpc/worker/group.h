/* The inside of a coordinator's group: its links, and the functions that its files share (private
 * to rpc/worker).
 *
 *   threads that make ranks   group.c      with ask.c: one call after the other, each answered
 *   the engine's thread       proxy.c      plans and results; one queue for all ranks' streams:
 *                                          the failure of one ends the wait for another
 *   any threads               cells.c      copies of K and V, each with a queue of its own
 *   the heartbeats' thread    heartbeat.c  calls Health of all ranks, with a queue of its own */
#ifndef RPC_WORKER_GROUP_H
#define RPC_WORKER_GROUP_H

#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"

#include <grpc/grpc.h>
#include <pthread.h>

typedef struct worker_link worker_link;
typedef struct cells_call cells_call; // cells.c

/* The callback for an event of the streams' queue; its address is the event's tag. */
typedef struct stream_op {
    void (*done)(worker_link *l, bool ok);
    worker_link *link;
} stream_op;

/* A step in flight, or the last one's result in its place. */
typedef struct flight {
    const step_plan *plan;
    status status; // of collecting the result
    result_store store;
    arena message;     // memory that the result points into
    char trouble[512]; // of its errors
} flight;

/* The Step call of a rank. Only the thread that drives the group's backends uses it, except
 * `call`. */
typedef struct stream {
    grpc_call *call; // NULL = none; set under the group's lock, so that other threads may cancel it
    uint32_t n_ops;  // in flight
    bool sending, receiving, ended;
    flight flights[STEPS_MOST]; // by the number of their submission
    uint64_t n_submitted, n_collected;
    uint64_t n_answered; // a result has come, even if it is malformed
    uint64_t n_awaited;  // the rank was told that no plan comes before their results
    stream_op begun, sent, received, over;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_slice packed;     // the plan while it is sent
    size_t n_sent;         // bytes of `packed` that gRPC has been given
    uint64_t step;         // of that plan
    assembly parts;        // of the next result, if it comes in parts
    grpc_status_code code; // of `over`
    grpc_slice details;
} stream;

/* A unary call: one message, one answer. */
typedef struct unary_call {
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_status_code code;
    grpc_slice details;
} unary_call;

/* Sends m on x->call; `tag` comes out of the call's queue when the call is over. False: gRPC
 * refuses the call. Call unary_end in either case. */
bool unary_begin(unary_call *x, const ProtobufCMessage *m, void *tag);
/* Frees all but the call. */
void unary_end(unary_call *x);

/* The last report of a rank about its waits for other ranks (peers.c). */
typedef struct peer_view {
    bool reports;          // the rank reports its waits
    comm_wait wait;        // its last report
    int64_t reported_us;   // when that came
    uint32_t sent_round;   // last round of which it has sent all messages
    int64_t sent_since_us; // when it first reported that round as sent
    bool suspects;         // it waits for a message that wait.peer has sent
    comm_wait since;       // its first report since then
} peer_view;

/* The Health call of a rank, used by the heartbeats' thread. */
typedef struct heartbeat {
    unary_call call;   // call.call NULL = none in flight
    int64_t begun_us;  // when the call began
    int64_t due_us;    // when the next call begins
    bool must_be_ours; // the worker had the session when the call began
} heartbeat;

struct worker_link {
    worker_group *group;
    uint32_t rank;
    const char *address;
    grpc_channel *channel;
    grpc_completion_queue *answers; // of `asking`
    bool has_session;               // Configure was called: the worker may have the session
    worker_config config;
    rank_facts facts;
    stream stream;
    heartbeat beat;

    /* The group's lock guards the fields below. */
    grpc_call *asking;  // the call of the thread that makes the rank, while it runs
    cells_call *copies; // in flight
    bool configured;    // the worker has answered Configure: it has the session
    bool beating;       // heartbeats are sent
    bool beat_flies;    // beat.call is in flight
    int64_t last_beat_us;
    bool lost;
    bool in_reach; // only its peers cannot reach it: the coordinator still can
    bool counted;  // counted as lost in this session
    bool interrupted;
    bool up;                  // it answered when it was last asked
    int64_t unheard_since_us; // since when it accepts connections but answers nothing; 0 = it does
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

    /* The packed plan, for ranks to which it has not been sent yet. */
    grpc_slice packed;
    uint64_t packed_step;
    uint32_t packed_left;
    int64_t grace_until_us; // a rank has lost its peers: wait until then to learn which one is lost

    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t changed;
    bool stop, given_up;
    void (*on_loss)(void *ctx, const char *why);
    void *on_loss_ctx;
    uint64_t n_lost;
    uint64_t session;
    uint32_t n_arrived; // ranks being made, modulo n; 0: the next one begins a session
    uint32_t n_made;    // ranks that have been made
    bool failed;        // the session cannot go on: all waits end
    uint32_t failed_rank;
    comm_address *addresses; // [o.n] of the comms of this session
    uint32_t n_addresses;
};

/* ---- group.c --------------------------------------------------------------------------------- */

int64_t group_silence_us(const worker_group *g);
size_t group_part_bytes(const worker_group *g);
/* Fails the session because of this rank (n = no rank in particular) and ends all waits. Any
 * thread. */
void group_fail(worker_group *g, uint32_t rank);
/* STATUS_IO: the error for a rank whose making was given up because another rank failed. */
status group_failure(const worker_group *g, error *err);
/* Puts "rank 1 (10.0.0.2:7000): " before the error's text. */
void link_prefix(const worker_link *l, error *err);
/* Counts a rank as lost, once in a session. Call it with the group's lock held. */
void link_count_loss(worker_link *l);

/* ---- ask.c: calls that block until the answer ------------------------------------------------ */

gpr_timespec time_at(int64_t us); // us: a time of clock_now_us
/* Opens the channel. STATUS_INVALID: the certificate files are wrong. */
status link_connect(worker_link *l, error *err);
/* Closes the channel. */
void link_disconnect(worker_link *l);

typedef struct answer {
    arena memory; // destroy it when link_ask has succeeded
    const ProtobufCMessage *message;
} answer;

typedef struct question {
    const char *path; // "/octavo.worker.v1.Worker/Join"
    const ProtobufCMessage *message;
    const ProtobufCMessageDescriptor *answer;
    int64_t timeout_us;
    bool is_last; // asked even if the session has failed
} question;

/* Calls a worker and waits for its answer. STATUS_IO: the session has failed at another rank. */
status link_ask(worker_link *l, const question *q, answer *out, error *err);

grpc_byte_buffer *bytes_of_message(const ProtobufCMessage *m);
/* Reads all bytes of a buffer; the caller unrefs *out. False: the buffer is compressed or
 * broken. */
bool bytes_read(grpc_byte_buffer *buffer, grpc_slice *out);
/* Copies the text that a call ended with; "the connection is gone" when it is empty. */
void text_of_status(grpc_slice details, char *out, size_t size);

/* ---- cells.c --------------------------------------------------------------------------------- */

/* backend_ops.read_cells and write_cells; ctx is the link. */
bool proxy_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                      uint8_t *const *to, uint32_t each);
bool proxy_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from);
/* Makes the copies in flight fail soon. Call it with the group's lock held. */
void link_cancel_cells(worker_link *l);

/* ---- heartbeat.c ----------------------------------------------------------------------------- */

status heart_start(worker_group *g, error *err);
void heart_stop(worker_group *g);
void heart_listen(worker_link *l); // begins heartbeats to this worker
void heart_leave(worker_link *l);  // ends them: none is in flight when this returns

/* ---- peers.c: ranks that reach the coordinator and not each other ---------------------------- */

/* Takes what a rank has reported with its last heartbeat (NULL: nothing). True: the rank is cut off
 * from a peer; `why` gets the text. Call it with the group's lock held. */
bool peer_is_cut_off(worker_link *l, const comm_wait *report, char *why, size_t size);

/* ---- proxy.c --------------------------------------------------------------------------------- */

extern const backend_ops proxy_ops; // ctx is the link
status stream_open(worker_link *l, error *err);
void stream_close(worker_link *l);
/* Ends the session at the worker if it can be reached, and disconnects. */
void link_end_session(worker_link *l);

#endif
