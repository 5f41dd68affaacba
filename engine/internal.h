/* Shared by the engine's files (private to engine/).
 *
 *   any thread         engine_submit: checks, copies, counts; the stream goes to the tokenizers
 *   tokenizer threads  prepare.c: template, tokens, sched_check; then the inbox
 *   engine thread      loop.c: inbox -> events -> sched_step -> backend -> choices; tell.c: streams
 *   select threads     select.c: selections of retention that are long
 *   watchdog thread    watch.c: sleeps, unless a step is stuck
 *   reader             stream.c: reads the ring
 *
 * reform/ makes two requests of the scheduler of a stream of method `reform`: reading and answer.
 *
 * retention.c resolves a request's retention policy, its own or the engine's default; session.c
 * makes the key of the session that it continues, recall.c keeps sessions on disk.
 *
 * The engine thread owns each stream that the scheduler knows, except during its calls into the
 * backend. Then the holder of watch.lock owns the stream: the watchdog, to fail it, or the engine
 * thread when it returns (watch.c).
 *
 * A GPU would wait while tokens become text, so the loop submits first and tells after: a result's
 * tokens end their choices, the next step is planned and submitted, and then tell.c gives tokens,
 * ends and numbers to readers, before the loop waits for a step. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/form.h"
#include "engine/reform/reform.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- requests (request.c) -------------------------------------------------------------------- */

/* Makes a copy that shares nothing with the original. */
status engine_request_copy(const engine_request *from, engine_request *to);
/* Checks the range of every field; errors name the field. */
status engine_request_check(const engine_request *r, const backend_info *info,
                            const chat_template *chat, error *err);

/* Refuses tools that the template does not read. */
status engine_check_tools(const engine_request *r, const chat_template *chat, error *err);

/* ---- the chat template (render.c) ------------------------------------------------------------ */

/* Appends the text of r's messages, which are normalised. */
status engine_render(const engine *e, const engine_request *r, strbuf *out, error *err);

/* ---- messages (messages.c) ------------------------------------------------------------------- */

/* Checks roles and contents. A list of text parts becomes one string; an assistant's content that
 * is null or absent becomes "". Changes the messages. */
status messages_normalise(json_t *messages, error *err);
/* Sets *out to the messages with the arguments of their tool calls as objects, which clients send
 * as strings: the same messages, with a reference more, where there are none to decode. */
status messages_with_objects(json_t *messages, json_t **out, error *err);

/* ---- retention (retention.c), sessions (session.c) ------------------------------------------- */

/* The retention policies and limits that the engine's options give. */
typedef struct retention_rules {
    retention_limits limits;
    retention_policy standard; /* for requests without a policy */
    bool reports_standard;     /* it is not "full": requests without a policy get a report too */
    retention_policy pressure;
    bool has_pressure;
    uint64_t allowed;       /* bit i = requests may name preset i */
    uint32_t max_model_len; /* 0 = not known */
} retention_rules;

status retention_rules_make(const engine_options *o, const pkv_geometry *geometry,
                            retention_rules *out, error *err);
status retention_rules_apply(const retention_rules *rules, const engine_request *r,
                             retention_policy *out, error *err);

/* The key of (identity, cache_salt, session); {0, 0} without a session. */
void session_key(const engine_request *r, uint64_t out[2]);
/* A digest of the identity: whose session it is. */
uint64_t session_owner(const engine_request *r);
/* The salt of a request's prefixes: a digest of its cache_salt and, when `apart`, of its identity.
 * 0 stands for the prefixes that all requests share. */
uint64_t session_salt(const engine_request *r, bool apart);

/* The record of a request's session (engine_options.sessions). All zero where there is none. */
typedef struct recalled_session {
    sched_saved saved;
    uint8_t *bytes;    /* what it was read from, where drops and tokens are */
    sched_turn *turns; /* [saved.n_turns] */
    uint64_t version;  /* of the record; 0 = there is none */
} recalled_session;

