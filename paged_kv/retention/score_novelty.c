/* InfiniPot's novelty under compression: - log p of the token, for half of the budget; then the
 * attention to it, for the other half. */
#include "paged_kv/retention/method.h"

static void score(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++)
        scores[i] = in->novelty[in->positions ? in->positions[i] : i];
}

const retention_score_row score_novelty = {
    .option = {"novelty", "half of the budget by how unlikely a token was, the rest by attention; "
                          "takes no prefix hit"},
    .kind = MEASURE_MASS,
    .rows = RETENTION_ROWS_POLICY,
    .score = score,
    .refine = score_measured,
    .units = TOKEN,
    .allocators = UNIFORM,
    .schedules = IN_PROMPT,
    .novelty = true,
};
