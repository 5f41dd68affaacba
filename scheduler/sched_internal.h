/* The state behind scheduler.h: what its files share.
 *
 * - A request has choices, which are sequences. It lies in one block of memory with all that they
 *   will need.
 * - A sequence is one line of tokens. Until the end of the prompt a request runs as its first
 *   sequence, the carrier, which draws the first token of every choice; then the others are forked
 *   from it ("born").
 * - The running list has the sequences with a slot (a sequence number of the tables), the waiting
 *   list those without one, each with the best rank first.
 *
 * A rank is (the policy's number, arrival, order of being added, choice). A sequence that ends
 * while a step with rows of it is in flight is marked, and given up when the result is in. Where
 * one step at most is in flight, pages are touched only between steps, since the plan's deltas
 * belong to the backend until then. */
#ifndef SCHEDULER_SCHED_INTERNAL_H
#define SCHEDULER_SCHED_INTERNAL_H

#include "scheduler/scheduler.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct sched_seq sched_seq;
typedef struct sched_entry sched_entry;

/* Whose choices are made while a sequence grows to `end`. A request has one turn; one that went on
 * from a session also has the turns before it, and a replay goes through them all: what is measured
 * is a function of the tokens alone, so that every choice comes out as it did. */
typedef struct sched_turn {
    uint32_t n_prompt;
    uint32_t end; // logical length at which the next turn began; UINT32_MAX of the last
    retention_policy policy;
} sched_turn;

enum { SCHED_MAX_TURNS = 64, SCHED_MAX_PASSES = 8 };

typedef enum seq_state { SEQ_UNBORN, SEQ_WAITING, SEQ_RUNNING, SEQ_GONE } seq_state;

struct sched_seq {
    sched_entry *entry;
    uint32_t choice;
    seq_state state;
    bool ended, paused;
    int64_t paused_us; // since when
    bool needs_open;   // the backend has to be told how it samples
    bool stores;       // ended: what it holds becomes a session
    bool pressed;      // a choice is made after this step, because pages are short
    uint32_t slot;     // while running
    uint32_t swap;     // while waiting: where its pages are in the host tier, 0 = nowhere
    uint32_t parked;   // while waiting: the pages that it goes on with, of its session or of the
                       // sequence it was born of; 0 = none
    double swap_kept;  // tokens kept in the tier
    uint32_t planned;  // tokens in this step: in the oldest in flight, when there are two
    uint32_t ahead;    // in the step planned ahead of that one's result
    uint32_t listed;   // steps in flight that have a share of it, though its rows may not count
    uint32_t share;    // which one, in the last of them
    uint32_t n_tokens; // known: the prompt and what was sampled
    uint32_t computed; // of which have K and V
    uint32_t furthest; // most that were ever computed: below it is a replay
    uint32_t *tokens;  // [entry->n_prompt + entry->max_new_tokens]
    float *novelty;    // [entry->n_prompt] of each token, NULL unless its policy asks for it
    uint32_t *presses; // [entry->max_presses] lengths of choices made because pages were short
    uint32_t n_presses;
    uint32_t chosen; // furthest length whose choice the report counts: below it is a replay
    uint32_t preemptions;
    uint64_t pages_dropped;
    bool budget_raised;
    int64_t scoring_us;
    uint64_t inherited_pages; // of pages_dropped and scoring_us: another choice counts them
    int64_t inherited_us;
    sched_choice_info final; // as it ended
};

/* The rank of a request that was passed too often: before any priority. */
#define SCHED_AGED INT64_MIN

