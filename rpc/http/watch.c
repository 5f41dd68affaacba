/* A thread that watches connections where libmicrohttpd does not.
 *
 * libmicrohttpd does not look at a suspended connection: it would notice that a client has left
 * only when there is something to write. And its timeout starts anew with every byte, so that a
 * request could trickle in for ever. Here every connection has a deadline for its next whole
 * request, every socket is polled for a client that leaves, and a stream that its client does not
 * read has a time limit.
 *
 * Connections beyond max_connections are there to be answered at once, so they must send their
 * request soon. When these run out, too, idle connections are closed, the oldest first.
 *
 * An answer that did not wait for the request's body ends its connection. The socket then lingers
 * here until the client has sent the body or closed.
 *
 * A client that closes only its sending side counts as gone: it looks the same as a client that
 * left.
 *
 * A connection that is cut is shut down here and closed by libmicrohttpd. Lock order: the watch's
 * lock, a wake's lock, libmicrohttpd's own. */
#include "rpc/http/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    FULL_TICK_MS = 10,
    FRESH_US = 20000, // a connection does not count as idle before
    EVENTS_MAX = 64,
    HUNG_UP_US = 250000,
    SURPLUS_US = 2000000, // for the request of a surplus connection
    LINGER_US = 10000000,
    LINGERING_MAX = 64, // at once; fewer where few connections are allowed
    TRIES_MAX = 16,     // idle connections looked at to make room once
    DROP_BYTES = 64 * 1024,
};

/* ---- the thread ------------------------------------------------------------------------------ */

/* Shuts a connection down and tells its request. Call this and the functions below, up to
 * take_events, with the watch's lock held. */
static void cut_connection(http_watch *w, http_connection *c)
{
    if (c->wake) wake_cut(c->wake);
    shutdown(c->fd, SHUT_RDWR);
    c->deadline_us = 0;
    if (!c->cut) w->n_live--;
    c->cut = true;
}

/* Closes an idle connection whose room is needed. */
static void close_idle(http_watch *w, http_connection *c)
{
    cut_connection(w, c);
    atomic_fetch_add_explicit(w->n_idle_closed, 1, memory_order_relaxed);
}

static bool is_full(const http_watch *w) { return w->n_live >= w->most; }

static http_connection *oldest_idle(const http_watch *w, int64_t before_us)
{
    http_connection *oldest = NULL;
    for (http_connection *c = w->first; c; c = c->next)
        if (!c->in_work && !c->cut && c->idle_us < (oldest ? oldest->idle_us : before_us))
            oldest = c;
    return oldest;
}

/* Closes the connection that has been idle for the longest, so that the next one can be accepted. A
 * connection whose request libmicrohttpd has not read yet is not idle. One whose request it has
 * just read looks idle until its handler is called, so a connection is closed when it was found
 * idle twice. */
static void make_room(http_watch *w)
{
    int64_t now_us = clock_now_us();
    for (int i = 0; i < TRIES_MAX; i++) {
        http_connection *c = oldest_idle(w, now_us - FRESH_US);
        char byte;
        if (!c) return;
        bool was_idle = c->looks_idle;
        c->looks_idle = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1;
        if (was_idle && c->looks_idle) {
            close_idle(w, c);
            return;
        }
        c->idle_us = now_us;
    }
}

/* Handles a client that has closed its side. If its request is not running yet, the rest of it may
 * still be on its way to libmicrohttpd, so the connection is cut a little later; libmicrohttpd may
 * miss the end by itself. */
static void hang_up(http_watch *w, http_connection *c)
{
    c->hung_up = true;
    if (c->running) cut_connection(w, c);
    else c->deadline_us = clock_now_us() + HUNG_UP_US;
}

/* ---- lingering ------------------------------------------------------------------------------- */

static void add_first(http_connection **list, http_connection *c)
{
    c->prev = NULL;
    c->next = *list;
    if (c->next) c->next->prev = c;
    *list = c;
}

