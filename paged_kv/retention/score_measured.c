/* Attention under the last rows, the last row or all rows, the raw product, the projection on the
 * output: what a backend measured is the score. */
#include "paged_kv/retention/method.h"
#include <string.h>

void score_measured(const score_input *in, float *scores)
{
    memcpy(scores, in->first, in->n * sizeof *scores);
}
