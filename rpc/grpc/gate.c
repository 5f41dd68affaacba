#include "rpc/grpc/gate.h"

#include <grpc/support/sync.h>
#include <linux/filter.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- gRPC's layout --------------------------------------------------------------------------- */

enum { CLIENT_CONNECTION, SERVER_LISTENER, SERVER_CONNECTION };

typedef struct socket_info {
    int fd;
    int usage; // one of the above
} socket_info;

typedef struct mutator mutator;

typedef struct mutator_table {
    bool (*mutate_fd)(int fd, mutator *m);
    int (*compare)(mutator *a, mutator *b);
    void (*destroy)(mutator *m);
    bool (*mutate_fd_2)(const socket_info *info, mutator *m); // instead of mutate_fd
} mutator_table;

struct mutator {
    const mutator_table *table;
    gpr_refcount references;
};

/* ---- the gate -------------------------------------------------------------------------------- */

/* A socket, told from a later one with the same descriptor by its inode. */
typedef struct known_socket {
    int fd;
    ino_t inode;
} known_socket;

enum { LISTENERS_MAX = 8 }; // sockets that gRPC prepares; it keeps one or two

struct gate {
    mutator base; // first: gRPC's pointer to it is a pointer to the gate
    pthread_mutex_t lock;
    known_socket listeners[LISTENERS_MAX];
    size_t n_listeners;
    uint32_t most;    // connections with which the gate closes
    uint32_t backlog; // connections that may wait for gRPC to accept them
    uint32_t n;       // connections, and closed ones that have not been noticed
    bool is_full, was_filled;
    known_socket connections[]; // [most + backlog + 1]
};

static bool is_open(const known_socket *s)
{
    struct stat now;
    return fstat(s->fd, &now) == 0 && S_ISSOCK(now.st_mode) && now.st_ino == s->inode;
}

static void forget_closed(gate *g)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n; i++)
        if (is_open(&g->connections[i])) g->connections[kept++] = g->connections[i];
    g->n = kept;
}

/* With a filter that accepts no byte, the kernel drops all segments for a listening socket. */
static void drop_segments(const gate *g, bool drop)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog program = {.len = 1, .filter = &nothing};
    const int option = drop ? SO_ATTACH_FILTER : SO_DETACH_FILTER;
    for (size_t i = 0; i < g->n_listeners; i++)
        if (is_open(&g->listeners[i]))
            (void)setsockopt(g->listeners[i].fd, SOL_SOCKET, option, &program, sizeof program);
}

static void count_connection(gate *g, known_socket s)
{
    if (g->n >= g->most) forget_closed(g);
    if (g->n <= g->most + g->backlog) g->connections[g->n++] = s;
    else shutdown(s.fd, SHUT_RDWR); // a Unix socket, which has no filter: gRPC closes it
    if (g->n < g->most || g->is_full) return;
    g->is_full = g->was_filled = true;
    drop_segments(g, true);
}

static bool on_socket(const socket_info *info, mutator *m)
{
    gate *g = (gate *)m;
    struct stat facts;
    if (fstat(info->fd, &facts) != 0) return true; // false would end the listener
    known_socket s = {info->fd, facts.st_ino};
    pthread_mutex_lock(&g->lock);
    if (info->usage == SERVER_CONNECTION) {
        int unused = 0; /* a connection made while the gate closed may have the listener's filter */
        (void)setsockopt(s.fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
        count_connection(g, s);
    } else if (g->n_listeners < LISTENERS_MAX) {
        g->listeners[g->n_listeners++] = s;
    }
    pthread_mutex_unlock(&g->lock);
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void release(void *p)
{
    gate *g = p;
    if (!gpr_unref(&g->base.references)) return;
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void *retain(void *p)
{
    gpr_ref(&((gate *)p)->base.references);
    return p;
}

static int compare(void *a, void *b) { return ((uintptr_t)a > (uintptr_t)b) - (a < b); }

static void destroy_mutator(mutator *m)
{
    gate *g = (gate *)m;
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static int compare_mutators(mutator *a, mutator *b) { return compare(a, b); }

gate *gate_create(uint32_t descriptors)
{
    static const mutator_table table = {
        .compare = compare_mutators, .destroy = destroy_mutator, .mutate_fd_2 = on_socket};
    uint32_t backlog = descriptors / 5, most = descriptors - backlog - 1;
    gate *g = calloc(1, sizeof *g + (most + backlog + 1) * sizeof *g->connections);
    if (!g) return NULL;
    g->base.table = &table;
    gpr_ref_init(&g->base.references, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->most = most;
    g->backlog = backlog;
    return g;
}

grpc_arg gate_arg(gate *g)
{
    static const grpc_arg_pointer_vtable table = {retain, release, compare};
    return (grpc_arg){.type = GRPC_ARG_POINTER,
                      .key = (char *)(uintptr_t)GRPC_ARG_SOCKET_MUTATOR,
                      .value.pointer = {g, &table}};
}

bool gate_listening(gate *g)
{
    size_t kept = 0;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->n_listeners; i++) {
        known_socket s = g->listeners[i];
        /* The kernel lets one more than the backlog wait. gRPC's own is thousands. */
        if (is_open(&s) && listen(s.fd, (int)g->backlog) == 0) g->listeners[kept++] = s;
    }
    g->n_listeners = kept;
    pthread_mutex_unlock(&g->lock);
    return kept > 0;
}

uint32_t gate_update(gate *g, bool *is_full, bool *was_filled)
{
    pthread_mutex_lock(&g->lock);
    if (g->is_full) forget_closed(g);
    if (g->is_full && g->n < g->most) {
        g->is_full = false;
        drop_segments(g, false);
    }
    *is_full = g->is_full;
    *was_filled = g->was_filled;
    g->was_filled = false;
    pthread_mutex_unlock(&g->lock);
    return g->most;
}

void gate_close(gate *g)
{
    if (g) release(g);
}
