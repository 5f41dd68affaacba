/* Shared by the files of transfer/ (private to it). */
#ifndef TRANSFER_INTERNAL_H
#define TRANSFER_INTERNAL_H

#include "transfer/wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- room (room.c) --------------------------------------------------------------------------- */

/* An owner that has room. */
typedef struct room_owner {
    uint64_t id;
    size_t bytes; /* of its records: those that are made, held, sent, fetched, and used */
    size_t held;  /* of these, in records that wait for a peer and can be forgotten */
    size_t left;  /* scratch of hold_makes_room: what it would have left of `bytes` */
    struct room_owner *next;
} room_owner;

/* Under the transfer's lock. */
typedef struct room {
    size_t bytes, held; /* of all owners */
    room_owner *owners;
} room;

/* Takes room for a record that is fetched. Prompts that were fetched are in use until the scheduler
 * has pages for them, and cannot be forgotten, so an owner may have only so much with them that
 * others find room. NULL, or why there is none. */
const char *room_make_for_fetched(transfer *t, uint64_t owner, size_t n);

/* The lock is held for these. */
/* The entry of an owner that has room. */
room_owner *room_owner_of(transfer *t, uint64_t id);
/* A record of n bytes, which the owner has room for, is held from now on, or no longer. */
void room_hold(transfer *t, room_owner *o, size_t n);
void room_unhold(transfer *t, room_owner *o, size_t n);
void room_give_back(transfer *t, room_owner *o, size_t n);

/* ---- records (hold.c) ------------------------------------------------------------------------ */

typedef struct name_finder name_finder; /* names.c */

enum { HOLD_BUCKETS = 1024 };

typedef struct held_record {
    transfer_key key;
    room_owner *owner;
    uint8_t *bytes;
    size_t n;
    uint64_t hash; /* of the bytes, as wire_answer has it */
    int64_t since_us;
    struct held_record *older, *newer; /* among all */
    struct held_record *next_in_bucket;
} held_record;

/* Under the transfer's lock. */
typedef struct hold_store {
    held_record *oldest, *newest;
    held_record *buckets[HOLD_BUCKETS];
    uint32_t n;
} hold_store;

/* Takes the record out, which is the caller's then; NULL: there is none. *outcome says why not. */
held_record *hold_take(transfer *t, const wire_ask *ask, wire_outcome *outcome);
void hold_free(transfer *t, held_record *r); /* with its room */
void hold_expire(transfer *t, int64_t now_us);
void hold_clear(transfer *t);
/* Whether n more bytes of `own` have room where every owner that has more than `own` would have
 * then loses its oldest records, until it has no more than that. The lock is held. */
bool hold_makes_room(transfer *t, const room_owner *own, size_t n);
/* Takes out the oldest record of the owner that has most room among those of held records; there is
 * one. The lock is held. */
held_record *hold_displace(transfer *t);

/* ---- threads --------------------------------------------------------------------------------- */

/* `oct-peers` (peers.c) */
status peers_start(transfer *t, error *err);
void peers_stop(transfer *t);

typedef struct peer_times {
    int64_t begun_us, moved_us; /* of its connection; when it last sent or took something */
    bool answers;               /* it has asked, and is answered */
} peer_times;

/* Whether a peer has had its time: between two parts of what it asks or takes, to ask, or in
 * all. */
bool peer_is_late(const transfer *t, const peer_times *p, int64_t now_us);

typedef struct peer {
    int fd; /* -1: none */
    peer_times times;
    wire_ask ask;
    wire_take take;
    size_t got; /* bytes of ask and take */
    wire_answer answer;
    held_record *record; /* NULL where the answer has no bytes */
    size_t sent;         /* of the answer and its bytes */
} peer;

/* The event for which poll waits on the peer's connection: POLLIN while the peer is to say more,
 * POLLOUT while it is to take more of its answer. */
short peer_events(const peer *p);
/* Reads a part of what the peer says, or sends it a part of its answer, where poll has told of its
 * connection that it can be done. */
void peer_serve(transfer *t, peer *p, short events);

/* One peer has at most FETCHES_OF_A_PEER of the threads, so that one that is as slow as it may be
 * leaves threads for the others. */
enum { FETCH_THREADS = 8, FETCHES_OF_A_PEER = 4 };

