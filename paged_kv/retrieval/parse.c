/* Reads the "retrieval" of a request, an object or one word: a field is a row, with the name that
 * KTransformers' configuration files give it. */
#include "paged_kv/retention/retention.h" // retention_selecting_layers
#include "paged_kv/retrieval/retrieval.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

typedef struct parsing {
    const json_t *json;
    const retrieval_preset *preset;
    const pkv_geometry *geometry;
} parsing;

/* preselect_block_count and observed_rows, where the request does not say them. The rows are those
 * of the question's end: rows before it attend to other blocks, which would take the places. */
enum { PRESELECTED = 96, PRESELECTING = 8 };

static const json_t *member(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- readers: `name` is the one that the request used ---------------------------------------- */

static status read_count(const parsing *p, const char *name, int64_t min, int64_t max,
                         uint32_t *out, error *err)
{
    int64_t value;
    RETURN_IF_ERROR(json_get_int(p->json, "retrieval", name, min, max, *out, &value, err));
    *out = (uint32_t)value;
    return STATUS_IS_OK;
}

/* The fields that are counts, with their ranges and the names that requests give them. */
#define COUNTS(COUNT)                                                                              \
    COUNT(block_tokens, "block_tokens", 16, RETRIEVAL_BLOCK_MOST)                                  \
    COUNT(initial_tokens, "initial_tokens", 0, INT32_MAX)                                          \
    COUNT(local_tokens, "local_windows_len", 1, INT32_MAX)                                         \
    COUNT(top_blocks, "second_block_count", 1, INT32_MAX)                                          \
    COUNT(observed_rows, "observed_rows", 1, RETRIEVAL_OBSERVED)                                   \
    COUNT(dense_layers, "dense_layer_num", 0, INT32_MAX)                                           \
    COUNT(layer_step, "layer_step", 1, INT32_MAX)                                                  \
    COUNT(token_step, "token_step", 1, INT32_MAX)                                                  \
    COUNT(group_heads, "group_heads", 1, INT32_MAX)                                                \
    COUNT(representative_num, "representative_num", 1, RETRIEVAL_KEYS_MOST)

/* A reader of each. */
#define READ_COUNT(member_, field, min, max)                                                       \
    static status read_##member_(const parsing *p, const char *name, retrieval_spec *spec,         \
                                 error *err)                                                       \
    {                                                                                              \
        return read_count(p, name, min, max, &spec->member_, err);                                 \
    }
COUNTS(READ_COUNT)
READ_COUNT(audit, "audit", 1, INT32_MAX)

/* The fields that say how many blocks are read; `tokens` stands in their place. */
static const char *const numbers_of_blocks[] = {"local_windows_len", "second_block_count",
                                                "second_select_num"};

/* Shares the blocks out as KTransformers' base configuration does: of those that are not initial a
 * quarter is local, the others are selected. It comes after block_tokens and initial_tokens. */
static status read_tokens(const parsing *p, const char *name, retrieval_spec *spec, error *err)
{
    uint32_t tokens = 0, size = spec->block_tokens;
    RETURN_IF_ERROR(read_count(p, name, 1, INT32_MAX, &tokens, err));
    for (size_t i = 0; i < sizeof numbers_of_blocks / sizeof *numbers_of_blocks; i++)
        if (member(p->json, numbers_of_blocks[i]))
            return error_set(err, STATUS_INVALID,
                             "retrieval.tokens and retrieval.%s: only one of them can be given",
                             numbers_of_blocks[i]);
    uint32_t initial = (spec->initial_tokens + size - 1) / size, blocks = tokens / size;
    if (blocks < initial + 2)
        return error_set(err, STATUS_INVALID,
                         "retrieval.tokens is %u: must be at least %llu, for %u initial, one local "
                         "and one selected block of %u tokens",
                         tokens, (initial + 2ull) * size, initial, size);
    uint32_t local = (blocks - initial) / 4 ? (blocks - initial) / 4 : 1;
    spec->local_tokens = local * size;
    spec->top_blocks = blocks - initial - local;
    return STATUS_IS_OK;
}

