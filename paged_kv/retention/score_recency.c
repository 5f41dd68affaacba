/* StreamingLLM and truncation: a token's position. */
#include "paged_kv/retention/method.h"

static void score(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) {
        scores[i] = (float)(in->positions ? in->positions[i] : i);
    }
}

const retention_score_row score_recency = {
    .option = {"recency", "the latest tokens stay"},
    .score = score,
    .units = PAGE | TOKEN,
    .allocators = UNIFORM | PYRAMID,
    .schedules = AT_ANY_TIME,
};
