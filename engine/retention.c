/* A request's retention policy, its own or the engine's default, and the methods it may name. */
#include "engine/internal.h"

#include <string.h>

static status no_such_method(const char *name, error *err)
{
    return error_set(err, STATUS_INVALID, "'%.40s' is unknown (see octavo methods)", name);
}

static status read_allowed(const engine_options *o, uint64_t *out, error *err)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    *out = o->n_retention_allow ? 0 : UINT64_MAX;
    for (uint32_t i = 0; i < o->n_retention_allow; i++) {
        const retention_preset *p = retention_find(o->retention_allow[i]);
        if (!p) return no_such_method(o->retention_allow[i], err);
        *out |= UINT64_C(1) << (p - presets);
    }
    return STATUS_IS_OK;
}

/* An unknown name is refused where its object is parsed. */
static status check_name(uint64_t allowed, const char *field, const json_t *object, error *err)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    const char *name = json_word(json_object_get(object, "method"));
    const retention_preset *p = name ? retention_find(name) : NULL;
    if (!p || allowed >> (p - presets) & 1) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: '%s' is not allowed here (--retention-allow)", field,
                     name);
}

static status check_names(uint64_t allowed, const json_t *retention, error *err)
{
    RETURN_IF_ERROR(check_name(allowed, "retention.method", retention, err));
    return check_name(allowed, "retention.prefill.method", json_object_get(retention, "prefill"),
                      err);
}

/* Refuses a default that requests could not name themselves: they would get it by naming none. */
static status check_standard(uint64_t allowed, const json_t *standard, error *err)
{
    status s = check_names(allowed, standard, err);
    if (!status_ok(s)) error_prefix(err, "--retention");
    return s;
}

/* Reads a policy of the engine's options. */
static status read_policy(const char *flag, const json_t *json, const retention_rules *rules,
                          retention_policy *out, error *err)
{
    status s = retention_parse(json, &rules->limits, out, err);
    if (!status_ok(s)) error_prefix(err, "%s", flag);
    return s;
}

status retention_rules_make(const engine_options *o, const pkv_geometry *geometry,
                            retention_rules *out, error *err)
{
    *out = (retention_rules){.limits = {*geometry, o->prefill_chunk, o->max_model_len},
                             .has_pressure = o->pressure_retention != NULL};
    status s = read_allowed(o, &out->allowed, err);
    if (!status_ok(s)) {
        error_prefix(err, "--retention-allow");
        return s;
    }
    RETURN_IF_ERROR(read_policy("--retention", o->retention, out, &out->standard, err));
    RETURN_IF_ERROR(check_standard(out->allowed, o->retention, err));
    s = reform_check_known(o, &out->standard, err);
    if (!status_ok(s)) {
        error_prefix(err, "--retention");
        return s;
    }
    out->reports_standard = out->standard.preset != retention_find("full");
    if (!out->has_pressure) return STATUS_IS_OK;
    RETURN_IF_ERROR(
        read_policy("--pressure-retention", o->pressure_retention, out, &out->pressure, err));
    s = sched_check_pressure(&out->pressure, err);
    if (!status_ok(s)) error_prefix(err, "--pressure-retention");
    return s;
}

status engine_check_retention(const engine_options *options, const pkv_geometry *geometry,
                              error *err)
{
    retention_rules rules;
    return retention_rules_make(options, geometry, &rules, err);
}

status retention_rules_apply(const retention_rules *rules, const engine_request *r,
                             retention_policy *out, error *err)
{
    *out = rules->standard;
    if (!r->retention) return STATUS_IS_OK;
    RETURN_IF_ERROR(check_names(rules->allowed, r->retention, err));
    return retention_parse(r->retention, &rules->limits, out, err);
}
