/* Addresses of hosts by their names. The system's resolver takes as long as resolv.conf's timeout
 * and attempts say, and cannot be told to stop. So a thread of its own asks it for each name; a
 * fetch waits for that thread no longer than for a peer, and the thread ends by itself. */
#include "transfer/internal.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Names that are resolved at once, with those whose fetch has given up waiting. */
enum { LOOKUPS_MOST = 16 };

struct name_finder {
    _Atomic uint32_t references; // the transfer's, and one of each thread that resolves a name
};

typedef struct lookup {
    _Atomic uint32_t references; // its thread's and the caller's
    name_finder *of;
    char host[TRANSFER_HOST_BYTES], port[8];
    int ended_fd; // can be read once the thread has ended
    struct addrinfo *found;
    _Atomic int rc; // set behind `found`
} lookup;

name_finder *names_open(void)
{
    name_finder *n = malloc(sizeof *n);
    if (n) n->references = 1;
    return n;
}

void names_close(name_finder *n)
{
    if (n && atomic_fetch_sub(&n->references, 1) == 1) free(n);
}

static void end_lookup(lookup *l)
{
    if (atomic_fetch_sub(&l->references, 1) != 1) return;
    if (l->found) freeaddrinfo(l->found);
    close(l->ended_fd);
    names_close(l->of);
    free(l);
}

static int resolve(const char *host, const char *port, int flags, struct addrinfo **found)
{
    const struct addrinfo hints = {
        .ai_flags = flags | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    *found = NULL;
    return getaddrinfo(host, port, &hints, found);
}

static void *lookup_loop(void *arg)
{
    lookup *l = arg;
    thread_set_name("oct-names");
    atomic_store(&l->rc, resolve(l->host, l->port, 0, &l->found));
    (void)eventfd_write(l->ended_fd, 1);
    end_lookup(l);
    return NULL;
}

/* NULL: *why says what is missing. */
static lookup *make_lookup(name_finder *of, const char *host, const char *port, const char **why)
{
    *why = "too many names are being resolved";
    if (atomic_fetch_add(&of->references, 1) > LOOKUPS_MOST) {
        names_close(of);
        return NULL;
    }
    *why = "its name cannot be resolved: memory is out";
    lookup *l = malloc(sizeof *l);
    int fd = l ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (fd < 0) {
        free(l);
        names_close(of);
        return NULL;
    }
    *l = (lookup){.references = 1, .of = of, .ended_fd = fd};
    snprintf(l->host, sizeof l->host, "%s", host);
    snprintf(l->port, sizeof l->port, "%s", port);
    return l;
}

static bool start_lookup(lookup *l)
{
    pthread_attr_t detached;
    pthread_t thread;
    if (pthread_attr_init(&detached) != 0) return false;
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    atomic_store(&l->references, 2);
    bool started = pthread_create(&thread, &detached, lookup_loop, l) == 0;
    if (!started) atomic_store(&l->references, 1);
    (void)pthread_attr_destroy(&detached);
    return started;
}

struct addrinfo *names_find(name_finder *of, const char *host, uint16_t port, const socket_wait *w,
                            const char **why)
{
    char digits[8];
    struct addrinfo *found = NULL;
    snprintf(digits, sizeof digits, "%u", port);
    if (resolve(host, digits, AI_NUMERICHOST, &found) == 0) return found;
    lookup *l = make_lookup(of, host, digits, why);
    if (!l) return NULL;
    socket_wait patience = *w;
    patience.late = "its name was not resolved within the time";
    if (start_lookup(l)) *why = socket_await(l->ended_fd, POLLIN, &patience);
    int rc = *why ? 0 : atomic_load(&l->rc);
    if (rc != 0) *why = gai_strerror(rc);
    if (!*why) {
        found = l->found;
        l->found = NULL;
    }
    end_lookup(l);
    return found;
}
