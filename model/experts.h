/* A sparse layer's feed-forward (private to model/): a router chooses some of many experts for each
 * row. Each expert that somebody chose computes its rows as one product; the others are never read.
 * Some models have one more, a share of which every row gets.
 *
 * A row's result is that share, then the weighted sum of its experts, ascending: it depends on the
 * row alone. */
#ifndef MODEL_EXPERTS_H
#define MODEL_EXPERTS_H

#include "model/forward.h"

typedef struct experts experts;

status experts_create(const forward_options *options, experts **out);
void experts_destroy(experts *e);

/* out [n_rows, hidden] = this rank's share. x [n_rows, hidden]; wide [n_rows, 2 ffn] and act
 * [n_rows, ffn] are scratch. */
status experts_run(experts *e, const layer_weights *w, const float *x, uint32_t n_rows, float *wide,
                   float *act, float *out);

#endif
