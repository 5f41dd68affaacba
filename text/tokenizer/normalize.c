#include "text/tokenizer/normalize.h"

#include "text/tokenizer/unicode.h"

#include <string.h>
#include <utf8proc.h>

/* A canonical decomposition has at most four code points (UAX #15, table of expansion factors). */
#define DECOMPOSED_MAX    4
#define SMALL_CODE_POINTS 8 /* shorter segments need no allocation */

status tok_normalizers_run(const tok_normalizers *list, const uint8_t **text, size_t *n,
                           strbuf buffers[2])
{
    for (unsigned i = 0; i < list->n_steps; i++) {
        strbuf *out = *text == (const uint8_t *)buffers[0].data ? &buffers[1] : &buffers[0];
        strbuf_clear(out);
        RETURN_IF_ERROR(list->steps[i].run(&list->steps[i], text, n, out));
    }
    return STATUS_IS_OK;
}

static status take_text(const strbuf *out, const uint8_t **text, size_t *n)
{
    if (out->failed) return status_make(STATUS_NO_MEMORY, NULL);
    *text = (const uint8_t *)out->data;
    *n = out->size;
    return STATUS_IS_OK;
}

status tok_normalize_prepend(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out)
{
    if (*n == 0 || step->n_content == 0) return STATUS_IS_OK;
    strbuf_reserve(out, step->n_content + *n);
    strbuf_append(out, step->content, step->n_content);
    strbuf_append(out, *text, *n);
    return take_text(out, text, n);
}

status tok_normalize_replace(const tok_normalizer *step, const uint8_t **text, size_t *n,
                             strbuf *out)
{
    const uint8_t *from = *text, *end = *text + *n;
    const uint8_t *found = memmem(from, *n, step->pattern, step->n_pattern);
    if (!found) return STATUS_IS_OK;
    for (; found; found = memmem(from, (size_t)(end - from), step->pattern, step->n_pattern)) {
        if (out->size > TOK_NORMALIZED_BYTES_MAX) return status_make(STATUS_LIMIT, NULL);
        strbuf_append(out, from, (size_t)(found - from));
        strbuf_append(out, step->content, step->n_content);
        from = found + step->n_pattern;
    }
    strbuf_append(out, from, (size_t)(end - from));
    if (out->size > 0 || out->failed) return take_text(out, text, n);
    *n = 0;
    return STATUS_IS_OK;
}

/* Sorts a run of marks by combining class, by a stable counting sort: utf8proc's own ordering is
 * quadratic, and a hostile text can make the run arbitrarily long. */
static void order_marks(int32_t *cps, size_t n, int32_t *spare)
{
    size_t place[256] = {0};
    bool sorted = true;
    int last = 0;
    for (size_t i = 0; i < n; i++) {
        int class = utf8proc_get_property(cps[i])->combining_class;
        sorted = sorted && class >= last;
        last = class;
        place[class]++;
    }
    if (sorted) return;
    size_t total = 0;
    for (unsigned c = 0; c < 256; c++) {
        size_t count = place[c];
        place[c] = total;
        total += count;
    }
    for (size_t i = 0; i < n; i++)
        spare[place[utf8proc_get_property(cps[i])->combining_class]++] = cps[i];
    memcpy(cps, spare, n * sizeof *cps);
}

/* Appends the normal form of one segment: at most one inert starter, then active code points. */
static status normalize_segment(const uint8_t *text, size_t n, strbuf *out)
{
    int32_t small[SMALL_CODE_POINTS * DECOMPOSED_MAX * 2];
    size_t room = (n / 2 + 1) * DECOMPOSED_MAX; /* active code points have at least two bytes */
    int32_t *cps = small;
    if (room > SMALL_CODE_POINTS * DECOMPOSED_MAX) {
        cps = alloc_resize(NULL, NULL, room * 2, sizeof *cps);
        if (!cps) return status_make(STATUS_NO_MEMORY, NULL);
    }
    int32_t *spare = cps + room;
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        unsigned length;
        int32_t cp = (int32_t)tok_unicode_read(text + i, &length);
        int boundary = 0;
        count += (size_t)utf8proc_decompose_char(cp, cps + count, DECOMPOSED_MAX,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        i += length;
    }
    for (size_t i = 0; i < count;) { /* sort the marks between starters */
        size_t end = i;
        while (end < count && utf8proc_get_property(cps[end])->combining_class != 0) end++;
        order_marks(cps + i, end - i, spare);
        i = end + 1;
    }
    size_t composed = (size_t)utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)count,
                                                       UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (size_t i = 0; i < composed; i++) {
        uint8_t bytes[4];
        unsigned length = utf8_encode((uint32_t)cps[i], bytes);
        strbuf_append(out, bytes, length);
    }
    if (cps != small) alloc_free(NULL, cps);
    return STATUS_IS_OK;
}

/* The first byte of the first active code point at or after `from`, or n. */
static size_t find_active(const uint8_t *text, size_t n, size_t from)
{
    while (from < n) {
        if (text[from] < 0xcc) { /* U+0300 is the first active code point */
            from += text[from] < 0x80 ? 1 : 2;
            continue;
        }
        unsigned length;
        if (tok_unicode_class(tok_unicode_read(text + from, &length)) & UNICODE_NFC_ACTIVE) break;
        from += length;
    }
    return from;
}

status tok_normalize_nfc(const tok_normalizer *step, const uint8_t **text, size_t *n, strbuf *out)
{
    (void)step;
    const uint8_t *s = *text;
    size_t active = find_active(s, *n, 0);
    if (active == *n) return STATUS_IS_OK;
    size_t copied = 0;
    while (active < *n) {
        /* An inert starter right before the active code point may combine with it, and joins the
         * segment. A starter that only later versions of Unicode know must not combine and stays
         * outside. */
        size_t start = active;
        if (start > copied) {
            uint32_t cp = tok_unicode_read_before(s + start);
            uint8_t bytes[4];
            if (!(tok_unicode_class(cp) & UNICODE_NFC_NEWER)) start -= utf8_encode(cp, bytes);
        }
        size_t end = active;
        while (end < *n) {
            unsigned length;
            if (!(tok_unicode_class(tok_unicode_read(s + end, &length)) & UNICODE_NFC_ACTIVE))
                break;
            end += length;
        }
        strbuf_append(out, s + copied, start - copied);
        RETURN_IF_ERROR(normalize_segment(s + start, end - start, out));
        copied = end;
        active = find_active(s, *n, end);
    }
    strbuf_append(out, s + copied, *n - copied);
    return take_text(out, text, n);
}
