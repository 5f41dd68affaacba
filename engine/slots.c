/* The streams that the engine thread knows, by slot: they come in from the inbox, are found by id,
 * and are told to the scheduler by events; they end or fail, and are forgotten. */
#include "engine/internal.h"

#include <assert.h>

/* ---- events ---------------------------------------------------------------------------------- */

static bool reserve_items(void **items, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity) return true;
    size_t wanted = n > 2 * *capacity ? n : 2 * *capacity;
    void *grown = alloc_resize(NULL, *items, wanted, size);
    if (!grown) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

bool slots_make_room(engine *e, size_t n_more)
{
    /* Between two steps a choice ends and is given forced tokens at most once, and its request is
     * added, paused and resumed at most once. A request of method `reform` ends once more, behind
     * its reading. */
    enum { OF_A_CHOICE = 6, OF_ALL = 2 + HANDED_MOST /* RESULT, FLUSH; EXPORTED, LOADED */ };
    size_t n = e->n_choices + n_more;
    size_t others =
        OF_ALL + FORGETS_MOST + 2 * (size_t)e->info.max_seqs; /* FORGET; SELECTED, LOADED */
    return reserve_items((void **)&e->events, &e->events_capacity, OF_A_CHOICE * n + others,
                         sizeof *e->events) &&
           reserve_items((void **)&e->ending, &e->ending_capacity, n, sizeof *e->ending) &&
           reserve_items((void **)&e->late, &e->late_capacity, n, sizeof *e->late);
}

void slots_add_event(engine *e, sched_event event)
{
    assert(e->n_events < e->events_capacity);
    e->events[e->n_events++] = event;
}

engine_stream *slots_find(const engine *e, uint64_t id)
{
    engine_stream *s = e->slots[(uint32_t)id];
    return s && s->id == id ? s : NULL;
}

static bool is_known(const engine *e, const engine_stream *s)
{
    return s->id != 0 && slots_find(e, s->id) == s;
}

/* ---- streams end ----------------------------------------------------------------------------- */

void slots_forget(engine *e, engine_stream *s)
{
    e->slots[(uint32_t)s->id] = NULL;
    e->free_slots[e->n_free_slots++] = (uint32_t)s->id;
    e->n_choices -= s->request.n;
    reform_forget(s);
    stream_unref(s);
}

void slots_end_choice(engine *e, engine_stream *s, uint32_t choice, engine_finish finish)
{
    s->choices[choice].finish = finish;
    s->choices[choice].end_sent = true;
    bool finished = finish == ENGINE_FINISH_STOP || finish == ENGINE_FINISH_LENGTH;
    slots_add_event(e, (sched_event){.kind = SCHED_END,
                                     .request = s->id,
                                     .choice = choice,
                                     .finished = finished,
                                     .distrusted = s->undefined});
    assert(e->n_ending < e->ending_capacity);
    e->ending[e->n_ending++] = (ending_choice){.stream = s, .choice = choice};
}

void slots_end_stream(engine *e, engine_stream *s, engine_finish finish)
{
    for (uint32_t i = 0; i < s->request.n; i++)
        if (!s->choices[i].end_sent) slots_end_choice(e, s, i, finish);
}

void slots_fail_stream(engine *e, engine_stream *s, status st)
{
    if (s->failed) return;
    s->failed = true;
    slots_end_stream(e, s, ENGINE_FINISH_ERROR);
    stream_fail(s, st.code, st.message ? st.message : status_text(st.code));
}

void slots_fail_all(engine *e, status_code code, const char *text)
{
    tell_all(e);
    tell_late(e, true);
    for (uint32_t i = 0; i < e->o.max_requests; i++) {
        engine_stream *s = e->slots[i];
        if (!s) continue;
        s->failed = true;
        engine_count_out(e, code == STATUS_ABORTED ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR);
        stream_fail(s, code, text);
        slots_forget(e, s);
    }
    e->n_events = e->n_ending = e->n_readings = 0; /* about streams that are forgotten now */
    pthread_mutex_lock(&e->stats_lock);
    e->stats.sched.running = e->stats.sched.waiting = 0;
    pthread_mutex_unlock(&e->stats_lock);
}

