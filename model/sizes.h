/* How memory is shared out (private to model/): what a backend does when it is made, and what
 * backend_cpu_measure says that it would do. Pure. */
#ifndef MODEL_SIZES_H
#define MODEL_SIZES_H

#include "model/model.h"

/* Of options, with the model's layers, heads and windows; whether pages can be so. */
status sizes_geometry(const backend_cpu_options *o, pkv_geometry *out, error *err);

static inline uint64_t sizes_default_pool(uint64_t left, double share)
{
    return (uint64_t)((double)left * share);
}

/* page_bytes of all ranks, each of which has a slice of every page. The error names kv-memory. */
status sizes_pool_pages(const pkv_geometry *g, uint64_t bytes, uint64_t page_bytes, uint32_t *n,
                        error *err);

/* `left` beside the weights, of which the pool takes pool_bytes: at most half of the rest is for
 * swapped sequences, and none where that is less than a block. */
uint32_t sizes_host_pages(const pkv_geometry *g, uint64_t bytes, uint64_t left, uint64_t pool_bytes,
                          uint64_t page_bytes);

#endif