/* sched_options.on_session: writes the session to disk. */
void session_keep(void *engine, const sched_saved *saved);
/* Fills s->recalled from disk and gives it to s->sched_request; nothing if there is none. */
void session_recall(engine *e, engine_stream *s);
/* Recalls again what was put or removed since, nothing of a session that this turn forgets. Engine
 * thread. */
void session_refresh(engine *e, engine_stream *s);
void session_release(engine_stream *s);
/* After sched_step: deletes what is kept of the sessions that it has forgotten. */
void session_delete_forgotten(engine *e);
/* Whether what the request's session left has been written, or never will be. */
bool session_is_kept(const engine *e, const engine_stream *s);
/* Calls inbox_put_written for each session that has been written; ends that. */
void session_watch(engine *e);
void session_unwatch(engine *e);
/* The bytes of a session, and back: false where they are not those of a session, or are those of
 * tokens that are not below `vocab_size`. */
bool session_encode(const sched_saved *saved, strbuf *out);
bool session_decode(const uint8_t *bytes, size_t n, uint32_t vocab_size, recalled_session *out);

/* ---- one choice: tokens to text, and when to stop (choice.c; engine thread only) ------------- */

typedef struct choice_state {
    tok_stream detokeniser;
    strbuf held;       /* text held back: it may begin a stop string */
    uint32_t n_tokens; /* sampled so far */
    engine_finish finish;
    int64_t stop_token;       /* -1 = none */
    int32_t stop_string;      /* index into the request's `stop`, -1 = none */
    bool end_sent;            /* the scheduler was told that the choice ended */
    grammar_matcher *matcher; /* of the request's form; NULL = none */
    int64_t first_token_us, last_token_us;
} choice_state;

void choice_init(choice_state *c, const tokenizer *t, bool skip_special);
void choice_destroy(choice_state *c);
/* Counts one sampled token. Returns how it ends the choice, by its id or the length; NONE: it does
 * not, unless a stop string does. */
engine_finish choice_take(choice_state *c, const engine_request *r, const uint32_t *stop_ids,
                          uint32_t n_stop_ids, uint32_t max_new_tokens, uint32_t token);
/* For requests with stop strings: appends the text that is certain with the token that choice_take
 * took last. *finish: what choice_take returned; it becomes STOP where a stop string ends the
 * choice. */
status choice_text(choice_state *c, const engine_request *r, uint32_t token, engine_finish *finish,
                   strbuf *text);

/* ---- a stream -------------------------------------------------------------------------------- */

/* A queued output. Its text and top logprobs lie in the stream's blob, in this order: text, ids,
 * logprobs. */
typedef struct ring_item {
    uint32_t choice;
    bool has_token;
    bool is_last; /* the choice's last item: `ends[choice]` holds the rest */
    uint32_t token;
    float logprob;
    uint32_t rank;
    uint32_t n_top;
    uint32_t text_bytes;
    engine_finish finish; /* how the token ends its choice; NONE: it does not */
    bool held; /* a last token: hidden from the reader until its choice's end is attached */
} ring_item;

/* How a choice ended. */
typedef struct choice_end {
    engine_finish finish;
    int64_t stop_token;
    int32_t stop_string;
    engine_usage usage;
    engine_timings timings;
    retention_report report;
    bool has_report;
    retrieval_totals reading;
    bool has_reading;
    status_code error_code;
} choice_end;

/* Bits of news about a stream that other threads give to the engine thread. */
enum { INBOX_ADD = 1, INBOX_ABORT = 2, INBOX_RESUME = 4, INBOX_GATHERED = 8 };

/* The prompt's logprobs, one row for each token; the first token has none. */
typedef struct prompt_scores {
    float *logprobs;   /* [n_tokens]; NULL before the first rows arrive */
    uint32_t *ranks;   /* [n_tokens] */
    uint32_t *top_ids; /* [n_tokens, n_top] */
    float *top_logprobs;
    uint32_t n_rows; /* rows received so far */
    bool complete;
} prompt_scores;

