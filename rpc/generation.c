/* Generations: engine streams that share one answer. A generation is found by its id while it
 * lives, and each of its requests is logged in one line, and its span ended, when it is
 * released. */
#include "rpc/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */

static uint32_t words_for(uint32_t n) { return (n + 63) / 64; }

/* The engine's notify of one stream. Sets the stream's bit, so that reading looks only at streams
 * that may have outputs, and notifies the front end of the generation. */
static void stream_ready(void *ctx)
{
    generation_request *r = ctx;
    generation *g = r->generation;
    atomic_fetch_or(&g->ready[r->index / 64], 1ull << r->index % 64);
    if (g->notify) g->notify(g->notify_ctx);
}

static void make_id(service *s, char *out, size_t size)
{
    uint64_t n = atomic_fetch_add(&s->next_id, 1) + 1;
    snprintf(out, size, "%016llx", (unsigned long long)hash_mix64(s->id_salt + n));
}

static generation *make_generation(service *s, const engine_request *requests, uint32_t n,
                                   const generation_options *o)
{
    generation *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    *g = (generation){
        .service = s,
        .surface = o->surface,
        .shares_id = o->shares_id,
        .notify = o->notify,
        .notify_ctx = o->notify_ctx,
        .start_us = clock_now_us(),
        .n = n,
        .n_choices = requests[0].n,
        .n_open = n * requests[0].n,
        .requests = calloc(n, sizeof *g->requests),
        .ready = calloc(words_for(n), sizeof *g->ready),
    };
    if (o->id && *o->id) snprintf(g->id, sizeof g->id, "%s", o->id);
    else make_id(s, g->id, sizeof g->id);
    snprintf(g->identity, sizeof g->identity, "%s", o->identity ? o->identity : "");
    for (uint32_t i = 0; g->requests && i < n; i++)
        g->requests[i] = (generation_request){.generation = g, .index = i};
    if (g->requests && g->ready && generation_log_begin(g, requests)) return g;
    generation_free(g);
    return NULL;
}

void generation_free(generation *g)
{
    for (uint32_t i = 0; g->requests && i < g->n; i++) {
        engine_stream_release(g->requests[i].stream);
        generation_log_destroy(&g->requests[i].log);
        generation_trace_drop(g->requests[i].trace);
    }
    free(g->requests);
    free(g->ready);
    free(g);
}

/* ---- the live generations, by id ------------------------------------------------------------- */

static generation **bucket_of(service *s, const char *id, size_t n)
{
    return &s->live[hash_bytes(id, n, s->id_salt) % SERVICE_BUCKETS];
}

/* True when g has this id and identity; identity NULL matches every identity. */
static bool is_named(const generation *g, const char *identity, const char *id, size_t n)
{
    return strlen(g->id) == n && memcmp(g->id, id, n) == 0 &&
           (!identity || strcmp(g->identity, identity) == 0);
}

generation *generation_find(service *s, const char *identity, const char *id, size_t n)
{
    generation *g = *bucket_of(s, id, n);
    while (g && !is_named(g, identity, id, n)) g = g->next;
    return g;
}

/* True when a live generation has the id and identity of `by` and does not share its id. Call it
 * with the service's lock held. */
static bool is_taken(service *s, const generation *by)
{
    size_t n = strlen(by->id);
    for (generation *g = *bucket_of(s, by->id, n); g; g = g->next)
        if (!g->shares_id && is_named(g, by->identity, by->id, n)) return true;
    return false;
}

/* Adds g to the live generations. False when its id is taken and not shared. */
static bool add_live(service *s, generation *g)
{
    pthread_mutex_lock(&s->lock);
    bool added = g->shares_id || !is_taken(s, g);
    if (added) {
        generation **bucket = bucket_of(s, g->id, strlen(g->id));
        g->next = *bucket;
        *bucket = g;
    }
    pthread_mutex_unlock(&s->lock);
    return added;
}

