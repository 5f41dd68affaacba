/* The state behind scheduler.h, shared by the scheduler's files.
 *
 * - A request (sched_entry, from sched_request) has choices. Each choice is a sequence. A request
 *   lies in one block of memory with all that its sequences will need.
 * - A sequence (sched_seq) has one list of tokens. Until the end of the prompt a request runs as
 *   one sequence, the parent (seq_is_parent), which draws the first token of every choice. Then the
 *   other choices are forked from it as child sequences, and the request is `forked`.
 * - The running list has the sequences with a slot (a sequence number of the tables), the waiting
 *   list those without one, each with the best rank first.
 *
 * A rank is (the policy's number, arrival, order of being added, choice). If a sequence ends while
 * a step with rows of it is in flight, it is marked, and its pages are given up when the result is
 * in. Where at most one step is in flight, pages are touched only between steps, since the plan's
 * deltas belong to the backend until then. */
#ifndef SCHEDULER_SCHED_INTERNAL_H
#define SCHEDULER_SCHED_INTERNAL_H

#include "scheduler/scheduler.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct sched_seq sched_seq;
typedef struct sched_entry sched_entry;
typedef struct sched_loading sched_loading;
typedef struct sched_handing sched_handing;

enum { SCHED_MAX_PASSES = 8, PLAIN_ROW_COST = 100 };

typedef enum seq_state { SEQ_UNFORKED, SEQ_WAITING, SEQ_RUNNING, SEQ_GONE } seq_state;

/* A choice of a request; the first one is also the parent. */
struct sched_seq {
    sched_entry *entry;
    uint32_t choice;
    seq_state state;
    bool ended, paused;
    int64_t paused_us;      // since when
    bool needs_open;        // the backend must be told how this sequence samples
    bool stores;            // ended, and its pages become a session
    bool told;              // the caller was told of that session
    sched_handing *handing; // ended, and its pages go to another scheduler
    bool drop_planned;      // pressure retention selects after this step, because pages are short
    sched_selection *selecting; // it waits for this selection, and has no share of a step
    sched_loading *loading;     // it waits for these blocks, and has no share of a step
    bool leaving;               // its tables are being closed, and it has no share of a step
    pkv_way way;                // in which way
    bool arriving;              // its tables come back, and it has no share of a step
    /* Its hit of the prefix cache is taken in portions up to this token, and it has no share of a
     * step; 0 = it takes none. */
    uint32_t hit_to;
    uint32_t hit_most; // the most tokens that a hit may have
    uint64_t hit_owed; // pages that the rest takes from those available, as far as is known
    uint32_t slot;     // while running
    uint32_t swap;     // while waiting: its pages in the host tier; 0 = none there
    uint32_t parked;   // while waiting: its parked pages, from its session or its parent; 0 = none
    /* It lacks pages until shared ones were counted as of this pkv_sharing_changes; 0 = it does
     * not. */
    uint64_t counts_from;
    uint64_t kept;    // pkv_seq_kept of its tables, wherever their pages are; 0 without any
    uint32_t planned; // rows in the step that is being planned; 0 between two plans
    uint32_t flying;  // rows in steps in flight, without those that will be discarded
    bool awaited;     // what follows its last row in flight depends on the result of that row
    bool left_out; // a step planned ahead left it out, and no row without such a result came since
    /* Steps in flight with a share of it, even one that will be discarded, and selections and loads
     * of it on other threads, even one that was dropped. */
    uint32_t listed;
    uint32_t share;           // index of its share in the last of those steps
    uint32_t n_tokens;        // known tokens: the prompt and the sampled ones
    uint32_t n_uncounted;     // the last of them, which the backend's penalties do not count yet
    uint32_t computed;        // tokens whose K and V are computed
    uint32_t furthest;        // most tokens ever computed: below this it is a replay
    uint32_t *tokens;         // [entry->n_prompt + entry->max_new_tokens]
    float *novelty;           // [entry->n_prompt], NULL unless its policy asks for it
    uint32_t *pressure_drops; // [entry->max_pressure_drops] lengths of its pressure drops
    uint32_t n_pressure_drops;
    uint32_t selected; // furthest length whose selection is counted; less is a replay
    uint32_t preemptions;
    uint64_t pages_dropped;
    bool budget_raised;
    int64_t scoring_us;
    uint64_t inherited_pages; // part of pages_dropped that another choice counts
    int64_t inherited_us;
    retrieval_totals reading; // of the rows up to `furthest`
    sched_choice_info final;  // its state when it ended
};

