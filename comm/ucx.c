/* Ranks as processes of one or several hosts, over UCX, which picks shared memory, TCP or RDMA for
 * each pair of ranks.
 *
 * In a short reduction every rank sends all its data to all others, and each rank sums by itself:
 * one round. In a long reduction a rank gets its share from all others, sums it in rank order, and
 * sends the sum to all: two rounds of 1/size of the bytes each. Both give the same bits as
 * "threads". */
#include "comm/ucx.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    LINE_FLOATS = 16,       /* shares are whole cache lines */
    BLOCK_FLOATS = 1 << 18, /* a long reduction goes block by block, which bounds scratch */
    SHORT_BYTES = 1 << 15,  /* most bytes that a rank sends in a short reduction */
};

typedef enum operation { MEET, ALL_REDUCE, ALL_GATHER, BROADCAST } operation;

static uint64_t digest_call(operation what, size_t n, int root)
{
    uint64_t call[] = {what, n, (uint64_t)root};
    return hash_bytes(call, sizeof call, 0);
}

/* ---- making ---------------------------------------------------------------------------------- */

static status ucs_error_set(const ucx *u, const char *what, ucs_status_t why, error *err)
{
    return error_set(err, STATUS_IO, "comm: UCX %s: %s", what, u->lib.ucs_status_string(why));
}

static status open_context(ucx *u, error *err)
{
    ucp_config_t *config = NULL;
    ucs_status_t s = u->lib.ucp_config_read(NULL, NULL, &config);
    if (s != UCS_OK) return ucs_error_set(u, "cannot read its settings", s, err);
    /* Turns rendezvous off, in which a peer reads or writes this process's memory at any time. */
    s = u->lib.ucp_config_modify(config, "RNDV_THRESH", "inf");
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = (size_t)u->size,
    };
    if (s == UCS_OK)
        s = u->lib.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &u->context);
    u->lib.ucp_config_release(config);
    return s == UCS_OK ? STATUS_IS_OK : ucs_error_set(u, "cannot start", s, err);
}

static status open_worker(ucx *u, error *err)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t s = u->lib.ucp_worker_create(u->context, &params, &u->worker);
    if (s != UCS_OK) return ucs_error_set(u, "has no transport", s, err);
    s = u->lib.ucp_worker_get_efd(u->worker, &u->event_fd);
    return s == UCS_OK ? STATUS_IS_OK : ucs_error_set(u, "cannot wait by a descriptor", s, err);
}

static status frame_address(ucx *u, error *err)
{
    unsigned major, minor, release;
    u->lib.ucp_get_version(&major, &minor, &release);
    u->origin = (address_origin){"ucx", {major, minor, release}, u->rank, u->size};
    ucp_address_t *worker = NULL;
    size_t bytes = 0;
    ucs_status_t s = u->lib.ucp_worker_get_address(u->worker, &worker, &bytes);
    if (s != UCS_OK) return ucs_error_set(u, "has no address", s, err);
    status result = address_write(&u->address, &u->origin, worker, bytes, err);
    u->lib.ucp_worker_release_address(u->worker, worker);
    return result;
}

static status open_all(ucx *u, error *err)
{
    RETURN_IF_ERROR(ucx_library_open(&u->lib, err));
    u->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->abort_fd < 0) return error_set(err, STATUS_LIMIT, "comm: no descriptor left");
    u->scratch = malloc((BLOCK_FLOATS + UCX_RANKS_MAX * LINE_FLOATS) * sizeof *u->scratch);
    if (!u->scratch) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    RETURN_IF_ERROR(open_context(u, err));
    RETURN_IF_ERROR(open_worker(u, err));
    return frame_address(u, err);
}

/* Destroying the worker drops its peers without notifying them, with all messages under way. */
static void ucx_close(void *state)
{
    ucx *u = state;
    ucx_fail(u, "this rank has left the group");
    if (u->worker) u->lib.ucp_worker_destroy(u->worker);
    if (u->context) u->lib.ucp_cleanup(u->context);
    if (u->abort_fd >= 0) close(u->abort_fd);
    strbuf_destroy(&u->address);
    free(u->scratch);
    free(u);
}

/* Blocks all signals meanwhile, because UCX starts a thread of its own, and signals must go to the
 * main thread. */
