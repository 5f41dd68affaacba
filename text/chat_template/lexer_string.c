/* String literals: decodes Python's "unicode-escape". Jinja decodes an ASCII text in which all
 * other characters have been escaped before, and this code gives the same results. */
#include "text/chat_template/ast.h"
#include <stdio.h>

typedef struct unescape {
    lexer *l;
    text in;
    size_t i;
    char *out;
    size_t n;
} unescape;

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static status put_code_point(unescape *u, uint32_t cp)
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return lex_fail(u->l->err, STATUS_UNSUPPORTED, u->l->line,
                        "a string literal escapes U+%04X, which is no character", (unsigned)cp);
    u->n += utf8_encode(cp, (uint8_t *)u->out + u->n);
    return STATUS_IS_OK;
}

static status put_hex(unescape *u, unsigned digits)
{
    uint32_t cp = 0;
    for (unsigned k = 0; k < digits; k++) {
        int v = u->i < u->in.n ? hex_value(u->in.s[u->i]) : -1;
        if (v < 0)
            return lex_fail(u->l->err, STATUS_CORRUPT, u->l->line,
                            "a string literal has a truncated \\%c escape",
                            digits == 2   ? 'x'
                            : digits == 4 ? 'u'
                                          : 'U');
        cp = cp << 4 | (uint32_t)v;
        u->i++;
    }
    return put_code_point(u, cp);
}

static status put_octal(unescape *u)
{
    uint32_t cp = 0;
    for (unsigned k = 0; k < 3 && u->i < u->in.n && u->in.s[u->i] >= '0' && u->in.s[u->i] <= '7';
         k++)
        cp = cp << 3 | (uint32_t)(u->in.s[u->i++] - '0');
    return put_code_point(u, cp);
}

/* Takes a backslash before a non-ASCII character. Jinja has turned that character into an escape,
 * and the backslash before it escapes the escape's own backslash: the escape's text stays. */
static void put_escaped_escape(unescape *u)
{
    uint32_t cp;
    u->i += utf8_decode((const uint8_t *)u->in.s + u->i, u->in.n - u->i, &cp);
    const char *fmt = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    u->n += (size_t)snprintf(u->out + u->n, sizeof "\\U0010ffff", fmt, (unsigned)cp);
}

static status put_escape(unescape *u)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = u->in.s[u->i];
    const char *simple = c ? strchr(from, c) : NULL;
    if ((unsigned char)c >= 0x80) {
        put_escaped_escape(u);
        return STATUS_IS_OK;
    }
    if (c >= '0' && c <= '7') return put_octal(u);
    u->i++;
    if (simple) {
        u->out[u->n++] = to[simple - from];
        return STATUS_IS_OK;
    }
    switch (c) {
    case '\n': return STATUS_IS_OK;
    case 'x': return put_hex(u, 2);
    case 'u': return put_hex(u, 4);
    case 'U': return put_hex(u, 8);
    case 'N':
        return lex_fail(u->l->err, STATUS_UNSUPPORTED, u->l->line,
                        "\\N{name} escapes are not supported");
    default:
        u->out[u->n++] = '\\';
        u->out[u->n++] = c;
        return STATUS_IS_OK;
    }
}

status lex_unescape(lexer *l, text raw, text *out)
{
    /* The largest growth is twofold: "\" and a character of four bytes become the ten of
     * \U0010ffff. */
    unescape u = {.l = l, .in = raw, .out = arena_alloc_array(l->mem, raw.n + 2, 3)};
    if (!u.out) return lex_fail(l->err, STATUS_NO_MEMORY, l->line, "out of memory");
    while (u.i < raw.n) {
        char c = raw.s[u.i++];
        if (c == '\\' && u.i < raw.n) RETURN_IF_ERROR(put_escape(&u));
        else u.out[u.n++] = c;
    }
    *out = (text){u.out, u.n};
    return STATUS_IS_OK;
}
