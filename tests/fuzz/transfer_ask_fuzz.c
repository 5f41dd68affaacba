/* Property: whatever connects to the listener gets a record's bytes only where it asks for them by
 * key, identity and enough room; then it gets them whole, and the record is not held any more. Else
 * it gets no byte of it, and the record stays. The input's first byte chooses what of it is made
 * right, the second in parts of how many bytes it comes; the rest is what is sent. */
#include "tests/fuzz/fuzz.h"
#include "transfer/internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RIGHT_MAGIC = 1, RIGHT_KEY = 2, RIGHT_IDENTITY = 4, RIGHT_ROOM = 8, IDENTITY = 5 };
enum { RECORD = 100, MOST = 4096 };

static const transfer_key held_key = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};

static void mend(uint8_t how, uint8_t *bytes, size_t n)
{
    wire_ask a;
    if (n < sizeof a) return;
    memcpy(&a, bytes, sizeof a);
    if (how & RIGHT_MAGIC) memcpy(a.magic, WIRE_ASKS, sizeof a.magic);
    if (how & RIGHT_KEY) a.key = held_key;
    if (how & RIGHT_IDENTITY) a.identity = IDENTITY;
    if (how & RIGHT_ROOM) a.most = RECORD;
    memcpy(bytes, &a, sizeof a);
}

/* The answer that these bytes should get; WIRE_OUTCOMES: none. */
static wire_outcome expected(const uint8_t *bytes, size_t n)
{
    wire_ask a;
    if (n < sizeof a) return WIRE_OUTCOMES;
    memcpy(&a, bytes, sizeof a);
    if (memcmp(a.magic, WIRE_ASKS, sizeof a.magic) != 0) return WIRE_OUTCOMES;
    if (memcmp(&a.key, &held_key, sizeof held_key) != 0) return WIRE_UNKNOWN;
    if (a.identity != IDENTITY) return WIRE_OTHER;
    return a.most < RECORD ? WIRE_LONG : WIRE_SENT;
}

static transfer *open_with_record(void)
{
    const transfer_options o = {
        .identity = IDENTITY, .bytes = RECORD, .timeout_us = 60000000, .ttl_us = INT64_MAX};
    transfer *t;
    error err;
    uint8_t *bytes = malloc(RECORD);
    for (int i = 0; i < RECORD; i++) bytes[i] = (uint8_t)i;
    FUZZ_CHECK(status_ok(transfer_open(&o, &t, &err)));
    FUZZ_CHECK(transfer_make_room(t, 1, RECORD));
    FUZZ_CHECK(transfer_hold(t, &held_key, 1, bytes, RECORD));
    return t;
}

static void check_answer(wire_outcome outcome, const uint8_t *got, size_t n)
{
    wire_answer a;
    FUZZ_CHECK((n == 0) == (outcome == WIRE_OUTCOMES));
    if (n == 0) return;
    FUZZ_CHECK(n == sizeof a + (outcome == WIRE_SENT ? RECORD : 0));
    memcpy(&a, got, sizeof a);
    FUZZ_CHECK(memcmp(a.magic, WIRE_ANSWERS, sizeof a.magic) == 0 && a.outcome == outcome);
    FUZZ_CHECK(a.n == n - sizeof a && a.zero == 0);
    for (size_t i = sizeof a; i < n; i++) FUZZ_CHECK(got[i] == (uint8_t)(i - sizeof a));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    uint8_t bytes[MOST], got[sizeof(wire_answer) + RECORD + 1];
    if (size < 2 || size - 2 > MOST) return 0;
    size_t n = size - 2, part = data[1] ? data[1] : MOST, sent = 0, taken = 0;
    memcpy(bytes, data + 2, n);
    mend(data[0], bytes, n);
    transfer *t = open_with_record();
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    peer p = {.fd = fds[0]};
    while (p.fd >= 0 && !p.times.answers && sent < n) {
        ssize_t more = send(fds[1], bytes + sent, n - sent < part ? n - sent : part, MSG_NOSIGNAL);
        FUZZ_CHECK(more > 0);
        sent += (size_t)more;
        peer_serve(t, &p, POLLIN);
    }
    FUZZ_CHECK(shutdown(fds[1], SHUT_WR) == 0);
    for (int i = 0; p.fd >= 0 && i < MOST; i++)
        peer_serve(t, &p, p.times.answers ? POLLIN | POLLOUT : POLLIN);
    FUZZ_CHECK(p.fd < 0);
    for (ssize_t more; (more = recv(fds[1], got + taken, sizeof got - taken, 0)) > 0;)
        taken += (size_t)more;
    wire_outcome outcome = expected(bytes, n);
    check_answer(outcome, got, taken);
    transfer_counts c = transfer_count(t);
    FUZZ_CHECK(c.records == (outcome == WIRE_SENT ? 0 : 1));
    FUZZ_CHECK(c.bytes == (outcome == WIRE_SENT ? 0 : RECORD));
    FUZZ_CHECK(c.sent == (outcome == WIRE_SENT) && c.sent + c.send_failures == 1);
    close(fds[1]);
    transfer_close(t);
    return 0;
}
