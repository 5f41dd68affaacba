/* queues: what the engine's threads hand to each other (private to engine/). Each queue has a lock
 * of its own, and streams are linked through their own fields, so that handing one on needs no
 * memory. */
#ifndef ENGINE_QUEUES_H
#define ENGINE_QUEUES_H

#include "engine/stream.h"

enum { HANDED_MOST = 64 }; /* that one step takes back */

/* ---- the inbox (inbox.c) --------------------------------------------------------------------- */

/* Streams linked through their inbox_next. */
typedef struct stream_list {
    engine_stream *first, *last;
} stream_list;

/* A selection that a select thread has run, and how long that took. */
typedef struct made_selection {
    sched_selection *selection;
    int64_t us;
} made_selection;

/* A load whose first n_good blocks are in their pages. */
typedef struct ended_load {
    const sched_load *load;
    uint32_t n_good;
} ended_load;

enum { FORGETS_MOST = 64 }; /* sessions that wait to be forgotten */

typedef struct forgotten_session {
    uint64_t key[2];
} forgotten_session;

/* News for the engine thread. Streams are linked through their own fields, so that adding one needs
 * no memory. */
typedef struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    stream_list added; // queued for INBOX_ADD first, in the order of being added
    stream_list other;
    stream_list looks; // whose maps are wanted, linked by look_next
    bool flush;        /* flush the prefix cache before the streams added in this batch start */
    bool lost;         /* the backend was reported lost */
    bool written;      /* a session has been written to disk */
    bool stop;
    char lost_why[512];
    made_selection *selected; /* [max_seqs] selections that were run */
    uint32_t n_selected;
    ended_load *loaded; /* [max_seqs] loads that have ended */
    uint32_t n_loaded;
    forgotten_session forgotten[FORGETS_MOST]; /* before the streams added in this batch start */
    uint32_t n_forgotten;
    hand_job *handed; /* copies of K and V that were made */
} inbox;

/* Puts the stream with one of INBOX_* into the inbox. */
void inbox_put(engine *e, unsigned what, engine_stream *s);
void inbox_put_selected(engine *e, made_selection made);
void inbox_put_loaded(engine *e, ended_load ended);
void inbox_put_written(engine *e);
void inbox_put_handed(engine *e, hand_job *job);
/* Once for each time that the stream's map_wanted was set. */
void inbox_put_look(engine *e, engine_stream *s);

/* News that inbox_drain took out. */
typedef struct inbox_batch {
    engine_stream *first; /* linked by taken_next; each holds a reference */
    stream_list looks;    /* each holds a reference */
    bool flush, lost, stop;
    uint32_t n_selected; /* in e->selected */
    uint32_t n_loaded;   /* in e->loaded */
    forgotten_session forgotten[FORGETS_MOST];
    uint32_t n_forgotten;
    hand_job *handed; /* at most HANDED_MOST */
} inbox_batch;

/* Takes all news except that added streams beyond SCHED_ADDS_MOST and SCHED_ADD_TOKENS_MOST stay
 * for the next batch, in their order. When the inbox is empty, waits up to wait_us for news, or for
 * ever when wait_us < 0. */
inbox_batch inbox_drain(engine *e, int64_t wait_us);
/* Takes everything. */
inbox_batch inbox_drain_all(engine *e, int64_t wait_us);

/* ---- streams between submit and the tokenizer threads (prepare_queue.c) ---------------------- */

/* By priority where the scheduling policy reads it, then the shortest prompt first; but after 8
 * others have passed the oldest stream, that one is next. So a stream with m older ones waits for
 * at most 9 m + 8 others. This is the order of preparation alone: among prepared requests the
 * scheduler's order holds, by the arrival at engine_submit. */
typedef struct prepare_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    engine_stream *first, *last; /* in order of arrival */
    engine_stream *shortest;     /* root of the heap */
    uint32_t n_passed;           /* streams taken since `first` became the oldest */
    bool stop;
} prepare_queue;

void prepare_put(engine *e, engine_stream *s);
/* Takes the stream out if no tokenizer thread has taken it yet; the caller gets the queue's
 * reference. */
