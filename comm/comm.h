/* comm: collectives between the ranks of a tensor-parallel group.
 *
 * What     all-reduce, all-gather and broadcast of f32 and bytes; one implementation is one
 *          file and one row of comm_kinds: "self" is a group of one, "threads" has its ranks in
 *          threads of one process, "ucx" in processes of one or several hosts, "nccl" on GPUs.
 * Owner    the caller owns a comm and destroys it once. Ranks that share a process meet in a
 *          comm_group, which outlives its comms. Ranks of a kind that spans processes meet by
 *          address: each makes its comm, learns the addresses of all over a wire of the caller's,
 *          and connects.
 * Threads  one thread of each rank at a time; every rank makes the same calls in order. Waits
 *          sleep: ranks may outnumber the cores. comm_abort: any thread.
 * Units    counts of elements; microseconds.
 * Errors   a lost or aborted peer is STATUS_IO for all ranks; after an error the group is unusable.
 *          A silent peer is waited for until comm_abort: callers must probe liveness themselves.
 *          When a call has returned, with or without an error, its buffers are not in use any
 *          more (on a device: see comm_on_device).
 * Order    sums are taken in rank order, so that every rank holds the same bits ("nccl": the same
 *          bits in NCCL's order). */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/base.h"

typedef struct comm comm;
typedef struct comm_group comm_group;

/* Where `size` ranks of this process meet: made once, then joined by each of them. */
status comm_group_create(const char *kind, int size, comm_group **out, error *err);
/* After the comms that joined it. */
void comm_group_destroy(comm_group *group);

typedef struct comm_options {
    const char *kind; /* "self", "threads", "ucx", "nccl" */
    int rank;
    int size;
    comm_group *group;   /* "threads": made for the same kind and size; NULL for the others */
    void *stream;        /* "nccl": the CUDA stream of its calls, on the calling thread's device */
    const char *library; /* "nccl": what is opened in place of libnccl.so.2; may be NULL */
} comm_options;

/* Joins without waiting for the others. */
status comm_create(const comm_options *options, comm **out, error *err);
/* Leaves, which aborts the group for those that still call, where they can notice. Waits for no
 * other rank. */
void comm_destroy(comm *c);
int comm_rank(const comm *c);
int comm_size(const comm *c);

/* ---- meeting --------------------------------------------------------------------------------- */

/* What the others must know of a rank to meet it; they may have it from a wire. */
typedef struct comm_address {
    const void *bytes;
    size_t n;
} comm_address;

/* This rank's address, owned by c. It is empty where no peer needs it: for ranks of one process,
 * and for all ranks of "nccl" but rank 0. */
comm_address comm_own_address(const comm *c);
/* Waits until all ranks have met: once, by each of them, before the first collective. all [size],
 * in rank order, is needed in this call only. Nothing to do for ranks of one process. The error
 * names the rank whose address is refused, or that did not answer in time (STATUS_UNAVAILABLE;
 * "nccl" cannot tell which). */
status comm_connect(comm *c, const comm_address *all, int64_t timeout_us, error *err);

/* ---- collectives ----------------------------------------------------------------------------- */

/* data [n] becomes the sum over ranks, in place. */
status comm_all_reduce_sum(comm *c, float *data, size_t n);
/* out [size, n]: in [n] of every rank, by rank. in may be this rank's own place in out; else they
 * do not overlap. */
status comm_all_gather(comm *c, const float *in, size_t n, float *out);
/* bytes of rank `root` to all. */
status comm_broadcast(comm *c, void *data, size_t bytes, int root);

/* Buffers are device memory, and a call only enqueues its work on options.stream: a caller
 * that waits for the stream asks comm_check meanwhile, and waits on after an abort, which empties
 * the stream. */
bool comm_on_device(const comm *c);
/* Whether the group is well, as far as this rank knows. */
status comm_check(comm *c);

/* Where a rank is, for those who know how the others are and look for two that cannot reach each
 * other. Ranks exchange messages in rounds, the same ones on all of them. */
typedef struct comm_wait {
    uint32_t round;  /* begun so far */
    bool inside;     /* the last one is not over here */
    int peer;        /* inside: a rank whose message has not come; -1: none */
    int64_t idle_us; /* inside: for so long has it looked, and nothing came or went. Time in which
                      * it did not get to look does not count. */
} comm_wait;

/* Any thread. False: this kind cannot tell. */
bool comm_waits(const comm *c, comm_wait *out);

/* Ends the group: what this rank waits for now and calls later is STATUS_IO, at once, whatever
 * state the others are in. Ranks that met in a comm_group all end, and a call in which all of them
 * have arrived still ends well; ranks of other processes must be told by other means. */
void comm_abort(comm *c);

#endif
