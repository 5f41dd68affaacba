/* Times what running sequences wait for when a long one is selected in. */
#include "cli/bench/bench_calls.h"

#include "cli/bench/null_engine.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RUNNING = 64,
    PROMPT_TOKENS = 128,
    OUTPUT_TOKENS = 2048, /* of the requests that run meanwhile: ten seconds of steps */
    LONG_ONES = 3,        /* one after the other */
    LONG_OUTPUT_TOKENS = 4,
    STEP_US = 5000,
    CHUNK = 8192,
};

typedef struct selecting {
    null_engine null;
    engine_stream *streams[RUNNING + LONG_ONES]; // the last ones are long
    uint32_t n_streams;
    uint32_t *prompt; // [long_tokens]
} selecting;

static status submit(selecting *b, uint32_t prompt_tokens, uint32_t max_tokens, json_t *retention,
                     error *err)
{
    static const engine_defaults greedy = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_request_init(&r, &greedy);
    b->prompt[0] = b->n_streams;
    r.prompt_token_ids = b->prompt;
    r.n_prompt_token_ids = prompt_tokens;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.retention = retention;
    return engine_submit(b->null.engine, &r, NULL, NULL, &b->streams[b->n_streams++], err);
}

static status read_to_the_end(engine_stream *s, error *err)
{
    engine_output out;
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_NONE || out.finish == ENGINE_FINISH_LENGTH) continue;
        return error_set(err, STATUS_INTERNAL, "the long request ended otherwise: %s",
                         out.error_text ? out.error_text : engine_finish_name(out.finish));
    }
    return STATUS_IS_OK;
}

/* The last long request counts: with those before it, memory of tables is touched that a server
 * touches once in its life. The second one begins while the first still gives up its pages. */
static status run(selecting *b, const bench_calls_options *o, json_t *retention, double *us,
                  error *err)
{
    engine_output out;
    for (uint32_t i = 0; i < RUNNING; i++)
        RETURN_IF_ERROR(submit(b, PROMPT_TOKENS, OUTPUT_TOKENS, NULL, err));
    for (uint32_t i = 0; i < RUNNING; i++) (void)engine_stream_wait(b->streams[i], &out);
    for (uint32_t i = 0; i < LONG_ONES; i++) {
        null_backend_hold(&b->null.backend, false); /* longest_turn_ns begins again */
        RETURN_IF_ERROR(
            submit(b, o->long_tokens - LONG_OUTPUT_TOKENS, LONG_OUTPUT_TOKENS, retention, err));
        RETURN_IF_ERROR(read_to_the_end(b->streams[RUNNING + i], err));
    }
    *us = (double)null_backend_numbers(&b->null.backend).longest_turn_ns / 1e3;
    return STATUS_IS_OK;
}

status bench_select(const bench_calls_options *options, const char *method, double *us, error *err)
{
    selecting b = {0};
    null_engine_options o = {.geometry = options->geometry,
                             .running = RUNNING + 1,
                             .tokens = PROMPT_TOKENS + OUTPUT_TOKENS,
                             .long_tokens = options->long_tokens,
                             .max_requests = RUNNING + LONG_ONES,
                             .prefill_chunk = CHUNK,
                             .step_us = STEP_US,
                             .ring_capacity = OUTPUT_TOKENS, /* the other streams are not read */
                             .prefix_cache = true};
    json_t *retention = json_pack("{s:s, s:f}", "method", method, "ratio", 0.1);
    b.prompt = calloc(options->long_tokens, sizeof *b.prompt);
    status st = b.prompt && retention ? null_engine_create(&o, &b.null, err)
                                      : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(st)) st = run(&b, options, retention, us, err);
    for (uint32_t i = 0; i < b.n_streams; i++) engine_stream_release(b.streams[i]);
    null_engine_destroy(&b.null);
    json_decref(retention);
    free(b.prompt);
    return st;
}