struct sched_entry {
    uint64_t id;
    int64_t rank;    // the priority, or SCHED_AGED; lower goes first
    uint32_t passed; // times that a later one started while no other had waited longer
    uint64_t arrival, serial;
    int64_t arrival_us, first_planned_us; // the latter -1 before
    uint64_t salt;
    bool hidden;
    uint32_t n_prompt, max_new_tokens, n, max_presses;
    uint32_t cut;    // tokens of the client's prompt beside n_prompt: its method cut them
    uint32_t live;   // choices that have not ended
    uint32_t held;   // sequences that are running
    uint32_t listed; // sum over its sequences
    bool born;
    bool want_logits, has_penalties; // want_logits: or scores, which logits are computed for
    uint32_t want_scores;
    uint32_t logits_sent;   // prompt rows
    uint32_t cached_tokens; // prefix hit of the first admission
    sample_params params;
    sched_turn *turns; // [n_turns], the last its own
    uint32_t n_turns;
    bool has_sums; // of its turns' policies
    uint64_t session[2];
    bool claims;      // the session: what it leaves is kept under it
    const char *said; // of the session, in its report
    sched_seq *seqs;  // [n]
    sched_entry *next_ended, *next_claim;
};

/* An idle one: what a request left behind. One block of memory. */
typedef struct sched_session {
    uint64_t key[2];
    uint64_t salt;
    int64_t idle_us;       // since when
    uint32_t parked, swap; // where its pages are: one of them is 0
    double swap_kept;
    sched_turn *turns;
    uint32_t *presses, *tokens;
    uint32_t n_turns, n_presses, n_tokens;
} sched_session;

/* A step: its plan, and whose shares it has. */
typedef struct sched_work {
    step_plan plan;
    step_seq *seqs;      // [max_seqs]
    sched_seq **planned; // [max_seqs] whose share seqs[i] is
    step_open *opens;    // [max_seqs]
    uint32_t *tokens;    // [prefill_chunk + max_seqs]
    bool ahead;          // planned before the step before it had brought its tokens
} sched_work;

enum { SCHED_MOST_IN_FLIGHT = 2 };

/* The outcome of a share's rows: discarded, because their sequence ended meanwhile; committed, as
 * the tables say; or lost, because the step or the selection after the rows failed. */
typedef enum row_fate { ROWS_DISCARDED, ROWS_COMMITTED, ROWS_LOST } row_fate;

typedef struct sched_list {
    sched_seq **seqs; // [capacity], best rank first
    uint32_t n, capacity;
} sched_list;

struct sched {
    sched_options options;
    allocator alloc;
    pkv *kv;
    uint32_t groups, page_tokens;

    sched_entry **map; // [map_mask + 1] open addressing by id
    uint32_t map_mask, n_mapped;
    uint32_t n_live;    // requests
    uint64_t n_choices; // of live requests: what the waiting list has room for
    uint64_t n_arrived;
    sched_entry *ended; // requests to forget at the next call

    retention_policy pressure; // its preset is NULL when there is none
    sched_session **sessions;  // [max_sessions], the longest idle first
    uint32_t n_sessions;
    sched_entry *claims; // live requests that claim one

    sched_list running, waiting;
    uint32_t *free_slots; // [max_seqs], the first n_free_slots
    uint32_t n_free_slots;
    bool has_ended; // some running sequence is to be given up

    sched_work works[SCHED_MOST_IN_FLIGHT]; // [depth]
    uint32_t depth, first, n_in_flight;     // works[first] is the oldest in flight, or the next
    uint64_t last_step;                     // planned
    bool settled; // nothing has happened that could let a waiting one start since it could not
    step_plan idle_plan;
    int64_t now_us;
    uint32_t n_preempted; // in this step
    uint32_t n_pressed;   // in this step
    bool is_starved;      // in this step memory was out for `starved`
    uint64_t starved;     // a request's id
    uint64_t lasting;     // pages that this step's choices may take for good
    uint32_t passing;     // and those that one of them may take for a moment
    uint32_t logit_rows;  // that this step may still ask for
    uint32_t draws;       // for choices to be born, that this step may still make
    row_fate *fates;      // [max_seqs] of the shares of the step whose result is taken

    uint64_t *keep; // what a choice is made in: sized as requests are taken in
    float *scratch;
    size_t n_keep, n_scratch;

    sched_stats stats; // its counters
};

