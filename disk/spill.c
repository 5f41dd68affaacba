/* Pieces of memory in a file: the file, and the threads that run jobs. */
#include "disk/spill.h"

#include "disk/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct disk_spill {
    spill_options o;
    disk_io io;
    int fd;
    uint64_t *checksums; // [n_pieces] of what was written last
    pthread_t threads[DISK_THREADS];
    uint32_t n_threads;
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work, idle;
    spill_job *first, **last; // jobs that no thread runs yet
    uint32_t n_running;
    bool stop;
};

_Static_assert(SPILL_ALIGN % DISK_ALIGN == 0, "O_DIRECT wants it");

static uint8_t *memory_of(const disk_spill *s, uint32_t piece)
{
    return s->o.memory + (size_t)piece * s->o.piece_bytes;
}

static uint64_t checksum_of(const disk_spill *s, uint32_t piece)
{
    return hash_bytes(memory_of(s, piece), s->o.piece_bytes, piece + 1ull);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A call that was cut short goes on at a place that O_DIRECT takes. Returns 0 or an errno; `ended`
 * is the one for a call that did less than that. */
static int move_bytes(const disk_spill *s, bool out, uint8_t *memory, size_t n, uint64_t at,
                      int ended)
{
    for (size_t done = 0; done < n;) {
        uint8_t *from = memory + done;
        off_t place = (off_t)(at + done);
        ssize_t some = out ? s->io.write(s->io.ctx, s->fd, from, n - done, place)
                           : s->io.read(s->io.ctx, s->fd, from, n - done, place);
        if (some < 0 && errno == EINTR) continue;
        if (some < 0) return errno;
        if (some < DISK_ALIGN) return ended;
        done += (size_t)some - (size_t)some % DISK_ALIGN;
    }
    return 0;
}

/* Pieces first .. + n, between memory and their places. */
static int move_pieces(const disk_spill *s, bool out, uint32_t first, uint32_t n)
{
    size_t bytes = s->o.piece_bytes;
    return move_bytes(s, out, memory_of(s, first), n * bytes, (uint64_t)first * bytes,
                      out ? ENOSPC : EIO);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* How many of the leaving pieces from `from` on follow one another and are treated alike. */
static uint32_t run_from(const spill_job *j, uint32_t from)
{
    const spill_leave *l = j->leaving + from;
    uint32_t n = 1;
    while (from + n < j->n_leaving && l[n].piece == l->piece + n && l[n].write == l->write) n++;
    return n;
}

static bool send_away(disk_spill *s, spill_job *j)
{
    while (j->n_left < j->n_leaving) {
        const spill_leave *l = j->leaving + j->n_left;
        uint32_t n = run_from(j, j->n_left);
        if (l->write) {
            for (uint32_t i = 0; i < n; i++)
                s->checksums[l->piece + i] = checksum_of(s, l[i].piece);
            j->why = move_pieces(s, true, l->piece, n);
            if (j->why) {
                j->fault = SPILL_NOT_WRITTEN;
                return false;
            }
        }
        alloc_reserve_drop(memory_of(s, l->piece), n * s->o.piece_bytes);
        j->n_left += n;
    }
    return true;
}

static void bring_back(disk_spill *s, spill_job *j)
{
    if (j->n_coming == 0) return;
    j->why = move_pieces(s, false, j->first, j->n_coming);
    if (j->why) j->fault = SPILL_NOT_READ;
    while (!j->fault && j->n_came < j->n_coming) {
        uint32_t piece = j->first + j->n_came;
        if (checksum_of(s, piece) == s->checksums[piece]) j->n_came++;
        else j->fault = SPILL_DAMAGED;
    }
    if (j->fault)
        alloc_reserve_drop(memory_of(s, j->first + j->n_came),
                           (j->n_coming - j->n_came) * s->o.piece_bytes);
}

static void *run_jobs(void *ctx)
{
    disk_spill *s = ctx;
    thread_set_name("oct-spill");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->stop) pthread_cond_wait(&s->work, &s->lock);
        spill_job *j = s->first;
        if (!j) break;
        s->first = j->next;
        if (!s->first) s->last = &s->first;
        s->n_running++;
        pthread_mutex_unlock(&s->lock);
        if (send_away(s, j)) bring_back(s, j);
        pthread_mutex_lock(&s->lock);
        if (--s->n_running == 0 && !s->first) pthread_cond_signal(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void spill_begin(disk_spill *s, spill_job *jobs, uint32_t n)
{
    if (n == 0) return;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].n_left = jobs[i].n_came = 0;
        jobs[i].fault = SPILL_DONE;
        jobs[i].why = 0;
        jobs[i].next = NULL;
        *s->last = &jobs[i];
        s->last = &jobs[i].next;
    }
    if (n == 1) pthread_cond_signal(&s->work);
    else pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void spill_wait(disk_spill *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first || s->n_running > 0) pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The file belongs to no page cache where the file system takes O_DIRECT: it would fill memory a
 * second time. */
static status open_file(disk_spill *s, error *err)
{
    char path[4096];
    const char *dir = s->o.dir;
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "octavo-kv-XXXXXX", err));
    s->fd = mkostemp(path, O_CLOEXEC);
    if (s->fd < 0) return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    if (unlink(path) != 0) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    int flags = fcntl(s->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(s->fd, F_SETFL, flags | O_DIRECT);
    off_t bytes = (off_t)((uint64_t)s->o.n_pieces * s->o.piece_bytes);
    if (fallocate(s->fd, 0, 0, bytes) == 0) return STATUS_IS_OK;
    if (errno == EOPNOTSUPP && ftruncate(s->fd, bytes) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: no file of %lld bytes: %s", dir, (long long)bytes,
                     strerror(errno));
}

static size_t checksum_bytes(const disk_spill *s) { return s->o.n_pieces * sizeof *s->checksums; }

static status start(disk_spill *s, error *err)
{
    RETURN_IF_ERROR(open_file(s, err));
    s->checksums = alloc_pages(checksum_bytes(s));
    if (!s->checksums) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (; s->n_threads < DISK_THREADS; s->n_threads++)
        if (pthread_create(&s->threads[s->n_threads], NULL, run_jobs, s))
            return error_set(err, STATUS_NO_MEMORY, "threads: cannot start %d", DISK_THREADS);
    return STATUS_IS_OK;
}

status spill_open(const spill_options *options, disk_spill **out, error *err)
{
    disk_spill *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    s->o = *options;
    s->io = options->io ? *options->io : calls_system;
    s->fd = -1;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, NULL);
    status st = start(s, err);
    if (status_ok(st)) *out = s;
    else spill_close(s);
    return st;
}

void spill_close(disk_spill *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    alloc_pages_free(s->checksums, checksum_bytes(s));
    if (s->fd >= 0) close(s->fd);
    free(s);
}