/* `oct-fetch` (fetch.c) */
typedef struct fetch_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived, ended;
    pthread_t threads[FETCH_THREADS];
    transfer_fetch *at[FETCH_THREADS]; /* the fetch that each thread is at */
    int unwanted_fds[FETCH_THREADS];   /* each becomes readable when that fetch is taken back */
    bool unwanted[FETCH_THREADS];      /* that fetch was taken back */
    uint32_t n_threads, n_under_way;
    transfer_fetch *first, *last;
    int64_t *silent_us; /* [n_peers] when the last fetch of each was given up, 0 = none was */
    bool cancelled, stop;
} fetch_queue;

status fetch_start(transfer *t, error *err);
void fetch_stop(transfer *t);

/* ---- sockets (sockets.c) --------------------------------------------------------------------- */

/* Splits HOST:PORT or [HOST]:PORT. False: it is neither, or the host is empty. */
bool socket_split(const char *address, char host[TRANSFER_HOST_BYTES], uint16_t *port);
/* A socket that listens and does not block, and the port that it has. */
status socket_listen(const char *address, int *fd, uint16_t *port, error *err);
/* Whether it listens at every address of this machine, in whatever form that was written. */
bool socket_is_of_any_address(int fd);
/* The time that a socket is waited for, and what ends the wait earlier. */
typedef struct socket_wait {
    int64_t timeout_us;
    int stop_fd, unwanted_fd; /* either ends the wait once it is readable; -1 = none */
    const char *late;         /* the error after the timeout; NULL: that the peer did nothing */
} socket_wait;

/* Waits for events of fd. NULL, or why it must wait no longer. */
const char *socket_await(int fd, short events, const socket_wait *w);
/* Waits for events of any of n sockets, which lie behind SOCKETS_ENDING elements of the function's
 * own, until `until_us` at most. NULL, or why it must wait no longer. */
enum { SOCKETS_ENDING = 2 };
const char *socket_await_any(struct pollfd *fds, uint32_t n, const socket_wait *w, int64_t until_us,
                             bool *ready);
extern const char socket_late[]; /* why a peer is given up that did nothing within the time */
/* A connection that does not block (connect.c). -1 with *why set: there is none within the timeout,
 * which is for the name and all of its addresses. */
struct addrinfo;
enum { CONNECTS_AT_ONCE = 16 }; /* of one name, which have not failed yet */
int socket_connect_to(const struct addrinfo *found, int64_t until_us, const socket_wait *w,
                      const char **why);
int socket_connect(name_finder *names, const char *host, uint16_t port, const socket_wait *w,
                   const char **why);
/* A peer that does a little now and then is given up too, after so many times the timeout. */
enum { TIMEOUTS_IN_ALL = 10 };
/* Sends or receives all n bytes. NULL, or why not: the peer did nothing for so long, or closed. */
const char *socket_send(int fd, const void *bytes, size_t n, const socket_wait *w);
const char *socket_receive(int fd, void *bytes, size_t n, const socket_wait *w);

/* Asks a connected peer for the record, and takes its answer (fetch.c). NULL: got has bytes and
 * their room; else why it has none. */
const char *fetch_over(transfer *t, int fd, const transfer_fetch *f, const socket_wait *w,
                       transfer_got *got);

/* ---- names of hosts (names.c) ---------------------------------------------------------------- */

name_finder *names_open(void); /* NULL: memory is out */
void names_close(name_finder *n);
/* The host's addresses, for freeaddrinfo; NULL with *why set. It is resolved for every connection,
 * because a server that was started again may have another address. */
struct addrinfo *names_find(name_finder *n, const char *host, uint16_t port, const socket_wait *w,
                            const char **why);

/* ---- all ------------------------------------------------------------------------------------- */

struct transfer {
    transfer_options o;
    char **peers; /* [o.n_peers] copies */
    char host[TRANSFER_HOST_BYTES];
    uint16_t port;
    int listen_fd;    /* -1: none */
    int stop_pipe[2]; /* closing [1] ends all waits */
    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    room room;
    hold_store held;
    name_finder *names;
    fetch_queue fetches;
    pthread_mutex_t count_lock;
    transfer_counts counts;
};

/* The number of a peer; n_peers: it is none. */
uint32_t peer_find(const transfer *t, const char *host, uint32_t port);

/* Adds to one counter, under the lock of the counters. */
#define TRANSFER_ADD(t, field, value)                                                              \
    do {                                                                                           \
        pthread_mutex_lock(&(t)->count_lock);                                                      \
        (t)->counts.field += (value);                                                              \
        pthread_mutex_unlock(&(t)->count_lock);                                                    \
    } while (0)

#endif
