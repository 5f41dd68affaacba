/* Heartbeats: calls Health of each rank four times a second. A rank is lost when it has not
 * answered for too long, its connection breaks, it says that it no longer has the session, or the
 * network between it and another rank is cut (peers.c). Then the whole session fails. */
#include "rpc/worker/group.h"

#include <grpc/support/time.h>
#include <stdio.h>
#include <string.h>

enum { PERIOD_US = 250000, UNPACK_LIMIT = 1 << 16 };

/* Calls on_loss, unless the ranks are still being made or the session has failed: their errors tell
 * of the loss then. Call it with the lock held. */
static void report_loss(worker_link *l)
{
    worker_group *g = l->group;
    error err;
    if (!g->on_loss || g->n_made < g->o.n || g->failed) return;
    error_set(&err, STATUS_UNAVAILABLE, "%s", l->reason);
    link_prefix(l, &err);
    g->on_loss(g->on_loss_ctx, err.text);
}

/* Marks a rank as lost and fails the session. in_reach: the worker can still be told to end it. */
static void lose(worker_link *l, const char *why, bool in_reach)
{
    worker_group *g = l->group;
    pthread_mutex_lock(&g->lock);
    bool mine = l->beating;
    if (mine) {
        l->beating = false;
        l->lost = true;
        l->in_reach = in_reach;
        snprintf(l->reason, sizeof l->reason, "%s", why);
        link_count_loss(l);
        if (l->asking) grpc_call_cancel(l->asking, NULL);
        report_loss(l);
    }
    pthread_mutex_unlock(&g->lock);
    if (mine) group_fail(g, l->rank);
}

/* ---- a beat ---------------------------------------------------------------------------------- */

/* Makes the Health call, which other threads may cancel from now on. Call it with the lock held. */
static void begin_beat(worker_link *l, int64_t now)
{
    heartbeat *b = &l->beat;
    worker_group *g = l->group;
    grpc_slice path = grpc_slice_from_static_string("/octavo.worker.v1.Worker/Health");
    /* At least half of the silence is left: if this thread was delayed, the worker was not
     * silent. */
    int64_t silence = group_silence_us(g), until = l->last_beat_us + silence;
    if (until < now + silence / 2) until = now + silence / 2;
    b->begun_us = now;
    b->due_us = now + PERIOD_US;
    b->must_be_ours = l->configured;
    b->call.call = grpc_channel_create_call(l->channel, NULL, GRPC_PROPAGATE_DEFAULTS, g->beats,
                                            path, NULL, time_at(until), NULL);
    l->beat_flies = true;
}

static void send_beat(worker_link *l)
{
    Octavo__Worker__V1__HealthRequest request = OCTAVO__WORKER__V1__HEALTH_REQUEST__INIT;
    request.session = l->group->session;
    (void)unary_begin(&l->beat.call, &request.base, l); // only fails when it is misused
}

/* The answer to a heartbeat. */
typedef struct beat_answer {
    bool ours, waits;
    comm_wait wait;
} beat_answer;

static beat_answer read_answer(worker_link *l)
{
    beat_answer a = {0};
    grpc_slice bytes;
    const ProtobufCMessage *m;
    arena memory;
    error err;
    if (!l->beat.call.incoming || !bytes_read(l->beat.call.incoming, &bytes)) return a;
    status s =
        message_unpack(&octavo__worker__v1__health_reply__descriptor, GRPC_SLICE_START_PTR(bytes),
                       GRPC_SLICE_LENGTH(bytes), UNPACK_LIMIT, &memory, &m, &err);
    if (status_ok(s)) {
        const Octavo__Worker__V1__HealthReply *reply = (const void *)m;
        const Octavo__Worker__V1__Wait *w = reply->wait;
        a.ours = reply->session == l->group->session;
        a.waits = a.ours && w && w->peer <= l->group->o.n;
        if (a.waits)
            a.wait = (comm_wait){w->round, w->inside, (int)w->peer - 1,
                                 (int64_t)(w->idle_us & INT64_MAX)};
    }
    arena_destroy(&memory);
    grpc_slice_unref(bytes);
    return a;
}

static void take_answer(worker_link *l, const beat_answer *a)
{
    char why[sizeof l->reason];
    pthread_mutex_lock(&l->group->lock);
    l->last_beat_us = clock_now_us();
    l->up = true;
    bool cut = peer_is_cut_off(l, a->waits ? &a->wait : NULL, why, sizeof why);
    pthread_mutex_unlock(&l->group->lock);
    if (cut) lose(l, why, true);
}

