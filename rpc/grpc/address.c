#include "rpc/grpc/internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct host_port {
    char host[ADDRESS_BYTES_MAX];
    char port[8];
} host_port;

static bool is_unix(const char *text) { return strncmp(text, "unix:", 5) == 0; }

/* Splits "host:port" or "[host]:port"; the port is 0 to 65535. */
static bool split_host_port(const char *text, host_port *out)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text) return false;
    size_t n_port = strspn(colon + 1, "0123456789");
    size_t n_host = (size_t)(colon - text);
    if (text[0] == '[') {
        if (n_host < 3 || text[n_host - 1] != ']') return false;
        text++;
        n_host -= 2;
    } else if (memchr(text, ':', n_host)) {
        return false;
    }
    if (n_port == 0 || n_port > 5 || colon[1 + n_port] || n_host >= sizeof out->host) return false;
    memcpy(out->host, text, n_host);
    out->host[n_host] = '\0';
    memcpy(out->port, colon + 1, n_port + 1);
    return strtoul(out->port, NULL, 10) <= UINT16_MAX;
}

static int look_up(const host_port *hp, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV | flags};
    return getaddrinfo(hp->host, hp->port, &hints, out);
}

status address_resolve(const char *text, char out[ADDRESS_BYTES_MAX], error *err)
{
    host_port hp;
    struct addrinfo *found;
    char host[ADDRESS_BYTES_MAX - 16];
    if (is_unix(text)) {
        if (strlen(text) >= sizeof((struct sockaddr_un *)0)->sun_path)
            return error_set(err, STATUS_INVALID, "grpc: '%.100s…' is too long a path", text);
        snprintf(out, ADDRESS_BYTES_MAX, "%s", text);
        return STATUS_IS_OK;
    }
    if (!split_host_port(text, &hp))
        return error_set(err, STATUS_INVALID, "grpc: '%.100s' is not HOST:PORT", text);
    int rc = look_up(&hp, 0, &found);
    if (rc != 0) return error_set(err, STATUS_INVALID, "grpc: %s: %s", hp.host, gai_strerror(rc));
    rc = getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    if (rc == 0)
        snprintf(out, ADDRESS_BYTES_MAX, found->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                 hp.port);
    freeaddrinfo(found);
    return rc == 0 ? STATUS_IS_OK
                   : error_set(err, STATUS_INVALID, "grpc: %s: %s", hp.host, gai_strerror(rc));
}

status grpc_front_check(const char *address, error *err)
{
    char numeric[ADDRESS_BYTES_MAX];
    RETURN_IF_ERROR(address_resolve(address, numeric, err));
    const char *problem = address_problem(numeric);
    if (!problem) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "grpc: %s: %s", numeric, problem);
}

const char *address_problem(const char *numeric)
{
    host_port hp;
    struct addrinfo *found;
    if (is_unix(numeric)) return NULL;
    if (!split_host_port(numeric, &hp) || look_up(&hp, AI_NUMERICHOST, &found) != 0)
        return "no address";
    int on = 1, problem = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0)
        problem = errno;
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return problem ? strerrordesc_np(problem) : NULL;
}
