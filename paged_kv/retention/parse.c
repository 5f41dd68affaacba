/* The "retention" object of a request (reference/api.md). */
#include "paged_kv/retention/method.h"
#include <stdio.h>
#include <string.h>

static const char where[] = "retention";

typedef status (*read_fn)(const json_t *json, const char *name, const retention_preset *preset,
                          retention_policy *policy, error *err);

static status read_ratio(const json_t *json, const char *name, const retention_preset *preset,
                         retention_policy *policy, error *err)
{
    (void)preset;
    double ratio;
    RETURN_IF_ERROR(json_get_double(json, where, name, 0, 1, 0, &ratio, err));
    if (ratio == 0)
        return error_set(err, STATUS_INVALID, "retention.ratio is 0: must be in (0, 1]");
    policy->ratio = ratio;
    policy->tokens = 0;
    return STATUS_IS_OK;
}

static status read_count(const json_t *json, const char *name, int64_t min, uint32_t *out,
                         error *err)
{
    int64_t value;
    RETURN_IF_ERROR(json_get_int(json, where, name, min, INT32_MAX, *out, &value, err));
    *out = (uint32_t)value;
    return STATUS_IS_OK;
}

static status read_tokens(const json_t *json, const char *name, const retention_preset *preset,
                          retention_policy *policy, error *err)
{
    (void)preset;
    policy->ratio = 0;
    return read_count(json, name, 1, &policy->tokens, err);
}

static status read_sinks(const json_t *json, const char *name, const retention_preset *preset,
                         retention_policy *policy, error *err)
{
    (void)preset;
    return read_count(json, name, 0, &policy->sinks, err);
}

static status read_window(const json_t *json, const char *name, const retention_preset *preset,
                          retention_policy *policy, error *err)
{
    (void)preset;
    /* Its rows are what is measured. */
    int64_t min = retention_scores[policy->score].measure != MEASURE_NONE;
    return read_count(json, name, min, &policy->window, err);
}

static status read_reuse(const json_t *json, const char *name, const retention_preset *preset,
                         retention_policy *policy, error *err)
{
    (void)preset;
    return read_count(json, name, 1, &policy->reuse_layers, err);
}

/* The choices of a part that the preset has, as "page, chunk". */
static void list_choices(const retention_preset *preset, retention_part part, char *out,
                         size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < retention_part_size(part) && used < size; i++) {
        if (!(preset->choices[part] >> i & 1)) continue;
        int n = snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "",
                         retention_part_choice(part, i).name);
        used += (size_t)n;
    }
}

static status read_part(const json_t *json, const char *name, const retention_preset *preset,
                        retention_policy *policy, error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(json, where, name, &value, err));
    retention_part part = 0;
    while (strcmp(retention_part_name(part), name) != 0) part++;
    for (size_t i = 0; i < retention_part_size(part); i++) {
        if (!(preset->choices[part] >> i & 1)) continue;
        if (strcmp(retention_part_choice(part, i).name, value) != 0) continue;
        switch (part) {
        case RETENTION_PART_SCORE: policy->score = (retention_score)i; break;
        case RETENTION_PART_UNIT: policy->unit = (retention_unit)i; break;
        case RETENTION_PART_SCOPE: policy->scope = (retention_scope)i; break;
        case RETENTION_PART_ALLOCATOR: policy->allocator = (retention_allocator)i; break;
        case RETENTION_PART_SCHEDULE: policy->schedule = (retention_schedule)i; break;
        case RETENTION_PARTS: break;
        }
        return STATUS_IS_OK;
    }
    char have[128];
    list_choices(preset, part, have, sizeof have);
    return error_set(err, STATUS_INVALID,
                     "retention.%s: '%.40s' is not available for method '%s' (have: %s)", name,
                     value, preset->name, have);
}

static status read_report(const json_t *json, const char *name, const retention_preset *preset,
                          retention_policy *policy, error *err)
{
    (void)preset;
    const char *value;
    RETURN_IF_ERROR(json_get_string(json, where, name, &value, err));
    policy->report_positions = strcmp(value, "positions") == 0;
    if (policy->report_positions || strcmp(value, "counts") == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "retention.report: '%.40s' must be 'counts' or 'positions'", value);
}

/* Every key of reference/api.md. One whose field is 0 is known, but no method can use it yet. */
enum { ALWAYS = UINT32_MAX };

