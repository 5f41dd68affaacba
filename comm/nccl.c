/* Ranks on GPUs, over NCCL, which is opened when needed.
 *
 * Ranks meet in a non-blocking communicator, whose state is polled, so that the meeting can be
 * given up at any time. Since 2.23 NCCL answers "in progress" to every call on such a communicator
 * and makes a thread for it, so collectives go to a blocking one, which is split off when the ranks
 * have met: there a call returns when its work is on the stream. A blocked call, which waits for a
 * peer that is lost, ends when another thread aborts the communicator under it. */
#include "comm/address.h"
#include "comm/kinds.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- NCCL's interface, as much as is used ---------------------------------------------------- */

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7 };        /* ncclDataType_t */
enum { NCCL_SUM = 0 };                           /* ncclRedOp_t */
enum { NCCL_ID_BYTES = 128, NCCL_MAGIC = 0xcafebeef };

typedef struct nccl_id {
    char internal[NCCL_ID_BYTES];
} nccl_id;

/* The layout of 2.14. Later versions read only `size` bytes and take their defaults for the
 * rest. */
typedef struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
} nccl_config;

enum { CONFIG_VERSION = 21400, VERSION_MIN = 21800 }; /* major * 10000 + minor * 100 + patch */

typedef struct nccl_library {
    int (*ncclGetVersion)(int *version);
    int (*ncclGetUniqueId)(nccl_id *id);
    int (*ncclCommInitRankConfig)(void **handle, int size, nccl_id id, int rank, nccl_config *c);
    int (*ncclCommSplit)(void *handle, int color, int key, void **part, nccl_config *c);
    int (*ncclCommGetAsyncError)(void *handle, int *state);
    int (*ncclCommAbort)(void *handle);
    int (*ncclAllReduce)(const void *in, void *out, size_t n, int type, int op, void *handle,
                         void *stream);
    int (*ncclAllGather)(const void *in, void *out, size_t n, int type, void *handle, void *stream);
    int (*ncclBroadcast)(const void *in, void *out, size_t n, int type, int root, void *handle,
                         void *stream);
    const char *(*ncclGetErrorString)(int result);
} nccl_library;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(name)                                                                             \
    {                                                                                              \
#name, offsetof(nccl_library, name)                                                        \
    }
    FUNCTION(ncclGetVersion),     FUNCTION(ncclGetUniqueId),       FUNCTION(ncclCommInitRankConfig),
    FUNCTION(ncclCommSplit),      FUNCTION(ncclCommGetAsyncError), FUNCTION(ncclCommAbort),
    FUNCTION(ncclAllReduce),      FUNCTION(ncclAllGather),         FUNCTION(ncclBroadcast),
    FUNCTION(ncclGetErrorString),
#undef FUNCTION
};

typedef struct nccl {
    nccl_library lib;
    address_origin origin;
    strbuf address; /* rank 0's id, framed */
    nccl_id id;
    void *stream;
    pthread_mutex_t lock;           /* held during each call with a handle, but see nccl_abort */
    _Atomic(void *) meeting;        /* non-blocking; NULL: not there, or aborted */
    _Atomic(void *) handle;         /* blocking, of collectives; likewise */
    _Atomic(const char *) ended_by; /* why the group is unusable; NULL = usable */
} nccl;

/* ---- the library ----------------------------------------------------------------------------- */

/* Opens the library, which stays open because NCCL has threads of its own. */
static status load_library(nccl *c, const char *file, error *err)
{
    void *library = dlopen(file ? file : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return error_set(err, STATUS_UNSUPPORTED, "comm: no NCCL here: %s", why ? why : "");
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found)
            return error_set(err, STATUS_UNSUPPORTED, "comm: NCCL here has no %s",
                             functions[i].name);
        memcpy((char *)&c->lib + functions[i].offset, &found, sizeof found);
    }
    int v = 0;
    if (c->lib.ncclGetVersion(&v) != NCCL_SUCCESS || v < VERSION_MIN)
        return error_set(err, STATUS_UNSUPPORTED, "comm: NCCL here has version code %d, not %d", v,
                         VERSION_MIN);
    uint32_t version[] = {(uint32_t)v / 10000, (uint32_t)v / 100 % 100, (uint32_t)v % 100};
    memcpy(c->origin.version, version, sizeof version);
    return STATUS_IS_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

