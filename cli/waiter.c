/* Notifications and signals wake the loop through one eventfd. */
#include "cli/waiter.h"

#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct waiter {
    int fd;
    _Atomic bool pending; // fd was written to since the last wait: saves a second system call
    _Atomic bool armed, interrupted, terminated, stop;
    sigset_t signals;
    pthread_t thread;
};

static void wake(waiter *w)
{
    uint64_t one = 1;
    ssize_t n;
    do n = write(w->fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

void waiter_notify(void *ctx)
{
    waiter *w = ctx;
    if (!atomic_exchange(&w->pending, true)) wake(w);
}

static void *watch_signals(void *ctx)
{
    waiter *w = ctx;
    int signal_number;
    while (sigwait(&w->signals, &signal_number) == 0 && !atomic_load(&w->stop)) {
        if (!atomic_load(&w->armed) || waiter_interrupted(w)) _exit(CLI_INTERRUPTED);
        atomic_store(signal_number == SIGTERM ? &w->terminated : &w->interrupted, true);
        wake(w);
    }
    return NULL;
}

status waiter_create(waiter **out, error *err)
{
    waiter *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    sigemptyset(&w->signals);
    sigaddset(&w->signals, SIGINT);
    sigaddset(&w->signals, SIGTERM);
    w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_sigmask(SIG_BLOCK, &w->signals, NULL);
    if (w->fd < 0 || pthread_create(&w->thread, NULL, watch_signals, w) != 0) {
        if (w->fd >= 0) close(w->fd);
        free(w);
        return error_set(err, STATUS_INTERNAL, "cannot watch for signals: %s", strerror(errno));
    }
    *out = w;
    return STATUS_IS_OK;
}

void waiter_destroy(waiter *w)
{
    if (!w) return;
    atomic_store(&w->stop, true);
    pthread_kill(w->thread, SIGTERM); /* ends its sigwait */
    pthread_join(w->thread, NULL);
    close(w->fd);
    free(w);
}

void waiter_arm(waiter *w, bool armed) { atomic_store(&w->armed, armed); }

bool waiter_interrupted(const waiter *w)
{
    return atomic_load(&w->interrupted) || atomic_load(&w->terminated);
}

bool waiter_resume(waiter *w)
{
    atomic_store(&w->interrupted, false);
    return !atomic_load(&w->terminated);
}

void waiter_wait(waiter *w, int fd, int timeout_ms)
{
    struct pollfd polled[2] = {{.fd = w->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    poll(polled, 2, timeout_ms);
    uint64_t count;
    while (read(w->fd, &count, sizeof count) > 0) continue;
    /* Only now: a notification after the read has to write again. */
    atomic_store(&w->pending, false);
}
