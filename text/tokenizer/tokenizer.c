/* Turns text into ids: repair, added tokens, normalizer, added tokens again, pre-tokenizer, BPE,
 * template. */
#include "text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX (1u << 30) /* positions in one word have 32 bits */

typedef struct encoder {
    const tokenizer *t;
    tok_bpe_scratch bpe;
    tok_steps_scratch steps;
    strbuf normalized[2];
    const uint8_t *start; /* start of the text, or of its first part once normalised */
    tok_ids *out;
    error *err;
} encoder;

static status visit_word(void *ctx, const uint8_t *word, size_t n)
{
    encoder *e = ctx;
    if (tok_bpe_encode_word(&e->t->bpe, &e->bpe, word, n, e->out)) return STATUS_IS_OK;
    return status_make(STATUS_NO_MEMORY, NULL);
}

static status append_id(encoder *e, uint32_t id)
{
    if (!tok_ids_reserve(e->out, 1)) return status_make(STATUS_NO_MEMORY, NULL);
    e->out->ids[e->out->n++] = id;
    return STATUS_IS_OK;
}

static status append_ids(encoder *e, const tok_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) RETURN_IF_ERROR(append_id(e, ids->ids[i]));
    return STATUS_IS_OK;
}

static status visit_normalized(void *ctx, const uint8_t *text, size_t n, uint32_t id)
{
    encoder *e = ctx;
    if (id != TOK_NONE) return append_id(e, id);
    return tok_steps_run(&e->t->steps, &e->steps, text, n, text == e->start, visit_word, e, e->err);
}

static status visit_raw(void *ctx, const uint8_t *text, size_t n, uint32_t id)
{
    encoder *e = ctx;
    if (id != TOK_NONE) return append_id(e, id);
    bool first = text == e->start;
    status s = tok_normalizers_run(&e->t->normalizers, &text, &n, e->normalized);
    if (s.code == STATUS_LIMIT)
        return error_set(e->err, s.code, "text is longer than %u bytes when it is normalized",
                         TOK_NORMALIZED_BYTES_MAX);
    RETURN_IF_ERROR(s);
    e->start = first ? text : NULL;
    return tok_added_set_split(&e->t->normalized_pass, text, n, visit_normalized, e);
}

static status encode_text(encoder *e, const uint8_t *text, size_t n, bool add_special)
{
    if (add_special) RETURN_IF_ERROR(append_ids(e, &e->t->prefix));
    e->start = text;
    RETURN_IF_ERROR(tok_added_set_split(&e->t->raw_pass, text, n, visit_raw, e));
    return add_special ? append_ids(e, &e->t->suffix) : STATUS_IS_OK;
}

status tok_encode(const tokenizer *t, const char *text, size_t n, bool add_special, tok_ids *out,
                  error *err)
{
    if (n > TEXT_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "text of %zu bytes is longer than %u", n,
                         TEXT_BYTES_MAX);
    encoder e = {.t = t, .steps = tok_steps_scratch_make(n), .out = out, .err = err};
    strbuf repaired = {0};
    status s = status_make(STATUS_NO_MEMORY, NULL);
    size_t n_before = out->n;
    if (!utf8_valid((const uint8_t *)text, n)) {
        strbuf_append(&repaired, text, n);
        tok_repair(&repaired, 0);
        text = repaired.data;
        n = repaired.size;
    }
    if (!repaired.failed && tok_bpe_scratch_create(&e.bpe, n))
        s = encode_text(&e, (const uint8_t *)text, n, add_special);
    if (!status_ok(s)) out->n = n_before;
    if (s.code == STATUS_NO_MEMORY)
        error_set(err, s.code, "out of memory for a text of %zu bytes", n);
    tok_bpe_scratch_destroy(&e.bpe);
    tok_steps_scratch_destroy(&e.steps);
    strbuf_destroy(&e.normalized[0]);
    strbuf_destroy(&e.normalized[1]);
    strbuf_destroy(&repaired);
    return s;
}

void tok_ids_destroy(tok_ids *ids)
{
    free(ids->ids);
    *ids = (tok_ids){0};
}

uint32_t tok_vocab_size(const tokenizer *t) { return t->n_ids; }

uint32_t tok_model_find(const tokenizer *t, const char *token, size_t n)
{
    uint8_t bytes[TOK_TOKEN_BYTES_MAX];
    size_t n_bytes;
    if (!t->byte_level) return tok_map_find(&t->words, token, n);
    if (n > sizeof bytes) return TOK_NONE;
    if (tok_alphabet_bytes(token, n, bytes, &n_bytes))
        return tok_map_find(&t->words, bytes, n_bytes);
    return tok_map_find(&t->others, token, n);
}

int32_t tok_find(const tokenizer *t, const char *token, size_t n)
{
    uint32_t id = tok_map_find(&t->added, token, n);
    if (id == TOK_NONE) id = tok_model_find(t, token, n);
    return id == TOK_NONE ? -1 : (int32_t)id;
}

bool tok_is_special(const tokenizer *t, uint32_t id)
{
    return id < t->n_ids && t->entries[id].special;
}
