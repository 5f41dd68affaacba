/* A worker's threads, sessions and jobs (server.h). */
#include "rpc/worker/server.h"

#include "rpc/worker/codes.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAMS_MAX = 64,
    DESCRIPTORS_MAX = 128, // of connections: a coordinator needs a few
    FIRST_MESSAGE_US = 10000000,
    UNPACK_FACTOR = 4, // as in rpc/grpc
    UNPACK_EXTRA = 1 << 20,
};

size_t server_part_bytes(const worker_server *s)
{
    return s->o.part_bytes ? s->o.part_bytes : part_bytes_usual;
}

static void log_line(const worker_server *s, const char *line)
{
    if (s->o.log_line) s->o.log_line(s->o.log_ctx, line);
}

/* ---- sessions -------------------------------------------------------------------------------- */

void server_end_session(worker_server *s, const char *why)
{
    if (s->state == WORKER_IDLE || s->state == WORKER_ENDING) return;
    s->state = WORKER_ENDING;
    snprintf(s->why.text, sizeof s->why.text, "%s", why);
    if (s->host_used) s->o.host.abort(s->o.host.ctx);
    if (s->backend.ops) s->backend.ops->interrupt(s->backend.ctx);
    if (!s->running) s->job = JOB_NONE;
    if (s->asker && !s->running) call_wake(s->asker);
    if (s->stream) call_wake(s->stream); // `stepped` refuses it then
    pthread_cond_signal(&s->work);
    char line[sizeof s->why.text + 64];
    snprintf(line, sizeof line, "the session of rank %u ends: %s", s->config.rank, s->why.text);
    log_line(s, line);
}

static void forget_step(worker_step *t)
{
    assembly_clear(&t->parts);
    arena_destroy(&t->memory);
    arena_init(&t->memory, MEMORY_BLOCK, 0);
}

static void forget_steps(worker_server *s)
{
    for (int i = 0; i < STEPS_MOST; i++) forget_step(&s->taken[i]);
    s->n_taken = s->n_answered = s->n_awaited = s->n_submitted = s->n_collected = 0;
    s->result = NULL;
}

void server_answered(worker_server *s)
{
    forget_step(&s->taken[s->n_answered++ % STEPS_MOST]);
    pthread_cond_signal(&s->work);
}

static void free_result(worker_server *s)
{
    if (s->result_bytes) alloc_pages_free(s->result_bytes, s->result_size);
    s->result_bytes = NULL;
}

/* Frees an ended session. Call it with the lock held, which it releases while it frees: no other
 * thread uses the data of an ending session. */
static void reset_session(worker_server *s)
{
    backend b = s->backend;
    bool used = s->host_used;
    s->backend = (backend){0};
    s->host_used = false;
    pthread_mutex_unlock(&s->lock);
    if (b.ops) b.ops->destroy(b.ctx);
    if (used) s->o.host.reset(s->o.host.ctx);
    pthread_mutex_lock(&s->lock);
    forget_steps(s);
    free_result(s);
    arena_destroy(&s->memory);
    arena_init(&s->memory, MEMORY_BLOCK, 0);
    s->stream = NULL;
    s->session = 0;
    s->state = WORKER_IDLE;
    for (size_t i = 0; i < WAITERS_MAX; i++)
        if (s->waiters[i].call) call_wake(s->waiters[i].call);
    log_line(s, "idle");
}

/* ---- jobs ------------------------------------------------------------------------------------ */

void server_start_job(worker_server *s, worker_job job, rpc_call *asker)
{
    s->job = job;
    s->asker = asker;
    pthread_cond_signal(&s->work);
}

static status run_configure(worker_server *s, error *err)
{
    const worker_host *h = &s->o.host;
    RETURN_IF_ERROR(h->configure(h->ctx, &s->config, &s->address, err));
    if (s->address.n <= WORKER_ADDRESS_BYTES_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "address: %zu bytes", s->address.n);
}

static status run_join(worker_server *s, error *err)
{
    return s->o.host.join(s->o.host.ctx, s->addresses, s->config.size, err);
}

/* Sets the backend under the lock: from then on server_end_session interrupts it. */
static status run_load(worker_server *s, error *err)
{
    backend made = {0};
    RETURN_IF_ERROR(s->o.host.load(s->o.host.ctx, &made, &s->facts.facts, err));
    pthread_mutex_lock(&s->lock);
    s->backend = made;
    s->facts.info = *made.ops->info(made.ctx);
    pthread_mutex_unlock(&s->lock);
    return STATUS_IS_OK;
}

