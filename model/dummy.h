/* Random weights without a file (--load-format dummy), private to model/. */
#ifndef MODEL_DUMMY_H
#define MODEL_DUMMY_H

#include "base/base.h"

/* A stream of values for one tensor, [rows, cols]. The value at (row, col) depends on seed, name,
 * cols and its place alone, so that ranks which generate only their rows agree. Normal with
 * deviation 1 / sqrt(cols), in 256 steps of equal probability: a table look-up for each value,
 * because 10^9 of them must not take long. Not for cryptography, nor for statistics beyond the
 * second moment. */
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
