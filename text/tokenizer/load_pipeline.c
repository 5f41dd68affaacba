/* The parts of tokenizer.json before the model. A part that is not in a table here is refused by
 * name. To add one, add a row and its function. */
#include "text/tokenizer/internal.h"

#include <string.h>

#define SEQUENCE_DEPTH_MAX 4

static bool absent(const json_t *part) { return !part || json_is_null(part); }

/* ---- normalizer ---- */

/* Reads a member that must be a string; borrowed. */
static status read_text(const json_t *part, const char *where, const char *key, const char **text,
                        size_t *n, error *err)
{
    *n = 0;
    RETURN_IF_ERROR(json_get_string(part, where, key, text, err));
    if (!*text) return error_set(err, STATUS_CORRUPT, "%s: no \"%s\"", where, key);
    *n = strlen(*text);
    if (*n <= TOK_TOKEN_BYTES_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "%s: \"%s\" has more than %d bytes", where, key,
                     TOK_TOKEN_BYTES_MAX);
}

static status read_nothing(tok_normalizer *step, const char *where, const json_t *part, error *err)
{
    (void)step, (void)where, (void)part, (void)err;
    return STATUS_IS_OK;
}

static status read_prepend(tok_normalizer *step, const char *where, const json_t *part, error *err)
{
    return read_text(part, where, "prepend", &step->content, &step->n_content, err);
}

static status read_replace(tok_normalizer *step, const char *where, const json_t *part, error *err)
{
    return tok_read_replace(part, where, &step->pattern, &step->n_pattern, &step->content,
                            &step->n_content, err);
}

status tok_read_replace(const json_t *part, const char *where, const char **pattern,
                        size_t *n_pattern, const char **content, size_t *n_content, error *err)
{
    const json_t *object = json_object_get(part, "pattern");
    if (json_object_get(object, "Regex"))
        return error_set(err, STATUS_UNSUPPORTED, "%s: a Regex pattern is not supported", where);
    RETURN_IF_ERROR(read_text(object, tok_place_make(where, "pattern").text, "String", pattern,
                              n_pattern, err));
    if (*n_pattern == 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: an empty pattern is not supported", where);
    return read_text(part, where, "content", content, n_content, err);
}

static status add_normalizer(tokenizer *t, const char *where, tok_normalizer step, error *err)
{
    if (t->normalizers.n_steps == TOK_NORMALIZERS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d normalizers", where,
                         TOK_NORMALIZERS_MAX);
    /* The document is freed after loading, so the strings are copied. */
    if (step.pattern) step.pattern = arena_strndup(&t->strings, step.pattern, step.n_pattern);
    if (step.content) step.content = arena_strndup(&t->strings, step.content, step.n_content);
    if ((step.n_pattern > 0 && !step.pattern) || (step.n_content > 0 && !step.content))
        return status_make(STATUS_NO_MEMORY, NULL);
    t->normalizers.steps[t->normalizers.n_steps++] = step;
    return STATUS_IS_OK;
}

static status load_normalizer(tokenizer *t, const char *where, const json_t *part, unsigned depth,
                              error *err)
{
    static const struct {
        const char *type;
        tok_normalize run;
        status (*read)(tok_normalizer *, const char *, const json_t *, error *);
    } rows[] = {
        {"NFC", tok_normalize_nfc, read_nothing},
        {"Prepend", tok_normalize_prepend, read_prepend},
        {"Replace", tok_normalize_replace, read_replace},
    };
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, where, &type, err));
    if (strcmp(type, "Sequence") == 0 && depth < SEQUENCE_DEPTH_MAX) {
        const json_t *list = json_object_get(part, "normalizers");
        if (!json_is_array(list))
            return error_set(err, STATUS_CORRUPT, "%s: \"normalizers\" must be an array", where);
        for (size_t i = 0; i < json_array_size(list); i++)
            RETURN_IF_ERROR(load_normalizer(t, tok_place_make(where, "normalizers[%zu]", i).text,
                                            json_array_get(list, i), depth + 1, err));
        return STATUS_IS_OK;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(type, rows[i].type) != 0) continue;
        tok_normalizer step = {.run = rows[i].run};
        RETURN_IF_ERROR(rows[i].read(&step, where, part, err));
        return add_normalizer(t, where, step, err);
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", where,
                     tok_show(type, strlen(type)).text);
}

