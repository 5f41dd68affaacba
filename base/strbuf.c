#include "base/strbuf.h"

#include "base/utf8.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool strbuf_reserve(strbuf *b, size_t n)
{
    if (b->failed) return false;
    if (n < b->capacity - b->size) return true;
    size_t need = b->size + n + 1;
    size_t capacity = b->capacity * 2 > need ? b->capacity * 2 : need;
    if (capacity < 64) capacity = 64;
    char *data = need > n && need <= PTRDIFF_MAX ? realloc(b->data, capacity) : NULL;
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void strbuf_append(strbuf *b, const void *bytes, size_t n)
{
    if (!strbuf_reserve(b, n)) return;
    if (n > 0) memcpy(b->data + b->size, bytes, n);
    b->size += n;
    b->data[b->size] = 0;
}

void strbuf_puts(strbuf *b, const char *s) { strbuf_append(b, s, strlen(s)); }

void strbuf_putc(strbuf *b, char c) { strbuf_append(b, &c, 1); }

void strbuf_printf(strbuf *b, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) b->failed = true;
    else if (strbuf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->size, (size_t)n + 1, fmt, again);
        b->size += (size_t)n;
    }
    va_end(again);
}

/* Appends one character of a JSON string literal; cp UINT32_MAX is a byte that is not UTF-8. */
static void put_json_char(strbuf *b, uint32_t cp, const char *bytes, unsigned n)
{
    switch (cp) {
    case '"': strbuf_puts(b, "\\\""); break;
    case '\\': strbuf_puts(b, "\\\\"); break;
    case '\b': strbuf_puts(b, "\\b"); break;
    case '\f': strbuf_puts(b, "\\f"); break;
    case '\n': strbuf_puts(b, "\\n"); break;
    case '\r': strbuf_puts(b, "\\r"); break;
    case '\t': strbuf_puts(b, "\\t"); break;
    case UINT32_MAX: strbuf_puts(b, "\xef\xbf\xbd"); break;
    default:
        if (cp < 0x20 || cp == 0x7f) strbuf_printf(b, "\\u%04x", (unsigned)cp);
        else strbuf_append(b, bytes, n);
    }
}

void strbuf_json_string(strbuf *b, const char *s, size_t n)
{
    strbuf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned used = utf8_decode((const uint8_t *)s + i, n - i, &cp);
        put_json_char(b, cp, s + i, used);
        i += used;
    }
    strbuf_putc(b, '"');
}

/* Appends a number that printf wrote: what stands between its digits is the locale's decimal
 * point, which may be several bytes. */
static void put_decimal(strbuf *b, const char *text)
{
    bool in_point = false;
    for (const char *c = text; *c; c++) {
        bool is_point = !strchr("0123456789+-e", *c);
        if (!is_point) strbuf_putc(b, *c);
        else if (!in_point) strbuf_putc(b, '.');
        in_point = is_point;
    }
}

void strbuf_json_float(strbuf *b, float v)
{
    if (!isfinite(v)) {
        strbuf_puts(b, "null");
        return;
    }
    /* Six digits survive decimal -> float -> decimal, so fewer need not be tried (%g strips zeros),
     * except among the subnormals; nine always read back. */
    char text[32];
    for (int precision = fabsf(v) < FLT_MIN ? 1 : 6; precision <= 9; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    put_decimal(b, text);
}

void strbuf_clear(strbuf *b)
{
    b->size = 0;
    if (b->data) b->data[0] = 0;
}

void strbuf_destroy(strbuf *b)
{
    if (!b) return;
    free(b->data);
    *b = (strbuf){0};
}
