/* cosines: how like a row is to the rows of a question.
 *
 * What     the largest cosine of each row of a text's embeddings with a row of a question's, and
 *          how far it stands out from the other rows of the text.
 * Owner    the caller owns everything; scratch is taken and freed within a call.
 * Threads  the calling thread alone computes; any number of threads may call at once.
 * Shapes   rows are f16, row-major.
 * Invariance   a cosine depends on the two rows alone. The bits are those of every ISA: a product
 *          is one chain of fused multiply-adds over the dims ascending; a norm is summed in 16
 *          lanes, which are then added by halves.
 * Errors   an ISA that this CPU lacks; STATUS_NO_MEMORY. */
#ifndef KERNELS_COSINES_H
#define KERNELS_COSINES_H

#include "kernels/kernels.h"

/* out [n] = the largest over the rows of `question` [m, dim] of a row's cosine with it, less that
 * row of the question's nth largest cosine with a row of `rows` [n, dim] (its smallest where n is
 * less); nth = 0: less nothing. m and dim > 0. The cosine with a row of zeros is 0. isa: as in
 * kern_options. */
status kern_largest_cosines(const char *isa, const uint16_t *rows, size_t n,
                            const uint16_t *question, size_t m, size_t dim, size_t nth, float *out,
                            error *err);

#endif
