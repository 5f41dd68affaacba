/* HTTP/1.1 answers and their event streams, decoded as the bytes arrive (private to `octavo bench
 * serve`). Pure: no socket, no clock. */
#ifndef CLI_BENCH_BENCH_SERVE_HTTP_H
#define CLI_BENCH_BENCH_SERVE_HTTP_H

#include "base/base.h"

typedef void (*bytes_fn)(void *ctx, const char *bytes, size_t n);

/* ---- one response ---------------------------------------------------------------------------- */

typedef enum http_outcome { HTTP_MORE, HTTP_WHOLE, HTTP_BAD } http_outcome;

typedef struct http_response {
    unsigned status;      // 200, … once the head has been read
    bool keep_alive;      // the connection can carry another request
    bool is_event_stream; // text/event-stream
    const char *wrong;    // why it is HTTP_BAD; a static string

    /* Private to the decoder. */
    int state;
    bool chunked, has_length, version_1_0;
    uint64_t left;     // bytes of the body or of the chunk
    size_t head_bytes; // so far
    strbuf line;
} http_response;

/* Prepares r for the next response; its memory is kept. Zeroed memory is prepared, too. */
void http_response_reset(http_response *r);
void http_response_destroy(http_response *r);
/* Takes bytes up to the end of the response, *used of them; passes its decoded body to `body`. */
http_outcome http_response_feed(http_response *r, const char *bytes, size_t n, size_t *used,
                                bytes_fn body, void *ctx);
/* Tells r that the connection was closed: HTTP_WHOLE when the close ends this body. */
http_outcome http_response_end(http_response *r);

/* ---- server-sent events ---------------------------------------------------------------------- */

typedef struct sse_reader {
    strbuf line, data;
    bool has_data, after_cr;
    bool failed; // by an event longer than 16 MiB, or for lack of memory
} sse_reader;

void sse_reset(sse_reader *s);
void sse_destroy(sse_reader *s);
/* Calls `event` with the data of each event that is now complete. */
void sse_feed(sse_reader *s, const char *bytes, size_t n, bytes_fn event, void *ctx);

#endif