/* Memory is out for lists of the sequence's. */
static inline void sched_starve(sched *s, const sched_seq *q)
{
    s->is_starved = true;
    s->starved = q->entry->id;
}
/* A request runs as its carrier until its choices are born. */
static inline bool seq_is_carrier(const sched_seq *q)
{
    return !q->entry->born && q == q->entry->seqs;
}
/* Nothing more is to come of it: what it holds can be given up. */
static inline bool seq_is_over(const sched_seq *q)
{
    return seq_is_carrier(q) ? q->entry->live == 0 : q->ended;
}
/* -1, 0, 1 as a ranks before, equal to, behind b. */
int sched_seq_compare(const sched_seq *a, const sched_seq *b);
static inline sched_work *oldest_work(sched *s) { return &s->works[s->first]; }
/* Behind those in flight. */
static inline sched_work *next_work(sched *s)
{
    return &s->works[(s->first + s->n_in_flight) % s->depth];
}
/* It is not to be planned: its reader is slow, or it has all its tokens and awaits its END. */
bool sched_seq_is_idle(const sched_seq *q);
static inline const retention_policy *policy_of(const sched_entry *e)
{
    return &e->turns[e->n_turns - 1].policy;
}
/* Tokens of its prompt that are computed: a method may cut the prompt. */
static inline uint32_t input_of(const sched_request *r)
{
    return retention_input_tokens(&r->policy, r->n_prompt);
}
static inline uint32_t rows_of(const sched_entry *e)
{
    return e->n_prompt + e->max_new_tokens - 1; // the last token's K and V are never computed
}
static inline uint32_t pages_of(const sched *s, uint32_t tokens)
{
    return tokens / s->page_tokens + (tokens % s->page_tokens != 0);
}

/* ---- requests.c: memory of requests, lists, slots ---- */
/* The caller's and the options' mixed. */
uint64_t sched_salt_of(const sched *s, const sched_request *r);
/* NULL when the queue is full or memory is out. Takes the session over that it goes on from. */
sched_entry *sched_entry_create(sched *s, const sched_request *r, int64_t now_us);
void sched_entries_destroy(sched *s);
sched_entry *sched_entry_find(const sched *s, uint64_t id);
/* Forgets the requests that ended in an earlier call. */
void sched_entries_forget(sched *s);
void sched_entry_end(sched *s, sched_entry *e, uint32_t choice, bool finished);
void sched_entry_pause(sched_entry *e, uint32_t choice, bool paused, int64_t now_us);
/* From now on it goes before all that are not aged too. */
void sched_entry_age(sched *s, sched_entry *e);
void sched_list_insert(sched_list *l, sched_seq *q);
void sched_list_remove(sched_list *l, sched_seq *q);
/* Gives a sequence a slot; some is free. */
void sched_seq_start(sched *s, sched_seq *q);
/* Closes its tables, unless they were swapped out, and takes its slot back. */
void sched_seq_stop(sched *s, sched_seq *q, seq_state state);
/* Gives up what ended and is in no step in flight. */
void sched_reap(sched *s);

/* ---- admit.c ---- */
/* Waiting sequences get slots, pages and the rest of the token budget, in order. */
void sched_admit(sched *s, uint32_t budget, int64_t now_us);

/* ---- pages.c ---- */
/* What a sequence holds at most while it grows, whatever is measured. */
typedef struct sched_peak {
    uint64_t most;    // pages at any moment
    uint64_t held;    // at the end
    uint64_t after;   // what holds after the last choice on the way; 0 without one
    uint32_t passing; // fresh pages that making a choice takes for a moment
} sched_peak;

/* From logical length `from`, where it holds `held` pages, to `to`. */
sched_peak sched_peak_of(const sched *s, const sched_turn *turns, uint32_t n_turns, uint32_t from,
                         uint64_t held, uint32_t to);
/* Pages at the worst moment of a request's life that has the pool for itself. */
uint64_t sched_peak_alone(const sched *s, const sched_turn *turns, uint32_t n_turns,
                          uint32_t max_new_tokens, uint32_t n);
/* A table's pages are those of consecutive tokens: choices drop whole pages. */
bool sched_keeps_pages(const retention_policy *policy);
const sched_turn *sched_turn_at(const sched_turn *turns, uint32_t length);
/* As the request's own, with what only the request knows filled in. */
sched_turn sched_turn_of(const sched_request *r);

