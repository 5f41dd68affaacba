#include "cli/bench/bench_loop.h"

#include "cli/bench/bench_front.h"
#include "cli/bench/null_engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_US = 20000, CLIENTS_WITHIN_S = 120 };

typedef struct closed_loop closed_loop;

typedef struct loop_slot {
    closed_loop *loop;
    engine_stream *stream;
    bool listed; // in `readable`; under the loop's lock
} loop_slot;

struct closed_loop {
    const bench_loop_options *o;
    null_engine null;
    bench_front *front; // NULL: the loop submits and reads
    rng rng;
    engine_request request;
    loop_slot *slots; // [running]
    uint64_t tokens, ended;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    uint32_t *readable, *taken; // [running] slots with something to read; those being read
    uint32_t n_readable;
};

static uint32_t least_chunk(const bench_loop_options *o)
{
    uint64_t rows = (uint64_t)o->running * o->prompt_tokens / o->output_tokens;
    rows += rows / 4;
    return rows > o->prefill_chunk ? (uint32_t)rows : o->prefill_chunk;
}

/* ---- requests and their reading -------------------------------------------------------------- */

/* An engine_notify. */
static void note_readable(void *ctx)
{
    loop_slot *slot = ctx;
    closed_loop *l = slot->loop;
    pthread_mutex_lock(&l->lock);
    if (!slot->listed) {
        slot->listed = true;
        l->readable[l->n_readable++] = (uint32_t)(slot - l->slots);
        if (l->n_readable == 1) pthread_cond_signal(&l->arrived);
    }
    pthread_mutex_unlock(&l->lock);
}

static status submit_next(closed_loop *l, loop_slot *slot, error *err)
{
    engine_request *r = &l->request;
    for (uint32_t i = 0; i < r->n_prompt_token_ids; i++)
        r->prompt_token_ids[i] = rng_below(&l->rng, NULL_VOCAB);
    return engine_submit(l->null.engine, r, note_readable, slot, &slot->stream, err);
}

static status read_slot(closed_loop *l, loop_slot *slot, error *err)
{
    engine_output out;
    while (engine_stream_read(slot->stream, &out)) {
        l->tokens += out.has_token;
        if (out.finish == ENGINE_FINISH_NONE) continue;
        if (out.finish != ENGINE_FINISH_LENGTH)
            return error_set(err, STATUS_INTERNAL,
                             "a request ended otherwise than by its length: "
                             "%s",
                             out.error_text ? out.error_text : engine_finish_name(out.finish));
        l->ended++;
        engine_stream_release(slot->stream);
        slot->stream = NULL;
        return submit_next(l, slot, err);
    }
    return STATUS_IS_OK;
}

