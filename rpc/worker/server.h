/* The inside of a worker: the server's state, and the functions that its files share (private to
 * rpc/worker).
 *
 *   queue's thread    methods.c   checks a coordinator's calls, hands over jobs, sends answers;
 *                                 methods_cells.c copies K and V
 *   step thread       server.c    runs jobs on the host and the backend; frees ended sessions
 *   watching thread   server.c    ends a session whose coordinator has fallen silent
 *
 *   idle ─Configure─> configured ─Join─> joined ─Load─> loaded: plans in, results out
 *     ^                    └───────────────┴──────────────┴─> ending (a failure, Shutdown, a broken
 *     └──────────────────────── reset ────────────────────────┘ stream, silence)
 *
 *   a step:  taken ─submit─> in flight ─collect─> with a result ─packed, sent─> answered
 *         the queue's      the step thread's                     the queue's */
#ifndef RPC_WORKER_SERVER_H
#define RPC_WORKER_SERVER_H

#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"

#include <pthread.h>

typedef enum worker_state {
    WORKER_IDLE,
    WORKER_CONFIGURED,
    WORKER_JOINED,
    WORKER_LOADED,
    WORKER_ENDING,
} worker_state;

typedef enum worker_job {
    JOB_NONE,
    JOB_CONFIGURE,
    JOB_JOIN,
    JOB_LOAD,
    JOB_SUBMIT, // the next plan that was taken
    JOB_COLLECT // the oldest step in flight
} worker_job;

enum { WAITERS_MAX = 4 };

/* A Shutdown that waits for the end of its session. */
typedef struct shutdown_waiter {
    rpc_call *call; // NULL = none
    uint64_t session;
} shutdown_waiter;

/* A step that has no answer yet. */
typedef struct worker_step {
    uint64_t number;
    assembly parts; // of a plan that comes in parts; the step thread unpacks it
    arena memory;   // of the plan
    step_plan plan;
} worker_step;

struct worker_server {
    worker_server_options o;
    grpc_front *front;
    pthread_t steps, watcher;
    bool has_steps, has_watcher;

    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t work;  // wakes the step thread
    pthread_cond_t watch; // wakes the watcher
    bool stop;
    worker_state state;
    uint64_t session; // 0 = idle
    int64_t last_beat_us;
    bool host_used;   // configure has been called since the last reset
    worker_job job;   // Configure, Join or Load, which waits or runs; NONE = done, see `status`
    bool running;     // the step thread runs a job
    rpc_call *asker;  // call that is answered next, the stream from its first plan on; NULL = none
    rpc_call *stream; // the session's Step call
    status status;    // of the last job
    error why;        // of the last job, and why the session ends
    shutdown_waiter waiters[WAITERS_MAX];
    uint64_t n_taken, n_answered; // plans, results
    uint64_t n_awaited;           // results without which the coordinator sends no plan
    const step_result *result;    // of the oldest step without an answer; NULL = none, or packed

    /* The job's data: written before the job is handed over, then read by the step thread. */
    arena memory; // of the session's config and addresses
    worker_config config;
    worker_address address; // this rank's
    worker_address *addresses;
    backend backend; // its ops are NULL before Load
    rank_facts facts;
    worker_step taken[STEPS_MOST]; // by the order of plans
    uint64_t last_step;
    uint64_t n_submitted, n_collected; // the step thread's own

    /* The packed result while it is sent in parts, and how many of its bytes have been sent. */
    uint8_t *result_bytes; // [result_size]; NULL = none
    size_t result_size, result_sent;
};

extern const rpc_service worker_service;
void method_cells(rpc_call *c, const ProtobufCMessage *m); // methods_cells.c

/* Ends the session, if there is one: interrupts its job and wakes the waiting calls. The step
 * thread frees the session once no call waits for an answer. Call it with the lock held. */
void server_end_session(worker_server *s, const char *why);
void server_start_job(worker_server *s, worker_job job, rpc_call *asker);
/* The oldest step without an answer has one: forgets it. Call it with the lock held. */
void server_answered(worker_server *s);
/* The size of a part in bytes. */
size_t server_part_bytes(const worker_server *s);

#endif
