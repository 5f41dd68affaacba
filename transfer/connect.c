/* Connections to a host with several addresses, of which some may not answer. They are tried in the
 * resolver's order, each a moment after the one before it, or once that one has failed, and the
 * first to be connected is taken, as RFC 8305 says. One time is for all of them. Where more than
 * CONNECTS_AT_ONCE do not answer, the oldest attempt is given up for the next address, as late as
 * the addresses that are left allow. */
#include "transfer/internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAUSE_US = 250000 };

typedef struct attempts {
    const struct addrinfo *next; /* the address that was not tried yet */
    int64_t next_us;             /* when it is to be tried */
    uint32_t n;
    struct pollfd fds[SOCKETS_ENDING + CONNECTS_AT_ONCE]; /* n of them are being connected */
} attempts;

static int begin_connect(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    int on = 1;
    if (fd < 0) return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

/* Takes out the socket of an attempt. The others keep their order, which is that of their age. */
static int take_out(attempts *t, uint32_t i)
{
    struct pollfd *fds = t->fds + SOCKETS_ENDING;
    int fd = fds[i].fd;
    memmove(fds + i, fds + i + 1, (--t->n - i) * sizeof *fds);
    return fd;
}

/* The time until the next address is tried: short where there are many addresses and little time,
 * so that the last one has its turn too. Where an attempt is to be given up for it, all of the time
 * is shared out. */
static int64_t pause_before_next(const attempts *t, int64_t left_us)
{
    int64_t n = 1;
    for (const struct addrinfo *a = t->next; a; a = a->ai_next) n++;
    return t->n < CONNECTS_AT_ONCE && left_us / n > PAUSE_US ? PAUSE_US : left_us / n;
}

static void try_next(attempts *t, int64_t until_us)
{
    int fd = begin_connect(t->next);
    t->next = t->next->ai_next;
    if (fd < 0) return;
    if (t->n == CONNECTS_AT_ONCE) close(take_out(t, 0));
    int64_t now = clock_now_us();
    t->fds[SOCKETS_ENDING + t->n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
    t->next_us = now + pause_before_next(t, until_us - now);
}

/* The socket that is connected, which is the caller's; -1: none is. Those that have failed are
 * closed. */
static int take_connected(attempts *t)
{
    for (uint32_t i = t->n; i-- > 0;) {
        int failed = 0;
        socklen_t n = sizeof failed;
        if (!t->fds[SOCKETS_ENDING + i].revents) continue;
        int fd = take_out(t, i);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n) == 0 && failed == 0) return fd;
        close(fd);
        t->next_us = 0;
    }
    return -1;
}

int socket_connect_to(const struct addrinfo *found, int64_t until_us, const socket_wait *w,
                      const char **why)
{
    attempts t = {.next = found};
    int fd = -1;
    *why = NULL;
    while (fd < 0 && !*why) {
        int64_t now = clock_now_us();
        bool ready = false;
        if (now >= until_us) {
            *why = socket_late;
        } else if (t.next && (now >= t.next_us || t.n == 0)) {
            try_next(&t, until_us);
        } else if (t.n == 0) {
            *why = "it cannot be connected to";
        } else {
            bool sooner = t.next && t.next_us < until_us;
            *why = socket_await_any(t.fds, t.n, w, sooner ? t.next_us : until_us, &ready);
            if (ready) fd = take_connected(&t);
        }
    }
    for (uint32_t i = 0; i < t.n; i++) close(t.fds[SOCKETS_ENDING + i].fd);
    return fd;
}

int socket_connect(name_finder *names, const char *host, uint16_t port, const socket_wait *w,
                   const char **why)
{
    int64_t until = clock_now_us() + w->timeout_us;
    struct addrinfo *found = names_find(names, host, port, w, why);
    if (!found) return -1;
    int fd = socket_connect_to(found, until, w, why);
    freeaddrinfo(found);
    return fd;
}
