/* Refuses compositions of parts that have no meaning, or that a model does not allow. */
#include "paged_kv/retention/parse.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Lists the available options of a part, as "page, chunk". */
static void list_options(retention_part part, uint32_t available, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < retention_part_size(part) && used < size; i++) {
        if (!(available >> i & 1)) continue;
        int n = snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "",
                         retention_part_option(part, i).name);
        used += (size_t)n;
    }
}

status refuse_option(const parsing *p, retention_part part, const char *value, uint32_t available,
                     error *err)
{
    char have[256];
    list_options(part, available, have, sizeof have);
    return error_set(err, STATUS_INVALID,
                     "%s.%s: '%.40s' is not available for method '%s' (have: %s)", p->where,
                     retention_part_name(part), value, p->preset->name, have);
}

/* Checks that the option of `part` is one of those that go with another part's option. */
static status check_part(const parsing *p, const retention_policy *policy, retention_part part,
                         uint32_t available, const char *with, const char *option, error *err)
{
    uint32_t i = retention_part_get(policy, part);
    if (available >> i & 1) return STATUS_IS_OK;
    char have[256];
    list_options(part, available, have, sizeof have);
    return error_set(err, STATUS_INVALID, "%s.%s: '%s' does not go with %s '%s' (have: %s)",
                     p->where, retention_part_name(part), retention_part_option(part, i).name, with,
                     option, have);
}

static status check_parts(const parsing *p, const retention_policy *policy, error *err)
{
    const retention_score_row *score = retention_scores[policy->score];
    const char *name = score->option.name;
    RETURN_IF_ERROR(check_part(p, policy, RETENTION_PART_UNIT, score->units, "score", name, err));
    RETURN_IF_ERROR(
        check_part(p, policy, RETENTION_PART_ALLOCATOR, score->allocators, "score", name, err));
    RETURN_IF_ERROR(
        check_part(p, policy, RETENTION_PART_SCHEDULE, score->schedules, "score", name, err));
    if (policy->allocator == RETENTION_ALLOCATOR_HYBRID) {
        RETURN_IF_ERROR(check_part(p, policy, RETENTION_PART_UNIT, ONLY(RETENTION_UNIT_CHUNK),
                                   "allocator", "hybrid", err));
    }
    if (retention_allocators[policy->allocator].joint) {
        RETURN_IF_ERROR(check_part(p, policy, RETENTION_PART_SCOPE, ONLY(RETENTION_SCOPE_HEAD),
                                   "allocator", retention_allocators[policy->allocator].option.name,
                                   err));
    }
    if (policy->contiguous) {
        uint32_t evenly = ONLY(RETENTION_ALLOCATOR_UNIFORM), units = PAGE | TOKEN;
        RETURN_IF_ERROR(
            check_part(p, policy, RETENTION_PART_ALLOCATOR, evenly, "positions", "cache", err));
        RETURN_IF_ERROR(
            check_part(p, policy, RETENTION_PART_UNIT, units, "positions", "cache", err));
    }
    if (policy->variant == RETENTION_VARIANT_PLAIN) return STATUS_IS_OK;
    const retention_variant_row *variant = &retention_variants[policy->variant];
    name = variant->option.name;
    RETURN_IF_ERROR(
        check_part(p, policy, RETENTION_PART_SCORE, ONLY(variant->of), "variant", name, err));
    RETURN_IF_ERROR(
        check_part(p, policy, RETENTION_PART_UNIT, variant->units, "variant", name, err));
    uint32_t once = ONLY(RETENTION_SCHEDULE_PROMPT), alone = ONLY(RETENTION_ALLOCATOR_UNIFORM);
    if (variant->kvpress) {
        RETURN_IF_ERROR(
            check_part(p, policy, RETENTION_PART_ALLOCATOR, alone, "variant", name, err));
        RETURN_IF_ERROR(check_part(p, policy, RETENTION_PART_SCOPE, ONLY(RETENTION_SCOPE_LAYER),
                                   "variant", name, err));
    }
    return check_part(p, policy, RETENTION_PART_SCHEDULE, once, "variant", name, err);
}

static status check_rows(const parsing *p, const retention_policy *policy, error *err)
{
    if (retention_scores[policy->score]->rows != RETENTION_ROWS_POLICY) return STATUS_IS_OK;
    uint32_t rows = policy->rows > 0 ? policy->rows : policy->window;
    const char *score = retention_scores[policy->score]->option.name;
    bool half = policy->rows == 0 && policy->window_half && rows == INT32_MAX;
    if (rows == 0 || half) {
        return error_set(err, STATUS_INVALID,
                         "%s.window is %s: score '%s' measures its rows, so it must be given",
                         p->where, half ? "half of the budget" : "0", score);
    }
    if (rows <= p->limits->max_window) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s.%s is %u: more than the prefill chunk of %u tokens",
                     p->where, policy->rows > 0 ? "rows" : "window", rows, p->limits->max_window);
}

