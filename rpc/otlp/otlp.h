/* Traces by OpenTelemetry's protocol, OTLP over HTTP with protobuf (private to rpc/).
 *
 * What     trace context of the W3C's headers traceparent and tracestate; which requests are
 *          sampled; spans; and a thread that sends them in batches to the receiver of the endpoint.
 *          Settings beside the endpoint are OpenTelemetry's environment variables (config.c).
 * Owner    a tracer copies its options' texts. A span belongs to the thread that began it until
 *          trace_end or trace_drop takes it.
 * Threads  one of its own, oct-traces, which alone talks to the receiver. trace_begin, trace_end
 *          and tracer_count: any thread. A span is used by one thread at a time.
 * Units    microseconds of the monotonic clock, bytes.
 * Errors   settings are checked before the start. Later a span is dropped and counted where the
 *          queue is full, memory is out or the receiver does not take it: no request waits or
 *          fails. */
#ifndef RPC_OTLP_OTLP_H
#define RPC_OTLP_OTLP_H

#include "base/base.h"

/* ---- where a request comes from (context.c) -------------------------------------------------- */

enum { TRACE_STATE_BYTES_MAX = 512, TRACE_STATE_MEMBERS_MAX = 32 };

/* A request's headers about traces. Zero it, then give it every header; other headers are left
 * aside. It points to the header's bytes. */
typedef struct trace_headers {
    const char *parent; // traceparent; NULL = none
    size_t parent_bytes;
    uint32_t n_parents;
    char state[TRACE_STATE_BYTES_MAX]; // tracestate, of several headers in their order
    size_t state_bytes;
    bool state_is_bad; // it is longer, and is left out
} trace_headers;

void trace_headers_add(trace_headers *h, const char *name, size_t n_name, const char *value,
                       size_t n_value);

/* The span that called. */
typedef struct trace_context {
    uint8_t trace[16], span[8];
    bool sampled;
    char state[TRACE_STATE_BYTES_MAX];
    size_t state_bytes; // 0 = none
} trace_context;

/* Reads a request's headers. False when there is no traceparent, more than one, or one that breaks
 * the W3C's rules: the request then begins a trace. A tracestate that breaks them is left out. */
bool trace_context_read(const trace_headers *h, trace_context *out);

/* ---- the tracer (tracer.c) ------------------------------------------------------------------- */

typedef struct tracer tracer;

typedef struct tracer_options {
    const char *endpoint;                      // the receiver's URL, http or https, used as it is
    const char *version;                       // octavo's
    const char *(*variable)(const char *name); // of the environment; NULL = this process's
    /* Gets one line about trouble with the receiver, at most one in half a minute. Called from the
     * tracer's thread. May be NULL. */
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
} tracer_options;

/* Checks the endpoint and the environment; connects to nothing. */
status tracer_check(const tracer_options *o, error *err);
status tracer_create(const tracer_options *o, tracer **out, error *err);
/* tracer_destroy will send what waits as far as that is done at this time of the monotonic clock;
 * without this call it sends nothing more. */
void tracer_flush_until(tracer *t, int64_t until_us);
/* Ends the thread. The first attempt that fails after this call is the last. */
void tracer_destroy(tracer *t);

/* Spans by what became of them. */
typedef struct tracer_counts {
    uint64_t sent;
    uint64_t queue_full; // dropped: too many waited, or memory was out
    uint64_t failed;     // dropped: the receiver could not be reached or answered with an error
    uint64_t rejected;   // sent, and refused one by one by the receiver
} tracer_counts;

/* Zeros when t is NULL. */
tracer_counts tracer_count(tracer *t);

/* ---- spans (span.c) -------------------------------------------------------------------------- */

typedef struct trace_span trace_span;

enum { TRACE_ID_TEXT_BYTES = 33 }; // with the NUL

/* Begins a span of kind SERVER now, below parent; with NULL it begins a trace. NULL: t is NULL, the
 * span is not sampled, or memory is out (counted). */
trace_span *trace_begin(tracer *t, const trace_context *parent);
/* The trace's id in hexadecimal digits. */
void trace_id_text(const trace_span *s, char out[TRACE_ID_TEXT_BYTES]);
/* Add an attribute. Keys are static, and different; texts are copied, and are UTF-8. A span has at
 * most TRACE_ATTRIBUTES_MAX. */
enum { TRACE_ATTRIBUTES_MAX = 48 };
void trace_put_text(trace_span *s, const char *key, const char *text, size_t n);
void trace_put_int(trace_span *s, const char *key, int64_t value);
void trace_put_double(trace_span *s, const char *key, double value);
void trace_put_texts(trace_span *s, const char *key, const char *const *texts, size_t n);
/* The span's status is an error of this type, a static word. */
void trace_fail(trace_span *s, const char *type);
/* Ends the span, which has this name (static), so long after it began, and hands it to the thread.
 * Never waits for the receiver. */
void trace_end(trace_span *s, const char *name, int64_t duration_us);
/* Frees a span that is not to be sent. NULL does nothing. */
void trace_drop(trace_span *s);

#endif
