/* probe: attention weights, keys and values of one pass over a token list, for analyses.
 *
 * What     A pass of its own over one token list with the full cache, apart from the requests that
 *          the backend serves. It keeps each layer's keys and values, and the queries of the last
 *          rows. From them the caller computes the attention weights of any of these rows, and the
 *          output that any subset of the tokens would have given.
 * Owner    model_probe_create (model.h) borrows a CPU backend's weights, which must outlive the
 *          probe. Everything else is the probe's own, its threads and pages included.
 * Threads  one thread for each probe, beside the backend's.
 * Units    tokens; a position is an index into the token list. K and V are f32 as the projections
 *          gave them, after RoPE: the rounding of a KV type is not in them.
 * Errors   only a run can fail: STATUS_NO_MEMORY, and STATUS_INVALID for lists that do not fit. */
#ifndef MODEL_PROBE_H
#define MODEL_PROBE_H

#include "base/base.h"

typedef struct model_probe model_probe;

typedef struct probe_shape {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t max_tokens;
} probe_shape;

probe_shape model_probe_shape(const model_probe *p);
void model_probe_destroy(model_probe *p);

/* Runs tokens [n_tokens] and keeps the queries of the rows [first_row, n_tokens). Repeating the
 * last run costs nothing. After a failure nothing may be read until a run succeeds. */
status model_probe_run(model_probe *p, const uint32_t *tokens, uint32_t n_tokens,
                       uint32_t first_row, error *err);

/* Sets weights [row + 1] to the softmax of a query head's scores over the positions that the row
 * sees; it is 0 for positions that left the layer's sliding window. */
void model_probe_weights(const model_probe *p, uint32_t layer, uint32_t head, uint32_t row,
                         double *weights);
/* The first position that the row sees in the layer: 0 without a sliding window. */
uint32_t model_probe_first_seen(const model_probe *p, uint32_t layer, uint32_t row);
/* Keys and values [n_tokens, head_dim] of one KV head, valid until the next run. */
const float *model_probe_keys(const model_probe *p, uint32_t layer, uint32_t kv_head);
const float *model_probe_values(const model_probe *p, uint32_t layer, uint32_t kv_head);

#endif