enum { PATIENCE_NS = 200000000 }; /* for a call that will return by itself */

static void fail_group(nccl *c, const char *why)
{
    const char *well = NULL;
    atomic_compare_exchange_strong(&c->ended_by, &well, why);
}

/* Aborts the communicators, which removes their work from the stream. Each is aborted once, by
 * whichever thread comes first. */
static void drop_handles(nccl *c)
{
    void *handle = atomic_exchange(&c->handle, NULL);
    if (handle) c->lib.ncclCommAbort(handle);
    handle = atomic_exchange(&c->meeting, NULL);
    if (handle) c->lib.ncclCommAbort(handle);
}

/* Turns NCCL's result, of a call or a state, into a status. Called with the lock held, and releases
 * it. */
static status call_status(nccl *c, int result)
{
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        fail_group(c, c->lib.ncclGetErrorString(result));
    const char *ended_by = atomic_load(&c->ended_by);
    if (ended_by) drop_handles(c);
    pthread_mutex_unlock(&c->lock);
    return ended_by ? status_make(STATUS_IO, ended_by) : STATUS_IS_OK;
}

/* Asks for the state of one of the communicators. */
static status ask_state(nccl *c, const _Atomic(void *) *which, int *state)
{
    pthread_mutex_lock(&c->lock);
    void *handle = atomic_load(which);
    *state = NCCL_SUCCESS;
    int result = handle ? c->lib.ncclCommGetAsyncError(handle, state) : NCCL_SUCCESS;
    return call_status(c, result != NCCL_SUCCESS ? result : *state);
}

static status nccl_check(void *state)
{
    nccl *c = state;
    int now;
    return ask_state(c, &c->handle, &now);
}

/* Lets a call that is under way return by itself. One that does not is blocked: only the abort ends
 * it, so the abort does not wait for the lock. */
static void nccl_abort(void *state)
{
    nccl *c = state;
    struct timespec until;
    fail_group(c, "the group of ranks was aborted");
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    bool held = pthread_mutex_timedlock(&c->lock, &until) == 0;
    drop_handles(c);
    if (held) pthread_mutex_unlock(&c->lock);
}

