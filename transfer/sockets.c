/* Sockets that wait no longer than they should. */
#include "transfer/internal.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 256, PORT_MOST = 65535 };

bool socket_split(const char *address, char host[TRANSFER_HOST_BYTES], uint16_t *port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address) return false;
    const char *from = address, *to = colon;
    bool bracketed = *from == '[' && to[-1] == ']';
    if (bracketed) from++, to--;
    size_t n = (size_t)(to - from);
    if (n == 0 || n >= TRANSFER_HOST_BYTES) return false;
    if (!bracketed && memchr(from, ':', n)) return false;
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] != '\0') return false;
    long number = strtol(colon + 1, NULL, 10);
    if (number > PORT_MOST) return false;
    memcpy(host, from, n);
    host[n] = '\0';
    *port = (uint16_t)number;
    return true;
}

/* The server begins with it, so it may take as long as the resolver does. */
static struct addrinfo *resolve_own(const char *host, uint16_t port, const char **why)
{
    char digits[8];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM};
    snprintf(digits, sizeof digits, "%u", port);
    int rc = getaddrinfo(host, digits, &hints, &found);
    if (rc != 0) *why = gai_strerror(rc);
    return rc == 0 ? found : NULL;
}

static int listen_on(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    int on = 1;
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

bool socket_is_of_any_address(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return false;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
    if (a.ss_family != AF_INET6) return v4->sin_addr.s_addr == htonl(INADDR_ANY);
    const uint8_t *last = v6->sin6_addr.s6_addr + 12; /* of an address of IPv4 in one of IPv6 */
    return IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && !last[0] && !last[1] && !last[2] && !last[3]);
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
    return ntohs(a.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

status socket_listen(const char *address, int *fd, uint16_t *port, error *err)
{
    char host[TRANSFER_HOST_BYTES];
    const char *why = "";
    uint16_t wanted;
    *fd = -1;
    if (!socket_split(address, host, &wanted))
        return error_set(err, STATUS_INVALID, "\"%.80s\" is not HOST:PORT", address);
    struct addrinfo *found = resolve_own(host, wanted, &why);
    if (!found) return error_set(err, STATUS_INVALID, "cannot resolve \"%.80s\": %s", host, why);
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next) *fd = listen_on(a);
    int number = errno;
    freeaddrinfo(found);
    if (*fd < 0)
        return error_set(err, STATUS_IO, "cannot listen on %.80s: %s", address, strerror(number));
    *port = port_of(*fd);
    return STATUS_IS_OK;
}

/* For poll, which takes no more than an int. */
static int poll_ms(int64_t us) { return us / 1000 < INT_MAX ? (int)(us / 1000) + 1 : INT_MAX; }

const char socket_late[] = "it did nothing within the time";

const char *socket_await_any(struct pollfd *fds, uint32_t n, const socket_wait *w, int64_t until_us,
                             bool *ready)
{
    fds[0] = (struct pollfd){.fd = w->stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = w->unwanted_fd, .events = POLLIN};
    *ready = false;
    for (int64_t left; !*ready && (left = until_us - clock_now_us()) > 0;) {
        int events = poll(fds, SOCKETS_ENDING + n, poll_ms(left));
        if (events < 0 && errno != EINTR) return "its connection cannot be waited for";
        if (events > 0 && fds[0].revents) return "this server stops";
        if (events > 0 && fds[1].revents) return "the request has ended";
        *ready = events > 0;
    }
    return NULL;
}

const char *socket_await(int fd, short events, const socket_wait *w)
{
    struct pollfd fds[SOCKETS_ENDING + 1] = {[SOCKETS_ENDING] = {.fd = fd, .events = events}};
    bool ready;
    const char *why = socket_await_any(fds, 1, w, clock_now_us() + w->timeout_us, &ready);
    if (why || ready) return why;
    return w->late ? w->late : socket_late;
}

static const char too_slow[] = "it is too slow";

static bool would_wait(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

const char *socket_send(int fd, const void *bytes, size_t n, const socket_wait *w)
{
    int64_t until = clock_now_us() + TIMEOUTS_IN_ALL * w->timeout_us;
    for (size_t done = 0; done < n;) {
        if (clock_now_us() > until) return too_slow;
        ssize_t sent = send(fd, (const char *)bytes + done, n - done, MSG_NOSIGNAL);
        if (sent > 0) done += (size_t)sent;
        if (sent < 0 && !would_wait()) return "its connection broke";
        const char *late = sent > 0 ? NULL : socket_await(fd, POLLOUT, w);
        if (late) return late;
    }
    return NULL;
}

const char *socket_receive(int fd, void *bytes, size_t n, const socket_wait *w)
{
    int64_t until = clock_now_us() + TIMEOUTS_IN_ALL * w->timeout_us;
    for (size_t done = 0; done < n;) {
        if (clock_now_us() > until) return too_slow;
        ssize_t got = recv(fd, (char *)bytes + done, n - done, 0);
        if (got > 0) done += (size_t)got;
        if (got == 0) return "it closed the connection before all was sent";
        if (got < 0 && !would_wait()) return "its connection broke";
        const char *late = got > 0 ? NULL : socket_await(fd, POLLIN, w);
        if (late) return late;
    }
    return NULL;
}