/* A stream's place in the queue of the tokenizer threads: all zero when it is not there. */
typedef struct prepare_place {
    bool waits;
    int32_t priority; /* 0 unless the scheduling policy reads it */
    size_t size;      /* of the prompt (prompt_size) */
    engine_stream *older, *newer;
    /* In the heap; `before` is the sibling on the left, or the parent of a first child. */
    engine_stream *child, *sibling, *before;
} prepare_place;

struct engine_stream {
    engine *engine;
    engine_request request; /* a copy */
    engine_notify notify;
    void *notify_ctx;
    _Atomic uint32_t references; /* held by the engine and the reader */
    _Atomic bool aborted;
    int64_t submit_us;
    uint64_t arrival; /* counts submissions */

    prepare_place place; /* under prepare.lock, until a tokenizer thread takes the stream */

    /* Under inbox.lock. */
    unsigned queued; /* INBOX_* bits; not 0 = the stream is in the inbox, which holds a reference */
    engine_stream *inbox_next;

    /* Written by a tokenizer thread before the engine thread sees the stream. */
    uint32_t *tokens;
    uint32_t n_tokens;
    retention_policy policy;
    retrieval_spec retrieval;
    bool has_report; /* its choices have retention reports */
    uint32_t max_new_tokens;
    uint32_t *stop_ids; /* EOS unless ignored, and the request's own: sorted */
    uint32_t n_stop_ids;
    uint32_t made_for; /* n_backends when sched_check accepted it */
    sched_request sched_request;
    recalled_session recalled; /* until the scheduler has seen it */
    reform_run *reform;        /* of a request of method `reform`; NULL for others */

    /* Engine thread only. */
    unsigned taken; /* INBOX_* bits of the last drain */
    engine_stream *taken_next;
    uint64_t id;           /* generation << 32 | slot, once the scheduler knows it */
    choice_state *choices; /* [n] */
    uint32_t n_alive;      /* choices that the scheduler has not ended */
    uint32_t n_untold;     /* choices whose end is not in the ring yet */
    bool paused;
    bool failed; /* its ends have been pushed; only the scheduler must still end it */
    int64_t added_us;
    int64_t first_token_us, last_token_us; /* of any choice */
    int64_t selecting_us;
    int64_t progress_us;  /* when the reader was last told of progress */
    prompt_scores scores; /* belongs to the reader from the first output on */

    /* Under `lock`: shared by engine thread and reader. */
    pthread_mutex_t lock;
    pthread_cond_t readable;
    ring_item *ring; /* [capacity] */
    uint32_t capacity, head, count;
    uint32_t limit; /* largest capacity */
    strbuf blob;    /* texts and logprobs of the items; the first blob_read bytes have been read */
    size_t blob_read;
    engine_progress progress; /* unread; phase NULL = none */
    choice_end *ends;         /* [n] */
    uint32_t n_unread_ends;   /* choices whose last item is unread */
    bool resume_wanted;       /* the engine thread paused this stream until there is room */
    error failure;            /* text of ENGINE_FINISH_ERROR */

    /* The last output's text, which belongs to the reader, and a buffer for a longer one: one of
     * the two has room for the text of every queued item, so reading needs no memory. */
    strbuf read_text, spare_text;
    /* Where no stop string may end a choice, its reader makes the text of a token: the engine
     * thread does not read it. NULL: the engine thread makes the texts (choice_text). */
    tok_stream *texts; /* [n] */
};

status stream_create(engine *e, const engine_request *r, engine_stream **out);
void stream_unref(engine_stream *s);
/* Makes the ring once the number of outputs is known. The ring starts small and grows to
 * `limit`. */
status stream_make_ring(engine_stream *s, uint32_t limit);
/* Engine thread. The ring has room (see pause_if_full). The reader is not notified. False when
 * memory is out. */
bool stream_push(engine_stream *s, const ring_item *item, const step_sample *tops,
                 const char *text);
