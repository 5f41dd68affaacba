/* Ranks on GPUs, over NCCL, which is opened when needed.
 *
 * The communicator is non-blocking: a call into NCCL returns at once and its state is polled, so
 * that another thread can abort at any time, also while ranks are still meeting. A lock keeps two
 * threads out of one communicator, and is never held during a wait. */
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
    FUNCTION(ncclGetVersion),        FUNCTION(ncclGetUniqueId), FUNCTION(ncclCommInitRankConfig),
    FUNCTION(ncclCommGetAsyncError), FUNCTION(ncclCommAbort),   FUNCTION(ncclAllReduce),
    FUNCTION(ncclAllGather),         FUNCTION(ncclBroadcast),   FUNCTION(ncclGetErrorString),
#undef FUNCTION
};

typedef struct nccl {
    nccl_library lib;
    address_origin origin;
    strbuf address; /* rank 0's id, framed */
    nccl_id id;
    void *stream;
    pthread_mutex_t lock;           /* guards handle and calls with it */
    void *handle;                   /* NULL: not connected, or aborted */
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

static void fail_group(nccl *c, const char *why)
{
    const char *well = NULL;
    atomic_compare_exchange_strong(&c->ended_by, &well, why);
}

/* Aborts the communicator, which removes its work from the stream. The lock is held. */
static void drop_handle(nccl *c)
{
    void *handle = c->handle;
    c->handle = NULL;
    if (handle) c->lib.ncclCommAbort(handle);
}

/* Turns NCCL's result, of a call or a state, into a status. Called with the lock held, and releases
 * it. */
static status call_status(nccl *c, int result)
{
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        fail_group(c, c->lib.ncclGetErrorString(result));
    const char *ended_by = atomic_load(&c->ended_by);
    if (ended_by) drop_handle(c);
    pthread_mutex_unlock(&c->lock);
    return ended_by ? status_make(STATUS_IO, ended_by) : STATUS_IS_OK;
}

static status ask_state(nccl *c, int *state)
{
    pthread_mutex_lock(&c->lock);
    *state = NCCL_SUCCESS;
    int result = c->handle ? c->lib.ncclCommGetAsyncError(c->handle, state) : NCCL_SUCCESS;
    return call_status(c, result != NCCL_SUCCESS ? result : *state);
}

static status nccl_check(void *state)
{
    int now;
    return ask_state(state, &now);
}

static void nccl_abort(void *state)
{
    nccl *c = state;
    fail_group(c, "the group of ranks was aborted");
    nccl_check(c);
}

/* Waits until NCCL's own thread has finished what it began. */
static status settle(nccl *c, int64_t deadline_us)
{
    int state = NCCL_IN_PROGRESS;
    for (;;) {
        RETURN_IF_ERROR(ask_state(c, &state));
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
    drop_handle(c);
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
    nccl_config config = {.size = sizeof config, .magic = NCCL_MAGIC, .version = CONFIG_VERSION};
    pthread_mutex_lock(&c->lock);
    int result =
        c->lib.ncclCommInitRankConfig(&c->handle, c->origin.size, c->id, c->origin.rank, &config);
    status met = call_status(c, result);
    if (status_ok(met)) met = settle(c, deadline_us);
    if (met.code == STATUS_UNAVAILABLE)
        return error_set(err, STATUS_UNAVAILABLE,
                         "comm: rank %d waited %.1f s for the others of %d", c->origin.rank,
                         (double)timeout_us * 1e-6, c->origin.size);
    return status_ok(met) ? met : error_set(err, STATUS_IO, "comm: NCCL: %s", met.message);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Takes the lock if the group is usable. */
static status begin_collective(nccl *c)
{
    pthread_mutex_lock(&c->lock);
    const char *ended_by = atomic_load(&c->ended_by);
    if (!ended_by && c->handle) return STATUS_IS_OK;
    pthread_mutex_unlock(&c->lock);
    return ended_by ? status_make(STATUS_IO, ended_by)
                    : status_make(STATUS_INVALID, "the ranks have not met");
}

/* Ends a collective. The first calls make connections in a thread of NCCL's; their work is on the
 * stream only when that is settled. */
static status end_collective(nccl *c, int result)
{
    RETURN_IF_ERROR(call_status(c, result));
    return result == NCCL_IN_PROGRESS ? settle(c, INT64_MAX) : STATUS_IS_OK;
}

static status nccl_all_reduce_sum(void *state, float *data, size_t n)
{
    nccl *c = state;
    RETURN_IF_ERROR(begin_collective(c));
    return end_collective(
        c, c->lib.ncclAllReduce(data, data, n, NCCL_FLOAT32, NCCL_SUM, c->handle, c->stream));
}

static status nccl_all_gather(void *state, const float *in, size_t n, float *out)
{
    nccl *c = state;
    RETURN_IF_ERROR(begin_collective(c));
    return end_collective(c, c->lib.ncclAllGather(in, out, n, NCCL_FLOAT32, c->handle, c->stream));
}

static status nccl_broadcast(void *state, void *data, size_t bytes, int root)
{
    nccl *c = state;
    RETURN_IF_ERROR(begin_collective(c));
    return end_collective(
        c, c->lib.ncclBroadcast(data, data, bytes, NCCL_INT8, root, c->handle, c->stream));
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
