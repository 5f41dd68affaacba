/* "added_tokens" of tokenizer.json.
 *
 * The library ignores the ids in the file. It adds the tokens one by one: a token that the
 * vocabulary has keeps its id there, any other gets the next free id. This code does the same, with
 * repetitions and overlaps. */
#include "text/tokenizer/internal.h"

#include <string.h>

#define PATTERN_BYTES_MAX (16u << 20) /* of all added tokens together: bounds the automaton */

typedef struct record {
    const char *content; /* NUL-terminated, in the tokenizer's strings */
    const char
        *normalized; /* what the normalizer makes of it when that is something else, or NULL */
    size_t length, normalized_length;
    uint32_t id;
    bool single_word, lstrip, rstrip, normal, special;
    bool ever_special; /* some entry with this content is special */
    bool dead;         /* a later token took its id */
} record;

typedef struct adding {
    tokenizer *t;
    record *records;
    size_t n_records;
    uint32_t *record_of; // [ids] index of the record that has the id, or TOK_NONE
    uint32_t next_id;
    size_t bytes;
} adding;

static status normalize_content(adding *a, record *r)
{
    strbuf buffers[2] = {{0}, {0}};
    const uint8_t *text = (const uint8_t *)r->content;
    size_t n = r->length;
    status s = tok_normalizers_run(&a->t->normalizers, &text, &n, buffers);
    if (status_ok(s) && (n != r->length || memcmp(text, r->content, n) != 0)) {
        r->normalized = arena_strndup(&a->t->strings, (const char *)text, n);
        r->normalized_length = n;
        a->bytes += n;
        if (!r->normalized) s = status_make(STATUS_NO_MEMORY, NULL);
    }
    strbuf_destroy(&buffers[0]);
    strbuf_destroy(&buffers[1]);
    return s;
}

static status read_token(const json_t *item, const char *where, record *r, error *err)
{
    *r = (record){0};
    if (!json_is_object(item))
        return error_set(err, STATUS_CORRUPT, "%s: must be an object", where);
    int64_t id;
    RETURN_IF_ERROR(json_get_int(item, where, "id", 0, TOK_ID_MAX, -1, &id, err));
    if (id < 0) return error_set(err, STATUS_CORRUPT, "%s: no \"id\"", where);
    RETURN_IF_ERROR(json_get_string(item, where, "content", &r->content, err));
    if (!r->content) return error_set(err, STATUS_CORRUPT, "%s: no \"content\"", where);
    r->length = strlen(r->content);
    if (r->length > TOK_TOKEN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"content\" has more than %d bytes", where,
                         TOK_TOKEN_BYTES_MAX);
    RETURN_IF_ERROR(json_get_bool(item, where, "single_word", false, &r->single_word, err));
    RETURN_IF_ERROR(json_get_bool(item, where, "lstrip", false, &r->lstrip, err));
    RETURN_IF_ERROR(json_get_bool(item, where, "rstrip", false, &r->rstrip, err));
    RETURN_IF_ERROR(json_get_bool(item, where, "normalized", true, &r->normal, err));
    return json_get_bool(item, where, "special", false, &r->special, err);
}

static status add_record(adding *a, const record *token)
{
    if (token->length == 0) return STATUS_IS_OK;
    uint32_t index = tok_map_find(&a->t->added, token->content, token->length);
    record *r;
    if (index == TOK_NONE) {
        index = (uint32_t)a->n_records;
        r = &a->records[a->n_records++];
        *r = *token;
        r->content = arena_strndup(&a->t->strings, token->content, token->length);
        if (!r->content) return status_make(STATUS_NO_MEMORY, NULL);
        a->bytes += r->length;
        r->id = tok_model_find(a->t, r->content, r->length);
        if (r->id == TOK_NONE) r->id = a->next_id++;
        tok_map_put(&a->t->added, r->content, r->length, index);
    } else {
        r = &a->records[index];
        r->single_word = token->single_word;
        r->lstrip = token->lstrip;
        r->rstrip = token->rstrip;
        r->normal = token->normal;
        r->special = token->special;
        r->dead = false;
    }
    r->ever_special = r->ever_special || r->special;
    if (r->normal && !r->normalized) RETURN_IF_ERROR(normalize_content(a, r));
    uint32_t before = a->record_of[r->id];
    if (before != TOK_NONE && before != index) a->records[before].dead = true;
    a->record_of[r->id] = index;
    return STATUS_IS_OK;
}

/* Sets the decoded text of an added token's id, and whether skip_special leaves it out. Both go by
 * the normalised spelling. */
