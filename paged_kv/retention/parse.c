/* Reads the "retention" object of a request: a key is a row. check.c refuses compositions that have
 * no meaning. */
#include "paged_kv/retention/parse.h"
#include <stdio.h>
#include <string.h>

bool has_member(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return value && !json_is_null(value);
}

/* ---- readers --------------------------------------------------------------------------------- */

static status read_ratio(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    double ratio;
    RETURN_IF_ERROR(json_get_double(p->json, p->where, name, 0, 1, 0, &ratio, err));
    if (ratio == 0)
        return error_set(err, STATUS_INVALID, "%s.ratio is 0: must be in (0, 1]", p->where);
    policy->ratio = ratio;
    policy->tokens = 0;
    return STATUS_IS_OK;
}

static status read_count(const parsing *p, const char *name, int64_t min, uint32_t *out, error *err)
{
    int64_t value;
    RETURN_IF_ERROR(json_get_int(p->json, p->where, name, min, INT32_MAX, *out, &value, err));
    *out = (uint32_t)value;
    return STATUS_IS_OK;
}

static status read_tokens(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    policy->ratio = 0;
    return read_count(p, name, 1, &policy->tokens, err);
}

/* A reader of a count that is at least `min`. */
#define READ_COUNT(member_, min)                                                                   \
    static status read_##member_(const parsing *p, const char *name, retention_policy *policy,     \
                                 error *err)                                                       \
    {                                                                                              \
        return read_count(p, name, min, &policy->member_, err);                                    \
    }
READ_COUNT(sinks, 0)
READ_COUNT(window, 0)
READ_COUNT(reuse_layers, 1)
READ_COUNT(chunk, 1)
READ_COUNT(interval, 1)
READ_COUNT(recurrent_chunk, 1)
READ_COUNT(rows, 1)
READ_COUNT(gather_tokens, 1)
READ_COUNT(query_tokens, 1)
READ_COUNT(exit_layer, 1)
READ_COUNT(beta1, 1)
READ_COUNT(beta2, 1)
READ_COUNT(horizon, 1)

static status read_gather_window(const parsing *p, const char *name, retention_policy *policy,
                                 error *err)
{
    RETURN_IF_ERROR(read_count(p, name, 1, &policy->gather_window, err));
    if (policy->gather_window % 2) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s.gather_window is %u: must be odd", p->where,
                     policy->gather_window);
}

static status read_number(const parsing *p, const char *name, double min, double max, float *out,
                          error *err)
{
    double value;
    RETURN_IF_ERROR(json_get_double(p->json, p->where, name, min, max, (double)*out, &value, err));
    *out = (float)value;
    return STATUS_IS_OK;
}

static status read_beta(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    return read_number(p, name, 1, 1e6, &policy->beta, err);
}

static status read_floor(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    return read_number(p, name, 0, 1, &policy->floor, err);
}

static status read_bias(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    return read_number(p, name, -1e6, 1e6, &policy->bias, err);
}

/* Bounds theta: temperatures nearer to 0 or to infinity give the same anchors. */
static status read_theta(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    return read_number(p, name, 1e-3, 1e6, &policy->theta, err);
}

static status read_part(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, name, &value, err));
    retention_part part = 0;
    while (strcmp(retention_part_name(part), name) != 0) part++;
    uint32_t available = p->preset->options[part];
    size_t i = retention_part_find(part, value);
    if (i == SIZE_MAX || !(available >> i & 1))
        return refuse_option(p, part, value, available, err);
    retention_part_set(policy, part, i);
    /* A score in the request applies to all points. */
    if (part == RETENTION_PART_SCORE) policy->decode_score = RETENTION_SCORE_NONE;
    return STATUS_IS_OK;
}

static status read_positions(const parsing *p, const char *name, retention_policy *policy,
                             error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, name, &value, err));
    policy->contiguous = strcmp(value, "cache") == 0;
    if (policy->contiguous || strcmp(value, "original") == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s.positions: '%.40s' must be 'original' or 'cache'",
                     p->where, value);
}

