/* Property: for any document, retention_parse accepts it or refuses it with one line about
 * "retention". An accepted policy has at most one budget, and ascending points. Along these points,
 * on tables that earlier selections have left in any order: the measures of a step are consistent;
 * a selection is made, twice the same; it keeps the protected tokens, and at most as much as was
 * promised; tables that share a selection keep the same slots; the report is JSON.
 *
 * Input: two bytes of prompt length, one that picks a geometry, one that seeds the measures;
 * then JSON. */
#include "paged_kv/retention/retention.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum {
    LAYERS = 6,
    HEADS = 2,
    GROUPS_MAX = LAYERS * HEADS,
    PROMPT_MAX = 1000,
    GENERATED = 40,
    SELECTIONS_MAX = 12,
    SLOTS = 1088,
    WORDS = SLOTS / 64,
};

#define MODEL(page, layers)                                                                        \
    .page_tokens = (page), .n_layers = (layers), .n_kv_heads = HEADS, .layers_per_group = 1,       \
    .heads_per_group = 1
static const pkv_geometry geometries[] = {
    {MODEL(16, 6)}, {MODEL(16, 6), .window = 33, .window_layers = {0x2a}}, {MODEL(32, 5)},
    {MODEL(16, 3)}, {MODEL(16, 6), .window = 50, .window_layers = {0x2d}},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

typedef struct life {
    const retention_policy *policy;
    pkv_geometry geometry;
    pkv *kv;
    uint32_t n_prompt;
    float values[2 * LAYERS * HEADS * SLOTS];
    float scratch[(HEADS + 16) * SLOTS];
    uint64_t keep[GROUPS_MAX * WORDS], again[GROUPS_MAX * WORDS];
} life;

static life l; /* a fuzz target runs one input at a time */

static void measure(uint8_t seed)
{
    static const float values[] = {
        0, 1, -1, 0.5f, 1, 2, -0.0f, __builtin_inff(), __builtin_nanf("")};
    for (uint32_t i = 0; i < sizeof l.values / sizeof l.values[0]; i++)
        l.values[i] = values[hash_mix64(seed * 7919u + i) % (seed % 9 + 1u)];
}

static void check_spec(uint32_t from, uint32_t to, uint32_t point)
{
    measure_spec spec = retention_measure_rows(l.policy, l.n_prompt, from, to);
    if (spec.kind == MEASURE_NONE) return;
    FUZZ_CHECK(spec.kind < MEASURE_KINDS && spec.second < MEASURE_KINDS);
    FUZZ_CHECK(spec.rows > 0 && spec.layer_step == l.policy->reuse_layers);
    FUZZ_CHECK(spec.sum == MEASURE_SUM_STEP || retention_has_sums(l.policy));
    FUZZ_CHECK(spec.silent == (to != point));
    FUZZ_CHECK(spec.by_slot || (spec.kind == MEASURE_MASS && spec.sum == MEASURE_SUM_STEP));
}

/* Compares with the tokens before the selection. */
static void check_kept(uint32_t point)
{
    const retention_policy *p = l.policy;
    bool growth = point > l.n_prompt && p->growth != RETENTION_GROWTH_JOINT;
    bool mean = p->variant == RETENTION_VARIANT_MEAN && p->schedule != RETENTION_SCHEDULE_NEVER;
    for (uint32_t g = 0; g < pkv_groups(&l.geometry); g++) {
        uint32_t n = pkv_seq_table(l.kv, 0, g).kept_tokens;
        for (uint32_t i = 0; i < WORDS * 64; i++) {
            bool stays = l.keep[g * WORDS + i / 64] >> i % 64 & 1;
            if (i >= n) FUZZ_CHECK(!stays);
            if (i >= n || stays) continue;
            uint32_t at = pkv_seq_position(l.kv, 0, g, i);
            uint32_t layer = g / pkv_head_groups(&l.geometry) * l.geometry.layers_per_group;
            uint32_t window = pkv_window_of(&l.geometry, layer);
            if (window > 0) {
                FUZZ_CHECK(point - at > window);
                continue;
            }
            FUZZ_CHECK(growth ? at >= l.n_prompt : mean || at >= p->sinks);
            if (growth) FUZZ_CHECK(point - at > p->beta2);
            else if (!mean && !p->window_half) FUZZ_CHECK(point - at > p->window);
        }
    }
}

/* The layer whose selection this layer uses, among layers without a window; a layer with a window
 * uses its own only. */
static uint32_t leader_of(const pkv_geometry *g, uint32_t layer)
{
    uint32_t leader = layer, nth = 0;
    for (uint32_t i = 0; pkv_window_of(g, layer) == 0 && i <= layer; i++)
        if (pkv_window_of(g, i) == 0 && nth++ % l.policy->reuse_layers == 0) leader = i;
    return leader;
}

/* Sequence 1 lives in the coarsest tables that the policy allows. Its selections give every KV
 * group the tokens that sequence 0, with a table for each, keeps. */
static void select_coarse(const measure_result *measures)
{
    error err;
    const pkv_geometry *g = &l.geometry;
    retention_selection out = {.keep = l.again,
                               .words = WORDS,
                               .scratch = l.scratch,
                               .n_scratch = sizeof l.scratch / sizeof l.scratch[0]};
    FUZZ_CHECK(status_ok(pkv_seq_split(l.kv, 1, retention_grain(l.policy, g), 0)));
    FUZZ_CHECK(status_ok(retention_select(l.policy, l.kv, 1, l.n_prompt, measures, &out, &err)));
    const pkv_geometry *own = pkv_seq_geometry(l.kv, 1);
    for (uint32_t i = 0; out.gives_up && i < pkv_groups(own); i++)
        FUZZ_CHECK(status_ok(pkv_seq_keep(l.kv, 1, i, l.again + i * WORDS, l.policy->contiguous)));
    for (uint32_t i = 0; i < pkv_groups(g); i++) {
        uint32_t table = pkv_group_of(own, i / pkv_head_groups(g) * g->layers_per_group,
                                      i % pkv_head_groups(g) * g->heads_per_group);
        uint32_t n = pkv_seq_table(l.kv, 0, i).kept_tokens;
        FUZZ_CHECK(pkv_seq_table(l.kv, 1, table).kept_tokens == n);
        for (uint32_t s = 0; s < n; s++)
            FUZZ_CHECK(pkv_seq_position(l.kv, 0, i, s) == pkv_seq_position(l.kv, 1, table, s));
    }
}

static void select_once(uint32_t point)
{
    error err;
    const pkv_geometry *g = &l.geometry;
    measure_result measures = {.values = l.values,
                               .n_layers = measure_layers(g, l.policy->reuse_layers),
                               .n_kv_heads = HEADS,
                               .stride = SLOTS,
                               .q_heads = 4};
    retention_selection out = {.keep = l.keep,
                               .words = WORDS,
                               .scratch = l.scratch,
                               .n_scratch = sizeof l.scratch / sizeof l.scratch[0]};
    bool keeps_all = retention_keeps_all(l.policy, l.kv, 0, l.n_prompt);
    FUZZ_CHECK(status_ok(retention_select(l.policy, l.kv, 0, l.n_prompt, &measures, &out, &err)));
    FUZZ_CHECK(!keeps_all || (!out.gives_up && !out.budget_raised));
    retention_selection again = out;
    again.keep = l.again;
    memset(l.scratch, 0xa5, sizeof l.scratch);
    FUZZ_CHECK(status_ok(retention_select(l.policy, l.kv, 0, l.n_prompt, &measures, &again, &err)));
    FUZZ_CHECK(memcmp(l.keep, l.again, pkv_groups(g) * WORDS * sizeof *l.keep) == 0);
    FUZZ_CHECK(out.gives_up == again.gives_up && out.budget_raised == again.budget_raised);
    check_kept(point);
    for (uint32_t i = 0; out.gives_up && i < pkv_groups(g); i++) {
        FUZZ_CHECK(status_ok(pkv_seq_keep(l.kv, 0, i, l.keep + i * WORDS, l.policy->contiguous)));
    }
    select_coarse(&measures);
    FUZZ_CHECK(pkv_check_integrity(l.kv) == NULL);
    retention_bound bound = retention_bound_at(l.policy, g, 0, l.n_prompt, point);
    FUZZ_CHECK(pkv_seq_pages_held(l.kv, 0) <= bound.pages);
    for (uint32_t i = 0; i < pkv_groups(g); i++) {
        uint32_t layer = i / pkv_head_groups(g) * g->layers_per_group;
        uint32_t leader = leader_of(g, layer);
        uint32_t first = pkv_group_of(g, leader, i % pkv_head_groups(g) * g->heads_per_group);
        pkv_table_view mine = pkv_seq_table(l.kv, 0, i), its = pkv_seq_table(l.kv, 0, first);
        FUZZ_CHECK(mine.kept_tokens == its.kept_tokens && mine.n_pages <= bound.longest_pages);
        for (uint32_t s = 0; s < mine.kept_tokens; s++)
            FUZZ_CHECK(pkv_seq_position(l.kv, 0, i, s) == pkv_seq_position(l.kv, 0, first, s));
    }
}

/* The report does not depend on the grain of the tables. */
static void check_report(void)
{
    strbuf json[2] = {{0}};
    error err;
    for (uint32_t q = 0; q < 2; q++) retention_kept_json(l.kv, q, 0, 0, &json[q]);
    json_t *kept = NULL;
    FUZZ_CHECK(status_ok(json_read_text("kept", json[0].data, json[0].size, &kept, &err)));
    FUZZ_CHECK(json_array_size(kept) >= pkv_layer_groups(&l.geometry));
    FUZZ_CHECK(json_array_size(kept) <= pkv_groups(&l.geometry));
    FUZZ_CHECK(json[1].size == json[0].size);
    FUZZ_CHECK(memcmp(json[1].data, json[0].data, json[0].size) == 0);
    FUZZ_CHECK(pkv_seq_kept(l.kv, 0) == pkv_seq_kept(l.kv, 1));
    json_decref(kept);
    for (uint32_t q = 0; q < 2; q++) strbuf_destroy(&json[q]);
}

static void live(retention_policy *policy, const pkv_geometry *g, uint32_t n_prompt, uint8_t seed)
{
    error err;
    if (!status_ok(retention_check_budget(policy, g, n_prompt, &err))) {
        FUZZ_CHECK(policy->tokens > 0 && strncmp(err.text, "retention.", 10) == 0);
        return;
    }
    retention_policy_resolve(policy, GENERATED);
    FUZZ_CHECK(retention_scratch_floats(g, SLOTS) <= sizeof l.scratch / sizeof l.scratch[0]);
    pkv_options options = {.geometry = *g, .n_pages = GROUPS_MAX * 280, .max_seqs = 2};
    uint32_t hit, at = 0, from = 0;
    l.policy = policy;
    l.geometry = *g;
    l.n_prompt = n_prompt;
    FUZZ_CHECK(status_ok(pkv_create(&options, &l.kv)));
    FUZZ_CHECK(status_ok(pkv_seq_open(l.kv, 0, PKV_HEAD, NULL, 0, 0, n_prompt, &hit)));
    FUZZ_CHECK(status_ok(pkv_seq_open(l.kv, 1, PKV_ALL, NULL, 0, 0, n_prompt, &hit)));
    measure(seed);
    for (uint32_t i = 0; i < SELECTIONS_MAX; i++) {
        uint32_t point = retention_next_point(policy, n_prompt, from);
        FUZZ_CHECK(point > from);
        if (point > n_prompt + GENERATED) break;
        check_spec(point > n_prompt && from < n_prompt ? n_prompt : from, point, point);
        if (point - from > 1) check_spec(from, point - 1, point);
        FUZZ_CHECK(retention_rows_together(policy, n_prompt, point) <= point);
        for (uint32_t q = 0; q < 2; q++) FUZZ_CHECK(status_ok(pkv_seq_append(l.kv, q, point - at)));
        select_once(point);
        from = at = point;
    }
    check_report();
    pkv_destroy(l.kv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    uint32_t n_prompt = (data[0] | (uint32_t)data[1] << 8) % PROMPT_MAX + 1;
    retention_limits limits = {.geometry = geometries[data[2] % N_GEOMETRIES], .max_window = 512};
    json_t *json;
    error err;
    if (!status_ok(json_read_text("doc", (const char *)data + 4, size - 4, &json, NULL))) return 0;
    retention_policy policy;
    if (status_ok(retention_parse(json, &limits, &policy, &err))) {
        FUZZ_CHECK(policy.preset && (policy.ratio == 0 || policy.tokens == 0));
        FUZZ_CHECK(policy.ratio >= 0 && policy.ratio <= 1);
        live(&policy, &limits.geometry, n_prompt, data[3]);
    } else {
        FUZZ_CHECK(strncmp(err.text, "retention", 9) == 0 && !strchr(err.text, '\n'));
    }
    json_decref(json);
    return 0;
}
