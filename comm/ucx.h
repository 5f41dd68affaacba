/* What the files of the kind "ucx" share (private to comm/). */
#ifndef COMM_UCX_H
#define COMM_UCX_H

#include "comm/address.h"
#include "comm/kinds.h"
#include "comm/ucx_library.h"

#include <stdatomic.h>

enum { UCX_RANKS_MAX = 64 };

typedef struct ucx ucx;

/* A message under way, or the flush of all that were sent. */
typedef struct ucx_message {
    ucx *owner;
    void *request; /* NULL: it was over at once */
    bool is_open;
    bool is_receive;
    int peer;
    uint64_t tag; /* of a receive: what the sender's must be */
    size_t bytes; /* of a receive: what must come */
} ucx_message;

struct ucx {
    ucx_library lib;
    int rank;
    int size;
    address_origin origin;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peers[UCX_RANKS_MAX]; /* [size], but for this rank; worker's */
    strbuf address;                /* framed, as the others get it */
    bool crowded;                  /* the ranks of this host are more than its cores */
    bool connected;
    int event_fd;                   /* the worker's: readable when there may be progress */
    int abort_fd;                   /* an eventfd, written once */
    _Atomic(const char *) ended_by; /* why the group is unusable; NULL while it is not */
    _Atomic uint64_t where;         /* a comm_wait, for other threads (ucx_round.c) */

    uint32_t round; /* as many as the other ranks have begun */
    uint32_t call;  /* digest of what this rank calls */
    int n_open;     /* messages under way */
    int n_messages; /* of this round */
    int missing;    /* after a round that failed: a rank that was waited for, or -1 */
    int unreached;  /* the rank whose message ended the group by failing, or -1 */
    ucx_message messages[2 * UCX_RANKS_MAX];
    float *scratch; /* what the others sent of a sum (ucx.c) */
};

void ucx_fail(ucx *u, const char *why);

/* ---- rounds (ucx_round.c) -------------------------------------------------------------------- */

/* A round is at most one message each way between any two ranks; all ranks begin it, with the same
 * `call`, a digest of what they are about to do. A rank that is about to do something else is
 * noticed by those that hear of it. */
void ucx_begin(ucx *u, uint64_t call);
void ucx_send(ucx *u, int peer, const void *data, size_t bytes);
void ucx_receive(ucx *u, int peer, void *data, size_t bytes);
/* Waits until all messages have come and gone, or the group ended. No buffer is in use afterwards.
 * A round that is not over at deadline_us (of clock_now_us) ends the group. */
status ucx_end(ucx *u, int64_t deadline_us);
/* Any thread. */
void ucx_waits(const void *state, comm_wait *out);

#endif
