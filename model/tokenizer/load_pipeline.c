/* The parts of tokenizer.json around the model. A part that is not in a table here is refused by
 * name: a new one is a row and the function it names. */
#include "model/tokenizer/internal.h"

#include <string.h>

#define SEQUENCE_DEPTH_MAX 4
#define TEMPLATE_IDS_MAX   256

static bool absent(const json_t *part) { return !part || json_is_null(part); }

/* ---- normalizer ---- */

static status load_normalizer(tokenizer *t, const char *where, const json_t *part, unsigned depth,
                              error *err)
{
    static const struct {
        const char *type;
        tok_normalize step;
    } rows[] = {
        {"NFC", tok_normalize_nfc},
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
        if (t->normalizers.n_steps == TOK_NORMALIZERS_MAX)
            return error_set(err, STATUS_LIMIT, "%s: more than %d normalizers", where,
                             TOK_NORMALIZERS_MAX);
        t->normalizers.steps[t->normalizers.n_steps++] = rows[i].step;
        return STATUS_IS_OK;
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
    bool byte_level; /* seen: the words are spelled in the byte alphabet from there on */
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

static status load_byte_level(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    bool prefix_space, use_regex;
    RETURN_IF_ERROR(json_get_bool(part, where, "add_prefix_space", true, &prefix_space, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "use_regex", true, &use_regex, err));
    tok_step prefix = {.kind = TOK_STEP_PREFIX_SPACE};
    tok_step gpt2 = {.kind = TOK_STEP_SPLIT, .split = tok_split_gpt2};
    if (prefix_space) RETURN_IF_ERROR(add_step(p, where, prefix, err));
    if (use_regex) RETURN_IF_ERROR(add_step(p, where, gpt2, err));
    p->byte_level = true;
    return STATUS_IS_OK;
}

static status load_split(pre_tokenizers *p, const char *where, const json_t *part, error *err)
{
    const char *behavior;
    bool invert;
    RETURN_IF_ERROR(json_get_string(part, where, "behavior", &behavior, err));
    RETURN_IF_ERROR(json_get_bool(part, where, "invert", false, &invert, err));
    if (!behavior) return error_set(err, STATUS_CORRUPT, "%s: no \"behavior\"", where);
    bool removed = strcmp(behavior, "Removed") == 0;
    if (!removed && strcmp(behavior, "Isolated") != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: behavior \"%s\" is not supported", where,
                         tok_show(behavior, strlen(behavior)).text);
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text))
        return error_set(err, STATUS_CORRUPT,
                         "%s: \"pattern\" must be {\"Regex\": text} or {\"String\": text}", where);
    size_t n = json_string_length(text);
    tok_step step = {.kind = TOK_STEP_PATTERN,
                     .keep_matches = !removed || invert,
                     .keep_gaps = !removed || !invert};
    /* The matchers leave no gaps; they serve where matches are kept. */
    if (regex && step.keep_matches) step.split = tok_split_find(json_string_value(text), n);
    if (step.split) step.kind = TOK_STEP_SPLIT;
    else
        RETURN_IF_ERROR(
            tok_pattern_compile(where, json_string_value(text), n, !regex, &step.code, err));
    return add_step(p, where, step, err);
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
        {"ByteLevel", load_byte_level},
        {"Split", load_split},
        {"Sequence", load_sequence},
    };
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, where, &type, err));
    if (p->byte_level)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" after ByteLevel is not supported",
                         where, tok_show(type, strlen(type)).text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0) return rows[i].load(p, where, part, err);
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", where,
                     tok_show(type, strlen(type)).text);
}

status tok_load_pre_tokenizer(tokenizer *t, const char *where, const json_t *part, error *err)
{
    tok_place place = tok_place_make(where, "pre_tokenizer");
    pre_tokenizers p = {.list = &t->steps};
    if (!absent(part)) RETURN_IF_ERROR(load_pre_tokenizer(&p, place.text, part, err));
    if (p.byte_level) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "%s: without ByteLevel is not supported", place.text);
}

/* ---- post_processor ---- */

typedef struct post_processors {
    tokenizer *t;
    bool template; /* seen */
    unsigned depth;
} post_processors;

static status load_post_processor(post_processors *p, const char *where, const json_t *part,
                                  error *err);

/* It moves offsets, which we do not keep. */
static status load_trim_offsets(post_processors *p, const char *where, const json_t *part,
                                error *err)
{
    (void)p, (void)where, (void)part, (void)err;
    return STATUS_IS_OK;
}

