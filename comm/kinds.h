/* The table of comm kinds (private to comm/): one row and one file each. */
#ifndef COMM_KINDS_H
#define COMM_KINDS_H

#include "comm/comm.h"

typedef struct comm_kind {
    const char *name; /* comm_options.kind */
    /* Joins the group; *state is handed back to the others. NULL: nothing to set up. */
    status (*open)(const comm_options *options, void **state, error *err);
    void (*close)(void *state);
    status (*all_reduce_sum)(void *state, float *data, size_t n);
    status (*all_gather)(void *state, const float *in, size_t n, float *out);
    status (*broadcast)(void *state, void *data, size_t bytes, int root);
    int size_max; /* ranks that a group of this kind may have */
} comm_kind;

extern const comm_kind *const comm_kinds[];
extern const size_t comm_kinds_n;

extern const comm_kind comm_kind_self;

#endif
