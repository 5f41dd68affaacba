/* TOVA: the attention of the last row. */
#include "paged_kv/retention/method.h"

const retention_score_row score_last = {
    .option = {"last", "attention under the last query row alone"},
    .kind = MEASURE_MASS,
    .rows = RETENTION_ROWS_LAST,
    .score = score_measured,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE,
    .schedules = AT_ANY_TIME,
    .page_mass = true,
};
