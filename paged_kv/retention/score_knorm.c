/* L2 norm: the smaller a key, the better. */
#include "paged_kv/retention/method.h"

const retention_score_row score_knorm = {
    .option = {"knorm", "small keys stay"},
    .kind = MEASURE_KEY_NORM,
    .score = score_negated,
    .units = PAGE | TOKEN,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
};
