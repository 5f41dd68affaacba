/* Connections to names of several addresses, of which some do not answer. */
#include "transfer/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* A network and a clock for the calling thread, while `on`: connections are answered or refused
 * only as the fields say, and each wait moves the clock. */
typedef struct simulation {
    bool on;
    int64_t now_us;
    int64_t tried_us[64]; /* when each connection was begun */
    uint32_t n_tried;
    uint32_t refuses_at; /* so many are waited for: the first of them is refused; 0 = none is */
    uint32_t answers;    /* this one answers, if it is waited for; 0 = none does */
    int64_t answers_us;  /* from then on */
    int answering;       /* its socket */
} simulation;

static simulation *simulated(void)
{
    static _Thread_local simulation s;
    return &s;
}

int64_t __real_clock_now_us(void);
int64_t __wrap_clock_now_us(void);
int64_t __wrap_clock_now_us(void)
{
    return simulated()->on ? simulated()->now_us : __real_clock_now_us();
}

int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    if (!simulated()->on) return __real_poll(fds, n, timeout_ms);
    for (nfds_t i = 0; i < n; i++) fds[i].revents = 0;
    for (nfds_t i = SOCKETS_ENDING; i < n; i++) assert_true(fcntl(fds[i].fd, F_GETFD) >= 0);
    if (simulated()->refuses_at && n - SOCKETS_ENDING >= simulated()->refuses_at) {
        fds[SOCKETS_ENDING].revents = POLLOUT | POLLERR;
        return 1;
    }
    simulation *s = simulated();
    assert_in_range(n, SOCKETS_ENDING + 1, SOCKETS_ENDING + CONNECTS_AT_ONCE);
    int64_t until_us = s->now_us + INT64_C(1000) * timeout_ms;
    for (nfds_t i = SOCKETS_ENDING; i < n; i++) {
        bool is_it = s->answers && s->n_tried >= s->answers && fds[i].fd == s->answering;
        if (!is_it || s->answers_us > until_us) continue;
        if (s->now_us < s->answers_us) s->now_us = s->answers_us;
        fds[i].revents = POLLOUT;
        return 1;
    }
    s->now_us = until_us;
    return 0;
}

int __real_connect(int fd, const struct sockaddr *to, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t n)
{
    simulation *s = simulated();
    if (!s->on) return __real_connect(fd, to, n);
    s->tried_us[s->n_tried++] = s->now_us;
    if (s->n_tried == s->answers) s->answering = fd;
    errno = EINPROGRESS;
    return -1;
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *n)
{
    if (!simulated()->on) return __real_getsockopt(fd, level, name, value, n);
    *(int *)value = simulated()->answers && fd == simulated()->answering ? 0 : ECONNREFUSED;
    return 0;
}

typedef struct address_list {
    struct addrinfo infos[64];
    struct sockaddr_in addresses[64];
    uint32_t n;
} address_list;

static void add_address(address_list *l, uint32_t host, uint16_t port)
{
    struct addrinfo *a = &l->infos[l->n];
    l->addresses[l->n] = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(host)};
    *a = (struct addrinfo){.ai_family = AF_INET,
                           .ai_socktype = SOCK_STREAM,
                           .ai_addr = (struct sockaddr *)&l->addresses[l->n],
                           .ai_addrlen = sizeof l->addresses[l->n]};
    if (l->n++ > 0) a[-1].ai_next = a;
}

/* Connects to n addresses that do not answer, and checks that it is given up in time. */
static const simulation *connect_in_vain(uint32_t n, int64_t timeout_us)
{
    address_list l = {0};
    const char *why = NULL;
    simulation *s = simulated();
    const socket_wait w = {timeout_us, -1, -1, NULL};
    for (uint32_t i = 0; i < n; i++) add_address(&l, INADDR_LOOPBACK, 1);
    *s = (simulation){.on = true};
    int fd = socket_connect_to(l.infos, timeout_us, &w, &why);
    s->on = false;
    assert_int_equal(fd, -1);
    assert_string_equal(why, socket_late);
    assert_in_range(s->now_us, timeout_us, timeout_us + 1000);
    return s;
}

