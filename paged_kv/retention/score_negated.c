/* Key norm and key difference: the smaller the measure, the better. */
#include "paged_kv/retention/method.h"

void score_negated(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) scores[i] = -in->first[i];
}
