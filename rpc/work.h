/* Threads that read large requests, so that the threads of a front end stay free for other clients
 * (private to rpc/). A front end has a pool of its own. */
#ifndef RPC_WORK_H
#define RPC_WORK_H

#include "base/base.h"

#include <pthread.h>

enum { WORK_THREADS = 2 };

/* Lives inside its owner, and is in one pool at a time. */
typedef struct work_job {
    /* On a thread of the pool. wanted: false once the pool stops. The job is not touched after. */
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
    work_job *first, *last; // waiting, in order of arrival
    bool is_made, stop;
} work_pool;

/* Whatever it returns, work_pool_destroy frees it. */
status work_pool_create(work_pool *w, error *err);
/* False once the threads are told to stop: none would take the job. */
bool work_pool_put(work_pool *w, work_job *job);
/* Runs the jobs that wait, unwanted, and joins the threads. Jobs may still be put. */
void work_pool_stop(work_pool *w);
/* After the last work_pool_put. */
void work_pool_destroy(work_pool *w);

#endif
