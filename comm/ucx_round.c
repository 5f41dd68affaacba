/* Rounds of messages over UCX, and how ranks wait for them.
 *
 * All messages are eager (ucx.c turns rendezvous off): UCX copies what a rank sends, and what a
 * rank receives is written by its own calls of ucp_worker_progress. Once a rank makes no more of
 * those calls, its buffers are not touched any more, whatever the state of its peers; it needs no
 * agreement with a peer that may be dead or stopped. */
#include "comm/ucx.h"

#include <poll.h>
#include <sched.h>
#include <string.h>

enum {
    SPINS = 4000,         /* polls of a wait where every rank has a core: about 0.2 ms */
    SPINS_CROWDED = 50,   /* where ranks outnumber cores: another thread needs this core */
    YIELDS = 8,           /* yields after the spins, before it sleeps */
    CALL_BITS = 24,       /* bits of a call's digest in a tag */
    SLEEP_MS = 20,        /* longest sleep: some progress has no event */
    SLEEP_SENDING_MS = 1, /* longest sleep while sending: room in a peer's queue has no event */
};

/* Bits of a tag that UCX matches. A tag is (round, digest of the call, sender); `received` compares
 * the digest. */
static const uint64_t tag_matched = ~((((uint64_t)1 << CALL_BITS) - 1) << 8);

static uint64_t tag_of(const ucx *u, int sender)
{
    return (uint64_t)u->round << 32 | (uint64_t)u->call << 8 | (uint64_t)sender;
}

void ucx_fail(ucx *u, const char *why)
{
    const char *well = NULL;
    atomic_compare_exchange_strong(&u->ended_by, &well, why);
}

/* ---- where this rank is, in one word --------------------------------------------------------- */

enum { IDLE_BITS = 24, PEER_BITS = 7, INSIDE_BIT = IDLE_BITS + PEER_BITS };
static const uint64_t idle_most = ((uint64_t)1 << IDLE_BITS) - 1; /* milliseconds: hours */
_Static_assert(UCX_RANKS_MAX < 1 << PEER_BITS, "a peer, or none");

/* The first peer whose message has not come yet, or -1. */
static int awaited_peer(const ucx *u)
{
    for (int i = 0; i < u->n_messages; i++)
        if (u->messages[i].is_open && u->messages[i].is_receive) return u->messages[i].peer;
    return -1;
}

static void publish_wait(ucx *u, bool inside, int64_t idle_us)
{
    uint64_t ms = ((uint64_t)idle_us + 999) / 1000, peer = 0; /* round up */
    if (idle_us > 0) peer = (uint64_t)(awaited_peer(u) + 1);
    if (ms > idle_most) ms = idle_most;
    uint64_t where =
        (uint64_t)u->round << 32 | (uint64_t)inside << INSIDE_BIT | peer << IDLE_BITS | ms;
    atomic_store_explicit(&u->where, where, memory_order_release);
}

void ucx_waits(const void *state, comm_wait *out)
{
    uint64_t where = atomic_load_explicit(&((const ucx *)state)->where, memory_order_acquire);
    *out = (comm_wait){
        .round = (uint32_t)(where >> 32),
        .inside = where >> INSIDE_BIT & 1,
        .peer = (int)(where >> IDLE_BITS & ((1u << PEER_BITS) - 1)) - 1,
        .idle_us = (int64_t)(where & idle_most) * 1000,
    };
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Fails the group because a message to or from a peer failed. Remembers that peer unless the group
 * had failed before, because messages cancelled after that also end with an error. */
static void fail_message(const ucx_message *m, const char *why)
{
    ucx *u = m->owner;
    if (!atomic_load(&u->ended_by) && m->peer != u->rank) u->unreached = m->peer;
    ucx_fail(u, why);
}

static void sent(const ucx_message *m, ucs_status_t result)
{
    if (result != UCS_OK) fail_message(m, "a message to another rank failed");
}

static void finish_receive(const ucx_message *m, ucs_status_t result,
                           const ucp_tag_recv_info_t *info)
{
    ucx *u = m->owner;
    if (result != UCS_OK && result != UCS_ERR_MESSAGE_TRUNCATED)
        fail_message(m, "a message from another rank failed");
    else if (result != UCS_OK || !info || info->sender_tag != m->tag || info->length != m->bytes)
        ucx_fail(u, "the ranks make different calls");
}

static void on_sent(void *request, ucs_status_t result, void *user_data)
{
    (void)request;
    ucx_message *m = user_data;
    m->is_open = false;
    m->owner->n_open--;
    sent(m, result);
}

static void on_received(void *request, ucs_status_t result, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    (void)request;
    ucx_message *m = user_data;
    m->is_open = false;
    m->owner->n_open--;
    finish_receive(m, result, info);
}

static ucx_message *open_message(ucx *u, int peer)
{
    ucx_message *m = &u->messages[u->n_messages++];
    *m = (ucx_message){.owner = u, .peer = peer, .is_open = true};
    u->n_open++;
    return m;
}

/* Takes the return value of the UCX call that started the message: a request, whose callback gives
 * or gave the status, or a status. */
static void keep_request(ucx_message *m, ucs_status_ptr_t result)
{
    if (UCS_PTR_IS_PTR(result)) m->request = result;
    else if (m->is_receive) on_received(NULL, UCS_PTR_STATUS(result), NULL, m);
    else on_sent(NULL, UCS_PTR_STATUS(result), m);
}

void ucx_begin(ucx *u, uint64_t call)
{
    u->round++;
    u->call = (uint32_t)(hash_mix64(call) >> (64 - CALL_BITS));
    u->n_messages = 0;
    publish_wait(u, true, 0);
}

static ucp_request_param_t request_of(ucx_message *m)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = m,
    };
}

