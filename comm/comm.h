/* comm: collectives between the ranks of a tensor-parallel group.
 *
 * What     all-reduce, all-gather and broadcast of f32 and bytes; one implementation is one
 *          file and one row of comm_kinds (here: "self", a group of one).
 * Owner    the caller owns a comm and destroys it once.
 * Threads  one thread of each rank at a time; every rank makes the same calls in order.
 * Units    counts of elements.
 * Errors   a lost or silent peer is STATUS_IO; after an error the group is unusable.
 * Order    sums are taken in rank order, so that every rank holds the same bits.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/base.h"

typedef struct comm comm;

typedef struct comm_options {
    const char *kind; /* "self" */
    int rank;
    int size;
} comm_options;

status comm_create(const comm_options *options, comm **out, error *err);
void comm_destroy(comm *c);
int comm_rank(const comm *c);
int comm_size(const comm *c);

/* data [n] becomes the sum over ranks, in place. */
status comm_all_reduce_sum(comm *c, float *data, size_t n);
/* out [size, n]: in [n] of every rank, by rank. */
status comm_all_gather(comm *c, const float *in, size_t n, float *out);
/* bytes of rank `root` to all. */
status comm_broadcast(comm *c, void *data, size_t bytes, int root);

#endif
