/* The tables of parts: the options, and which of them go together. */
#include "paged_kv/retention/method.h"
#include <string.h>

static const retention_score_row score_none = {
    .option = {"none", "nothing is measured"},
    .units = PAGE,
    .allocators = UNIFORM,
    .schedules = ONLY(RETENTION_SCHEDULE_NEVER),
};

_Static_assert(RETENTION_SCORES <= 32, "a set of scores is 32 bits");

#define ROW(ID, row) [RETENTION_SCORE_##ID] = &row,
const retention_score_row *const retention_scores[RETENTION_SCORES] = {
    [RETENTION_SCORE_NONE] = &score_none, RETENTION_SCORE_FILES(ROW)};
#undef ROW

const retention_variant_row retention_variants[] = {
    [RETENTION_VARIANT_PLAIN] = {.option = {"plain", "the score as it is"}, .units = ANY_UNIT},
    [RETENTION_VARIANT_RAW] = {.option = {"raw", "q . k without scale, mask and softmax (ChunkKV, "
                                                 "Algorithm 1)"},
                               .of = RETENTION_SCORE_WINDOW,
                               .kind = MEASURE_RAW,
                               .score = score_measured,
                               .units = ANY_UNIT},
    [RETENTION_VARIANT_MEAN] = {.option = {"mean", "means over rows, heads and slots, a share of "
                                                   "the chunks, as kvpress"},
                                .of = RETENTION_SCORE_WINDOW,
                                .kind = MEASURE_MASS,
                                .score = score_mean,
                                .units = PAGE | CHUNK,
                                .kvpress = true},
    [RETENTION_VARIANT_ALG1] = {.option = {"alg1", "softmax and output over the slots outside the "
                                                   "window (AnDPro, Algorithm 1)"},
                                .of = RETENTION_SCORE_PROJECTION,
                                .kind = MEASURE_PROJECTION_OUTSIDE,
                                .score = score_measured,
                                .units = ANY_UNIT},
    [RETENTION_VARIANT_CODE] = {.option = {"code", "attention max-pooled first, the output of the "
                                                   "evictable chunks alone (AnDPro's code)"},
                                .of = RETENTION_SCORE_PROJECTION,
                                .kind = MEASURE_PROJECTION_POOLED,
                                .score = score_measured,
                                .units = ANY_UNIT},
    [RETENTION_VARIANT_ALG3] = {.option = {"alg3",
                                           "chunks that hold window slots take part in the "
                                           "selection (ChunkKV, Algorithm 3 to the letter)"},
                                .of = RETENTION_SCORE_WINDOW,
                                .units = CHUNK,
                                .whole_chunks = true},
};

static const retention_option units[] = {
    [RETENTION_UNIT_PAGE] = {"page", "whole pages, freed without a copy"},
    [RETENTION_UNIT_CHUNK] = {"chunk", "`chunk` tokens, gathered into fresh pages"},
    [RETENTION_UNIT_TOKEN] = {"token", "single tokens, gathered into fresh pages"},
};

static uint32_t all_heads(const pkv_geometry *geometry) { return geometry->n_kv_heads; }
static uint32_t one_head(const pkv_geometry *geometry)
{
    (void)geometry;
    return 1;
}

const retention_scope_row retention_scopes[] = {
    [RETENTION_SCOPE_LAYER] = {{"layer", "all KV heads of a layer share one selection"}, all_heads},
    [RETENTION_SCOPE_HEAD] = {{"head", "each KV head selects alone"}, one_head},
};

const retention_pool_row retention_pools[] = {
    [RETENTION_POOL_NONE] = {{"none", "scores as they are"}, NULL},
    [RETENTION_POOL_MAX] = {{"max", "the largest of the neighbours"}, pool_max},
    [RETENTION_POOL_AVG] = {{"avg", "the mean of the neighbours"}, pool_avg},
};

/* ---- the same rows by part, for parsing, help and docs --------------------------------------- */

#define ROWS(table) table, sizeof(table) / sizeof((table)[0]), sizeof((table)[0])
#define PART(name, table, member)                                                                  \
    {                                                                                              \
        name, ROWS(table), offsetof(retention_policy, member), false                               \
    }
#define PART_OF(name, table, rows, member)                                                         \
    {                                                                                              \
        name, table, rows, sizeof((table)[0]), offsetof(retention_policy, member), false           \
    }

/* Every row begins with its retention_option; every member is an enum. */
static const struct {
    const char *name;
    const void *rows;
    size_t n_rows, row_bytes, at;
    bool by_pointer; // to the rows
} parts[RETENTION_PARTS] = {
    [RETENTION_PART_SCORE] = {"score", ROWS(retention_scores), offsetof(retention_policy, score),
                              true},
    [RETENTION_PART_UNIT] = PART("unit", units, unit),
    [RETENTION_PART_SCOPE] = PART("scope", retention_scopes, scope),
    [RETENTION_PART_ALLOCATOR] = PART_OF("allocator", retention_allocators,
                                         RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE + 1, allocator),
    [RETENTION_PART_SCHEDULE] =
        PART_OF("schedule", retention_schedules, RETENTION_SCHEDULE_INPUT + 1, schedule),
    [RETENTION_PART_VARIANT] = PART("variant", retention_variants, variant),
};

const char *retention_part_name(retention_part part) { return parts[part].name; }
size_t retention_part_size(retention_part part) { return parts[part].n_rows; }

retention_option retention_part_option(retention_part part, size_t index)
{
    const void *row = (const char *)parts[part].rows + index * parts[part].row_bytes;
    if (parts[part].by_pointer) row = *(const void *const *)row;
    return *(const retention_option *)row;
}

size_t retention_part_find(retention_part part, const char *name)
{
    for (size_t i = 0; i < parts[part].n_rows; i++) {
        if (strcmp(retention_part_option(part, i).name, name) == 0) return i;
    }
    return SIZE_MAX;
}

_Static_assert(sizeof(retention_score) == sizeof(uint32_t), "parts are enums of 32 bits");

void retention_part_set(retention_policy *policy, retention_part part, size_t index)
{
    uint32_t value = (uint32_t)index;
    memcpy((char *)policy + parts[part].at, &value, sizeof value);
}

uint32_t retention_part_get(const retention_policy *policy, retention_part part)
{
    uint32_t value;
    memcpy(&value, (const char *)policy + parts[part].at, sizeof value);
    return value;
}
