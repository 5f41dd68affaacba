#include "rpc/work.h"

static work_job *next_job(work_pool *w, bool *stop)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stop) pthread_cond_wait(&w->arrived, &w->lock);
    work_job *job = w->first;
    if (job) w->first = job->next;
    if (!w->first) w->last = NULL;
    *stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work_run(void *ctx)
{
    work_pool *w = ctx;
    bool stop;
    thread_set_name("oct-parse");
    for (work_job *job; (job = next_job(w, &stop)) != NULL;) job->run(job->owner, !stop);
    return NULL;
}

status work_pool_create(work_pool *w, error *err)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->arrived, NULL);
    w->is_made = true;
    bool changed = thread_set_patient(true), ok = true;
    for (; ok && w->n_threads < WORK_THREADS; w->n_threads += ok)
        ok = pthread_create(&w->threads[w->n_threads], NULL, work_run, w) == 0;
    if (changed) thread_set_patient(false);
    return ok ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
}

bool work_pool_put(work_pool *w, work_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    if (!stop) {
        if (w->last) w->last->next = job;
        else w->first = job;
        w->last = job;
        pthread_cond_signal(&w->arrived);
    }
    pthread_mutex_unlock(&w->lock);
    return !stop;
}

void work_pool_stop(work_pool *w)
{
    if (!w->is_made) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->arrived);
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads > 0; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
}

void work_pool_destroy(work_pool *w)
{
    if (!w->is_made) return;
    work_pool_stop(w);
    pthread_cond_destroy(&w->arrived);
    pthread_mutex_destroy(&w->lock);
    *w = (work_pool){0};
}
