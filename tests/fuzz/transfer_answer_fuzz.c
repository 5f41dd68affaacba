/* Property: what a peer answers to a fetch is refused with a reason, and no room is left taken; or
 * it was told that its record is taken, and its bytes are those behind an answer that says so, as
 * many as were asked for at most, under their checksum. The input's first byte chooses what of it
 * is made right, the second how much may come; the rest is what the peer sends before it closes the
 * connection. */
#include "tests/fuzz/fuzz.h"
#include "transfer/internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RIGHT_MAGIC = 1, RIGHT_OUTCOME = 2, RIGHT_LENGTH = 4, RIGHT_HASH = 8, IDENTITY = 5 };
enum { ROOM = 200, MOST = 4096 };

/* Makes parts of the answer right, so that those behind them are reached. */
static void mend(uint8_t how, uint8_t *bytes, size_t n)
{
    wire_answer a;
    if (n < sizeof a) return;
    memcpy(&a, bytes, sizeof a);
    if (how & RIGHT_MAGIC) memcpy(a.magic, WIRE_ANSWERS, sizeof a.magic);
    if (how & RIGHT_OUTCOME) a.outcome = WIRE_SENT;
    if (how & RIGHT_LENGTH) a.n = n - sizeof a;
    if ((how & RIGHT_HASH) && a.n <= n - sizeof a)
        a.hash = hash_bytes(bytes + sizeof a, (size_t)a.n, IDENTITY);
    memcpy(bytes, &a, sizeof a);
}

static void check_taken(const transfer_fetch *f, const transfer_got *got, const uint8_t *bytes,
                        size_t n)
{
    wire_answer a;
    FUZZ_CHECK(n >= sizeof a + got->n && got->n > 0 && got->n <= f->most);
    memcpy(&a, bytes, sizeof a);
    FUZZ_CHECK(memcmp(a.magic, WIRE_ANSWERS, sizeof a.magic) == 0);
    FUZZ_CHECK(a.outcome == WIRE_SENT && a.n == got->n);
    FUZZ_CHECK(memcmp(got->bytes, bytes + sizeof a, got->n) == 0);
    FUZZ_CHECK(hash_bytes(got->bytes, got->n, IDENTITY) == a.hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const transfer_options o = {.identity = IDENTITY, .bytes = ROOM, .timeout_us = 60000000};
    transfer *t;
    error err;
    int fds[2];
    uint8_t asked[sizeof(wire_ask)], take[sizeof(wire_take)];
    if (size < 2 || size - 2 > MOST) return 0;
    size_t n = size - 2;
    uint8_t *bytes = malloc(n + 1);
    memcpy(bytes, data + 2, n);
    mend(data[0], bytes, n);
    FUZZ_CHECK(status_ok(transfer_open(&o, &t, &err)));
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    FUZZ_CHECK(send(fds[1], bytes, n, 0) == (ssize_t)n && shutdown(fds[1], SHUT_WR) == 0);
    const transfer_fetch f = {.most = data[1]};
    const socket_wait w = {o.timeout_us, t->stop_pipe[0], -1, NULL};
    transfer_got got = {0};
    const char *why = fetch_over(t, fds[0], &f, &w, &got);
    FUZZ_CHECK(recv(fds[1], asked, sizeof asked, MSG_WAITALL) == sizeof asked);
    ssize_t told = recv(fds[1], take, sizeof take, MSG_DONTWAIT);
    FUZZ_CHECK(told <= 0 || (told == sizeof take && memcmp(take, WIRE_TAKES, sizeof take) == 0));
    FUZZ_CHECK(told > 0 || why);
    FUZZ_CHECK((why == NULL) == (got.bytes != NULL));
    FUZZ_CHECK(transfer_count(t).bytes == (why ? 0 : got.n));
    if (why) FUZZ_CHECK(*why != '\0');
    else check_taken(&f, &got, bytes, n);
    if (got.bytes) transfer_release(t, f.owner, got.n);
    FUZZ_CHECK(transfer_count(t).bytes == 0);
    free(got.bytes);
    free(bytes);
    close(fds[0]);
    close(fds[1]);
    transfer_close(t);
    return 0;
}
