/* Two queues: news for the engine thread, and streams for the tokenizer threads. Both link streams
 * through the streams' own fields, so adding one needs no memory and cannot fail. */
#include "engine/internal.h"

/* ---- to the engine thread -------------------------------------------------------------------- */

void inbox_put(engine *e, unsigned what, engine_stream *s)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    if (s->queued == 0) {
        atomic_fetch_add(&s->references, 1);
        s->inbox_next = NULL;
        if (in->last) in->last->inbox_next = s;
        else in->first = s;
        in->last = s;
    }
    s->queued |= what;
    if (what == INBOX_ADD) atomic_fetch_add(&e->n_prepared, 1);
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

static bool is_empty(const inbox *in) { return !in->first && !in->flush && !in->lost && !in->stop; }

/* Waits for news. The lock is held. */
static void await_news(inbox *in, int64_t wait_us)
{
    int64_t until_us = clock_now_us() + wait_us;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    while (is_empty(in))
        if (wait_us < 0) pthread_cond_wait(&in->arrived, &in->lock);
        else if (pthread_cond_timedwait(&in->arrived, &in->lock, &until) != 0) return;
}

inbox_batch inbox_drain(engine *e, int64_t wait_us)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    if (wait_us != 0) await_news(in, wait_us);
    inbox_batch batch = {
        .first = in->first, .flush = in->flush, .lost = in->lost, .stop = in->stop};
    for (engine_stream *s = in->first; s; s = s->inbox_next) {
        s->taken = s->queued;
        s->queued = 0;
        s->taken_next = s->inbox_next;
    }
    in->first = in->last = NULL;
    in->flush = in->lost = false;
    pthread_mutex_unlock(&in->lock);
    return batch;
}

/* ---- to the tokenizer threads ---------------------------------------------------------------- */

void prepare_put(engine *e, engine_stream *s)
{
    prepare_queue *q = &e->prepare;
    atomic_fetch_add(&s->references, 1);
    pthread_mutex_lock(&q->lock);
    s->awaits_prepare = true;
    s->prepare_next = NULL;
    s->prepare_prev = q->last;
    if (q->last) q->last->prepare_next = s;
    else q->first = s;
    q->last = s;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

static void unlink_stream(prepare_queue *q, engine_stream *s)
{
    if (s->prepare_prev) s->prepare_prev->prepare_next = s->prepare_next;
    else q->first = s->prepare_next;
    if (s->prepare_next) s->prepare_next->prepare_prev = s->prepare_prev;
    else q->last = s->prepare_prev;
    s->awaits_prepare = false;
}

bool prepare_take_back(engine *e, engine_stream *s)
{
    pthread_mutex_lock(&e->prepare.lock);
    bool waits = s->awaits_prepare;
    if (waits) unlink_stream(&e->prepare, s);
    pthread_mutex_unlock(&e->prepare.lock);
    return waits;
}

engine_stream *prepare_next(engine *e)
{
    prepare_queue *q = &e->prepare;
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stop) pthread_cond_wait(&q->arrived, &q->lock);
    engine_stream *s = q->first;
    if (s) unlink_stream(q, s);
    pthread_mutex_unlock(&q->lock);
    return s;
}