/* The rank of a request that was passed too often: better than any priority. */
#define SCHED_AGED INT64_MIN

/* A request from its event ADD until it is forgotten, in the call after all its choices ended. */
struct sched_entry {
    uint64_t id;
    int64_t rank;    // the priority, or SCHED_AGED; lower goes first
    uint32_t passed; // later requests that started while no other had waited longer
    uint64_t arrival, serial;
    int64_t arrival_us, first_planned_us; // first_planned_us is -1 before the first plan
    uint64_t salt;
    bool hidden, masked, hands_over;
    const sched_handed *handed; // waits to be taken over, or is being loaded
    bool was_handed;
    uint32_t n_prompt, max_new_tokens, n, max_pressure_drops;
    uint32_t n_positions; // what a sequence of it takes at most: the room of its tables
    uint32_t cut;         // tokens of the client's prompt that its method cut: not in n_prompt
    uint32_t live;        // choices that have not ended yet
    uint32_t n_running;   // its sequences with a slot
    uint32_t listed;      // sum of `listed` over its sequences
    bool forked;
    bool want_logits, has_penalties; // want_logits is also set for scores
    uint32_t want_scores;
    uint32_t pooling;         // step_pooling
    const embed_head *embeds; // [n_embeds] of a reading (sched_request)
    uint32_t n_embeds, n_layers;
    uint32_t rows_sent;     // prompt rows whose logits, scores or vectors the caller has
    uint32_t cached_tokens; // prefix hit when it was first admitted
    uint32_t loaded_tokens; // those of them that came from disk
    sample_params params;
    sched_turn *turns; // [n_turns]; the last one is the request's own
    uint32_t n_turns;
    bool has_sums; // some policy of its turns keeps running sums
    retrieval_spec retrieval;
    /* The backend keeps lists for its choices: their number (step_seq.note), from its first start
     * to its end, and the most bytes; 0 = nothing. */
    uint32_t note;
    uint64_t note_bytes;
    uint64_t session[2], owner;
    pkv_mass_map *masses;     // where the attention of a watched row went; NULL: never watched
    uint32_t masses_at;       // the row's logical index, where `measured`
    bool measured;            // masses has a row's
    uint64_t watched;         // its number among those that wait to be measured; 0 = it does not
    uint32_t unmeasured;      // bits that the backend lacks of what was to be measured last
    bool claims;              // whether its last pages are stored as this session
    const char *session_note; // what the report says of its session; NULL = nothing
    sched_seq *seqs;          // [n]
    sched_entry *earlier, *later;         // live requests in the order of arrival
    sched_entry *next_ended, *next_claim; // next_claim: in its bucket
};

typedef struct sched_session sched_session;

typedef enum sched_place { SCHED_IN_POOL, SCHED_IN_TIER, SCHED_PLACES } sched_place;

/* The idle sessions of one owner whose pages are in one place, the longest idle first. */
typedef struct sched_idle_queue {
    sched_session *oldest, *newest;
    uint32_t at; // its index in the heap of its place, unless it is empty
} sched_idle_queue;

/* An owner of idle sessions, and how many it has. */
typedef struct sched_owner {
    uint64_t id; // sched_request.owner
    uint32_t n;  // >= 1
    sched_idle_queue queues[SCHED_PLACES];
    struct sched_owner *next; // in its bucket
} sched_owner;

/* An idle session: the pages and tokens that a request left behind. One block of memory. A session
 * that was kept elsewhere has no pages and is in no list. */
struct sched_session {
    uint64_t key[2];
    uint64_t number; // sessions stored before it
    sched_owner *owner;
    sched_session *older, *newer;  // among all
    sched_session *before, *after; // in its queue
    sched_session *next_in_bucket;
    uint64_t salt;
    int64_t idle_us;       // since when
    uint32_t parked, swap; // where its pages are: one of them is 0
    uint64_t kept;         // as sched_seq.kept
    const sched_turn *turns;
    const uint32_t *pressure_drops, *tokens;
    uint32_t n_turns, n_pressure_drops, n_tokens;
};

/* The queues of all owners in one place: a binary heap, with the one that makes room first on
 * top. */
typedef struct sched_idle_heap {
    sched_idle_queue **queues; // [max_sessions]
    uint32_t n;
} sched_idle_heap;

