/* The messages between an answer and its record: the peer takes room, then says that it takes the
 * record. */
#include "transfer/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { IDENTITY = 5, LARGE = 48 << 20, ROOM = 64 << 20 }; /* a connection keeps less than LARGE */

static const transfer_key key = {{1, 2, 3}};
static const struct timespec nap = {.tv_nsec = 1000000};
static const socket_wait patient = {20000000, -1, -1, NULL};

/* ---- the server that holds ------------------------------------------------------------------- */

/* Holds a record of n bytes. */
static transfer *open_holder(size_t n)
{
    const transfer_options o = {.listen = "127.0.0.1:0",
                                .identity = IDENTITY,
                                .bytes = ROOM,
                                .ttl_us = INT64_C(3600000000),
                                .timeout_us = INT64_C(3600000000)};
    transfer *t;
    error err;
    assert_true(status_ok(transfer_open(&o, &t, &err)));
    assert_true(transfer_make_room(t, 1, n));
    assert_true(transfer_hold(t, &key, 1, calloc(1, n), n));
    return t;
}

/* Asks for the record and receives what is told of it. */
static int ask(transfer *t, wire_answer *answer)
{
    wire_ask asked = {.key = key, .identity = IDENTITY, .most = ROOM};
    const char *why;
    memcpy(asked.magic, WIRE_ASKS, sizeof asked.magic);
    int fd = socket_connect(t->names, "127.0.0.1", transfer_port(t), &patient, &why);
    assert_true(fd >= 0);
    assert_null(socket_send(fd, &asked, sizeof asked, &patient));
    assert_null(socket_receive(fd, answer, sizeof *answer, &patient));
    assert_int_equal(answer->outcome, WIRE_SENT);
    return fd;
}

/* The record is gone, and it was not sent. */
static void end_in_vain(transfer *t, int fd)
{
    while (transfer_count(t).bytes > 0) nanosleep(&nap, NULL);
    assert_int_equal(transfer_count(t).records, 0);
    assert_int_equal(transfer_count(t).sent, 0);
    assert_int_equal(transfer_count(t).send_failures, 1);
    close(fd);
    transfer_close(t);
}

static void expect_no_byte(int fd)
{
    char more;
    assert_null(socket_await(fd, POLLIN, &patient));
    assert_true(recv(fd, &more, 1, 0) <= 0);
}

/* A peer without room goes away. */
static void a_record_that_is_not_taken_is_not_sent(void **state)
{
    (void)state;
    wire_answer answer;
    transfer *t = open_holder(7);
    int fd = ask(t, &answer);
    assert_int_equal(answer.n, 7);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    expect_no_byte(fd);
    end_in_vain(t, fd);
}

static void a_peer_that_says_something_else_is_none(void **state)
{
    (void)state;
    wire_answer answer;
    transfer *t = open_holder(7);
    int fd = ask(t, &answer);
    assert_null(socket_send(fd, WIRE_ASKS, sizeof(wire_take), &patient));
    expect_no_byte(fd);
    end_in_vain(t, fd);
}

/* The message that a peer takes the record may come in parts. */
static void a_record_that_is_taken_is_sent(void **state)
{
    (void)state;
    wire_answer answer;
    uint8_t bytes[7];
    transfer *t = open_holder(sizeof bytes);
    int fd = ask(t, &answer);
    assert_null(socket_send(fd, WIRE_TAKES, 3, &patient));
    for (int i = 0; i < 20; i++) {
        nanosleep(&nap, NULL);
        assert_int_equal(recv(fd, bytes, 1, MSG_DONTWAIT), -1);
    }
    assert_null(socket_send(fd, &WIRE_TAKES[3], sizeof(wire_take) - 3, &patient));
    assert_null(socket_receive(fd, bytes, sizeof bytes, &patient));
    assert_int_equal(hash_bytes(bytes, sizeof bytes, IDENTITY), answer.hash);
    while (transfer_count(t).bytes > 0) nanosleep(&nap, NULL);
    assert_int_equal(transfer_count(t).sent, 1);
    close(fd);
    transfer_close(t);
}

