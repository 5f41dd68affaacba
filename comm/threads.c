/* Ranks as threads of one process, which read each other's buffers.
 *
 * A collective is a round. Each rank arrives with its call. The last one to arrive begins the
 * round; from then on each rank does its share without waiting; the last one to finish ends the
 * round. A rank therefore checks for an abort only while it waits for others to arrive, and no rank
 * returns while a peer may still read its buffers. */
#include "comm/kinds.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MAX = 64,
    LINE_FLOATS = 16, /* a cache line: no two ranks write to the same one */
    BLOCK_FLOATS = 256,
};

typedef enum operation { ALL_REDUCE, ALL_GATHER, BROADCAST } operation;

typedef struct call {
    operation what;
    size_t n; /* elements or bytes */
    int root;
    const void *in; /* read by other ranks */
    float *data;    /* all-reduce: written by other ranks */
} call;

typedef struct meeting {
    pthread_mutex_t lock; /* guards all fields; for calls see there */
    pthread_cond_t changed;
    int size;
    uint64_t joined; /* bit r: rank r has a comm */
    int n_arrived;   /* ranks that arrived for the round after `begun` */
    int n_working;   /* ranks at work in round `begun` */
    uint64_t begun, ended;
    const char *ended_by;  /* why the group is unusable; NULL = usable */
    call calls[RANKS_MAX]; /* [size]; written under the lock, constant while a round lasts */
} meeting;

typedef struct seat {
    meeting *m;
    int rank;
    uint64_t round; /* rounds this rank has arrived for */
} seat;

/* ---- the group ------------------------------------------------------------------------------- */

static status threads_open_group(int size, void **group, error *err)
{
    meeting *m = calloc(1, sizeof *m);
    if (!m) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    m->size = size;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    *group = m;
    return STATUS_IS_OK;
}

static void threads_close_group(void *group)
{
    meeting *m = group;
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static status threads_open(const comm_options *options, void *group, void **state, error *err)
{
    meeting *m = group;
    uint64_t bit = (uint64_t)1 << options->rank;
    seat *s = malloc(sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    *s = (seat){.m = m, .rank = options->rank};
    pthread_mutex_lock(&m->lock);
    bool taken = m->joined & bit;
    m->joined |= bit;
    pthread_mutex_unlock(&m->lock);
    if (taken) {
        free(s);
        return error_set(err, STATUS_INVALID, "comm: rank %d has joined before", options->rank);
    }
    *state = s;
    return STATUS_IS_OK;
}

static void end_group(meeting *m, const char *why)
{
    pthread_mutex_lock(&m->lock);
    if (!m->ended_by) m->ended_by = why;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void threads_abort(void *state)
{
    end_group(((seat *)state)->m, "the group of ranks was aborted");
}

static status threads_check(void *state)
{
    meeting *m = ((seat *)state)->m;
    pthread_mutex_lock(&m->lock);
    status result = m->ended_by ? status_make(STATUS_IO, m->ended_by) : STATUS_IS_OK;
    pthread_mutex_unlock(&m->lock);
    return result;
}

static void threads_close(void *state)
{
    seat *s = state;
    end_group(s->m, "a rank has left the group");
    free(s);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static bool is_one_call(const meeting *m)
{
    const call *first = &m->calls[0];
    for (int r = 1; r < m->size; r++) {
        const call *c = &m->calls[r];
        if (c->what != first->what || c->n != first->n || c->root != first->root) return false;
    }
    return true;
}

/* Arrives with a call. When the status is ok, every rank has arrived, and leave_call() must
 * follow. */
static status enter_call(seat *s, const call *mine)
{
    meeting *m = s->m;
    pthread_mutex_lock(&m->lock);
    m->calls[s->rank] = *mine;
    s->round++;
    m->n_arrived++;
    if (m->n_arrived == m->size && !m->ended_by) {
        m->n_arrived = 0;
        m->n_working = m->size;
        if (is_one_call(m)) m->begun++;
        else m->ended_by = "the ranks make different calls";
        pthread_cond_broadcast(&m->changed);
    }
    while (m->begun < s->round && !m->ended_by) pthread_cond_wait(&m->changed, &m->lock);
    status result = m->begun >= s->round ? STATUS_IS_OK : status_make(STATUS_IO, m->ended_by);
    pthread_mutex_unlock(&m->lock);
    return result;
}

static void leave_call(seat *s)
{
    meeting *m = s->m;
    pthread_mutex_lock(&m->lock);
    if (--m->n_working == 0) {
        m->ended++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->ended < s->round) pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Sums [from, to) of all ranks in rank order, and writes the sum to all ranks. */
static void sum_range(const meeting *m, size_t from, size_t to)
{
    float sum[BLOCK_FLOATS];
    for (; from < to; from += BLOCK_FLOATS) {
        size_t n = to - from < BLOCK_FLOATS ? to - from : BLOCK_FLOATS;
        memcpy(sum, m->calls[0].data + from, n * sizeof *sum);
        for (int r = 1; r < m->size; r++) {
            const float *data = m->calls[r].data + from;
            for (size_t i = 0; i < n; i++) sum[i] += data[i];
        }
        for (int r = 0; r < m->size; r++) memcpy(m->calls[r].data + from, sum, n * sizeof *sum);
    }
}

static status threads_all_reduce_sum(void *state, float *data, size_t n)
{
    seat *s = state;
    RETURN_IF_ERROR(enter_call(s, &(call){.what = ALL_REDUCE, .n = n, .data = data}));
    size_t lines = (n + LINE_FLOATS - 1) / LINE_FLOATS, size = (size_t)s->m->size;
    size_t share = (lines + size - 1) / size * LINE_FLOATS, from = (size_t)s->rank * share;
    if (from < n) sum_range(s->m, from, n - from < share ? n : from + share);
    leave_call(s);
    return STATUS_IS_OK;
}

static status threads_all_gather(void *state, const float *in, size_t n, float *out)
{
    seat *s = state;
    RETURN_IF_ERROR(enter_call(s, &(call){.what = ALL_GATHER, .n = n, .in = in}));
    for (int r = 0; n > 0 && r < s->m->size; r++) {
        float *to = out + (size_t)r * n;
        if (to != s->m->calls[r].in) memcpy(to, s->m->calls[r].in, n * sizeof *out);
    }
    leave_call(s);
    return STATUS_IS_OK;
}

static status threads_broadcast(void *state, void *data, size_t bytes, int root)
{
    seat *s = state;
    RETURN_IF_ERROR(
        enter_call(s, &(call){.what = BROADCAST, .n = bytes, .root = root, .in = data}));
    if (s->rank != root && bytes > 0) memcpy(data, s->m->calls[root].in, bytes);
    leave_call(s);
    return STATUS_IS_OK;
}

const comm_kind comm_kind_threads = {
    .name = "threads",
    .open_group = threads_open_group,
    .close_group = threads_close_group,
    .open = threads_open,
    .close = threads_close,
    .all_reduce_sum = threads_all_reduce_sum,
    .all_gather = threads_all_gather,
    .broadcast = threads_broadcast,
    .check = threads_check,
    .abort = threads_abort,
    .size_max = RANKS_MAX,
};
