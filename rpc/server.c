/* The server: one service, its front ends, and a thread that watches the engine's state. */
#include "rpc/grpc/grpc.h"
#include "rpc/http/http.h"
#include "rpc/otlp/otlp.h"
#include "rpc/service.h"
#include "rpc/services/services.h"
#include "rpc/zmq/publisher.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 250 };

struct rpc_server {
    service service;
    http_server *http; // NULL = none
    grpc_front *grpc;
    publisher *publisher;
    pthread_t ticker;
    bool ticks;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop;
};

/* ---- the ticker ------------------------------------------------------------------------------ */

static struct timespec next_tick(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += TICK_MS * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void *tick_service(void *ctx)
{
    rpc_server *s = ctx;
    thread_set_name("oct-ticker");
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        pthread_mutex_unlock(&s->lock);
        service_tick(&s->service);
        struct timespec until = next_tick();
        pthread_mutex_lock(&s->lock);
        while (!s->stop && pthread_cond_timedwait(&s->stopped, &s->lock, &until) == 0) continue;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void init_stop(rpc_server *s)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void tell_trouble(void *log, const char *text)
{
    rpc_log_note(log, "warning", "traces", text);
}

static tracer_options traces_of(const rpc_options *o)
{
    return (tracer_options){.endpoint = o->otlp_traces_endpoint,
                            .version = o->version,
                            .on_trouble = tell_trouble,
                            .on_trouble_ctx = o->log};
}

static status start_fronts(rpc_server *s, error *err)
{
    static const rpc_service *const services[] = {
        &octavo_v1_service,
        &vllm_engine_service,
        &kserve_service,
    };
    const rpc_options *o = &s->service.o;
    if (o->otlp_traces_endpoint) {
        tracer_options traces = traces_of(o);
        RETURN_IF_ERROR(tracer_create(&traces, &s->service.tracer, err));
    }
    if (o->http_address) RETURN_IF_ERROR(http_server_create(&s->service, &s->http, err));
    if (o->grpc_address)
        RETURN_IF_ERROR(grpc_front_create(&s->service, services,
                                          sizeof services / sizeof services[0], &s->grpc, err));
    if (o->kv_events_config) RETURN_IF_ERROR(publisher_create(o, &s->publisher, err));
    s->ticks = pthread_create(&s->ticker, NULL, tick_service, s) == 0;
    return s->ticks ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
}

status rpc_server_check(const rpc_options *o, error *err)
{
    int fd;
    if (o->kv_events_config)
        RETURN_IF_ERROR(
            publisher_check(o->kv_events_config, o->n_api_keys || o->n_admin_keys, err));
    tracer_options traces = traces_of(o);
    if (traces.endpoint) RETURN_IF_ERROR(tracer_check(&traces, err));
    RETURN_IF_ERROR(http_server_check(o, &fd, err));
    status with_http = o->grpc_address ? grpc_front_check(o->grpc_address, err) : STATUS_IS_OK;
    if (fd < 0) return with_http;
    close(fd);
    if (with_http.code != STATUS_IO || !status_ok(grpc_front_check(o->grpc_address, NULL)))
        return with_http;
    return error_set(err, STATUS_INVALID, "grpc: %s: http is to listen on the same port",
                     o->grpc_address);
}

status rpc_server_create(const rpc_options *options, rpc_server **out, error *err)
{
    rpc_server *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "server: out of memory");
    status st = service_init(&s->service, options);
    if (!status_ok(st)) {
        free(s);
        return error_set(err, st.code, "%s", st.message);
    }
    init_stop(s);
    st = start_fronts(s, err);
    if (!status_ok(st)) {
        rpc_server_destroy(s);
        return st;
    }
    *out = s;
    return STATUS_IS_OK;
}

uint16_t rpc_server_http_port(const rpc_server *s)
{
    return s->http ? http_server_port(s->http) : 0;
}
uint16_t rpc_server_grpc_port(const rpc_server *s)
{
    return s->grpc ? grpc_front_port(s->grpc) : 0;
}

void rpc_server_drain(rpc_server *s)
{
    service_drain(&s->service);
    if (s->http) http_server_drain(s->http);
    if (s->grpc) grpc_front_drain(s->grpc);
}

uint32_t rpc_server_in_flight(const rpc_server *s) { return atomic_load(&s->service.in_flight); }

static void stop_ticker(rpc_server *s)
{
    if (!s->ticks) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->stopped);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->ticker, NULL);
}

void rpc_server_flush_until(rpc_server *s, int64_t until_us)
{
    tracer_flush_until(s->service.tracer, until_us);
}

void rpc_server_destroy(rpc_server *s)
{
    if (!s) return;
    stop_ticker(s);
    http_server_destroy(s->http);
    grpc_front_destroy(s->grpc);
    publisher_destroy(s->publisher);
    tracer_destroy(s->service.tracer); // after the fronts, whose last requests have spans
    service_destroy(&s->service);
    pthread_cond_destroy(&s->stopped);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