/* Waits until NCCL's own thread has finished what it began in the meeting. */
static status settle(nccl *c, int64_t deadline_us)
{
    int state = NCCL_IN_PROGRESS;
    for (;;) {
        RETURN_IF_ERROR(ask_state(c, &c->meeting, &state));
        if (state == NCCL_SUCCESS) return STATUS_IS_OK;
        if (clock_now_us() >= deadline_us) break;
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    fail_group(c, "the other ranks are not there in time");
    nccl_check(c);
    return status_make(STATUS_UNAVAILABLE, "not in time");
}

/* ---- making and meeting ---------------------------------------------------------------------- */

static void nccl_close(void *state)
{
    nccl *c = state;
    drop_handles(c);
    pthread_mutex_destroy(&c->lock);
    strbuf_destroy(&c->address);
    free(c);
}

static status make_address(nccl *c, error *err)
{
    int result = c->lib.ncclGetUniqueId(&c->id);
    if (result != NCCL_SUCCESS)
        return error_set(err, STATUS_IO, "comm: NCCL gives no id: %s",
                         c->lib.ncclGetErrorString(result));
    return address_write(&c->address, &c->origin, &c->id, sizeof c->id, err);
}

static status nccl_open(const comm_options *options, void *group, void **state, error *err)
{
    (void)group;
    nccl *c = calloc(1, sizeof *c);
    if (!c) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    pthread_mutex_init(&c->lock, NULL);
    c->origin = (address_origin){.kind = "nccl", .rank = options->rank, .size = options->size};
    c->stream = options->stream;
    status result = load_library(c, options->library, err);
    if (status_ok(result) && options->rank == 0) result = make_address(c, err);
    if (status_ok(result)) *state = c;
    else nccl_close(c);
    return result;
}

static comm_address nccl_own_address(const void *state)
{
    const nccl *c = state;
    return (comm_address){c->address.data, c->address.size};
}

static nccl_config config_of(int blocking)
{
    return (nccl_config){.size = sizeof(nccl_config),
                         .magic = NCCL_MAGIC,
                         .version = CONFIG_VERSION,
                         .blocking = blocking};
}

static status meet(nccl *c, int64_t deadline_us)
{
    nccl_config polled = config_of(0);
    void *handle = NULL;
    pthread_mutex_lock(&c->lock);
    int result =
        c->lib.ncclCommInitRankConfig(&handle, c->origin.size, c->id, c->origin.rank, &polled);
    atomic_store(&c->meeting, handle);
    RETURN_IF_ERROR(call_status(c, result));
    return settle(c, deadline_us);
}

/* Splits the communicator of collectives off the meeting: all ranks, in the same order. */
static status split(nccl *c, int64_t deadline_us)
{
    nccl_config blocking = config_of(1);
    void *meeting, *handle = NULL;
    pthread_mutex_lock(&c->lock);
    meeting = atomic_load(&c->meeting);
    int result = meeting ? c->lib.ncclCommSplit(meeting, 0, c->origin.rank, &handle, &blocking)
                         : NCCL_SUCCESS; /* it was aborted, which call_status reports */
    atomic_store(&c->handle, handle);
    RETURN_IF_ERROR(call_status(c, result));
    return settle(c, deadline_us);
}

static status nccl_connect(void *state, const comm_address *all, int64_t timeout_us, error *err)
{
    nccl *c = state;
    int64_t deadline_us = clock_now_us() + timeout_us;
    comm_address id;
    uint64_t host;
    RETURN_IF_ERROR(address_read(&c->origin, 0, all[0], &id, &host, err));
    if (id.n != sizeof c->id)
        return error_set(err, STATUS_CORRUPT, "comm: the address of rank 0 is damaged");
    memcpy(&c->id, id.bytes, sizeof c->id);
    status met = meet(c, deadline_us);
    if (status_ok(met)) met = split(c, deadline_us);
    if (met.code == STATUS_UNAVAILABLE)
        return error_set(err, STATUS_UNAVAILABLE,
                         "comm: rank %d waited %.1f s for the others of %d", c->origin.rank,
                         (double)timeout_us * 1e-6, c->origin.size);
    return status_ok(met) ? met : error_set(err, STATUS_IO, "comm: NCCL: %s", met.message);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Takes the lock and gives the handle, if the group is usable. */
static status begin_collective(nccl *c, void **handle)
{
    pthread_mutex_lock(&c->lock);
    const char *ended_by = atomic_load(&c->ended_by);
    *handle = atomic_load(&c->handle);
    if (!ended_by && *handle) return STATUS_IS_OK;
    pthread_mutex_unlock(&c->lock);
    return ended_by ? status_make(STATUS_IO, ended_by)
                    : status_make(STATUS_INVALID, "the ranks have not met");
}

static status nccl_all_reduce_sum(void *state, float *data, size_t n)
{
    nccl *c = state;
    void *handle;
    RETURN_IF_ERROR(begin_collective(c, &handle));
    return call_status(
        c, c->lib.ncclAllReduce(data, data, n, NCCL_FLOAT32, NCCL_SUM, handle, c->stream));
}

static status nccl_all_gather(void *state, const float *in, size_t n, float *out)
{
    nccl *c = state;
    void *handle;
    RETURN_IF_ERROR(begin_collective(c, &handle));
    return call_status(c, c->lib.ncclAllGather(in, out, n, NCCL_FLOAT32, handle, c->stream));
}

static status nccl_broadcast(void *state, void *data, size_t bytes, int root)
{
    nccl *c = state;
    void *handle;
    RETURN_IF_ERROR(begin_collective(c, &handle));
    return call_status(c,
                       c->lib.ncclBroadcast(data, data, bytes, NCCL_INT8, root, handle, c->stream));
}

const comm_kind comm_kind_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .address = nccl_own_address,
    .connect = nccl_connect,
    .all_reduce_sum = nccl_all_reduce_sum,
    .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast,
    .check = nccl_check,
    .abort = nccl_abort,
    .size_max = 64,
    .on_device = true,
};
