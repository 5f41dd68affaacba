/* The parts of `octavo bench serve` (private to it): options, the record of each request, and the
 * report. */
#ifndef CLI_BENCH_BENCH_SERVE_H
#define CLI_BENCH_BENCH_SERVE_H

#include "cli/bench/bench_serve_stats.h"
#include "cli/bench/bench_serve_work.h"

/* How a request ended: the name in the report, and the text for people. */
#define SERVE_ENDS(X)                                                                              \
    X(OK, "ok")                                                                                    \
    X(REJECTED, "rejected: 503 or 429; gRPC: UNAVAILABLE or RESOURCE_EXHAUSTED")                   \
    X(VANISHED, "left in mid-stream, by --vanish")                                                 \
    X(CONNECT, "no connection")                                                                    \
    X(CLOSED, "closed before its end")                                                             \
    X(TIMEOUT, "too slow")                                                                         \
    X(STATUS, "another status than 200; gRPC: than OK")                                            \
    X(MALFORMED, "not HTTP, SSE or JSON; gRPC: not a GenerateResponse")                            \
    X(STREAM_ERROR, "an error in the stream")                                                      \
    X(NO_DONE, "no [DONE]")                                                                        \
    X(NO_FINISH, "no finish_reason")                                                               \
    X(NO_USAGE, "no usage")                                                                        \
    X(COUNT, "usage counts another number of tokens than arrived")                                 \
    X(SHORT, "fewer tokens than asked for")                                                        \
    X(DIFFERS, "another text than for an equal request before")

typedef enum serve_end {
#define SERVE_ENUM(name, text) SERVE_##name,
    SERVE_ENDS(SERVE_ENUM)
#undef SERVE_ENUM
        SERVE_END_KINDS
} serve_end;

typedef struct serve_options {
    char host[256], port[8], path[256]; // path: the part before "/v1"
    bool grpc;                          // octavo.v1 instead of HTTP
    bool chat;
    const char *model, *api_key; // NULL = none; HTTP needs a model
    char *extra;                 // members of a JSON object, without braces; NULL = none
    uint64_t n_prompts;
    double duration_s; // 0 = until n_prompts are sent
    double rate;       // requests a second; 0 = without limit
    double burstiness;
    double trace_speed; // > 0: requests come at the trace's times, this many times as fast
    uint32_t max_concurrency;
    double timeout_s;
    double vanish; // share of the requests whose client leaves
    uint32_t never_read;
    double hold_s; // how long unread streams stay open after all other requests
    bool check;
    bool keep_eos; // true: ignore_eos is not set
    bool quiet;    // no progress on stderr
    uint64_t seed;
} serve_options;

/* One request. Times in seconds. */
typedef struct serve_call {
    uint64_t index;
    serve_end end;
    unsigned status;  // HTTP status, 0 = none; with gRPC its code, 0 = OK
    double start_s;   // since the run's beginning
    double ttft_s;    // -1 = no token came
    double latency_s; // to the last token; of a refused one to the end of its answer
    float *itls;      // to the last token; without tokens to the end of the answer
    uint32_t n_itls;
    uint32_t events;                                      // chunks that count as a token
    uint32_t prompt_tokens, output_tokens, cached_tokens; // as the server's usage tells
    uint64_t text_hash;
} serve_call;

typedef struct serve_run {
    const serve_options *o;
    const work *work;
    serve_call *calls;
    size_t n_calls, capacity;
    uint32_t *tokens_by_second;
    size_t n_seconds;
    double duration_s;
    uint32_t peak_running;
    uint64_t connections, retried; // opened; requests sent again after a kept connection closed
    uint32_t never_read_open, never_read_closed;
    char example[SERVE_END_KINDS][160]; // the first message of each kind
} serve_run;

/* bench_serve_load.c: sends everything and fills run. */
status serve_load(const serve_options *o, const work *w, serve_run *run, error *err);
void serve_run_destroy(serve_run *run);
/* Finds the first model that GET /v1/models names; the caller frees *out. */
status serve_first_model(const serve_options *o, char **out, error *err);

/* bench_serve_report.c */
enum { SERVE_PERCENTILES_MAX = 16 };

typedef struct serve_report_options {
    double percentiles[SERVE_PERCENTILES_MAX];
    uint32_t n_percentiles;
    double goodput_ms[4];               // limits by metric (ttft, tpot, itl, e2el); 0 = none
    const char *json, *requests, *plot; // files to write; NULL = none
} serve_report_options;

extern const char *const serve_metric_names[4]; // "ttft", "tpot", "itl", "e2el"
/* Prints the report and writes the files. */
status serve_report(serve_run *run, const serve_report_options *o, error *err);
uint64_t serve_count(const serve_run *run, serve_end end);
/* bench_serve_plot.c: writes the drawing. ms: sorted samples by metric, as serve_metric_names has
 * them. */
status serve_plot(const serve_run *run, const samples ms[4], const char *path, error *err);

#endif