static void take_out(http_connection **list, http_connection *c)
{
    if (c->prev) c->prev->next = c->next;
    else *list = c->next;
    if (c->next) c->next->prev = c->prev;
}

static void bury(http_watch *w, http_connection *c)
{
    c->next = w->dead;
    w->dead = c;
}

static void end_lingering(http_watch *w, http_connection *c)
{
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->is_lingering = false;
    w->n_lingering--;
    take_out(&w->lingering, c);
    bury(w, c);
}

static void end_oldest_lingering(http_watch *w)
{
    http_connection *c = w->lingering;
    while (c->next) c = c->next;
    end_lingering(w, c);
}

/* Takes a copy of the connection's fd over. False when it must be closed at once. */
static bool linger(http_watch *w, http_connection *c)
{
    uint32_t most = w->most / 8 < LINGERING_MAX ? w->most / 8 : LINGERING_MAX;
    if (c->cut || most == 0) return false;
    if (w->n_lingering >= most) end_oldest_lingering(w);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return false;
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return false;
    }
    shutdown(fd, SHUT_WR); /* under TLS libmicrohttpd leaves it to its close */
    c->fd = fd;
    c->deadline_us = clock_now_us() + LINGER_US;
    w->n_lingering++;
    add_first(&w->lingering, c);
    return true;
}

/* Drops what the client has sent; epoll reports what is left again. */
static void drop_bytes(http_watch *w, http_connection *c)
{
    char bytes[DROP_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) end_lingering(w, c);
}

static void end_lingerers(http_watch *w, int64_t now_us)
{
    for (http_connection *c = w->lingering, *next; c; c = next) {
        next = c->next;
        if (now_us > c->deadline_us) end_lingering(w, c);
    }
}

/* ---- the thread's turn ----------------------------------------------------------------------- */

static void cut_late_ones(http_watch *w, int64_t now_us)
{
    end_lingerers(w, now_us);
    for (http_connection *c = w->first; c; c = c->next) {
        bool late = c->deadline_us && now_us > c->deadline_us;
        if (late && c->surplus && !c->in_work && !c->hung_up) close_idle(w, c);
        else if (late || (c->wake && wake_is_stalled(c->wake, now_us - w->stall_us)))
            cut_connection(w, c);
    }
}

static void free_dead(http_watch *w)
{
    while (w->dead) {
        http_connection *c = w->dead;
        w->dead = c->next;
        free(c);
    }
}

static void take_events(http_watch *w, const struct epoll_event *events, int n)
{
    for (int i = 0; i < n; i++) {
        http_connection *c = events[i].data.ptr;
        uint64_t count;
        if (!c) (void)!read(w->wake_fd, &count, sizeof count);
        else if (c->is_lingering) drop_bytes(w, c);
        else if (c->polled) hang_up(w, c);
    }
}

static void *watch_run(void *ctx)
{
    http_watch *w = ctx;
    struct epoll_event events[EVENTS_MAX];
    int64_t look_us = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        free_dead(w);
        int wait_ms = is_full(w) ? FULL_TICK_MS : w->first || w->lingering ? TICK_MS : -1;
        pthread_mutex_unlock(&w->lock);
        int n = epoll_wait(w->epoll_fd, events, EVENTS_MAX, wait_ms);
        pthread_mutex_lock(&w->lock);
        take_events(w, events, n);
        int64_t now_us = clock_now_us();
        if (now_us >= look_us) { /* and not at each packet of those that linger */
            cut_late_ones(w, now_us);
            look_us = now_us + FULL_TICK_MS * 1000;
        }
        if (is_full(w)) make_room(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void wake_thread(http_watch *w)
{
    uint64_t one = 1;
    (void)!write(w->wake_fd, &one, sizeof one);
}

status watch_create(http_watch *w, service *s, uint32_t most, error *err)
{
    *w = (http_watch){.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                      .wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                      .request_us = s->o.keepalive_timeout_us,
                      .stall_us = s->o.stall_timeout_us,
                      .max_connections = s->o.max_connections,
                      .most = most,
                      .n_idle_closed = &s->n_idle_closed};
    pthread_mutex_init(&w->lock, NULL);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (w->epoll_fd < 0 || w->wake_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->wake_fd, &event) != 0)
        return error_set(err, STATUS_IO, "http: cannot watch connections");
    w->started = pthread_create(&w->thread, NULL, watch_run, w) == 0;
    return w->started ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
}

void watch_destroy(http_watch *w)
{
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_mutex_unlock(&w->lock);
        wake_thread(w);
        pthread_join(w->thread, NULL);
    }
    while (w->lingering) end_lingering(w, w->lingering);
    free_dead(w);
    if (w->epoll_fd >= 0) close(w->epoll_fd);
    if (w->wake_fd >= 0) close(w->wake_fd);
    pthread_mutex_destroy(&w->lock);
}