static status read_epsilon(const parsing *p, const char *name, retrieval_spec *spec, error *err)
{
    double value;
    RETURN_IF_ERROR(json_get_double(p->json, "retrieval", name, 1e-6, 0.999, 0, &value, err));
    spec->epsilon = (float)value;
    return STATUS_IS_OK;
}

static status refuse_option(retrieval_part part, const char *name, const char *value, error *err)
{
    char have[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < retrieval_part_size(part) && used < sizeof have; i++)
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%s", i > 0 ? ", " : "",
                                 retrieval_part_option(part, i).name);
    return error_set(err, STATUS_INVALID, "retrieval.%s: '%.40s' is unknown (have: %s)", name,
                     value, have);
}

static status read_option(const parsing *p, const char *name, retrieval_part part, size_t *index,
                          error *err)
{
    const char *value;
    RETURN_IF_ERROR(json_get_string(p->json, "retrieval", name, &value, err));
    for (*index = 0; *index < retrieval_part_size(part); (*index)++) {
        retrieval_option o = retrieval_part_option(part, *index);
        if (strcmp(o.name, value) == 0 || (o.alias && strcmp(o.alias, value) == 0))
            return STATUS_IS_OK;
    }
    return refuse_option(part, name, value, err);
}

static status read_representative(const parsing *p, const char *name, retrieval_spec *spec,
                                  error *err)
{
    size_t i;
    RETURN_IF_ERROR(read_option(p, name, RETRIEVAL_PART_REPRESENTATIVE, &i, err));
    spec->representative = (retrieval_representative)i;
    return STATUS_IS_OK;
}

static status read_heads(const parsing *p, const char *name, retrieval_spec *spec, error *err)
{
    size_t i;
    RETURN_IF_ERROR(read_option(p, name, RETRIEVAL_PART_HEADS, &i, err));
    spec->heads = (retrieval_heads)i;
    return STATUS_IS_OK;
}

/* preselect_block_count and observed_rows come after it. */
static status read_preselect(const parsing *p, const char *name, retrieval_spec *spec, error *err)
{
    bool preselects;
    RETURN_IF_ERROR(json_get_bool(p->json, "retrieval", name, false, &preselects, err));
    spec->preselect_blocks = preselects ? PRESELECTED : 0;
    if (preselects) spec->observed_rows = PRESELECTING;
    return STATUS_IS_OK;
}

static status read_preselect_blocks(const parsing *p, const char *name, retrieval_spec *spec,
                                    error *err)
{
    uint32_t blocks = PRESELECTED;
    RETURN_IF_ERROR(read_count(p, name, 1, INT32_MAX, &blocks, err));
    if (spec->preselect_blocks) spec->preselect_blocks = blocks;
    return STATUS_IS_OK;
}

static bool preselects(const retrieval_spec *spec) { return spec->preselect_blocks > 0; }
static bool observes(const retrieval_spec *spec)
{
    return preselects(spec) || spec->representative == RETRIEVAL_DYNAMIC;
}
static bool takes_several(const retrieval_spec *spec)
{
    return spec->representative == RETRIEVAL_FIX || spec->representative == RETRIEVAL_DYNAMIC;
}
static bool takes_epsilon(const retrieval_spec *spec)
{
    return spec->representative == RETRIEVAL_QUEST && spec->layer_step == 1 &&
           spec->token_step == 1 && spec->preselect_blocks == 0;
}
static bool takes_groups(const retrieval_spec *spec) { return spec->heads == RETRIEVAL_GROUP; }