static status read_pool(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    char where[64];
    snprintf(where, sizeof where, "%s.%s", p->where, name);
    const json_t *json = json_object_get(p->json, name);
    const char *kind, *key;
    json_t *value;
    RETURN_IF_ERROR(json_get_string(json, where, "kind", &kind, err));
    json_object_foreach((json_t *)json, key, value)
    {
        if (strcmp(key, "kind") != 0 && strcmp(key, "kernel") != 0)
            return error_set(err, STATUS_INVALID, "%s.%.40s: unknown key", where, key);
    }
    if (!kind) return error_set(err, STATUS_INVALID, "%s.kind: must be given", where);
    size_t i = 0;
    while (i < RETENTION_POOLS && strcmp(retention_pools[i].option.name, kind) != 0) i++;
    if (i == RETENTION_POOLS) {
        return error_set(err, STATUS_INVALID, "%s.kind: '%.40s' is unknown (have: none, max, avg)",
                         where, kind);
    }
    policy->pool = (retention_pool)i;
    int64_t kernel;
    RETURN_IF_ERROR(
        json_get_int(json, where, "kernel", 1, RETENTION_KERNEL_MAX, policy->kernel, &kernel, err));
    if (kernel % 2 == 0) {
        return error_set(err, STATUS_INVALID, "%s.kernel is %d: must be odd", where, (int)kernel);
    }
    policy->kernel = (uint32_t)kernel;
    return STATUS_IS_OK;
}

static status read_report(const parsing *p, const char *name, retention_policy *policy, error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, name, &value, err));
    policy->report_positions = strcmp(value, "positions") == 0;
    if (policy->report_positions || strcmp(value, "counts") == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s.report: '%.40s' must be 'counts' or 'positions'",
                     p->where, value);
}

static status read_pressure(const parsing *p, const char *name, retention_policy *policy,
                            error *err)
{
    return json_get_bool(p->json, p->where, name, false, &policy->pressure, err);
}

/* ---- SCOPE's second policy ------------------------------------------------------------------- */

static status read_decode_scope(const parsing *p, const char *name, retention_policy *policy,
                                error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, name, &value, err));
    size_t i = retention_part_find(RETENTION_PART_SCOPE, value);
    if (i == SIZE_MAX) return refuse_option(p, RETENTION_PART_SCOPE, value, UINT32_MAX, err);
    policy->decode_scope = (retention_scope)i;
    return STATUS_IS_OK;
}

/* Reads SCOPE's decode score: one that measures the current row or the table alone. */
static status read_decode_score(const parsing *p, const char *name, retention_policy *policy,
                                error *err)
{
    static const uint32_t available = ONLY(RETENTION_SCORE_LAST) |
                                      ONLY(RETENTION_SCORE_PROJECTION) |
                                      ONLY(RETENTION_SCORE_KNORM) | ONLY(RETENTION_SCORE_KEYDIFF) |
                                      ONLY(RETENTION_SCORE_VKNORM) | ONLY(RETENTION_SCORE_RECENCY);
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, name, &value, err));
    size_t i = retention_part_find(RETENTION_PART_SCORE, value);
    if (i == SIZE_MAX || !(available >> i & 1))
        return refuse_option(p, RETENTION_PART_SCORE, value, available, err);
    policy->decode_score = (retention_score)i;
    return STATUS_IS_OK;
}

static status read_decode(const parsing *outer, const char *name, retention_policy *policy,
                          error *err)
{
    static const struct {
        const char *name;
        status (*read)(const parsing *p, const char *name, retention_policy *policy, error *err);
    } decode_keys[] = {
        {"beta1", read_beta1},        {"beta2", read_beta2},        {"horizon", read_horizon},
        {"scope", read_decode_scope}, {"score", read_decode_score},
    };
    enum { N = sizeof decode_keys / sizeof decode_keys[0] };
    const parsing p = {.json = json_object_get(outer->json, name),
                       .where = "retention.decode",
                       .preset = outer->preset};
    int64_t none;
    RETURN_IF_ERROR(json_get_int(p.json, p.where, "", 0, 0, 0, &none, err)); /* an object? */
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)p.json, key, value)
    {
        size_t k = 0;
        while (k < N && strcmp(decode_keys[k].name, key) != 0) k++;
        if (k == N)
            return error_set(err, STATUS_INVALID,
                             "retention.decode.%.40s: unknown key (have: beta1, beta2, horizon, "
                             "scope, score)",
                             key);
        if (!json_is_null(value)) RETURN_IF_ERROR(decode_keys[k].read(&p, key, policy, err));
    }
    return STATUS_IS_OK;
}

