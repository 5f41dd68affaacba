/* A library with NCCL's symbols, whose ranks are threads, whose device is the host, and whose
 * streams are fake_stream: an enqueued call is done when all ranks have enqueued theirs. */
#include "tests/fake/nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

enum { RANKS_MAX = 8, GROUPS_MAX = 64, SETTLING = 2 };
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

typedef struct call {
    enum { REDUCE, GATHER, BROADCAST } what;
    const void *in;
    void *out;
    size_t n; /* elements */
    int type;
    int root;
    fake_stream *stream;
} call;

typedef struct group {
    int size, n_joined, n_called;
    call calls[RANKS_MAX]; /* enqueued, but not by all ranks yet */
} group;

typedef struct communicator {
    group *g;
    int rank;
    int n_settling; /* queries until the last call is reported as enqueued on the stream */
    fake_stream *stream;
} communicator;

typedef struct unique_id {
    int group;
    char rest[124];
} unique_id;

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_nccl_behaviour behaviour;
static group groups[GROUPS_MAX];
static int n_groups, n_live;

void fake_nccl_behave(fake_nccl_behaviour b)
{
    pthread_mutex_lock(&lock);
    behaviour = b;
    pthread_mutex_unlock(&lock);
}

int fake_nccl_live(void)
{
    pthread_mutex_lock(&lock);
    int n = n_live;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return SUCCESS;
}

int ncclGetUniqueId(unique_id *id);
int ncclGetUniqueId(unique_id *id)
{
    pthread_mutex_lock(&lock);
    *id = (unique_id){.group = n_groups++};
    pthread_mutex_unlock(&lock);
    return id->group < GROUPS_MAX ? SUCCESS : INVALID_ARGUMENT;
}

int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c);
int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c)
{
    if (c->magic != 0xcafebeef || c->version < 21400 || c->blocking != 0 || size > RANKS_MAX ||
        c->size < sizeof *c || id.group < 0 || id.group >= n_groups)
        return INVALID_ARGUMENT;
    communicator *m = calloc(1, sizeof *m);
    if (!m) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    m->g = &groups[id.group];
    m->rank = rank;
    m->g->size = size;
    m->g->n_joined++;
    n_live++;
    pthread_mutex_unlock(&lock);
    *handle = m;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *handle, int *state);
int ncclCommGetAsyncError(void *handle, int *state)
{
    communicator *m = handle;
    pthread_mutex_lock(&lock);
    bool settling = m->n_settling > 0;
    if (settling) m->n_settling--;
    if (behaviour == FAKE_SYNCHRONOUS && m->stream)
        settling = m->stream->n_done < m->stream->n_enqueued;
    if (m->g->n_joined < m->g->size || behaviour == FAKE_NEVER_MEETS || settling)
        *state = IN_PROGRESS;
    else *state = behaviour == FAKE_FAILS && m->stream ? REMOTE_ERROR : SUCCESS;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

#ifndef FAKE_WITHOUT_ABORT
int ncclCommAbort(void *handle);
int ncclCommAbort(void *handle)
{
    communicator *m = handle;
    pthread_mutex_lock(&lock);
    if (m->stream) m->stream->n_done = m->stream->n_enqueued;
    n_live--;
    pthread_mutex_unlock(&lock);
    free(m);
    return SUCCESS;
}
#endif

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    return result == REMOTE_ERROR ? "a fake remote error" : "a fake refusal";
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void copy(void *out, const void *in, size_t bytes)
{
    if (out != in) memcpy(out, in, bytes);
}

static void reduce(const call *calls, int size)
{
    for (size_t i = 0; i < calls[0].n; i++) {
        float sum = ((const float *)calls[0].in)[i];
        for (int r = 1; r < size; r++) sum += ((const float *)calls[r].in)[i];
        for (int r = 0; r < size; r++) ((float *)calls[r].out)[i] = sum;
    }
}

/* Does the calls that all ranks have enqueued. */
static void do_calls(group *g)
{
    size_t bytes = g->calls[0].n * (g->calls[0].type == 7 ? sizeof(float) : 1);
    if (g->calls[0].what == REDUCE) reduce(g->calls, g->size);
    for (int r = 0; r < g->size; r++) {
        const call *c = &g->calls[r];
        if (c->what == BROADCAST) copy(c->out, g->calls[c->root].in, bytes);
        for (int from = 0; c->what == GATHER && from < g->size; from++)
            copy((char *)c->out + (size_t)from * bytes, g->calls[from].in, bytes);
    }
    /* A rank may reuse its buffer as soon as its stream is done, so no stream is done before every
     * rank has read what it needs of the others. */
    for (int r = 0; r < g->size; r++) g->calls[r].stream->n_done++;
    g->n_called = 0;
}

static int enqueue(communicator *m, call c)
{
    int result = IN_PROGRESS;
    pthread_mutex_lock(&lock);
    if (behaviour == FAKE_REFUSES) {
        result = INVALID_ARGUMENT;
    } else {
        m->stream = c.stream;
        m->n_settling = SETTLING;
        m->g->calls[m->rank] = c;
        c.stream->n_enqueued++;
        if (++m->g->n_called == m->g->size &&
            (behaviour == FAKE_WELL || behaviour == FAKE_SYNCHRONOUS))
            do_calls(m->g);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s);
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s)
{
    if (op != 0 || type != 7) return INVALID_ARGUMENT;
    return enqueue(handle, (call){REDUCE, in, out, n, type, 0, s});
}

int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s);
int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s)
{
    return enqueue(handle, (call){GATHER, in, out, n, type, 0, s});
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s);
int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s)
{
    return enqueue(handle, (call){BROADCAST, in, out, n, type, root, s});
}
