/* The RoPE part of config.json, transformers 4 and 5 spellings (transformers,
 * modeling_rope_utils.py). A kind is a row: its name, the fields it reads, its reader. */
#include "model/config.h"

#include "model/family.h"

#include <math.h>
#include <string.h>

static status read_theta(const json_t *json, const json_t *rope, const char *where, double fallback,
                         double *out, error *err)
{
    double outer, inner;
    RETURN_IF_ERROR(json_get_double(json, where, "rope_theta", 1.0, 1e15, 0.0, &outer, err));
    RETURN_IF_ERROR(json_get_double(rope, where, "rope_theta", 1.0, 1e15, 0.0, &inner, err));
    if (outer != 0.0 && inner != 0.0 && outer != inner)
        return error_set(err, STATUS_INVALID,
                         "%s: \"rope_theta\" is %g, and %g in \"rope_parameters\"", where, outer,
                         inner);
    *out = inner != 0.0 ? inner : outer != 0.0 ? outer : fallback;
    return STATUS_IS_OK;
}

/* Input of a kind's reader: the whole file, its RoPE object, and the object's name in messages. */
typedef struct rope_source {
    const json_t *config, *rope;
    const char *where, *place;
    uint32_t head_dim;
} rope_source;

static status need_factor(const rope_source *s, rope_config *r, error *err)
{
    (void)r;
    double factor;
    RETURN_IF_ERROR(json_get_double(s->rope, s->place, "factor", 1.0, 1e6, 0.0, &factor, err));
    if (factor == 0.0) return error_set(err, STATUS_INVALID, "%s: \"factor\" is missing", s->place);
    return STATUS_IS_OK;
}

/* Reads the context before stretching, from beside the RoPE object, from in it, or `fallback`. */
static status read_original(const rope_source *s, uint32_t fallback, rope_config *r, error *err)
{
    static const char key[] = "original_max_position_embeddings";
    int64_t inner, outer;
    RETURN_IF_ERROR(
        json_get_int(s->rope, s->place, key, 1, MODEL_POSITIONS_MAX, fallback, &inner, err));
    RETURN_IF_ERROR(
        json_get_int(s->config, s->where, key, 1, MODEL_POSITIONS_MAX, inner, &outer, err));
    r->original_max_positions = (uint32_t)outer;
    if (outer == 0) return error_set(err, STATUS_INVALID, "%s: \"%s\" is missing", s->place, key);
    return STATUS_IS_OK;
}

static status read_llama3(const rope_source *s, rope_config *r, error *err)
{
    RETURN_IF_ERROR(need_factor(s, r, err));
    RETURN_IF_ERROR(json_get_double(s->rope, s->place, "low_freq_factor", 1e-3, 1e6, 0.0,
                                    &r->low_freq_factor, err));
    RETURN_IF_ERROR(json_get_double(s->rope, s->place, "high_freq_factor", 1e-3, 1e6, 0.0,
                                    &r->high_freq_factor, err));
    RETURN_IF_ERROR(read_original(s, 0, r, err));
    if (!(r->low_freq_factor > 0.0 && r->low_freq_factor < r->high_freq_factor))
        return error_set(err, STATUS_INVALID,
                         "%s: \"low_freq_factor\" and \"high_freq_factor\" must be there, the "
                         "first below the second",
                         s->place);
    return STATUS_IS_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static status read_yarn(const rope_source *s, rope_config *r, error *err)
{
    double given, mscale, mscale_all;
    RETURN_IF_ERROR(need_factor(s, r, err));
    RETURN_IF_ERROR(read_original(s, r->max_positions, r, err));
    RETURN_IF_ERROR(
        json_get_double(s->rope, s->place, "beta_fast", 1e-3, 1e6, 32.0, &r->beta_fast, err));
    RETURN_IF_ERROR(
        json_get_double(s->rope, s->place, "beta_slow", 1e-3, 1e6, 1.0, &r->beta_slow, err));
    RETURN_IF_ERROR(json_get_bool(s->rope, s->place, "truncate", true, &r->truncate, err));
    RETURN_IF_ERROR(
        json_get_double(s->rope, s->place, "attention_factor", 1e-3, 1e3, 0.0, &given, err));
    RETURN_IF_ERROR(json_get_double(s->rope, s->place, "mscale", 0.0, 1e3, 0.0, &mscale, err));
    RETURN_IF_ERROR(
        json_get_double(s->rope, s->place, "mscale_all_dim", 0.0, 1e3, 0.0, &mscale_all, err));
    if (r->theta <= 1.0)
        return error_set(err, STATUS_INVALID, "%s: \"rope_theta\" must be above 1", s->place);
    r->attention_factor = yarn_mscale(r->factor, 1.0);
    if (mscale != 0.0 && mscale_all != 0.0)
        r->attention_factor = yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, mscale_all);
    if (given != 0.0) r->attention_factor = given;
    return STATUS_IS_OK;
}

