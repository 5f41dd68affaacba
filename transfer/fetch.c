/* Threads that fetch records of peers, one connection for each record. */
#include "transfer/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const char *wire_read_answer(const wire_answer *a, uint64_t most, size_t *n)
{
    static const char *const refusals[WIRE_OUTCOMES] = {
        [WIRE_UNKNOWN] = "it does not hold this prompt: it was fetched before, or forgotten",
        [WIRE_OTHER] = "it has another model or --precision, or stores K and V in another way",
        [WIRE_LONG] = "its record is longer than one of this prompt can be",
    };
    *n = 0;
    if (memcmp(a->magic, WIRE_ANSWERS, sizeof a->magic) != 0 || a->outcome >= WIRE_OUTCOMES)
        return "it does not answer as a server that holds prompts";
    if (a->outcome != WIRE_SENT) return refusals[a->outcome];
    if (a->n == 0 || a->n > most) return "it sends more than was asked for";
    *n = (size_t)a->n;
    return NULL;
}

/* Receives n bytes, for which there is room, into memory of their own. NULL: *why says what is
 * missing. */
static uint8_t *receive_bytes(transfer *t, int fd, const wire_answer *a, size_t n,
                              const socket_wait *w, const char **why)
{
    wire_take take;
    memcpy(take.magic, WIRE_TAKES, sizeof take.magic);
    uint8_t *bytes = malloc(n);
    *why = bytes ? socket_send(fd, &take, sizeof take, w) : "memory is out";
    if (!*why) *why = socket_receive(fd, bytes, n, w);
    if (!*why && hash_bytes(bytes, n, t->o.identity) != a->hash)
        *why = "its bytes are not those that it holds";
    if (!*why) return bytes;
    free(bytes);
    return NULL;
}

const char *fetch_over(transfer *t, int fd, const transfer_fetch *f, const socket_wait *w,
                       transfer_got *got)
{
    wire_ask ask = {.key = f->key, .identity = t->o.identity, .most = f->most};
    wire_answer answer;
    memcpy(ask.magic, WIRE_ASKS, sizeof ask.magic);
    const char *why = socket_send(fd, &ask, sizeof ask, w);
    if (!why) why = socket_receive(fd, &answer, sizeof answer, w);
    if (!why) why = wire_read_answer(&answer, f->most, &got->n);
    if (!why) why = room_make_for_fetched(t, f->owner, got->n);
    if (why) return why;
    got->bytes = receive_bytes(t, fd, &answer, got->n, w, &why);
    if (why) transfer_release(t, f->owner, got->n);
    return why;
}

static void fetch_one(transfer *t, const transfer_fetch *f, int unwanted_fd, transfer_got *got)
{
    const char *why = NULL;
    const socket_wait w = {t->o.timeout_us, t->stop_pipe[0], unwanted_fd, NULL};
    int fd = socket_connect(t->names, f->host, f->port, &w, &why);
    if (fd >= 0) why = fetch_over(t, fd, f, &w, got);
    if (fd >= 0) close(fd);
    if (why) snprintf(got->why, sizeof got->why, "%.64s:%u: %.80s", f->host, f->port, why);
}

static void count_fetch(transfer *t, const transfer_got *got)
{
    pthread_mutex_lock(&t->count_lock);
    if (got->bytes) {
        t->counts.fetched++;
        t->counts.fetched_bytes += sizeof(wire_answer) + got->n;
        t->counts.fetched_us += got->us;
    } else {
        t->counts.fetch_failures++;
    }
    pthread_mutex_unlock(&t->count_lock);
}

static void end_fetch(transfer *t, uint32_t thread, transfer_fetch *f, transfer_got *got)
{
    fetch_queue *q = &t->fetches;
    eventfd_t ignored;
    got->us = clock_now_us() - f->begun_us;
    count_fetch(t, got);
    pthread_mutex_lock(&q->lock);
    q->at[thread] = NULL;
    (void)eventfd_read(q->unwanted_fds[thread], &ignored);
    pthread_mutex_unlock(&q->lock);
    f->done(f->ctx, got);
    pthread_mutex_lock(&q->lock);
    q->n_under_way--;
    pthread_cond_broadcast(&q->ended);
    pthread_mutex_unlock(&q->lock);
}

static uint32_t n_fetches_of(const fetch_queue *q, uint32_t number)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < FETCH_THREADS; i++) n += q->at[i] && q->at[i]->peer == number;
    return n;
}

/* The first fetch whose peer may have a thread. Where it may not, one that has the peer's looks
 * again when it is done. */
static transfer_fetch *find_fetch(const fetch_queue *q)
{
    transfer_fetch *f = q->first;
    while (f && n_fetches_of(q, f->peer) >= FETCHES_OF_A_PEER) f = f->next;
    return f;
}

