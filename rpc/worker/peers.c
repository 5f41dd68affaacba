/* Finds ranks that reach the coordinator but not each other, because their network is cut.
 *
 * A rank that waits for a peer is no sign of this: the peer may still be busy. But when the peer
 * reports that it has sent all messages of the round, the message is on its way, which takes less
 * than a second on a working network. From the moment both reports are known, the rank is given
 * patience_us of its own polling time (comm_wait.idle_us); if nothing arrives in it, the rank is
 * cut off. */
#include "rpc/worker/group.h"

#include <stdio.h>

/* Less than the silence after which a rank is lost, since some time passes before the wait is
 * known. */
static int64_t patience_us(const worker_group *g) { return group_silence_us(g) * 2 / 3; }

/* True when `round` is not before `as`. Round numbers wrap around. */
static bool is_as_far(uint32_t round, uint32_t as) { return (int32_t)(round - as) >= 0; }

/* The last round whose messages the rank has all sent. Once it is idle inside a round, it has sent
 * that round's messages. */
static uint32_t sent_round(const comm_wait *w)
{
    return w->inside && w->idle_us == 0 ? w->round - 1 : w->round;
}

static void take_report(peer_view *v, const comm_wait *report)
{
    int64_t now = clock_now_us();
    uint32_t sent = sent_round(report);
    if (!v->reports || v->sent_round != sent) v->sent_since_us = now;
    v->reports = true;
    v->sent_round = sent;
    v->wait = *report;
    v->reported_us = now;
}

/* True when the peer had sent the message that this rank waits for before the rank was asked, and
 * the peer itself is not silent. */
static bool is_sent(const worker_link *l, const comm_wait *w)
{
    const worker_group *g = l->group;
    if (!w->inside || w->peer < 0 || (uint32_t)w->peer == l->rank) return false;
    const peer_view *v = &g->links[w->peer].view;
    return v->reports && is_as_far(v->sent_round, w->round) &&
           v->sent_since_us <= l->beat.begun_us &&
           clock_now_us() - v->reported_us < group_silence_us(g) / 2;
}

static bool is_same_wait(const comm_wait *a, const comm_wait *b)
{
    return a->round == b->round && a->peer == b->peer && a->idle_us >= b->idle_us;
}

bool peer_is_cut_off(worker_link *l, const comm_wait *report, char *why, size_t size)
{
    worker_group *g = l->group;
    peer_view *v = &l->view;
    if (!report) {
        *v = (peer_view){0};
        return false;
    }
    take_report(v, report);
    if (!is_sent(l, report)) {
        v->suspects = false;
        return false;
    }
    if (!v->suspects || !is_same_wait(report, &v->since)) {
        v->suspects = true;
        v->since = *report;
    }
    int64_t waited_us = report->idle_us - v->since.idle_us;
    if (waited_us < patience_us(g)) return false;
    const worker_link *peer = &g->links[report->peer];
    snprintf(why, size,
             "nothing from rank %u (%s) for %.1f s, though it has sent: the network between the "
             "two is cut",
             peer->rank, peer->address, (double)waited_us / 1e6);
    return true;
}
