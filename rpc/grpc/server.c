/* The front: completion queues, each with a thread and always one request for the next call. */
#include "rpc/grpc/internal.h"

#include "proto/proto.h"
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h> // newer gRPC: grpc_security.h no longer includes it
#endif

enum {
    TICK_US = 1000000,
    STOP_TICK_US = 20000,
    FULL_TICK_US = 100000,  // while all connections are taken
    FULL_LOG_US = 10000000, // the shortest time between two log lines about it
    /* How long a stopping server waits for clients to receive its last status. */
    STOP_PATIENCE_US = 500000,
    METADATA_BYTES_MAX = 16 << 10,
    /* How often a client is pinged, and how long it may take to answer before it counts as gone. */
    KEEPALIVE_MS = 20000,
    KEEPALIVE_TIMEOUT_MS = 10000,
    /* How often a client may ping while it has no call. */
    CLIENT_PING_MS = 10000,
    QUOTA_BYTES_EACH = 32 << 10, // of a connection or a call: either takes about 13 kB
    UNPACK_FACTOR = 4,
    UNPACK_EXTRA = 1 << 20,
};

/* ---- the table of methods -------------------------------------------------------------------- */

static int compare_paths(const void *a, const void *b)
{
    return strcmp((*(const rpc_method *const *)a)->path, (*(const rpc_method *const *)b)->path);
}

