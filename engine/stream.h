/* stream: a request in the engine, and the outputs that wait for its reader (private to engine/).
 *
 * A stream is made by engine_submit, prepared by a tokenizer thread, and then the engine thread's.
 * The reader shares the ring with it, under the stream's lock. Both hold a reference. */
#ifndef ENGINE_STREAM_H
#define ENGINE_STREAM_H

#include "engine/bad_words.h"
#include "engine/engine.h"
#include "engine/forced.h"
#include "engine/handover.h"
#include "engine/recall.h"
#include "engine/reform/reform.h"

#include <pthread.h>
#include <stdatomic.h>

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
    forced_run forced;        /* tokens that the form forces next */
    bad_words_tail tail;      /* of its tokens, for the request's bad_words */
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

/* The pooled hidden states of a prompt. */
typedef struct prompt_pooled {
    double *sum;   /* [hidden]; NULL before the first rows arrive */
    float *values; /* [hidden]; NULL before the last */
    uint32_t hidden, n_rows;
} prompt_pooled;

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
    bad_words bad;     /* none where the prompt is only scored */
    uint32_t made_for; /* n_backends when sched_check accepted it */
    sched_request sched_request;
    recalled_session recalled; /* until the scheduler has seen it */
    handover *handover;        /* of a request that hands its prompt over; NULL for others */
    takeover *takeover;        /* of one that takes its prompt over */
    reform_run *reform;        /* of a request of method `reform`; NULL for others */

    /* Engine thread only. */
    engine_stream *look_next; /* in the inbox under its lock, then the engine thread's */
    unsigned taken;           /* INBOX_* bits of the last drain */
    engine_stream *taken_next;
    uint64_t id;           /* generation << 32 | slot, once the scheduler knows it */
    choice_state *choices; /* [n] */
    uint32_t n_alive;      /* choices that the scheduler has not ended */
    uint32_t n_untold;     /* choices whose end is not in the ring yet */
    bool paused;
    bool failed;    /* its ends have been pushed; only the scheduler must still end it */
    bool undefined; /* it has failed because the model's numbers for it are not finite */
    int64_t added_us;
    int64_t first_token_us, last_token_us; /* of any choice */
    int64_t selecting_us;
    int64_t progress_us;  /* when the reader was last told of progress */
    prompt_scores scores; /* these two belong to the reader from the first output on */
    prompt_pooled pooled;

    /* Under `lock`: shared by engine thread and reader. */
    pthread_mutex_t lock;
    pthread_cond_t readable;
    ring_item *ring; /* [capacity] */
    uint32_t capacity, head, count;
    uint32_t limit; /* largest capacity */
    strbuf blob;    /* texts and logprobs of the items; the first blob_read bytes have been read */
    size_t blob_read;
    engine_progress progress; /* unread; phase NULL = none */
    strbuf map;               /* the last map of its pages, as JSON; empty: none was drawn */
    int64_t map_us;           /* when */
    int64_t map_asked_us;     /* when it was wanted last */
    bool map_wanted;          /* it is in the list of those to draw, which holds a reference */
    choice_end *ends;         /* [n] */
    engine_transfer transfer; /* set before the end */
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
/* How many items the ring can take beside those that its reader has not read. */
uint32_t stream_room(engine_stream *s);
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

/* ---- what a prompt's rows give (prompt.c; engine thread only) -------------------------------- */

/* Takes the scores of the rows of one share. The scheduler asks for each row of a prompt once and
 * in order; row i scores token i + 1. (Positions in a plan do not identify a row, since some
 * methods close them up.) False when memory is out. */
bool prompt_take_scores(engine_stream *s, uint32_t n_rows, const step_sample *scores);
/* Takes the pooled vector [hidden] of one share, whose rows come once and in order where all of
 * them count. False when memory is out. */
bool prompt_take_pooled(engine_stream *s, uint32_t n_rows, const float *values, uint32_t hidden);

#endif
