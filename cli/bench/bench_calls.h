/* The cost of single calls on the engine thread, at the geometry of a large model, without one. */
#ifndef CLI_BENCH_BENCH_CALLS_H
#define CLI_BENCH_BENCH_CALLS_H

#include "paged_kv/log.h"

typedef struct bench_calls_options {
    pkv_geometry geometry;
    uint32_t running;     // sequences that decode
    uint32_t sessions;    // idle sessions
    uint32_t arrivals;    // requests that arrive at once
    uint32_t long_tokens; // tokens of the long sequence
    uint32_t rounds;      // medians are over these
} bench_calls_options;

/* A row is X(id, name in JSON, what the row is called, the option it depends on). */
#define BENCH_CALLS(X)                                                                             \
    X(STEP, "sched_step", "sched_step, each of N running decodes", running)                        \
    X(MIRROR, "mirror", "a backend's mirror: apply and lengths, N running", running)               \
    X(STATS, "sched_get_stats", "sched_get_stats, N running", running)                             \
    X(ARRIVALS, "arrivals", "the engine thread's longest turn, N arrive at once", arrivals)        \
    X(STEP_SESSIONS, "sched_step_sessions", "sched_step beside N idle sessions", sessions)         \
    X(STATS_SESSIONS, "sched_get_stats_sessions", "sched_get_stats beside N idle sessions",        \
      sessions)                                                                                    \
    X(CLOSE, "close", "close of N tokens", long_tokens)                                            \
    X(OPEN_HIT, "open_hit", "open with a hit of N tokens", long_tokens)                            \
    X(SWAP_OUT, "swap_out", "swap out of N tokens", long_tokens)                                   \
    X(SWAP_IN, "swap_in", "swap in of N tokens", long_tokens)                                      \
    X(BLOCKED, "blocked_head", "sched_step, a blocked head of line hits N tokens", long_tokens)    \
    X(SELECT_LAYERS, "select_chunkkv",                                                             \
      "the engine thread's longest turn, chunkkv selects among N", long_tokens)                    \
    X(SELECT_HEADS, "select_snapkv", "the engine thread's longest turn, snapkv selects among N",   \
      long_tokens)

typedef enum bench_call {
#define BENCH_CALL_ID(id, json, name, option) BENCH_CALL_##id,
    BENCH_CALLS(BENCH_CALL_ID)
#undef BENCH_CALL_ID
        BENCH_CALL_KINDS,
} bench_call;

/* The longest time in which the engine thread leaves the backend alone while it takes the requests
 * that arrived during one step: running sequences wait for it. */
status bench_arrivals(const bench_calls_options *options, double *us, error *err);

/* The longest time in which the engine thread leaves the backend alone while a sequence of
 * long_tokens is selected in, beside a few that decode. */
status bench_select(const bench_calls_options *options, const char *method, double *us, error *err);

/* us [BENCH_CALL_KINDS]: microseconds of one call. */
status bench_calls(const bench_calls_options *options, double *us, error *err);

#endif
