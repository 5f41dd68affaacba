/* Haystacks and random strings. */
#include "quality/tasks/haystack.h"

#include "quality/tasks/wordlist.h"

#include <stdlib.h>
#include <string.h>

const char haystack_noise[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

enum { TEXT_BYTES_MAX = 1 << 30 };

/* ---- a text ---------------------------------------------------------------------------------- */

static bool blank(const char *line) { return line[strspn(line, " \t\r")] == 0; }

status haystack_load(const char *path, haystack *out, error *err)
{
    *out = (haystack){0};
    size_t size, n = 1;
    RETURN_IF_ERROR(file_read(path, TEXT_BYTES_MAX, &out->text, &size, err));
    if (memchr(out->text, 0, size) || !utf8_valid((const uint8_t *)out->text, size)) {
        haystack_destroy(out);
        return error_set(err, STATUS_INVALID, "%s: is no text in UTF-8", path);
    }
    for (size_t i = 0; i < size; i++) n += out->text[i] == '\n';
    out->lines = calloc(n, sizeof *out->lines);
    if (!out->lines) {
        haystack_destroy(out);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    for (char *line = out->text; line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        if (!blank(line)) out->lines[out->n_lines++] = line;
        line = end ? end + 1 : NULL;
    }
    if (out->n_lines > 0) return STATUS_IS_OK;
    haystack_destroy(out);
    return error_set(err, STATUS_INVALID, "%s: has no lines", path);
}

void haystack_destroy(haystack *h)
{
    free(h->lines);
    free(h->text);
    *h = (haystack){0};
}

static void put_line(document *d, const char *line)
{
    strbuf_puts(&d->text, line);
    strbuf_putc(&d->text, '\n');
}

/* Sorts hidden lines by slot, because a scan for each slot would be quadratic. */
static int by_slot(const void *a, const void *b)
{
    const hidden *x = a, *y = b;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return x < y ? -1 : x > y;
}

void haystack_write(document *d, const haystack *from, rng *r, uint32_t n, const hidden *hide,
                    size_t n_hide)
{
    size_t first = from ? rng_u64(r) % from->n_lines : 0;
    hidden *sorted = arena_alloc_array(&d->memory, n_hide, sizeof *sorted);
    if (!sorted) {
        d->failed = true;
        return;
    }
    if (n_hide) memcpy(sorted, hide, n_hide * sizeof *sorted);
    qsort(sorted, n_hide, sizeof *sorted, by_slot);
    size_t next = 0;
    for (uint32_t i = 0; i <= n; i++) {
        for (; next < n_hide && sorted[next].slot <= i; next++) put_line(d, sorted[next].line);
        if (i < n) put_line(d, from ? from->lines[(first + i) % from->n_lines] : haystack_noise);
    }
}

void haystack_slots(rng *r, uint32_t n, hidden *hide, size_t n_hide, bool ascending)
{
    for (size_t i = 0; i < n_hide; i++) {
        uint32_t slot = rng_below(r, n + 1);
        size_t at = i;
        for (; ascending && at > 0 && hide[at - 1].slot > slot; at--)
            hide[at].slot = hide[at - 1].slot;
        hide[at].slot = slot;
    }
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Room for a string of n characters. */
static char *room(document *d, size_t n)
{
    char *out = arena_alloc(&d->memory, n + 1);
    if (!out) d->failed = true;
    return out;
}

const char *random_letters(document *d, rng *r, uint32_t n, char first)
{
    char *out = room(d, n);
    for (uint32_t i = 0; out && i < n; i++) out[i] = (char)(first + (char)rng_below(r, 26));
    return out ? out : "";
}

const char *random_digits(document *d, rng *r, uint32_t n)
{
    char *out = room(d, n);
    for (uint32_t i = 0; out && i < n; i++) out[i] = (char)('0' + (char)rng_below(r, 10));
    return out ? out : "";
}

const char *random_number(document *d, rng *r, uint32_t digits)
{
    const char *rest = random_digits(d, r, digits - 1);
    return document_format(d, "%u%s", 1 + rng_below(r, 9), rest);
}

/* A version 4 UUID as in RFC 9562. */
const char *random_uuid(document *d, rng *r)
{
    uint64_t a = rng_u64(r), b = rng_u64(r);
    return document_format(d, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(a >> 32),
                           (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xfff),
                           (unsigned)(0x8000 | (b >> 48 & 0x3fff)),
                           (unsigned long long)(b & 0xffffffffffff));
}

const char *random_word(document *d, rng *r)
{
    const char *adjective = wordlist_adjectives[rng_below(r, (uint32_t)wordlist_n_adjectives())];
    const char *noun = wordlist_nouns[rng_below(r, (uint32_t)wordlist_n_nouns())];
    return document_format(d, "%s-%s", adjective, noun);
}

void shuffle_strings(rng *r, const char **items, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = rng_below(r, (uint32_t)i);
        const char *other = items[j];
        items[j] = items[i - 1];
        items[i - 1] = other;
    }
}

/* The vocabulary is the plain words, then pairs of nouns; all differ, because no noun begins with
 * another. */
void random_vocabulary(document *d, rng *r, const char **out, size_t n)
{
    size_t nouns = wordlist_n_nouns(), adjectives = wordlist_n_adjectives();
    size_t plain = nouns + adjectives, all = plain + nouns * nouns;
    if (n > all) {
        d->failed = true;
        return;
    }
    /* A short list takes plain words alone, so that it reads like a list. */
    size_t from = n <= plain ? plain : n;
    uint32_t *order = arena_alloc_array(&d->memory, from, sizeof *order);
    if (!order) {
        d->failed = true;
        return;
    }
    for (size_t i = 0; i < from; i++) order[i] = (uint32_t)i;
    for (size_t i = from; i > 1; i--) {
        size_t j = rng_below(r, (uint32_t)i);
        uint32_t other = order[j];
        order[j] = order[i - 1];
        order[i - 1] = other;
    }
    for (size_t i = 0; i < n; i++) {
        size_t w = order[i], pair = w - plain;
        if (w < nouns) out[i] = wordlist_nouns[w];
        else if (w < plain) out[i] = wordlist_adjectives[w - nouns];
        else
            out[i] = document_format(d, "%s%s", wordlist_nouns[pair / nouns],
                                     wordlist_nouns[pair % nouns]);
    }
}
