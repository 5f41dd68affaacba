/* Shared by the files of the kind "ucx" (private to comm/). */
#ifndef COMM_UCX_H
#define COMM_UCX_H

#include "comm/address.h"
#include "comm/kinds.h"
#include "comm/ucx_library.h"

#include <stdatomic.h>

enum { UCX_RANKS_MAX = 64 };

typedef struct ucx ucx;

/* A message under way, or the flush of all messages sent in a round. */
typedef struct ucx_message {
    ucx *owner;
    void *request; /* NULL: it completed at once */
    bool is_open;
    bool is_receive;
    int peer;
    uint64_t tag; /* of a receive: the tag that the sender must use */
    size_t bytes; /* of a receive: the bytes that must come */
} ucx_message;

struct ucx {
    ucx_library lib;
    int rank;
    int size;
    address_origin origin;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peers[UCX_RANKS_MAX]; /* [size], NULL for this rank; owned by worker */
    strbuf address;                /* framed, as other ranks get it */
    bool crowded;                  /* this host has more ranks than cores */
    bool connected;
    int event_fd;                   /* the worker's: readable when there may be progress */
    int abort_fd;                   /* an eventfd, written once */
    _Atomic(const char *) ended_by; /* why the group is unusable; NULL = usable */
    _Atomic uint64_t where;         /* a comm_wait, for other threads (ucx_round.c) */

    uint32_t round; /* number of rounds begun, the same on all ranks */
    uint32_t call;  /* digest of this rank's call */
    int n_open;     /* messages under way */
    int n_messages; /* messages of this round */
    int missing;    /* after a failed round: a rank that was waited for, or -1 */
    int unreached;  /* the rank whose failed message ended the group, or -1 */
    ucx_message messages[2 * UCX_RANKS_MAX];
    float *scratch; /* data of other ranks for a sum (ucx.c) */
};

void ucx_fail(ucx *u, const char *why);

/* ---- rounds (ucx_round.c) -------------------------------------------------------------------- */

/* Begins a round: at most one message each way between any two ranks. All ranks begin it with the
 * same `call`, a digest of the collective and its arguments. Ranks that get a message of a rank
 * with another call notice that. */
void ucx_begin(ucx *u, uint64_t call);
void ucx_send(ucx *u, int peer, const void *data, size_t bytes);
void ucx_receive(ucx *u, int peer, void *data, size_t bytes);
/* Waits until all messages are sent and received, or the group ended. No buffer is in use
 * afterwards. A round that is not over at deadline_us (of clock_now_us) ends the group. */
status ucx_end(ucx *u, int64_t deadline_us);
/* Any thread. */
void ucx_waits(const void *state, comm_wait *out);

#endif