/* Every field that the object may have besides `method`. */
static const struct {
    const char *name;
    const char *alias; // in KTransformers' configuration files; NULL: the same
    status (*read)(const parsing *p, const char *name, retrieval_spec *spec, error *err);
    bool (*used)(const retrieval_spec *spec); // whether it has an effect; NULL = always
    const char *only;                         // what the effect needs
} keys[] = {
    {"block_tokens", "block_size", read_block_tokens, NULL, NULL},
    {"initial_tokens", NULL, read_initial_tokens, NULL, NULL},
    {"local_windows_len", NULL, read_local_tokens, NULL, NULL},
    {"second_block_count", "second_select_num", read_top_blocks, NULL, NULL},
    {"tokens", NULL, read_tokens, NULL, NULL},
    {"preselect_block", "preselect", read_preselect, NULL, NULL},
    {"preselect_block_count", NULL, read_preselect_blocks, preselects, "preselect_block"},
    {"observed_rows", NULL, read_observed_rows, observes,
     "preselect_block or representative_type 'DYNAMIC'"},
    {"dense_layer_num", NULL, read_dense_layers, NULL, NULL},
    {"layer_step", NULL, read_layer_step, NULL, NULL},
    {"token_step", NULL, read_token_step, NULL, NULL},
    {"audit", NULL, read_audit, NULL, NULL},
    {"head_select_mode", NULL, read_heads, NULL, NULL},
    {"group_heads", NULL, read_group_heads, takes_groups, "head_select_mode 'GROUP'"},
    {"representative_type", "anchor_type", read_representative, NULL, NULL},
    {"representative_num", "anchor_num", read_representative_num, takes_several,
     "representative_type 'FIX' or 'DYNAMIC'"},
    {"epsilon", NULL, read_epsilon, takes_epsilon,
     "representative_type 'QUEST', layer_step 1, token_step 1 and no preselection"},
};
enum { N_KEYS = sizeof keys / sizeof keys[0], METHOD = N_KEYS };

/* The row of a name, N_KEYS for `method`, N_KEYS + 1 for none. */
static size_t find_key(const char *name)
{
    if (strcmp(name, "method") == 0) return METHOD;
    for (size_t k = 0; k < N_KEYS; k++)
        if (strcmp(keys[k].name, name) == 0 || (keys[k].alias && strcmp(keys[k].alias, name) == 0))
            return k;
    return N_KEYS + 1;
}

/* The name under which the request has a field; NULL: it does not have it. */
static const char *given_as(const json_t *json, size_t k)
{
    if (member(json, keys[k].name)) return keys[k].name;
    return keys[k].alias && member(json, keys[k].alias) ? keys[k].alias : NULL;
}

static status check_names(const json_t *json, error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)json, name, value)
    {
        size_t k = find_key(name);
        if (k > METHOD) return error_set(err, STATUS_INVALID, "retrieval.%.40s: unknown key", name);
        if (k < METHOD && keys[k].alias && member(json, keys[k].name) &&
            member(json, keys[k].alias))
            return error_set(err, STATUS_INVALID,
                             "retrieval.%s and retrieval.%s: two names of one field, of which only "
                             "one can be given",
                             keys[k].name, keys[k].alias);
    }
    return STATUS_IS_OK;
}

/* The methods, separated by commas. */
static void list_methods(char *out, size_t size)
{
    size_t n, used = 0;
    const retrieval_preset *presets = retrieval_presets(&n);
    for (size_t i = 0; i < n && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "", presets[i].name);
}

static status find_method(parsing *p, error *err)
{
    const char *name;
    RETURN_IF_ERROR(json_get_string(p->json, "retrieval", "method", &name, err));
    if (!name) return error_set(err, STATUS_INVALID, "retrieval.method: must be given");
    p->preset = retrieval_find(name);
    if (p->preset) return STATUS_IS_OK;
    char have[128];
    list_methods(have, sizeof have);
    return error_set(err, STATUS_INVALID, "retrieval.method: '%.40s' is unknown (have: %s)", name,
                     have);
}

/* ---- what the model and the pages allow ------------------------------------------------------ */