static status parse_prefill(const parsing *outer, const char *name, retention_policy *policy,
                            error *err);

/* ---- keys ------------------------------------------------------------------------------------ */

static bool uses_chunk(const retention_policy *policy)
{
    return policy->unit == RETENTION_UNIT_CHUNK;
}
static bool uses_interval(const retention_policy *policy)
{
    return policy->schedule == RETENTION_SCHEDULE_DECODE;
}
static bool uses_recurrent(const retention_policy *policy)
{
    return policy->schedule == RETENTION_SCHEDULE_CHUNK;
}
static bool uses_rows(const retention_policy *policy)
{
    return retention_scores[policy->score]->rows == RETENTION_ROWS_POLICY;
}
static bool uses_beta(const retention_policy *policy)
{
    return retention_allocators[policy->allocator].sloping;
}
static bool uses_floor(const retention_policy *policy)
{
    return retention_allocators[policy->allocator].joint;
}
static bool uses_projection(const retention_policy *policy)
{
    return policy->score == RETENTION_SCORE_PROJECTION;
}
static bool uses_pool(const retention_policy *policy)
{
    return retention_scores[policy->score]->kind != MEASURE_NONE;
}

/* Every key that the object may have. */
static const struct {
    const char *name;
    uint32_t field; // bits, one of which the method must have; 0 = any method
    status (*read)(const parsing *p, const char *name, retention_policy *policy, error *err);
    bool (*used)(const retention_policy *policy); // whether it has an effect; NULL = always
    const char *only;                             // what the effect needs
    bool of_request;                              // not allowed in a prefill
} keys[] = {
    {.name = "method"},
    {.name = "ratio", .field = RETENTION_FIELD_BUDGET, .read = read_ratio},
    {.name = "tokens", .field = RETENTION_FIELD_BUDGET, .read = read_tokens},
    {.name = "score", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "variant", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "pool",
     .field = RETENTION_FIELD_PARTS,
     .read = read_pool,
     .used = uses_pool,
     .only = "a score that is measured"},
    {.name = "unit", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "chunk",
     .field = RETENTION_FIELD_PARTS,
     .read = read_chunk,
     .used = uses_chunk,
     .only = "unit 'chunk'"},
    {.name = "scope", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "reuse_layers", .field = RETENTION_FIELD_PARTS, .read = read_reuse_layers},
    {.name = "allocator", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "schedule", .field = RETENTION_FIELD_PARTS, .read = read_part},
    {.name = "interval",
     .field = RETENTION_FIELD_PARTS,
     .read = read_interval,
     .used = uses_interval,
     .only = "schedule 'decode'"},
    {.name = "recurrent_chunk",
     .field = RETENTION_FIELD_PARTS,
     .read = read_recurrent_chunk,
     .used = uses_recurrent,
     .only = "schedule 'chunk'"},
    {.name = "rows",
     .field = RETENTION_FIELD_PARTS,
     .read = read_rows,
     .used = uses_rows,
     .only = "a score of the last rows, such as 'window'"},
    {.name = "beta",
     .field = RETENTION_FIELD_PARTS,
     .read = read_beta,
     .used = uses_beta,
     .only = "allocator 'pyramid' or 'pyramid-adaptive'"},
    {.name = "floor",
     .field = RETENTION_FIELD_PARTS,
     .read = read_floor,
     .used = uses_floor,
     .only = "allocator 'adaptive' or 'pyramid-adaptive'"},
    {.name = "bias",
     .field = RETENTION_FIELD_PARTS,
     .read = read_bias,
     .used = uses_projection,
     .only = "score 'projection'"},
    {.name = "theta",
     .field = RETENTION_FIELD_PARTS,
     .read = read_theta,
     .used = uses_projection,
     .only = "score 'projection'"},
    {.name = "positions", .field = RETENTION_FIELD_PARTS, .read = read_positions},
    {.name = "sinks", .field = RETENTION_FIELD_PARTS | RETENTION_FIELD_INPUT, .read = read_sinks},
    {.name = "window", .field = RETENTION_FIELD_PARTS, .read = read_window},
    {.name = "gather_tokens", .field = RETENTION_FIELD_GATHER, .read = read_gather_tokens},
    {.name = "gather_window", .field = RETENTION_FIELD_GATHER, .read = read_gather_window},
    {.name = "query_tokens", .field = RETENTION_FIELD_GATHER, .read = read_query_tokens},
    {.name = "exit_layer", .field = RETENTION_FIELD_GATHER, .read = read_exit_layer},
    {.name = "pressure", .read = read_pressure, .of_request = true},
    {.name = "report", .read = read_report, .of_request = true},
    {.name = "prefill", .field = RETENTION_FIELD_PHASES, .read = parse_prefill, .of_request = true},
    {.name = "decode", .field = RETENTION_FIELD_PHASES, .read = read_decode, .of_request = true},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

static status check_name(const parsing *p, const char *name, error *err)
{
    size_t k = 0;
    while (k < N_KEYS && strcmp(keys[k].name, name) != 0) k++;
    if (k == N_KEYS || (p->nested && keys[k].of_request))
        return error_set(err, STATUS_INVALID, "%s.%.40s: unknown key", p->where, name);
    if (keys[k].field == 0 || (p->preset->fields & keys[k].field)) return STATUS_IS_OK;
    bool phases = p->preset->fields & RETENTION_FIELD_PHASES;
    return error_set(err, STATUS_INVALID, "%s.%s is not available for method '%s'%s", p->where,
                     name, p->preset->name,
                     phases ? ": it goes into retention.prefill or retention.decode" : "");
}

static status refuse_method(const char *where, const char *name, error *err)
{
    char have[448] = "";
    size_t n, used = 0;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n && used < sizeof have; i++) {
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%s", i > 0 ? ", " : "",
                                 presets[i].name);
    }
    return error_set(err, STATUS_INVALID, "%s.method: '%.40s' is unknown (have: %s)", where, name,
                     have);
}

