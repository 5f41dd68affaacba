/* What the head of a request may look like. Pure: bytes in, a verdict out.
 *
 * Why: a proxy in front and libmicrohttpd behind must never disagree about where a request ends. So
 * whatever has two readings is refused, and its connection closed.
 *
 * libmicrohttpd judges a Content-Length that is no number before we see the head. Its own answer
 * then begins with its head twice: a 400 whose body looks odd, and the connection is closed. */
#ifndef RPC_HTTP_HEAD_H
#define RPC_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_FIELDS_MAX = 100 };

typedef struct http_field {
    const char *name, *value;
    size_t name_bytes, value_bytes;
} http_field;

typedef struct http_head {
    const char *method, *target, *version;
    size_t target_bytes;
    bool target_ok; // by head_is_target, before libmicrohttpd took it apart
    http_field fields[HTTP_FIELDS_MAX];
    size_t n_fields; // may be more than fit: too many
    size_t bytes;    // from method to the end of the empty line
} http_head;

typedef struct http_framing {
    bool chunked;
    bool has_length;
    uint64_t length;
    bool expects_continue;
} http_framing;

/* What is wrong: an HTTP status and one line, or status 0. */
typedef struct http_verdict {
    unsigned status;
    const char *message; // static
} http_verdict;

/* A path and perhaps a query, of visible ASCII; a proxy's absolute-form has scheme and host in
 * front. Both texts end in NUL. */
bool head_is_target(const char *s, size_t n);
/* The path of such a target whose query has been cut off. */
const char *head_path(const char *target);

http_verdict head_check(const http_head *h, http_framing *out);

/* libmicrohttpd 0.9.75 reads a head in place and turns each CRLF into two NULs. When the lines do
 * not follow each other without a gap, then one was folded (it drops or misreads those), ended by a
 * bare LF, or cut short by a NUL: in each case it read something else than was sent. (Only NULs
 * together with bare LFs can look the same as CRLFs afterwards. No proxy lets a NUL through.) */
bool head_is_plain(const http_head *h);

/* Names compare without case. NULL when absent. */
const http_field *head_find(const http_head *h, const char *name);

/* %XX. False for a bad escape, a control character, or too little room. */
bool head_unescape(const char *s, size_t n, char *out, size_t size);

/* Splits "host:port", "[address]:port", ":port". False when it is none of them. */
bool address_split(const char *address, char *host, size_t size, uint16_t *port);

#endif