/* The ids of one {"SpecialToken": {"id": NAME}}, from special_tokens[NAME].ids. */
static status append_special(const tokenizer *t, const char *where, const json_t *part,
                             const json_t *special, tok_ids *out, error *err)
{
    const char *name;
    RETURN_IF_ERROR(json_get_string(special, where, "id", &name, err));
    if (!name) return error_set(err, STATUS_CORRUPT, "%s: no \"id\"", where);
    const json_t *token = json_object_get(json_object_get(part, "special_tokens"), name);
    const json_t *ids = json_object_get(token, "ids");
    if (!json_is_array(ids))
        return error_set(err, STATUS_CORRUPT, "%s: no special_tokens[\"%s\"].ids", where,
                         tok_show(name, strlen(name)).text);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *item = json_array_get(ids, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= t->n_ids)
            return error_set(err, STATUS_CORRUPT,
                             "%s: special_tokens[\"%s\"].ids[%zu] is no id of "
                             "the vocabulary",
                             where, tok_show(name, strlen(name)).text, i);
        if (out->n == TEMPLATE_IDS_MAX)
            return error_set(err, STATUS_LIMIT, "%s: more than %d special tokens", where,
                             TEMPLATE_IDS_MAX);
        if (!tok_ids_reserve(out, 1)) return status_make(STATUS_NO_MEMORY, NULL);
        out->ids[out->n++] = (uint32_t)id;
    }
    return STATUS_IS_OK;
}

static status load_template(post_processors *p, const char *where, const json_t *part, error *err)
{
    const json_t *single = json_object_get(part, "single");
    if (!json_is_array(single))
        return error_set(err, STATUS_CORRUPT, "%s: \"single\" must be an array", where);
    if (p->template)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: a second TemplateProcessing is not supported", where);
    p->template = true;
    bool seen = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        tok_place place = tok_place_make(where, "single[%zu]", i);
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        if (special) {
            RETURN_IF_ERROR(append_special(p->t, place.text, part, special,
                                           seen ? &p->t->suffix : &p->t->prefix, err));
            continue;
        }
        const char *id = NULL;
        if (sequence) RETURN_IF_ERROR(json_get_string(sequence, place.text, "id", &id, err));
        if (!id || strcmp(id, "A") != 0)
            return error_set(err, STATUS_CORRUPT, "%s: must be a SpecialToken or Sequence A",
                             place.text);
        if (seen)
            return error_set(err, STATUS_UNSUPPORTED, "%s: a second Sequence is not supported",
                             place.text);
        seen = true;
    }
    if (seen) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "%s: a template without Sequence A is not supported",
                     where);
}

static status load_processors(post_processors *p, const char *where, const json_t *part, error *err)
{
    const json_t *list = json_object_get(part, "processors");
    if (!json_is_array(list))
        return error_set(err, STATUS_CORRUPT, "%s: \"processors\" must be an array", where);
    if (++p->depth > SEQUENCE_DEPTH_MAX)
        return error_set(err, STATUS_LIMIT, "%s: sequences nested too deep", where);
    for (size_t i = 0; i < json_array_size(list); i++)
        RETURN_IF_ERROR(load_post_processor(p, tok_place_make(where, "processors[%zu]", i).text,
                                            json_array_get(list, i), err));
    p->depth--;
    return STATUS_IS_OK;
}

static status load_post_processor(post_processors *p, const char *where, const json_t *part,
                                  error *err)
{
    static const struct {
        const char *type;
        status (*load)(post_processors *, const char *, const json_t *, error *);
    } rows[] = {
        {"ByteLevel", load_trim_offsets},
        {"TemplateProcessing", load_template},
        {"Sequence", load_processors},
    };
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, where, &type, err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0) return rows[i].load(p, where, part, err);
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", where,
                     tok_show(type, strlen(type)).text);
}

status tok_load_post_processor(tokenizer *t, const char *where, const json_t *part, error *err)
{
    if (absent(part)) return STATUS_IS_OK;
    post_processors p = {.t = t};
    return load_post_processor(&p, tok_place_make(where, "post_processor").text, part, err);
}

/* ---- decoder ---- */

status tok_load_decoder(const char *where, const json_t *part, error *err)
{
    tok_place place = tok_place_make(where, "decoder");
    if (absent(part))
        return error_set(err, STATUS_UNSUPPORTED, "%s: none is not supported", place.text);
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, place.text, &type, err));
    if (strcmp(type, "ByteLevel") == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", place.text,
                     tok_show(type, strlen(type)).text);
}
