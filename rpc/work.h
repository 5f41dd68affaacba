/* A pool of threads that read large requests, so that the threads of a front end stay free for
 * other clients (private to rpc/). Each front end has its own pool. */
#ifndef RPC_WORK_H
#define RPC_WORK_H

#include "base/base.h"

#include <pthread.h>

enum { WORK_THREADS = 2 };

/* A job lies inside its owner's struct, and is in one pool at a time. */
typedef struct work_job {
    /* Called on a thread of the pool. wanted is false when the pool stops. The pool does not touch
     * the job after the call. */
    void (*run)(void *owner, bool wanted);
    void *owner;
    struct work_job *next;
} work_job;

/* All zero: not made. */
typedef struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    pthread_t threads[WORK_THREADS];
    unsigned n_threads;
    work_job *first, *last; // waiting jobs in order of arrival
    bool is_made, stop;
} work_pool;

/* The pool must be given to work_pool_destroy even if this fails. */
status work_pool_create(work_pool *w, error *err);
/* Adds a job. False once the pool stops: no thread would take the job. */
bool work_pool_put(work_pool *w, work_job *job);
/* Lets the waiting jobs run with wanted == false, and joins the threads. work_pool_put may still be
 * called. */
void work_pool_stop(work_pool *w);
/* Call it after the last work_pool_put. */
void work_pool_destroy(work_pool *w);

#endif