static void a_peer_may_go_away_behind_that(void **state)
{
    (void)state;
    wire_answer answer;
    uint8_t some[100];
    transfer *t = open_holder(LARGE);
    int fd = ask(t, &answer);
    assert_null(socket_send(fd, WIRE_TAKES, sizeof(wire_take), &patient));
    assert_null(socket_receive(fd, some, sizeof some, &patient));
    close(fd);
    end_in_vain(t, -1);
}

/* ---- the server that fetches ----------------------------------------------------------------- */

typedef struct fetching {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    transfer_got got;
} fetching;

static void on_done(void *ctx, const transfer_got *got)
{
    fetching *f = ctx;
    pthread_mutex_lock(&f->lock);
    f->got = *got;
    f->done = true;
    pthread_cond_signal(&f->ended);
    pthread_mutex_unlock(&f->lock);
}

/* Answers a fetch by hand that there are n bytes. */
static int answer_with(int listener, size_t n)
{
    wire_ask asked;
    wire_answer answer = {.outcome = WIRE_SENT, .n = n};
    int fd = -1;
    memcpy(answer.magic, WIRE_ANSWERS, sizeof answer.magic);
    assert_null(socket_await(listener, POLLIN, &patient));
    while (fd < 0) fd = accept(listener, NULL, NULL);
    assert_null(socket_receive(fd, &asked, sizeof asked, &patient));
    assert_null(socket_send(fd, &answer, sizeof answer, &patient));
    return fd;
}

/* Fetches n bytes, of which three quarters of 100 are the share of one API key, from a peer that
 * sends none of them. */
static void fetch_in_vain(size_t n, bool has_room)
{
    fetching f = {.done = false};
    char address[64];
    uint16_t port;
    error err;
    transfer *t;
    wire_take take;
    int listener;
    pthread_mutex_init(&f.lock, NULL);
    pthread_cond_init(&f.ended, NULL);
    assert_true(status_ok(socket_listen("127.0.0.1:0", &listener, &port, &err)));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    const transfer_options o = {.peers = (const char *const[]){address},
                                .n_peers = 1,
                                .bytes = 100,
                                .timeout_us = INT64_C(3600000000)};
    assert_true(status_ok(transfer_open(&o, &t, &err)));
    transfer_fetch x = {
        .host = "127.0.0.1", .port = port, .key = key, .most = ROOM, .done = on_done, .ctx = &f};
    transfer_fetch_begin(t, &x);
    int fd = answer_with(listener, n);
    assert_int_equal(recv(fd, &take, sizeof take, MSG_WAITALL), has_room ? sizeof take : 0);
    if (has_room) assert_memory_equal(take.magic, WIRE_TAKES, sizeof take);
    assert_int_equal(transfer_count(t).bytes, has_room ? n : 0);
    close(fd);
    pthread_mutex_lock(&f.lock);
    while (!f.done) pthread_cond_wait(&f.ended, &f.lock);
    pthread_mutex_unlock(&f.lock);
    assert_null(f.got.bytes);
    assert_non_null(strstr(f.got.why, has_room ? "closed the connection" : "no room for more"));
    assert_int_equal(transfer_count(t).bytes, 0);
    close(listener);
    transfer_cancel(t);
    transfer_close(t);
    pthread_cond_destroy(&f.ended);
    pthread_mutex_destroy(&f.lock);
}

static void room_comes_before_the_record(void **state)
{
    (void)state;
    fetch_in_vain(75, true);
    fetch_in_vain(76, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_that_is_not_taken_is_not_sent),
        cmocka_unit_test(a_peer_that_says_something_else_is_none),
        cmocka_unit_test(a_record_that_is_taken_is_sent),
        cmocka_unit_test(a_peer_may_go_away_behind_that),
        cmocka_unit_test(room_comes_before_the_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