void ucx_send(ucx *u, int peer, const void *data, size_t bytes)
{
    if (atomic_load(&u->ended_by)) return;
    ucx_message *m = open_message(u, peer);
    ucp_request_param_t param = request_of(m);
    uint64_t tag = tag_of(u, u->rank);
    keep_request(m, u->lib.ucp_tag_send_nbx(u->peers[peer], data, bytes, tag, &param));
}

void ucx_receive(ucx *u, int peer, void *data, size_t bytes)
{
    if (atomic_load(&u->ended_by)) return;
    ucx_message *m = open_message(u, peer);
    m->is_receive = true;
    m->tag = tag_of(u, peer);
    m->bytes = bytes;
    ucp_request_param_t param = request_of(m);
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL; /* else info may be missing */
    param.cb.recv = on_received;
    keep_request(m, u->lib.ucp_tag_recv_nbx(u->worker, data, bytes, m->tag, tag_matched, &param));
}

/* Makes UCX send everything now, and not only in this rank's next call: other ranks may need it to
 * end theirs. */
static void flush(ucx *u)
{
    ucx_message *m = open_message(u, u->rank);
    ucp_request_param_t param = request_of(m);
    keep_request(m, u->lib.ucp_worker_flush_nbx(u->worker, &param));
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool is_sending(const ucx *u)
{
    for (int i = 0; i < u->n_messages; i++)
        if (u->messages[i].is_open && !u->messages[i].is_receive) return true;
    return false;
}

/* Sleeps until UCX has an event. Returns how long it slept, at most the intended time, however late
 * it woke. ucp_worker_arm reports busy when something came meanwhile, and then the first call
 * returns at once; it also does while UCX connects, when no event comes. */
static int64_t sleep_for_event(ucx *u, unsigned *n_busy)
{
    bool is_busy = u->lib.ucp_worker_arm(u->worker) != UCS_OK;
    if (is_busy && (*n_busy)++ == 0) return 0;
    struct pollfd fds[] = {{.fd = u->abort_fd, .events = POLLIN},
                           {.fd = u->event_fd, .events = POLLIN}};
    int most_ms = is_busy || is_sending(u) ? SLEEP_SENDING_MS : SLEEP_MS;
    int64_t begin = clock_now_us();
    poll(fds, is_busy ? 1 : 2, most_ms);
    int64_t slept = clock_now_us() - begin, most = (int64_t)most_ms * 1000;
    return slept < most ? slept : most;
}

/* Gives up the round's messages. Receives are cancelled; sends stay with the worker until it is
 * destroyed. */
static void abandon(ucx *u)
{
    u->missing = -1;
    for (int i = u->n_messages; i-- > 0;) {
        const ucx_message *m = &u->messages[i];
        if (!m->is_open || !m->is_receive) continue;
        u->missing = m->peer;
        u->lib.ucp_request_cancel(u->worker, m->request);
    }
}

/* Frees the requests. One that is still open is dropped without notice to the peer. */
static void release_requests(ucx *u)
{
    for (int i = 0; i < u->n_messages; i++)
        if (u->messages[i].request) u->lib.ucp_request_free(u->messages[i].request);
    u->n_messages = 0;
}

static void wait_open(ucx *u, int64_t deadline_us)
{
    unsigned spins = u->crowded ? SPINS_CROWDED : SPINS, n_busy = 0;
    int64_t idle_us = 0;
    for (unsigned idle = 0; u->n_open > 0 && !atomic_load(&u->ended_by);) {
        if (u->lib.ucp_worker_progress(u->worker)) {
            if (idle_us > 0) publish_wait(u, true, 0);
            idle_us = 0;
            idle = n_busy = 0;
        } else if (++idle > spins + YIELDS) {
            if (clock_now_us() >= deadline_us) ucx_fail(u, "the other ranks are not there in time");
            else {
                idle_us += sleep_for_event(u, &n_busy);
                publish_wait(u, true, idle_us);
            }
        } else if (idle > spins) {
            sched_yield();
        }
    }
}

status ucx_end(ucx *u, int64_t deadline_us)
{
    if (!atomic_load(&u->ended_by)) flush(u);
    wait_open(u, deadline_us);
    const char *ended_by = atomic_load(&u->ended_by);
    if (ended_by) abandon(u);
    release_requests(u);
    publish_wait(u, false, 0);
    return ended_by ? status_make(STATUS_IO, ended_by) : STATUS_IS_OK;
}
