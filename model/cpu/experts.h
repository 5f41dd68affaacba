/* A sparse layer's feed-forward (private to model/): a router chooses some of many experts for each
 * row. Each expert that at least one row uses computes its rows as one product; the weights of the
 * others are never read. Some models have a shared expert besides, which every row uses.
 *
 * A row's result is the shared expert's weighted output plus the weighted outputs of the row's own
 * experts, added in ascending order: it depends on the row alone. */
#ifndef MODEL_CPU_EXPERTS_H
#define MODEL_CPU_EXPERTS_H

#include "model/cpu/forward.h"

typedef struct experts experts;

status experts_create(const forward_options *options, experts **out);
void experts_destroy(experts *e);

/* Sets out [n_rows, hidden] to this rank's share. x [n_rows, hidden]; wide [n_rows, 2 ffn] and act
 * [n_rows, ffn] are scratch. */
status experts_run(experts *e, const layer_weights *w, const float *x, uint32_t n_rows, float *wide,
                   float *act, float *out);

#endif
