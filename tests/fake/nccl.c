/* A library with NCCL's symbols, whose ranks are threads, whose device is the host, and whose
 * streams are fake_stream. As NCCL since 2.23 it answers "in progress" to every call on a
 * non-blocking communicator. */
#include "tests/fake/nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

enum { RANKS_MAX = 8, GROUPS_MAX = 256, SETTLING = 2 };
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

typedef struct call {
    enum { REDUCE, GATHER, BROADCAST } what;
    const void *in;
    void *out;
    size_t n; /* elements */
    int type;
    int root;
    fake_stream *stream;
    int group, rank;
} call;

typedef struct group {
    int size, n_joined, n_called;
    int part;              /* the group that is split off, or 0 */
    unsigned n_rounds;     /* collectives that all ranks have made */
    bool aborted;          /* by some rank */
    bool has_streams;      /* that wait for other ranks in their own order */
    call calls[RANKS_MAX]; /* enqueued, but not by all ranks yet */
    call first;            /* of these */
} group;

typedef struct communicator {
    int group, rank;
    bool blocking, aborted, is_split;
    int n_inside;   /* calls that are blocked */
    int n_settling; /* queries until the last call is reported as done */
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
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static fake_nccl_behaviour behaviour;
static group groups[GROUPS_MAX];
static int n_groups = 1, n_live, n_polls;
static size_t n_gathered;

void fake_nccl_behave(fake_nccl_behaviour b)
{
    pthread_mutex_lock(&lock);
    behaviour = b;
    pthread_mutex_unlock(&lock);
}

static int read_number(const int *number)
{
    pthread_mutex_lock(&lock);
    int n = *number;
    pthread_mutex_unlock(&lock);
    return n;
}

int fake_nccl_live(void) { return read_number(&n_live); }
int fake_nccl_polls(void) { return read_number(&n_polls); }

size_t fake_nccl_gathered(void)
{
    pthread_mutex_lock(&lock);
    size_t n = n_gathered;
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

static bool config_is_valid(const config *c)
{
    return c->magic == 0xcafebeef && c->version >= 21400 && c->size >= sizeof *c &&
           (c->blocking == 0 || c->blocking == 1);
}

/* Joins a group. The lock is held. */
static communicator *join(int number, int size, int rank, const config *c)
{
    communicator *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    *m = (communicator){.group = number, .rank = rank, .blocking = c->blocking};
    groups[number].size = size;
    groups[number].n_joined++;
    n_live++;
    return m;
}

/* A blocking communicator would block here, where nothing could give the meeting up. */
int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c);
int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c)
{
    if (!config_is_valid(c) || c->blocking || size > RANKS_MAX || id.group < 1 ||
        id.group >= n_groups)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    communicator *m = join(id.group, size, rank, c);
    pthread_mutex_unlock(&lock);
    *handle = m;
    return m ? IN_PROGRESS : INVALID_ARGUMENT;
}

int ncclCommSplit(void *handle, int color, int key, void **part, config *c);
int ncclCommSplit(void *handle, int color, int key, void **part, config *c)
{
    communicator *m = handle, *made = NULL;
    pthread_mutex_lock(&lock);
    group *g = &groups[m->group];
    bool valid = config_is_valid(c) && color == 0 && key == m->rank && g->n_joined == g->size;
    if (valid && !g->part && n_groups < GROUPS_MAX) g->part = n_groups++;
    if (valid && g->part) made = join(g->part, g->size, m->rank, c);
    m->is_split = true;
    m->n_settling = SETTLING;
    pthread_mutex_unlock(&lock);
    *part = made;
    return made ? IN_PROGRESS : INVALID_ARGUMENT;
}