static status ucx_open(const comm_options *options, void *group, void **state, error *err)
{
    (void)group;
    ucx *u = calloc(1, sizeof *u);
    if (!u) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    u->rank = options->rank;
    u->size = options->size;
    u->abort_fd = -1;
    u->unreached = -1;
    sigset_t every, old;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    status result = open_all(u, err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (status_ok(result)) *state = u;
    else ucx_close(u);
    return result;
}

/* ---- meeting --------------------------------------------------------------------------------- */

static comm_address ucx_own_address(const void *state)
{
    const ucx *u = state;
    return (comm_address){u->address.data, u->address.size};
}

static status open_peer(ucx *u, int rank, const void *worker, error *err)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = worker,
    };
    ucs_status_t s = u->lib.ucp_ep_create(u->worker, &params, &u->peers[rank]);
    if (s == UCS_OK) return STATUS_IS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "comm: rank %d cannot be reached: %s", rank,
                     u->lib.ucs_status_string(s));
}

/* Sends a byte to every peer and receives one from each. */
static status greet_peers(ucx *u, uint64_t call, int64_t deadline_us)
{
    char sent = 0, received[UCX_RANKS_MAX];
    ucx_begin(u, call);
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_receive(u, r, &received[r], 1);
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_send(u, r, &sent, 1);
    return ucx_end(u, deadline_us);
}

static status open_peers(ucx *u, const comm_address *all, uint64_t *group, error *err)
{
    comm_address workers[UCX_RANKS_MAX];
    unsigned n_here = 0;
    for (int r = 0; r < u->size; r++) {
        uint64_t host = 0;
        RETURN_IF_ERROR(address_read(&u->origin, r, all[r], &workers[r], &host, err));
        n_here += host == address_host();
        *group = hash_bytes(all[r].bytes, all[r].n, *group);
    }
    u->crowded = n_here > cpu_count_allowed();
    status result = STATUS_IS_OK;
    for (int r = 0; status_ok(result) && r < u->size; r++)
        if (r != u->rank) result = open_peer(u, r, workers[r].bytes, err);
    if (!status_ok(result)) ucx_fail(u, "this rank has not met the others");
    return result;
}

/* UCX negotiates the transport with each peer, for which both sides must be waiting. After the
 * second greeting each rank knows that all ranks have finished that. */
