/* Lists of module names, as compressed-tensors has them (utils/match.py): exact names, or "re:" and
 * a pattern that must match from the first character on. */
#include "model/load/quantized/scheme.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

enum {
    NAMES_MAX = 1 << 14,
    PATTERNS_MAX = 64,
    PATTERN_BYTES_MAX = 1024,
    PATTERN_STEPS_MAX = 10000, /* names are short: a sane pattern takes a few hundred */
};

/* Most items of patterns that all matching of a model may try, and more for each module, so that a
 * hostile file cannot make loading take hours. */
#define WORK_MAX       (4u << 20)
#define WORK_OF_MODULE 4096

struct quantized_name {
    const char *text;
    pcre2_code *code; /* NULL: exact */
};

/* Whether text names a torch class. Only Linear is known, and every quantised module is one. */
static bool is_class(const char *text)
{
    return text[0] >= 'A' && text[0] <= 'Z' && !strchr(text, '.');
}

static status compile_name(const char *text, const char *where, const char *key, pcre2_code **out,
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
                         PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT,
                         &code, &at, NULL);
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
    return compile_name(out->text, where, key, &out->code, err);
}

/* Orders patterns before exact names, each alphabetically. */
static int by_kind(const void *a, const void *b)
{
    const struct quantized_name *x = a, *y = b;
    if (!x->code != !y->code) return x->code ? -1 : 1;
    return strcmp(x->text, y->text);
}

status quantized_read_names(quantized *q, const json_t *of, const char *where, const char *key,
                            bool patterns, quantized_names *out, error *err)
{
    const json_t *list = json_object_get(of, key);
    if (!list || json_is_null(list)) return STATUS_IS_OK;
    size_t n = json_array_size(list);
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
                                 &out->n_patterns, err));
    qsort(out->items, n, sizeof *out->items, by_kind);
    return STATUS_IS_OK;
}

uint64_t quantized_names_work(size_t n_modules)
{
    return WORK_MAX + (uint64_t)n_modules * WORK_OF_MODULE;
}

static const struct quantized_name *find_exact(const quantized_names *names, const char *text)
{
    const struct quantized_name key = {.text = text};
    size_t n = names->n - names->n_patterns;
    return n ? bsearch(&key, names->items + names->n_patterns, n, sizeof key, by_kind) : NULL;
}

/* PCRE2 calls it at every item of a pattern. It fails the match when no work is left. */
static int count_match_work(pcre2_callout_block *block, void *work_left)
{
    uint64_t *left = work_left;
    (void)block;
    if (*left == 0) return PCRE2_ERROR_CALLOUT;
    --*left;
    return 0;
}

static status find_pattern(const quantized_place *at, const quantized_names *names,
                           pcre2_match_data *data, pcre2_match_context *limits, const char **text,
                           error *err)
{
    pcre2_set_match_limit(limits, PATTERN_STEPS_MAX);
    pcre2_set_depth_limit(limits, PATTERN_STEPS_MAX);
    pcre2_set_callout(limits, count_match_work, at->work_left);
    for (size_t i = 0; i < names->n_patterns; i++) {
        const struct quantized_name *name = &names->items[i];
        int rc =
            pcre2_match(name->code, (PCRE2_SPTR)at->module, strlen(at->module), 0, 0, data, limits);
        if (rc == PCRE2_ERROR_NOMATCH) continue;
        if (rc < 0)
            return error_set(err, STATUS_LIMIT,
                             "%s: the pattern \"%.128s\" takes too long on \"%s\"%s", at->q->where,
                             name->text, at->module, *at->work_left ? "" : ", as others did");
        *text = name->text;
        return STATUS_IS_OK;
    }
    return STATUS_IS_OK;
}

status quantized_names_find(const quantized_place *at, const quantized_names *names,
                            quantized_match_kind *kind, const char **text, error *err)
{
    const struct quantized_name *exact = find_exact(names, at->module);
    *kind = exact ? NAME_EXACT : NAME_NONE;
    *text = exact ? exact->text : NULL;
    if (exact || names->n_patterns == 0) return STATUS_IS_OK;
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    status s = data && limits ? find_pattern(at, names, data, limits, text, err)
                              : error_set(err, STATUS_NO_MEMORY, "%s: out of memory", at->q->where);
    if (*text) *kind = NAME_PATTERN;
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    return s;
}

bool quantized_names_has(const quantized_names *names, const char *text)
{
    return find_exact(names, text) != NULL;
}

void quantized_names_close(quantized_names *names)
{
    for (size_t i = 0; i < names->n; i++) pcre2_code_free(names->items[i].code);
    *names = (quantized_names){0};
}
