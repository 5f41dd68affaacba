/* The publisher's sockets and its thread. */
#include "rpc/zmq/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

enum {
    BATCH_MAX = 256,    // events published before replays have a turn
    REPLAY_TURN_MS = 2, // between turns of the replays that run
    REPLAY_HWM = 256,   // messages that wait for a reader of a replay
    LINGER_MS = 200,
    NOTE_US = 10000000, // the shortest time between two log lines about one thing
    /* After which a reader that vanished leaves its place, as HTTP has it (rpc/http/listen.c). */
    DEAD_PEER_S = 30,
    /* Bytes of a part that a reader may send: a subscription's topic, a sequence number. */
    INCOMING_BYTES_MAX = 2048,
};

struct publisher {
    rpc_log *log;
    void *context, *pub;
    event_source source;
    replays replays;
    readers of_pub, of_router;
    uint64_t next;                      // the event to publish next
    int64_t full_note_us, lost_note_us; // when the log was told last; 0 = never
    int wake;                           // eventfd: there are new events, or the thread is to end
    listener listener;
    pthread_t thread;
    bool runs;
    _Atomic bool stop;
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void wake_thread(void *ctx)
{
    const publisher *p = ctx;
    const uint64_t one = 1;
    /* A full counter wakes the thread as well. */
    while (write(p->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void send_event(publisher *p)
{
    uint8_t sequence[SEQUENCE_BYTES];
    message_put_sequence(p->next, sequence);
    zmq_send(p->pub, p->source.topic, strlen(p->source.topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->pub, sequence, sizeof sequence, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->pub, p->source.payload.data, p->source.payload.size, ZMQ_DONTWAIT);
}

/* Logs what may happen again and again, once in NOTE_US at most. */
static void log_seldom(const publisher *p, int64_t *last_us, const char *text)
{
    int64_t now_us = clock_now_us();
    if (*last_us && now_us - *last_us < NOTE_US) return;
    *last_us = now_us;
    rpc_log_note(p->log, "warning", "kv_events", text);
}

/* Publishes events that wait, up to BATCH_MAX. Returns whether more wait. */
static bool publish_some(publisher *p)
{
    for (int i = 0; i < BATCH_MAX; i++) {
        status st = event_source_load(&p->source, p->next);
        if (st.code == STATUS_NOT_FOUND) return false;
        if (status_ok(st)) {
            send_event(p);
            p->next++;
        } else {
            /* Readers see by the numbers that messages are missing. */
            uint64_t oldest = rpc_events_oldest(p->source.events);
            log_seldom(p, &p->lost_note_us, "events were lost before they were sent");
            p->next = oldest > p->next ? oldest : p->next + 1;
        }
    }
    return true;
}

static void watch_readers(publisher *p)
{
    bool filled = readers_update(&p->of_pub);
    filled |= readers_update(&p->of_router);
    if (filled)
        log_seldom(p, &p->full_note_us,
                   "all places of readers are taken: others wait until one has gone");
}

/* Lists what the thread waits for: new events of the engine, connections, and requests for replays.
 * Such requests stay in their socket, unpolled, while there is no room for another replay. */
static int list_items(const publisher *p, zmq_pollitem_t items[4])
{
    int n = 0;
    items[n++] = (zmq_pollitem_t){.fd = p->wake, .events = ZMQ_POLLIN};
    void *const sockets[] = {p->of_pub.monitor, p->of_router.monitor,
                             p->replays.n < REPLAYS_MAX ? p->replays.router : NULL};
    for (int i = 0; i < 3; i++)
        if (sockets[i]) items[n++] = (zmq_pollitem_t){.socket = sockets[i], .events = ZMQ_POLLIN};
    return n;
}

static void *run_publisher(void *ctx)
{
    publisher *p = ctx;
    zmq_pollitem_t items[4];
    bool waits = true;
    uint64_t count;
    thread_set_name("oct-events");
    while (!atomic_load(&p->stop)) {
        int n_items = list_items(p, items);
        zmq_poll(items, n_items, !waits ? 0 : p->replays.n ? REPLAY_TURN_MS : -1);
        if (items[0].revents && read(p->wake, &count, sizeof count) < 0 && errno != EAGAIN) break;
        watch_readers(p);
        waits = !publish_some(p);
        int64_t now_us = clock_now_us();
        replays_receive(&p->replays, p->source.events, now_us);
        replays_send(&p->replays, &p->source, p->next, now_us);
    }
    return NULL;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static status fail_endpoint(const char *endpoint, const char *what, error *err)
{
    return error_set(err, STATUS_IO, "kv-events-config: cannot %s %.128s: %s", what, endpoint,
                     zmq_strerror(errno));
}

static status open_socket(void *context, int type, const char *endpoint, int hwm, bool listens,
                          void **out, readers *r, error *err)
{
    const int linger = LINGER_MS, has_v6 = strchr(endpoint, '[') != NULL, one = 1;
    const int64_t incoming = INCOMING_BYTES_MAX;
    const int idle = DEAD_PEER_S, between = DEAD_PEER_S / 3, probes = 3;
    void *s = *out = zmq_socket(context, type);
    if (!s || zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof hwm) != 0 ||
        zmq_setsockopt(s, ZMQ_IPV6, &has_v6, sizeof has_v6) != 0 ||
        zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &incoming, sizeof incoming) != 0 ||
        zmq_setsockopt(s, ZMQ_TCP_KEEPALIVE, &one, sizeof one) != 0 ||
        zmq_setsockopt(s, ZMQ_TCP_KEEPALIVE_IDLE, &idle, sizeof idle) != 0 ||
        zmq_setsockopt(s, ZMQ_TCP_KEEPALIVE_INTVL, &between, sizeof between) != 0 ||
        zmq_setsockopt(s, ZMQ_TCP_KEEPALIVE_CNT, &probes, sizeof probes) != 0 ||
        (type == ZMQ_ROUTER && zmq_setsockopt(s, ZMQ_ROUTER_MANDATORY, &one, sizeof one) != 0))
        return fail_endpoint(endpoint, "make a socket for", err);
    const char *monitor = type == ZMQ_ROUTER ? "inproc://of-router" : "inproc://of-pub";
    bool is_port = strncmp(endpoint, "tcp://", 6) == 0;
    if (listens && is_port && !status_ok(readers_watch(r, context, s, monitor)))
        return fail_endpoint(endpoint, "watch the readers of", err);
    if (listens && zmq_bind(s, endpoint) != 0) return fail_endpoint(endpoint, "listen on", err);
    if (!listens && zmq_connect(s, endpoint) != 0)
        return fail_endpoint(endpoint, "connect to", err);
    return STATUS_IS_OK;
}

static status open_sockets(publisher *p, const publisher_config *c, error *err)
{
    p->context = zmq_ctx_new();
    if (!p->context) return error_set(err, STATUS_NO_MEMORY, "kv-events-config: out of memory");
    RETURN_IF_ERROR(open_socket(p->context, ZMQ_PUB, c->endpoint, c->hwm,
                                publisher_listens(c->endpoint), &p->pub, &p->of_pub, err));
    if (!c->replay) return STATUS_IS_OK;
    return open_socket(p->context, ZMQ_ROUTER, c->replay, REPLAY_HWM, true, &p->replays.router,
                       &p->of_router, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static status start_thread(publisher *p, error *err)
{
    bool changed = thread_set_patient(true);
    p->runs = pthread_create(&p->thread, NULL, run_publisher, p) == 0;
    if (changed) thread_set_patient(false);
    if (!p->runs) return error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
    p->listener = (listener){.notify = wake_thread, .ctx = p};
    listeners_add(rpc_events_listeners(p->source.events), &p->listener);
    wake_thread(p); // for events that came before
    return STATUS_IS_OK;
}

static status start(publisher *p, const publisher_config *c, error *err)
{
    p->source.topic = strdup(c->topic);
    p->source.tokens = calloc(p->source.page_tokens, sizeof *p->source.tokens);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!p->source.topic || !p->source.tokens || p->wake < 0)
        return error_set(err, STATUS_NO_MEMORY, "kv-events-config: out of memory");
    RETURN_IF_ERROR(open_sockets(p, c, err));
    return start_thread(p, err);
}

status publisher_create(const rpc_options *o, publisher **out, error *err)
{
    publisher_config config;
    *out = NULL;
    bool has_keys = o->n_api_keys || o->n_admin_keys;
    status st = publisher_config_read(o->kv_events_config, has_keys, &config, err);
    if (status_ok(st) && config.enabled) {
        publisher *p = calloc(1, sizeof *p);
        if (p) {
            p->wake = -1;
            p->log = o->log;
            p->source = (event_source){.events = o->events, .page_tokens = o->model.page_tokens};
            p->next = rpc_events_oldest(o->events);
            st = start(p, &config, err);
            if (status_ok(st)) *out = p;
            else publisher_destroy(p);
        } else {
            st = error_set(err, STATUS_NO_MEMORY, "kv-events-config: out of memory");
        }
    }
    publisher_config_destroy(&config);
    return st;
}

void publisher_destroy(publisher *p)
{
    if (!p) return;
    if (p->runs) {
        listeners_remove(rpc_events_listeners(p->source.events), &p->listener);
        atomic_store(&p->stop, true);
        wake_thread(p);
        pthread_join(p->thread, NULL);
    }
    readers_forget(&p->of_pub);
    readers_forget(&p->of_router);
    if (p->pub) zmq_close(p->pub);
    if (p->replays.router) zmq_close(p->replays.router);
    if (p->context) zmq_ctx_term(p->context);
    if (p->wake >= 0) close(p->wake);
    strbuf_destroy(&p->source.payload);
    free(p->source.tokens);
    free(p->source.topic);
    free(p);
}
