/* Pooled hidden states (private to model/): one vector of the rows of a share, where a plan asks
 * for it (step_seq.pooling). */
#ifndef MODEL_CPU_POOLING_H
#define MODEL_CPU_POOLING_H

#include "model/cpu/forward.h"

typedef struct row_pooling {
    float *values; // [shares that pool, hidden] of the last step
    size_t n_values;
    double *sum; // [hidden]
} row_pooling;

/* Sets the results' pooled vectors, which are valid until the next call. It is called after the
 * forward pass, where share i has the rows from first_rows[i] on. */
status row_pooling_run(row_pooling *p, const forward *f, uint32_t hidden, const step_plan *plan,
                       const uint32_t *first_rows, step_seq_result *results);
void row_pooling_free(row_pooling *p);

#endif