static void take_out(fetch_queue *q, transfer_fetch *f)
{
    transfer_fetch *before = NULL;
    for (transfer_fetch *x = q->first; x != f; x = x->next) before = x;
    *(before ? &before->next : &q->first) = f->next;
    if (q->last == f) q->last = before;
    f->waits = false;
}

/* The next fetch, and why it is not to be tried; NULL: it is. */
static transfer_fetch *next_fetch(fetch_queue *q, uint32_t thread, const char **why)
{
    pthread_mutex_lock(&q->lock);
    transfer_fetch *f;
    while (!(f = find_fetch(q)) && !q->stop) pthread_cond_wait(&q->arrived, &q->lock);
    if (f) take_out(q, f);
    q->at[thread] = f;
    q->unwanted[thread] = false;
    bool silent = f && q->silent_us[f->peer] > f->begun_us;
    *why = q->cancelled ? "this server stops"
           : silent     ? "it did nothing within the time, for a prompt before this one"
                        : NULL;
    pthread_mutex_unlock(&q->lock);
    return f;
}

/* A fetch was given up. Where it took a whole timeout and was wanted still, the peer is silent. */
static void note_silent(transfer *t, uint32_t thread, const transfer_fetch *f, int64_t tried_us)
{
    fetch_queue *q = &t->fetches;
    int64_t now = clock_now_us();
    pthread_mutex_lock(&q->lock);
    if (now - tried_us >= t->o.timeout_us && !q->unwanted[thread]) q->silent_us[f->peer] = now;
    pthread_mutex_unlock(&q->lock);
}

/* The number of the calling thread, which the one that started it is still making known. */
static uint32_t own_number(fetch_queue *q)
{
    pthread_mutex_lock(&q->lock);
    uint32_t i = 0;
    while (!pthread_equal(q->threads[i], pthread_self())) i++;
    pthread_mutex_unlock(&q->lock);
    return i;
}

static void *fetch_loop(void *arg)
{
    transfer *t = arg;
    const char *why;
    thread_set_name("oct-fetch");
    uint32_t own = own_number(&t->fetches);
    for (transfer_fetch *f; (f = next_fetch(&t->fetches, own, &why)) != NULL;) {
        transfer_got got = {0};
        int64_t tried_us = clock_now_us();
        if (why) snprintf(got.why, sizeof got.why, "%.64s:%u: %.80s", f->host, f->port, why);
        else fetch_one(t, f, t->fetches.unwanted_fds[own], &got);
        if (!why && !got.bytes) note_silent(t, own, f, tried_us);
        end_fetch(t, own, f, &got);
    }
    return NULL;
}

void transfer_fetch_begin(transfer *t, transfer_fetch *f)
{
    fetch_queue *q = &t->fetches;
    f->next = NULL;
    f->begun_us = clock_now_us();
    f->peer = peer_find(t, f->host, f->port);
    assert(f->peer < t->o.n_peers);
    pthread_mutex_lock(&q->lock);
    *(q->last ? &q->last->next : &q->first) = f;
    q->last = f;
    f->waits = true;
    q->n_under_way++;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

bool transfer_fetch_take_back(transfer *t, transfer_fetch *f)
{
    fetch_queue *q = &t->fetches;
    pthread_mutex_lock(&q->lock);
    bool waited = f->waits;
    if (waited) {
        take_out(q, f);
        q->n_under_way--;
        pthread_cond_broadcast(&q->ended);
    }
    for (uint32_t i = 0; i < q->n_threads; i++)
        if (q->at[i] == f) {
            q->unwanted[i] = true;
            (void)eventfd_write(q->unwanted_fds[i], 1);
        }
    pthread_mutex_unlock(&q->lock);
    return waited;
}

/* Under the lock, so that the thread finds itself. */
static bool start_thread(transfer *t)
{
    fetch_queue *q = &t->fetches;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return false;
    pthread_mutex_lock(&q->lock);
    bool started = pthread_create(&q->threads[q->n_threads], NULL, fetch_loop, t) == 0;
    if (started) q->unwanted_fds[q->n_threads++] = fd;
    pthread_mutex_unlock(&q->lock);
    if (!started) close(fd);
    return started;
}

status fetch_start(transfer *t, error *err)
{
    fetch_queue *q = &t->fetches;
    q->silent_us = calloc((size_t)t->o.n_peers + 1, sizeof *q->silent_us);
    if (!q->silent_us) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    while (t->o.n_peers > 0 && q->n_threads < FETCH_THREADS)
        if (!start_thread(t)) return error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
    return STATUS_IS_OK;
}

void fetch_stop(transfer *t)
{
    fetch_queue *q = &t->fetches;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->arrived);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < q->n_threads; i++) {
        pthread_join(q->threads[i], NULL);
        close(q->unwanted_fds[i]);
    }
}