/* All idle sessions, and the keys that live requests claim. */
typedef struct sched_idle {
    sched_session **sessions, *oldest, *newest; // sessions[mask + 1]: buckets by key
    sched_owner **owners;                       // [mask + 1] buckets by id
    sched_entry **claims;                       // [claim_mask + 1] buckets by key
    uint32_t mask, claim_mask, n;
    uint64_t n_stored;
    uint64_t n_tokens; // known of all idle sessions, each a word of host memory
    sched_idle_heap heaps[SCHED_PLACES];
} sched_idle;

/* Whether a share is measured for people who watch its request (watch.c). */
typedef enum watch_kind {
    WATCH_NONE,
    WATCH_SAME,  // its policy measures it too
    WATCH_ALONE, // what it measures is for them alone
} watch_kind;

/* A step: its plan, and the sequence of each share. */
typedef struct sched_work {
    step_plan plan;
    step_seq *seqs;      // [max_seqs]
    sched_seq **planned; // [max_seqs]: seqs[i] is the share of planned[i]
    bool *keeps_all;     // [max_seqs]: a selection would follow the share, but gives up nothing
    step_open *opens;    // [max_seqs]
    uint32_t *tokens;    // [prefill_chunk + max_seqs]
    uint32_t ended_notes[STEP_ENDED_NOTES];
    bool told;          // the backend got the plan with its ended_notes
    bool ahead;         // planned while the step before was in flight
    bool has_logits;    // some share wants the logits, scores or novelty of its rows
    uint32_t n_awaited; // shares of sequences that are `awaited`
    watch_kind watch;   // of watch_share, unless it is WATCH_NONE
    uint32_t watch_share;
} sched_work;

enum { SCHED_MOST_IN_FLIGHT = 2 };

typedef struct sched_note {
    uint32_t number;
    uint64_t bytes;
} sched_note;

/* The outcome of a share's rows: discarded, because their sequence ended meanwhile; committed, as
 * the tables say; or lost, because the step or the selection after the rows failed. */
typedef enum row_fate { ROWS_DISCARDED, ROWS_COMMITTED, ROWS_LOST } row_fate;

typedef struct sched_list {
    sched_seq **seqs; // [capacity], best rank first
    uint32_t n, capacity;
} sched_list;

/* Bounds of shared pages that a later count may lower (pkv_shared), added up. */
typedef struct sched_bounds {
    uint64_t pages;
    uint64_t as_of; // the smallest pkv_shared.as_of among them
} sched_bounds;

struct sched {
    sched_options options;
    allocator alloc;
    pkv *kv;
    uint32_t groups, page_tokens;
    uint64_t held_kept;  // sum of `kept` over sequences and sessions whose pages are in the pool
    uint32_t even_pages; // of the whole pool, as many from each share: what peaks are counted in

    sched_entry **map; // [map_mask + 1] open addressing by id
    uint32_t map_mask, n_mapped;
    uint32_t n_live;    // requests
    uint64_t n_choices; // of live requests: what the waiting list has room for
    uint64_t n_arrived;
    sched_entry *ended;             // requests that ended, forgotten at the next call
    sched_entry *earliest, *latest; // live requests, where the policy is SCHED_PRIORITY

    retention_policy pressure; // preset is NULL when pressure retention is off
    sched_idle idle;

    sched_list running, waiting;
    uint32_t *free_notes;    // [notes_capacity], the first n_free_notes: step_seq.note not in use
    sched_note *ended_notes; // [notes_capacity], the first n_ended_notes: not told the backend yet
    uint32_t n_notes, n_free_notes, n_ended_notes, notes_capacity;
    uint64_t note_bytes;  // of the numbers that are in use, or that it was not told are not
    uint32_t *free_slots; // [max_seqs], the first n_free_slots
    uint32_t n_free_slots;
    bool has_ended;    // some running sequence is over and can perhaps be reaped
    bool ended_listed; // some that is over is in a step in flight, and is reaped after its result

    sched_work works[SCHED_MOST_IN_FLIGHT]; // [depth]
    uint32_t depth, first, n_in_flight;     // works[first]: the oldest in flight, or the next
    uint64_t last_step;                     // number of the last planned step
    uint64_t blocked; // key of the waiting sequence that was last asked about; 0 = none
    bool failed;      // a step failed, and the one planned ahead of it is still in flight
    bool lacks_pages; // a sequence got none in the step planned last, and no other gave way
    step_plan idle_plan;
    int64_t now_us;

