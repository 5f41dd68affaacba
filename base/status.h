/* Status by value, and the longer error text that loaders fill in. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* The list of codes: name, text. STATUS_NO_PAGES and STATUS_QUEUE_FULL are states ("not now"), the
 * rest are errors. */
#define STATUS_CODES(X)                                                                            \
    X(OK, "ok")                                                                                    \
    X(NO_PAGES, "no free pages")                                                                   \
    X(QUEUE_FULL, "queue full")                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(UNSUPPORTED, "unsupported")                                                                  \
    X(NOT_FOUND, "not found")                                                                      \
    X(CORRUPT, "corrupt input")                                                                    \
    X(LIMIT, "limit exceeded")                                                                     \
    X(NO_MEMORY, "out of memory")                                                                  \
    X(IO, "input/output error")                                                                    \
    X(ABORTED, "aborted")                                                                          \
    X(UNAVAILABLE, "unavailable")                                                                  \
    X(INTERNAL, "internal error")

typedef enum status_code {
#define STATUS_ENUM(name, text) STATUS_##name,
    STATUS_CODES(STATUS_ENUM)
#undef STATUS_ENUM
} status_code;

/* `message` is a static string (never freed) that says more than the code, or NULL. */
typedef struct status {
    status_code code;
    const char *message;
} status;

/* Where and why a loader refused its input: one line, names the file, tensor or field. */
typedef struct error {
    char text[512];
} error;

#define STATUS_IS_OK ((status){STATUS_OK, NULL})

static inline status status_make(status_code code, const char *message)
{
    return (status){code, message};
}
static inline bool status_ok(status s) { return s.code == STATUS_OK; }

/* The code's text: "no free pages". Never NULL. */
const char *status_text(status_code code);

/* Formats `err` (may be NULL) and returns a status with `code` and the code's text. */
status error_set(error *err, status_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before a text already in `err` (may be NULL): a caller adds its place. */
void error_prefix(error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "place: " behind the first "word: " of a text already in `err` (may be NULL), or before a
 * text that does not begin so: what a message begins with stays its beginning. */
void error_insert(error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns from the calling function when `expr` is not ok. */
#define RETURN_IF_ERROR(expr)                                                                      \
    do {                                                                                           \
        status return_if_error_ = (expr);                                                          \
        if (!status_ok(return_if_error_)) return return_if_error_;                                 \
    } while (0)

#endif
