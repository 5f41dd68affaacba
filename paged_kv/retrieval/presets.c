/* The parts of retrieval methods and the presets. */
#include "paged_kv/retrieval/retrieval.h"
#include <string.h>

static const retrieval_option representatives[RETRIEVAL_REPRESENTATIVES] = {
    [RETRIEVAL_MEAN] = {"MEAN", "BLOCK_MEAN", "the mean of the block's keys"},
    [RETRIEVAL_MAX] = {"MAX", "BLOCK_MAX", "the largest value of each dim of the block's keys"},
    [RETRIEVAL_QUEST] = {"QUEST", NULL,
                         "the smallest and the largest value of each dim: no key of the block can "
                         "have a greater product with the query than its score"},
    [RETRIEVAL_FIX] = {"FIX", "FIXED", "representative_num keys, evenly spread over the block"},
    [RETRIEVAL_DYNAMIC] =
        {"DYNAMIC", NULL,
         "the representative_num keys of the block that the prompt's last observed_rows "
         "queries attended to most"},
};

static const retrieval_option head_modes[RETRIEVAL_HEAD_MODES] = {
    [RETRIEVAL_SHARED] = {"SHARED", NULL, "all KV heads of a layer read the same blocks"},
    [RETRIEVAL_SEPARATE] = {"SEPARATE", NULL, "each KV head reads blocks of its own"},
    [RETRIEVAL_GROUP] = {"GROUP", NULL, "runs of group_heads KV heads read the same blocks"},
};

static const struct {
    const char *name;
    const retrieval_option *options;
    size_t n;
} parts[RETRIEVAL_PARTS] = {
    [RETRIEVAL_PART_REPRESENTATIVE] = {"representative_type", representatives,
                                       RETRIEVAL_REPRESENTATIVES},
    [RETRIEVAL_PART_HEADS] = {"head_select_mode", head_modes, RETRIEVAL_HEAD_MODES},
};

const char *retrieval_part_name(retrieval_part part) { return parts[part].name; }
size_t retrieval_part_size(retrieval_part part) { return parts[part].n; }
retrieval_option retrieval_part_option(retrieval_part part, size_t index)
{
    return parts[part].options[index];
}

uint32_t retrieval_needs(const retrieval_spec *spec)
{
    if (spec->block_tokens == 0) return 0;
    return UINT32_C(1) << spec->representative |
           (spec->token_step > 1 ? (uint32_t)RETRIEVAL_NEEDS_HISTORY : 0) |
           (spec->preselect_blocks > 0 ? (uint32_t)RETRIEVAL_NEEDS_PRESELECTION : 0) |
           (spec->epsilon > 0 ? (uint32_t)RETRIEVAL_NEEDS_EXAM : 0) |
           (spec->audit > 0 ? (uint32_t)RETRIEVAL_NEEDS_AUDIT : 0);
}

/* KTransformers' base configuration: at 128 tokens a block, a step reads 16,512 tokens. */
#define COMMON                                                                                     \
    .block_tokens = 128, .representative_num = 1, .group_heads = 1, .initial_tokens = 1,           \
    .local_tokens = 4096, .top_blocks = 96, .observed_rows = RETRIEVAL_OBSERVED, .layer_step = 1,  \
    .token_step = 1

static const retrieval_preset presets[] = {
    {.name = "ktransformers",
     .summary = "all KV heads read the blocks whose mean key the query fits best",
     .source = "KTransformers, long context: base configuration, representative MEAN",
     .defaults = {COMMON, .representative = RETRIEVAL_MEAN, .heads = RETRIEVAL_SHARED}},
    {.name = "quest",
     .summary = "each KV head reads the blocks that may hold the keys the query fits best",
     .source = "Quest, arXiv 2406.10774, as KTransformers reproduces it, two dense layers",
     .defaults = {COMMON, .representative = RETRIEVAL_QUEST, .heads = RETRIEVAL_SEPARATE,
                  .dense_layers = 2}},
    {.name = "dynamic",
     .summary = "ktransformers by the keys that the end of the prompt attended to most",
     .source = "KTransformers, long context: base configuration, representative DYNAMIC",
     .defaults = {COMMON, .representative = RETRIEVAL_DYNAMIC, .heads = RETRIEVAL_SHARED}},
};

const retrieval_preset *retrieval_presets(size_t *n)
{
    *n = sizeof presets / sizeof presets[0];
    return presets;
}

const retrieval_preset *retrieval_find(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}