/* Removes g from the live generations: no other thread can find it any more. */
static void remove_live(service *s, generation *g, bool ended)
{
    pthread_mutex_lock(&s->lock);
    generation **at = bucket_of(s, g->id, strlen(g->id));
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    double us = (double)(clock_now_us() - g->start_us);
    if (ended) s->duration_us += s->duration_us > 0 ? (us - s->duration_us) / 16 : us;
    pthread_mutex_unlock(&s->lock);
}

static void abort_streams(generation *g, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) engine_stream_abort(g->requests[i].stream);
}

uint32_t service_abort(service *s, const char *identity, const char *id, size_t n)
{
    uint32_t aborted = 0;
    pthread_mutex_lock(&s->lock);
    for (generation *g = *bucket_of(s, id, n); g; g = g->next) {
        if (!is_named(g, identity, id, n)) continue;
        aborted += !g->aborted; /* one that was aborted before may not have been released yet */
        g->aborted = true;
        abort_streams(g, g->n_streams);
    }
    pthread_mutex_unlock(&s->lock);
    return aborted;
}

/* ---- starting -------------------------------------------------------------------------------- */

static status refuse_draining(service *s, error *err)
{
    if (!atomic_load(&s->draining)) return STATUS_IS_OK;
    service_count_refusal(s, REFUSED_DRAINING);
    return error_set(err, STATUS_UNAVAILABLE, "the server is shutting down");
}

status generation_admits(service *s, error *err)
{
    uint32_t most = s->o.model.max_requests;
    RETURN_IF_ERROR(refuse_draining(s, err));
    if (engine_get_stats(s->o.engine).n_live < most) return STATUS_IS_OK;
    service_count_refusal(s, REFUSED_QUEUE_FULL);
    return error_set(err, STATUS_QUEUE_FULL, "%u requests are waiting or running already", most);
}

static status check_requests(service *s, uint32_t n, const generation_options *o, error *err)
{
    uint32_t most = s->o.model.max_requests;
    RETURN_IF_ERROR(refuse_draining(s, err));
    if (n == 0) return error_set(err, STATUS_INVALID, "prompt: must not be empty");
    if (n > most)
        return error_set(err, STATUS_LIMIT, "prompt: %u prompts are more than the %u at once", n,
                         most);
    /* Refuses at once rather than start some of the requests and find the queue full then. */
    if (n > 1 && engine_get_stats(s->o.engine).n_live + n > most) {
        service_count_refusal(s, REFUSED_QUEUE_FULL);
        return error_set(err, STATUS_QUEUE_FULL, "prompt: there is no room for %u requests now", n);
    }
    if (o->id && strnlen(o->id, SERVICE_ID_BYTES_MAX + 1) > SERVICE_ID_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "request_id: is longer than %d bytes",
                         SERVICE_ID_BYTES_MAX);
    return STATUS_IS_OK;
}

static status submit_all(generation *g, const engine_request *requests, const generation_options *o,
                         error *err)
{
    service *s = g->service;
    for (uint32_t i = 0; i < g->n; i++) {
        generation_request *r = &g->requests[i];
        engine_request request = requests[i]; /* the engine copies what it points to */
        request.identity = (char *)(uintptr_t)o->identity;
        status st = engine_submit(s->o.engine, &request, stream_ready, r, &r->stream, err);
        if (st.code == STATUS_QUEUE_FULL) service_count_refusal(s, REFUSED_QUEUE_FULL);
        if (st.code == STATUS_UNAVAILABLE) service_count_refusal(s, REFUSED_UNAVAILABLE);
        if (!status_ok(st) && o->refused) *o->refused = i;
        RETURN_IF_ERROR(st);
    }
    /* service_abort may have found g before its streams were known: abort them now. */
    pthread_mutex_lock(&s->lock);
    g->n_streams = g->n;
    if (g->aborted) abort_streams(g, g->n);
    pthread_mutex_unlock(&s->lock);
    return STATUS_IS_OK;
}

