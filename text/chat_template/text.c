/* Strings as in Python's str: code points, white space, classes, case. */
#include "text/chat_template/render.h"
#include <stdlib.h>
#include <utf8proc.h>

static const uint8_t *bytes(text t) { return (const uint8_t *)t.s; }

/* Decodes the code point at byte `at`; *n is its size. Texts are valid UTF-8. */
static uint32_t decode_point(text t, size_t at, size_t *n)
{
    uint32_t cp;
    *n = utf8_decode(bytes(t) + at, t.n - at, &cp);
    return cp == UINT32_MAX ? 0xfffd : cp;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

size_t text_length(text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.n; i++) n += !is_continuation(t.s[i]);
    return n;
}

size_t text_offset(text t, size_t index)
{
    for (size_t i = 0; i < t.n; i++)
        if (!is_continuation(t.s[i]) && index-- == 0) return i;
    return t.n;
}

size_t text_char_size(text t, size_t at)
{
    size_t n;
    decode_point(t, at, &n);
    return n;
}

bool code_point_is_space(uint32_t cp)
{
    if (cp < 0x80) return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool code_point_is_printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static bool strippable(uint32_t cp, text chars)
{
    if (!chars.s) return code_point_is_space(cp);
    for (size_t i = 0, n; i < chars.n; i += n)
        if (decode_point(chars, i, &n) == cp) return true;
    return false;
}

text text_strip(text t, text chars, bool left, bool right)
{
    size_t from = 0, n;
    while (left && from < t.n && strippable(decode_point(t, from, &n), chars)) from += n;
    while (right && t.n > from) {
        size_t at = t.n - 1;
        while (at > from && is_continuation(t.s[at])) at--;
        if (!strippable(decode_point(t, at, &n), chars)) break;
        t.n = at;
    }
    return (text){t.s + from, t.n - from};
}

size_t text_find(text t, text needle, size_t from)
{
    if (from > t.n) return SIZE_MAX;
    if (needle.n == 0) return from;
    const char *at = memmem(t.s + from, t.n - from, needle.s, needle.n);
    return at ? (size_t)(at - t.s) : SIZE_MAX;
}

size_t text_rfind(text t, text needle)
{
    if (needle.n > t.n) return SIZE_MAX;
    for (size_t at = t.n - needle.n + 1; at-- > 0;)
        if (needle.n == 0 || memcmp(t.s + at, needle.s, needle.n) == 0) return at;
    return SIZE_MAX;
}

bool text_next_line(text t, size_t *at, text *line)
{
    if (*at >= t.n) return false;
    size_t from = *at, n;
    for (size_t i = from; i < t.n; i += n) {
        uint32_t cp = decode_point(t, i, &n);
        if (!((cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
              cp == 0x2028 || cp == 0x2029))
            continue;
        *line = (text){t.s + from, i - from};
        *at = i + n + (cp == '\r' && i + 1 < t.n && t.s[i + 1] == '\n');
        return true;
    }
    *line = (text){t.s + from, t.n - from};
    *at = t.n;
    return true;
}

/* ---- case ---- */

typedef struct case_row {
    uint16_t cp;
    uint16_t upper[3];
    uint16_t title[3];
} case_row;

static const case_row case_table[] = {
#include "text/chat_template/case_table.inc"
};

static int compare_case_row(const void *key, const void *row)
{
    uint32_t cp = *(const uint32_t *)key, other = ((const case_row *)row)->cp;
    return (cp > other) - (cp < other);
}

static void add_upper(builder *b, uint32_t cp, bool title)
{
    const case_row *row = bsearch(&cp, case_table, sizeof case_table / sizeof *case_table,
                                  sizeof *case_table, compare_case_row);
    if (!row) {
        utf8proc_int32_t c = (utf8proc_int32_t)cp;
        builder_code_point(b, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
        return;
    }
    const uint16_t *to = title ? row->title : row->upper;
    for (int i = 0; i < 3 && to[i]; i++) builder_code_point(b, to[i]);
}

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xb7 || cp == 0x2019;
}

/* Whether a capital sigma ends a word (Unicode's Final_Sigma): a letter before it, none after. */
static bool is_final_sigma(text t, size_t at)
{
    size_t n, i = at;
    bool before = false;
    while (i > 0 && !before) {
        do i--;
        while (i > 0 && is_continuation(t.s[i]));
        uint32_t cp = decode_point(t, i, &n);
        before = is_cased(cp);
        if (!before && !is_case_ignorable(cp)) return false;
    }
    if (!before) return false;
    for (i = at + 2; i < t.n; i += n) {
        uint32_t cp = decode_point(t, i, &n);
        if (is_cased(cp)) return false;
        if (!is_case_ignorable(cp)) return true;
    }
    return true;
}

static void add_lower(builder *b, text t, size_t at, uint32_t cp)
{
    if (cp == 0x130) {
        builder_add(b, TEXT("i\xcc\x87"));
        return;
    }
    if (cp == 0x3a3 && is_final_sigma(t, at)) cp = 0x3c2;
    else cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    builder_code_point(b, cp);
}

bool text_to_case(render *r, text t, enum text_case to, value *out)
{
    builder b = builder_new(r);
    bool in_word = false;
    for (size_t i = 0, n; i < t.n; i += n) {
        uint32_t cp = decode_point(t, i, &n);
        bool first = to == CASE_CAPITALIZE ? i == 0 : !in_word;
        if (to == CASE_UPPER) add_upper(&b, cp, false);
        else if (to != CASE_LOWER && first) add_upper(&b, cp, true);
        else add_lower(&b, t, i, cp);
        in_word = is_cased(cp);
    }
    return render_step(r, t.n) && builder_finish(&b, out);
}

/* ---- classes ---- */

static bool in_class(uint32_t cp, enum text_class wanted)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    switch (wanted) {
    case CLASS_ALPHA: return alpha;
    case CLASS_DIGIT: return c == UTF8PROC_CATEGORY_ND;
    case CLASS_ALNUM: return alpha || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
    case CLASS_SPACE: return code_point_is_space(cp);
    case CLASS_LOWER:
    case CLASS_UPPER: break;
    }
    return false;
}

bool text_is_class(text t, enum text_class wanted)
{
    bool cased = false;
    for (size_t i = 0, n; i < t.n; i += n) {
        uint32_t cp = decode_point(t, i, &n);
        if (wanted != CLASS_LOWER && wanted != CLASS_UPPER) {
            if (!in_class(cp, wanted)) return false;
            continue;
        }
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        utf8proc_category_t other =
            wanted == CLASS_LOWER ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL;
        if (c == other || c == UTF8PROC_CATEGORY_LT) return false;
        cased |= is_cased(cp);
    }
    return t.n > 0 && (cased || (wanted != CLASS_LOWER && wanted != CLASS_UPPER));
}

bool text_replace(render *r, text t, text from, text to, int64_t count, value *out)
{
    builder b = builder_new(r);
    size_t at = 0;
    uint64_t left = count < 0 ? UINT64_MAX : (uint64_t)count;
    if (from.n == 0) { /* between all characters, and at both ends */
        while (left > 0 && !b.failed) {
            builder_add(&b, to);
            left--;
            if (at >= t.n) break;
            size_t n = text_char_size(t, at);
            builder_add(&b, (text){t.s + at, n});
            at += n;
        }
    }
    for (; from.n > 0 && left > 0 && !b.failed; left--) {
        size_t found = text_find(t, from, at);
        if (found == SIZE_MAX) break;
        builder_add(&b, (text){t.s + at, found - at});
        builder_add(&b, to);
        at = found + from.n;
    }
    if (at < t.n) builder_add(&b, (text){t.s + at, t.n - at});
    return render_step(r, t.n) && builder_finish(&b, out);
}