static const struct {
    const char *name;
    uint32_t field; // that a method must have
    read_fn read;
} keys[] = {
    {"method", ALWAYS, NULL},
    {"ratio", RETENTION_FIELD_BUDGET, read_ratio},
    {"tokens", RETENTION_FIELD_BUDGET, read_tokens},
    {"score", RETENTION_FIELD_PARTS, read_part},
    {"variant", 0, NULL},
    {"pool", 0, NULL},
    {"unit", RETENTION_FIELD_PARTS, read_part},
    {"chunk", 0, NULL},
    {"scope", RETENTION_FIELD_PARTS, read_part},
    {"reuse_layers", RETENTION_FIELD_REUSE_LAYERS, read_reuse},
    {"allocator", RETENTION_FIELD_PARTS, read_part},
    {"schedule", RETENTION_FIELD_PARTS, read_part},
    {"interval", 0, NULL},
    {"recurrent_chunk", 0, NULL},
    {"sinks", RETENTION_FIELD_SINKS, read_sinks},
    {"window", RETENTION_FIELD_WINDOW, read_window},
    {"pressure", 0, NULL},
    {"report", ALWAYS, read_report},
    {"prefill", 0, NULL},
    {"decode", 0, NULL},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* A null member is as good as none, as everywhere in JSON here. */
static bool member(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return value && !json_is_null(value);
}

static status refuse_method(const char *name, error *err)
{
    char have[256] = "";
    size_t n, used = 0;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n && used < sizeof have; i++) {
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%s", i > 0 ? ", " : "",
                                 presets[i].name);
    }
    return error_set(err, STATUS_INVALID, "retention.method: '%.40s' is unknown (have: %s)", name,
                     have);
}

static status check_names(const json_t *json, const retention_preset *preset, error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)json, name, value)
    {
        size_t k = 0;
        while (k < N_KEYS && strcmp(keys[k].name, name) != 0) k++;
        if (k == N_KEYS)
            return error_set(err, STATUS_INVALID, "retention.%.40s: unknown key", name);
        if (keys[k].field != ALWAYS && !(preset->fields & keys[k].field)) {
            return error_set(err, STATUS_INVALID, "retention.%s is not available for method '%s'",
                             name, preset->name);
        }
    }
    return STATUS_IS_OK;
}

static status check_geometry(const retention_policy *policy, const retention_limits *limits,
                             error *err)
{
    const pkv_geometry *g = &limits->geometry;
    uint32_t reuse = policy->reuse_layers;
    if (reuse > g->n_layers) {
        return error_set(err, STATUS_INVALID,
                         "retention.reuse_layers is %u: the model has %u layers", reuse,
                         g->n_layers);
    }
    if (reuse % g->layers_per_group != 0 && reuse != g->n_layers) {
        return error_set(
            err, STATUS_INVALID,
            "retention.reuse_layers is %u: must be a multiple of the %u layers that share a page "
            "table here (--kv-group-layers %u)",
            reuse, g->layers_per_group, g->layers_per_group);
    }
    uint32_t heads = retention_scopes[policy->scope].heads(g);
    if (heads % g->heads_per_group != 0) {
        return error_set(err, STATUS_INVALID,
                         "retention.scope '%s' does not fit %u KV heads in one page table "
                         "(--kv-group-heads %u): ask for \"scope\":\"layer\"",
                         retention_scopes[policy->scope].choice.name, g->heads_per_group,
                         g->heads_per_group);
    }
    return STATUS_IS_OK;
}

static status check_policy(const retention_policy *policy, const retention_limits *limits,
                           error *err)
{
    const retention_preset *preset = policy->preset;
    if (policy->schedule == RETENTION_SCHEDULE_NEVER) return STATUS_IS_OK;
    if (preset->needs_budget && policy->ratio == 0 && policy->tokens == 0) {
        return error_set(err, STATUS_INVALID,
                         "retention.ratio or retention.tokens: method '%s' needs one of them",
                         preset->name);
    }
    if (policy->window > limits->max_window) {
        return error_set(err, STATUS_INVALID,
                         "retention.window is %u: more than the prefill chunk of %u tokens",
                         policy->window, limits->max_window);
    }
    return check_geometry(policy, limits, err);
}

status retention_parse(const json_t *json, const retention_limits *limits, retention_policy *out,
                       error *err)
{
    const retention_preset *preset = retention_find("full");
    bool given = json && !json_is_null(json);
    if (given) {
        const char *name;
        RETURN_IF_ERROR(json_get_string(json, where, "method", &name, err));
        if (!name) return error_set(err, STATUS_INVALID, "retention.method: must be given");
        preset = retention_find(name);
        if (!preset) return refuse_method(name, err);
        RETURN_IF_ERROR(check_names(json, preset, err));
        if (member(json, "ratio") && member(json, "tokens")) {
            return error_set(err, STATUS_INVALID,
                             "retention.ratio and retention.tokens: only one of them can be given");
        }
    }
    retention_policy policy = preset->defaults;
    policy.preset = preset;
    for (size_t k = 0; given && k < N_KEYS; k++) {
        if (!keys[k].read || !member(json, keys[k].name)) continue;
        RETURN_IF_ERROR(keys[k].read(json, keys[k].name, preset, &policy, err));
    }
    RETURN_IF_ERROR(check_policy(&policy, limits, err));
    *out = policy;
    return STATUS_IS_OK;
}
