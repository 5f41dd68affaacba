/* H2O: the attention of all rows so far. */
#include "paged_kv/retention/method.h"

const retention_score_row score_accumulated = {
    .option = {"accumulated",
               "attention under all query rows since the beginning; takes no prefix hit"},
    .kind = MEASURE_MASS,
    .rows = RETENTION_ROWS_ALL,
    .score = score_measured,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
};
