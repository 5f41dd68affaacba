/* Records that one server holds and another fetches, over connections of this machine. */
#include "transfer/internal.h"

#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 3 << 20, ROOM = 8 << 20 };

typedef struct fixture {
    transfer *holder, *fetcher;
    char peer[64];
    const char *peers[1];
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    transfer_got got;
} fixture;

static transfer *open_transfer(transfer_options o)
{
    error err = {{0}};
    transfer *t;
    if (!o.bytes) o.bytes = ROOM;
    if (!o.ttl_us) o.ttl_us = INT64_C(60000000);
    if (!o.timeout_us) o.timeout_us = INT64_C(20000000);
    if (!o.identity) o.identity = 5;
    if (!status_ok(transfer_open(&o, &t, &err))) fail_msg("%s", err.text);
    return t;
}

static void set_up(fixture *f, transfer_options holder, transfer_options fetcher)
{
    *f = (fixture){.peers = {f->peer}};
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->ended, NULL);
    holder.listen = "127.0.0.1:0";
    f->holder = open_transfer(holder);
    snprintf(f->peer, sizeof f->peer, "127.0.0.1:%u", transfer_port(f->holder));
    fetcher.peers = f->peers;
    fetcher.n_peers = 1;
    f->fetcher = open_transfer(fetcher);
}

static void tear_down(fixture *f)
{
    transfer_cancel(f->fetcher);
    transfer_close(f->fetcher);
    transfer_close(f->holder);
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
}

static void on_done(void *ctx, const transfer_got *got)
{
    fixture *f = ctx;
    pthread_mutex_lock(&f->lock);
    f->got = *got;
    f->done = true;
    pthread_cond_signal(&f->ended);
    pthread_mutex_unlock(&f->lock);
}

static transfer_fetch fetch_of(fixture *f, transfer_key key, size_t most)
{
    transfer_fetch x = {.port = transfer_port(f->holder),
                        .key = key,
                        .most = most,
                        .done = on_done,
                        .ctx = f,
                        .host = "127.0.0.1"};
    return x;
}

static void await(fixture *f)
{
    pthread_mutex_lock(&f->lock);
    while (!f->done) pthread_cond_wait(&f->ended, &f->lock);
    f->done = false;
    pthread_mutex_unlock(&f->lock);
}

/* The holder ends a fetch a moment after the peer has what it asked for. */
static void await_room(const fixture *f, uint64_t taken)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    while (transfer_count(f->holder).bytes > taken) nanosleep(&nap, NULL);
}

/* Fetches and, if there are bytes, checks and frees them. Whether there were. */
static bool fetch(fixture *f, transfer_key key, size_t most)
{
    uint64_t taken = transfer_count(f->holder).bytes;
    transfer_fetch x = fetch_of(f, key, most);
    transfer_fetch_begin(f->fetcher, &x);
    await(f);
    bool got = f->got.bytes != NULL;
    for (size_t i = 0; got && i < f->got.n; i++) assert_int_equal(f->got.bytes[i], i % 251);
    if (got) transfer_release(f->fetcher, x.owner, f->got.n);
    if (got) await_room(f, taken - f->got.n);
    free(f->got.bytes);
    return got;
}

static transfer_key key_of(uint8_t number)
{
    return (transfer_key){{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, number}};
}

/* Whether there was room for it. */
static bool hold_for(fixture *f, uint64_t owner, transfer_key key, size_t n)
{
    if (!transfer_make_room(f->holder, owner, n)) return false;
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i % 251);
    assert_true(transfer_hold(f->holder, &key, owner, bytes, n));
    return true;
}

static void hold(fixture *f, transfer_key key, size_t n) { assert_true(hold_for(f, 1, key, n)); }