static status check_blocks(const retrieval_spec *spec, const pkv_geometry *g, error *err)
{
    uint32_t page = g->page_tokens;
    if (spec->block_tokens % page != 0)
        return error_set(err, STATUS_INVALID,
                         "retrieval.block_tokens is %u: must be a multiple of the server's pages "
                         "of %u tokens",
                         spec->block_tokens, page);
    if (spec->representative_num > spec->block_tokens)
        return error_set(err, STATUS_INVALID,
                         "retrieval.representative_num is %u: a block has %u tokens",
                         spec->representative_num, spec->block_tokens);
    return STATUS_IS_OK;
}

static status check_layers(const retrieval_spec *spec, const pkv_geometry *g, error *err)
{
    uint32_t layers = retention_selecting_layers(g, g->n_layers);
    if (layers == 0)
        return error_set(err, STATUS_INVALID,
                         "retrieval: every layer of this model has a sliding window, which is all "
                         "that it reads");
    if (spec->dense_layers >= layers)
        return error_set(err, STATUS_INVALID,
                         "retrieval.dense_layer_num is %u: the model has %u layers that can read "
                         "less, and one of them must",
                         spec->dense_layers, layers);
    if (spec->layer_step > layers - spec->dense_layers)
        return error_set(err, STATUS_INVALID,
                         "retrieval.layer_step is %u: only %u layers read less", spec->layer_step,
                         layers - spec->dense_layers);
    return STATUS_IS_OK;
}

static status check_heads(const retrieval_spec *spec, const pkv_geometry *g, error *err)
{
    if (g->n_kv_heads % spec->group_heads == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "retrieval.group_heads is %u: must divide the model's %u KV heads",
                     spec->group_heads, g->n_kv_heads);
}

static status check_geometry(const retrieval_spec *spec, const pkv_geometry *g, error *err)
{
    RETURN_IF_ERROR(check_blocks(spec, g, err));
    RETURN_IF_ERROR(check_layers(spec, g, err));
    return check_heads(spec, g, err);
}

static status check_count(const char *field, int64_t value, int64_t min, int64_t max, error *err)
{
    if (value >= min && value <= max) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "retrieval.%s is %lld, must be between %lld and %lld",
                     field, (long long)value, (long long)min, (long long)max);
}

status retrieval_spec_check(const retrieval_spec *spec, const pkv_geometry *geometry, error *err)
{
#define CHECK_COUNT(member_, field, min, max)                                                      \
    RETURN_IF_ERROR(check_count(field, spec->member_, min, max, err));
    COUNTS(CHECK_COUNT)
    if ((uint32_t)spec->representative >= RETRIEVAL_REPRESENTATIVES ||
        (uint32_t)spec->heads >= RETRIEVAL_HEAD_MODES)
        return error_set(err, STATUS_INVALID,
                         "retrieval: representative_type %u or head_select_mode %u is unknown",
                         (unsigned)spec->representative, (unsigned)spec->heads);
    bool bounded = spec->epsilon >= 1e-6f && spec->epsilon <= 0.999f && takes_epsilon(spec);
    if (spec->epsilon != 0 && !bounded)
        return error_set(err, STATUS_INVALID,
                         "retrieval.epsilon is %g: must be between 1e-6 and 0.999, with QUEST, "
                         "layer_step 1, token_step 1 and no preselection",
                         (double)spec->epsilon);
    return check_geometry(spec, geometry, err);
}

/* A preset's block, which must suit pages of every size. */
static uint32_t whole_pages(uint32_t tokens, uint32_t page)
{
    return (tokens + page - 1) / page * page;
}