void stream_notify(engine_stream *s);
/* Gives the reader this progress in place of what it has not read. */
void stream_push_progress(engine_stream *s, engine_progress progress);
/* Pushes the end of a choice and notifies the reader; takes over end->report.kept_json. */
void stream_push_end(engine_stream *s, uint32_t choice, const choice_end *end);
/* Sets the error text (copied) of choices that end by ENGINE_FINISH_ERROR. With STATUS_NO_MEMORY
 * the text is made to mention memory. */
void stream_set_failure(engine_stream *s, status_code code, const char *text);
/* Ends every choice that has not ended: as aborted when the code is STATUS_ABORTED, else with this
 * error (copied). */
void stream_fail(engine_stream *s, status_code code, const char *text);

/* ---- the prompt's logprobs (prompt.c; engine thread only) ------------------------------------ */

/* Takes the scores of the rows of one share. The scheduler asks for each row of a prompt once and
 * in order; row i scores token i + 1. (Positions in a plan do not identify a row, since some
 * methods close them up.) False when memory is out. */
bool prompt_take_scores(engine_stream *s, uint32_t n_rows, const step_sample *scores);

/* ---- numbers (metrics.c; engine thread only) ------------------------------------------------- */

/* Sets up a row for each retention method. */
void metrics_init(engine_metrics *m);
void metrics_observe(engine_metrics *m, engine_histogram_id id, double value);
/* Counts a choice that ended. When no choice of the request is alive, it was the last one, and the
 * request is counted too. */
void metrics_choice(engine_metrics *m, const engine_stream *s, const choice_state *c,
                    const choice_end *end, const sched_choice_info *info);
/* Copies the engine thread's numbers to where other threads read them. */
void metrics_publish(engine *e);

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
    bool flush;   /* flush the prefix cache before the streams added in this batch start */
    bool lost;    /* the backend was reported lost */
    bool written; /* a session has been written to disk */
    bool stop;
    char lost_why[512];
    made_selection *selected; /* [max_seqs] selections that were run */
    uint32_t n_selected;
    ended_load *loaded; /* [max_seqs] loads that have ended */
    uint32_t n_loaded;
    forgotten_session forgotten[FORGETS_MOST]; /* before the streams added in this batch start */
    uint32_t n_forgotten;
} inbox;

/* Puts the stream with one of INBOX_* into the inbox. */
void inbox_put(engine *e, unsigned what, engine_stream *s);
void inbox_put_selected(engine *e, made_selection made);
void inbox_put_loaded(engine *e, ended_load ended);
void inbox_put_written(engine *e);

/* News that inbox_drain took out. */
typedef struct inbox_batch {
    engine_stream *first; /* linked by taken_next; each holds a reference */
    bool flush, lost, stop;
    uint32_t n_selected; /* in e->selected */
    uint32_t n_loaded;   /* in e->loaded */
    forgotten_session forgotten[FORGETS_MOST];
    uint32_t n_forgotten;
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

/* ---- the prefix cache on disk (disk.c; all do nothing without one) --------------------------- */

/* Whether the engine can have the disk that its options give. */
status disk_check(const engine *e, error *err);
/* sched_options.has_block */
bool disk_has_block(void *disk, const pkv_key *key);
/* Before the plan of the last sched_step call is submitted: stores the blocks that it takes the
 * pages of. */
void disk_save_lost(engine *e);
/* Begins the loads that the scheduler has made, when the moves of its plans are done. */
void disk_begin_loads(engine *e);
/* Tells the scheduler which loads have ended. */
void disk_take_back(engine *e, uint32_t n_loaded);
/* Stores the blocks that only memory has, until this time. No step is in flight. */
void disk_save_cached(engine *e, int64_t until_us);
/* Before the scheduler or the backend goes: ends all loads and waits until no thread has one. The
 * scheduler is not told. */
void disk_cancel(engine *e);

/* ---- the engine ------------------------------------------------------------------------------ */

typedef struct ending_choice {
    engine_stream *stream;
    uint32_t choice;
    choice_end end;
} ending_choice;

/* A sampled token whose reader has not been notified. Of the sample's top lists the first n_top
 * entries are set. */
typedef struct untold_token {
    engine_stream *stream;
    uint32_t choice;
    engine_finish finish; /* how it ends its choice; NONE: it does not */
    bool in_ring;
    step_sample sample;
} untold_token;

/* The backend call that the engine thread is in, and the watchdog thread that times it. */
typedef struct step_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool thread_started, stop;
    int64_t started_us; /* 0 = the engine thread is not in the backend */
    uint64_t step;
    uint32_t n_seqs;
    bool abandoned; /* its requests have failed: its result is discarded */
    int64_t abandoned_us;
} step_watch;