/* ---- plan.c ---- */
/* Where the sequence's next chunk has to end, and why. */
typedef enum stop_kind { STOP_POINT, STOP_PRESS, STOP_TURN } stop_kind;
typedef struct sched_stop {
    uint32_t at; // UINT32_MAX when nothing is ahead
    stop_kind kind;
    const sched_turn *turn; // that the rows before it belong to
} sched_stop;

sched_stop sched_next_stop(const sched_seq *q);
/* How many tokens the sequence computes in this step when `budget` are left; 0: it has to wait. */
uint32_t sched_seq_chunk(const sched *s, const sched_seq *q, uint32_t budget);
/* It wants logits, and the step has none left to give. */
bool sched_seq_lacks_logits(const sched *s, const sched_seq *q);
/* It will compute so many: the logits it wants of them are taken off the step's. */
void sched_seq_plan(sched *s, sched_seq *q, uint32_t n);
/* The share planned for it ends in a choice, perhaps: the pages that takes are set aside. */
void sched_reserve(sched *s, const sched_seq *q);
/* Into the next work, which has no shares yet. */
void sched_plan_step(sched *s, int64_t now_us);
/* The share goes behind the work's others; its first_token is set. */
void sched_add_share(sched_work *w, sched_seq *q, step_seq share);
/* The next work has all its shares: it gets the deltas, and is in flight unless it is empty. */
const step_plan *sched_close_plan(sched *s);

/* ---- ahead.c: the next step, planned while one is in flight ---- */
/* Into the next work; false where the tokens of the step in flight have to be awaited. */
bool sched_plan_ahead(sched *s);
/* One that ended: rows planned ahead are taken back out of its tables. False when memory is out. */
bool sched_forget_ahead(sched *s, sched_seq *q);

/* ---- preempt.c ---- */
/* Gives up slot and pages; the sequence waits in its old place. In this step it got no tokens and
 * no pages yet. */
void sched_preempt(sched *s, sched_seq *q);
/* Likewise, at any moment; its tokens will be computed again. */
void sched_replay(sched *s, sched_seq *q);
/* Its tables are back, or not needed any more. */
void sched_left_tier(sched *s, sched_seq *q);
/* Index in `running` of the one to suffer next. */
uint32_t sched_pick_victim(const sched *s);
/* Preempts the worst of those that are idle: of all, or of those whose reader sleeps; false when
 * there is none. */
bool sched_preempt_idle(sched *s, bool all, int64_t now_us);
/* Pages are short: some sequence makes a choice after this step; false when none can. */
bool sched_press(sched *s);

/* ---- session.c ---- */
/* The session that a request goes on from, or NULL; *said tells why not, where it should have been
 * one; *claims: the request will leave what it holds under the key. A session and *said: it can go
 * no further, and the request begins another in its place. */
sched_session *sched_session_for(const sched *s, const sched_request *r, bool *claims,
                                 const char **said);
/* The request has what the session held, unless it begins another; the session is no more. */
void sched_session_take(sched *s, sched_session *session, sched_entry *e);
void sched_session_unclaim(sched *s, sched_entry *e);
/* What a sequence that ended holds, on the device or in the tier, becomes an idle session; false
 * when it cannot. */
bool sched_session_store(sched *s, sched_seq *q);
/* Pages are short: the longest idle session goes to the host tier or is forgotten, then what is
 * parked for waiting sequences (but for `but`). Whose pages open sequences hold too stays, for it
 * would free none; false when that is so of all. */
bool sched_parked_give_way(sched *s, const sched_seq *but);
/* Host pages are short: the longest idle one there is forgotten. */
bool sched_sessions_leave_tier(sched *s);
void sched_sessions_expire(sched *s);
void sched_sessions_destroy(sched *s);
const char *sched_sessions_check(const sched *s);

/* ---- result.c ---- */
void sched_take_result(sched *s, const step_result *r);

/* ---- query.c ---- */
void sched_describe_seq(const sched *s, const sched_seq *q, sched_choice_info *out);
void sched_describe_session(const sched_entry *e, sched_choice_info *out);

#endif