/* However many addresses a name has, they are tried within one time, a moment after each other. */
static void addresses_share_one_time(void **state)
{
    (void)state;
    const simulation *s = connect_in_vain(1, 10000000);
    assert_int_equal(s->n_tried, 1);
    s = connect_in_vain(3, 10000000);
    assert_int_equal(s->n_tried, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_in_range(s->tried_us[i], i * 250000, i * (250000 + 1000));
    s = connect_in_vain(4, 50000); /* none is tried too late */
    assert_int_equal(s->n_tried, 4);
    assert_in_range(s->tried_us[3], 30000, 40000);
}

/* More addresses than are waited for at once have their turn too: the first ones are given up for
 * the others, as late as may be, and each of the last ones has the time of those. */
static void no_address_is_left_out(void **state)
{
    (void)state;
    const simulation *s = connect_in_vain(17, 30000000);
    assert_int_equal(s->n_tried, 17);
    assert_in_range(s->tried_us[15], 15 * 250000, 15 * (250000 + 1000));
    assert_in_range(s->tried_us[16], 16800000, 17000000); /* half of what was left */
    s = connect_in_vain(60, 20000000);
    assert_int_equal(s->n_tried, 60);
    for (uint32_t i = CONNECTS_AT_ONCE; i < 60; i++)
        assert_in_range(s->tried_us[i] - s->tried_us[i - 1], 300000, 370000);
    assert_in_range(s->tried_us[59], 19000000, 19700000);
}

/* Whether the address of this number, from 1 on, is connected to where it answers from then on. */
static bool finds(uint32_t n, uint32_t answers, int64_t answers_us)
{
    address_list l = {0};
    const char *why = NULL;
    simulation *s = simulated();
    const socket_wait w = {30000000, -1, -1, NULL};
    for (uint32_t i = 0; i < n; i++) add_address(&l, INADDR_LOOPBACK, 1);
    *s = (simulation){.on = true, .answers = answers, .answers_us = answers_us};
    int fd = socket_connect_to(l.infos, w.timeout_us, &w, &why);
    s->on = false;
    assert_true(fd < 0 ? why == socket_late : fd == s->answering && !why);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* The oldest attempt makes room for the next address, and no other does. */
static void the_oldest_attempt_is_given_up(void **state)
{
    (void)state;
    assert_true(finds(17, 17, 0));
    assert_true(finds(17, 1, 16000000));
    assert_false(finds(17, 1, 18000000));
    for (uint32_t i = 2; i <= 17; i++) assert_true(finds(17, i, 18000000));
    assert_false(finds(18, 2, 29000000));
    for (uint32_t i = 3; i <= 18; i++) assert_true(finds(18, i, 29000000));
    assert_true(finds(60, 60, 0));
    assert_true(finds(16, 1, 29000000));
}

/* An address that refuses is followed by the next one at once, also while another is waited for. */
static void addresses_that_refuse_take_no_time(void **state)
{
    (void)state;
    address_list l = {0};
    const char *why = NULL;
    simulation *s = simulated();
    const socket_wait w = {10000000, -1, -1, NULL};
    for (uint32_t i = 0; i < 60; i++) add_address(&l, INADDR_LOOPBACK, 1);
    for (uint32_t at = 1; at <= 2; at++) {
        *s = (simulation){.on = true, .refuses_at = at};
        int fd = socket_connect_to(l.infos, w.timeout_us, &w, &why);
        s->on = false;
        assert_int_equal(fd, -1);
        assert_string_equal(why, at == 1 ? "it cannot be connected to" : socket_late);
        assert_int_equal(s->n_tried, 60);
        assert_int_equal(s->tried_us[59], s->tried_us[at - 1]);
    }
}

/* A listener whose connections wait for ever, because its queue is full and is never emptied. */
typedef struct deaf_listener {
    int fd, first;
    uint16_t port;
} deaf_listener;

static deaf_listener listen_deafly(void)
{
    deaf_listener d;
    error err;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(status_ok(socket_listen("127.0.0.1:0", &d.fd, &d.port, &err)));
    assert_int_equal(listen(d.fd, 0), 0);
    a.sin_port = htons(d.port);
    d.first = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(d.first, (struct sockaddr *)&a, sizeof a), 0);
    return d;
}

/* The address that answers is found behind others that refuse or do nothing. */
static void an_address_that_answers_is_found(void **state)
{
    (void)state;
    enum { REFUSING = 20 };
    int closed, answering;
    uint16_t refusing, port;
    error err;
    const char *why;
    deaf_listener deaf = listen_deafly();
    address_list l = {0};
    const socket_wait w = {1, -1, -1, NULL};
    assert_true(status_ok(socket_listen("127.0.0.1:0", &answering, &port, &err)));
    assert_true(status_ok(socket_listen("127.0.0.2:0", &closed, &refusing, &err)));
    close(closed);
    for (int i = 0; i < 2; i++) add_address(&l, INADDR_LOOPBACK, deaf.port);
    for (int i = 0; i < REFUSING; i++) add_address(&l, INADDR_LOOPBACK + 1, refusing);
    add_address(&l, INADDR_LOOPBACK, port);
    int fd = socket_connect_to(l.infos, INT64_MAX, &w, &why);
    assert_true(fd >= 0);
    struct sockaddr_in to = {0};
    socklen_t n = sizeof to;
    assert_int_equal(getpeername(fd, (struct sockaddr *)&to, &n), 0);
    assert_int_equal(ntohs(to.sin_port), port);
    close(fd);
    l.infos[REFUSING + 1].ai_next = NULL;
    assert_int_equal(socket_connect_to(&l.infos[2], INT64_MAX, &w, &why), -1);
    assert_string_equal(why, "it cannot be connected to");
    close(deaf.first);
    close(deaf.fd);
    close(answering);
}

/* The wait for addresses that do nothing ends with the request. */
static void connecting_ends_with_the_request(void **state)
{
    (void)state;
    address_list l = {0};
    const char *why;
    int ended[2];
    deaf_listener deaf = listen_deafly();
    assert_int_equal(pipe(ended), 0);
    close(ended[1]);
    const socket_wait w = {1, -1, ended[0], NULL};
    for (int i = 0; i < 3; i++) add_address(&l, INADDR_LOOPBACK, deaf.port);
    assert_int_equal(socket_connect_to(l.infos, INT64_MAX, &w, &why), -1);
    assert_string_equal(why, "the request has ended");
    close(ended[0]);
    close(deaf.first);
    close(deaf.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_share_one_time),
        cmocka_unit_test(no_address_is_left_out),
        cmocka_unit_test(the_oldest_attempt_is_given_up),
        cmocka_unit_test(addresses_that_refuse_take_no_time),
        cmocka_unit_test(an_address_that_answers_is_found),
        cmocka_unit_test(connecting_ends_with_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