/* Unpacks a plan that came in parts. It runs on the step thread because it takes long, and the
 * queue's thread has heartbeats to answer. */
static status unpack_parts(const worker_server *s, worker_step *t, error *err)
{
    const ProtobufCMessage *m;
    assembly *a = &t->parts;
    arena_destroy(&t->memory);
    status st = message_unpack(&octavo__worker__v1__step_plan__descriptor, a->bytes, a->size,
                               UNPACK_FACTOR * a->size + UNPACK_EXTRA, &t->memory, &m, err);
    assembly_clear(a);
    RETURN_IF_ERROR(st);
    const plan_message *plan = (const plan_message *)m;
    if (plan->session != s->session || plan->step != t->number || plan->part || plan->awaits)
        return error_set(err, STATUS_INVALID,
                         "part: the parts make up step %llu, and came as those of step %llu",
                         (unsigned long long)plan->step, (unsigned long long)t->number);
    t->memory.limit_bytes = 0;
    return plan_unpack(plan, &s->facts.info, &t->memory, &t->plan, err);
}

/* Makes the plan ready that is submitted next. */
static status complete_plan(const worker_server *s, worker_step *t, error *err)
{
    bool in_flight = s->n_submitted > s->n_collected;
    const worker_step *before = in_flight ? &s->taken[(s->n_submitted - 1) % STEPS_MOST] : NULL;
    if (t->parts.bytes) RETURN_IF_ERROR(unpack_parts(s, t, err));
    return plan_check_ahead(&t->plan, before ? &before->plan : NULL, &s->facts.info, &t->memory,
                            err);
}

/* The error of a call of the backend, which ends the session. */
static status backend_failure(status st, error *err)
{
    if (status_ok(st)) return st;
    return error_set(err, st.code, "%s", st.message ? st.message : status_text(st.code));
}

static status run_submit(worker_server *s, error *err)
{
    worker_step *t = &s->taken[s->n_submitted % STEPS_MOST];
    status st = complete_plan(s, t, err);
    if (!status_ok(st)) {
        error_prefix(err, "plan");
        return st;
    }
    s->n_submitted++;
    return backend_failure(s->backend.ops->submit(s->backend.ctx, &t->plan), err);
}

/* Collects a step. A failure of the step itself is in its result. */
static status run_collect(worker_server *s, error *err)
{
    const step_result *result = NULL;
    RETURN_IF_ERROR(backend_failure(s->backend.ops->collect(s->backend.ctx, &result), err));
    s->n_collected++;
    pthread_mutex_lock(&s->lock);
    s->result = result;
    pthread_mutex_unlock(&s->lock);
    return STATUS_IS_OK;
}

static status (*const jobs[])(worker_server *, error *) = {
    [JOB_CONFIGURE] = run_configure, [JOB_JOIN] = run_join,       [JOB_LOAD] = run_load,
    [JOB_SUBMIT] = run_submit,       [JOB_COLLECT] = run_collect,
};

/* The state after a job has succeeded. */
static const worker_state reached[] = {
    [JOB_CONFIGURE] = WORKER_CONFIGURED, [JOB_JOIN] = WORKER_JOINED,    [JOB_LOAD] = WORKER_LOADED,
    [JOB_SUBMIT] = WORKER_LOADED,        [JOB_COLLECT] = WORKER_LOADED,
};

/* The job for the step thread. A collected result is packed before the backend is called again,
 * which may reuse its memory. With fewer steps in flight than there can be the next plan may be on
 * its way: a backend that computes while it waits for a step could not begin with it, so a step is
 * collected only where no plan comes before. Call it with the lock held. */
static worker_job next_job(const worker_server *s)
{
    if (s->job != JOB_NONE) return s->job;
    if (s->result) return JOB_NONE;
    if (s->n_taken > s->n_submitted) return JOB_SUBMIT;
    bool full = s->n_submitted - s->n_collected == steps_of(&s->facts.info);
    return full || s->n_awaited > s->n_collected ? JOB_COLLECT : JOB_NONE;
}