/* Refuses a budget below the protected slots for every prompt; retention_check_budget checks the
 * actual prompt. */
static status check_protected(const parsing *p, const retention_policy *policy, error *err)
{
    if (retention_variants[policy->variant].kvpress) return STATUS_IS_OK;
    uint32_t size = p->limits->geometry.page_tokens, window = retention_window_of(policy, 0);
    bool page = policy->unit == RETENTION_UNIT_PAGE;
    uint64_t fixed = page ? (uint64_t)runs_of(policy->sinks, size) + runs_of(window, size)
                          : (uint64_t)policy->sinks + window;
    if ((page ? policy->tokens / size : policy->tokens) >= fixed) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s.tokens is %u: below the %" PRIu64 " protected %s (sinks %u, window %u)",
                     p->where, policy->tokens, fixed, page ? "pages" : "tokens", policy->sinks,
                     window);
}

static status check_budget(const parsing *p, const retention_policy *policy, error *err)
{
    if (p->preset->needs_budget && policy->ratio == 0 && policy->tokens == 0) {
        return error_set(err, STATUS_INVALID,
                         "%s.ratio or %s.tokens: method '%s' needs one of them", p->where, p->where,
                         p->preset->name);
    }
    if (policy->tokens == 0) return STATUS_IS_OK;
    if (policy->unit == RETENTION_UNIT_CHUNK && policy->chunk > policy->tokens) {
        return error_set(err, STATUS_INVALID, "%s.chunk is %u: more than the budget of %u tokens",
                         p->where, policy->chunk, policy->tokens);
    }
    return check_protected(p, policy, err);
}

/* Refuses contiguous positions for a model with sliding windows: a window counts by the tokens'
 * original positions. */
static status check_windows(const parsing *p, const retention_policy *policy, const pkv_geometry *g,
                            error *err)
{
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (policy->contiguous && pkv_window_of(g, l)) {
            return error_set(err, STATUS_INVALID,
                             "%s.method '%s' gives kept tokens positions anew, which a model with "
                             "sliding windows cannot have",
                             p->where, p->preset->name);
        }
    }
    return STATUS_IS_OK;
}

static status check_model(const parsing *p, const retention_policy *policy, error *err)
{
    const pkv_geometry *g = &p->limits->geometry;
    uint32_t reuse = policy->reuse_layers;
    if (reuse > g->n_layers) {
        return error_set(err, STATUS_INVALID, "%s.reuse_layers is %u: the model has %u layers",
                         p->where, reuse, g->n_layers);
    }
    /* retention_limits: no table of the finest grain is coarser than a selection. */
    assert(retention_scopes[policy->scope].heads(g) % g->heads_per_group == 0);
    assert(reuse % g->layers_per_group == 0 || reuse >= retention_selecting_layers(g, g->n_layers));
    return check_windows(p, policy, g, err);
}

/* Tokens of the text that always stay, and a question of one token. */
static status check_gather(const parsing *p, const retention_policy *policy, error *err)
{
    uint64_t least = (uint64_t)policy->sinks + policy->window + 1;
    if (policy->gather_tokens == 0) return STATUS_IS_OK;
    if (policy->gather_tokens < least)
        return error_set(err, STATUS_INVALID,
                         "%s.gather_tokens is %u: must be above sinks %u and window %u together",
                         p->where, policy->gather_tokens, policy->sinks, policy->window);
    if (policy->exit_layer <= p->limits->geometry.n_layers) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s.exit_layer is %u: the model has %u layers", p->where,
                     policy->exit_layer, p->limits->geometry.n_layers);
}

status check_composition(const parsing *p, const retention_policy *policy, error *err)
{
    if (policy->schedule == RETENTION_SCHEDULE_NEVER) return STATUS_IS_OK;
    /* Schedule `input` cuts the prompt and touches no table. */
    if (!retention_selects(policy)) return check_budget(p, policy, err);
    RETURN_IF_ERROR(check_parts(p, policy, err));
    RETURN_IF_ERROR(check_budget(p, policy, err));
    RETURN_IF_ERROR(check_rows(p, policy, err));
    RETURN_IF_ERROR(check_gather(p, policy, err));
    return check_model(p, policy, err);
}

status check_growth(const parsing *p, const retention_policy *policy, error *err)
{
    if (policy->growth == RETENTION_GROWTH_JOINT) return STATUS_IS_OK;
    if (policy->horizon > 0 && policy->horizon <= policy->beta2) {
        return error_set(err, STATUS_INVALID,
                         "retention.decode.horizon is %u: must be above beta2, which is %u",
                         policy->horizon, policy->beta2);
    }
    if (retention_selects(policy) && policy->scope == RETENTION_SCOPE_HEAD &&
        policy->decode_scope == RETENTION_SCOPE_LAYER) {
        return error_set(err, STATUS_INVALID,
                         "retention.decode.scope: 'layer' cannot follow a prefill whose heads "
                         "select alone");
    }
    return check_model(p, policy, err);
}
