/* The methods: one row each. Exact meanings: docs/retention.md. */
#include "paged_kv/retention/method.h"
#include <string.h>

#define FROM(first, last) ((ONLY((last) + 1) - 1) & ~(ONLY(first) - 1))

/* The start of a method's row: any composition that has a meaning is allowed. */
#define ANY_SCORE FROM(RETENTION_SCORE_NONE + 1, RETENTION_SCORES - 1)
#define ANY_FIELD (RETENTION_FIELD_BUDGET | RETENTION_FIELD_PARTS)
#define ANY_OPTION                                                                                 \
    {                                                                                              \
        [RETENTION_PART_SCORE] = ANY_SCORE,                                                        \
        [RETENTION_PART_UNIT] = FROM(RETENTION_UNIT_PAGE, RETENTION_UNIT_TOKEN),                   \
        [RETENTION_PART_SCOPE] = FROM(RETENTION_SCOPE_LAYER, RETENTION_SCOPE_HEAD),                \
        [RETENTION_PART_ALLOCATOR] =                                                               \
            FROM(RETENTION_ALLOCATOR_UNIFORM, RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE),               \
        [RETENTION_PART_SCHEDULE] = FROM(RETENTION_SCHEDULE_PROMPT, RETENTION_SCHEDULE_DECODE),    \
        [RETENTION_PART_VARIANT] = FROM(RETENTION_VARIANT_PLAIN, RETENTION_VARIANT_ALG3),          \
    }
/* Contiguous positions: every table keeps equally many tokens, at each chunk of the prompt. */
#define RECURRENT_OPTION                                                                           \
    {                                                                                              \
        [RETENTION_PART_SCORE] = ANY_SCORE,                                                        \
        [RETENTION_PART_UNIT] = ONLY(RETENTION_UNIT_PAGE) | ONLY(RETENTION_UNIT_TOKEN),            \
        [RETENTION_PART_SCOPE] = FROM(RETENTION_SCOPE_LAYER, RETENTION_SCOPE_HEAD),                \
        [RETENTION_PART_ALLOCATOR] = ONLY(RETENTION_ALLOCATOR_UNIFORM),                            \
        [RETENTION_PART_SCHEDULE] = ONLY(RETENTION_SCHEDULE_CHUNK),                                \
        [RETENTION_PART_VARIANT] = ONLY(RETENTION_VARIANT_PLAIN),                                  \
    }
/* A preset's choices for rows that may leave before the last layer, and so have no logits. */
#define READING_OPTION                                                                             \
    {                                                                                              \
        [RETENTION_PART_SCORE] = ANY_SCORE & ~ONLY(RETENTION_SCORE_NOVELTY),                       \
        [RETENTION_PART_UNIT] = ONLY(RETENTION_UNIT_PAGE) | ONLY(RETENTION_UNIT_TOKEN),            \
        [RETENTION_PART_SCOPE] = FROM(RETENTION_SCOPE_LAYER, RETENTION_SCOPE_HEAD),                \
        [RETENTION_PART_ALLOCATOR] = ONLY(RETENTION_ALLOCATOR_UNIFORM),                            \
        [RETENTION_PART_SCHEDULE] = ONLY(RETENTION_SCHEDULE_CHUNK),                                \
        [RETENTION_PART_VARIANT] = ONLY(RETENTION_VARIANT_PLAIN),                                  \
    }
/* The row selects nothing itself. */
#define NO_OPTION                                                                                  \
    {                                                                                              \
        [RETENTION_PART_SCORE] = ONLY(RETENTION_SCORE_NONE),                                       \
        [RETENTION_PART_UNIT] = ONLY(RETENTION_UNIT_PAGE),                                         \
        [RETENTION_PART_SCOPE] = ONLY(RETENTION_SCOPE_LAYER),                                      \
        [RETENTION_PART_ALLOCATOR] = ONLY(RETENTION_ALLOCATOR_UNIFORM),                            \
        [RETENTION_PART_SCHEDULE] = ONLY(RETENTION_SCHEDULE_NEVER),                                \
        [RETENTION_PART_VARIANT] = ONLY(RETENTION_VARIANT_PLAIN),                                  \
    }
