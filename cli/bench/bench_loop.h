/* A closed loop of requests through the engine and the null backend: as many requests are open as
 * are asked for, and a finished one is followed by another. One thread reads all streams, as a
 * server's thread does. Or servers take the requests of clients in other processes. */
#ifndef CLI_BENCH_BENCH_LOOP_H
#define CLI_BENCH_BENCH_LOOP_H

#include "paged_kv/paged_kv.h"

typedef struct bench_loop_options {
    pkv_geometry geometry;
    uint32_t running, prompt_tokens, output_tokens;
    /* Raised to what keeps all requests running: prompts come in as fast as answers end. */
    uint32_t prefill_chunk;
    uint32_t step_us, seconds;
    bool prefix_cache;
    const char *http, *grpc; // "host:port" of servers for clients; NULL = none
    const char *traces;      // the URL that gets a span of each of their requests; NULL = none
} bench_loop_options;

/* Sums over the time that was measured. */
typedef struct bench_loop_numbers {
    double seconds;
    double tokens, requests; // read (with servers: drawn), ended
    double steps, rows;
    double in_time; // steps submitted before the step in front of them had ended
    double ahead;   // steps planned before the result of the step in front of them
    /* The engine thread: waiting for steps to end, in sched_step, giving tokens to streams, and the
     * backend's work with page tables. thread_us: its processor time. */
    double waited_us, schedule_us, tell_us, mirror_us, thread_us;
    uint32_t prefill_chunk; // as it was used
} bench_loop_numbers;

/* Measures for options->seconds, after as many requests have ended as are open. With servers: from
 * the moment when clients have as many running. */
status bench_loop(const bench_loop_options *options, bench_loop_numbers *out, error *err);

#endif
