/* SnapKV, ChunkKV: the attention of the last rows. */
#include "paged_kv/retention/method.h"

const retention_score_row score_window = {
    .option = {"window", "attention under the last `window` query rows"},
    .kind = MEASURE_MASS,
    .rows = RETENTION_ROWS_POLICY,
    .score = score_measured,
    .units = ANY_UNIT,
    .allocators = UNIFORM | PYRAMID | ADAPTIVE | HYBRID,
    .schedules = AT_ANY_TIME,
    .page_mass = true,
};
