/* News for the engine thread. Streams are linked through their own fields, so adding one needs no
 * memory and cannot fail. */
#include "engine/internal.h"

#include <string.h>

void inbox_put(engine *e, unsigned what, engine_stream *s)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    if (s->queued == 0) {
        atomic_fetch_add(&s->references, 1);
        stream_list *l = what == INBOX_ADD ? &in->added : &in->other;
        s->inbox_next = NULL;
        if (l->last) l->last->inbox_next = s;
        else l->first = s;
        l->last = s;
    }
    s->queued |= what;
    if (what == INBOX_ADD) atomic_fetch_add(&e->n_prepared, 1);
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

static bool is_empty(const inbox *in)
{
    return !in->added.first && !in->other.first && !in->looks.first && !in->flush && !in->lost &&
           !in->stop && !in->written && !in->handed &&
           in->n_selected + in->n_loaded + in->n_forgotten == 0;
}

void inbox_put_selected(engine *e, made_selection made)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    in->selected[in->n_selected++] = made;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

void inbox_put_loaded(engine *e, ended_load ended)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    in->loaded[in->n_loaded++] = ended;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

void inbox_put_written(engine *e)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    in->written = true;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

void inbox_put_handed(engine *e, hand_job *job)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    hand_job **at = &in->handed;
    while (*at) at = &(*at)->next;
    job->next = NULL;
    *at = job;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

/* Takes the first ones that were handed. */
static hand_job *take_handed(inbox *in)
{
    hand_job *first = in->handed, **at = &first;
    for (uint32_t n = 0; *at && n < HANDED_MOST; n++) at = &(*at)->next;
    in->handed = *at;
    *at = NULL;
    return first;
}

void inbox_put_look(engine *e, engine_stream *s)
{
    inbox *in = &e->inbox;
    atomic_fetch_add(&s->references, 1);
    s->look_next = NULL;
    pthread_mutex_lock(&in->lock);
    if (in->looks.last) in->looks.last->look_next = s;
    else in->looks.first = s;
    in->looks.last = s;
    pthread_cond_signal(&in->arrived);
    pthread_mutex_unlock(&in->lock);
}

/* Waits for news. The lock is held. */
static void await_news(inbox *in, int64_t wait_us)
{
    int64_t until_us = clock_now_us() + wait_us;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    while (is_empty(in))
        if (wait_us < 0) pthread_cond_wait(&in->arrived, &in->lock);
        else if (pthread_cond_timedwait(&in->arrived, &in->lock, &until) != 0) return;
}

/* Takes the list's first stream; *link, the end of the batch, becomes it. Returns the new end. */
static engine_stream **take_first(stream_list *l, engine_stream **link)
{
    engine_stream *s = l->first;
    l->first = s->inbox_next;
    if (!l->first) l->last = NULL;
    s->taken = s->queued;
    s->queued = 0;
    s->taken_next = NULL;
    *link = s;
    return &s->taken_next;
}

static inbox_batch drain(engine *e, int64_t wait_us, bool all)
{
    inbox *in = &e->inbox;
    pthread_mutex_lock(&in->lock);
    if (wait_us != 0) await_news(in, wait_us);
    inbox_batch batch = {
        .looks = in->looks, .flush = in->flush, .lost = in->lost, .stop = in->stop};
    in->looks = (stream_list){0};
    engine_stream **link = &batch.first;
    while (in->other.first) link = take_first(&in->other, link);
    all |= in->stop;
    uint64_t n = 0, n_tokens = 0;
    for (engine_stream *s; (s = in->added.first) != NULL; n++) {
        n_tokens += s->n_tokens;
        if (!all && n > 0 && (n == SCHED_ADDS_MOST || n_tokens > SCHED_ADD_TOKENS_MOST)) break;
        link = take_first(&in->added, link);
    }
    batch.n_selected = in->n_selected;
    if (in->n_selected > 0) memcpy(e->selected, in->selected, in->n_selected * sizeof *e->selected);
    batch.n_loaded = in->n_loaded;
    if (in->n_loaded > 0) memcpy(e->loaded, in->loaded, in->n_loaded * sizeof *e->loaded);
    batch.handed = take_handed(in);
    batch.n_forgotten = in->n_forgotten;
    memcpy(batch.forgotten, in->forgotten, in->n_forgotten * sizeof *in->forgotten);
    in->n_selected = in->n_loaded = in->n_forgotten = 0;
    in->flush = in->lost = in->written = false;
    pthread_mutex_unlock(&in->lock);
    return batch;
}

inbox_batch inbox_drain(engine *e, int64_t wait_us) { return drain(e, wait_us, false); }
inbox_batch inbox_drain_all(engine *e, int64_t wait_us) { return drain(e, wait_us, true); }
