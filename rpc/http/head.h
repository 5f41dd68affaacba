/* Checks the head of a request. Pure: bytes in, a verdict out.
 *
 * A proxy in front of octavo and libmicrohttpd must never disagree about where a request ends. So a
 * head that can be read in two ways is refused, and its connection closed.
 *
 * libmicrohttpd itself refuses a Content-Length that is not a number, before this check. Its answer
 * repeats its own head: a 400 with an odd body, after which the connection is closed. It also
 * answers by itself what it cannot hold: 414 and 431 for a head, and 500 for the first line of a
 * chunk, of about 32 KiB. Such answers are HTML, and no handler can replace them. */
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
    bool target_ok; // result of head_is_target before libmicrohttpd split the target
    http_field fields[HTTP_FIELDS_MAX];
    size_t n_fields; // may be above HTTP_FIELDS_MAX: the rest was dropped
    size_t bytes;    // from the method to the end of the empty line
} http_head;

typedef struct http_framing {
    bool chunked;
    bool has_length;
    uint64_t length;
    bool expects_continue;
} http_framing;

/* The result of a check: HTTP status and message of a refusal, or status 0. */
typedef struct http_verdict {
    unsigned status;
    const char *message; // static
} http_verdict;

/* True for a path with or without a query, of visible ASCII; the absolute-form that proxies send
 * has scheme and host before it. s is NUL-terminated. */
bool head_is_target(const char *s, size_t n);
/* The path in a target whose query has been cut off. target is NUL-terminated. */
const char *head_path(const char *target);

http_verdict head_check(const http_head *h, http_framing *out);

/* True when libmicrohttpd has read the head as it was sent. libmicrohttpd 0.9.75 reads a head in
 * place and turns each CRLF into two NULs. A gap between two lines means that a line was folded
 * (those are dropped or misread), ended by a bare LF, or cut short by a NUL. (Only a NUL together
 * with a bare LF can look like a CRLF afterwards, and no proxy lets a NUL through.) */
bool head_is_plain(const http_head *h);

/* The first field of this name, compared without case, or NULL. */
const http_field *head_find(const http_head *h, const char *name);

/* True when the client takes gzip and does not like a plain answer better (Accept-Encoding, RFC
 * 9110, 12.5.3). A coding whose weight is malformed counts as refused. */
bool head_takes_gzip(const http_head *h);

/* Decodes %XX. False for a bad escape, a control character, or too little room. */
bool head_unescape(const char *s, size_t n, char *out, size_t size);

/* Splits "host:port", "[address]:port" or ":port". False for any other form. */
bool address_split(const char *address, char *host, size_t size, uint16_t *port);

#endif