const rpc_method *front_method(const grpc_front *f, const char *path, size_t n)
{
    size_t low = 0, high = f->n_methods;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *have = f->methods[middle]->path;
        size_t n_have = strlen(have);
        int order = memcmp(have, path, n_have < n ? n_have : n);
        if (order == 0) order = (n_have > n) - (n_have < n);
        if (order == 0) return f->methods[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

static status make_tables(grpc_front *f, const rpc_service *const *services, size_t n_services)
{
    static const rpc_service *const own[] = {&health_service, &reflection_service,
                                             &reflection_v1alpha_service};
    enum { N_OWN = sizeof own / sizeof *own };
    f->services = calloc(n_services + N_OWN, sizeof *f->services);
    if (!f->services) return status_make(STATUS_NO_MEMORY, "services");
    for (size_t i = 0; i < n_services; i++) f->services[f->n_services++] = services[i];
    for (size_t i = 0; i < N_OWN; i++) f->services[f->n_services++] = own[i];
    size_t n = 0;
    for (size_t i = 0; i < f->n_services; i++) n += f->services[i]->n_methods;
    f->methods = calloc(n, sizeof *f->methods);
    if (!f->methods) return status_make(STATUS_NO_MEMORY, "methods");
    for (size_t i = 0; i < f->n_services; i++)
        for (size_t k = 0; k < f->services[i]->n_methods; k++)
            f->methods[f->n_methods++] = &f->services[i]->methods[k];
    qsort(f->methods, f->n_methods, sizeof *f->methods, compare_paths);
    byte_range all = {octavo_descriptors, (size_t)(octavo_descriptors_end - octavo_descriptors)};
    return descriptor_set_open(all, &f->descriptors);
}

/* ---- the thread ------------------------------------------------------------------------------ */

bool front_is_draining(const grpc_front *f)
{
    const service *s = f->o.service;
    return atomic_load(&f->draining) || (s && atomic_load(&s->draining));
}

/* The queue with the fewest calls; among equals q itself or the next behind it. gRPC would give all
 * calls of a connection to one queue, and a router has one connection. */
static front_queue *least_busy(front_queue *q)
{
    grpc_front *f = q->front;
    front_queue *best = q;
    for (uint32_t i = 1; i < f->n_queues; i++) {
        front_queue *other = &f->queues[((uint32_t)(q - f->queues) + i) % f->n_queues];
        if (atomic_load(&other->n_calls) < atomic_load(&best->n_calls)) best = other;
    }
    return best;
}

static void ask_for_call(front_queue *q)
{
    grpc_call_details_init(&q->next_details);
    grpc_metadata_array_init(&q->next_metadata);
    q->next_owner = least_busy(q);
    atomic_fetch_add(&q->next_owner->n_calls, 1);
    grpc_call_error refused =
        grpc_server_request_call(q->front->server, &q->next_call, &q->next_details,
                                 &q->next_metadata, q->next_owner->queue, q->queue, &q->arrival);
    if (refused) atomic_fetch_sub(&q->next_owner->n_calls, 1); // q has been shut down
}

static void on_arrival(void *owner, bool ok)
{
    front_queue *q = owner, *to = q->next_owner;
    grpc_call *call = q->next_call;
    grpc_call_details details = q->next_details;
    grpc_metadata_array metadata = q->next_metadata;
    if (ok) {
        ask_for_call(q);
        call_arrive(to, call, &details, &metadata);
    } else { // the server shuts down
        grpc_metadata_array_destroy(&metadata);
        atomic_fetch_sub(&to->n_calls, 1);
    }
    grpc_call_details_destroy(&details);
}

static void on_shutdown(void *owner, bool ok)
{
    (void)ok;
    front_queue *q = owner;
    q->is_shut_down = true;
}

static uint32_t count_calls(const grpc_front *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_queues; i++) n += atomic_load(&f->queues[i].n_calls);
    return n;
}

/* Waits a while for clients to receive their last status, then cancels calls that are left. */
static void cancel_late(grpc_front *f, int64_t now)
{
    if (f->stop_deadline_us == 0) f->stop_deadline_us = now + STOP_PATIENCE_US;
    if (f->was_cancelled || (count_calls(f) > 0 && now < f->stop_deadline_us)) return;
    f->was_cancelled = true;
    grpc_server_cancel_all_calls(f->server);
}

/* Stops in steps: finishes the queue's calls, and waits until they have ended and the server has
 * shut down. True when that is so. */
static bool stop_step(front_queue *q, int64_t now)
{
    if (!q->was_refused)
        for (rpc_call *c = q->first; c; c = c->next)
            call_refuse(c, GRPC_STATUS_UNAVAILABLE, "the server is stopping");
    q->was_refused = true;
    if (q == q->front->queues) cancel_late(q->front, now);
    if (!q->is_shut_down || atomic_load(&q->n_calls) > 0) return false;
    grpc_completion_queue_shutdown(q->queue);
    return true;
}

/* Checks the queue's calls for stalls. Returns when the next tick is due. */
static int64_t tick_calls(front_queue *q, int64_t now)
{
    for (rpc_call *c = q->first; c; c = c->next) call_check_stall(c, now);
    return now + TICK_US;
}

/* Lets connections in when others have been closed, and logs that none is let in. */
static void tick_gate(grpc_front *f, int64_t now)
{
    bool was_filled;
    uint32_t places = gate_update(f->gate, &f->is_full, &was_filled);
    bool is_due = f->full_log_us == 0 || now - f->full_log_us >= FULL_LOG_US;
    if (!was_filled || !is_due || !f->o.service) return;
    char text[128];
    f->full_log_us = now;
    snprintf(text, sizeof text, "%u gRPC connections are all that may be open: new ones wait",
             places);
    rpc_log_note(f->o.service->o.log, "warning", "limits", text);
}

/* Takes an event out of the queue, or waits until then. False when the queue is shut down and
 * empty. */
static bool run_event(front_queue *q, int64_t wait_us)
{
    gpr_timespec until =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(wait_us, GPR_TIMESPAN));
    grpc_event event = grpc_completion_queue_next(q->queue, until, NULL);
    if (event.type != GRPC_OP_COMPLETE) return event.type != GRPC_QUEUE_SHUTDOWN;
    queue_op *op = event.tag;
    op->done(op->owner, event.success);
    return true;
}

static void *run_queue(void *arg)
{
    front_queue *q = arg;
    grpc_front *f = q->front;
    bool has_gate = q == f->queues, is_closing = false;
    int64_t next_us = clock_now_us() + TICK_US, gate_us = 0, wait_us;
    do {
        int64_t now = clock_now_us();
        bool stopping = atomic_load(&f->stopping);
        if (now >= next_us) next_us = tick_calls(q, now);
        if (has_gate && now >= gate_us) {
            tick_gate(f, now);
            gate_us = now + FULL_TICK_US;
        }
        if (stopping && !is_closing) is_closing = stop_step(q, now);
        int64_t until_us = has_gate && f->is_full && gate_us < next_us ? gate_us : next_us;
        wait_us = stopping ? STOP_TICK_US : until_us - now;
    } while (run_event(q, wait_us));
    return NULL;
}

