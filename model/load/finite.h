/* Checks that weights are finite (private to model/). A single NaN makes every logit NaN, and the
 * same token is drawn forever; so loading fails and names the tensor instead. */
#ifndef MODEL_LOAD_FINITE_H
#define MODEL_LOAD_FINITE_H

#include "base/base.h"
#include "kernels/kernels.h"

/* Rows of `stride` elements, of which [col, col + n) are checked. type is any type of a file. */
typedef struct finite_rows {
    const uint8_t *data;
    dtype type;
    size_t rows, stride, col, n;
} finite_rows;

/* True when all elements are finite; else *row is the first row that is not. pool may be NULL. */
bool rows_are_finite(const finite_rows *rows, thread_pool *pool, size_t *row);

#endif
