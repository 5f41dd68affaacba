/* Python literals as JSON. */
#include "rpc/openai/tools/python.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

typedef struct scan {
    const char *s, *end;
    unsigned depth;
    strbuf *out;
} scan;

static bool read_value(scan *p);

static bool among(const char *characters, char c) { return c && strchr(characters, c); }

static void skip_blanks(scan *p)
{
    while (p->s < p->end && among(" \t\r\n", *p->s)) p->s++;
}

static bool skip(scan *p, char c)
{
    skip_blanks(p);
    if (p->s == p->end || *p->s != c) return false;
    p->s++;
    return true;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Reads the digits of \xHH, \uHHHH or \UHHHHHHHH. */
static bool read_code(scan *p, int digits, strbuf *text)
{
    char hex[9] = {0};
    char *stop;
    uint8_t bytes[4];
    if (p->end - p->s < digits) return false;
    memcpy(hex, p->s, (size_t)digits);
    unsigned long code = strtoul(hex, &stop, 16);
    if (*stop || !is_word(hex[0]) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return false;
    p->s += digits;
    strbuf_append(text, bytes, utf8_encode((uint32_t)code, bytes));
    return true;
}

static bool read_escape(scan *p, strbuf *text)
{
    static const char letters[] = "ntrbfv0\\'\"", values[] = "\n\t\r\b\f\v\0\\'\"";
    if (p->s == p->end) return false;
    char c = *p->s++;
    const char *at = c ? strchr(letters, c) : NULL;
    if (at) strbuf_putc(text, values[at - letters]);
    else if (c == 'x') return read_code(p, 2, text);
    else if (c == 'u') return read_code(p, 4, text);
    else if (c == 'U') return read_code(p, 8, text);
    else if (c != '\n') {
        strbuf_putc(text, '\\'); /* as Python keeps unknown escapes */
        strbuf_putc(text, c);
    }
    return true;
}

static bool read_string(scan *p)
{
    char quote = *p->s++;
    strbuf text = {0};
    bool ok = true;
    while (ok && p->s < p->end && *p->s != quote) {
        char c = *p->s++;
        if (c == '\\') ok = read_escape(p, &text);
        else strbuf_putc(&text, c);
    }
    ok = ok && skip(p, quote) && !(text.size && memchr(text.data, '\0', text.size));
    if (ok) strbuf_json_string(p->out, text.data ? text.data : "", text.size);
    p->out->failed |= text.failed;
    strbuf_destroy(&text);
    return ok;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

/* Copies a number that JSON has too. */
static bool read_number(scan *p)
{
    char text[64];
    double value;
    size_t n = 0;
    while (p->s + n < p->end && among("+-.eE0123456789", p->s[n])) n++;
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, p->s, n);
    text[n] = '\0';
    const char *stop = number_read(text, &value);
    size_t first = text[0] == '-';
    bool plain = text[first] >= '0' && text[first] <= '9' && text[n - 1] != '.' &&
                 !(text[first] == '0' && text[first + 1] >= '0' && text[first + 1] <= '9');
    if (!stop || *stop || !plain || strstr(text, ".e") || strstr(text, ".E")) return false;
    strbuf_append(p->out, text, n);
    p->s += n;
    return true;
}

static bool read_word(scan *p)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    size_t n = 0;
    while (p->s + n < p->end && is_word(p->s[n])) n++;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i][0]) == n && memcmp(words[i][0], p->s, n) == 0) {
            strbuf_puts(p->out, words[i][1]);
            p->s += n;
            return true;
        }
    return false;
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

static bool read_key(scan *p)
{
    skip_blanks(p);
    return p->s < p->end && (*p->s == '"' || *p->s == '\'') && read_string(p) && skip(p, ':');
}

/* Reads what stands between brackets, of which the first has been read. */
static bool read_items(scan *p, char closes, bool keys)
{
    strbuf_putc(p->out, keys ? '{' : '[');
    for (bool first = true; !skip(p, closes); first = false) {
        if (!first && !skip(p, ',')) return false;
        if (!first && skip(p, closes)) break;
        if (!first) strbuf_putc(p->out, ',');
        if (keys) {
            if (!read_key(p)) return false;
            strbuf_putc(p->out, ':');
        }
        if (!read_value(p)) return false;
    }
    strbuf_putc(p->out, keys ? '}' : ']');
    return true;
}

static bool read_brackets(scan *p)
{
    char opens = *p->s++;
    if (p->depth == DEPTH_MAX) return false;
    p->depth++;
    bool ok = read_items(p, opens == '[' ? ']' : opens == '(' ? ')' : '}', opens == '{');
    p->depth--;
    return ok;
}

static bool read_value(scan *p)
{
    skip_blanks(p);
    if (p->s == p->end) return false;
    if (*p->s == '"' || *p->s == '\'') return read_string(p);
    if (*p->s == '[' || *p->s == '(' || *p->s == '{') return read_brackets(p);
    return read_word(p) || read_number(p);
}

static bool read_argument(scan *p)
{
    skip_blanks(p);
    const char *name = p->s;
    while (p->s < p->end && is_word(*p->s)) p->s++;
    if (p->s == name) return false;
    strbuf_json_string(p->out, name, (size_t)(p->s - name));
    strbuf_putc(p->out, ':');
    return skip(p, '=') && read_value(p);
}

bool python_arguments(const char *text, size_t n, strbuf *out)
{
    scan p = {.s = text, .end = text + n, .out = out};
    if (!skip(&p, '(')) return false;
    strbuf_putc(out, '{');
    for (bool first = true; !skip(&p, ')'); first = false) {
        if (!first && !skip(&p, ',')) return false;
        if (!first && skip(&p, ')')) break;
        if (!first) strbuf_putc(out, ',');
        if (!read_argument(&p)) return false;
    }
    strbuf_putc(out, '}');
    return p.s == p.end && !out->failed;
}
