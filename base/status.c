#include "base/status.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_text(status_code code)
{
    switch (code) {
#define STATUS_CASE(name, text)                                                                    \
    case STATUS_##name: return text;
        STATUS_CODES(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

/* Error texts quote hostile input (tensor names, JSON tokens). Replaces every byte that could break
 * the line or steer a terminal by '?', and removes a character that snprintf cut in half. */
static void make_one_line(char *text)
{
    size_t n = strlen(text);
    n -= utf8_incomplete_tail((const uint8_t *)text, n);
    text[n] = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned used = utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (cp < 0x20 || cp == 0x7f || cp == UINT32_MAX) text[i] = '?';
        else if (cp >= 0x80 && cp < 0xa0) memset(text + i, '?', used);
        i += used;
    }
}

status error_set(error *err, status_code code, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
        make_one_line(err->text);
    }
    return status_make(code, status_text(code));
}

void error_insert(error *err, const char *fmt, ...)
{
    if (!err) return;
    error old = *err, place;
    va_list args;
    va_start(args, fmt);
    vsnprintf(place.text, sizeof place.text, fmt, args);
    va_end(args);
    size_t word = strcspn(old.text, ": "),
           behind = strncmp(old.text + word, ": ", 2) ? 0 : word + 2;
    int n = snprintf(err->text, sizeof err->text, "%.*s%s: ", (int)behind, old.text, place.text);
    if (n >= 0 && (size_t)n < sizeof err->text) /* what does not fit is cut off */
        snprintf(err->text + n, sizeof err->text - (size_t)n, "%s", old.text + behind);
    make_one_line(err->text);
}

void error_prefix(error *err, const char *fmt, ...)
{
    if (!err) return;
    error old = *err;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used + 3 < sizeof err->text) { /* the part that does not fit is cut off */
        size_t room = sizeof err->text - used - 3;
        size_t keep = strnlen(old.text, room);
        memcpy(err->text + used, ": ", 2);
        memcpy(err->text + used + 2, old.text, keep);
        err->text[used + 2 + keep] = 0;
    }
    make_one_line(err->text);
}