    /* The step that is being planned. */
    uint32_t n_preempted;
    uint32_t n_drops_planned;
    bool is_starved;         // memory was out for the lists of `starved`
    uint64_t starved;        // request id
    uint64_t lasting;        // pages that its selections may take for good
    sched_bounds uncounted;  // those of them that a count of shared pages may show not to be needed
    uint64_t if_shared;      // more pages for good, if others come to share what is kept
    uint64_t passing;        // pages that one selection may take for a moment
    uint32_t budget;         // plain rows that it may still compute
    uint32_t logit_row_cost; // in hundredths of a plain row
    uint32_t logit_rows;     // rows of logits that it may still ask for
    uint32_t draws;          // draws for choices yet to be forked that it may still make
    uint32_t sparse_rows;    // rows that read by retrieval which it may still compute

    uint32_t n_watched; // requests that wait to be measured
    uint64_t n_watches; // requests that have ever waited to be measured
    int64_t watch_us;   // when the next row may be measured
    row_fate *fates;    // [max_seqs], one for each share of the step whose result is taken

    /* Work that takes longer than a step: selections, loads, exports, and tables whose pages leave
     * or arrive in portions; and the portion of it that this call may still do. */
    sched_selection *first_selection, *last_selection; // the oldest, the newest
    sched_loading *first_load, *last_load;
    sched_handing *first_handing, *last_handing;
    uint32_t n_selecting, n_pressing; // sequences that wait for one; for one under pressure
    uint32_t n_leaving;               // running sequences whose tables are being closed
    uint32_t n_giving;                // those of them whose pages become free meanwhile
    uint32_t n_arriving;              // running sequences whose tables come back
    uint32_t n_hitting;               // running sequences whose hit is taken in portions
    bool has_left;       // tables that are being closed have had the portion of this call
    bool looks;          // a long sequence may go on once more of its pages were looked at
    uint32_t looks_left; // pages that others may hold too which this step may still count
    uint32_t away_left;  // pages of sequences without a slot that this step may still change
    uint32_t moving;     // the parked sequence that is being moved to the host tier; 0 = none
    sched_session *moving_session; // the idle session that owns it, or NULL
    sched_seq *moving_seq;         // the waiting sequence that owns it, or NULL
    uint64_t *keep;                // buffers of a selection, sized as requests are taken in
    float *scratch;
    size_t n_keep, n_scratch;

    sched_stats stats; // counters and swapped_tokens; the other gauges are computed when asked for
};

/* Memory is out for lists that the sequence needs. */
static inline void sched_starve(sched *s, const sched_seq *q)
{
    s->is_starved = true;
    s->starved = q->entry->id;
}
/* Tokens whose K and V are computed once all steps in flight are. */
static inline uint32_t seq_from(const sched_seq *q) { return q->computed + q->flying; }
/* How many of a sequence's n tokens with slots its tables have given up, equally many in each. */
static inline uint32_t sched_given_up(const sched *s, const sched_seq *q, uint32_t n)
{
    return n - pkv_seq_table(s->kv, q->slot, 0).kept_tokens;
}
/* Tokens that are known once the step in flight has run, while at most one is: a share of the last
 * known token draws the next one. */
static inline uint32_t seq_known(const sched_seq *q)
{
    return q->n_tokens + (q->flying > 0 && seq_from(q) == q->n_tokens);
}
/* A request runs as its first sequence, the parent, until its choices are forked. */
static inline bool seq_is_parent(const sched_seq *q)
{
    return !q->entry->forked && q == q->entry->seqs;
}
/* The sequence will compute nothing more, so its pages can be given up. */
static inline bool seq_is_over(const sched_seq *q)
{
    return seq_is_parent(q) ? q->entry->live == 0 : q->ended;
}
/* The sequence is no victim, because its pages cannot be given up now or are being given up
 * already: its rows are in flight, its pages are being loaded, a selection (even one that was
 * dropped) reads its tables or changes them, its tables come back or are being closed, its hit is
 * being taken, or it is over. */