static void *queue_main(void *arg)
{
    front_queue *q = arg;
    thread_set_name("oct-grpc");
    if (q->front->o.service) thread_set_patient(true); // the engine's threads come first
    return run_queue(q);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void write_asserts(gpr_log_func_args *args)
{
    if (strstr(args->message, "assertion failed")) fprintf(stderr, "grpc: %s\n", args->message);
}

void grpc_keep_quiet(void)
{
#ifdef GPR_ERROR // newer gRPC does not log through this function
    if (!getenv("GRPC_VERBOSITY")) gpr_set_log_function(write_asserts);
#endif
}

static grpc_arg int_arg(const char *key, size_t value)
{
    int n = value < INT_MAX ? (int)value : INT_MAX;
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = n};
}

/* How long a connection may be without a call, and how long its handshake may take. */
static int idle_ms(const grpc_front_options *o)
{
    int64_t ms = o->keepalive_timeout_us / 1000;
    return ms > 0 && ms < INT_MAX ? (int)ms : INT_MAX;
}

static status make_queues(grpc_front *f, error *err)
{
    uint32_t n = f->o.threads ? f->o.threads : 1;
    f->queues = calloc(n, sizeof *f->queues);
    if (!f->queues) return error_set(err, STATUS_NO_MEMORY, "grpc: out of memory");
    f->n_queues = n;
    for (uint32_t i = 0; i < n; i++) {
        front_queue *q = &f->queues[i];
        q->front = f;
        q->arrival = (queue_op){on_arrival, q};
        q->shutdown = (queue_op){on_shutdown, q};
        q->awake = (queue_op){call_on_awake, q};
        q->queue = grpc_completion_queue_create_for_next(NULL);
    }
    return STATUS_IS_OK;
}

/* gRPC takes memory for a message before this program learns of it, and without a key. With a quota
 * it closes calls once the memory of all is taken: that of connections, calls and as many of the
 * largest messages as the pool reads. A worker's front has one client, which it knows. */
static grpc_resource_quota *make_quota(const grpc_front_options *o)
{
    grpc_resource_quota *q = grpc_resource_quota_create("octavo");
    size_t n = (size_t)o->max_descriptors + (o->service ? o->service->o.model.max_requests : 0);
    size_t base = n * QUOTA_BYTES_EACH, most = (SIZE_MAX / 2 - base) / LARGE_MESSAGES;
    size_t message = o->max_message_bytes < most ? o->max_message_bytes : most;
    grpc_resource_quota_resize(q, o->service ? base + LARGE_MESSAGES * message : SIZE_MAX / 2);
    return q;
}

static void make_server(grpc_front *f)
{
    const grpc_front_options *o = &f->o;
    grpc_resource_quota *quota = make_quota(o);
    grpc_arg args[] = {
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, o->max_message_bytes),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, o->max_streams),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        /* Idle connections are closed, since connections need no key and each takes a descriptor.
         * gRPC clients reconnect by themselves. */
        int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, (size_t)idle_ms(o)),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (size_t)idle_ms(o)),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, CLIENT_PING_MS),
        /* No compression: a few compressed bytes could become a message of any size. */
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1u << GRPC_COMPRESS_NONE),
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        gate_arg(f->gate),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
    };
    grpc_channel_args all = {.num_args = sizeof args / sizeof *args, .args = args};
    f->server = grpc_server_create(&all, NULL);
    grpc_resource_quota_unref(quota);
    for (uint32_t i = 0; i < f->n_queues; i++)
        grpc_server_register_completion_queue(f->server, f->queues[i].queue, NULL);
}

static status listen_on(grpc_front *f, error *err)
{
    const grpc_front_options *o = &f->o;
    char address[ADDRESS_BYTES_MAX];
    grpc_server_credentials *credentials;
    RETURN_IF_ERROR(address_resolve(o->address, address, err));
    RETURN_IF_ERROR(credentials_create(o, &credentials, err));
    int port = grpc_server_add_http2_port(f->server, address, credentials);
    grpc_server_credentials_release(credentials);
    if (port > 0) {
        f->port = (uint16_t)port;
        if (gate_listening(f->gate)) return STATUS_IS_OK;
        return error_set(err, STATUS_INTERNAL, "grpc: gRPC %s does not show its sockets",
                         grpc_version_string());
    }
    const char *problem = address_problem(address);
    if (!problem)
        problem = o->tls_cert ? "the certificate and its key cannot be used" : "cannot listen";
    return error_set(err, STATUS_IO, "grpc: %s: %s", address, problem);
}

