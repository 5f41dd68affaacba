/* Property: whatever the document, retention_parse takes it or refuses it with one line about
 * "retention". A policy that it takes has one budget or none, next points that ascend and end, a
 * selection that keeps exactly the pages that retention_budget_for promised, the protected ones
 * among them, equally in all tables that share a choice.
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
    WORDS = 2,
    PROMPT_MAX = 1000,
    STRIDE = 64
};

static const pkv_geometry geometries[] = {
    {.page_tokens = 16,
     .n_layers = 6,
     .n_kv_heads = 2,
     .layers_per_group = 1,
     .heads_per_group = 2},
    {.page_tokens = 16,
     .n_layers = 6,
     .n_kv_heads = 2,
     .layers_per_group = 2,
     .heads_per_group = 1},
    {.page_tokens = 32,
     .n_layers = 5,
     .n_kv_heads = 2,
     .layers_per_group = 2,
     .heads_per_group = 2},
};

static uint32_t count(const uint64_t *row)
{
    return (uint32_t)(__builtin_popcountll(row[0]) + __builtin_popcountll(row[1]));
}

static void check_selection(const retention_policy *policy, const pkv_geometry *g,
                            uint32_t n_prompt, uint8_t seed)
{
    retention_budget budget;
    error err;
    if (!status_ok(retention_budget_for(policy, g->page_tokens, n_prompt, &budget, &err))) {
        FUZZ_CHECK(policy->tokens > 0 && strncmp(err.text, "retention.tokens", 16) == 0);
        return;
    }
    FUZZ_CHECK(budget.protected_pages <= budget.kept_pages && budget.kept_pages <= budget.pages);

    pkv_options options = {.geometry = *g, .n_pages = GROUPS_MAX * STRIDE + 1, .max_seqs = 1};
    pkv *kv;
    uint32_t hit, groups = pkv_groups(g);
    FUZZ_CHECK(status_ok(pkv_create(&options, &kv)));
    FUZZ_CHECK(status_ok(pkv_seq_open(kv, 0, NULL, 0, 0, n_prompt, &hit)));
    FUZZ_CHECK(status_ok(pkv_seq_append(kv, 0, n_prompt)));
    static const float values[] = {
        0, 1, -1, 0.5f, 1, 2, -0.0f, __builtin_inff(), __builtin_nanf("")};
    float measures[LAYERS * HEADS * STRIDE];
    for (uint32_t i = 0; i < LAYERS * HEADS * STRIDE; i++) {
        measures[i] = values[hash_mix64(seed * 7919u + i) % (seed % 9 + 1)];
    }
    measure_spec spec = retention_measure(policy);
    measure_result result = {.values = measures, .n_kv_heads = HEADS, .stride = STRIDE};
    if (spec.layer_step > 0)
        result.n_layers = (g->n_layers + spec.layer_step - 1) / spec.layer_step;

    uint64_t keep[GROUPS_MAX * WORDS] = {0};
    retention_selection choice = {.keep = keep, .words = WORDS};
    FUZZ_CHECK(status_ok(retention_select(policy, kv, 0, n_prompt, &result, &choice, &err)));
    FUZZ_CHECK(choice.pages_dropped == (budget.pages - budget.kept_pages) * groups);
    FUZZ_CHECK(choice.budget_raised == budget.raised);
    uint32_t window = policy->window < n_prompt ? policy->window : n_prompt;
    for (uint32_t i = 0; i < groups; i++) {
        const uint64_t *row = keep + i * WORDS;
        FUZZ_CHECK(count(row) == budget.kept_pages);
        for (uint32_t t = 0; t < n_prompt; t++) {
            uint32_t page = t / g->page_tokens;
            bool stays = row[page / 64] >> page % 64 & 1;
            FUZZ_CHECK(stays || (t >= policy->sinks && t < n_prompt - window));
        }
        uint32_t leader = i / pkv_head_groups(g) * g->layers_per_group / policy->reuse_layers *
                          policy->reuse_layers / g->layers_per_group * pkv_head_groups(g);
        FUZZ_CHECK(memcmp(row, keep + leader * WORDS, WORDS * sizeof *row) == 0);
        pkv_seq_drop(kv, 0, i, row);
    }
    FUZZ_CHECK(pkv_check_integrity(kv) == NULL);
    strbuf json = {0};
    retention_kept_json(kv, 0, &json);
    json_t *kept = NULL;
    FUZZ_CHECK(status_ok(json_read_text("kept", json.data, json.size, &kept, &err)));
    FUZZ_CHECK(json_array_size(kept) == groups);
    json_decref(kept);
    strbuf_destroy(&json);
    pkv_destroy(kv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    uint32_t n_prompt = (data[0] | (uint32_t)data[1] << 8) % PROMPT_MAX + 1;
    retention_limits limits = {.geometry = geometries[data[2] % 3], .max_window = 512};
    json_t *json;
    error err;
    if (!status_ok(json_read_text("doc", (const char *)data + 4, size - 4, &json, NULL))) return 0;
    retention_policy policy;
    if (status_ok(retention_parse(json, &limits, &policy, &err))) {
        FUZZ_CHECK(policy.preset && (policy.ratio == 0 || policy.tokens == 0));
        FUZZ_CHECK(policy.ratio >= 0 && policy.ratio <= 1 && policy.window <= limits.max_window);
        uint32_t point = 0, points = 0;
        while ((point = retention_next_point(&policy, n_prompt, point)) != UINT32_MAX) {
            FUZZ_CHECK(++points <= n_prompt && point <= n_prompt);
        }
        check_selection(&policy, &limits.geometry, n_prompt, data[3]);
    } else {
        FUZZ_CHECK(strncmp(err.text, "retention", 9) == 0 && !strchr(err.text, '\n'));
    }
    json_decref(json);
    return 0;
}
