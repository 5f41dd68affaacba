/* Expected Attention: the mean softmax under the expected query, times the value's 2-norm. */
#include "paged_kv/retention/method.h"

static void score(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = in->first[i] / (float)in->q_heads * in->second[i];
    }
}

const retention_score_row score_expected = {
    .option = {"expected", "attention that queries to come will pay, times the value's norm"},
    .kind = MEASURE_EXPECTED,
    .second = MEASURE_VALUE_NORM,
    .rows = RETENTION_ROWS_POLICY,
    .score = score,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = IN_PROMPT,
};