static inline bool seq_is_spared(const sched_seq *q)
{
    return q->listed > 0 || q->selecting || q->loading || q->leaving || q->arriving || q->hit_to ||
           seq_is_over(q);
}
/* -1, 0 or 1 when a ranks before, equal to or behind b. */
int sched_seq_compare(const sched_seq *a, const sched_seq *b);
static inline bool sched_arrived_before(const sched_entry *a, const sched_entry *b)
{
    return a->arrival != b->arrival ? a->arrival < b->arrival : a->serial < b->serial;
}
static inline sched_work *oldest_work(sched *s) { return &s->works[s->first]; }
/* The work behind those in flight. */
static inline sched_work *next_work(sched *s)
{
    return &s->works[(s->first + s->n_in_flight) % s->depth];
}
/* The sequence is not planned: its reader is slow, it has all its tokens or will have them with the
 * step in flight, or it has ended. */
bool sched_seq_is_idle(const sched_seq *q);
static inline const retention_policy *policy_of(const sched_entry *e)
{
    return &e->turns[e->n_turns - 1].policy;
}
/* Prompt tokens that are computed: a retention method may cut the prompt. */
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

/* ---- notes.c: what the backend keeps for requests beside pages ---- */
/* The most bytes for a request of n choices; 0 = nothing is kept. */
uint64_t sched_note_bytes(const sched *s, const retrieval_spec *spec, uint32_t n_prompt,
                          uint32_t max_new_tokens, uint32_t n);
/* STATUS_LIMIT: they are more than the backend keeps of all requests. */
status sched_note_check(const sched *s, const retrieval_spec *spec, uint32_t n_prompt,
                        uint32_t max_new_tokens, uint32_t n, error *err);
/* Makes room for the numbers of one more live request. false: memory is out. */
bool sched_notes_reserve(sched *s);
/* Whether the request must wait for room: others_lack says that one before it does. */
bool sched_note_lacks(const sched *s, const sched_entry *e, bool others_lack);
void sched_note_take(sched *s, sched_entry *e);
void sched_note_end(sched *s, sched_entry *e);
/* Lets the plan say which numbers have ended: from then on others may have them. */
void sched_notes_tell(sched *s, sched_work *w);

/* ---- requests.c: memory of requests, lists, slots ---- */
/* The salt of the request mixed with that of the options. */
uint64_t sched_salt_of(const sched *s, const sched_request *r);
/* NULL when the queue is full or memory is out. Takes over the session that the request
 * continues. */
sched_entry *sched_entry_create(sched *s, const sched_request *r, int64_t now_us);
void sched_entries_destroy(sched *s);
sched_entry *sched_entry_find(const sched *s, uint64_t id);
/* Forgets the requests that ended in an earlier call. */
void sched_entries_forget(sched *s);
void sched_entry_end(sched *s, sched_entry *e, uint32_t choice, bool finished);
void sched_entry_pause(sched_entry *e, uint32_t choice, bool paused, int64_t now_us);
/* From now on the request goes before all requests that are not aged. */
void sched_entry_age(sched *s, sched_entry *e);
void sched_list_insert(sched_list *l, sched_seq *q);
void sched_list_remove(sched_list *l, sched_seq *q);
/* Gives a sequence a slot. A free slot must exist. */
void sched_seq_start(sched *s, sched_seq *q);
/* Closes the sequence's tables, unless they were swapped out, and frees its slot. It takes no
 * portions any more: sched_leave ends them. */
void sched_seq_stop(sched *s, sched_seq *q, seq_state state);
/* Frees slots and pages of sequences that ended and are in no step in flight. */
void sched_reap(sched *s);
/* Stores the session of this key at once, if a sequence is leaving it. */
void sched_reap_session(sched *s, const uint64_t key[2]);

/* ---- held.c: what tables hold, counted as they change ---- */
/* `kept` of one token in every table of the sequence that takes tokens; and what all its tables
 * keep, in such tokens. */
uint64_t sched_token_kept(const sched *s, const sched_seq *q);
double sched_kept_tokens(const sched *s, const sched_seq *q);
/* The sequence has got tables of n tokens that keep q->kept. */
void sched_add_kept(sched *s, uint32_t n_tokens, uint64_t kept);
/* Tables of n tokens leave the pool. */
void sched_remove_kept(sched *s, uint32_t n_tokens, uint64_t kept);
/* pkv_seq_append and pkv_seq_cut. */
status sched_append(sched *s, sched_seq *q, uint32_t n);
status sched_cut(sched *s, sched_seq *q, uint32_t n);
/* A selection has changed the sequence's tables. */
void sched_recount(sched *s, sched_seq *q);
/* pkv_seq_close. */
void sched_close_tables(sched *s, sched_seq *q);
/* Compares the sums with the tables. */
const char *sched_held_check(const sched *s);

