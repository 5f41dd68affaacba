/* The inside of a generation, for its three files (private to rpc/).
 *
 * generation.c: starts, reads, releases      generation_log.c: the log line of each request
 * generation_trace.c: its span */
#ifndef RPC_GENERATION_H
#define RPC_GENERATION_H

#include "rpc/service.h"

/* Facts about one request for its log line, gathered while its outputs are read. */
typedef struct request_log {
    strbuf prompt, output;              // empty unless the log shows prompts
    strbuf finishes, reports, readings; // JSON values with commas between them
    uint32_t n_ends, n_tokens;          // choices that ended, tokens read
    engine_usage usage;                 // completion tokens summed over choices that ended
    int64_t queue_us, ttft_us, total_us;
    double decode_us; // from a choice's first token to its end, summed over choices
    uint32_t n_decoded;
    status_code error_code;
    char error[256];
} request_log;

typedef struct request_trace request_trace;

typedef struct generation_request {
    generation *generation;
    uint32_t index;
    engine_stream *stream;
    request_log log;
    request_trace *trace; // NULL: it has no span
} generation_request;

struct generation {
    service *service;
    generation *next;                  // in its bucket of service.live
    char id[SERVICE_ID_BYTES_MAX + 1]; // found with its identity
    bool shares_id;                    // generation_options
    char identity[SERVICE_IDENTITY_BYTES];
    const char *surface;
    engine_notify notify;
    void *notify_ctx;
    int64_t start_us;
    uint32_t n, n_choices;
    uint32_t n_streams; // streams that service_abort may use; the service's lock guards it
    bool aborted;       // the service's lock guards it, too
    uint32_t n_open;    // choices whose end has not been read
    uint32_t hint;      // the request to try first at the next read
    generation_request *requests; // [n]
    _Atomic uint64_t *ready;      // a bit for each request: it may have an output to read
};

void generation_free(generation *g);
/* A live generation with this id and identity; identity NULL matches every identity. Call it, and
 * use what it returns, with the service's lock held. */
generation *generation_find(service *s, const char *identity, const char *id, size_t n);

/* False when memory is out. */
bool generation_log_begin(generation *g, const engine_request *requests);
void generation_log_take(generation_request *r, const engine_output *out);
/* Completes the request's numbers and writes its line. */
void generation_log_end(const generation *g, generation_request *r);
void generation_log_destroy(request_log *log);

/* Begins the spans of the requests that are to have one. headers may be NULL. */
void generation_trace_begin(generation *g, const engine_request *requests,
                            const trace_headers *headers);
void generation_trace_take(request_trace *trace, const engine_output *out);
/* NULL where the request has no span. */
const trace_span *generation_span(const generation_request *r);
/* Ends the request's span with the numbers of its log, which must be complete. */
void generation_trace_end(const generation *g, generation_request *r);
/* Frees what is left; NULL does nothing. */
void generation_trace_drop(request_trace *trace);

#endif
