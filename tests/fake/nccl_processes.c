/* A library with NCCL's symbols, whose ranks are processes of one host and whose streams are
 * fake_stream with `submit`. What ranks exchange goes in pieces through a file in memory; the id
 * says where /proc has it. An abort ends the calls of its own rank alone, as in NCCL. */
#include "tests/fake/nccl.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 9, COMMUNICATORS = 64, PIECE = 1 << 16, VERSION = 22809 };
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, IN_PROGRESS = 7, FLOAT32 = 7 };

/* Memory of all ranks. Pieces lie in two places by turns: a rank that writes to one of them has
 * seen that all ranks have begun the round in between, and so have read what lay there. */
typedef struct room {
    _Atomic int n_joined[2]; /* the meeting, and what is split off */
    _Atomic uint64_t n_arrived;
    unsigned char pieces[2][RANKS_MAX][PIECE];
} room;

typedef struct communicator {
    room *room;
    int size, rank, part;
    uint64_t n_rounds;
    _Atomic bool aborted;
} communicator;

typedef struct call {
    enum { REDUCE, GATHER, BROADCAST } what;
    const void *in;
    void *out;
    size_t bytes;
    int root;
    communicator *of;
} call;

typedef struct unique_id {
    int process, file;
    char rest[120];
} unique_id;

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

/* They are not freed: calls may be left on a stream when its communicator is aborted. */
static communicator all[COMMUNICATORS];
static _Atomic int n_all;

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}

int ncclGetUniqueId(unique_id *id);
int ncclGetUniqueId(unique_id *id)
{
    *id = (unique_id){.process = getpid(), .file = memfd_create("nccl", MFD_CLOEXEC)};
    return id->file >= 0 && ftruncate(id->file, sizeof(room)) == 0 ? SUCCESS : INVALID_ARGUMENT;
}

static communicator *join(room *r, int size, int rank, int part)
{
    int number = atomic_fetch_add(&n_all, 1);
    if (number >= COMMUNICATORS) return NULL;
    all[number] = (communicator){.room = r, .size = size, .rank = rank, .part = part};
    atomic_fetch_add(&r->n_joined[part], 1);
    return &all[number];
}

int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c);
int ncclCommInitRankConfig(void **handle, int size, unique_id id, int rank, config *c)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", id.process, id.file);
    int file = c->blocking || size > RANKS_MAX ? -1 : open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_ARGUMENT;
    room *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    *handle = r == MAP_FAILED ? NULL : join(r, size, rank, 0);
    return *handle ? IN_PROGRESS : INVALID_ARGUMENT;
}

int ncclCommSplit(void *handle, int color, int key, void **part, config *c);
int ncclCommSplit(void *handle, int color, int key, void **part, config *c)
{
    const communicator *m = handle;
    bool valid = color == 0 && key == m->rank && c->blocking;
    *part = valid ? join(m->room, m->size, m->rank, 1) : NULL;
    return *part ? IN_PROGRESS : INVALID_ARGUMENT;
}

int ncclCommGetAsyncError(void *handle, int *state);
int ncclCommGetAsyncError(void *handle, int *state)
{
    const communicator *m = handle;
    *state = atomic_load(&m->room->n_joined[m->part]) < m->size ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

int ncclCommAbort(void *handle);
int ncclCommAbort(void *handle)
{
    atomic_store(&((communicator *)handle)->aborted, true);
    return SUCCESS;
}

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    return result == INVALID_ARGUMENT ? "a fake refusal" : "a fake result";
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Gives a piece to all ranks and waits for theirs; NULL: the rank has aborted. */
static unsigned char (*exchange(communicator *m, const void *in, size_t bytes))[PIECE]
{
    unsigned char(*pieces)[PIECE] = m->room->pieces[m->n_rounds++ % 2];
    memcpy(pieces[m->rank], in, bytes);
    atomic_fetch_add(&m->room->n_arrived, 1);
    while (atomic_load(&m->room->n_arrived) < m->n_rounds * (uint64_t)m->size) {
        if (atomic_load(&m->aborted)) return NULL;
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    return pieces;
}

/* Adds up. The rank with which an element's sum begins depends on the number of elements and on the
 * element's place, as it does in NCCL's ring. */
static void reduce(const call *c, unsigned char (*pieces)[PIECE], size_t at, size_t bytes)
{
    size_t n = c->bytes / sizeof(float), size = (size_t)c->of->size;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        size_t first = (at / sizeof(float) + i) * size / n;
        float sum = ((const float *)(const void *)pieces[first])[i];
        for (size_t r = 1; r < size; r++)
            sum += ((const float *)(const void *)pieces[(first + r) % size])[i];
        ((float *)c->out)[at / sizeof(float) + i] = sum;
    }
}

static void run_call(const void *of_stream)
{
    const call *c = of_stream;
    for (size_t at = 0; at < c->bytes; at += PIECE) {
        size_t some = c->bytes - at < PIECE ? c->bytes - at : PIECE;
        unsigned char(*pieces)[PIECE] = exchange(c->of, (const char *)c->in + at, some);
        if (!pieces) return;
        if (c->what == REDUCE) reduce(c, pieces, at, some);
        if (c->what == BROADCAST) memcpy((char *)c->out + at, pieces[c->root], some);
        for (int r = 0; c->what == GATHER && r < c->of->size; r++)
            memcpy((char *)c->out + (size_t)r * c->bytes + at, pieces[r], some);
    }
}

static int enqueue(fake_stream *s, call c)
{
    if (!c.of->part || !s->submit || atomic_load(&c.of->aborted)) return INVALID_ARGUMENT;
    s->submit(s->ctx, run_call, &c, sizeof c);
    return SUCCESS;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s);
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *handle, void *s)
{
    if (op != 0 || type != FLOAT32) return INVALID_ARGUMENT;
    return enqueue(s, (call){REDUCE, in, out, n * sizeof(float), 0, handle});
}

int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s);
int ncclAllGather(const void *in, void *out, size_t n, int type, void *handle, void *s)
{
    return enqueue(s, (call){GATHER, in, out, n * (type == FLOAT32 ? 4 : 1), 0, handle});
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s);
int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *handle, void *s)
{
    return enqueue(s, (call){BROADCAST, in, out, n * (type == FLOAT32 ? 4 : 1), root, handle});
}
