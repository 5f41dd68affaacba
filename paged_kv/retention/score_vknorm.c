/* PagedEviction: the larger a value beside its key, the better. */
#include "paged_kv/retention/method.h"

static void score(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++) scores[i] = in->second[i] / in->first[i];
}

const retention_score_row score_vknorm = {
    .option = {"vknorm", "large values behind small keys stay"},
    .kind = MEASURE_KEY_NORM,
    .second = MEASURE_VALUE_NORM,
    .score = score,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
};