static status start_threads(grpc_front *f, error *err)
{
    bool ok = true;
    grpc_server_start(f->server);
    f->is_started = true;
    for (uint32_t i = 0; i < f->n_queues; i++) ask_for_call(&f->queues[i]);
    for (uint32_t i = 0; i < f->n_queues && ok; i++) {
        front_queue *q = &f->queues[i];
        ok = q->has_thread = pthread_create(&q->thread, NULL, queue_main, q) == 0;
    }
    return ok ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "grpc: no thread");
}

static status make_front(grpc_front *f, const rpc_service *const *services, size_t n_services,
                         error *err)
{
    status st = make_tables(f, services, n_services);
    if (!status_ok(st)) return error_set(err, st.code, "grpc: %s", st.message);
    RETURN_IF_ERROR(make_queues(f, err));
    f->gate = gate_create(f->o.max_descriptors);
    if (!f->gate) return error_set(err, STATUS_NO_MEMORY, "grpc: out of memory");
    make_server(f);
    RETURN_IF_ERROR(listen_on(f, err));
    /* A front without a service is a worker's. It has one client, the coordinator, which waits for
     * its messages anyway, so the queue's thread reads them. */
    if (f->o.service) {
        st = work_pool_create(&f->work, err);
        if (!status_ok(st)) error_prefix(err, "grpc");
        RETURN_IF_ERROR(st);
    }
    return start_threads(f, err);
}

status grpc_front_create_for(const grpc_front_options *o, const rpc_service *const *services,
                             size_t n_services, grpc_front **out, error *err)
{
    *out = NULL;
    grpc_front *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, STATUS_NO_MEMORY, "grpc: out of memory");
    f->o = *o;
    pthread_mutex_init(&f->open.lock, NULL);
    size_t most = (SIZE_MAX - UNPACK_EXTRA) / UNPACK_FACTOR;
    f->unpack_limit =
        UNPACK_FACTOR * (o->max_message_bytes < most ? o->max_message_bytes : most) + UNPACK_EXTRA;
    grpc_keep_quiet();
    grpc_init();
    status st = make_front(f, services, n_services, err);
    if (status_ok(st)) *out = f;
    else grpc_front_destroy(f);
    return st;
}

status grpc_front_create(service *s, const rpc_service *const *services, size_t n_services,
                         grpc_front **out, error *err)
{
    grpc_front_options o = {
        .service = s,
        .address = s->o.grpc_address,
        .tls_cert = s->o.tls_cert,
        .tls_key = s->o.tls_key,
        .tls_client_ca = s->o.tls_client_ca,
        .max_message_bytes = s->o.max_body_bytes,
        .max_streams = s->o.max_streams,
        .max_descriptors = s->o.max_grpc_descriptors,
        .stall_timeout_us = s->o.stall_timeout_us,
        .keepalive_timeout_us = s->o.keepalive_timeout_us,
        .threads = s->o.grpc_threads,
    };
    return grpc_front_create_for(&o, services, n_services, out, err);
}

void grpc_front_drain(grpc_front *f)
{
    atomic_store(&f->draining, true);
    if (f->o.service) listeners_notify(&f->o.service->state_listeners);
}

/* The shutdown fails the requested calls at once, which wakes each thread. A queue that got no
 * thread is emptied by this one. */
static void stop_threads(grpc_front *f)
{
    for (uint32_t i = 0; i < f->n_queues; i++)
        grpc_server_shutdown_and_notify(f->server, f->queues[i].queue, &f->queues[i].shutdown);
    for (uint32_t i = 0; i < f->n_queues; i++)
        if (f->queues[i].has_thread) pthread_join(f->queues[i].thread, NULL);
        else run_queue(&f->queues[i]);
}

void grpc_front_destroy(grpc_front *f)
{
    if (!f) return;
    atomic_store(&f->draining, true);
    atomic_store(&f->stopping, true);
    if (f->is_started) stop_threads(f);
    work_pool_destroy(&f->work); // no call is left, so no job either
    if (f->server) grpc_server_destroy(f->server);
    gate_close(f->gate);
    for (uint32_t i = 0; i < f->n_queues; i++) {
        if (!f->is_started) grpc_completion_queue_shutdown(f->queues[i].queue);
        grpc_completion_queue_destroy(f->queues[i].queue);
    }
    grpc_shutdown();
    pthread_mutex_destroy(&f->open.lock);
    free(f->services);
    free(f->methods);
    free(f->queues);
    free(f);
}

uint16_t grpc_front_port(const grpc_front *f) { return f->port; }

const rpc_service *const *grpc_front_services(const grpc_front *f, size_t *n)
{
    *n = f->n_services;
    return (const rpc_service *const *)f->services;
}