/* Cuts the prompt before anything is computed. */
#define INPUT_OPTION                                                                               \
    {                                                                                              \
        [RETENTION_PART_SCORE] = ONLY(RETENTION_SCORE_NONE),                                       \
        [RETENTION_PART_UNIT] = ONLY(RETENTION_UNIT_TOKEN),                                        \
        [RETENTION_PART_SCOPE] = ONLY(RETENTION_SCOPE_LAYER),                                      \
        [RETENTION_PART_ALLOCATOR] = ONLY(RETENTION_ALLOCATOR_UNIFORM),                            \
        [RETENTION_PART_SCHEDULE] = ONLY(RETENTION_SCHEDULE_INPUT),                                \
        [RETENTION_PART_VARIANT] = ONLY(RETENTION_VARIANT_PLAIN),                                  \
    }

/* Defaults that matter only when a request overrides a part. */
#define COMMON                                                                                     \
    .chunk = 10, .beta = 20, .floor = 0.2f, .kernel = 7, .interval = 16, .recurrent_chunk = 32768, \
    .reuse_layers = 1, .theta = 1
#define POOLED            .pool = RETENTION_POOL_MAX
#define BY_TOKEN          .unit = RETENTION_UNIT_TOKEN, .scope = RETENTION_SCOPE_LAYER
#define BY_TOKEN_AND_HEAD .unit = RETENTION_UNIT_TOKEN, .scope = RETENTION_SCOPE_HEAD
#define AT_PROMPT         .schedule = RETENTION_SCHEDULE_PROMPT
#define AT_DECODE(n)      .schedule = RETENTION_SCHEDULE_DECODE, .interval = (n)
#define RECURRENT                                                                                  \
    .unit = RETENTION_UNIT_TOKEN, .schedule = RETENTION_SCHEDULE_CHUNK, .contiguous = true,        \
    .tokens = 32768, .sinks = 256, .window = 256
#define SCOPE_ROW                                                                                  \
    .fields = RETENTION_FIELD_PHASES, .options = NO_OPTION,                                        \
    .source = "SCOPE, ACL 2025, section 3 (a decode budget beside a frozen prompt)"
#define SCOPE_DECODE                                                                               \
    COMMON, .decode_score = RETENTION_SCORE_LAST, .decode_unit = RETENTION_UNIT_TOKEN,             \
            .decode_scope = RETENTION_SCOPE_HEAD, .beta1 = 256, .beta2 = 256

/* A row's own value follows the common one. */
#pragma GCC diagnostic ignored "-Woverride-init"