static void each_record_is_fetched_once(void **state)
{
    (void)state;
    fixture f;
    set_up(&f, (transfer_options){0}, (transfer_options){0});
    hold(&f, key_of(1), BYTES);
    hold(&f, key_of(2), 7);
    assert_false(fetch(&f, key_of(3), ROOM));
    assert_non_null(strstr(f.got.why, "does not hold"));
    assert_true(fetch(&f, key_of(1), ROOM));
    assert_int_equal(f.got.n, BYTES);
    assert_false(fetch(&f, key_of(1), ROOM));
    assert_true(fetch(&f, key_of(2), 7));
    transfer_counts here = transfer_count(f.holder), there = transfer_count(f.fetcher);
    assert_int_equal(here.held, 2);
    assert_int_equal(here.records, 0);
    assert_int_equal(here.bytes + there.bytes, 0);
    assert_int_equal(there.fetched, 2);
    assert_int_equal(there.fetch_failures, 2);
    assert_int_equal(there.fetched_bytes, BYTES + 7 + 2 * sizeof(wire_answer));
    tear_down(&f);
}

/* The checksum is that of the bytes as they were when they were held: no peer waits while another's
 * record is hashed, and what memory damaged since is noticed. */
static void bytes_are_those_that_were_held(void **state)
{
    (void)state;
    fixture f;
    set_up(&f, (transfer_options){0}, (transfer_options){0});
    hold(&f, key_of(1), BYTES);
    f.holder->held.oldest->bytes[BYTES / 2] ^= 1;
    assert_false(fetch(&f, key_of(1), ROOM));
    assert_non_null(strstr(f.got.why, "not those that it holds"));
    assert_int_equal(transfer_count(f.fetcher).bytes, 0);
    tear_down(&f);
}

static void another_identity_gets_nothing(void **state)
{
    (void)state;
    fixture f;
    set_up(&f, (transfer_options){.identity = 6}, (transfer_options){0});
    hold(&f, key_of(1), 7);
    assert_false(fetch(&f, key_of(1), ROOM));
    assert_non_null(strstr(f.got.why, "another model"));
    assert_int_equal(transfer_count(f.holder).records, 1);
    tear_down(&f);
}

static void lengths_and_room_are_limits(void **state)
{
    (void)state;
    fixture f;
    set_up(&f, (transfer_options){0}, (transfer_options){.bytes = 100});
    hold(&f, key_of(1), 101);
    assert_false(fetch(&f, key_of(1), 100));
    assert_non_null(strstr(f.got.why, "longer than"));
    assert_false(fetch(&f, key_of(1), 101));
    assert_non_null(strstr(f.got.why, "no room"));
    await_room(&f, 0);
    hold(&f, key_of(1), 101);
    assert_false(transfer_make_room(f.holder, 1, ROOM));
    assert_false(transfer_make_room(f.holder, 2, ROOM + 1));
    assert_int_equal(transfer_count(f.holder).records, 1);
    assert_true(transfer_make_room(f.holder, 1, ROOM - 101));
    assert_false(transfer_make_room(f.holder, 1, 1));
    transfer_release(f.holder, 1, ROOM - 101);
    uint8_t *bytes = calloc(1, 8);
    hold(&f, key_of(2), 8);
    transfer_key key = key_of(2);
    assert_false(transfer_hold(f.holder, &key, 1, bytes, 8)); /* the key is held */
    free(bytes);
    tear_down(&f);
}

static void records_are_forgotten_after_their_time(void **state)
{
    (void)state;
    fixture f;
    const struct timespec nap = {.tv_nsec = 1000000};
    set_up(&f, (transfer_options){.ttl_us = 1}, (transfer_options){0});
    hold(&f, key_of(1), 7);
    while (transfer_count(f.holder).expired == 0) nanosleep(&nap, NULL);
    assert_false(fetch(&f, key_of(1), ROOM));
    assert_int_equal(transfer_count(f.holder).bytes, 0);
    tear_down(&f);
}

static socket_wait wait_of(const fixture *f)
{
    return (socket_wait){20000000, f->fetcher->stop_pipe[0], -1, NULL};
}

