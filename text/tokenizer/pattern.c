/* Translates patterns of Oniguruma (as Hugging Face's library uses it: Unicode, Ruby's syntax) for
 * PCRE2.
 *
 * The translator walks over the pattern once. It copies what both engines read alike, spells out \s
 * and \S (PCRE2 counts U+180E as space), and refuses by name what they read differently, so that no
 * pattern silently means something else here. */
#include "text/tokenizer/pretokenize.h"

#include <string.h>

#define PATTERN_BYTES_MAX (64u << 10)
#define PATTERN_NEST_MAX  64 /* depth of nested groups */
#define WHITE_SPACE                                                                                \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"

typedef struct translation {
    const char *where;
    const char *in;
    size_t n, at;
    strbuf out;
    error *err;
} translation;

/* `what` is a printable ASCII rendering of the construct. */
static status refuse_construct(translation *t, const char *what)
{
    return error_set(t->err, STATUS_UNSUPPORTED,
                     "%s: %s at byte %zu of the pattern is not supported", t->where, what, t->at);
}

static bool starts_here(const translation *t, const char *s)
{
    size_t n = strlen(s);
    return t->n - t->at >= n && memcmp(t->in + t->at, s, n) == 0;
}

static void copy_text(translation *t, size_t n)
{
    strbuf_append(&t->out, t->in + t->at, n);
    t->at += n;
}

/* Copies \p{L}, \p{^Lu} or \P{N}: general categories only. Scripts are refused, because PCRE2
 * matches Script_Extensions and Oniguruma matches Script. */
static status copy_property(translation *t)
{
    size_t name = t->at + 3, end;
    if (starts_here(t, "\\p{^") || starts_here(t, "\\P{^")) name++;
    end = name;
    while (end < t->n && end - name < 3 && t->in[end] != '}') end++;
    bool category = end < t->n && t->in[end] == '}' && t->in[t->at + 2] == '{' && end > name &&
                    end - name < 3 && strchr("LMNPSZC", t->in[name]);
    if (!category) return refuse_construct(t, "a \\p that is no general category");
    copy_text(t, end + 1 - t->at);
    return STATUS_IS_OK;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Translates \uHHHH and \x{H...}, a code point. (\xHH is a byte in Oniguruma and a code point in
 * PCRE2.) */
static status translate_code_point(translation *t)
{
    bool braces = starts_here(t, "\\x{");
    size_t from = t->at + (braces ? 3 : 2), end = from;
    while (end < t->n && end - from < (braces ? 6 : 4) && is_hex(t->in[end])) end++;
    bool whole = braces ? end > from && end < t->n && t->in[end] == '}' : end - from == 4;
    if (!whole || (!braces && t->in[t->at + 1] == 'x'))
        return refuse_construct(t, "this \\x or \\u");
    strbuf_printf(&t->out, "\\x{%.*s}", (int)(end - from), t->in + from);
    t->at = end + braces;
    return STATUS_IS_OK;
}

static status translate_escape(translation *t, bool in_class)
{
    if (t->at + 1 >= t->n) return refuse_construct(t, "a lone backslash");
    char c = t->in[t->at + 1];
    switch (c) {
    case 's':
        strbuf_puts(&t->out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
        t->at += 2;
        return STATUS_IS_OK;
    case 'S':
        if (in_class) return refuse_construct(t, "\\S in a class");
        strbuf_puts(&t->out, "[^" WHITE_SPACE "]");
        t->at += 2;
        return STATUS_IS_OK;
    case 'p':
    case 'P': return copy_property(t);
    case 'u':
    case 'x': return translate_code_point(t);
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
    case 'd':
    case 'D': copy_text(t, 2); return STATUS_IS_OK;
    default: break;
    }
    bool letter_or_digit =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter_or_digit || (uint8_t)c >= 0x80) {
        char name[4] = {'\\', (uint8_t)c >= 0x80 ? '?' : c, 0};
        return refuse_construct(t, name);
    }
    copy_text(t, 2);
    return STATUS_IS_OK;
}

static status translate_class(translation *t)
{
    copy_text(t, 1);
    if (t->at < t->n && t->in[t->at] == '^') copy_text(t, 1);
    if (t->at < t->n && t->in[t->at] == ']')
        return refuse_construct(t, "a class that starts with ]");
    while (t->at < t->n && t->in[t->at] != ']') {
        if (t->in[t->at] == '[') return refuse_construct(t, "a class within a class");
        if (starts_here(t, "&&")) return refuse_construct(t, "a class intersection (&&)");
        if (t->in[t->at] == '\\') RETURN_IF_ERROR(translate_escape(t, true));
        else copy_text(t, 1);
    }
    if (t->at == t->n) return refuse_construct(t, "a class without its ]");
    copy_text(t, 1);
    return STATUS_IS_OK;
}

static status translate_group(translation *t)
{
    static const char *const same[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!starts_here(t, "(?") && !starts_here(t, "(*")) {
        copy_text(t, 1);
        return STATUS_IS_OK;
    }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (!starts_here(t, same[i])) continue;
        copy_text(t, strlen(same[i]));
        return STATUS_IS_OK;
    }
    return refuse_construct(t, "this kind of group");
}

