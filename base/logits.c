#include "base/logits.h"

#include <math.h>

uint32_t logits_argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    return best;
}

/* log(sum(exp(logits))) */
static double log_sum_exp(const float *logits, uint32_t n, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)expf(logits[i] - max);
    return (double)max + log(sum);
}

logit_score logits_score(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                         uint32_t *top_ids, float *top_logprobs)
{
    double lse = log_sum_exp(logits, n, logits[logits_argmax(logits, n)]);
    uint32_t greater = 0;
    for (uint32_t i = 0; i < n; i++) greater += logits[i] > logits[id];
    logit_score s = {.logprob = (float)((double)logits[id] - lse), .rank = greater + 1};
    for (uint32_t i = 0; n_top && i < n; i++) { /* insertion into a short descending list */
        uint32_t at = s.n_top;
        if (at == n_top && !(logits[i] > logits[top_ids[at - 1]])) continue;
        if (at < n_top) s.n_top++;
        else at--;
        while (at > 0 && logits[i] > logits[top_ids[at - 1]]) {
            top_ids[at] = top_ids[at - 1];
            at--;
        }
        top_ids[at] = i;
    }
    for (uint32_t i = 0; i < s.n_top; i++)
        top_logprobs[i] = (float)((double)logits[top_ids[i]] - lse);
    return s;
}
