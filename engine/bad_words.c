/* Texts that an answer never has: their tokens, and which of them are forbidden next. */
#include "engine/bad_words.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts to tokens (prepare threads) ------------------------------------------------------- */

static status no_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "bad_words: out of memory");
}

/* Ends the list that began at `from` with the last of the ids. */
static void add_list(bad_words *b, size_t from, size_t to)
{
    uint32_t n = (uint32_t)(to - from);
    b->list[b->n++] = (bad_word){(uint32_t)from, n};
    if (n > b->longest) b->longest = n;
}

/* Adds the lists of one text. */
static status add_text(const tokenizer *t, const char *text, size_t n, bad_words *b, tok_ids *ids,
                       error *err)
{
    while (n && strchr(" \t\n\v\f\r", *text)) text++, n--;
    size_t from = ids->n;
    char *behind_blank = malloc(n + 1);
    if (!behind_blank) return no_memory(err);
    behind_blank[0] = ' ';
    memcpy(behind_blank + 1, text, n);
    status s = tok_encode(t, text, n, false, ids, err);
    size_t middle = ids->n;
    if (status_ok(s) && middle > from) {
        add_list(b, from, middle);
        s = tok_encode(t, behind_blank, n + 1, false, ids, err);
    }
    free(behind_blank);
    RETURN_IF_ERROR(s);
    bool same_length = ids->n - middle == middle - from;
    if (middle > from && same_length && ids->ids[middle] != ids->ids[from])
        add_list(b, middle, ids->n);
    else ids->n = middle;
    return STATUS_IS_OK;
}

status bad_words_create(const tokenizer *t, const json_t *texts, bad_words *out, error *err)
{
    size_t n = json_array_size(texts);
    tok_ids ids = {0};
    status s = STATUS_IS_OK;
    *out = (bad_words){0};
    if (n == 0) return s;
    out->list = calloc(2 * n, sizeof *out->list);
    if (!out->list) return no_memory(err);
    for (size_t i = 0; i < n && status_ok(s); i++) {
        const json_t *text = json_array_get(texts, i);
        s = add_text(t, json_string_value(text), json_string_length(text), out, &ids, err);
    }
    out->ids = ids.ids;
    return s;
}

void bad_words_destroy(bad_words *b)
{
    free(b->ids);
    free(b->list);
    *b = (bad_words){0};
}

/* ---- the answer (engine thread) -------------------------------------------------------------- */

bool bad_words_take(const bad_words *b, bad_words_tail *tail, uint32_t token)
{
    uint32_t most = b->longest ? b->longest - 1 : 0;
    if (most == 0) return true;
    if (!tail->ids) tail->ids = malloc(most * sizeof *tail->ids);
    if (!tail->ids) return false;
    if (tail->n == most) memmove(tail->ids, tail->ids + 1, (most - 1) * sizeof *tail->ids);
    else tail->n++;
    tail->ids[tail->n - 1] = token;
    return true;
}

void bad_words_ban(const bad_words *b, const bad_words_tail *tail, uint32_t *mask, uint32_t vocab)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t *ids = b->ids + b->list[i].from;
        uint32_t before = b->list[i].n - 1, last = ids[before];
        if (before > tail->n || last >= vocab) continue;
        if (before && memcmp(ids, tail->ids + tail->n - before, before * sizeof *ids) != 0)
            continue;
        mask[last / 32] &= ~(1u << last % 32);
    }
}
