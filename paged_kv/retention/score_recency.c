/* StreamingLLM and truncation: a token's position. */
#include "paged_kv/retention/method.h"

void score_recency(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = (float)(in->positions ? in->positions[i] : i);
    }
}