/* ---- admit.c ---- */
/* Gives waiting sequences slots, pages and the rest of the token budget, best rank first. */
void sched_admit(sched *s, int64_t now_us);

/* ---- plan.c ---- */
/* Where the sequence's next chunk must end, and why. */
typedef enum stop_kind { STOP_POINT, STOP_PRESSURE_DROP, STOP_TURN } stop_kind;
typedef struct sched_stop {
    uint32_t at; // UINT32_MAX when nothing is ahead
    stop_kind kind;
    const sched_turn *turn; // turn of the rows before the stop
} sched_stop;

/* The next stop of a sequence that has computed `from` tokens. */
sched_stop sched_next_stop(const sched_seq *q, uint32_t from);
/* How many tokens the sequence can compute with what is left of the step. 0: it must wait. */
uint32_t sched_seq_chunk(const sched *s, const sched_seq *q);
/* The sequence wants logits, and the step has no rows of logits left. */
bool sched_seq_lacks_logits(const sched *s, const sched_seq *q);
/* The sequence will compute n tokens. Their cost is taken off the step's budget, and their rows of
 * logits and draws off what it may still ask for. */
void sched_seq_plan(sched *s, sched_seq *q, uint32_t n);
/* Sets aside the pages that the sequence's last share, planned or in flight, takes if a selection
 * follows it. */
void sched_reserve(sched *s, const sched_seq *q);
/* Sets aside pages anew: those of selections under way, and of those that follow the step in
 * flight, because others may have come to share what these keep. */
void sched_set_aside(sched *s);
/* Fills the next work, behind the step in flight if there is one. */
void sched_plan_step(sched *s, int64_t now_us);
/* Completes the next work with the deltas. It is in flight from now on, unless it is empty. */
const step_plan *sched_close_plan(sched *s);

/* ---- ahead.c: the next step, planned while one is in flight ---- */
/* Whether the next step may be planned behind the one in flight. */
bool sched_may_plan_ahead(sched *s);
/* The sequence is over: removes the rows that were planned ahead from its tables. False when memory
 * is out. */
bool sched_forget_ahead(sched *s, sched_seq *q);

/* ---- preempt.c ---- */
/* Takes slot and pages from the sequence, which waits in its old place once its tables are closed.
 * In this step it must not have got tokens or pages yet. */
void sched_preempt(sched *s, sched_seq *q);
/* Goes on with sequences that are being preempted, or whose tables come back. */
void sched_go_on(sched *s);
/* Takes slot and pages from the sequence, at any moment at which it takes no portions. Its tokens
 * will be computed again. */
void sched_replay(sched *s, sched_seq *q);
/* The sequence's tables have been copied back from the host tier, or are no longer needed. */
void sched_left_tier(sched *s, sched_seq *q);
/* Index in `running` of the sequence to preempt for the one at index `lacking`, which lacks pages,
 * or that one's own. running.n: none can go now. */
uint32_t sched_pick_victim(const sched *s, uint32_t lacking);
/* Preempts the idle sequence of the worst rank, among all idle ones or among those whose reader
 * sleeps. False when there is none. */
bool sched_preempt_idle(sched *s, bool all, int64_t now_us);
/* Pages are short: makes one sequence select under pressure retention after this step. False when
 * none can. */
bool sched_plan_pressure_drop(sched *s);
/* The sequence has no row in this step after all. */
void sched_forget_pressure_drop(sched *s, sched_seq *q);

/* ---- result.c ---- */
void sched_take_result(sched *s, const step_result *r);
/* Appends tokens that were not drawn to the request's only choice. */
void sched_take_forced(sched *s, sched_entry *e, const uint32_t *tokens, uint32_t n);
/* The parent's prompt is done and selected in: every choice goes on alone from its first token, at
 * once where there is a slot for it, else as a waiting sequence of the request's rank. invalid: its
 * pages are, so that all are replayed. */
void sched_fork(sched *s, sched_seq *parent, bool invalid);

/* ---- select.c: selections of retention, here or on other threads ---- */
/* Selects what stays of the sequence by its measures and gives up the rest, or makes a selection to
 * hand out, for which the sequence waits (q->selecting). If it fails, the sequence must be computed
 * again; only memory can be short, because pages were set aside. */
