/* Threads that parse large bodies, so that those of libmicrohttpd stay free for other requests.
 *
 * A connection with a large body is suspended while its handler runs here and leaves its answer in
 * the exchange. Then the connection is resumed, and its own thread sends the answer. */
#include "rpc/http/internal.h"

static exchange *next_job(http_work *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stop) pthread_cond_wait(&w->arrived, &w->lock);
    exchange *e = w->first;
    if (e) w->first = e->next_job;
    if (!w->first) w->last = NULL;
    pthread_mutex_unlock(&w->lock);
    return e;
}

/* A body is not read when the server stops, or when its client has left. */
static bool is_wanted(http_work *w, exchange *e)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return !stop && !wake_is_cut(&e->wake);
}

static void *work_run(void *ctx)
{
    http_work *w = ctx;
    thread_set_name("oct-parse");
    for (exchange *e; (e = next_job(w)) != NULL;) {
        if (is_wanted(w, e)) e->route->handle(&e->x);
        wake_release(&e->wake); /* from here on e belongs to its connection again */
    }
    return NULL;
}

status http_work_create(http_work *w, error *err)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->arrived, NULL);
    w->is_made = true;
    bool changed = thread_set_patient(true), ok = true;
    for (; ok && w->n_threads < HTTP_WORK_THREADS; w->n_threads += ok)
        ok = pthread_create(&w->threads[w->n_threads], NULL, work_run, w) == 0;
    if (changed) thread_set_patient(false);
    return ok ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "http: cannot start a thread");
}

void http_work_stop(http_work *w)
{
    if (!w->is_made) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->arrived);
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads > 0; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
}

void http_work_destroy(http_work *w)
{
    if (!w->is_made) return;
    http_work_stop(w);
    pthread_cond_destroy(&w->arrived);
    pthread_mutex_destroy(&w->lock);
    *w = (http_work){0};
}

/* False once the threads are told to stop, since none would take the job. */
static bool add_job(http_work *w, exchange *e)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    if (!stop) {
        if (w->last) w->last->next_job = e;
        else w->first = e;
        w->last = e;
        pthread_cond_signal(&w->arrived);
    }
    pthread_mutex_unlock(&w->lock);
    return !stop;
}

void http_work_put(http_work *w, exchange *e)
{
    e->stage = STAGE_WORKING;
    e->next_job = NULL;
    wake_hold(&e->wake);
    if (!add_job(w, e)) wake_release(&e->wake);
    if (!wake_sleep(&e->wake)) http_work_resumed(e);
}

void http_work_resumed(exchange *e)
{
    http_news news = wake_begin(&e->wake);
    e->stage = STAGE_ANSWERED;
    if (news == NEWS_CUT) e->failed = true;
    else if (e->refusal.status) http_reply_error(&e->x, &e->refusal); /* whatever has begun */
    else if (e->generation) {
        if (news == NEWS_ABORT) generation_abort(e->generation);
        e->stage = STAGE_WAITING;
        pump_resumed(e);
    } else if (e->reply_code) exchange_send_out(e, e->reply_code, e->reply_type);
    else e->failed = true; /* the server stops */
}