status tok_load_normalizer(tokenizer *t, const char *where, const json_t *part, error *err)
{
    if (absent(part)) return STATUS_IS_OK;
    return load_normalizer(t, tok_place_make(where, "normalizer").text, part, 0, err);
}

/* ---- pre_tokenizer ---- */

typedef struct pre_tokenizers {
    tok_steps *list;
    arena *strings;
    bool byte_level; /* the file has ByteLevel */
    bool spelled;    /* seen ByteLevel: words are spelled in the byte alphabet from there on */
    bool metaspace;  /* seen Metaspace */
    unsigned depth;
} pre_tokenizers;

static status load_pre_tokenizer(pre_tokenizers *p, const char *where, const json_t *part,
                                 error *err);

static status add_step(pre_tokenizers *p, const char *where, tok_step step, error *err)
{
    if (p->list->n_steps < TOK_STEPS_MAX) {
        p->list->steps[p->list->n_steps++] = step;
        return STATUS_IS_OK;
    }
    pcre2_code_free(step.code);
    return error_set(err, STATUS_LIMIT, "%s: more than %d steps", where, TOK_STEPS_MAX);
}

static status add_literal(pre_tokenizers *p, const char *where, tok_step step, const char *text,
                          size_t n, error *err)
{
    step.kind = TOK_STEP_LITERAL;
    step.literal = arena_strndup(p->strings, text, n);
    step.n_literal = n;
    return step.literal ? add_step(p, where, step, err) : status_make(STATUS_NO_MEMORY, NULL);
}

static status load_byte_level(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    bool prefix_space, use_regex;
    RETURN_IF_ERROR(json_get_bool(part, where, "add_prefix_space", true, &prefix_space, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "use_regex", true, &use_regex, err));
    tok_step prefix = {.kind = TOK_STEP_PREFIX_SPACE};
    tok_step gpt2 = {.kind = TOK_STEP_SPLIT, .split = tok_split_gpt2};
    if (prefix_space) RETURN_IF_ERROR(add_step(p, where, prefix, err));
    if (use_regex) RETURN_IF_ERROR(add_step(p, where, gpt2, err));
    p->spelled = true;
    return STATUS_IS_OK;
}

static status read_behavior(const json_t *part, const char *where, tok_behavior *out, error *err)
{
    static const char *const names[] = {
        [TOK_ISOLATED] = "Isolated",
        [TOK_REMOVED] = "Removed",
        [TOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [TOK_MERGED_WITH_NEXT] = "MergedWithNext",
        [TOK_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    RETURN_IF_ERROR(json_get_string(part, where, "behavior", &name, err));
    if (!name) return error_set(err, STATUS_CORRUPT, "%s: no \"behavior\"", where);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (tok_behavior)i;
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: behavior \"%s\" is not supported", where,
                     tok_show(name, strlen(name)).text);
}

static status load_split(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    tok_step step = {.kind = TOK_STEP_PATTERN};
    RETURN_IF_ERROR(read_behavior(part, where, &step.behavior, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "invert", false, &step.invert, err));
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text))
        return error_set(err, STATUS_CORRUPT,
                         "%s: \"pattern\" must be {\"Regex\": text} or {\"String\": text}", where);
    size_t n = json_string_length(text);
    /* The hand-written matchers leave no gaps, so they fit only where each match is a word. */
    bool words = step.behavior == TOK_ISOLATED || (step.behavior == TOK_REMOVED && step.invert);
    if (n == 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: an empty pattern is not supported", where);
    if (!regex) return add_literal(p, where, step, json_string_value(text), n, err);
    if (words) step.split = tok_split_find(json_string_value(text), n);
    if (step.split) step.kind = TOK_STEP_SPLIT;
    else RETURN_IF_ERROR(tok_pattern_compile(where, json_string_value(text), n, &step.code, err));
    return add_step(p, where, step, err);
}

static status load_digits(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    bool each;
    RETURN_IF_ERROR(json_get_bool(part, where, "individual_digits", false, &each, err));
    tok_step step = {.kind = TOK_STEP_DIGITS, .behavior = each ? TOK_ISOLATED : TOK_CONTIGUOUS};
    return add_step(p, where, step, err);
}

static status load_metaspace(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    tok_step step = {.kind = TOK_STEP_METASPACE};
    bool split;
    RETURN_IF_ERROR(
        tok_read_metaspace(part, where, step.replacement, &step.n_replacement, &step.prepend, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "split", true, &split, err));
    if (p->metaspace || p->byte_level)
        return error_set(err, STATUS_UNSUPPORTED, "%s: Metaspace with %s is not supported", where,
                         p->metaspace ? "another" : "ByteLevel");
    p->metaspace = true;
    RETURN_IF_ERROR(add_step(p, where, step, err));
    if (!split) return STATUS_IS_OK;
    tok_step cut = {.behavior = TOK_MERGED_WITH_NEXT};
    return add_literal(p, where, cut, (const char *)step.replacement, step.n_replacement, err);
}

status tok_read_metaspace(const json_t *part, const char *where, uint8_t replacement[4],
                          unsigned *n_replacement, tok_prepend *prepend, error *err)
{
    static const char *const names[] = {[TOK_PREPEND_ALWAYS] = "always",
                                        [TOK_PREPEND_FIRST] = "first",
                                        [TOK_PREPEND_NEVER] = "never"};
    const char *text, *name;
    bool prefix;
    size_t n;
    RETURN_IF_ERROR(read_text(part, where, "replacement", &text, &n, err));
    uint32_t cp;
    *n_replacement = utf8_decode((const uint8_t *)text, n, &cp);
    if (n == 0 || *n_replacement != n)
        return error_set(err, STATUS_CORRUPT, "%s: \"replacement\" must be one character", where);
    memcpy(replacement, text, n);
    RETURN_IF_ERROR(json_get_string(part, where, "prepend_scheme", &name, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "add_prefix_space", true, &prefix, err));
    if (!name) name = "always";
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *prepend = (tok_prepend)i;
        if (prefix || *prepend == TOK_PREPEND_NEVER) return STATUS_IS_OK;
        /* The library refuses this too. */
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: add_prefix_space false with prepend_scheme \"%s\" is not supported",
                         where, names[i]);
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: prepend_scheme \"%s\" is not supported", where,
                     tok_show(name, strlen(name)).text);
}