static int connect_silently(const fixture *f)
{
    const char *why;
    const socket_wait w = wait_of(f);
    int fd = socket_connect(f->fetcher->names, "127.0.0.1", transfer_port(f->holder), &w, &why);
    assert_true(fd >= 0);
    return fd;
}

/* Where room is short, the owner of most gives up its oldest, but only to one that has less. */
static void no_owner_takes_the_room_of_others(void **state)
{
    (void)state;
    fixture f;
    enum { HUGE = ROOM / 2, HALF = ROOM / 4 };
    set_up(&f, (transfer_options){0}, (transfer_options){0});
    for (uint8_t i = 0; i < 4; i++) assert_true(hold_for(&f, 1, key_of(i), HALF));
    assert_false(hold_for(&f, 1, key_of(4), HALF)); /* not its own */
    assert_true(hold_for(&f, 2, key_of(4), HALF));
    assert_false(fetch(&f, key_of(0), ROOM));       /* the oldest has gone */
    assert_false(hold_for(&f, 2, key_of(5), HUGE)); /* it would have as much */
    assert_true(hold_for(&f, 3, key_of(6), HALF));
    assert_false(hold_for(&f, 1, key_of(7), 1)); /* it has as much as any */
    transfer_counts n = transfer_count(f.holder);
    assert_int_equal(n.displaced, 2);
    assert_int_equal(n.records, 4);
    assert_int_equal(n.bytes, ROOM);
    for (uint8_t i = 2; i < 5; i++) assert_true(fetch(&f, key_of(i), ROOM));
    assert_true(fetch(&f, key_of(6), ROOM));
    assert_null(f.holder->room.owners);
    tear_down(&f);
}

