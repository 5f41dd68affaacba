/* KeyDiff: the less similar a key is to the mean direction of the keys, the better. */
#include "paged_kv/retention/method.h"

const retention_score_row score_keydiff = {
    .option = {"keydiff", "keys unlike the mean key stay"},
    .kind = MEASURE_KEY_COSINE,
    .score = score_negated,
    .units = PAGE | TOKEN,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
};