enum { RESTARTS_MAX = 3 }; /* within RESTARTS_WITHIN_US; one more fails for good */
#define RESTARTS_WITHIN_US INT64_C(60000000)
enum { RESTART_PAUSE_US = 100000 }; /* between tries while a restart is not possible yet */

struct engine {
    engine_options o;
    backend backend; /* a copy; what it points to is borrowed */
    backend_info info;
    retention_rules retention;
    uint32_t *stop_ids;
    size_t bytes_per_token; /* from tok_bytes_per_token; 0 = no bound */
    size_t text_room;       /* from tok_stream_room */
    pthread_t thread;
    bool thread_started;
    pthread_t *workers;
    uint32_t n_workers;
    inbox inbox;
    prepare_queue prepare;
    select_queue selecting;
    reform_store embeddings;
    embed_head *embed_heads; /* [o.n_embed_heads] */
    uint32_t embed_layers;   /* that must run for them */
    form_cache forms;
    step_watch watch;

    _Atomic int state;           /* engine_state */
    _Atomic uint32_t n_live;     /* requests submitted and not ended */
    _Atomic uint64_t n_prepared; /* passed to the engine thread; under the inbox's lock */
    _Atomic uint64_t next_seed;
    _Atomic uint64_t n_submitted;
    _Atomic int64_t save_until_us; /* engine_save_at_end */

    /* Held for reading by the prepare threads, which call sched_check, and for writing by the
     * engine thread when it replaces the scheduler. */
    pthread_rwlock_t sched_lock;
    sched *sched;
    uint32_t n_backends; /* backends that were replaced so far; under sched_lock */

    /* Engine thread only, and the watchdog while it fails a step (see above). */
    engine_stream **slots; /* [max_requests], indexed by the low half of an id */
    uint32_t *free_slots;
    uint32_t n_free_slots;
    uint32_t generation;
    size_t n_choices; /* choices of the streams in `slots`, for which slots_make_room made room */
    sched_event *events;
    size_t n_events, events_capacity;
    made_selection *selected; /* [max_seqs] of the last inbox_drain */
    ended_load *loaded;       /* [max_seqs] likewise */
    /* Choices whose END is in `events`; the scheduler has taken the ENDs of the first n_ended. */
    ending_choice *ending;
    size_t n_ending, n_ended, ending_capacity;
    ending_choice *late; /* ends that are told once their sessions have been written */
    size_t n_late, late_capacity;
    untold_token *untold; /* [step_most_draws] of the last result */
    uint32_t n_untold;
    strbuf text;
    engine_stream *
        *measured; /* [max_seqs]: streams whose measures the next sched_step selects by */
    uint32_t n_measured;
    engine_stream *
        *prefilled; /* [max_seqs]: with rows in the last result, which ask for progress */
    uint32_t n_prefilled;
    engine_stream **readings; /* [max_seqs]: streams whose reading the next sched_step ends */
    uint32_t n_readings;
    const step_plan *in_flight[2]; /* oldest first */
    uint32_t n_in_flight;
    const step_plan *collected; /* the plan of the last result */
    uint64_t behind_failed;     /* step in flight behind the last result, if that failed; else 0 */
    int64_t now_us;             /* when that result arrived */
    bool lost;                  /* the backend was reported lost: handled with no step in flight */
    engine_metrics counting;
    uint64_t steps;
    int64_t compute_us, schedule_us, tell_us;
    backend_tier tier;
    sched_stats sums;                  /* counters of earlier schedulers */
    int64_t restarts_us[RESTARTS_MAX]; /* times of the last restarts: a ring */
    uint32_t n_restarts;
    bool stopping;

