/* Random weights without a file (--load-format dummy), private to model/. */
#ifndef MODEL_LOAD_DUMMY_H
#define MODEL_LOAD_DUMMY_H

#include "base/base.h"

/* A stream of values for one tensor, [rows, cols]. The value at (row, col) depends on seed, name,
 * cols, row and col alone, so that ranks which generate only their rows agree. Values are normal
 * with deviation 1 / sqrt(cols), in 256 steps of equal probability: each is a table look-up,
 * because 10^9 of them must not take long. They serve neither cryptography nor statistics beyond
 * the second moment. */
typedef struct dummy_tensor {
    uint64_t key;
    size_t cols;
    dtype type;
    uint32_t table[256]; /* a value's bits in `type` */
} dummy_tensor;

void dummy_tensor_init(dummy_tensor *t, uint64_t seed, const char *name, size_t cols, dtype type);
/* out [rows, cols] of t->type = rows [row, row + rows). */
void dummy_tensor_rows(const dummy_tensor *t, size_t row, size_t rows, void *out);

#endif