/* Copies {n}, {n,} or {n,m}. Refuses {n,m}+, which is possessive in PCRE2 and repeats the whole in
 * Oniguruma, and {,m}, which is a literal in PCRE2. */
static status translate_interval(translation *t)
{
    size_t end = t->at + 1;
    while (end < t->n && ((t->in[end] >= '0' && t->in[end] <= '9') || t->in[end] == ',')) end++;
    if (end == t->n || t->in[end] != '}' || end == t->at + 1 || t->in[t->at + 1] == ',')
        return refuse_construct(t, "a { that starts no {n}, {n,} or {n,m}");
    if (end + 1 < t->n && t->in[end + 1] == '+')
        return refuse_construct(t, "an interval followed by +");
    copy_text(t, end + 1 - t->at);
    return STATUS_IS_OK;
}

static status translate(translation *t)
{
    unsigned depth = 0;
    while (t->at < t->n) {
        char c = t->in[t->at];
        if (c == '(' && ++depth > PATTERN_NEST_MAX) return refuse_construct(t, "nesting this deep");
        if (c == ')' && depth > 0) depth--;
        switch (c) {
        case '\\': RETURN_IF_ERROR(translate_escape(t, false)); break;
        case '[': RETURN_IF_ERROR(translate_class(t)); break;
        case '(': RETURN_IF_ERROR(translate_group(t)); break;
        case '{': RETURN_IF_ERROR(translate_interval(t)); break;
        default: copy_text(t, 1); break;
        }
    }
    return t->out.failed ? status_make(STATUS_NO_MEMORY, NULL) : STATUS_IS_OK;
}

static status compile_pattern(const translation *t, pcre2_code **out)
{
    /* In Ruby's syntax ^ and $ always match at lines. */
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT;
    int code;
    PCRE2_SIZE offset;
    const char *pattern = t->out.data ? t->out.data : "";
    *out = pcre2_compile((PCRE2_SPTR)pattern, t->out.size, options, &code, &offset, NULL);
    if (*out) {
        /* Where the system forbids making code at run time, the pattern is interpreted. */
        (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
        return STATUS_IS_OK;
    }
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(code, message, sizeof message);
    return error_set(t->err, STATUS_CORRUPT, "%s: pattern: %s", t->where, (const char *)message);
}

status tok_pattern_compile(const char *where, const char *pattern, size_t n, pcre2_code **out,
                           error *err)
{
    if (n > PATTERN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: pattern of %zu bytes is longer than %u", where, n,
                         PATTERN_BYTES_MAX);
    translation t = {.where = where, .in = pattern, .n = n, .err = err};
    status s = translate(&t);
    if (status_ok(s)) s = compile_pattern(&t, out);
    strbuf_destroy(&t.out);
    return s;
}
