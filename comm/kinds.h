/* A kind of collectives (private to comm/): one file, and one row of comm_kinds in comm.c. */
#ifndef COMM_KINDS_H
#define COMM_KINDS_H

#include "comm/comm.h"

typedef struct comm_kind {
    const char *name; /* comm_options.kind */
    /* Makes the group in which ranks of one process meet. NULL: this kind has no groups. */
    status (*open_group)(int size, void **group, error *err);
    void (*close_group)(void *group);
    /* Joins the group (NULL without open_group); *state is passed to the functions below. NULL:
     * nothing to set up. */
    status (*open)(const comm_options *options, void *group, void **state, error *err);
    void (*close)(void *state);
    comm_address (*address)(const void *state); /* NULL: ranks need no address */
    status (*connect)(void *state, const comm_address *all, int64_t timeout_us, error *err);
    status (*all_reduce_sum)(void *state, float *data, size_t n);
    status (*all_gather)(void *state, const float *in, size_t n, float *out);
    status (*broadcast)(void *state, void *data, size_t bytes, int root);
    status (*check)(void *state);                     /* NULL: always usable */
    void (*waits)(const void *state, comm_wait *out); /* NULL: cannot tell */
    void (*abort)(void *state);                       /* NULL: no call ever waits */
    int size_max;                                     /* most ranks in a group of this kind */
    bool on_device;
} comm_kind;

extern const comm_kind comm_kind_self;
extern const comm_kind comm_kind_threads;
extern const comm_kind comm_kind_ucx;
extern const comm_kind comm_kind_nccl;

#endif