bool prepare_take_back(engine *e, engine_stream *s);
/* Waits for a stream; NULL when the engine stops. The caller gets the queue's reference. */
engine_stream *prepare_next(engine *e);

/* ---- selections of retention (select.c) ------------------------------------------------------ */

enum { SELECT_THREADS = 2 };

/* Work for the select threads. A sequence has at most one selection, so max_seqs is room enough;
 * streams for which tokens are gathered are linked through their runs, and each is referenced. */
typedef struct select_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived, done;
    pthread_t threads[SELECT_THREADS];
    uint32_t n_threads;
    sched_selection **waiting; /* [max_seqs] a ring */
    uint32_t first, n_waiting, n_running;
    engine_stream *first_gathering, *last_gathering;
    bool stop;
} select_queue;

status select_start(engine *e);
/* No selection is under way. Gatherings that wait are dropped. */
void select_stop(engine *e);
/* Has a select thread run reform_gather for the stream, which comes back by INBOX_GATHERED. */
void select_gather(engine *e, engine_stream *s);
/* Gives the selections that the last sched_step call made to the select threads. */
void select_hand_out(engine *e);
/* Tells the scheduler which selections are made, and charges their time to their streams. */
void select_take_back(engine *e, uint32_t n_selected);
/* Before the scheduler or the backend goes: cancels all selections and waits until no thread has
 * one. The scheduler is not told. */
void select_cancel(engine *e);

/* ---- prompts handed over and taken over (hand.c; all do nothing without a transfer) ---------- */

/* The thread that copies their K and V. */
typedef struct hand_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived, done;
    pthread_t thread;
    bool thread_started, stop;
    hand_job *first, *last;
    uint32_t n_under_way;
    hand_job *made, *last_made; /* engine thread: what sched_step calls have made, not begun */
} hand_queue;

/* Whether the engine can have the transfer that its options give. */
status hand_check(const engine *e, error *err);
status hand_start(engine *e);
/* No copy is under way. */
void hand_stop(engine *e);
/* Makes what the stream needs to hand its prompt over or to take one over. */
status hand_create(engine *e, engine_stream *s);
/* Whether a request may hand its prompt over, or take one over, as it asks. */
status hand_check_request(const engine *e, const engine_request *r, error *err);
void hand_release(engine_stream *s);
/* The stream is prepared. True: it waits for what is fetched, and is put into the inbox then. */
bool hand_prepare(engine *e, engine_stream *s);
/* The stream is aborted. True: its fetch waited for a thread and has ended, and the reference that
 * it had is the caller's. */
bool hand_take_back_fetch(engine *e, engine_stream *s);
/* Notes the first token of a request that hands its prompt over. */
void hand_note_first(engine_stream *s, const step_sample *first);
/* The scheduler has promised an export of the request. */
void hand_await(engine_stream *s);
/* After sched_step: takes the exports that it has made. */
void hand_collect(engine *e);
/* Takes a load that the scheduler has made for a prompt from another server. */
void hand_add_load(engine *e, const sched_load *load);
/* Begins the copies that hand_collect and hand_add_load have listed, each once all plans have been
 * collected that may use its pages. `moves`: the plan of the last sched_step call moves pages.
 * Called after that plan was submitted, or was found empty, and after a step was collected. */
void hand_begin_copies(engine *e, bool moves);
/* Notes that rows of the stream were computed, and lets go of the record that was fetched for
 * it. */
void hand_note_rows(engine_stream *s);
/* Tells the scheduler which copies are made, and the reader a first token that was taken over. */
void hand_take_back(engine *e, hand_job *jobs);
/* Frees copies that are made. The scheduler is not told, because it is destroyed next. */
void hand_drop(hand_job *jobs);
/* Whether what the reader is told of the transfer is known. */
bool hand_is_settled(const engine_stream *s);
/* Before the scheduler or the backend goes: waits until no copy is under way. The scheduler is not
 * told. */
void hand_cancel(engine *e);

#endif
