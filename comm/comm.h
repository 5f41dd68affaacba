/* comm: collectives between the ranks of a tensor-parallel group.
 *
 * What     all-reduce, all-gather and broadcast of f32 and bytes; one implementation is one file
 *          and one row of comm_kinds in comm.c: "self" is a group of one, "threads" has ranks in
 *          threads of one process, "ucx" in processes of one or several hosts, "nccl" on GPUs.
 * Owner    the caller owns a comm and destroys it once. Ranks that share a process meet in a
 *          comm_group, which outlives its comms. In kinds that span processes, ranks meet by
 *          address: each makes its comm, gets the addresses of all ranks over a connection of the
 *          caller's, and connects.
 * Threads  one thread of each rank at a time; every rank makes the same calls in the same order.
 *          Waits sleep, since ranks may outnumber the cores. comm_abort: any thread.
 * Units    counts of elements; microseconds.
 * Errors   a lost or aborted peer gives STATUS_IO on all ranks; after an error the group is
 *          unusable. Calls wait for a silent peer until comm_abort: callers must probe liveness
 *          themselves. When a call has returned, with or without an error, its buffers are no
 *          longer in use (on a device: see comm_on_device).
 * Order    sums are taken in rank order, so that every rank holds the same bits ("nccl": the same
 *          bits in NCCL's order). */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/base.h"

typedef struct comm comm;
typedef struct comm_group comm_group;

/* Makes the group in which `size` ranks of this process meet: made once, then joined by each
 * rank. */
status comm_group_create(const char *kind, int size, comm_group **out, error *err);
/* Call after the comms that joined the group are destroyed. */
void comm_group_destroy(comm_group *group);

typedef struct comm_options {
    const char *kind; /* "self", "threads", "ucx", "nccl" */
    int rank;
    int size;
    comm_group *group;   /* "threads": made for the same kind and size; else NULL */
    void *stream;        /* "nccl": CUDA stream of its calls, on the calling thread's device */
    const char *library; /* "nccl": opened in place of libnccl.so.2; may be NULL */
} comm_options;

/* Joins without waiting for other ranks. */
status comm_create(const comm_options *options, comm **out, error *err);
/* Leaves the group without waiting for other ranks. This aborts the group for ranks that still make
 * calls, in kinds where they can notice. */
void comm_destroy(comm *c);
int comm_rank(const comm *c);
int comm_size(const comm *c);

/* ---- meeting --------------------------------------------------------------------------------- */

/* The data that other ranks need to reach a rank. They may get the bytes over a network. */
typedef struct comm_address {
    const void *bytes;
    size_t n;
} comm_address;

/* This rank's address, owned by c. It is empty where no peer needs it: for ranks of one process,
 * and for all ranks of "nccl" except rank 0. */
comm_address comm_own_address(const comm *c);
/* Waits until all ranks have met. Each rank calls it once, before the first collective. all [size],
 * in rank order, is needed only during this call. Does nothing for ranks of one process. The error
 * names the rank whose address is refused, or that did not answer in time (STATUS_UNAVAILABLE;
 * "nccl" cannot tell which). */
status comm_connect(comm *c, const comm_address *all, int64_t timeout_us, error *err);

/* ---- collectives ----------------------------------------------------------------------------- */

/* data [n] becomes the sum over ranks, in place. */
status comm_all_reduce_sum(comm *c, float *data, size_t n);
/* out [size, n] receives in [n] of every rank, by rank. `in` may be this rank's own place in out;
 * otherwise the two must not overlap. */
status comm_all_gather(comm *c, const float *in, size_t n, float *out);
/* Copies the bytes of rank `root` to all ranks. */
status comm_broadcast(comm *c, void *data, size_t bytes, int root);

/* Whether buffers are device memory, and a call only enqueues its work on options.stream. While a
 * caller waits for the stream it must call comm_check; after an abort it goes on waiting, since the
 * abort empties the stream. */
bool comm_on_device(const comm *c);
/* Whether the group is usable, as far as this rank knows. */
status comm_check(comm *c);

/* Where a rank waits. A caller that collects this from all ranks can find two that cannot reach
 * each other. Ranks exchange messages in rounds, which are the same on all of them. */
typedef struct comm_wait {
    uint32_t round;  /* rounds begun so far */
    bool inside;     /* the last round is not over on this rank */
    int peer;        /* inside: a rank whose message has not come, or -1 */
    int64_t idle_us; /* inside: how long the rank has looked without any message coming or going.
                      * Time when it could not look does not count. */
} comm_wait;

/* Any thread. False: this kind cannot tell where a rank waits. */
bool comm_waits(const comm *c, comm_wait *out);

/* Ends the group: present and later calls of this rank return STATUS_IO at once, whatever the state
 * of other ranks. Ranks that met in a comm_group all end, except that a call in which all of them
 * have arrived still succeeds. Ranks of other processes must be told by other means. */
void comm_abort(comm *c);

#endif
