/* A fixed pool of threads for data-parallel loops.
 *
 * The caller takes part as thread 0. An atomic counter hands out the work in ranges, so a slow core
 * takes fewer of them; results must therefore not depend on which thread computes which range.
 * Between loops a worker spins for a bounded time (not at all when there are more threads than
 * cores), then sleeps on a futex. A pool runs one loop at a time and belongs to the thread that
 * uses it. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct thread_pool thread_pool;

typedef struct thread_pool_options {
    unsigned n_threads; /* caller included; 0 = all cores this process may use */
    bool pin; /* pin worker i to the i-th allowed core. The caller is not pinned, because threads
               * that it starts later would inherit its core */
} thread_pool_options;

/* Runs items [from, to); `thread` is 0..n_threads-1 and picks per-thread scratch. */
typedef void (*thread_fn)(void *ctx, size_t from, size_t to, unsigned thread);

status thread_pool_create(const thread_pool_options *options, thread_pool **out);
void thread_pool_destroy(thread_pool *pool);
unsigned thread_pool_size(const thread_pool *pool);
/* Calls fn over [0, n) in pieces of at most `grain` items; returns when all are done. */
void thread_pool_for(thread_pool *pool, size_t n, size_t grain, thread_fn fn, void *ctx);
/* Like thread_pool_for, but in runs of items: first a long run for each thread, then shorter and
 * shorter ones, each half of the thread's share of what is left. For items that gain from
 * neighbours. */
void thread_pool_for_runs(thread_pool *pool, size_t n, thread_fn fn, void *ctx);

/* Names the calling thread, for `top -H` and similar tools: at most 15 bytes. */
void thread_set_name(const char *name);
/* Makes the calling thread, and threads that it starts from now on, patient or not. A patient
 * thread that wakes does not preempt a running thread, which matters to loops that are as slow as
 * their slowest thread. Returns true when this was a change. */
bool thread_set_patient(bool patient);

/* Cores this process may run on (affinity and cgroup quota), at least 1. */
unsigned cpu_count_allowed(void);
/* Bytes that the process may still allocate: the smaller of the cgroup's remainder and
 * MemAvailable. */
size_t memory_available_bytes(void);

/* The tightest bound on all memory of this process. */
typedef struct memory_bound {
    uint64_t bytes;
    const char *what; // "the memory cgroup", "RLIMIT_AS", "this machine"; static
} memory_bound;

/* The smallest of the control groups' limits, the machine's memory and address_space, which is
 * RLIMIT_AS or UINT64_MAX. root is the prefix of /proc and /sys, "" for the machine. */
memory_bound memory_bound_of(const char *root, uint64_t address_space);

#endif
