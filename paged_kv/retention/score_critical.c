/* CriticalKV: the mean attention, for half of the budget; then that attention times the mean 1-norm
 * of the value after the output projection, for the other half. */
#include "paged_kv/retention/method.h"

static void refine(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = (in->pooled[i] + 1e-4f) * (in->second[i] / (float)in->q_heads);
    }
}

const retention_score_row score_critical = {
    .option = {"critical",
               "half of the budget by attention, the rest by attention times the projected value's "
               "norm"},
    .kind = MEASURE_MASS,
    .second = MEASURE_VALUE_WEIGHT,
    .rows = RETENTION_ROWS_POLICY,
    .score = score_mean,
    .refine = refine,
    .units = TOKEN,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = IN_PROMPT,
};