/* ---- ending all requests --------------------------------------------------------------------- */

static uint32_t n_busy(http_watch *w)
{
    pthread_mutex_lock(&w->lock);
    uint32_t n = w->n_busy;
    pthread_mutex_unlock(&w->lock);
    return n;
}

static void wake_all(http_watch *w, bool *flag, void (*wake)(http_wake *wake))
{
    pthread_mutex_lock(&w->lock);
    *flag = true;
    for (http_connection *c = w->first; c; c = c->next)
        if (c->wake) wake(c->wake);
    pthread_mutex_unlock(&w->lock);
}

void watch_end_all(http_watch *w, int64_t patience_us)
{
    static const struct timespec nap = {0, 2000000};
    int64_t until_us = clock_now_us() + patience_us;
    wake_all(w, &w->aborting, wake_abort);
    while (n_busy(w) > 0 && clock_now_us() < until_us) nanosleep(&nap, NULL);
    wake_all(w, &w->closing, wake_cut);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void set_deadline(const http_watch *w, http_connection *c)
{
    int64_t us = w->request_us;
    if (c->surplus && us > SURPLUS_US) us = SURPLUS_US;
    if (c->hung_up) us = HUNG_UP_US;
    c->deadline_us = clock_now_us() + us;
}

http_connection *watch_opened(http_watch *w, int fd)
{
    http_connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->fd = fd;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    pthread_mutex_lock(&w->lock);
    bool was_empty = !w->first;
    c->polled = epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
    c->surplus = ++w->n_live > w->max_connections;
    c->idle_us = clock_now_us();
    set_deadline(w, c);
    add_first(&w->first, c);
    bool full = is_full(w);
    pthread_mutex_unlock(&w->lock);
    if (was_empty || full) wake_thread(w);
    return c;
}

void watch_closed(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    if (c->polled) epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    c->polled = false;
    if (!c->cut) w->n_live--;
    take_out(&w->first, c);
    c->is_lingering = c->lingers && linger(w, c);
    if (!c->is_lingering) bury(w, c);
    pthread_mutex_unlock(&w->lock);
}

void watch_began(http_watch *w, http_connection *c, http_wake *wake)
{
    pthread_mutex_lock(&w->lock);
    c->wake = wake;
    set_deadline(w, c);
    w->n_busy++;
    if (w->aborting) wake_abort(wake);
    if (w->closing) wake_cut(wake);
    pthread_mutex_unlock(&w->lock);
}

void watch_has_head(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    c->in_work = true;
    pthread_mutex_unlock(&w->lock);
}

void watch_progress(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    set_deadline(w, c);
    pthread_mutex_unlock(&w->lock);
}

void watch_complete(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    c->deadline_us = 0;
    pthread_mutex_unlock(&w->lock);
}

void watch_runs(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    c->running = true;
    if (c->hung_up) cut_connection(w, c);
    pthread_mutex_unlock(&w->lock);
}

void watch_ended(http_watch *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    c->wake = NULL;
    c->in_work = false;
    c->running = false;
    c->looks_idle = false;
    c->idle_us = clock_now_us();
    set_deadline(w, c);
    w->n_busy--;
    pthread_mutex_unlock(&w->lock);
}
