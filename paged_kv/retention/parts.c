#include "paged_kv/retention/method.h"

const retention_score_row retention_scores[] = {
    [RETENTION_SCORE_NONE] = {{"none", "nothing is measured"}, MEASURE_NONE, NULL},
    [RETENTION_SCORE_WINDOW] = {{"window", "attention mass under the last `window` query rows"},
                                MEASURE_MASS,
                                retention_score_window},
};

static const retention_choice units[] = {
    [RETENTION_UNIT_PAGE] = {"page", "whole pages, freed without a copy"},
};

static uint32_t all_heads(const pkv_geometry *geometry) { return geometry->n_kv_heads; }

const retention_scope_row retention_scopes[] = {
    [RETENTION_SCOPE_LAYER] = {{"layer", "all KV heads of a layer share one choice"}, all_heads},
};

static uint32_t uniform_pages(uint32_t kept_pages, uint32_t index, uint32_t n_scopes)
{
    (void)index;
    (void)n_scopes;
    return kept_pages;
}

const retention_allocator_row retention_allocators[] = {
    [RETENTION_ALLOCATOR_UNIFORM] = {{"uniform", "every scope keeps equally many"}, uniform_pages},
};

static uint32_t never(uint32_t n_prompt, uint32_t from)
{
    (void)n_prompt;
    (void)from;
    return UINT32_MAX;
}

static uint32_t prompt_end(uint32_t n_prompt, uint32_t from)
{
    return from < n_prompt ? n_prompt : UINT32_MAX;
}

const retention_schedule_row retention_schedules[] = {
    [RETENTION_SCHEDULE_NEVER] = {{"never", "everything stays"}, never},
    [RETENTION_SCHEDULE_PROMPT] = {{"prompt", "once, at the end of the prompt"}, prompt_end},
};

/* ---- the same rows by part, for parsing, help and docs --------------------------------------- */

#define ROWS(table) table, sizeof(table) / sizeof((table)[0]), sizeof((table)[0])

/* Every row begins with its retention_choice. */
static const struct {
    const char *name;
    const void *rows;
    size_t n_rows, row_bytes;
} parts[RETENTION_PARTS] = {
    [RETENTION_PART_SCORE] = {"score", ROWS(retention_scores)},
    [RETENTION_PART_UNIT] = {"unit", ROWS(units)},
    [RETENTION_PART_SCOPE] = {"scope", ROWS(retention_scopes)},
    [RETENTION_PART_ALLOCATOR] = {"allocator", ROWS(retention_allocators)},
    [RETENTION_PART_SCHEDULE] = {"schedule", ROWS(retention_schedules)},
};

const char *retention_part_name(retention_part part) { return parts[part].name; }
size_t retention_part_size(retention_part part) { return parts[part].n_rows; }

retention_choice retention_part_choice(retention_part part, size_t index)
{
    return *(const retention_choice *)((const char *)parts[part].rows +
                                       index * parts[part].row_bytes);
}