static status ucx_connect(void *state, const comm_address *all, int64_t timeout_us, error *err)
{
    ucx *u = state;
    int64_t deadline_us = clock_now_us() + timeout_us;
    uint64_t group = 0;
    RETURN_IF_ERROR(open_peers(u, all, &group, err));
    status result = greet_peers(u, group, deadline_us);
    if (status_ok(result)) result = greet_peers(u, group, deadline_us);
    u->connected = status_ok(result);
    if (u->connected) return result;
    if (clock_now_us() >= deadline_us && u->missing >= 0)
        return error_set(err, STATUS_UNAVAILABLE, "comm: rank %d did not answer within %.1f s",
                         u->missing, (double)timeout_us * 1e-6);
    if (u->unreached >= 0)
        return error_set(err, STATUS_IO, "comm: rank %d cannot be reached: %s", u->unreached,
                         result.message);
    return error_set(err, STATUS_IO, "comm: %s", result.message);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static status ready(const ucx *u)
{
    const char *ended_by = atomic_load(&u->ended_by);
    if (ended_by) return status_make(STATUS_IO, ended_by);
    return u->connected ? STATUS_IS_OK : status_make(STATUS_INVALID, "the ranks have not met");
}

/* The part [from, from + n) that one rank sums. */
typedef struct share {
    size_t from, n;
} share;

static share share_of(const ucx *u, int rank, size_t n)
{
    size_t size = (size_t)u->size, lines = (n + LINE_FLOATS - 1) / LINE_FLOATS;
    size_t most = (lines + size - 1) / size * LINE_FLOATS, from = (size_t)rank * most;
    if (from >= n) return (share){n, 0};
    return (share){from, n - from < most ? n - from : most};
}

/* The place in scratch of the n floats from `peer`. */
static float *received_floats(const ucx *u, int peer, size_t n)
{
    return u->scratch + (size_t)(peer < u->rank ? peer : peer - 1) * n;
}

/* Sums mine [n] and the data of all other ranks in rank order, into mine. */
static void sum_heard(const ucx *u, float *mine, size_t n)
{
    if (u->rank > 0) {
        float *sum = received_floats(u, 0, n);
        for (int r = 1; r < u->size; r++) {
            const float *term = r == u->rank ? mine : received_floats(u, r, n);
            for (size_t i = 0; i < n; i++) sum[i] += term[i];
        }
        memcpy(mine, sum, n * sizeof *mine);
    } else {
        for (int r = 1; r < u->size; r++) {
            const float *term = received_floats(u, r, n);
            for (size_t i = 0; i < n; i++) mine[i] += term[i];
        }
    }
}

static status reduce_short(ucx *u, float *data, size_t n)
{
    ucx_begin(u, digest_call(ALL_REDUCE, n, 0));
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_receive(u, r, received_floats(u, r, n), n * sizeof *data);
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_send(u, r, data, n * sizeof *data);
    RETURN_IF_ERROR(ucx_end(u, INT64_MAX));
    sum_heard(u, data, n);
    return STATUS_IS_OK;
}

static status reduce_long(ucx *u, float *data, size_t n)
{
    share mine = share_of(u, u->rank, n);
    ucx_begin(u, digest_call(ALL_REDUCE, n, 1));
    for (int r = 0; r < u->size && mine.n > 0; r++)
        if (r != u->rank) ucx_receive(u, r, received_floats(u, r, mine.n), mine.n * sizeof *data);
    for (int r = 0; r < u->size; r++) {
        share s = share_of(u, r, n);
        if (r != u->rank && s.n > 0) ucx_send(u, r, data + s.from, s.n * sizeof *data);
    }
    RETURN_IF_ERROR(ucx_end(u, INT64_MAX));
    sum_heard(u, data + mine.from, mine.n);

    ucx_begin(u, digest_call(ALL_REDUCE, n, 2));
    for (int r = 0; r < u->size; r++) {
        share s = share_of(u, r, n);
        if (r != u->rank && s.n > 0) ucx_receive(u, r, data + s.from, s.n * sizeof *data);
    }
    for (int r = 0; r < u->size && mine.n > 0; r++)
        if (r != u->rank) ucx_send(u, r, data + mine.from, mine.n * sizeof *data);
    return ucx_end(u, INT64_MAX);
}

static status ucx_all_reduce_sum(void *state, float *data, size_t n)
{
    ucx *u = state;
    RETURN_IF_ERROR(ready(u));
    if (n * sizeof *data * (size_t)(u->size - 1) <= SHORT_BYTES) return reduce_short(u, data, n);
    for (size_t from = 0; from < n; from += BLOCK_FLOATS)
        RETURN_IF_ERROR(
            reduce_long(u, data + from, n - from < BLOCK_FLOATS ? n - from : BLOCK_FLOATS));
    return STATUS_IS_OK;
}

static status ucx_all_gather(void *state, const float *in, size_t n, float *out)
{
    ucx *u = state;
    RETURN_IF_ERROR(ready(u));
    float *own = n > 0 ? out + (size_t)u->rank * n : out;
    if (n > 0 && own != in) memcpy(own, in, n * sizeof *out);
    ucx_begin(u, digest_call(ALL_GATHER, n, 0));
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_receive(u, r, out + (size_t)r * n, n * sizeof *out);
    for (int r = 0; r < u->size; r++)
        if (r != u->rank) ucx_send(u, r, own, n * sizeof *out);
    return ucx_end(u, INT64_MAX);
}

static status ucx_broadcast(void *state, void *data, size_t bytes, int root)
{
    ucx *u = state;
    RETURN_IF_ERROR(ready(u));
    ucx_begin(u, digest_call(BROADCAST, bytes, root));
    if (u->rank != root) ucx_receive(u, root, data, bytes);
    for (int r = 0; r < u->size && u->rank == root; r++)
        if (r != u->rank) ucx_send(u, r, data, bytes);
    return ucx_end(u, INT64_MAX);
}

static status ucx_check(void *state)
{
    const char *ended_by = atomic_load(&((ucx *)state)->ended_by);
    return ended_by ? status_make(STATUS_IO, ended_by) : STATUS_IS_OK;
}

static void ucx_abort(void *state)
{
    ucx *u = state;
    ucx_fail(u, "the group of ranks was aborted");
    uint64_t one = 1;
    ssize_t written = write(u->abort_fd, &one, sizeof one);
    (void)written; /* cannot fail before 2^64 aborts */
}

const comm_kind comm_kind_ucx = {
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .address = ucx_own_address,
    .connect = ucx_connect,
    .all_reduce_sum = ucx_all_reduce_sum,
    .all_gather = ucx_all_gather,
    .broadcast = ucx_broadcast,
    .check = ucx_check,
    .waits = ucx_waits,
    .abort = ucx_abort,
    .size_max = UCX_RANKS_MAX,
};
