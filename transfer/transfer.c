/* A transfer's life and its numbers. */
#include "transfer/internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static status copy_peers(transfer *t, error *err)
{
    t->peers = calloc((size_t)t->o.n_peers + 1, sizeof *t->peers);
    for (uint32_t i = 0; t->peers && i < t->o.n_peers; i++) {
        char host[TRANSFER_HOST_BYTES];
        uint16_t port;
        if (!socket_split(t->o.peers[i], host, &port) || port == 0)
            return error_set(err, STATUS_INVALID, "\"%.80s\" is not HOST:PORT", t->o.peers[i]);
        t->peers[i] = strdup(t->o.peers[i]);
        if (!t->peers[i]) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    return t->peers ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static status open_listener(transfer *t, error *err)
{
    if (!t->o.listen) return STATUS_IS_OK;
    RETURN_IF_ERROR(socket_listen(t->o.listen, &t->listen_fd, &t->port, err));
    (void)socket_split(t->o.listen, t->host, &(uint16_t){0});
    if (socket_is_of_any_address(t->listen_fd))
        return error_set(err, STATUS_INVALID,
                         "%.80s is every address of this machine: name the one at which other "
                         "servers reach it",
                         t->o.listen);
    return STATUS_IS_OK;
}

status transfer_open(const transfer_options *options, transfer **out, error *err)
{
    transfer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    t->o = *options;
    t->listen_fd = t->stop_pipe[0] = t->stop_pipe[1] = -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->fetches.lock, NULL);
    pthread_cond_init(&t->fetches.arrived, NULL);
    pthread_cond_init(&t->fetches.ended, NULL);
    pthread_mutex_init(&t->count_lock, NULL);
    status s = copy_peers(t, err);
    if (!status_ok(s)) error_prefix(err, "--kv-transfer-peers");
    t->names = names_open();
    if (status_ok(s) && !t->names) s = error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(s) && pipe2(t->stop_pipe, O_CLOEXEC) != 0)
        s = error_set(err, STATUS_IO, "cannot make a pipe");
    if (status_ok(s)) {
        s = open_listener(t, err);
        if (!status_ok(s)) error_prefix(err, "--kv-transfer-listen");
    }
    if (status_ok(s)) s = peers_start(t, err);
    if (status_ok(s)) s = fetch_start(t, err);
    if (!status_ok(s)) {
        transfer_close(t);
        return s;
    }
    *out = t;
    return STATUS_IS_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void transfer_cancel(transfer *t)
{
    fetch_queue *q = &t->fetches;
    pthread_mutex_lock(&q->lock);
    q->cancelled = true;
    close_fd(&t->stop_pipe[1]);
    while (q->n_under_way > 0) pthread_cond_wait(&q->ended, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void transfer_close(transfer *t)
{
    if (!t) return;
    close_fd(&t->stop_pipe[1]);
    peers_stop(t);
    fetch_stop(t);
    hold_clear(t);
    close_fd(&t->listen_fd);
    close_fd(&t->stop_pipe[0]);
    for (uint32_t i = 0; t->peers && i < t->o.n_peers; i++) free(t->peers[i]);
    free(t->peers);
    free(t->fetches.silent_us);
    names_close(t->names);
    pthread_mutex_destroy(&t->count_lock);
    pthread_cond_destroy(&t->fetches.ended);
    pthread_cond_destroy(&t->fetches.arrived);
    pthread_mutex_destroy(&t->fetches.lock);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

const char *transfer_host(const transfer *t) { return t->host; }
uint16_t transfer_port(const transfer *t) { return t->port; }

uint32_t peer_find(const transfer *t, const char *host, uint32_t port)
{
    char own[TRANSFER_HOST_BYTES];
    uint16_t number;
    uint32_t i = 0;
    for (; i < t->o.n_peers; i++)
        if (socket_split(t->peers[i], own, &number) && number == port && strcmp(own, host) == 0)
            break;
    return i;
}

bool transfer_knows(const transfer *t, const char *host, uint32_t port)
{
    return peer_find(t, host, port) < t->o.n_peers;
}

transfer_counts transfer_count(transfer *t)
{
    pthread_mutex_lock(&t->count_lock);
    transfer_counts n = t->counts;
    pthread_mutex_unlock(&t->count_lock);
    pthread_mutex_lock(&t->lock);
    n.records = t->held.n;
    n.bytes = t->room.bytes;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void transfer_note_not_held(transfer *t) { TRANSFER_ADD(t, not_held, 1); }
