/* The thread that serves peers: all of their connections at once, each of which asks for one
 * record. A peer that does nothing is given up. Where there are too many, the one that has done
 * nothing for longest makes room, so that no peer keeps others from their records; but none of
 * those that are being sent a record, because they knew its key. */
#include "transfer/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEERS_MOST = 64, SEND_AT_ONCE = 1 << 20, LOOK_MS = 1000 };

static void end_peer(transfer *t, peer *p, bool fine)
{
    bool whole = fine && p->times.answers && p->answer.outcome == WIRE_SENT;
    if (whole) {
        pthread_mutex_lock(&t->count_lock);
        t->counts.sent++;
        t->counts.sent_bytes += p->sent;
        t->counts.sent_us += clock_now_us() - p->times.begun_us;
        pthread_mutex_unlock(&t->count_lock);
    } else {
        TRANSFER_ADD(t, send_failures, 1);
    }
    if (p->record) hold_free(t, p->record);
    close(p->fd);
    *p = (peer){.fd = -1};
}

static void begin_answer(transfer *t, peer *p)
{
    wire_outcome outcome = WIRE_UNKNOWN;
    p->record = hold_take(t, &p->ask, &outcome);
    p->times.answers = true;
    p->answer = (wire_answer){.outcome = outcome};
    memcpy(p->answer.magic, WIRE_ANSWERS, sizeof p->answer.magic);
    if (!p->record) return;
    p->answer.n = p->record->n;
    p->answer.hash = p->record->hash;
}

/* Reads a part of a message of n bytes, behind `before` bytes of others. False: the connection has
 * ended. */
static bool read_part(peer *p, void *message, size_t n, size_t before)
{
    size_t done = p->got - before;
    ssize_t some = recv(p->fd, (char *)message + done, n - done, 0);
    if (some < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (some == 0) return false;
    p->got += (size_t)some;
    p->times.moved_us = clock_now_us();
    return true;
}

/* Whether the peer has said that it has room for the record. */
static bool takes(const peer *p) { return p->got == sizeof p->ask + sizeof p->take; }

static bool is_head_sent(const peer *p) { return p->sent >= sizeof p->answer; }

/* Reads what the peer says. False: the connection has ended, or this is no peer. */
static bool read_peer(transfer *t, peer *p)
{
    if (p->times.answers)
        return read_part(p, &p->take, sizeof p->take, sizeof p->ask) &&
               (!takes(p) || memcmp(p->take.magic, WIRE_TAKES, sizeof p->take.magic) == 0);
    if (!read_part(p, &p->ask, sizeof p->ask, 0)) return false;
    if (p->got < sizeof p->ask) return true;
    if (memcmp(p->ask.magic, WIRE_ASKS, sizeof p->ask.magic) != 0) return false;
    begin_answer(t, p);
    return true;
}

static size_t answer_bytes(const peer *p)
{
    return sizeof p->answer + (p->record ? p->record->n : 0);
}

/* Sends a part of the answer. False: the connection has ended. */
static bool write_peer(peer *p)
{
    bool head = !is_head_sent(p);
    size_t at = head ? p->sent : p->sent - sizeof p->answer;
    const char *from = head ? (const char *)&p->answer : (const char *)p->record->bytes;
    size_t n = (head ? sizeof p->answer : p->record->n) - at;
    if (n > SEND_AT_ONCE) n = SEND_AT_ONCE;
    ssize_t sent = send(p->fd, from + at, n, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    p->sent += (size_t)sent;
    p->times.moved_us = clock_now_us();
    return true;
}

short peer_events(const peer *p)
{
    bool listens = !p->times.answers || (is_head_sent(p) && !takes(p));
    return listens ? POLLIN : POLLOUT;
}

void peer_serve(transfer *t, peer *p, short events)
{
    bool fine = !(events & (POLLERR | POLLNVAL)), listens = peer_events(p) == POLLIN;
    if (fine && listens && (events & (POLLIN | POLLHUP))) fine = read_peer(t, p);
    else if (fine && !listens && (events & POLLOUT)) fine = write_peer(p);
    else if (fine && (events & POLLHUP)) fine = false;
    bool done = fine && p->times.answers && p->sent == answer_bytes(p);
    if (!fine || done) end_peer(t, p, fine);
}

/* The place of a new peer: a free one, or that of the peer without a record that has done nothing
 * for longest. NULL: all are being sent records. */
static peer *place_for(transfer *t, peer *peers)
{
    peer *oldest = NULL;
    for (uint32_t i = 0; i < PEERS_MOST; i++) {
        if (peers[i].fd < 0) return &peers[i];
        if (peers[i].record) continue;
        if (!oldest || peers[i].times.moved_us < oldest->times.moved_us) oldest = &peers[i];
    }
    if (oldest) end_peer(t, oldest, false);
    return oldest;
}

/* One at a time, so that each can ask before others take its place. False: the process has no file
 * descriptor for it. */
static bool accept_peer(transfer *t, peer *peers)
{
    int fd = accept4(t->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    int64_t now = clock_now_us();
    peer *place = place_for(t, peers);
    if (place) *place = (peer){.fd = fd, .times = {.moved_us = now, .begun_us = now}};
    else close(fd);
    return true;
}

bool peer_is_late(const transfer *t, const peer_times *p, int64_t now_us)
{
    int64_t most = p->answers ? TIMEOUTS_IN_ALL * t->o.timeout_us : t->o.timeout_us;
    return now_us - p->moved_us >= t->o.timeout_us || now_us - p->begun_us >= most;
}

static void give_up_late(transfer *t, peer *peers)
{
    int64_t now = clock_now_us();
    for (uint32_t i = 0; i < PEERS_MOST; i++)
        if (peers[i].fd >= 0 && peer_is_late(t, &peers[i].times, now))
            end_peer(t, &peers[i], false);
}

static void *peers_loop(void *arg)
{
    transfer *t = arg;
    peer peers[PEERS_MOST];
    struct pollfd fds[2 + PEERS_MOST];
    bool accepts = true;
    thread_set_name("oct-peers");
    for (uint32_t i = 0; i < PEERS_MOST; i++) peers[i] = (peer){.fd = -1};
    for (;;) {
        fds[0] = (struct pollfd){.fd = t->stop_pipe[0], .events = POLLIN};
        fds[1] = (struct pollfd){.fd = accepts ? t->listen_fd : -1, .events = POLLIN};
        for (uint32_t i = 0; i < PEERS_MOST; i++)
            fds[2 + i] = (struct pollfd){.fd = peers[i].fd, .events = peer_events(&peers[i])};
        int n = poll(fds, 2 + PEERS_MOST, LOOK_MS);
        if (n > 0 && fds[0].revents) break;
        for (uint32_t i = 0; n > 0 && i < PEERS_MOST; i++)
            if (peers[i].fd >= 0 && fds[2 + i].revents)
                peer_serve(t, &peers[i], fds[2 + i].revents);
        accepts = !(n > 0 && fds[1].revents) || accept_peer(t, peers);
        give_up_late(t, peers);
        hold_expire(t, clock_now_us());
    }
    for (uint32_t i = 0; i < PEERS_MOST; i++)
        if (peers[i].fd >= 0) end_peer(t, &peers[i], false);
    return NULL;
}

status peers_start(transfer *t, error *err)
{
    if (!t->o.listen) return STATUS_IS_OK;
    if (pthread_create(&t->thread, NULL, peers_loop, t))
        return error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
    t->thread_started = true;
    return STATUS_IS_OK;
}

void peers_stop(transfer *t)
{
    if (t->thread_started) pthread_join(t->thread, NULL);
    t->thread_started = false;
}