static status read_factors(const rope_source *s, const char *key, float *out, error *err)
{
    const json_t *list = json_object_get(s->rope, key);
    if (!json_is_array(list) || json_array_size(list) != s->head_dim / 2)
        return error_set(err, STATUS_INVALID, "%s: \"%s\" must be a list of %u numbers", s->place,
                         key, s->head_dim / 2);
    for (uint32_t i = 0; i < s->head_dim / 2; i++) {
        double v = json_number_value(json_array_get(list, i));
        if (!(v >= 1e-3 && v <= 1e6))
            return error_set(err, STATUS_INVALID,
                             "%s: \"%s\" must be a list of numbers between 1e-3 and 1e6", s->place,
                             key);
        out[i] = (float)v;
    }
    return STATUS_IS_OK;
}

static status read_longrope(const rope_source *s, rope_config *r, error *err)
{
    double given;
    RETURN_IF_ERROR(read_original(s, 0, r, err));
    RETURN_IF_ERROR(read_factors(s, "short_factor", r->short_factor, err));
    RETURN_IF_ERROR(read_factors(s, "long_factor", r->long_factor, err));
    RETURN_IF_ERROR(
        json_get_double(s->rope, s->place, "attention_factor", 1e-3, 1e3, 0.0, &given, err));
    double original = r->original_max_positions;
    double factor = r->factor == 0.0 ? r->max_positions / original : r->factor;
    if (factor > 1.0 && original <= 1.0)
        return error_set(err, STATUS_INVALID,
                         "%s: \"original_max_position_embeddings\" must be above 1", s->place);
    r->factor = factor > 1.0 ? factor : 1.0;
    r->attention_factor = factor > 1.0 ? sqrt(1.0 + log(factor) / log(original)) : 1.0;
    if (given != 0.0) r->attention_factor = given;
    return STATUS_IS_OK;
}

/* ---- the kinds ------------------------------------------------------------------------------- */

enum { ROPE_KEYS_MAX = 7 };

typedef struct rope_row {
    const char *name;
    rope_kind kind;
    status (*read)(const rope_source *s, rope_config *r, error *err);
    const char *keys[ROPE_KEYS_MAX]; /* keys of this kind alone */
} rope_row;

static const rope_row kinds[] = {
    {"default", ROPE_DEFAULT, NULL, {NULL}},
    {"linear", ROPE_LINEAR, need_factor, {NULL}},
    {"dynamic", ROPE_DYNAMIC, need_factor, {NULL}},
    {"llama3", ROPE_LLAMA3, read_llama3, {"low_freq_factor", "high_freq_factor"}},
    {"yarn",
     ROPE_YARN,
     read_yarn,
     {"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"}},
    {"longrope", ROPE_LONGROPE, read_longrope, {"short_factor", "long_factor", "attention_factor"}},
    /* the name under which Phi-3 was first published */
    {"su", ROPE_LONGROPE, read_longrope, {"short_factor", "long_factor", "attention_factor"}},
};

