/* "model" of tokenizer.json: vocabulary and merges of a BPE. */
#include "text/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

#define MERGES_MAX (1u << 24)
#define ADDED_MAX  (1u << 20)
/* Ids may have holes, but a small file that claims huge ids gets no huge table. */
#define HOLES_MAX (1u << 20)

static status load_token(tokenizer *t, const char *where, const char *token, size_t n,
                         const json_t *id, error *err)
{
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > TOK_ID_MAX)
        return error_set(err, STATUS_CORRUPT, "%s: the id of \"%s\" must be an integer in [0, %u]",
                         where, tok_show(token, n).text, TOK_ID_MAX);
    if (n > TOK_TOKEN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: token %d has %zu bytes, more than %d", where,
                         (int)value, n, TOK_TOKEN_BYTES_MAX);
    if (t->entries[value].bytes)
        return error_set(err, STATUS_CORRUPT, "%s: two tokens have id %d, one is \"%s\"", where,
                         (int)value, tok_show(token, n).text);
    uint8_t bytes[TOK_TOKEN_BYTES_MAX];
    size_t n_bytes = n;
    bool spelled = t->byte_level && tok_alphabet_bytes(token, n, bytes, &n_bytes);
    bool word = spelled || !t->byte_level;
    char *kept = arena_strndup(&t->strings, spelled ? (const char *)bytes : token, n_bytes);
    if (!kept) return status_make(STATUS_NO_MEMORY, NULL);
    t->entries[value] = (tok_entry){.bytes = kept, .length = (uint16_t)n_bytes};
    if (value >= t->n_ids) t->n_ids = (uint32_t)value + 1;
    tok_map_put(word ? &t->words : &t->others, kept, n_bytes, (uint32_t)value);
    return STATUS_IS_OK;
}

static status load_vocab(tokenizer *t, const char *where, const json_t *vocab, size_t n_added,
                         error *err)
{
    if (!json_is_object(vocab))
        return error_set(err, STATUS_CORRUPT, "%s: must be an object", where);
    size_t n = json_object_size(vocab), n_others = 0;
    if (n > TOK_ID_MAX || n_added > ADDED_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %u tokens", where, TOK_ID_MAX);
    json_int_t id_max = 0;
    uint8_t bytes[TOK_TOKEN_BYTES_MAX];
    void *it = json_object_iter((json_t *)vocab);
    for (; it; it = json_object_iter_next((json_t *)vocab, it)) {
        json_int_t id = json_integer_value(json_object_iter_value(it));
        if (id > id_max) id_max = id;
        size_t length = json_object_iter_key_len(it), n_bytes;
        n_others += t->byte_level &&
                    (length > sizeof bytes ||
                     !tok_alphabet_bytes(json_object_iter_key(it), length, bytes, &n_bytes));
    }
    if (id_max > TOK_ID_MAX || (size_t)id_max > n * 8 + HOLES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: id %lld is too large for %zu tokens", where,
                         (long long)id_max, n);
    /* Added tokens that the vocabulary lacks get consecutive ids from its size on. */
    size_t room = (size_t)id_max + 1 > n ? (size_t)id_max + 1 : n;
    t->entries = alloc_zeroed(NULL, room + n_added, sizeof *t->entries);
    if (!t->entries || !tok_map_create(&t->words, n - n_others) ||
        !tok_map_create(&t->others, n_others))
        return status_make(STATUS_NO_MEMORY, NULL);
    for (it = json_object_iter((json_t *)vocab); it;
         it = json_object_iter_next((json_t *)vocab, it))
        RETURN_IF_ERROR(load_token(t, where, json_object_iter_key(it), json_object_iter_key_len(it),
                                   json_object_iter_value(it), err));
    return STATUS_IS_OK;
}

/* Splits a merge, "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char *half[2], size_t length[2])
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge);
        size_t n = json_string_length(merge);
        const char *space = memchr(s, ' ', n);
        if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s))) return false;
        half[0] = s;
        length[0] = (size_t)(space - s);
        half[1] = space + 1;
        length[1] = n - length[0] - 1;
        return true;
    }
    if (json_array_size(merge) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(merge, i);
        if (!json_is_string(item)) return false;
        half[i] = json_string_value(item);
        length[i] = json_string_length(item);
    }
    return true;
}

/* Whether a U+2581 follows some other character. */
static bool goes_over_metaspace(const char *token, size_t n)
{
    size_t at = 0;
    while (n - at >= 3 && memcmp(token + at, TOK_METASPACE, 3) == 0) at += 3;
    return memmem(token + at, n - at, TOK_METASPACE, 3) != NULL;
}

static status load_merge(tokenizer *t, const char *where, size_t index, uint32_t rank,
                         const json_t *merge, error *err)
{
    const char *half[2];
    size_t length[2];
    if (!merge_halves(merge, half, length))
        return error_set(err, STATUS_CORRUPT, "%s[%zu]: must be \"a b\" or [\"a\", \"b\"]", where,
                         index);
    uint32_t id[3] = {tok_model_find(t, half[0], length[0]), tok_model_find(t, half[1], length[1]),
                      TOK_NONE};
    char both[2 * TOK_TOKEN_BYTES_MAX];
    both[0] = 0;
    if (id[0] != TOK_NONE && id[1] != TOK_NONE) {
        memcpy(both, half[0], length[0]);
        memcpy(both + length[0], half[1], length[1]);
        id[2] = tok_model_find(t, both, length[0] + length[1]);
        if (goes_over_metaspace(both, length[0] + length[1])) t->cut_at_metaspace = false;
    }
    for (unsigned i = 0; i < 3; i++) {
        if (id[i] != TOK_NONE) continue;
        tok_shown token =
            i < 2 ? tok_show(half[i], length[i]) : tok_show(both, length[0] + length[1]);
        return error_set(err, STATUS_CORRUPT, "%s[%zu]: \"%s\" is not in the vocabulary", where,
                         index, token.text);
    }
    tok_bpe_add_merge(&t->bpe, id[0], id[1], rank, id[2]);
    return STATUS_IS_OK;
}

static status load_merges(tokenizer *t, const char *where, const json_t *merges, error *err)
{
    if (!json_is_array(merges))
        return error_set(err, STATUS_CORRUPT, "%s: must be an array", where);
    size_t n = json_array_size(merges);
    if (n > MERGES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %u merges", where, MERGES_MAX);
    if (!tok_bpe_create(&t->bpe, n)) return status_make(STATUS_NO_MEMORY, NULL);
    uint32_t rank = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *merge = json_array_get(merges, i);
        /* A merges.txt that was copied into the list begins with a version line. */
        const char *text = json_string_value(merge);
        if (text && strncmp(text, "#version", 8) == 0) continue;
        RETURN_IF_ERROR(load_merge(t, where, i, rank++, merge, err));
    }
    return STATUS_IS_OK;
}

static status refuse_flags(const char *where, const json_t *model, error *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (unsigned i = 0; i < 2; i++) {
        const char *affix;
        RETURN_IF_ERROR(json_get_string(model, where, affixes[i], &affix, err));
        if (affix && affix[0])
            return error_set(err, STATUS_UNSUPPORTED, "%s: %s is not supported", where, affixes[i]);
    }
    double dropout;
    RETURN_IF_ERROR(json_get_double(model, where, "dropout", 0, 1, 0, &dropout, err));
    if (dropout != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: dropout is not supported", where);
    return STATUS_IS_OK;
}

/* Finds the tokens that stand for bytes, "<0x00>" to "<0xFF>". */
static void find_fallback(tokenizer *t)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        t->bpe.fallback[b] = tok_model_find(t, name, 6);
    }
}

