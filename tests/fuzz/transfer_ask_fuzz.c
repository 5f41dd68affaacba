/* Property: whatever connects to the listener gets a record's bytes only where it asks for them by
 * key, identity and enough room, and then takes them; it gets them whole. The record is not held
 * any more once it was asked for so. Else it stays, and no byte of it is sent. The input's first
 * byte chooses what of it is made right, the second in parts of how many bytes it comes; the rest
 * is what is sent. */
#include "tests/fuzz/fuzz.h"
#include "transfer/internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RIGHT_MAGIC = 1,
    RIGHT_KEY = 2,
    RIGHT_IDENTITY = 4,
    RIGHT_ROOM = 8,
    RIGHT_TAKE = 16,
    IDENTITY = 5
};
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
    if ((how & RIGHT_TAKE) && n >= sizeof a + sizeof(wire_take))
        memcpy(bytes + sizeof a, WIRE_TAKES, sizeof(wire_take));
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

static bool takes(const uint8_t *bytes, size_t n)
{
    const uint8_t *take = bytes + sizeof(wire_ask);
    return n >= sizeof(wire_ask) + sizeof(wire_take) &&
           memcmp(take, WIRE_TAKES, sizeof(wire_take)) == 0;
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

static void check_answer(wire_outcome outcome, bool sent, const uint8_t *got, size_t n)
{
    wire_answer a;
    FUZZ_CHECK((n == 0) == (outcome == WIRE_OUTCOMES));
    if (n == 0) return;
    FUZZ_CHECK(n == sizeof a + (sent ? RECORD : 0));
    memcpy(&a, got, sizeof a);
    FUZZ_CHECK(memcmp(a.magic, WIRE_ANSWERS, sizeof a.magic) == 0 && a.outcome == outcome);
    FUZZ_CHECK(a.n == (outcome == WIRE_SENT ? RECORD : 0) && a.zero == 0);
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
    for (int i = 0; p.fd >= 0 && i < 2 * MOST; i++) {
        bool listens = peer_events(&p) == POLLIN;
        if (listens && sent < n) {
            ssize_t more =
                send(fds[1], bytes + sent, n - sent < part ? n - sent : part, MSG_NOSIGNAL);
            FUZZ_CHECK(more > 0);
            sent += (size_t)more;
        } else if (listens) {
            FUZZ_CHECK(shutdown(fds[1], SHUT_WR) == 0);
        }
        peer_serve(t, &p, peer_events(&p));
    }
    FUZZ_CHECK(p.fd < 0);
    for (ssize_t more; (more = recv(fds[1], got + taken, sizeof got - taken, 0)) > 0;)
        taken += (size_t)more;
    wire_outcome outcome = expected(bytes, n);
    bool whole = outcome == WIRE_SENT && takes(bytes, n);
    check_answer(outcome, whole, got, taken);
    transfer_counts c = transfer_count(t);
    FUZZ_CHECK(c.records == (outcome == WIRE_SENT ? 0 : 1));
    FUZZ_CHECK(c.bytes == (outcome == WIRE_SENT ? 0 : RECORD));
    FUZZ_CHECK(c.sent == whole && c.sent + c.send_failures == 1);
    close(fds[1]);
    transfer_close(t);
    return 0;
}