/* However many connections say nothing, or something else, a peer is served. */
static void silent_connections_keep_nobody_out(void **state)
{
    (void)state;
    enum { SILENT = 100 };
    fixture f;
    int fds[SILENT];
    set_up(&f, (transfer_options){0}, (transfer_options){0});
    for (int i = 0; i < SILENT; i++) fds[i] = connect_silently(&f);
    for (int i = 0; i < SILENT; i += 10) (void)send(fds[i], "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
    hold(&f, key_of(1), BYTES);
    assert_true(fetch(&f, key_of(1), ROOM));
    for (int i = 0; i < SILENT; i++) close(fds[i]);
    tear_down(&f);
}

static int ask_for(const fixture *f, transfer_key key)
{
    wire_ask ask = {.key = key, .identity = 5, .most = 64 << 20};
    memcpy(ask.magic, WIRE_ASKS, sizeof ask.magic);
    int fd = connect_silently(f);
    assert_int_equal(send(fd, &ask, sizeof ask, MSG_NOSIGNAL), sizeof ask);
    return fd;
}

/* A record whose peer goes away is not held any more, and its room is free. */
static void a_peer_that_goes_away_frees_its_record(void **state)
{
    (void)state;
    fixture f;
    const struct timespec nap = {.tv_nsec = 1000000};
    set_up(&f, (transfer_options){.bytes = 64 << 20}, (transfer_options){0});
    hold(&f, key_of(1), 48 << 20); /* more than the kernel keeps for a connection */
    int fd = ask_for(&f, key_of(1));
    while (transfer_count(f.holder).records > 0) nanosleep(&nap, NULL);
    close(fd);
    while (transfer_count(f.holder).bytes > 0) nanosleep(&nap, NULL);
    assert_int_equal(transfer_count(f.holder).send_failures, 1);
    assert_int_equal(transfer_count(f.holder).sent, 0);
    tear_down(&f);
}

/* Peers that are being sent a record keep their places from any number of others. */
static void a_record_that_is_being_sent_is_not_given_up(void **state)
{
    (void)state;
    enum { SILENT = 100 };
    fixture f;
    int fds[SILENT];
    wire_answer answer;
    set_up(&f, (transfer_options){.bytes = 64 << 20}, (transfer_options){0});
    const socket_wait w = wait_of(&f);
    hold(&f, key_of(1), 48 << 20); /* more than the kernel keeps for a connection */
    int fd = ask_for(&f, key_of(1));
    assert_null(socket_receive(fd, &answer, sizeof answer, &w));
    assert_int_equal(send(fd, WIRE_TAKES, sizeof(wire_take), MSG_NOSIGNAL), sizeof(wire_take));
    for (int i = 0; i < SILENT; i++) fds[i] = connect_silently(&f);
    hold(&f, key_of(2), 7);
    assert_true(fetch(&f, key_of(2), ROOM)); /* it came behind all of them */
    uint8_t *bytes = malloc(answer.n);
    assert_null(socket_receive(fd, bytes, answer.n, &w));
    assert_int_equal(hash_bytes(bytes, answer.n, 5), answer.hash);
    free(bytes);
    close(fd);
    for (int i = 0; i < SILENT; i++) close(fds[i]);
    tear_down(&f);
}

/* A peer that asks a byte now and then, or takes one, has its time and no more. */
static void slow_peers_are_given_up(void **state)
{
    (void)state;
    const transfer t = {.o.timeout_us = 10};
    peer_times p = {.begun_us = 100, .moved_us = 100};
    assert_false(peer_is_late(&t, &p, 109));
    assert_true(peer_is_late(&t, &p, 110));
    p.moved_us = 109;
    assert_true(peer_is_late(&t, &p, 110));
    p.answers = true;
    assert_false(peer_is_late(&t, &p, 118));
    assert_true(peer_is_late(&t, &p, 119));
    p.moved_us = 100 + 10 * TIMEOUTS_IN_ALL;
    assert_false(peer_is_late(&t, &p, 99 + 10 * TIMEOUTS_IN_ALL));
    assert_true(peer_is_late(&t, &p, 100 + 10 * TIMEOUTS_IN_ALL));
}

/* When a peer does nothing in time, the fetches that wait for it by then are given up with it. */
static void fetches_of_a_silent_peer_do_not_queue(void **state)
{
    (void)state;
    fixture f;
    int fd;
    uint16_t port;
    error err;
    set_up(&f, (transfer_options){0}, (transfer_options){.timeout_us = 50000});
    assert_true(status_ok(socket_listen("127.0.0.1:0", &fd, &port, &err)));
    transfer_close(f.fetcher);
    snprintf(f.peer, sizeof f.peer, "127.0.0.1:%u", port);
    f.fetcher =
        open_transfer((transfer_options){.peers = f.peers, .n_peers = 1, .timeout_us = 50000});
    transfer_fetch x = fetch_of(&f, key_of(1), ROOM);
    x.port = port;
    transfer_fetch_begin(f.fetcher, &x);
    await(&f);
    assert_non_null(strstr(f.got.why, "nothing within the time"));
    assert_null(strstr(f.got.why, "before this one"));
    assert_true(f.fetcher->fetches.silent_us[0] > x.begun_us);
    f.fetcher->fetches.silent_us[0] = INT64_MAX; /* it was silent while the next one waited */
    x = fetch_of(&f, key_of(1), ROOM);
    x.port = port;
    transfer_fetch_begin(f.fetcher, &x);
    await(&f);
    assert_non_null(strstr(f.got.why, "before this one"));
    close(fd);
    tear_down(&f);
}

/* Fetches that wait for a peer which says nothing end at once when they are cancelled. */
static void cancelling_ends_fetches(void **state)
{
    (void)state;
    fixture f;
    transfer_fetch all[2 * FETCH_THREADS];
    uint16_t port;
    error err;
    int fd;
    set_up(&f, (transfer_options){0}, (transfer_options){0});
    assert_true(status_ok(socket_listen("127.0.0.1:0", &fd, &port, &err)));
    transfer_close(f.fetcher);
    snprintf(f.peer, sizeof f.peer, "127.0.0.1:%u", port);
    f.fetcher = open_transfer(
        (transfer_options){.peers = f.peers, .n_peers = 1, .timeout_us = INT64_C(3600000000)});
    for (int i = 0; i < 2 * FETCH_THREADS; i++) {
        all[i] = fetch_of(&f, key_of(1), ROOM);
        all[i].port = port;
        transfer_fetch_begin(f.fetcher, &all[i]);
    }
    transfer_cancel(f.fetcher);
    assert_int_equal(transfer_count(f.fetcher).fetch_failures, 2 * FETCH_THREADS);
    close(fd);
    tear_down(&f);
}

/* A peer that says nothing, and fetches of it, which wait for an hour. */
enum { SILENT_FETCHES = 2 * FETCH_THREADS };

typedef struct silent_peer {
    char address[64];
    const char *peers[2];
    transfer_fetch fetches[SILENT_FETCHES];
    int fd;
} silent_peer;

/* Begins the first n; the fetcher knows the holder, too. */
static void set_up_silent(fixture *f, silent_peer *p, int n)
{
    uint16_t port;
    error err;
    set_up(f, (transfer_options){0}, (transfer_options){0});
    assert_true(status_ok(socket_listen("127.0.0.1:0", &p->fd, &port, &err)));
    transfer_close(f->fetcher);
    snprintf(p->address, sizeof p->address, "127.0.0.1:%u", port);
    p->peers[0] = p->address;
    p->peers[1] = f->peer;
    f->fetcher = open_transfer(
        (transfer_options){.peers = p->peers, .n_peers = 2, .timeout_us = INT64_C(3600000000)});
    for (int i = 0; i < n; i++) {
        p->fetches[i] = fetch_of(f, key_of(1), ROOM);
        p->fetches[i].port = port;
        transfer_fetch_begin(f->fetcher, &p->fetches[i]);
    }
}

static uint32_t n_at_threads(fetch_queue *q)
{
    uint32_t n = 0;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < FETCH_THREADS; i++) n += q->at[i] != NULL;
    pthread_mutex_unlock(&q->lock);
    return n;
}

