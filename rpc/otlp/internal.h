/* Types and functions that the files of rpc/otlp share (private to it).
 *
 * context.c  the headers of a request        config.c  the endpoint and the environment
 * span.c     spans                           batch.c   spans as the body of a request, its answer
 * sender.c   one request to the receiver     tracer.c  the queue and its thread */
#ifndef RPC_OTLP_INTERNAL_H
#define RPC_OTLP_INTERNAL_H

#include "proto/proto.h"
#include "rpc/otlp/otlp.h"

/* ---- settings (config.c) --------------------------------------------------------------------- */

enum { OTLP_PAIRS_MAX = 64, OTLP_SHOWN_BYTES = 128 };

typedef struct otlp_pair {
    const char *name, *value;
} otlp_pair;

typedef struct otlp_pairs {
    otlp_pair items[OTLP_PAIRS_MAX];
    size_t n;
} otlp_pairs;

typedef enum otlp_sampling { SAMPLE_ALL, SAMPLE_NONE, SAMPLE_RATIO } otlp_sampling;

typedef struct otlp_config {
    arena memory; // of the texts below
    const char *url;
    char shown[OTLP_SHOWN_BYTES]; // scheme, host and port, for messages
    otlp_pairs headers;           // they may hold keys: no message shows one
    otlp_pairs resource;          // attributes of the process
    const char *ca_file;          // NULL = the system's certificates
    bool gzip;
    int64_t timeout_us; // of one request
    int64_t export_us;  // of a batch, with its retries
    int64_t delay_us;   // how long a span waits for others
    uint32_t queue_max, batch_max;
    bool follows_parent; // a span below another is sampled where that one is
    otlp_sampling sampling;
    double ratio;
} otlp_config;

/* Release *out with otlp_config_destroy, also after an error. */
status otlp_config_read(const tracer_options *o, otlp_config *out, error *err);
void otlp_config_destroy(otlp_config *c);
/* Whether a span of this trace is sampled; parent may be NULL. */
bool otlp_samples(const otlp_config *c, const uint8_t trace[16], const trace_context *parent);

/* ---- spans (span.c) -------------------------------------------------------------------------- */

struct trace_span {
    trace_span *next; // in the queue, or in a batch
    tracer *tracer;
    int64_t put_us; // when it came to the queue
    bool failed;    // memory was out: it is dropped
    uint8_t trace[16], id[8], parent[8];
    arena memory; // of the attributes and texts; takes nothing before the first
    Otlp__Span message;
    Otlp__Status status;
};

/* Frees the spans of a list. */
void trace_free_all(trace_span *first);

/* ---- bodies (batch.c) ------------------------------------------------------------------------ */

/* Writes the body of a request with the spans of a list, compressed where the settings say so.
 * False when memory is out. */
bool otlp_pack(const otlp_config *c, const char *version, trace_span *first, size_t n, strbuf *out);
/* How many spans the answer to such a request says were refused, and why. 0 when it does not say,
 * or is malformed. */
uint64_t otlp_rejected(const char *answer, size_t n, char *why, size_t size);

/* ---- requests (sender.c) --------------------------------------------------------------------- */

typedef enum otlp_outcome {
    OTLP_TAKEN,
    OTLP_RETRY,   // not now, or not reached
    OTLP_REFUSED, // sending the same again is of no use
} otlp_outcome;

typedef struct otlp_answer {
    otlp_outcome outcome;
    int64_t wait_us;   // the receiver asks for at least this pause; 0 = it does not
    uint64_t rejected; // spans
    char why[256];     // "" where all was taken
} otlp_answer;

typedef struct otlp_sender otlp_sender;

status otlp_sender_create(const otlp_config *c, otlp_sender **out, error *err);
void otlp_sender_destroy(otlp_sender *s);
/* Sends a body and waits for the answer, until *deadline(ctx), which is asked again after each
 * otlp_sender_wake. */
void otlp_send(otlp_sender *s, const strbuf *body, int64_t (*deadline)(void *ctx), void *ctx,
               otlp_answer *out);
/* Any thread. */
void otlp_sender_wake(otlp_sender *s);

/* ---- the tracer (tracer.c) ------------------------------------------------------------------- */

const otlp_config *tracer_config(const tracer *t);
/* Takes over an ended span. */
void tracer_put(tracer *t, trace_span *s);
/* Counts a span that was dropped before it came to the queue. */
void tracer_count_dropped(tracer *t);

#endif
