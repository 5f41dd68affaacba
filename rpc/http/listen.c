/* The listening socket. It is made here and not by libmicrohttpd, so that SO_REUSEPORT stays off
 * and a second server on the same port fails. */
#include "rpc/http/internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The send buffer is set, because the kernel would otherwise hold megabytes for a client that does
 * not read: its whole answer, so that the stream would never stall. */
enum { BACKLOG = 1024, DEAD_PEER_S = 30, SEND_BUFFER_BYTES = 128 * 1024 };

static void set_socket_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

/* Sets options that accepted sockets inherit. Keep-alive probes find peers that vanished. */
static void set_options(int fd, int family)
{
    set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    set_socket_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_socket_option(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES);
    set_socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, DEAD_PEER_S);
    set_socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, DEAD_PEER_S / 3);
    set_socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    if (family == AF_INET6) set_socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
}

/* A listening socket, or -1 with errno set. */
static int listen_on(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return -1;
    set_options(fd, a->ai_family);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
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

status http_listen(const char *address, int *fd, uint16_t *port, error *err)
{
    char host[256], digits[8];
    uint16_t wanted;
    if (!address_split(address, host, sizeof host, &wanted))
        return error_set(err, STATUS_INVALID, "http: \"%s\" is not host:port", address);
    snprintf(digits, sizeof digits, "%u", wanted);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                             .ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(*host ? host : "::", digits, &hints, &found);
    if (rc != 0)
        return error_set(err, STATUS_INVALID, "http: cannot resolve \"%s\": %s", host,
                         gai_strerror(rc));
    *fd = -1;
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next) *fd = listen_on(a);
    int why = errno;
    freeaddrinfo(found);
    if (*fd < 0)
        return error_set(err, STATUS_IO, "http: cannot listen on %s: %s", address, strerror(why));
    *port = port_of(*fd);
    return STATUS_IS_OK;
}
