/* Requests of octavo.h: a stream of the engine, and a descriptor that says when to read it. */
#include "lib/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- submission ------------------------------------------------------------------------------ */

/* An engine_notify. */
static void wake_reader(void *ctx)
{
    octavo_request *r = ctx;
    const uint64_t one = 1;
    if (atomic_exchange(&r->pending, true)) return;
    while (write(r->fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void free_request(octavo_request *r)
{
    if (r->fd >= 0) close(r->fd);
    strbuf_destroy(&r->retention);
    strbuf_destroy(&r->retrieval);
    free(r);
}

static status start_request(octavo_engine *e, const engine_request *from, octavo_request *r,
                            error *err)
{
    r->engine = e;
    r->n = from->n;
    r->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->fd < 0)
        return error_set(err, STATUS_LIMIT, "no file descriptor for a request: %s",
                         strerror(errno));
    return engine_submit(e->engine, from, wake_reader, r, &r->stream, err);
}

octavo_status octavo_submit(octavo_engine *e, const octavo_params *params, octavo_request **out,
                            char *text, size_t text_bytes)
{
    error err = {{0}};
    octavo_params p;
    engine_request from;
    status s = lib_check_there(e, "engine", &err);
    if (status_ok(s)) s = lib_check_there(out, "out", &err);
    if (status_ok(s)) s = lib_take_struct(params, "params", &p, sizeof p, &err);
    if (!status_ok(s)) return lib_tell(s, &err, text, text_bytes);
    octavo_request *r = calloc(1, sizeof *r);
    if (!r) return lib_tell(status_make(STATUS_NO_MEMORY, NULL), &err, text, text_bytes);
    r->fd = -1;
    s = lib_read_params(&p, &e->defaults, &from, &err);
    if (status_ok(s)) s = start_request(e, &from, r, &err);
    engine_request_destroy(&from);
    if (status_ok(s)) {
        lib_enter(r);
        *out = r;
    } else {
        free_request(r);
    }
    return lib_tell(s, &err, text, text_bytes);
}

void octavo_abort(octavo_request *r)
{
    if (r) engine_stream_abort(r->stream);
}

void octavo_request_release(octavo_request *r)
{
    if (!r) return;
    lib_leave(r);
    free_request(r);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The report as JSON in `out`, or NULL. */
static const char *report_text(strbuf *out) { return out->size && !out->failed ? out->data : NULL; }

static void describe_end(octavo_request *r, octavo_output *own)
{
    const engine_output *last = &r->last;
    strbuf_clear(&r->retention);
    strbuf_clear(&r->retrieval);
    if (last->report) retention_report_json(last->report, &r->retention);
    if (last->reading) retrieval_report_json(last->reading, &r->retrieval);
    own->retention = report_text(&r->retention);
    own->retrieval = report_text(&r->retrieval);
    own->prompt_tokens = last->usage.prompt_tokens;
    own->completion_tokens = last->usage.completion_tokens;
    own->cached_tokens = last->usage.cached_tokens;
    own->queue_us = last->timings.queue_us;
    own->ttft_us = last->timings.ttft_us;
    own->total_us = last->timings.total_us;
    if (last->finish != ENGINE_FINISH_ERROR) return;
    own->error = lib_status(last->error_code);
    own->error_text = last->error_text;
}

static octavo_finish finish_of(engine_finish f)
{
    switch (f) {
    case ENGINE_FINISH_NONE: return OCTAVO_FINISH_NONE;
    case ENGINE_FINISH_STOP: return OCTAVO_FINISH_STOP;
    case ENGINE_FINISH_LENGTH: return OCTAVO_FINISH_LENGTH;
    case ENGINE_FINISH_ABORT: return OCTAVO_FINISH_ABORT;
    case ENGINE_FINISH_ERROR: return OCTAVO_FINISH_ERROR;
    }
    return OCTAVO_FINISH_ERROR;
}

/* Gives the caller what r->last has. */
static bool give_output(octavo_request *r, octavo_output *out)
{
    const engine_output *last = &r->last;
    octavo_output own = {
        .choice = last->choice,
        .has_token = last->has_token,
        .text = last->text_bytes ? last->text : "",
        .text_bytes = last->text_bytes,
        .finish = finish_of(last->finish),
    };
    if (last->has_token) {
        own.token = last->sample.token;
        own.rank = last->sample.rank;
        own.logprob = last->sample.logprob;
        own.n_top = last->sample.n_top;
        own.top_ids = last->sample.top_ids;
        own.top_logprobs = last->sample.top_logprobs;
    }
    if (own.finish != OCTAVO_FINISH_NONE) describe_end(r, &own);
    return lib_give_struct(out, &own, sizeof own);
}

/* Waits until the descriptor says that something can be read. False when `until_us` has come first;
 * -1 never comes. */
static bool wait_readable(octavo_request *r, int64_t until_us)
{
    struct pollfd polled = {.fd = r->fd, .events = POLLIN};
    int64_t left_us = until_us < 0 ? -1 : until_us - clock_now_us();
    int left_ms = until_us < 0 ? -1 : left_us > 0 ? (int)((left_us + 999) / 1000) : 0;
    if (poll(&polled, 1, left_ms) <= 0) return until_us < 0 || clock_now_us() < until_us;
    uint64_t count;
    while (read(r->fd, &count, sizeof count) > 0) continue;
    /* Only now: a notification after the read has to write again. */
    atomic_store(&r->pending, false);
    return true;
}

octavo_status octavo_read(octavo_request *r, octavo_output *out, int timeout_ms)
{
    const octavo_output none = octavo_output_init();
    if (!r || !lib_give_struct(out, &none, sizeof none)) return OCTAVO_INVALID;
    int64_t until_us = timeout_ms < 0 ? -1 : clock_now_us() + (int64_t)timeout_ms * 1000;
    while (!engine_stream_read(r->stream, &r->last)) {
        if (r->n_ended == r->n) return OCTAVO_END;
        if (!wait_readable(r, until_us)) return OCTAVO_TIMEOUT;
    }
    r->was_read = true;
    if (r->last.finish != ENGINE_FINISH_NONE) r->n_ended++;
    give_output(r, out);
    return OCTAVO_OK;
}

int octavo_request_fd(const octavo_request *r) { return r ? r->fd : -1; }

octavo_status octavo_request_prompt(const octavo_request *r, octavo_prompt *out)
{
    if (!r || !r->was_read) return OCTAVO_INVALID;
    const engine_prompt p = engine_stream_prompt(r->stream);
    const octavo_prompt own = {
        .tokens = p.tokens,
        .logprobs = p.logprobs,
        .ranks = p.ranks,
        .top_ids = p.top_ids,
        .top_logprobs = p.top_logprobs,
        .n_tokens = p.n_tokens,
        .n_top = p.n_top,
    };
    return lib_give_struct(out, &own, sizeof own) ? OCTAVO_OK : OCTAVO_INVALID;
}