/* ---- streams come in ------------------------------------------------------------------------- */

/* Fails a stream that the scheduler never saw. */
static void refuse_stream(engine *e, engine_stream *s, status_code code, const char *text)
{
    engine_count_out(e, code == STATUS_ABORTED ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR);
    stream_fail(s, code, text);
}

static void admit_stream(engine *e, engine_stream *s)
{
    error err = {{0}};
    if (atomic_load(&s->aborted)) {
        refuse_stream(e, s, STATUS_ABORTED, "aborted before it began");
        return;
    }
    if (e->stopping) {
        refuse_stream(e, s, STATUS_ABORTED, "the engine stops");
        return;
    }
    status works = engine_check_state(e, &err);
    if (!status_ok(works)) {
        refuse_stream(e, s, works.code, err.text);
        return;
    }
    /* The request was checked against an earlier backend, which may have had more pages. */
    if (s->made_for != e->n_backends) {
        status st = s->reform ? reform_check_fit(e, s, &err)
                              : sched_check(e->sched, &s->sched_request, &err);
        if (!status_ok(st)) {
            refuse_stream(e, s, st.code, err.text);
            return;
        }
    }
    if (!slots_make_room(e, s->request.n)) {
        refuse_stream(e, s, STATUS_NO_MEMORY, "request: out of memory");
        return;
    }
    e->n_choices += s->request.n;
    uint32_t slot = e->free_slots[--e->n_free_slots];
    s->id = (uint64_t)++e->generation << 32 | slot;
    atomic_fetch_add(&s->references, 1);
    e->slots[slot] = s;
    s->added_us = clock_now_us();
    if (s->reform) {
        reform_begin(e, s);
        return;
    }
    s->sched_request.id = s->id;
    session_refresh(e, s);
    slots_add_event(e, (sched_event){.kind = SCHED_ADD, .add = &s->sched_request});
}

static void resume_stream(engine *e, engine_stream *s)
{
    if (!is_known(e, s) || !s->paused) return;
    s->paused = false;
    slots_add_event(
        e, (sched_event){.kind = SCHED_RESUME, .request = s->id, .choice = SCHED_ALL_CHOICES});
}

void slots_take_inbox(engine *e, const inbox_batch *batch)
{
    if (batch->flush) slots_add_event(e, (sched_event){.kind = SCHED_FLUSH});
    if (batch->flush && e->o.disk) disk_flush(e->o.disk);
    for (uint32_t i = 0; i < batch->n_forgotten; i++) {
        const uint64_t *key = batch->forgotten[i].key;
        slots_add_event(e, (sched_event){.kind = SCHED_FORGET, .session = {key[0], key[1]}});
    }
    for (engine_stream *s = batch->first, *next; s; s = next) {
        next = s->taken_next;
        if (s->taken & INBOX_ADD) admit_stream(e, s);
        if ((s->taken & INBOX_ABORT) && is_known(e, s)) slots_end_stream(e, s, ENGINE_FINISH_ABORT);
        if (s->taken & INBOX_RESUME) resume_stream(e, s);
        if (s->taken & INBOX_GATHERED) reform_answer(e, s, is_known(e, s));
        stream_unref(s);
    }
    pages_want(e, &batch->looks);
}

void slots_refuse_added(engine *e, int64_t wait_us)
{
    inbox_batch batch = inbox_drain_all(e, wait_us);
    slots_take_inbox(e, &batch);
    hand_drop(batch.handed); /* made while the watchdog was waiting for a stuck step */
    session_delete_forgotten(e);
    e->n_events = 0; /* flushes, and sessions, of which the next scheduler has none */
}
