/* The identity of weights as options ask for them (private to model/load/). */
#ifndef MODEL_LOAD_WEIGHTS_HASH_H
#define MODEL_LOAD_WEIGHTS_HASH_H

#include "model/load/weights.h"

static inline uint64_t hash_number(uint64_t h, uint64_t v) { return hash_bytes(&v, sizeof v, h); }
static inline uint64_t hash_real(uint64_t h, double v) { return hash_bytes(&v, sizeof v, h); }

/* Hashes the fields of options and configuration that change K and V for equal tokens and equal
 * tensors. */
uint64_t weights_hash_options(const weights_options *o);

#endif
