/* The queue of ended spans, and the thread that sends them: a batch when enough wait or the first
 * has waited for long enough. A batch that is not taken is sent again, with growing pauses, until
 * its time is over. */
#include "rpc/otlp/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    PAUSE_US = 1000000, // after the first failure; each further one doubles it
    PAUSE_US_MAX = 30000000,
    NOTE_US = 30000000, // between two lines about trouble
    LAST_US = 1000000,  // what a flush has at least, for the spans of requests that were aborted
};

struct tracer {
    otlp_config config;
    char version[64];
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    otlp_sender *sender;
    pthread_t thread;
    bool runs;
    _Atomic int64_t stop_us; // nothing is sent after it; INT64_MAX while the server runs

    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t changed;
    trace_span *first, *last;
    uint32_t n;
    bool stop;
    int64_t flush_us;
    tracer_counts counts;

    /* For the thread alone. */
    int64_t not_before_us; // the receiver gets nothing before it
    int64_t noted_us;      // when the last line about trouble was given
    bool gave_up;          // a batch has failed while the server stops
};

const otlp_config *tracer_config(const tracer *t) { return &t->config; }

/* ---- the queue ------------------------------------------------------------------------------- */

void tracer_put(tracer *t, trace_span *s)
{
    s->next = NULL;
    s->put_us = clock_now_us();
    pthread_mutex_lock(&t->lock);
    bool has_room = t->n < t->config.queue_max;
    if (has_room) {
        if (t->last) t->last->next = s;
        else t->first = s;
        t->last = s;
        t->n++;
        /* In between the thread sleeps until the first has waited for long enough. */
        if (t->n == 1 || t->n == t->config.batch_max) pthread_cond_signal(&t->changed);
    } else {
        t->counts.queue_full++;
    }
    pthread_mutex_unlock(&t->lock);
    if (!has_room) trace_drop(s);
}

void tracer_count_dropped(tracer *t)
{
    pthread_mutex_lock(&t->lock);
    t->counts.queue_full++;
    pthread_mutex_unlock(&t->lock);
}

tracer_counts tracer_count(tracer *t)
{
    if (!t) return (tracer_counts){0};
    pthread_mutex_lock(&t->lock);
    tracer_counts counts = t->counts;
    pthread_mutex_unlock(&t->lock);
    return counts;
}