/* True when the coordinator has failed the session: it then ends at all workers, and a worker that
 * no longer has it is not lost. */
static bool has_failed(worker_group *g)
{
    pthread_mutex_lock(&g->lock);
    bool failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    return failed;
}

static void judge_beat(worker_link *l)
{
    heartbeat *b = &l->beat;
    char why[sizeof l->reason];
    beat_answer a = {0};
    if (b->call.code == GRPC_STATUS_OK) a = read_answer(l);
    if (b->call.code == GRPC_STATUS_OK && (!b->must_be_ours || a.ours)) {
        take_answer(l, &a);
        return;
    }
    if (b->call.code == GRPC_STATUS_OK && has_failed(l->group)) return;
    if (b->call.code == GRPC_STATUS_OK)
        snprintf(why, sizeof why, "the worker has ended the session, or was started again");
    else if (b->call.code == GRPC_STATUS_DEADLINE_EXCEEDED)
        snprintf(why, sizeof why, "no heartbeat for %.1f s",
                 (double)group_silence_us(l->group) / 1e6);
    else text_of_status(b->call.details, why, sizeof why);
    lose(l, why, false);
}

static void end_beat(worker_link *l)
{
    heartbeat *b = &l->beat;
    worker_group *g = l->group;
    judge_beat(l);
    unary_end(&b->call);
    pthread_mutex_lock(&g->lock);
    grpc_call_unref(b->call.call);
    b->call.call = NULL;
    l->beat_flies = false;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Begins the heartbeats that are due. Returns when the next one is due; *flies tells whether
 * answers are outstanding. */
static int64_t beat_all(worker_group *g, bool *flies)
{
    int64_t next = INT64_MAX, now = clock_now_us();
    *flies = false;
    for (uint32_t i = 0; i < g->o.n; i++) {
        worker_link *l = &g->links[i];
        pthread_mutex_lock(&g->lock);
        bool begins = l->beating && !l->beat_flies && now >= l->beat.due_us;
        if (begins) begin_beat(l, now);
        if (l->beating && !l->beat_flies && l->beat.due_us < next) next = l->beat.due_us;
        *flies |= l->beat_flies;
        pthread_mutex_unlock(&g->lock);
        if (begins) send_beat(l);
    }
    return next;
}

static void sleep_until(worker_group *g, int64_t us)
{
    struct timespec until = {us / 1000000, us % 1000000 * 1000};
    pthread_mutex_lock(&g->lock);
    bool any = false;
    for (uint32_t i = 0; i < g->o.n; i++) any |= g->links[i].beating;
    if (!g->stop && !any) pthread_cond_wait(&g->changed, &g->lock);
    else if (!g->stop) pthread_cond_timedwait(&g->changed, &g->lock, &until);
    pthread_mutex_unlock(&g->lock);
}

static bool is_stopping(worker_group *g)
{
    pthread_mutex_lock(&g->lock);
    bool stop = g->stop;
    pthread_mutex_unlock(&g->lock);
    return stop;
}

/* The heartbeats' thread. It waits on its queue only while an answer is outstanding: in gRPC a
 * thread that waits on one queue also does the reading for others. */
static void *heart_main(void *arg)
{
    worker_group *g = arg;
    thread_set_name("oct-heart");
    while (!is_stopping(g)) {
        bool flies;
        int64_t now = clock_now_us(), next = beat_all(g, &flies);
        if (next > now + PERIOD_US) next = now + PERIOD_US;
        if (!flies) {
            sleep_until(g, next);
            continue;
        }
        grpc_event event = grpc_completion_queue_next(g->beats, time_at(next), NULL);
        if (event.type == GRPC_OP_COMPLETE) end_beat(event.tag);
    }
    return NULL;
}

status heart_start(worker_group *g, error *err)
{
    g->has_heart = pthread_create(&g->heart, NULL, heart_main, g) == 0;
    return g->has_heart ? STATUS_IS_OK
                        : error_set(err, STATUS_NO_MEMORY, "workers: cannot start a thread");
}

void heart_stop(worker_group *g)
{
    if (!g->has_heart) return;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->heart, NULL);
}

void heart_listen(worker_link *l)
{
    worker_group *g = l->group;
    pthread_mutex_lock(&g->lock);
    l->last_beat_us = clock_now_us();
    l->beat.due_us = 0;
    l->view = (peer_view){0};
    l->beating = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void heart_leave(worker_link *l)
{
    worker_group *g = l->group;
    pthread_mutex_lock(&g->lock);
    l->beating = false;
    if (l->beat_flies) grpc_call_cancel(l->beat.call.call, NULL);
    while (l->beat_flies) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}
