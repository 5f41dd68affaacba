/* Times what running sequences wait for when many requests arrive at once. */
#include "cli/bench/bench_calls.h"

#include "cli/bench/null_engine.h"

#include <stdlib.h>
#include <time.h>

enum {
    PROMPT_TOKENS = 128,
    OUTPUT_TOKENS = 1024, /* of the requests that run meanwhile: a second of steps */
    STEP_US = 1000,
    CHUNK = 8192,
    LOOK_US = 500,
    MOST_S = 60,
};

typedef struct arrivals {
    null_engine null;
    engine_stream **streams;
    uint32_t n_streams;
    uint32_t prompt[PROMPT_TOKENS];
} arrivals;

static status submit(arrivals *a, uint32_t n, uint32_t max_tokens, error *err)
{
    static const engine_defaults greedy = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_request_init(&r, &greedy);
    r.prompt_token_ids = a->prompt;
    r.n_prompt_token_ids = PROMPT_TOKENS;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    for (uint32_t i = 0; i < n; i++) {
        a->prompt[0] = a->n_streams % NULL_VOCAB;
        a->prompt[1] = a->n_streams / NULL_VOCAB;
        RETURN_IF_ERROR(
            engine_submit(a->null.engine, &r, NULL, NULL, &a->streams[a->n_streams], err));
        a->n_streams++;
    }
    return STATUS_IS_OK;
}

/* Waits until so many requests were given to the engine thread, run, and wait to run. */
static status await(const arrivals *a, uint64_t prepared, uint32_t running, uint32_t waiting,
                    error *err)
{
    int64_t last = clock_now_us() + INT64_C(1000000) * MOST_S;
    for (;;) {
        engine_stats now = engine_get_stats(a->null.engine);
        if (now.requests_prepared >= prepared && now.sched.running >= running &&
            now.sched.waiting >= waiting)
            return STATUS_IS_OK;
        if (clock_now_us() > last)
            return error_set(err, STATUS_INTERNAL, "%u requests run and %u wait, not %u and %u",
                             now.sched.running, now.sched.waiting, running, waiting);
        struct timespec t = {0, LOOK_US * 1000};
        nanosleep(&t, NULL);
    }
}

/* A step does not end before all requests have arrived. */
static status run(arrivals *a, const bench_calls_options *o, double *us, error *err)
{
    RETURN_IF_ERROR(submit(a, o->running, OUTPUT_TOKENS, err));
    RETURN_IF_ERROR(await(a, o->running, o->running, 0, err));
    null_backend_hold(&a->null.backend, true);
    status st = submit(a, o->arrivals, 1, err);
    if (status_ok(st)) st = await(a, (uint64_t)o->running + o->arrivals, 0, 0, err);
    null_backend_hold(&a->null.backend, false);
    RETURN_IF_ERROR(st);
    RETURN_IF_ERROR(await(a, 0, 0, o->arrivals, err));
    *us = (double)null_backend_numbers(&a->null.backend).longest_turn_ns / 1e3;
    return STATUS_IS_OK;
}

status bench_arrivals(const bench_calls_options *options, double *us, error *err)
{
    arrivals a = {0};
    uint32_t n = options->running + options->arrivals;
    null_engine_options o = {.geometry = options->geometry,
                             .running = options->running,
                             .tokens = PROMPT_TOKENS + OUTPUT_TOKENS,
                             .max_requests = n,
                             .prefill_chunk = CHUNK,
                             .step_us = STEP_US,
                             .ring_capacity = OUTPUT_TOKENS, /* nobody reads */
                             .prefix_cache = true};
    a.streams = calloc(n, sizeof(engine_stream *));
    if (!a.streams) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = null_engine_create(&o, &a.null, err);
    if (status_ok(st)) st = run(&a, options, us, err);
    for (uint32_t i = 0; i < a.n_streams; i++) engine_stream_release(a.streams[i]);
    null_engine_destroy(&a.null);
    free(a.streams);
    return st;
}
