/* The methods. Meanings and defaults: reference/methods.md section 0. */
#include "paged_kv/retention/method.h"
#include <string.h>

#define ONLY(choice) (UINT32_C(1) << (choice))

static const retention_preset presets[] = {
    {
        .name = "full",
        .summary = "keeps everything",
        .source = "the reference that methods are compared with",
        .choices = {ONLY(RETENTION_SCORE_NONE), ONLY(RETENTION_UNIT_PAGE),
                    ONLY(RETENTION_SCOPE_LAYER), ONLY(RETENTION_ALLOCATOR_UNIFORM),
                    ONLY(RETENTION_SCHEDULE_NEVER)},
        .defaults = {.score = RETENTION_SCORE_NONE,
                     .schedule = RETENTION_SCHEDULE_NEVER,
                     .reuse_layers = 1},
    },
    {
        .name = "chunkkv",
        .summary = "keeps the pages that the end of the prompt attends to most, one choice for "
                   "`reuse_layers` layers",
        .source = "ChunkKV, arXiv 2502.00299: Algorithms 2 and 3, with chunk = page",
        .needs_budget = true,
        .fields = RETENTION_FIELD_BUDGET | RETENTION_FIELD_REUSE_LAYERS | RETENTION_FIELD_SINKS |
                  RETENTION_FIELD_WINDOW | RETENTION_FIELD_PARTS,
        .choices = {ONLY(RETENTION_SCORE_WINDOW), ONLY(RETENTION_UNIT_PAGE),
                    ONLY(RETENTION_SCOPE_LAYER), ONLY(RETENTION_ALLOCATOR_UNIFORM),
                    ONLY(RETENTION_SCHEDULE_PROMPT)},
        .defaults = {.score = RETENTION_SCORE_WINDOW,
                     .schedule = RETENTION_SCHEDULE_PROMPT,
                     .window = 32,
                     .reuse_layers = 1},
    },
};

const retention_preset *retention_presets(size_t *n)
{
    *n = sizeof presets / sizeof presets[0];
    return presets;
}

const retention_preset *retention_find(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}
