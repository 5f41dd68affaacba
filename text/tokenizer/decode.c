/* Ids to text, whole and streamed. */
#include "text/tokenizer/internal.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* GPT-2's alphabet: the printable characters of Latin-1 stand for themselves, the other 68 bytes
 * for U+0100 and on, in order. */
static int tok_alphabet_byte(uint32_t cp)
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

/* How many bytes at s one U+FFFD replaces: the longest beginning of a character (the Unicode
 * Standard, section 3.9, "maximal subpart"), as in Rust and Python. */
static size_t broken_length(const uint8_t *s, size_t n)
{
    size_t length = 1;
    for (size_t k = 2; k <= 3 && k <= n; k++)
        if (utf8_incomplete_tail(s, k) == k) length = k;
    return length;
}

/* The length of the character at s, or of the bytes (at most three) that one U+FFFD replaces. */
static size_t next_length(const uint8_t *s, size_t n, bool *broken)
{
    uint32_t cp;
    size_t length = utf8_decode(s, n, &cp);
    *broken = cp == UINT32_MAX;
    return *broken ? broken_length(s, n) : length;
}

/* How many bytes longer the text is once it is repaired. */
static size_t repair_growth(const uint8_t *s, size_t n)
{
    size_t growth = 0;
    bool broken;
    for (size_t i = 0, length; i < n; i += length) {
        length = next_length(s + i, n - i, &broken);
        if (broken) growth += 3 - length;
    }
    return growth;
}

/* Works in place: the text moves up by its growth, and no byte is overwritten before it is read. */
void tok_repair(strbuf *b, size_t from)
{
    size_t n = b->size - from;
    if (b->failed || n == 0 || utf8_valid((const uint8_t *)b->data + from, n)) return;
    size_t growth = repair_growth((const uint8_t *)b->data + from, n);
    if (!strbuf_reserve(b, growth)) return;
    uint8_t *to = (uint8_t *)b->data + from, *s = to + growth;
    memmove(s, to, n);
    bool broken;
    for (size_t i = 0, length; i < n; i += length) {
        length = next_length(s + i, n - i, &broken);
        memmove(to, broken ? (const uint8_t *)replacement : s + i, broken ? 3 : length);
        to += broken ? 3 : length;
    }
    b->size += growth;
    b->data[b->size] = 0;
}

static status finish_text(const strbuf *out)
{
    return out->failed ? status_make(STATUS_NO_MEMORY, NULL) : STATUS_IS_OK;
}

static void append_replacements(strbuf *out, size_t n)
{
    for (size_t i = 0; i < n; i++) strbuf_append(out, replacement, 3);
}

/* Ends a run of byte tokens. If the run is not UTF-8 as a whole, U+FFFD replaces every byte of
 * it. */
static void close_run(strbuf *out, size_t from)
{
    size_t n = out->size - from;
    if (n == 0 || out->failed || utf8_valid((const uint8_t *)out->data + from, n)) return;
    out->size = from;
    append_replacements(out, n);
}

/* Drops at most `most` spaces at the start of the appended text. */
static unsigned drop_spaces(strbuf *out, size_t from, unsigned most)
{
    unsigned n = 0;
    while (n < most && from + n < out->size && out->data[from + n] == ' ') n++;
    if (n == 0) return 0;
    out->size -= n;
    memmove(out->data + from, out->data + from + n, out->size - from);
    out->data[out->size] = 0;
    return n;
}

status tok_decode(const tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, strbuf *out,
                  error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= t->n_ids)
            return error_set(err, STATUS_INVALID, "token id %u is not in the vocabulary of %u",
                             ids[i], t->n_ids);
    size_t from = out->size, run = out->size;
    const tok_entry *entries = t->firsts ? t->firsts : t->entries;
    for (size_t i = 0; i < n; i++) {
        const tok_entry *entry = &entries[ids[i]];
        if (!entry->bytes || (skip_special && entry->special)) continue;
        entries = t->entries;
        if (!entry->byte && !t->byte_level) close_run(out, run);
        strbuf_append(out, entry->bytes, entry->length);
        if (!entry->byte) run = out->size;
    }
    if (t->byte_level) tok_repair(out, from);
    else close_run(out, run);
    if (out->failed) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    drop_spaces(out, from, t->strip);
    return STATUS_IS_OK;
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
    *s = (tok_stream){.t = t, .skip_special = skip_special, .first = true, .strip = t->strip};
}

void tok_stream_resume(tok_stream *s)
{
    s->first = false;
    s->strip = 0;
}

/* Takes one byte of a character that ByteFallback puts together. */
static void push_byte(tok_stream *s, uint8_t byte, strbuf *out)
{
    s->pending[s->n_pending++] = byte;
    if (utf8_valid(s->pending, s->n_pending)) {
        strbuf_append(out, s->pending, s->n_pending);
        s->n_pending = 0;
    } else if (utf8_incomplete_tail(s->pending, s->n_pending) != s->n_pending) {
        /* The byte ends the pending character, and may itself start one. */
        bool alone = s->n_pending == 1;
        append_replacements(out, alone ? 1 : s->n_pending - 1u);
        s->n_pending = 0;
        if (!alone) push_byte(s, byte, out);
    }
}

static void push_characters(tok_stream *s, const tok_entry *entry, strbuf *out)
{
    if (entry->byte) {
        push_byte(s, (uint8_t)entry->bytes[0], out);
        return;
    }
    append_replacements(out, s->n_pending);
    s->n_pending = 0;
    strbuf_append(out, entry->bytes, entry->length);
}

static void push_bytes(tok_stream *s, const tok_entry *entry, strbuf *out)
{
    size_t from = out->size;
    strbuf_append(out, s->pending, s->n_pending);
    strbuf_append(out, entry->bytes, entry->length);
    if (out->failed || out->size == from) return;
    s->n_pending =
        (uint8_t)utf8_incomplete_tail((const uint8_t *)out->data + from, out->size - from);
    out->size -= s->n_pending;
    memcpy(s->pending, out->data + out->size, s->n_pending);
    out->data[out->size] = 0;
    tok_repair(out, from);
}

/* Drops spaces at the text's start until the first other character. */
static void strip_start(tok_stream *s, strbuf *out, size_t from)
{
    if (s->strip == 0 || out->failed || out->size == from) return;
    s->strip -= drop_spaces(out, from, s->strip);
    if (out->size > from) s->strip = 0;
}

status tok_stream_push(tok_stream *s, uint32_t id, strbuf *out)
{
    const tokenizer *t = s->t;
    if (id >= t->n_ids) return status_make(STATUS_INVALID, "token id is not in the vocabulary");
    const tok_entry *entry = s->first && t->firsts ? &t->firsts[id] : &t->entries[id];
    if (!entry->bytes || (s->skip_special && entry->special)) return STATUS_IS_OK;
    s->first = false;
    size_t from = out->size;
    if (t->byte_level) push_bytes(s, entry, out);
    else push_characters(s, entry, out);
    strip_start(s, out, from);
    return finish_text(out);
}

void tok_stream_finish(tok_stream *s, strbuf *out)
{
    if (s->n_pending > 0) append_replacements(out, s->t->byte_level ? 1 : s->n_pending);
    s->n_pending = 0;
}
