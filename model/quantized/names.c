/* Lists of module names, as compressed-tensors has them (utils/match.py): exact, or "re:" and a
 * pattern that must match from the first character on. */
#include "model/quantized/scheme.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    NAMES_MAX = 1 << 14,
    PATTERNS_MAX = 64,
    PATTERN_BYTES_MAX = 1024,
    PATTERN_STEPS_MAX = 10000, /* names are short: an honest pattern takes a few hundred */
};

struct quantized_name {
    const char *text;
    pcre2_code *code; /* NULL: exact */
};

/* A class of torch, whose modules this build cannot tell: all but Linear, which is each of them. */
static bool is_class(const char *text)
{
    return text[0] >= 'A' && text[0] <= 'Z' && !strchr(text, '.');
}

static status compile(const char *text, const char *where, const char *key, pcre2_code **out,
                      error *err)
{
    const char *pattern = text + 3;
    size_t n = strlen(pattern);
    if (n > PATTERN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"%s\": a pattern of more than %d bytes", where,
                         key, PATTERN_BYTES_MAX);
    int code;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)pattern, n,
                         PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (*out) return STATUS_IS_OK;
    PCRE2_UCHAR why[128];
    pcre2_get_error_message(code, why, sizeof why);
    return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": \"%.128s\": %s at byte %zu", where, key,
                     text, (const char *)why, at + 3);
}

static status add_name(quantized *q, const json_t *value, const char *where, const char *key,
                       bool patterns, struct quantized_name *out, size_t *n_patterns, error *err)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value) || text[0] == 0)
        return error_set(err, STATUS_INVALID, "%s: \"%s\" must be a list of names", where, key);
    for (const char *c = text; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7f)
            return error_set(err, STATUS_INVALID, "%s: \"%s\": a name with control characters",
                             where, key);
    out->text = arena_strndup(&q->memory, text, strlen(text));
    if (!out->text) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    if (!patterns) return STATUS_IS_OK;
    if (is_class(text) && strcmp(text, "Linear") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\": the class \"%.64s\" is not supported, only Linear", where,
                         key, text);
    if (strncmp(text, "re:", 3) != 0) return STATUS_IS_OK;
    if (++*n_patterns > PATTERNS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"%s\": more than %d patterns", where, key,
                         PATTERNS_MAX);
    return compile(out->text, where, key, &out->code, err);
}

status quantized_read_names(quantized *q, const json_t *of, const char *where, const char *key,
                            bool patterns, quantized_names *out, error *err)
{
    const json_t *list = json_object_get(of, key);
    if (!list || json_is_null(list)) return STATUS_IS_OK;
    size_t n = json_array_size(list), n_patterns = 0;
    if (!json_is_array(list))
        return error_set(err, STATUS_INVALID, "%s: \"%s\" must be a list of names", where, key);
    if (n > NAMES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"%s\": more than %d names", where, key,
                         NAMES_MAX);
    out->items = arena_alloc_array(&q->memory, n, sizeof *out->items);
    if (!out->items) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    out->n = n;
    for (size_t i = 0; i < n; i++)
        RETURN_IF_ERROR(add_name(q, json_array_get(list, i), where, key, patterns, &out->items[i],
                                 &n_patterns, err));
    return STATUS_IS_OK;
}

static status pattern_matches(const struct quantized_name *name, const char *module,
                              pcre2_match_data *data, pcre2_match_context *limits, bool *yes,
                              error *err)
{
    int rc = pcre2_match(name->code, (PCRE2_SPTR)module, strlen(module), 0, 0, data, limits);
    *yes = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "\"quantization_config\": the pattern \"%.128s\" takes too long on \"%s\"",
                     name->text, module);
}

status quantized_names_find(const quantized_names *names, const char *module,
                            quantized_match_kind *kind, const char **text, error *err)
{
    *kind = NAME_NONE;
    *text = NULL;
    pcre2_match_data *data = NULL;
    pcre2_match_context *limits = NULL;
    status s = STATUS_IS_OK;
    for (size_t i = 0; status_ok(s) && i < names->n && *kind != NAME_EXACT; i++) {
        const struct quantized_name *name = &names->items[i];
        bool yes = false;
        if (!name->code) {
            if (strcmp(name->text, module) == 0) *kind = NAME_EXACT;
            if (*kind == NAME_EXACT) *text = name->text;
            continue;
        }
        if (!data) data = pcre2_match_data_create(1, NULL);
        if (!limits) limits = pcre2_match_context_create(NULL);
        if (!data || !limits) {
            s = error_set(err, STATUS_NO_MEMORY, "\"quantization_config\": out of memory");
            break;
        }
        pcre2_set_match_limit(limits, PATTERN_STEPS_MAX);
        pcre2_set_depth_limit(limits, PATTERN_STEPS_MAX);
        s = pattern_matches(name, module, data, limits, &yes, err);
        if (!yes || (*text && strcmp(*text, name->text) <= 0)) continue;
        *kind = NAME_PATTERN;
        *text = name->text;
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    return s;
}

bool quantized_names_has(const quantized_names *names, const char *text)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i].text, text) == 0) return true;
    return false;
}

void quantized_names_close(quantized_names *names)
{
    for (size_t i = 0; i < names->n; i++) pcre2_code_free(names->items[i].code);
    *names = (quantized_names){0};
}
