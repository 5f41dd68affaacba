/* Memory for the values of measures, which callers may hold for longer than until the next submit
 * (measure_result.holders; private to model/). One thread; only `holders` is shared. */
#ifndef MODEL_MEASURED_H
#define MODEL_MEASURED_H

#include "model/model.h"

typedef struct measured_block {
    float *values;
    size_t capacity; // floats
    _Atomic uint32_t holders;
    struct measured_block *next;
} measured_block;

/* All zero is an empty one. */
typedef struct measured {
    measured_block *first; // the one that was reserved last
    /* Where values lie; NULL: on the heap. */
    float *(*alloc)(void *ctx, size_t n); // NULL when memory is out
    void (*release)(void *ctx, float *values);
    void *ctx;
} measured;

/* Makes a block without holders, of at least n floats (n > 0), the first. Other blocks without
 * holders are freed. Values are not kept. STATUS_NO_MEMORY leaves `m` usable. */
status measured_reserve(measured *m, size_t n);
/* Frees the blocks, none of which has a holder. */
void measured_destroy(measured *m);

#endif
