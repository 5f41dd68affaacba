/* comm: collectives between the ranks of a tensor-parallel group.
 *
 * What     all-reduce, all-gather and broadcast of f32 and bytes; one implementation is one
 *          file and one row of comm_kinds: "self" is a group of one, "threads" has its ranks in
 *          threads of one process.
 * Owner    the caller owns a comm and destroys it once. Ranks that share a process meet in a
 *          comm_group, which outlives its comms; a kind that spans processes has an id instead.
 * Threads  one thread of each rank at a time; every rank makes the same calls in order. Waits
 *          sleep: ranks may outnumber the cores. comm_abort: any thread.
 * Units    counts of elements.
 * Errors   a lost or aborted peer is STATUS_IO for all ranks; after an error the group is unusable.
 *          When a call has returned, with or without an error, nobody touches its buffers.
 * Order    sums are taken in rank order, so that every rank holds the same bits.
 */
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
    const char *kind; /* "self", "threads" */
    int rank;
    int size;
    comm_group *group; /* "threads": made for the same kind and size; NULL for "self" */
} comm_options;

/* Joins without waiting for the others. */
status comm_create(const comm_options *options, comm **out, error *err);
/* Leaves, which aborts the group for those that still call. */
void comm_destroy(comm *c);
int comm_rank(const comm *c);
int comm_size(const comm *c);

/* data [n] becomes the sum over ranks, in place. */
status comm_all_reduce_sum(comm *c, float *data, size_t n);
/* out [size, n]: in [n] of every rank, by rank. in may be this rank's own place in out; else they
 * do not overlap. */
status comm_all_gather(comm *c, const float *in, size_t n, float *out);
/* bytes of rank `root` to all. */
status comm_broadcast(comm *c, void *data, size_t bytes, int root);

/* Ends the group: what its ranks wait for now and call later is STATUS_IO. A call in which all
 * ranks have arrived still ends well. */
void comm_abort(comm *c);

#endif