static status find_method(parsing *p, error *err)
{
    const char *name, *key;
    json_t *value;
    RETURN_IF_ERROR(json_get_string(p->json, p->where, "method", &name, err));
    if (!name) return error_set(err, STATUS_INVALID, "%s.method: must be given", p->where);
    p->preset = retention_find(name);
    if (!p->preset) return refuse_method(p->where, name, err);
    json_object_foreach((json_t *)p->json, key, value) RETURN_IF_ERROR(check_name(p, key, err));
    if (has_member(p->json, "ratio") && has_member(p->json, "tokens")) {
        return error_set(err, STATUS_INVALID,
                         "%s.ratio and %s.tokens: only one of them can be "
                         "given",
                         p->where, p->where);
    }
    return STATUS_IS_OK;
}

/* Sets what follows from other keys unless the request gave it. */
static void infer(const parsing *p, retention_policy *policy)
{
    if (has_member(p->json, "variant") && policy->variant == RETENTION_VARIANT_MEAN &&
        !has_member(p->json, "pool")) {
        policy->pool = RETENTION_POOL_AVG;
        policy->kernel = 5;
    }
    /* A preset's own variant applies to the preset's score and schedule alone. */
    bool others = policy->score != p->preset->defaults.score ||
                  policy->schedule != p->preset->defaults.schedule;
    bool parts = p->preset->fields & RETENTION_FIELD_PARTS; /* else parsing the prefill did this */
    if (parts && others && !has_member(p->json, "variant"))
        policy->variant = RETENTION_VARIANT_PLAIN;
}

