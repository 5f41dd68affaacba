/* CriticalKV: the mean attention first; then, for what half of the budget left over, that attention
 * times the mean 1-norm of the value after the output projection. */
#include "paged_kv/retention/method.h"

void score_critical(const score_input *in, float *scores) { score_mean(in, scores); }

void score_critical_refine(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = (in->pooled[i] + 1e-4f) * (in->second[i] / (float)in->q_heads);
    }
}