int ncclCommGetAsyncError(void *handle, int *state);
int ncclCommGetAsyncError(void *handle, int *state)
{
    communicator *m = handle;
    pthread_mutex_lock(&lock);
    const group *g = &groups[m->group];
    n_polls++;
    bool settling = m->n_settling > 0 || (m->is_split && groups[g->part].n_joined < g->size);
    if (m->n_settling > 0) m->n_settling--;
    if (g->aborted && g->has_streams) *state = REMOTE_ERROR;
    else if (g->n_joined < g->size || behaviour == FAKE_NEVER_MEETS || settling)
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
    m->aborted = true;
    groups[m->group].aborted = true;
    pthread_cond_broadcast(&changed);
    while (m->n_inside > 0) pthread_cond_wait(&changed, &lock);
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

/* Adds up. The rank with which an element's sum begins depends on the number of elements and on the
 * element's place, as it does in NCCL's ring. */
static void reduce(const call *calls, int size)
{
    for (size_t i = 0; i < calls[0].n; i++) {
        int first = (int)(i * (size_t)size / calls[0].n);
        float sum = ((const float *)calls[first].in)[i];
        for (int r = 1; r < size; r++) sum += ((const float *)calls[(first + r) % size].in)[i];
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
        if (c->what == GATHER) n_gathered += bytes;
        if (c->what == BROADCAST) copy(c->out, g->calls[c->root].in, bytes);
        for (int from = 0; c->what == GATHER && from < g->size; from++)
            copy((char *)c->out + (size_t)from * bytes, g->calls[from].in, bytes);
    }
    /* A rank may reuse its buffer as soon as its stream is done, so no stream is done before every
     * rank has read what it needs of the others. */
    for (int r = 0; r < g->size; r++) g->calls[r].stream->n_done++;
    g->n_called = 0;
    g->n_rounds++;
    pthread_cond_broadcast(&changed);
}

/* A call whose turn it is in a stream of its own: waits for the other ranks. */
static void run_call(const void *of_stream)
{
    const call *c = of_stream;
    pthread_mutex_lock(&lock);
    group *g = &groups[c->group];
    unsigned round = g->n_rounds;
    if (g->aborted) { /* the abort has emptied the stream */
        pthread_mutex_unlock(&lock);
        return;
    }
    g->calls[c->rank] = *c;
    if (g->n_called == 0) g->first = *c;
    /* NCCL would hang, or mix what it adds up. */
    if (g->first.what != c->what || g->first.n != c->n || g->first.type != c->type) abort();
    if (++g->n_called == g->size) do_calls(g);
    while (g->n_rounds == round && !g->aborted) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* Enqueues the call. The lock is held. */
static int enqueue_call(communicator *m, call c)
{
    group *g = &groups[m->group];
    m->stream = c.stream;
    g->calls[m->rank] = c;
    c.stream->n_enqueued++;
    if (++g->n_called == g->size && behaviour == FAKE_WELL) do_calls(g);
    m->n_inside++;
    while (behaviour == FAKE_BLOCKS && !m->aborted) pthread_cond_wait(&changed, &lock);
    m->n_inside--;
    pthread_cond_broadcast(&changed);
    return m->aborted ? REMOTE_ERROR : SUCCESS;
}

/* On a non-blocking communicator a thread of NCCL's enqueues the call some time after it, here
 * never. */
static int enqueue(communicator *m, call c)
{
    int result = INVALID_ARGUMENT;
    if (!m->blocking) return IN_PROGRESS;
    pthread_mutex_lock(&lock);
    c.group = m->group;
    c.rank = m->rank;
    bool refuses = behaviour == FAKE_REFUSES, submits = c.stream->submit;
    if (!refuses && !submits) result = enqueue_call(m, c);
    groups[m->group].has_streams |= submits;
    pthread_mutex_unlock(&lock);
    if (refuses || !submits) return result;
    c.stream->submit(c.stream->ctx, run_call, &c, sizeof c);
    return SUCCESS;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s);
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s)
{
    if (op != 0 || type != 7) return INVALID_ARGUMENT;
    return enqueue(handle,
                   (call){.what = REDUCE, .in = in, .out = out, .n = n, .type = type, .stream = s});
}

int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s);
int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s)
{
    return enqueue(handle,
                   (call){.what = GATHER, .in = in, .out = out, .n = n, .type = type, .stream = s});
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s);
int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s)
{
    return enqueue(handle, (call){.what = BROADCAST,
                                  .in = in,
                                  .out = out,
                                  .n = n,
                                  .type = type,
                                  .root = root,
                                  .stream = s});
}