static status read_object(parsing *p, retention_policy *policy, error *err)
{
    RETURN_IF_ERROR(find_method(p, err));
    *policy = p->preset->defaults;
    policy->preset = p->preset;
    for (size_t k = 0; k < N_KEYS; k++) {
        if (!keys[k].read || !has_member(p->json, keys[k].name)) continue;
        RETURN_IF_ERROR(keys[k].read(p, keys[k].name, policy, err));
    }
    for (size_t k = 0; k < N_KEYS; k++) {
        if (!keys[k].used || keys[k].used(policy) || !has_member(p->json, keys[k].name)) continue;
        return error_set(err, STATUS_INVALID, "%s.%s: needs %s", p->where, keys[k].name,
                         keys[k].only);
    }
    infer(p, policy);
    return STATUS_IS_OK;
}

/* Makes the policy of "prefill" the prompt's part of a SCOPE policy. */
static status take_prefill(const parsing *p, retention_policy prefill, retention_policy *policy,
                           error *err)
{
    if (prefill.growth != RETENTION_GROWTH_JOINT || prefill.contiguous) {
        return error_set(err, STATUS_INVALID, "%s.method: '%s' cannot be the prefill of '%s'",
                         p->where, p->preset->name, policy->preset->name);
    }
    if (prefill.schedule == RETENTION_SCHEDULE_DECODE) prefill.schedule = RETENTION_SCHEDULE_PROMPT;
    RETURN_IF_ERROR(check_composition(p, &prefill, err));
    prefill.preset = policy->preset;
    prefill.growth = policy->growth;
    prefill.decode_score = policy->decode_score;
    prefill.decode_unit = policy->decode_unit;
    prefill.decode_scope = policy->decode_scope;
    prefill.beta1 = policy->beta1;
    prefill.beta2 = policy->beta2;
    prefill.horizon = policy->horizon;
    prefill.pressure = policy->pressure;
    prefill.report_positions = policy->report_positions;
    *policy = prefill;
    return STATUS_IS_OK;
}

static status parse_prefill(const parsing *outer, const char *name, retention_policy *policy,
                            error *err)
{
    parsing p = {.json = json_object_get(outer->json, name),
                 .where = "retention.prefill",
                 .limits = outer->limits,
                 .nested = true};
    retention_policy prefill;
    RETURN_IF_ERROR(read_object(&p, &prefill, err));
    return take_prefill(&p, prefill, policy, err);
}

/* SCOPE's default, from its paper: the prompt's heavy hitters and its last 8 tokens, 2,048 in
 * all. */
static status default_prefill(const parsing *outer, retention_policy *policy, error *err)
{
    const parsing p = {.where = "retention.decode",
                       .preset = retention_find("h2o"),
                       .limits = outer->limits,
                       .nested = true};
    retention_policy prefill = p.preset->defaults;
    prefill.tokens = 2048;
    prefill.window = 8;
    prefill.scope = policy->decode_scope;
    return take_prefill(&p, prefill, policy, err);
}

status retention_parse(const json_t *json, const retention_limits *limits, retention_policy *out,
                       error *err)
{
    retention_policy policy;
    parsing p = {.json = json, .where = "retention", .limits = limits};
    if (json && !json_is_null(json)) {
        RETURN_IF_ERROR(read_object(&p, &policy, err));
        bool phases = p.preset->fields & RETENTION_FIELD_PHASES;
        if (phases && !has_member(json, "prefill"))
            RETURN_IF_ERROR(default_prefill(&p, &policy, err));
        fit_defaults(&p, &policy);
        RETURN_IF_ERROR(check_composition(&p, &policy, err));
        RETURN_IF_ERROR(check_growth(&p, &policy, err));
    } else {
        p.preset = retention_find("full");
        policy = p.preset->defaults;
        policy.preset = p.preset;
    }
    policy.page_tokens = limits->geometry.page_tokens;
    *out = policy;
    return STATUS_IS_OK;
}