/* Runs a job. Call it with the lock held, which it releases while the job runs. */
static void run_job(worker_server *s, worker_job job)
{
    error why = {{0}};
    s->host_used = s->running = true;
    pthread_mutex_unlock(&s->lock);
    status st = jobs[job](s, &why);
    pthread_mutex_lock(&s->lock);
    s->job = JOB_NONE;
    s->running = false;
    if (s->state != WORKER_ENDING) {
        s->status = st;
        if (status_ok(st)) s->state = reached[job];
        else server_end_session(s, why.text[0] ? why.text : status_text(st.code));
    }
    bool has_answer = job != JOB_SUBMIT || s->state == WORKER_ENDING;
    if (s->asker && has_answer) call_wake(s->asker);
}

static void *step_main(void *arg)
{
    worker_server *s = arg;
    thread_set_name("oct-worker");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        worker_job job = s->state == WORKER_ENDING ? JOB_NONE : next_job(s);
        if (s->state == WORKER_ENDING && !s->asker) reset_session(s);
        else if (job != JOB_NONE) run_job(s, job);
        else if (s->stop && s->state == WORKER_IDLE) break;
        else pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the watcher ----------------------------------------------------------------------------- */

static int64_t silence_us(const worker_server *s) { return (int64_t)s->config.silence_ms * 1000; }

static void *watch_main(void *arg)
{
    worker_server *s = arg;
    thread_set_name("oct-watch");
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->state == WORKER_IDLE || s->state == WORKER_ENDING) {
            pthread_cond_wait(&s->watch, &s->lock);
            continue;
        }
        int64_t due = s->last_beat_us + silence_us(s);
        if (clock_now_us() >= due) {
            char why[64];
            snprintf(why, sizeof why, "no heartbeat for %.1f s", (double)silence_us(s) / 1e6);
            server_end_session(s, why);
            continue;
        }
        struct timespec until = {due / 1000000, due % 1000000 * 1000};
        pthread_cond_timedwait(&s->watch, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void init_locks(worker_server *s)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->watch, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static status check_tls(const worker_tls *t, error *err)
{
    if (!t->cert == !t->key && !t->cert == !t->ca) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "tls: a certificate, its key and a CA are needed");
}

static status listen_on(worker_server *s, error *err)
{
    static const rpc_service *const services[] = {&worker_service};
    const worker_server_options *o = &s->o;
    RETURN_IF_ERROR(check_tls(&o->tls, err));
    grpc_front_options front = {
        .ctx = s,
        .address = o->address,
        .tls_cert = o->tls.cert,
        .tls_key = o->tls.key,
        .tls_client_ca = o->tls.ca,
        .max_message_bytes = message_bytes_max,
        .max_streams = STREAMS_MAX,
        .max_descriptors = DESCRIPTORS_MAX,
        .keepalive_timeout_us = FIRST_MESSAGE_US,
    };
    return grpc_front_create_for(&front, services, 1, &s->front, err);
}

/* Starts the threads with all signals blocked: the main thread handles signals. */
static status start_threads(worker_server *s, error *err)
{
    sigset_t every, old;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    s->has_steps = pthread_create(&s->steps, NULL, step_main, s) == 0;
    s->has_watcher = pthread_create(&s->watcher, NULL, watch_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return s->has_steps && s->has_watcher
               ? STATUS_IS_OK
               : error_set(err, STATUS_NO_MEMORY, "worker: cannot start a thread");
}

status worker_server_create(const worker_server_options *options, worker_server **out, error *err)
{
    worker_server *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "worker: out of memory");
    s->o = *options;
    init_locks(s);
    status st = start_threads(s, err);
    if (status_ok(st)) st = listen_on(s, err);
    if (status_ok(st)) *out = s;
    else worker_server_destroy(s);
    return st;
}

uint16_t worker_server_port(const worker_server *s) { return grpc_front_port(s->front); }

void worker_server_destroy(worker_server *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    server_end_session(s, "the worker stops");
    pthread_mutex_unlock(&s->lock);
    grpc_front_destroy(s->front); // no call comes or waits for an answer after this
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_cond_signal(&s->watch);
    server_end_session(s, "the worker stops");
    pthread_mutex_unlock(&s->lock);
    if (s->has_steps) pthread_join(s->steps, NULL);
    if (s->has_watcher) pthread_join(s->watcher, NULL);
    arena_destroy(&s->memory);
    forget_steps(s);
    free_result(s);
    pthread_cond_destroy(&s->watch);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
