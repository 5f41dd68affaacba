/* A fixed pool of threads for data-parallel loops.
 *
 * The caller takes part as thread 0. Work is handed out in ranges by an atomic counter, so a slow
 * core takes fewer; results must therefore not depend on which thread computes which range. Between
 * loops a worker spins for a bounded time (never when there are more threads than cores), then
 * sleeps on a futex. One loop at a time: a pool belongs to the thread that uses it. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct thread_pool thread_pool;

typedef struct thread_pool_options {
    unsigned n_threads; /* caller included; 0 = cores this process may use */
    bool pin; /* pin worker i to the i-th allowed core; the caller is left alone, because threads
                 that it starts later would inherit its core */
} thread_pool_options;

/* Runs items [from, to); `thread` is 0..n_threads-1 and picks per-thread scratch. */
typedef void (*thread_fn)(void *ctx, size_t from, size_t to, unsigned thread);

status thread_pool_create(const thread_pool_options *options, thread_pool **out);
void thread_pool_destroy(thread_pool *pool);
unsigned thread_pool_size(const thread_pool *pool);
/* Calls fn over [0, n) in pieces of at most `grain` items; returns when all are done. */
void thread_pool_for(thread_pool *pool, size_t n, size_t grain, thread_fn fn, void *ctx);
/* The same in runs, first a long one for each thread, then some that grow shorter: a thread takes
 * half of its share of what is left. For items that gain from neighbours. */
void thread_pool_for_runs(thread_pool *pool, size_t n, thread_fn fn, void *ctx);

/* Names the calling thread for `top -H` and the like: at most 15 bytes. */
void thread_set_name(const char *name);
/* Makes the calling thread, and those that it starts from now on, patient or not. A patient thread
 * that wakes waits for its turn and interrupts no other thread, which matters to loops that are as
 * slow as their slowest thread. Returns true when this was a change. */
bool thread_set_patient(bool patient);

/* Cores this process may run on (affinity and cgroup quota), at least 1. */
unsigned cpu_count_allowed(void);
/* Bytes the process may still take: the cgroup's limit and MemAvailable, the smaller. */
size_t memory_available_bytes(void);

/* What bounds all memory of this process together, and how much that is. */
typedef struct memory_bound {
    uint64_t bytes;
    const char *what; // "the memory cgroup", "RLIMIT_AS", "this machine"; static
} memory_bound;

/* The smallest of the control groups' limits, the machine's memory and address_space, which is
 * RLIMIT_AS or UINT64_MAX. root: goes before /proc and /sys, "" for the machine. */
memory_bound memory_bound_of(const char *root, uint64_t address_space);

#endif