static status start_generation(service *s, const engine_request *requests, uint32_t n,
                               const generation_options *o, generation **out, error *err)
{
    RETURN_IF_ERROR(check_requests(s, n, o, err));
    generation *g = make_generation(s, requests, n, o);
    if (!g) return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    if (!add_live(s, g)) {
        generation_free(g);
        return error_set(err, STATUS_INVALID, "request_id: a request with this id is running");
    }
    generation_trace_begin(g, requests, o->trace);
    status st = submit_all(g, requests, o, err);
    if (!status_ok(st)) {
        remove_live(s, g, false);
        generation_free(g);
        return st;
    }
    *out = g;
    return STATUS_IS_OK;
}

status generation_start(service *s, const engine_request *requests, uint32_t n,
                        const generation_options *o, generation **out, error *err)
{
    atomic_store(&s->last_receive_us, clock_now_us());
    /* Counts the generation before it checks `draining`: either the draining thread sees the
     * count, or this generation sees the flag. */
    atomic_fetch_add(&s->in_flight, 1);
    status st = start_generation(s, requests, n, o, out, err);
    if (!status_ok(st)) atomic_fetch_sub(&s->in_flight, 1);
    return st;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool take_generated(generation *g, uint32_t i, generation_output *out)
{
    generation_request *r = &g->requests[i];
    _Atomic uint64_t *word = &g->ready[i / 64];
    /* Clears the bit before the read: an output that comes after the read sets it again. */
    atomic_fetch_and(word, ~(1ull << i % 64));
    if (!engine_stream_read(r->stream, &out->out)) return false;
    atomic_fetch_or(word, 1ull << i % 64);
    out->request = i;
    out->index = i * g->n_choices + out->out.choice;
    if (out->out.finish != ENGINE_FINISH_NONE) g->n_open--;
    generation_log_take(r, &out->out);
    generation_trace_take(r->trace, &out->out);
    g->hint = i + 1;
    return true;
}

/* The first request in [from, to) that may have an output, or `to`. */
static uint32_t next_ready(generation *g, uint32_t from, uint32_t to)
{
    while (from < to) {
        uint64_t bits = atomic_load(&g->ready[from / 64]) >> from % 64;
        if (bits) {
            uint32_t at = from + (uint32_t)__builtin_ctzll(bits);
            return at < to ? at : to;
        }
        from = (from / 64 + 1) * 64;
    }
    return to;
}

static bool read_between(generation *g, uint32_t from, uint32_t to, generation_output *out)
{
    for (uint32_t i = next_ready(g, from, to); i < to; i = next_ready(g, i + 1, to))
        if (take_generated(g, i, out)) return true;
    return false;
}

bool generation_read(generation *g, generation_output *out)
{
    /* Takes the requests in turn, beginning after the one read last. */
    uint32_t hint = g->hint < g->n ? g->hint : 0;
    return read_between(g, hint, g->n, out) || read_between(g, 0, hint, out);
}

bool generation_ended(const generation *g) { return g->n_open == 0; }
const char *generation_id(const generation *g) { return g->id; }

const float *generation_pooled(const generation *g, uint32_t request, uint32_t *n)
{
    return engine_stream_pooled(g->requests[request].stream, n);
}

float generation_scale_of(const float *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)values[i] * values[i];
    return sum > 0 && isfinite(sum) ? (float)(1.0 / sqrt(sum)) : 0.0f;
}

engine_prompt generation_prompt(const generation *g, uint32_t request)
{
    return engine_stream_prompt(g->requests[request].stream);
}

void generation_abort(generation *g) { abort_streams(g, g->n); }

void generation_release(generation *g)
{
    if (!g) return;
    service *s = g->service;
    remove_live(s, g, g->n_open == 0);
    /* Aborts first, so that pages are freed before the log lines, which take time, are written. */
    if (g->n_open) abort_streams(g, g->n);
    for (uint32_t i = 0; i < g->n; i++) {
        generation_log_end(g, &g->requests[i]);
        generation_trace_end(g, &g->requests[i]);
    }
    generation_free(g);
    atomic_fetch_sub(&s->in_flight, 1);
}