status sched_select(sched *s, sched_seq *q, const retention_policy *policy, uint32_t n_prompt,
                    const measure_result *measures);
/* Sets aside the pages that applying the sequence's selection takes. */
void sched_select_reserve(sched *s, const sched_seq *q);
/* The request's choices are forked once its selection is applied. */
void sched_select_then_fork(sched_seq *parent);
/* Makes the selection of the sequence, if it has one that was not handed out. */
void sched_select_settle(sched *s, sched_seq *q);
/* The sequence is over, so its selection will not be applied. */
void sched_select_drop(sched *s, sched_seq *q);
void sched_take_selection(sched *s, sched_selection *x);
/* Changes tables as selections say that were handed back: some in each call. */
void sched_apply_selections(sched *s);
void sched_selections_destroy(sched *s);
const char *sched_select_check(const sched *s);

/* ---- handover.c: prompts that go to another scheduler, or come from one ---- */
/* Whether the sequence's prompt can be taken over instead of computed. */
static inline bool sched_awaits_handed(const sched_seq *q)
{
    return q->entry->handed && q->state == SEQ_WAITING && !q->loading;
}
/* The prompt that the request takes over, or NULL where it does not suit the request, whose policy,
 * lengths and tokens are set. */
const sched_handed *sched_handed_for(const sched *s, const sched_request *r, const sched_entry *e);
/* Makes a parked sequence for it, and a load that fills it. */
status sched_handed_begin(sched *s, sched_seq *q);
/* The pages of a prompt that is taken over have been filled, or could not be. */
void sched_handed_end(sched *s, sched_seq *q, uint32_t parked, bool good);
/* Promises an export of a choice that ends finished, if it may hand its pages over. */
void sched_promise_export(sched *s, sched_seq *q);
/* The tables are closed: the export takes the parked pages, or is one of nothing when memory is
 * out, and the pages stay the sequence's. */
void sched_hand_over(sched *s, sched_seq *q);
void sched_take_export(sched *s, const sched_export *x);
void sched_exports_destroy(sched *s);
/* Tokens and kept tokens of the pages that are being handed over. */
void sched_exports_count(const sched *s, uint64_t *n_tokens, uint64_t *kept);

/* ---- load.c: blocks that are loaded instead of computed ---- */
/* Lists a load of all cells of a parked sequence. False when memory is out. */
bool sched_load_parked(sched *s, sched_seq *q, uint32_t parked, uint32_t n_cells);
/* Begins to load the blocks behind the hit of a sequence that has just been opened, up to its token
 * `to`, as far as they can be had. *began: the sequence has the pages and waits. STATUS_NO_MEMORY:
 * it must be computed again. */
status sched_load_begin(sched *s, sched_seq *q, uint32_t to, bool *began);
/* The sequence is over, so it waits no longer. */
void sched_load_drop(sched *s, sched_seq *q);
/* Whether a load is filling pages of the sequence, which may be over since the load began. */
bool sched_load_fills(const sched *s, const sched_seq *q);
void sched_take_load(sched *s, const sched_load *load, uint32_t n_loaded);
/* Goes on with the sequences whose loads have ended. */
void sched_apply_loads(sched *s);
void sched_loads_destroy(sched *s);
/* Takes what a choice has read, or all choices, out of the prefix cache and the store. */
void sched_distrust(sched *s, const sched_entry *e, uint32_t choice);
const char *sched_load_check(const sched *s);

/* ---- watch.c: rows that are measured for people who watch their sequence ---- */
/* The first choice that has not ended; before the choices are forked, choice 0. The request is
 * live. */
const sched_seq *sched_seen_choice(const sched_entry *e);
/* Lets the watched request that has waited longest, of those that draw in this step, measure where
 * the attention of its last row goes. */
void sched_watch_plan(sched *s, sched_work *w);
/* The request does not wait to be measured any more. */
void sched_watch_end(sched *s, sched_entry *e);
/* Keeps what was measured of the rows up to q->computed, before the sequence's tables change. */
void sched_watch_take(const sched *s, sched_seq *q, const step_seq *share,
                      const measure_result *measure);
/* ---- query.c ---- */
void sched_describe_seq(const sched *s, const sched_seq *q, sched_choice_info *out);
void sched_describe_session(const sched_entry *e, sched_choice_info *out);

#endif