/* Waits for a change, at most until then. Call it with the lock held. */
static void wait_changed(tracer *t, int64_t until_us)
{
    struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

/* Takes a batch, and waits until there is one. NULL when the thread is to end. */
static trace_span *take_batch(tracer *t, size_t *n)
{
    pthread_mutex_lock(&t->lock);
    while (!t->stop && t->n < t->config.batch_max) {
        int64_t until_us = t->n ? t->first->put_us + t->config.delay_us : 0;
        if (t->n && clock_now_us() >= until_us) break;
        if (t->n) wait_changed(t, until_us);
        else pthread_cond_wait(&t->changed, &t->lock);
    }
    trace_span *first = t->first, *last = first;
    for (*n = first ? 1 : 0; *n < t->config.batch_max && last && last->next; ++*n)
        last = last->next;
    if (last) {
        t->first = last->next;
        last->next = NULL;
        if (!t->first) t->last = NULL;
        t->n -= (uint32_t)*n;
    }
    pthread_mutex_unlock(&t->lock);
    return first;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Tells of trouble, unless it did a short time ago: the metrics count all of it. */
static void note(tracer *t, size_t n, const char *what, const char *why)
{
    char text[OTLP_SHOWN_BYTES + 384];
    int64_t now_us = clock_now_us();
    if (!t->on_trouble || (t->noted_us && now_us - t->noted_us < NOTE_US)) return;
    t->noted_us = now_us;
    snprintf(text, sizeof text, "%s: %zu spans %s: %s", t->config.shown, n, what, why);
    t->on_trouble(t->on_trouble_ctx, text);
}

static int64_t deadline_of(void *ctx)
{
    tracer *t = ctx;
    return atomic_load(&t->stop_us);
}

static bool is_stopping(tracer *t) { return atomic_load(&t->stop_us) != INT64_MAX; }

/* Sleeps until the receiver may be asked again, or the server stops. */
static void await_turn(tracer *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->stop && clock_now_us() < t->not_before_us) wait_changed(t, t->not_before_us);
    pthread_mutex_unlock(&t->lock);
}

/* Sets the time before which nothing is sent: what the receiver asks for, or else a pause that
 * differs between servers, so that they do not all come back at once. */
static void set_pause(tracer *t, const otlp_answer *a, int64_t *pause_us)
{
    uint16_t some = 0;
    if (getrandom(&some, sizeof some, GRND_NONBLOCK) < 0) some = 0;
    int64_t own_us = *pause_us + *pause_us / 4 * some / UINT16_MAX;
    t->not_before_us = clock_now_us() + (a->wait_us > own_us ? a->wait_us : own_us);
    *pause_us = *pause_us < PAUSE_US_MAX / 2 ? *pause_us * 2 : PAUSE_US_MAX;
}

/* Sends a body until it is taken, refused or too old. */
static otlp_answer send_body(tracer *t, const strbuf *body, size_t n)
{
    int64_t pause_us = PAUSE_US, give_up_us = 0;
    otlp_answer a;
    for (bool again = true; again;) {
        await_turn(t);
        if (!give_up_us) give_up_us = clock_now_us() + t->config.export_us;
        bool stopping = is_stopping(t);
        otlp_send(t->sender, body, deadline_of, t, &a);
        again = a.outcome == OTLP_RETRY && !stopping;
        if (a.outcome != OTLP_RETRY) t->not_before_us = 0;
        else set_pause(t, &a, &pause_us);
        again = again && (is_stopping(t) || t->not_before_us <= give_up_us);
        if (again) note(t, n, "wait", a.why);
    }
    return a;
}

static void count_batch(tracer *t, size_t n, const otlp_answer *a)
{
    bool taken = a->outcome == OTLP_TAKEN;
    uint64_t rejected = a->rejected < n ? a->rejected : n;
    pthread_mutex_lock(&t->lock);
    if (taken) {
        t->counts.sent += n - rejected;
        t->counts.rejected += rejected;
    } else {
        t->counts.failed += n;
    }
    pthread_mutex_unlock(&t->lock);
    if (!taken) note(t, n, "were dropped", a->why);
    else if (rejected) note(t, rejected, "were rejected", a->why);
}

static void send_batch(tracer *t, trace_span *first, size_t n)
{
    strbuf body = {0};
    otlp_answer a = {.outcome = OTLP_REFUSED, .why = "out of memory"};
    t->gave_up |= clock_now_us() >= atomic_load(&t->stop_us);
    if (t->gave_up) snprintf(a.why, sizeof a.why, "the server stops");
    else if (otlp_pack(&t->config, t->version, first, n, &body)) a = send_body(t, &body, n);
    if (a.outcome != OTLP_TAKEN && is_stopping(t)) t->gave_up = true;
    count_batch(t, n, &a);
    strbuf_destroy(&body);
    trace_free_all(first);
}

static void *run_tracer(void *ctx)
{
    tracer *t = ctx;
    size_t n;
    thread_set_name("oct-traces");
    for (trace_span *first; (first = take_batch(t, &n)) != NULL;) send_batch(t, first, n);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

status tracer_check(const tracer_options *o, error *err)
{
    otlp_config config;
    status st = otlp_config_read(o, &config, err);
    otlp_config_destroy(&config);
    return st;
}

static void init_lock(tracer *t)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static status start(tracer *t, const tracer_options *o, error *err)
{
    RETURN_IF_ERROR(otlp_config_read(o, &t->config, err));
    RETURN_IF_ERROR(otlp_sender_create(&t->config, &t->sender, err));
    bool changed = thread_set_patient(true);
    t->runs = pthread_create(&t->thread, NULL, run_tracer, t) == 0;
    if (changed) thread_set_patient(false);
    return t->runs ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
}

status tracer_create(const tracer_options *o, tracer **out, error *err)
{
    tracer *t = calloc(1, sizeof *t);
    if (!t) return error_set(err, STATUS_NO_MEMORY, "traces: out of memory");
    t->on_trouble = o->on_trouble;
    t->on_trouble_ctx = o->on_trouble_ctx;
    snprintf(t->version, sizeof t->version, "%s", o->version ? o->version : "");
    atomic_init(&t->stop_us, INT64_MAX);
    init_lock(t);
    status st = start(t, o, err);
    if (status_ok(st)) *out = t;
    else tracer_destroy(t);
    return st;
}

void tracer_flush_until(tracer *t, int64_t until_us)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->flush_us = until_us;
    pthread_mutex_unlock(&t->lock);
}

static void stop_thread(tracer *t)
{
    int64_t now_us = clock_now_us();
    pthread_mutex_lock(&t->lock);
    int64_t until_us = t->flush_us;
    if (until_us && until_us < now_us + LAST_US) until_us = now_us + LAST_US;
    atomic_store(&t->stop_us, until_us);
    t->stop = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    otlp_sender_wake(t->sender);
    pthread_join(t->thread, NULL);
}

void tracer_destroy(tracer *t)
{
    if (!t) return;
    if (t->runs) stop_thread(t);
    trace_free_all(t->first);
    otlp_sender_destroy(t->sender);
    otlp_config_destroy(&t->config);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
