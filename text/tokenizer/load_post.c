/* "post_processor" of tokenizer.json: the special tokens around a text. */
#include "text/tokenizer/internal.h"

#include <string.h>

#define SEQUENCE_DEPTH_MAX 4
#define TEMPLATE_IDS_MAX   256

typedef struct post_processors {
    tokenizer *t;
    bool template; /* seen */
    unsigned depth;
} post_processors;

static status load_post_processor(post_processors *p, const char *where, const json_t *part,
                                  error *err);

/* Nothing to do: ByteLevel trims offsets, which are not kept here. */
static status load_trim_offsets(post_processors *p, const char *where, const json_t *part,
                                error *err)
{
    (void)p, (void)where, (void)part, (void)err;
    return STATUS_IS_OK;
}

/* Appends the ids of one {"SpecialToken": {"id": NAME}}, from special_tokens[NAME].ids. */
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
    if (!part || json_is_null(part)) return STATUS_IS_OK;
    post_processors p = {.t = t};
    return load_post_processor(&p, tok_place_make(where, "post_processor").text, part, err);
}
