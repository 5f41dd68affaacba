/* Expected Attention: the mean softmax under the expected query, times the value's 2-norm. */
#include "paged_kv/retention/method.h"

void score_expected(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = in->first[i] / (float)in->q_heads * in->second[i];
    }
}
