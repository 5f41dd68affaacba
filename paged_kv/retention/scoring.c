/* Functions that several scores share. */
#include "paged_kv/retention/method.h"
#include <string.h>

void score_measured(const score_input *in, float *scores)
{
    memcpy(scores, in->first, in->n * sizeof *scores);
}

void score_mean(const score_input *in, float *scores)
{
    float n = (float)in->rows * (float)in->q_heads;
    for (uint32_t i = 0; i < in->n; i++) scores[i] = in->first[i] / n;
}

void score_negated(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) scores[i] = -in->first[i];
}