/* A fetch that is taken back ends at once, whether a thread has it or it waits for one. */
static void fetches_are_taken_back(void **state)
{
    (void)state;
    enum { MOST = FETCHES_OF_A_PEER };
    fixture f;
    silent_peer p;
    const struct timespec nap = {.tv_nsec = 1000000};
    set_up_silent(&f, &p, MOST + 2);
    while (n_at_threads(&f.fetcher->fetches) < MOST) nanosleep(&nap, NULL);
    assert_true(transfer_fetch_take_back(f.fetcher, &p.fetches[MOST + 1])); /* the last */
    assert_false(transfer_fetch_take_back(f.fetcher, &p.fetches[1]));
    await(&f);
    assert_non_null(strstr(f.got.why, "the request has ended"));
    assert_false(transfer_fetch_take_back(f.fetcher, &p.fetches[1])); /* it is over */
    /* The next is tried by that thread, which waits for it as for any. */
    while (n_at_threads(&f.fetcher->fetches) < MOST) nanosleep(&nap, NULL);
    assert_false(transfer_fetch_take_back(f.fetcher, &p.fetches[MOST]));
    await(&f);
    assert_int_equal(transfer_count(f.fetcher).fetch_failures, 2);
    close(p.fd);
    tear_down(&f);
}

/* However many fetches wait for it, others are made. */
static void a_slow_peer_leaves_threads_to_others(void **state)
{
    (void)state;
    fixture f;
    silent_peer p;
    set_up_silent(&f, &p, SILENT_FETCHES);
    hold(&f, key_of(1), BYTES);
    hold(&f, key_of(2), 7);
    assert_true(fetch(&f, key_of(1), ROOM));
    assert_true(fetch(&f, key_of(2), ROOM));
    transfer_cancel(f.fetcher);
    assert_int_equal(transfer_count(f.fetcher).fetch_failures, SILENT_FETCHES);
    close(p.fd);
    tear_down(&f);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The resolver of this program: "slow.test" takes until the test lets it go. */
typedef struct slow_names {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_asked, n_left;
    bool let_go;
} slow_names;

static slow_names *slow_place(void)
{
    static slow_names n = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    return &n;
}

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    slow_names *n = slow_place();
    if (strcmp(host, "slow.test") != 0) return __real_getaddrinfo(host, port, hints, found);
    if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
    pthread_mutex_lock(&n->lock);
    n->n_asked++;
    pthread_cond_broadcast(&n->changed);
    while (!n->let_go) pthread_cond_wait(&n->changed, &n->lock);
    n->n_left++;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return __real_getaddrinfo("127.0.0.1", port, hints, found);
}

