/* Selections of retention that are long work, and the gathering of tokens by their embeddings, are
 * made by threads of their own, so that the engine thread goes on with the steps of other
 * sequences. Selections read the measures, which the backend holds for them, and the sequence's
 * page tables, which the scheduler leaves alone meanwhile. */
#include "engine/internal.h"

#include <assert.h>

/* A selection or a stream whose tokens are gathered; neither: the engine stops. */
typedef struct select_job {
    sched_selection *selection;
    engine_stream *gathers;
} select_job;

/* Selections come first: their sequences hold pages while they wait. */
static select_job next_waiting(engine *e)
{
    select_queue *q = &e->selecting;
    select_job job = {NULL, NULL};
    pthread_mutex_lock(&q->lock);
    while (q->n_waiting == 0 && !q->first_gathering && !q->stop)
        pthread_cond_wait(&q->arrived, &q->lock);
    if (q->n_waiting > 0) {
        job.selection = q->waiting[q->first];
        q->first = (q->first + 1) % e->info.max_seqs;
        q->n_waiting--;
        q->n_running++;
    } else if (q->first_gathering && !q->stop) {
        job.gathers = q->first_gathering;
        q->first_gathering = job.gathers->reform->next;
    }
    pthread_mutex_unlock(&q->lock);
    return job;
}

static void note_done(select_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->n_running--;
    pthread_cond_signal(&q->done);
    pthread_mutex_unlock(&q->lock);
}

static void run_selection(engine *e, sched_selection *x)
{
    int64_t start = clock_now_us();
    sched_selection_run(x);
    inbox_put_selected(e, (made_selection){x, clock_now_us() - start});
    note_done(&e->selecting);
}

static void run_gathering(engine *e, engine_stream *s)
{
    if (!atomic_load(&s->aborted)) reform_gather(s);
    inbox_put(e, INBOX_GATHERED, s);
    stream_unref(s);
}

static void *select_loop(void *arg)
{
    engine *e = arg;
    thread_set_name("oct-select");
    for (;;) {
        select_job job = next_waiting(e);
        if (job.selection) run_selection(e, job.selection);
        else if (job.gathers) run_gathering(e, job.gathers);
        else return NULL;
    }
}

status select_start(engine *e)
{
    select_queue *q = &e->selecting;
    for (; q->n_threads < SELECT_THREADS; q->n_threads++)
        if (pthread_create(&q->threads[q->n_threads], NULL, select_loop, e))
            return status_make(STATUS_NO_MEMORY, "select thread");
    return STATUS_IS_OK;
}

void select_stop(engine *e)
{
    select_queue *q = &e->selecting;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->arrived);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < q->n_threads; i++) pthread_join(q->threads[i], NULL);
    for (engine_stream *s = q->first_gathering, *next; s; s = next) {
        next = s->reform->next;
        stream_unref(s);
    }
}

void select_hand_out(engine *e)
{
    select_queue *q = &e->selecting;
    for (sched_selection *x; (x = sched_next_selection(e->sched)) != NULL;) {
        pthread_mutex_lock(&q->lock);
        assert(q->n_waiting < e->info.max_seqs);
        q->waiting[(q->first + q->n_waiting++) % e->info.max_seqs] = x;
        pthread_cond_signal(&q->arrived);
        pthread_mutex_unlock(&q->lock);
    }
}

void select_gather(engine *e, engine_stream *s)
{
    select_queue *q = &e->selecting;
    atomic_fetch_add(&s->references, 1);
    s->reform->next = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->first_gathering) q->last_gathering->reform->next = s;
    else q->first_gathering = s;
    q->last_gathering = s;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

void select_take_back(engine *e, uint32_t n_selected)
{
    for (uint32_t i = 0; i < n_selected; i++) {
        const made_selection *made = &e->selected[i];
        engine_stream *s = slots_find(e, sched_selection_request(made->selection));
        if (s) s->selecting_us += made->us;
        slots_add_event(e, (sched_event){.kind = SCHED_SELECTED, .selection = made->selection});
    }
}

void select_cancel(engine *e)
{
    select_queue *q = &e->selecting;
    sched_cancel_selections(e->sched);
    pthread_mutex_lock(&q->lock);
    while (q->n_waiting + q->n_running > 0) pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.n_selected = 0;
    pthread_mutex_unlock(&e->inbox.lock);
}
