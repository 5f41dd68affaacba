/* kvpress's reading of window attention: the mean over rows and query heads. */
#include "paged_kv/retention/method.h"

void score_mean(const score_input *in, float *scores)
{
    float n = (float)in->rows * (float)in->q_heads;
    for (uint32_t i = 0; i < in->n; i++) scores[i] = in->first[i] / n;
}