static status load_sequence(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    const json_t *list = json_object_get(part, "pretokenizers");
    if (!json_is_array(list))
        return error_set(err, STATUS_CORRUPT, "%s: \"pretokenizers\" must be an array", where);
    if (++p->depth > SEQUENCE_DEPTH_MAX)
        return error_set(err, STATUS_LIMIT, "%s: sequences nested too deep", where);
    for (size_t i = 0; i < json_array_size(list); i++)
        RETURN_IF_ERROR(load_pre_tokenizer(p, tok_place_make(where, "pretokenizers[%zu]", i).text,
                                           json_array_get(list, i), err));
    p->depth--;
    return STATUS_IS_OK;
}

static status load_pre_tokenizer(pre_tokenizers *p, const char *where, const json_t *part,
                                 error *err)
{
    static const struct {
        const char *type;
        status (*load)(pre_tokenizers *, const char *, const json_t *, error *);
    } rows[] = {
        {"ByteLevel", load_byte_level}, {"Split", load_split},       {"Digits", load_digits},
        {"Metaspace", load_metaspace},  {"Sequence", load_sequence},
    };
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, where, &type, err));
    if (p->spelled)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" after ByteLevel is not supported",
                         where, tok_show(type, strlen(type)).text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0) return rows[i].load(p, where, part, err);
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", where,
                     tok_show(type, strlen(type)).text);
}

bool tok_has_byte_level(const json_t *part, unsigned depth)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type || depth > SEQUENCE_DEPTH_MAX) return false;
    if (strcmp(type, "ByteLevel") == 0) return true;
    const json_t *list = json_object_get(part, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (tok_has_byte_level(json_array_get(list, i), depth + 1)) return true;
    return false;
}

status tok_load_pre_tokenizer(tokenizer *t, const char *where, const json_t *part, error *err)
{
    tok_place place = tok_place_make(where, "pre_tokenizer");
    pre_tokenizers p = {.list = &t->steps, .strings = &t->strings, .byte_level = t->byte_level};
    if (!absent(part)) RETURN_IF_ERROR(load_pre_tokenizer(&p, place.text, part, err));
    /* Where no merge crosses the start of a run of U+2581, the text may be cut there: the ids are
     * the same, and short words recur and hit the cache. */
    tok_step cut = {.kind = TOK_STEP_SPLIT, .split = tok_split_metaspace};
    return t->cut_at_metaspace ? add_step(&p, place.text, cut, err) : STATUS_IS_OK;
}