static void await_asked(uint32_t wanted)
{
    slow_names *n = slow_place();
    pthread_mutex_lock(&n->lock);
    while (n->n_asked < wanted) pthread_cond_wait(&n->changed, &n->lock);
    pthread_mutex_unlock(&n->lock);
}

static void let_names_go(bool all_end)
{
    slow_names *n = slow_place();
    pthread_mutex_lock(&n->lock);
    n->let_go = true;
    pthread_cond_broadcast(&n->changed);
    while (all_end && n->n_left < n->n_asked) pthread_cond_wait(&n->changed, &n->lock);
    n->let_go = !all_end;
    pthread_mutex_unlock(&n->lock);
}

static void fetch_slowly(fixture *f, transfer_fetch *x)
{
    *x = fetch_of(f, key_of(1), ROOM);
    snprintf(x->host, sizeof x->host, "slow.test");
    transfer_fetch_begin(f->fetcher, x);
}

static void name_the_holder(fixture *f, int64_t timeout_us)
{
    set_up(f, (transfer_options){0}, (transfer_options){0});
    transfer_close(f->fetcher);
    snprintf(f->peer, sizeof f->peer, "slow.test:%u", transfer_port(f->holder));
    f->fetcher = open_transfer(
        (transfer_options){.peers = f->peers, .n_peers = 1, .timeout_us = timeout_us});
}

/* A name that the resolver is still looking for holds up neither the end of the server nor, longer
 * than a peer does, a fetch; and what was found is connected to. */
static void slow_names_hold_up_nothing(void **state)
{
    (void)state;
    fixture f;
    transfer_fetch x;
    uint32_t asked = 0;
    for (int turn = 0; turn < 2; turn++) {
        bool ends = turn == 0;
        name_the_holder(&f, ends ? INT64_C(3600000000) : 1000);
        fetch_slowly(&f, &x);
        if (ends) await_asked(++asked);
        if (ends) transfer_cancel(f.fetcher);
        await(&f);
        assert_non_null(
            strstr(f.got.why, ends ? "this server stops" : "not resolved within the time"));
        if (!ends) await_asked(++asked);
        tear_down(&f);
    }
    let_names_go(true);
    name_the_holder(&f, INT64_C(3600000000));
    hold(&f, key_of(1), 7);
    let_names_go(false);
    fetch_slowly(&f, &x);
    await(&f);
    assert_non_null(f.got.bytes);
    free(f.got.bytes);
    transfer_release(f.fetcher, x.owner, f.got.n);
    let_names_go(true);
    tear_down(&f);
}

/* However many names are looked for in vain, the threads that do so are few. */
static void names_that_are_looked_for_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 40 };
    fixture f;
    transfer_fetch x;
    uint32_t n_refused = 0, before = slow_place()->n_asked;
    name_the_holder(&f, 1000);
    for (int i = 0; i < MANY; i++) {
        fetch_slowly(&f, &x);
        await(&f);
        n_refused += strstr(f.got.why, "too many names") != NULL;
    }
    assert_in_range(n_refused, 1, MANY - 1);
    await_asked(before + MANY - n_refused);
    tear_down(&f);
    let_names_go(true);
}

