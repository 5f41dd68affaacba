/* The service: its state, its counts of refused requests, and when refused clients may return. */
#include "rpc/service.h"

#include "rpc/keys.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* The shortest time between two log lines about refused requests. */
enum { LOG_REFUSALS_US = 1000000 };

/* ---- life ------------------------------------------------------------------------------------ */

status service_init(service *s, const rpc_options *options)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *s = (service){
        .o = *options,
        .start_us = clock_now_us(),
        .start_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9,
        .id_salt = hash_mix64((uint64_t)clock_now_ns() ^ (uint64_t)now.tv_nsec << 20),
        .was_serving = true,
    };
    RETURN_IF_ERROR(service_keys_create(options, &s->keys));
    if (!answers_init(&s->answers, service_key_count(s))) {
        service_keys_destroy(s->keys);
        return status_make(STATUS_NO_MEMORY, "service");
    }
    pthread_mutex_init(&s->lock, NULL);
    listeners_init(&s->state_listeners);
    return STATUS_IS_OK;
}

/* ---- state ----------------------------------------------------------------------------------- */

void service_drain(service *s)
{
    if (!atomic_exchange(&s->draining, true)) listeners_notify(&s->state_listeners);
}

static engine_state state_of_engine(service *s) { return engine_get_stats(s->o.engine).state; }

bool service_is_serving(service *s)
{
    return !atomic_load(&s->draining) && state_of_engine(s) == ENGINE_WORKING;
}

const char *service_state(service *s)
{
    static const char *const names[] = {
        [ENGINE_WORKING] = "serving",
        [ENGINE_RESTARTING] = "restarting",
        [ENGINE_BROKEN] = "broken",
    };
    return atomic_load(&s->draining) ? "draining" : names[state_of_engine(s)];
}

bool service_knows_model(const service *s, const char *name, size_t n)
{
    if (!name || n == 0) return true;
    for (size_t i = 0; i < s->o.model.n_names; i++) {
        const char *known = s->o.model.names[i];
        if (strlen(known) == n && memcmp(known, name, n) == 0) return true;
    }
    return false;
}

/* ---- memory of bodies ------------------------------------------------------------------------ */

bool service_take_body(service *s, size_t n)
{
    uint64_t most = s->o.body_memory_bytes ? s->o.body_memory_bytes / RPC_BODY_FACTOR : UINT64_MAX;
    uint64_t had = atomic_load(&s->body_bytes);
    do {
        if (n > most || had > most - n) return false;
    } while (!atomic_compare_exchange_weak(&s->body_bytes, &had, had + n));
    return true;
}

void service_give_body(service *s, size_t n) { atomic_fetch_sub(&s->body_bytes, n); }

/* ---- refusals -------------------------------------------------------------------------------- */

const char *service_refusal_name(service_refusal why)
{
    static const char *const names[] = {
        [REFUSED_QUEUE_FULL] = "queue_full",
        [REFUSED_DRAINING] = "draining",
        [REFUSED_UNAVAILABLE] = "unavailable",
    };
    return names[why];
}

void service_count_refusal(service *s, service_refusal why)
{
    atomic_fetch_add_explicit(&s->refused[why], 1, memory_order_relaxed);
}

/* Logs how many requests were refused for each reason. answers.c logs a line for each refusal, ten
 * a second at most, and overload refuses thousands: this sum is complete. */
static void log_refusals(service *s)
{
    uint64_t fresh[SERVICE_REFUSALS], sum = 0;
    for (int i = 0; i < SERVICE_REFUSALS; i++) {
        fresh[i] =
            atomic_load_explicit(&s->refused[i], memory_order_relaxed) - s->refused_logged[i];
        sum += fresh[i];
    }
    if (sum == 0 || !s->o.log) return;
    strbuf line = {0};
    rpc_log_begin(&line, "warning", "refused");
    for (int i = 0; i < SERVICE_REFUSALS; i++) {
        s->refused_logged[i] += fresh[i];
        rpc_log_number(&line, service_refusal_name((service_refusal)i), fresh[i]);
    }
    rpc_log_end(s->o.log, &line);
}

/* Logs how many idle connections were closed to make room. */
static void log_idle_closed(service *s)
{
    uint64_t n = atomic_load_explicit(&s->n_idle_closed, memory_order_relaxed);
    uint64_t fresh = n - s->idle_closed_logged;
    s->idle_closed_logged = n;
    if (fresh == 0 || !s->o.log) return;
    strbuf line = {0};
    rpc_log_begin(&line, "warning", "connections");
    rpc_log_number(&line, "idle_closed", fresh);
    rpc_log_end(s->o.log, &line);
}

void service_tick(service *s)
{
    int64_t now_us = clock_now_us();
    if (now_us - s->refused_logged_us >= LOG_REFUSALS_US) {
        s->refused_logged_us = now_us;
        log_refusals(s);
        log_idle_closed(s);
        answers_tick(s);
    }
    bool serving = service_is_serving(s);
    if (serving != s->was_serving) listeners_notify(&s->state_listeners);
    s->was_serving = serving;
}

void service_destroy(service *s)
{
    log_refusals(s);
    log_idle_closed(s);
    answers_tick(s);
    answers_destroy(&s->answers);
    listeners_destroy(&s->state_listeners);
    pthread_mutex_destroy(&s->lock);
    service_keys_destroy(s->keys);
    *s = (service){0};
}

uint32_t service_retry_after_s(service *s)
{
    enum { LEAST_S = 1, MOST_S = 60, SHARE = 4 };
    pthread_mutex_lock(&s->lock);
    double seconds = ceil(s->duration_us / SHARE / 1e6);
    pthread_mutex_unlock(&s->lock);
    return seconds < LEAST_S ? LEAST_S : seconds > MOST_S ? MOST_S : (uint32_t)seconds;
}
