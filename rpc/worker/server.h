/* Inside a worker (private to rpc/worker): the server's state, and what its files offer each other.
 *
 *   queue's thread    methods.c   checks what a coordinator asks, hands over jobs, sends answers
 *   step thread       server.c    makes them by the host and the backend; ends sessions
 *   watching thread   server.c    ends a session whose coordinator has fallen silent
 *
 *   idle ─Configure─> configured ─Join─> joined ─Load─> loaded <─> plan, result, plan, …
 *     ^                    └───────────────┴──────────────┴─> ending (a failure, Shutdown, a broken
 *     └──────────────────────── reset ────────────────────────┘ stream, silence) */
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

typedef enum worker_job { JOB_NONE, JOB_CONFIGURE, JOB_JOIN, JOB_LOAD, JOB_STEP } worker_job;

enum { WAITERS_MAX = 4 };

/* A Shutdown that waits for the end of its session. */
typedef struct shutdown_waiter {
    rpc_call *call; // NULL = none
    uint64_t session;
} shutdown_waiter;

struct worker_server {
    worker_server_options o;
    grpc_front *front;
    pthread_t steps, watcher;
    bool has_steps, has_watcher;

    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work;  // for the step thread
    pthread_cond_t watch; // for the watcher
    bool stop;
    worker_state state;
    uint64_t session; // 0 = idle
    int64_t last_beat_us;
    bool host_used;   // configure has been called since the last reset
    worker_job job;   // awaits the step thread or runs; NONE = its answer is in `status`
    bool running;     // it runs
    rpc_call *asker;  // waits for the job's answer; NULL = nobody (any more)
    rpc_call *stream; // the session's Step
    status status;    // of the last job
    error why;        // of the last job, and why the session ends
    shutdown_waiter waiters[WAITERS_MAX];

    /* The job's: written before it is handed over, read by the step thread while it has it. */
    arena memory; // of the session's config and addresses
    worker_config config;
    worker_address address; // this rank's
    worker_address *addresses;
    backend backend; // ops NULL before Load
    rank_facts facts;
    assembly plan_parts; // of the plan that comes in parts; the step thread unpacks it
    arena plan_memory;
    step_plan plan;
    uint64_t last_step;
    const step_result *result;

    /* A packed result that is sent in parts, and how much of it has been sent. */
    uint8_t *result_bytes; // [result_size]; NULL = none
    size_t result_size, result_sent;
};

extern const rpc_service worker_service;

/* With the lock held. The session is over: what it waits for ends, and when nobody waits for an
 * answer any more all is freed. No session: does nothing. */
void server_end_session(worker_server *s, const char *why);
void server_start_job(worker_server *s, worker_job job, rpc_call *asker);
/* How many bytes a part has. */
size_t server_part_bytes(const worker_server *s);

#endif
