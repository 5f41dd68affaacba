/* Waking suspended connections.
 *
 * libmicrohttpd resumes a connection by a system call. A step of the engine wakes every stream, and
 * its thread would spend more time in these calls than on the step. So a woken connection goes to a
 * list of its worker's, only the first one in the list, the leader, is resumed by the thread that
 * woke it, and the worker resumes the others once the leader runs. */
#include "rpc/http/internal.h"

#include <time.h>

void wake_init(http_wake *w, http_worker *worker, struct MHD_Connection *mhd)
{
    *w = (http_wake){.worker = worker, .mhd = mhd, .last_us = clock_now_us()};
    pthread_mutex_init(&w->lock, NULL);
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* Adds a connection to those that its worker is to resume. True for the first one. */
static bool add_woken(http_wake *w)
{
    _Atomic(http_wake *) *woken = &w->worker->woken;
    http_wake *before = atomic_load(woken);
    do w->next_woken = before;
    while (!atomic_compare_exchange_weak(woken, &before, w));
    return !before;
}

/* Sets `pending` and has the connection resumed if it is suspended. Call it with the lock held. */
static void resume_connection(http_wake *w)
{
    w->pending = true;
    if (!w->suspended || w->held) return;
    w->suspended = false;
    w->last_us = clock_now_us();
    if (!add_woken(w)) return;
    w->leads = true;
    MHD_resume_connection(w->mhd);
}

/* Resumes the connections that were woken after the leader. One that has been resumed may be gone
 * at once; one that has not stays suspended and keeps its wake. */
static void resume_others(const http_wake *leader)
{
    http_wake *w = atomic_exchange(&leader->worker->woken, NULL);
    while (w) {
        http_wake *next = w->next_woken;
        if (w != leader) MHD_resume_connection(w->mhd);
        w = next;
    }
}

/* Waits for the lock first: libmicrohttpd may close a connection as soon as it is resumed, while
 * the thread that resumed it still holds the lock. */
void wake_destroy(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    bool leads = w->leads;
    pthread_mutex_unlock(&w->lock);
    if (leads) resume_others(w);
    pthread_mutex_destroy(&w->lock);
}

void worker_wait(http_worker *w)
{
    static const struct timespec nap = {0, 1000000};
    while (atomic_load(&w->woken)) nanosleep(&nap, NULL);
}

/* ---- news ------------------------------------------------------------------------------------ */

void wake_notify(void *wake)
{
    http_wake *w = wake;
    pthread_mutex_lock(&w->lock);
    resume_connection(w);
    pthread_mutex_unlock(&w->lock);
}

void wake_abort(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    w->abort = true;
    resume_connection(w);
    pthread_mutex_unlock(&w->lock);
}

void wake_cut(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    w->cut = true;
    resume_connection(w);
    pthread_mutex_unlock(&w->lock);
}

http_news wake_begin(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    w->pending = false;
    w->last_us = clock_now_us();
    http_news news = w->cut ? NEWS_CUT : w->abort ? NEWS_ABORT : NEWS_NONE;
    w->abort = false;
    bool leads = w->leads;
    w->leads = false;
    pthread_mutex_unlock(&w->lock);
    if (leads) resume_others(w);
    return news;
}

bool wake_sleep(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    bool sleeps = w->held || (!w->pending && !w->cut);
    if (sleeps) {
        w->suspended = true;
        MHD_suspend_connection(w->mhd);
    }
    pthread_mutex_unlock(&w->lock);
    return sleeps;
}

void wake_hold(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    w->held = true;
    pthread_mutex_unlock(&w->lock);
}

void wake_release(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    w->held = false;
    resume_connection(w);
    pthread_mutex_unlock(&w->lock);
}

bool wake_is_cut(http_wake *w)
{
    pthread_mutex_lock(&w->lock);
    bool cut = w->cut;
    pthread_mutex_unlock(&w->lock);
    return cut;
}

bool wake_is_stalled(http_wake *w, int64_t since_us)
{
    pthread_mutex_lock(&w->lock);
    bool stalled = w->sending && !w->suspended && w->last_us < since_us;
    pthread_mutex_unlock(&w->lock);
    return stalled;
}