static void answers_that_are_none(void **state)
{
    (void)state;
    wire_answer good = {.outcome = WIRE_SENT, .n = 10};
    size_t n;
    memcpy(good.magic, WIRE_ANSWERS, sizeof good.magic);
    assert_null(wire_read_answer(&good, 10, &n));
    assert_int_equal(n, 10);
    assert_non_null(wire_read_answer(&good, 9, &n));
    assert_int_equal(n, 0);
    wire_answer bad = good;
    bad.n = 0;
    assert_non_null(wire_read_answer(&bad, 10, &n));
    bad = good;
    bad.outcome = WIRE_OUTCOMES;
    assert_non_null(wire_read_answer(&bad, 10, &n));
    bad = good;
    bad.magic[7] ^= 1;
    assert_non_null(wire_read_answer(&bad, 10, &n));
    for (bad = good, bad.outcome = WIRE_UNKNOWN; bad.outcome < WIRE_OUTCOMES; bad.outcome++)
        assert_non_null(wire_read_answer(&bad, 10, &n));
}

static void addresses(void **state)
{
    (void)state;
    char host[TRANSFER_HOST_BYTES];
    uint16_t port;
    error err;
    transfer *t;
    static const char *const good[][2] = {
        {"h:1", "h"}, {"[::1]:65535", "::1"}, {"10.0.0.1:80", "10.0.0.1"}};
    static const char *const bad[] = {"",      "h",    ":1",   "h:",   "h:65536",
                                      "::1:2", "h:1x", "[]:1", "h:-1", "h: 1"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(socket_split(good[i][0], host, &port));
        assert_string_equal(host, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(socket_split(bad[i], host, &port));
    /* Every address of the machine, in forms that resolve to it. */
    static const char *const every[] = {"0.0.0.0:0", "0:0", "00.0:0", "0x0:0"};
    for (size_t i = 0; i < sizeof every / sizeof every[0]; i++) {
        transfer_options o = {.listen = every[i], .bytes = 1, .ttl_us = 1, .timeout_us = 1};
        assert_int_equal(transfer_open(&o, &t, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, "--kv-transfer-listen: "));
        assert_non_null(strstr(err.text, "every address"));
    }
    transfer_options o = (transfer_options){.peers = (const char *const[]){"h:0"}, .n_peers = 1};
    assert_int_equal(transfer_open(&o, &t, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "--kv-transfer-peers: \"h:0\" is not HOST:PORT");
}

static void peers_are_those_that_are_named(void **state)
{
    (void)state;
    transfer *t = open_transfer(
        (transfer_options){.peers = (const char *const[]){"a:1", "[::1]:2"}, .n_peers = 2});
    assert_true(transfer_knows(t, "a", 1));
    assert_true(transfer_knows(t, "::1", 2));
    assert_false(transfer_knows(t, "a", 2));
    assert_false(transfer_knows(t, "b", 1));
    assert_false(transfer_knows(t, "a", 65537));
    assert_false(transfer_make_room(t, 1, ROOM + 1));
    assert_int_equal(transfer_port(t), 0);
    transfer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_record_is_fetched_once),
        cmocka_unit_test(bytes_are_those_that_were_held),
        cmocka_unit_test(another_identity_gets_nothing),
        cmocka_unit_test(lengths_and_room_are_limits),
        cmocka_unit_test(records_are_forgotten_after_their_time),
        cmocka_unit_test(no_owner_takes_the_room_of_others),
        cmocka_unit_test(silent_connections_keep_nobody_out),
        cmocka_unit_test(a_record_that_is_being_sent_is_not_given_up),
        cmocka_unit_test(slow_peers_are_given_up),
        cmocka_unit_test(fetches_of_a_silent_peer_do_not_queue),
        cmocka_unit_test(a_peer_that_goes_away_frees_its_record),
        cmocka_unit_test(cancelling_ends_fetches),
        cmocka_unit_test(fetches_are_taken_back),
        cmocka_unit_test(a_slow_peer_leaves_threads_to_others),
        cmocka_unit_test(slow_names_hold_up_nothing),
        cmocka_unit_test(names_that_are_looked_for_are_bounded),
        cmocka_unit_test(answers_that_are_none),
        cmocka_unit_test(addresses),
        cmocka_unit_test(peers_are_those_that_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