static status set_entry(adding *a, const record *r)
{
    const char *token = r->normalized ? r->normalized : r->content;
    size_t n = r->normalized ? r->normalized_length : r->length, n_bytes = n;
    if (n > UINT16_MAX) return status_make(STATUS_LIMIT, "an added token is too long");
    char *bytes = arena_alloc(&a->t->strings, n + 1);
    if (!bytes) return status_make(STATUS_NO_MEMORY, NULL);
    if (!a->t->byte_level || !tok_alphabet_bytes(token, n, (uint8_t *)bytes, &n_bytes)) {
        memcpy(bytes, token, n);
        n_bytes = n;
    }
    uint32_t same = tok_map_find(&a->t->added, token, n);
    a->t->entries[r->id] =
        (tok_entry){.bytes = bytes,
                    .length = (uint16_t)n_bytes,
                    .special = same != TOK_NONE && a->records[same].ever_special};
    if (r->id >= a->t->n_ids) a->t->n_ids = r->id + 1;
    return STATUS_IS_OK;
}

static size_t collect_tokens(adding *a, bool normal, tok_added_token *out)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n_records; i++) {
        const record *r = &a->records[i];
        if (r->dead || r->normal != normal) continue;
        bool other = normal && r->normalized;
        out[n++] = (tok_added_token){.pattern = other ? r->normalized : r->content,
                                     .length = (uint32_t)(other ? r->normalized_length : r->length),
                                     .id = r->id,
                                     .single_word = r->single_word,
                                     .lstrip = r->lstrip,
                                     .rstrip = r->rstrip};
    }
    return n;
}

static status build_sets(adding *a)
{
    tokenizer *t = a->t;
    t->added_tokens = alloc_zeroed(NULL, a->n_records, sizeof *t->added_tokens);
    if (!t->added_tokens) return status_make(STATUS_NO_MEMORY, NULL);
    for (size_t i = 0; i < a->n_records; i++)
        if (!a->records[i].dead) RETURN_IF_ERROR(set_entry(a, &a->records[i]));
    size_t n_raw = collect_tokens(a, false, t->added_tokens);
    size_t n_normalized = collect_tokens(a, true, t->added_tokens + n_raw);
    RETURN_IF_ERROR(tok_added_set_create(&t->raw_pass, t->added_tokens, n_raw));
    RETURN_IF_ERROR(
        tok_added_set_create(&t->normalized_pass, t->added_tokens + n_raw, n_normalized));
    /* So far the map gave indices of records; from now on it gives ids. */
    for (size_t i = 0; i < a->n_records; i++)
        tok_map_put(&t->added, a->records[i].content, a->records[i].length, a->records[i].id);
    return STATUS_IS_OK;
}

static status add_all(adding *a, const char *where, const json_t *list, error *err)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        tok_place place = tok_place_make(where, "added_tokens[%zu]", i);
        record token;
        RETURN_IF_ERROR(read_token(json_array_get(list, i), place.text, &token, err));
        RETURN_IF_ERROR(add_record(a, &token));
        if (a->bytes > PATTERN_BYTES_MAX || a->next_id > TOK_ID_MAX)
            return error_set(err, STATUS_LIMIT, "%s: too many added tokens", place.text);
    }
    status s = build_sets(a);
    return s.code == STATUS_LIMIT ? error_set(err, s.code, "%s: added_tokens: %s", where, s.message)
                                  : s;
}

status tok_load_added_tokens(tokenizer *t, const char *where, const json_t *list, error *err)
{
    if (list && !json_is_null(list) && !json_is_array(list))
        return error_set(err, STATUS_CORRUPT, "%s: added_tokens must be an array", where);
    size_t n = json_array_size(list);
    if (!tok_map_create(&t->added, n)) return status_make(STATUS_NO_MEMORY, NULL);
    if (n == 0) return STATUS_IS_OK;
    /* tok_load_model made the table of entries large enough for n more. */
    uint32_t n_model = 0;
    for (uint32_t id = 0; id < t->n_ids; id++) n_model += t->entries[id].bytes != NULL;
    size_t n_ids = (t->n_ids > n_model ? t->n_ids : n_model) + n;
    adding a = {.t = t, .next_id = n_model};
    a.records = alloc_zeroed(NULL, n, sizeof *a.records);
    a.record_of = alloc_resize(NULL, NULL, n_ids, sizeof *a.record_of);
    status s = status_make(STATUS_NO_MEMORY, NULL);
    if (a.records && a.record_of) {
        memset(a.record_of, 0xff, n_ids * sizeof *a.record_of);
        s = add_all(&a, where, list, err);
    }
    alloc_free(NULL, a.records);
    alloc_free(NULL, a.record_of);
    return s;
}
