/* Ids to text: the byte alphabet, whole and streamed. */
#include "model/tokenizer/internal.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* GPT-2's alphabet: the printable characters of Latin-1 stand for themselves, the other 68 bytes
 * for U+0100 and on, in order. */
int tok_alphabet_byte(uint32_t cp)
{
    if ((cp > 32 && cp < 127) || (cp > 160 && cp < 256 && cp != 173)) return (int)cp;
    if (cp < 256 || cp > 256 + 67) return -1;
    uint32_t i = cp - 256;
    return i < 33 ? (int)i : i < 67 ? (int)(127 + i - 33) : 173;
}

bool tok_alphabet_bytes(const char *token, size_t n, uint8_t *out, size_t *n_out)
{
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode((const uint8_t *)token + i, n - i, &cp);
        int byte = tok_alphabet_byte(cp);
        if (byte < 0) return false;
        out[count++] = (uint8_t)byte;
    }
    *n_out = count;
    return true;
}

/* How many bytes one U+FFFD stands for: the longest beginning of a character at s (the Unicode
 * Standard, section 3.9, "maximal subpart"), which is what Rust and Python replace. */
static size_t broken_length(const uint8_t *s, size_t n)
{
    size_t length = 1;
    for (size_t k = 2; k <= 3 && k <= n; k++)
        if (utf8_incomplete_tail(s, k) == k) length = k;
    return length;
}

void tok_repair(strbuf *b, size_t from)
{
    size_t n = b->size - from;
    if (b->failed || n == 0 || utf8_valid((const uint8_t *)b->data + from, n)) return;
    strbuf fixed = {0};
    const uint8_t *s = (const uint8_t *)b->data + from;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t length = utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX) {
            length = broken_length(s + i, n - i);
            strbuf_append(&fixed, replacement, 3);
        } else {
            strbuf_append(&fixed, s + i, length);
        }
        i += length;
    }
    b->size = from;
    strbuf_append(b, fixed.data, fixed.size);
    b->failed = b->failed || fixed.failed;
    strbuf_destroy(&fixed);
}

static status finish(const strbuf *out)
{
    return out->failed ? status_make(STATUS_NO_MEMORY, NULL) : STATUS_IS_OK;
}

status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, strbuf *out,
                  error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= t->n_ids)
            return error_set(err, STATUS_INVALID, "token id %u is not in the vocabulary of %u",
                             ids[i], t->n_ids);
    size_t from = out->size;
    for (size_t i = 0; i < n; i++) {
        const tok_entry *entry = &t->entries[ids[i]];
        if (!(skip_special && entry->special)) strbuf_append(out, entry->bytes, entry->length);
    }
    tok_repair(out, from);
    return finish(out);
}

status tok_token_bytes(const tokenizer *t, uint32_t id, const char **bytes, size_t *n)
{
    if (id >= t->n_ids) return status_make(STATUS_INVALID, "token id is not in the vocabulary");
    *bytes = t->entries[id].bytes ? t->entries[id].bytes : "";
    *n = t->entries[id].length;
    return STATUS_IS_OK;
}

void tok_stream_init(tok_stream *s, const tokenizer *t, bool skip_special)
{
    *s = (tok_stream){.t = t, .skip_special = skip_special};
}

status tok_stream_push(tok_stream *s, uint32_t id, strbuf *out)
{
    if (id >= s->t->n_ids) return status_make(STATUS_INVALID, "token id is not in the vocabulary");
    const tok_entry *entry = &s->t->entries[id];
    if (entry->length == 0 || (s->skip_special && entry->special)) return STATUS_IS_OK;
    size_t from = out->size;
    strbuf_append(out, s->pending, s->n_pending);
    strbuf_append(out, entry->bytes, entry->length);
    RETURN_IF_ERROR(finish(out));
    s->n_pending =
        (uint8_t)utf8_incomplete_tail((const uint8_t *)out->data + from, out->size - from);
    out->size -= s->n_pending;
    memcpy(s->pending, out->data + out->size, s->n_pending);
    out->data[out->size] = 0;
    tok_repair(out, from);
    return finish(out);
}

void tok_stream_finish(tok_stream *s, strbuf *out)
{
    if (s->n_pending > 0) strbuf_append(out, replacement, 3);
    s->n_pending = 0;
}
