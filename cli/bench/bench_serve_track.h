/* The records of requests that both clients of `octavo bench serve`, HTTP and gRPC, keep (private
 * to it). One thread. */
#ifndef CLI_BENCH_BENCH_SERVE_TRACK_H
#define CLI_BENCH_BENCH_SERVE_TRACK_H

#include "cli/bench/bench_serve.h"

/* A request that has been sent. */
typedef struct serve_request {
    serve_call call;
    uint32_t want;         // tokens asked for
    uint32_t vanish_after; // tokens after which this client leaves; 0 = it stays to the end
    bool never_read;
    bool finished, has_usage; // a finish reason came, usage came
    uint64_t body_hash;
    int64_t start_us, last_us; // when it was sent; when the last token came
} serve_request;

typedef struct text_check {
    uint64_t body, text;
} text_check;

typedef struct serve_tracker {
    const serve_options *o;
    serve_run *run;
    uint32_t running;
    int64_t start_us, now_us;
    uint64_t n_tokens, n_done, n_bad; // since the run began, for progress lines
    text_check *seen;                 // open addressing; body 0 = empty
    size_t n_seen, seen_capacity;     // a power of two
    bool no_memory;
} serve_tracker;

/* A request is sent now. */
void track_start(serve_tracker *t, serve_request *r);
/* A token of the request has come. */
void track_token(serve_tracker *t, serve_request *r);
/* More of the answer's text: how it is cut into pieces makes no difference. */
void track_text(serve_request *r, const char *text, size_t n);
/* Keeps the first message of each kind of end. */
void track_example(serve_tracker *t, serve_end end, const char *text);
/* How a request ended whose stream came to its end. */
serve_end track_judge(serve_tracker *t, const serve_request *r);
/* Records how the request ended; its call's itls are handed over. */
void track_end(serve_tracker *t, serve_request *r, serve_end end);
void track_destroy(serve_tracker *t);

#endif