static status read_object(parsing *p, retrieval_spec *spec, error *err)
{
    RETURN_IF_ERROR(find_method(p, err));
    RETURN_IF_ERROR(check_names(p->json, err));
    *spec = p->preset->defaults;
    spec->block_tokens = whole_pages(spec->block_tokens, p->geometry->page_tokens);
    for (size_t k = 0; k < N_KEYS; k++) {
        const char *name = given_as(p->json, k);
        if (name) RETURN_IF_ERROR(keys[k].read(p, name, spec, err));
    }
    for (size_t k = 0; k < N_KEYS; k++) {
        const char *name = given_as(p->json, k);
        if (!name || !keys[k].used || keys[k].used(spec)) continue;
        return error_set(err, STATUS_INVALID, "retrieval.%s: needs %s", name, keys[k].only);
    }
    /* FIX takes 5 keys where the request does not say how many. */
    if (spec->representative == RETRIEVAL_FIX && !member(p->json, "representative_num") &&
        !member(p->json, "anchor_num"))
        spec->representative_num = 5;
    /* With epsilon a preset's number of blocks is no limit. */
    if (spec->epsilon > 0 && !member(p->json, "second_block_count") &&
        !member(p->json, "second_select_num") && !member(p->json, "tokens"))
        spec->top_blocks = INT32_MAX;
    return STATUS_IS_OK;
}

status retrieval_check(const retrieval_spec *spec, uint32_t retrieves, error *err)
{
    uint32_t lacking = retrieval_needs(spec) & ~retrieves;
    if (!lacking) return STATUS_IS_OK;
    if (!retrieves)
        return error_set(
            err, STATUS_INVALID,
            "retrieval: this backend reads the whole context, as several GPUs do, and one "
            "with --kv-host");
    if (lacking & RETRIEVAL_NEEDS_HISTORY)
        return error_set(err, STATUS_INVALID,
                         "retrieval.token_step is %u: this backend selects for every token",
                         spec->token_step);
    if (lacking & RETRIEVAL_NEEDS_PRESELECTION)
        return error_set(err, STATUS_INVALID,
                         "retrieval.preselect_block: this backend selects among all blocks");
    if (lacking & RETRIEVAL_NEEDS_AUDIT)
        return error_set(err, STATUS_INVALID,
                         "retrieval.audit: this backend does not compute recalls");
    if (lacking == RETRIEVAL_NEEDS_EXAM)
        return error_set(err, STATUS_INVALID,
                         "retrieval.epsilon: this backend does not bound what a selection misses");
    return error_set(
        err, STATUS_INVALID, "retrieval.representative_type: this backend does not make '%s'",
        retrieval_part_option(RETRIEVAL_PART_REPRESENTATIVE, spec->representative).name);
}

status retrieval_parse(const json_t *json, const pkv_geometry *geometry, retrieval_spec *out,
                       error *err)
{
    retrieval_spec spec = {0};
    if (json && !json_is_null(json)) {
        parsing p = {.json = json, .geometry = geometry};
        RETURN_IF_ERROR(read_object(&p, &spec, err));
        RETURN_IF_ERROR(check_geometry(&spec, geometry, err));
    }
    *out = spec;
    return STATUS_IS_OK;
}

/* ---- one word -------------------------------------------------------------------------------- */

/* A number of tokens in digits alone; 0 for any other text. */
static uint32_t tokens_of(const char *text)
{
    uint64_t value = 0;
    const char *end = number_read_whole(text, &value);
    return end && !*end && value <= INT32_MAX ? (uint32_t)value : 0;
}

status retrieval_read_text(const char *name, const char *text, json_t **out, error *err)
{
    if (*text == '{') return json_read_argument(name, text, strlen(text), out, err);
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : strlen(text);
    uint32_t tokens = colon ? tokens_of(colon + 1) : 0;
    if (n == 0 || (colon && tokens == 0)) {
        char have[128];
        list_methods(have, sizeof have);
        return error_set(err, STATUS_INVALID,
                         "%s: '%.64s' must be METHOD or METHOD:TOKENS, such as quest:4096, or a "
                         "JSON object (methods: %s)",
                         name, text, have);
    }
    *out = colon ? json_pack("{s:s%, s:I}", "method", text, n, "tokens", (json_int_t)tokens)
                 : json_pack("{s:s%}", "method", text, n);
    return *out ? STATUS_IS_OK : json_refuse_word(name, text, err);
}