/* Waits until some stream can be read or the time has come, and takes the list of those. */
static uint32_t take_readable(closed_loop *l, int64_t until_us)
{
    struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    pthread_mutex_lock(&l->lock);
    while (l->n_readable == 0 && pthread_cond_timedwait(&l->arrived, &l->lock, &until) == 0)
        continue;
    uint32_t n = l->n_readable;
    for (uint32_t i = 0; i < n; i++) l->slots[l->readable[i]].listed = false;
    uint32_t *taken = l->readable;
    l->readable = l->taken;
    l->taken = taken;
    l->n_readable = 0;
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* Reads until the time has come or, before it, `ended` requests have ended. */
static status read_until(closed_loop *l, int64_t until_us, uint64_t ended, error *err)
{
    while (l->ended < ended && clock_now_us() < until_us) {
        uint32_t n = take_readable(l, until_us);
        for (uint32_t i = 0; i < n; i++) RETURN_IF_ERROR(read_slot(l, &l->slots[l->taken[i]], err));
    }
    return STATUS_IS_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct loop_reading {
    null_numbers backend;
    engine_stats engine;
    uint64_t tokens, ended;
} loop_reading;

static loop_reading take_reading(const closed_loop *l)
{
    return (loop_reading){.backend = null_backend_numbers(&l->null.backend),
                          .engine = engine_get_stats(l->null.engine),
                          .tokens = l->tokens,
                          .ended = l->ended};
}

static bench_loop_numbers difference(const loop_reading *a, const loop_reading *b)
{
    const null_numbers *from = &a->backend, *to = &b->backend;
    return (bench_loop_numbers){
        .seconds = (double)(to->now_ns - from->now_ns) / 1e9,
        .tokens = (double)(b->tokens - a->tokens),
        .requests = (double)(b->ended - a->ended),
        .steps = (double)(to->steps - from->steps),
        .rows = (double)(to->rows - from->rows),
        .in_time = (double)(to->in_time - from->in_time),
        .ahead = (double)(b->engine.sched.steps_ahead - a->engine.sched.steps_ahead),
        .waited_us = (double)(to->waited_ns - from->waited_ns) / 1e3,
        .schedule_us = (double)(b->engine.schedule_us - a->engine.schedule_us),
        .tell_us = (double)(b->engine.tell_us - a->engine.tell_us),
        .mirror_us = (double)(to->mirror_ns - from->mirror_ns) / 1e3,
        .thread_us = (double)(to->thread_ns - from->thread_ns) / 1e3,
    };
}

static void pause_until(int64_t us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static status open_front(closed_loop *l, error *err)
{
    const bench_loop_options *o = l->o;
    const backend_info *info = l->null.backend.ops->info(l->null.backend.ctx);
    bench_front_options f = {.engine = l->null.engine,
                             .tokenizer = l->null.tokenizer,
                             .http = o->http,
                             .grpc = o->grpc,
                             .traces = o->traces,
                             .vocab_size = NULL_VOCAB,
                             .max_model_len = info->max_positions,
                             .page_tokens = o->geometry.page_tokens,
                             .n_pages = info->n_pages - 1,
                             .n_blocks = (info->n_pages - 1) / pkv_groups(&o->geometry),
                             .max_batch = o->running,
                             .max_requests = 2 * o->running};
    return bench_front_open(&f, &l->front, err);
}

static status await_clients(const closed_loop *l, error *err)
{
    int64_t now = clock_now_us(), last = now + INT64_C(1000000) * CLIENTS_WITHIN_S;
    for (;; now += LOOK_US) {
        uint32_t n = engine_get_stats(l->null.engine).sched.running;
        if (n >= l->o->running) return STATUS_IS_OK;
        if (now > last)
            return error_set(err, STATUS_UNAVAILABLE,
                             "after %d s clients have %u of %u requests running", CLIENTS_WITHIN_S,
                             n, l->o->running);
        pause_until(now + LOOK_US);
    }
}

static status serve_clients(closed_loop *l, bench_loop_numbers *out, error *err)
{
    RETURN_IF_ERROR(open_front(l, err));
    RETURN_IF_ERROR(await_clients(l, err));
    loop_reading before = take_reading(l);
    pause_until(clock_now_us() + (int64_t)l->o->seconds * 1000000);
    loop_reading after = take_reading(l);
    const engine_stats *a = &before.engine, *b = &after.engine;
    *out = difference(&before, &after);
    out->tokens = (double)(b->sched.generated_tokens - a->sched.generated_tokens);
    out->requests = (double)(b->requests_finished - a->requests_finished);
    return STATUS_IS_OK;
}

static status run_loop(closed_loop *l, bench_loop_numbers *out, error *err)
{
    if (l->o->http || l->o->grpc) return serve_clients(l, out, err);
    for (uint32_t i = 0; i < l->o->running; i++) RETURN_IF_ERROR(submit_next(l, &l->slots[i], err));
    RETURN_IF_ERROR(read_until(l, INT64_MAX, l->o->running, err));
    loop_reading before = take_reading(l);
    int64_t until = clock_now_us() + (int64_t)l->o->seconds * 1000000;
    RETURN_IF_ERROR(read_until(l, until, UINT64_MAX, err));
    loop_reading after = take_reading(l);
    *out = difference(&before, &after);
    return STATUS_IS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static status create(closed_loop *l, uint32_t chunk, error *err)
{
    const bench_loop_options *o = l->o;
    static const engine_defaults greedy = {.top_p = 1, .repetition_penalty = 1};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->rng = rng_seed(1);
    engine_request_init(&l->request, &greedy);
    l->request.max_tokens = o->output_tokens;
    l->request.ignore_eos = true;
    l->request.n_prompt_token_ids = o->prompt_tokens;
    l->request.prompt_token_ids = calloc(o->prompt_tokens, sizeof *l->request.prompt_token_ids);
    l->slots = calloc(o->running, sizeof *l->slots);
    l->readable = calloc(o->running, sizeof *l->readable);
    l->taken = calloc(o->running, sizeof *l->taken);
    if (!l->request.prompt_token_ids || !l->slots || !l->readable || !l->taken)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < o->running; i++) l->slots[i].loop = l;
    null_engine_options n = {.geometry = o->geometry,
                             .running = o->running,
                             .tokens = o->prompt_tokens + o->output_tokens,
                             .max_requests = 2 * o->running,
                             .prefill_chunk = chunk,
                             .step_us = o->step_us,
                             .prefix_cache = o->prefix_cache};
    return null_engine_create(&n, &l->null, err);
}

static void destroy(closed_loop *l)
{
    bench_front_close(l->front);
    for (uint32_t i = 0; l->slots && i < l->o->running; i++)
        engine_stream_release(l->slots[i].stream);
    null_engine_destroy(&l->null);
    engine_request_destroy(&l->request);
    free(l->slots);
    free(l->readable);
    free(l->taken);
    pthread_cond_destroy(&l->arrived);
    pthread_mutex_destroy(&l->lock);
}

status bench_loop(const bench_loop_options *options, bench_loop_numbers *out, error *err)
{
    closed_loop l = {.o = options};
    uint32_t chunk = least_chunk(options);
    status st = create(&l, chunk, err);
    if (status_ok(st)) st = run_loop(&l, out, err);
    destroy(&l);
    out->prefill_chunk = chunk;
    return st;
}