/* Sets up the tokens that a word is first split into, one for each byte or character. */
static status load_symbols(tokenizer *t, const char *where, const json_t *model, error *err)
{
    bool all = t->byte_level, byte_fallback;
    for (unsigned b = 0; t->byte_level && b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        t->bpe.byte_id[b] = tok_map_find(&t->words, &byte, 1);
        all = all && t->bpe.byte_id[b] != TOK_NONE;
    }
    RETURN_IF_ERROR(json_get_bool(model, where, "byte_fallback", false, &byte_fallback, err));
    if (byte_fallback && t->byte_level && !all)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: byte_fallback with ByteLevel is not supported", where);
    if (byte_fallback && !t->byte_level) find_fallback(t);
    if (!t->byte_level && !tok_bpe_set_characters(&t->bpe, &t->words))
        return status_make(STATUS_NO_MEMORY, NULL);
    const char *unk;
    RETURN_IF_ERROR(json_get_string(model, where, "unk_token", &unk, err));
    if (!unk || all) return STATUS_IS_OK;
    t->bpe.unk_id = tok_model_find(t, unk, strlen(unk));
    if (t->bpe.unk_id == TOK_NONE)
        return error_set(err, STATUS_CORRUPT, "%s: unk_token \"%s\" is not in the vocabulary",
                         where, tok_show(unk, strlen(unk)).text);
    return json_get_bool(model, where, "fuse_unk", false, &t->bpe.fuse_unk, err);
}

static status load_bpe(tokenizer *t, const char *where, const json_t *model, size_t n_added,
                       error *err)
{
    RETURN_IF_ERROR(refuse_flags(where, model, err));
    tok_place vocab = tok_place_make(where, "vocab"), merges = tok_place_make(where, "merges");
    RETURN_IF_ERROR(load_vocab(t, vocab.text, json_object_get(model, "vocab"), n_added, err));
    t->cut_at_metaspace = !t->byte_level && tok_model_find(t, TOK_METASPACE, 3) != TOK_NONE;
    RETURN_IF_ERROR(load_merges(t, merges.text, json_object_get(model, "merges"), err));
    RETURN_IF_ERROR(load_symbols(t, where, model, err));
    bool ignore_merges;
    RETURN_IF_ERROR(json_get_bool(model, where, "ignore_merges", false, &ignore_merges, err));
    if (ignore_merges) t->bpe.words = &t->words;
    t->cut_at_metaspace = t->cut_at_metaspace && !ignore_merges;
    return STATUS_IS_OK;
}

status tok_load_model(tokenizer *t, const char *where, const json_t *model, size_t n_added,
                      error *err)
{
    static const struct {
        const char *type;
        status (*load)(tokenizer *, const char *, const json_t *, size_t, error *);
    } rows[] = {
        {"BPE", load_bpe},
    };
    tok_place place = tok_place_make(where, "model");
    if (!json_is_object(model))
        return error_set(err, STATUS_CORRUPT, "%s: must be an object", place.text);
    const char *type;
    RETURN_IF_ERROR(json_get_string(model, place.text, "type", &type, err));
    if (!type && json_object_get(model, "merges")) type = "BPE"; /* files of 2020 have no type */
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0)
            return rows[i].load(t, place.text, model, n_added, err);
    if (!type) return error_set(err, STATUS_CORRUPT, "%s: no \"type\"", place.text);
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", place.text,
                     tok_show(type, strlen(type)).text);
}