/* Refuses keys that the kind does not have, because their effect is unknown. */
static status refuse_unknown(const rope_source *s, const rope_row *row, error *err)
{
    static const char *const of_all[] = {"type",   "rope_type", "rope_theta",
                                         "factor", "finetuned", "original_max_position_embeddings"};
    void *at = json_object_iter((json_t *)(uintptr_t)s->rope);
    for (; at; at = json_object_iter_next((json_t *)(uintptr_t)s->rope, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        bool known = json_is_null(value);
        for (size_t i = 0; i < sizeof of_all / sizeof *of_all; i++)
            known = known || strcmp(key, of_all[i]) == 0;
        for (size_t i = 0; i < ROPE_KEYS_MAX && row->keys[i]; i++)
            known = known || strcmp(key, row->keys[i]) == 0;
        if (strcmp(key, "partial_rotary_factor") == 0)
            known = json_is_number(value) && json_number_value(value) == 1.0;
        if (!known)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"%.64s\" is not supported with \"rope_type\" \"%s\"", s->place,
                             key, row->name);
    }
    return STATUS_IS_OK;
}

static status find_kind(const rope_source *s, const rope_row **out, error *err)
{
    const char *type;
    RETURN_IF_ERROR(json_get_string(s->rope, s->place, "rope_type", &type, err));
    if (!type) RETURN_IF_ERROR(json_get_string(s->rope, s->place, "type", &type, err));
    if (!type && json_is_number(json_object_get(s->rope, "factor")))
        return error_set(err, STATUS_INVALID, "%s: \"rope_type\" is missing", s->place);
    *out = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type ? type : "default", kinds[i].name) == 0) *out = &kinds[i];
    if (!*out)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"rope_type\": \"%.64s\" is not supported",
                         s->place, type);
    return STATUS_IS_OK;
}

static status read_one(const rope_source *s, double theta, const model_config *c, rope_config *r,
                       error *err)
{
    const rope_row *row;
    r->attention_factor = 1.0;
    r->max_positions = r->length = c->max_positions;
    RETURN_IF_ERROR(find_kind(s, &row, err));
    RETURN_IF_ERROR(refuse_unknown(s, row, err));
    RETURN_IF_ERROR(read_theta(s->config, s->rope, s->where, theta, &r->theta, err));
    RETURN_IF_ERROR(json_get_double(s->rope, s->place, "factor", 1.0, 1e6, 0.0, &r->factor, err));
    r->kind = row->kind;
    if (row->read) RETURN_IF_ERROR(row->read(s, r, err));
    if (r->kind == ROPE_DEFAULT) r->factor = 1.0;
    return STATUS_IS_OK;
}

static status check_object(const json_t *rope, const char *where, const char *key, error *err)
{
    if (!rope || json_is_null(rope) || json_is_object(rope)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: \"%s\" must be an object", where, key);
}

/* Reads the RoPE of layers with a window: an object of its own in "rope_parameters", or only a
 * theta, "rope_local_base_freq". */
static status read_local(const rope_source *all, const json_t *rope, model_config *c, error *err)
{
    const char *old_key = "rope_local_base_freq";
    rope_source s = {rope, rope, all->where, all->place, all->head_dim};
    double theta;
    RETURN_IF_ERROR(json_get_double(all->config, all->where, old_key, 1.0, 1e15,
                                    c->family->local_theta, &theta, err));
    return read_one(&s, theta, c, &c->local_rope, err);
}

status model_config_read_rope(const json_t *json, const char *where, model_config *c, error *err)
{
    const char *key = "rope_parameters", *full = "full_attention", *local = "sliding_attention";
    const json_t *rope = json_object_get(json, key), *local_rope = NULL;
    if (!rope || json_is_null(rope)) rope = json_object_get(json, key = "rope_scaling");
    RETURN_IF_ERROR(check_object(rope, where, key, err));
    if (c->family->local_theta != 0.0 &&
        (json_object_get(rope, full) || json_object_get(rope, local))) {
        local_rope = json_object_get(rope, local);
        rope = json_object_get(rope, full);
        RETURN_IF_ERROR(check_object(rope, where, full, err));
        RETURN_IF_ERROR(check_object(local_rope, where, local, err));
    }
    char place[256];
    snprintf(place, sizeof place, "%.220s: \"%s\"", where, key);
    rope_source s = {json, rope, where, place, c->head_dim};
    double theta = c->family->theta != 0.0 ? c->family->theta : 10000.0;
    RETURN_IF_ERROR(read_one(&s, theta, c, &c->rope, err));
    return c->family->local_theta != 0.0 ? read_local(&s, local_rope, c, err) : STATUS_IS_OK;
}