    pthread_mutex_t stats_lock;
    engine_stats stats;     /* published by the engine thread; ended requests are added directly */
    engine_metrics metrics; /* published by the engine thread */
    uint64_t choices_finished[ENGINE_FINISHES];
    char trouble[ENGINE_TROUBLE_BYTES]; /* "" = none since the backend was last made */
};

/* Steps that the backend takes before the first one is collected. */
static inline uint32_t engine_in_flight(const engine *e)
{
    return e->info.max_in_flight < 2 ? 1 : 2;
}

/* ---- what all files ask (state.c) ------------------------------------------------------------ */

/* Counts a request that ended this way and makes room for another one. Any thread. */
void engine_count_out(engine *e, engine_finish how);
/* Counts a choice that ended this way. Any thread. */
void engine_count_choice(engine *e, engine_finish how);
/* UNAVAILABLE with the missing part and the reason while the backend is down. */
status engine_check_state(engine *e, error *err);
status engine_make_scheduler(engine *e, sched **out, error *err);

/* Threads: the engine thread, and one that prepares requests. */
void *engine_loop(void *e);
void *prepare_loop(void *e);

/* ---- streams by slot (slots.c) --------------------------------------------------------------- */

/* Makes room for the events and ends of n_more further choices between two steps, so that adding
 * them cannot fail. False when memory is out. */
bool slots_make_room(engine *e, size_t n_more);
void slots_add_event(engine *e, sched_event event);
/* The stream of this id; NULL when it was forgotten. */
engine_stream *slots_find(const engine *e, uint64_t id);
/* Takes over the streams of the inbox. */
void slots_take_inbox(engine *e, const inbox_batch *batch);
/* The choice is over: the scheduler is told with the next step, the reader after that step. */
void slots_end_choice(engine *e, engine_stream *s, uint32_t choice, engine_finish finish);
/* Fails this request alone; the scheduler is told with the next step. */
void slots_fail_stream(engine *e, engine_stream *s, status st);
/* The same for all choices of the stream that go on. */
void slots_end_stream(engine *e, engine_stream *s, engine_finish finish);
/* Removes the stream from the engine. Its reader may still hold it. */
void slots_forget(engine *e, engine_stream *s);
/* Tells readers what was computed, then fails and forgets every stream that the scheduler knows. */
void slots_fail_all(engine *e, status_code code, const char *text);
/* Fails what is in the inbox of an engine without a backend. When the inbox is empty, waits up to
 * wait_us for news. */
void slots_refuse_added(engine *e, int64_t wait_us);

/* ---- what readers are told (tell.c) ---------------------------------------------------------- */

/* Puts a token into its stream's ring. A stop string may change token->finish, which is what
 * choice_take returned. A stream without memory for it fails. */
void tell_token(engine *e, untold_token *token);
/* Gives readers all tokens and ends that they have not been told, and publishes the numbers. */
void tell_all(engine *e);
/* After sched_step: tells readers that ask for it how far their prompts are. */
void tell_progress(engine *e);
/* Gives readers the ends that waited for their sessions to be written, or all that still do. */
void tell_late(engine *e, bool all);

/* ---- the backend under watch (watch.c) ------------------------------------------------------- */

status watch_start(engine *e);
void watch_stop(engine *e);
/* Submits a plan. False when the step was stuck or the backend failed: then all requests have been
 * failed, nothing is in flight, the plan's scheduler is gone, and the backend is new or broken. */
bool watch_submit(engine *e, const step_plan *plan);
/* Takes the result of the oldest step in flight (e->collected). NULL is as watch_submit's false. */
const step_result *watch_collect(engine *e);
/* Waits for the steps in flight and discards their results. */
void watch_drain(engine *e);
/* The backend was lost while no step was in flight: fails all requests and makes it again. */
void watch_lost(engine *e);

#endif
