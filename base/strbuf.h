/* A growing byte string, always NUL-terminated. When memory is out, functions set `failed` rather
 * than return an error: check it once at the end. */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct strbuf {
    char *data; /* NULL until the first byte */
    size_t size;
    size_t capacity;
    bool failed;
} strbuf;

/* Makes room for n more bytes and the NUL. False (and sets failed) when memory is out. */
bool strbuf_reserve(strbuf *b, size_t n);
void strbuf_append(strbuf *b, const void *bytes, size_t n);
void strbuf_puts(strbuf *b, const char *s);
void strbuf_putc(strbuf *b, char c);
void strbuf_printf(strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends a JSON string literal, quotes included: non-ASCII as it is, controls escaped, bytes that
 * are not UTF-8 replaced by U+FFFD. */
void strbuf_json_string(strbuf *b, const char *s, size_t n);
/* Appends the shortest decimal that reads back as the same float; non-finite values as null. */
void strbuf_json_float(strbuf *b, float v);
void strbuf_clear(strbuf *b); /* size 0, memory kept */
void strbuf_destroy(strbuf *b);

#endif