/* clang-format off */
static const retention_preset presets[] = {
    {.name = "full",
     .summary = "keeps everything",
     .source = "the reference that methods are compared with",
     .options = NO_OPTION,
     .defaults = {COMMON}},
    {.name = "truncate",
     .summary = "cuts the prompt to its last tokens, before anything is computed",
     .source = "the truncation baseline of REFORM, arXiv 2506.01215",
     .needs_budget = true, .fields = RETENTION_FIELD_BUDGET | RETENTION_FIELD_INPUT,
     .options = INPUT_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_NONE, BY_TOKEN,
                  .schedule = RETENTION_SCHEDULE_INPUT}},
    {.name = "streaming",
     .summary = "keeps the first and the last tokens, while generating too",
     .source = "StreamingLLM, arXiv 2309.17453, section 3.2; original positions",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_RECENCY, BY_TOKEN, AT_DECODE(1), .sinks = 4}},
    {.name = "h2o",
     .summary = "keeps the tokens that all queries attended to most, and as many of the latest",
     .source = "H2O, arXiv 2306.14048, Algorithm 1",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_ACCUMULATED, BY_TOKEN_AND_HEAD, AT_DECODE(1),
                  .window = INT32_MAX, .window_half = true}},
    {.name = "tova",
     .summary = "keeps the tokens that the latest query attends to most",
     .source = "TOVA, arXiv 2401.06104, section 4",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_LAST, BY_TOKEN, AT_DECODE(1), .window = 1}},
    {.name = "snapkv",
     .summary = "keeps the tokens, and their neighbours, that the end of the prompt attends to most",
     .source = "SnapKV, arXiv 2404.14469, section 4",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, BY_TOKEN_AND_HEAD, AT_PROMPT,
                  .window = 32, POOLED}},
    {.name = "pyramidkv",
     .summary = "snapkv with more for lower layers and less for upper ones",
     .source = "PyramidKV, arXiv 2406.02069, section 4, as its code computes the budgets",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, BY_TOKEN_AND_HEAD, AT_PROMPT,
                  .window = 32, POOLED, .allocator = RETENTION_ALLOCATOR_PYRAMID}},
    {.name = "pyramidinfer",
     .summary = "attention of all queries with pyramid budgets; while generating, of the latest",
     .source = "PyramidInfer, arXiv 2405.12532, as a baseline of SCOPE",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_ACCUMULATED, BY_TOKEN_AND_HEAD, AT_DECODE(1),
                  .window = 256, .window_half = true, .allocator = RETENTION_ALLOCATOR_PYRAMID,
                  .beta = 2, .decode_score = RETENTION_SCORE_LAST}},
    {.name = "adakv",
     .summary = "snapkv whose heads compete for a layer's budget",
     .source = "Ada-KV, arXiv 2407.11550, Algorithm 1 with the safeguard of its ports",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, BY_TOKEN_AND_HEAD, AT_PROMPT,
                  .window = 32, POOLED, .allocator = RETENTION_ALLOCATOR_ADAPTIVE}},
    {.name = "criticalkv",
     .summary = "half by attention, the rest by attention times the projected value's norm",
     .source = "CriticalKV, arXiv 2502.03805, Algorithm 1",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_CRITICAL, BY_TOKEN_AND_HEAD, AT_PROMPT,
                  .window = 32, POOLED}},
    {.name = "chunkkv",
     .summary = "keeps the pages that the end of the prompt attends to most",
     .source = "ChunkKV, arXiv 2502.00299, Algorithm 3, with chunk = page",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, AT_PROMPT, .window = 32}},
    {.name = "chunkkv-reuse",
     .summary = "chunkkv, one selection for every two layers",
     .source = "ChunkKV, arXiv 2502.00299, Algorithm 2, N = 2",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, AT_PROMPT, .window = 32,
                  .reuse_layers = 2}},
    {.name = "chunkkv-hybrid",
     .summary = "chunks in the lower half of the layers, single tokens in the upper half",
     .source = "ChunkKV, arXiv 2502.00299, Table 12",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, .unit = RETENTION_UNIT_CHUNK, AT_PROMPT,
                  .window = 32, POOLED, .allocator = RETENTION_ALLOCATOR_HYBRID}},
    {.name = "andpro",
     .summary = "keeps the chunks that add most to the attention's output; heads compete",
     .source = "AnDPro, NeurIPS 2025, section 3.4 with the max-pool of appendix B.3, as its code has it",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_PROJECTION, .unit = RETENTION_UNIT_CHUNK,
                  .variant = RETENTION_VARIANT_CODE, .scope = RETENTION_SCOPE_HEAD, AT_PROMPT,
                  .sinks = 1, .window = 32, .chunk = 4,
                  .allocator = RETENTION_ALLOCATOR_ADAPTIVE, .floor = 0}},
    {.name = "scope-slide",
     .summary = "the prompt as `prefill` leaves it; a fixed budget for what is generated",
     SCOPE_ROW,
     .defaults = {SCOPE_DECODE, .growth = RETENTION_GROWTH_SLIDE}},
    {.name = "scope-adaptive",
     .summary = "the prompt as `prefill` leaves it; what is generated may take more and more",
     SCOPE_ROW,
     .defaults = {SCOPE_DECODE, .growth = RETENTION_GROWTH_ADAPTIVE}},
    {.name = "scope-discontinuous",
     .summary = "scope-adaptive that selects only when its budget has grown",
     SCOPE_ROW,
     .defaults = {SCOPE_DECODE, .growth = RETENTION_GROWTH_DISCONTINUOUS}},
    {.name = "snapkv-decode",
     .summary = "snapkv again and again while generating, prompt and answer in one budget",
     .source = "a baseline of AnDPro, NeurIPS 2025, Tables 12 and 13",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, BY_TOKEN_AND_HEAD, AT_DECODE(16),
                  .sinks = 1, .window = 16, POOLED}},
    {.name = "andpro-decode",
     .summary = "andpro again and again while generating, prompt and answer in one budget",
     .source = "AnDPro, NeurIPS 2025, Tables 12 and 13",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_PROJECTION, .unit = RETENTION_UNIT_CHUNK,
                  .scope = RETENTION_SCOPE_HEAD, AT_DECODE(16), .sinks = 1, .window = 16,
                  .chunk = 4, .allocator = RETENTION_ALLOCATOR_ADAPTIVE, .floor = 0}},
    {.name = "streaming-recurrent",
     .summary = "streaming at each chunk of a long prompt, positions closed up: constant memory",
     .source = "StreamingLLM, arXiv 2309.17453, as a baseline of REFORM, arXiv 2506.01215",
     .fields = ANY_FIELD, .options = RECURRENT_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_RECENCY, RECURRENT}},
    {.name = "h2o-recurrent",
     .summary = "attention of each chunk's last 128 queries, positions closed up: constant memory",
     .source = "H2O, arXiv 2306.14048, as a baseline of REFORM, arXiv 2506.01215",
     .fields = ANY_FIELD, .options = RECURRENT_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, RECURRENT, .rows = 128,
                  .scope = RETENTION_SCOPE_HEAD}},
    {.name = "infinipot",
     .summary = "half of a pot by how unlikely its tokens were, half by what the latest attend to",
     .source = "InfiniPot, arXiv 2410.01518, as a baseline of REFORM, arXiv 2506.01215",
     .fields = ANY_FIELD, .options = RECURRENT_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_NOVELTY, RECURRENT, .rows = 128,
                  .scope = RETENTION_SCOPE_HEAD}},
    {.name = "tova-recurrent",
     .summary = "tova at each chunk of a long prompt, positions closed up: constant memory",
     .source = "TOVA, arXiv 2401.06104, as a baseline of REFORM, arXiv 2506.01215",
     .fields = ANY_FIELD, .options = RECURRENT_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_LAST, RECURRENT}},
    {.name = "reform",
     .summary = "reads as h2o-recurrent, finds what the question needs and computes only that again",
     .source = "REFORM, arXiv 2506.01215; docs/reform.md",
     .fields = ANY_FIELD | RETENTION_FIELD_GATHER, .options = READING_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_WINDOW, RECURRENT, .rows = 128,
                  .scope = RETENTION_SCOPE_HEAD, .gather_tokens = 8192, .gather_window = 129}},
    {.name = "keydiff",
     .summary = "keeps the keys least like the others; ignores the query",
     .source = "KeyDiff, arXiv 2504.15364, section 3, as kvpress computes it",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_KEYDIFF, BY_TOKEN_AND_HEAD, AT_PROMPT}},
    {.name = "knorm",
     .summary = "keeps the smallest keys; ignores the query",
     .source = "L2 norm, arXiv 2406.11430, section 3",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_KNORM, BY_TOKEN_AND_HEAD, AT_PROMPT}},
    {.name = "expected-attention",
     .summary = "keeps what queries to come are expected to attend to; ignores the question",
     .source = "Expected Attention, arXiv 2510.00636, as kvpress computes it",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_EXPECTED, BY_TOKEN_AND_HEAD, AT_PROMPT,
                  .sinks = 4, .rows = 256}},
    {.name = "paged-eviction",
     .summary = "gives up the pages whose values are small beside their keys; ignores the query",
     .source = "PagedEviction, arXiv 2509.04377",
     .needs_budget = true, .fields = ANY_FIELD, .options = ANY_OPTION,
     .defaults = {COMMON, .score = RETENTION_SCORE_VKNORM, AT_DECODE(16), .sinks = 1, .window = 1}},
};
/* clang-format on */

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
