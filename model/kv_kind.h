/* The digest by which two backends know that they can use each other's K and V (private to
 * model/). */
#ifndef MODEL_KV_KIND_H
#define MODEL_KV_KIND_H

#include "kernels/kernels.h"
#include "model/model.h"

/* backend_info.kv_kind. The weights' identity has what the model's configuration says, quantisation
 * among it; the precision changes more than the last bits. */
static inline uint64_t model_kv_kind(const backend_options *o, uint64_t weights,
                                     kern_kv_format format, uint32_t page_tokens)
{
    enum { LAYOUT = 1 /* rises when the bytes of a cell change */ };
    const uint64_t numbers[] = {LAYOUT, weights, format, page_tokens, o->precision};
    uint64_t kind = hash_bytes(numbers, sizeof numbers, 0);
    return kind ? kind : 1;
}

#endif
