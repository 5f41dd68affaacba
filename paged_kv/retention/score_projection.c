/* AnDPro: what a token adds along the attention's output. */
#include "paged_kv/retention/method.h"

const retention_score_row score_projection = {
    .option = {"projection", "projection of what a token adds on the attention's output"},
    .kind = MEASURE_PROJECTION,
    .rows = RETENTION_ROWS_POLICY,
    .score = score_measured,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
};
