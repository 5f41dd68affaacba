/* The state behind scheduler.h: what its files share.
 *
 *   request   what was asked for; its choices are sequences, in one block of memory with all they
 * will need sequence  one line of tokens. Until the prompt's end a request runs as its first
 * sequence, the carrier, which draws the first token of every choice; then the others are forked
 * from it ("born") running   sequences with a slot (a sequence number of the tables), best rank
 * first waiting   sequences without one, best rank first
 *
 * Rank: (priority, arrival, order of being added, choice). Pages are touched only between steps:
 * what ends while a step is in flight is marked and given up when its result is in, since the
 * plan's deltas belong to the backend till then.
 */
#ifndef SCHEDULER_SCHED_INTERNAL_H
#define SCHEDULER_SCHED_INTERNAL_H

#include "scheduler/scheduler.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct sched_seq sched_seq;
typedef struct sched_entry sched_entry;

/* A choice of retention as it was made: a replay applies it again and measures nothing. */
typedef struct drop_record {
    uint32_t length;        // logical length at which it was made
    uint32_t words;         // of each group's row of bits
    uint32_t pages_dropped; // over all groups; 0 = everything stayed
    uint32_t pages_kept;    // over all groups, after the drop
    uint64_t *keep;         // [groups, words]
} drop_record;

typedef enum seq_state { SEQ_UNBORN, SEQ_WAITING, SEQ_RUNNING, SEQ_GONE } seq_state;

struct sched_seq {
    sched_entry *entry;
    uint32_t choice;
    seq_state state;
    bool ended, paused;
    int64_t paused_us;  // since when
    bool needs_open;    // the backend has to be told how it samples
    uint32_t slot;      // while running
    uint32_t swap;      // while waiting: where its pages are in the host tier, 0 = nowhere
    double swap_kept;   // tokens kept there
    uint32_t planned;   // tokens in this step
    uint32_t n_tokens;  // known: the prompt and what was sampled
    uint32_t computed;  // of which have K and V
    uint32_t furthest;  // most that were ever computed: below it is a replay
    uint32_t *tokens;   // [entry->n_prompt + entry->max_new_tokens]
    drop_record *drops; // [entry->max_drops]
    uint32_t n_drops;
    uint32_t next_drop; // first record that the tables have not seen since they were opened
    uint32_t preemptions;
    uint64_t pages_dropped;
    bool budget_raised;
    int64_t scoring_us;
    uint64_t inherited_pages; // of pages_dropped and scoring_us: another choice counts them
    int64_t inherited_us;
    sched_choice_info final; // as it ended
};

struct sched_entry {
    uint64_t id;
    int32_t priority;
    uint64_t arrival, serial;
    int64_t arrival_us, first_planned_us; // the latter -1 before
    uint64_t salt;
    uint32_t n_prompt, max_new_tokens, n, max_drops;
    uint32_t live; // choices that have not ended
    uint32_t held; // sequences that are running
    bool born;
    bool want_logits, has_penalties;
    uint32_t logits_sent;   // prompt rows
    uint32_t cached_tokens; // prefix hit of the first admission
    sample_params params;
    retention_policy policy;
    measure_spec measure;
    sched_seq *seqs; // [n]
    sched_entry *next_ended;
};

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

    sched_list running, waiting;
    uint32_t *free_slots; // [max_seqs], the first n_free_slots
    uint32_t n_free_slots;
    uint32_t reserved_slots; // for the children of running carriers
    bool has_ended;          // some running sequence is to be given up

    bool in_flight;
    step_plan plan, idle_plan;
    uint32_t n_preempted;  // in this step
    uint32_t logit_rows;   // that this step may still ask for
    step_seq *plan_seqs;   // [max_seqs]
    sched_seq **planned;   // [max_seqs] whose share plan_seqs[i] is
    step_open *opens;      // [max_seqs]
    uint32_t *plan_tokens; // [prefill_chunk + max_seqs]

    sched_stats stats; // its counters
};

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
/* It is not to be planned: its reader is slow, or it has all its tokens and awaits its END. */
bool sched_seq_is_idle(const sched_seq *q);
static inline uint32_t pages_of(const sched *s, uint32_t tokens)
{
    return tokens / s->page_tokens + (tokens % s->page_tokens != 0);
}

/* ---- requests.c: memory of requests, lists, slots ---- */
/* NULL when the queue is full or memory is out. */
sched_entry *sched_entry_create(sched *s, const sched_request *r, int64_t now_us);
void sched_entries_destroy(sched *s);
sched_entry *sched_entry_find(const sched *s, uint64_t id);
/* Forgets the requests that ended in an earlier call. */
void sched_entries_forget(sched *s);
void sched_entry_end(sched *s, sched_entry *e, uint32_t choice);
void sched_entry_pause(sched_entry *e, uint32_t choice, bool paused, int64_t now_us);
void sched_list_insert(sched_list *l, sched_seq *q);
void sched_list_remove(sched_list *l, sched_seq *q);
/* Gives a sequence a slot; some is free. */
void sched_seq_start(sched *s, sched_seq *q);
/* Closes its tables, unless they were swapped out, and takes its slot back. */
void sched_seq_stop(sched *s, sched_seq *q, seq_state state);
/* Gives up what ended; not while a step is in flight. */
void sched_reap(sched *s);

/* ---- admit.c ---- */
/* Waiting sequences get slots, pages and the rest of the token budget, in order. */
void sched_admit(sched *s, uint32_t budget, int64_t now_us);

/* ---- plan.c ---- */
/* The next logical length at which pages may be dropped, UINT32_MAX when none will; *recorded says
 * whether the choice there was made before. */
uint32_t sched_seq_next_point(const sched_seq *q, bool *recorded);
/* How many tokens the sequence computes in this step when `budget` are left; 0: it has to wait. */
uint32_t sched_seq_chunk(const sched *s, const sched_seq *q, uint32_t budget);
/* It wants logits, and the step has none left to give. */
bool sched_seq_lacks_logits(const sched *s, const sched_seq *q);
/* It will compute so many: the logits it wants of them are taken off the step's. */
void sched_seq_plan(sched *s, sched_seq *q, uint32_t n);
void sched_plan_step(sched *s, int64_t now_us);

/* ---- preempt.c ---- */
/* Gives up slot and pages; the sequence waits in its old place. In this step it got no tokens and
 * no pages yet. */
void sched_preempt(sched *s, sched_seq *q);
/* Likewise, at any moment; its tokens will be computed again. */
void sched_replay(sched *s, sched_seq *q);
/* Its tables are back, or nobody needs them any more. */
void sched_left_tier(sched *s, sched_seq *q);
/* Index in `running` of the one to suffer next. */
uint32_t sched_pick_victim(const sched *s);
/* Preempts the worst of those that are idle: of all, or of those whose reader sleeps; false when
 * there is none. */
bool sched_preempt_idle(sched *s, bool all, int64_t now_us);

/* ---- result.c ---- */
void sched_take_result(sched *s, const step_result *r);

/* ---- query.c ---- */
void sched_describe_seq(const sched *s, const sched_seq *q, sched_choice_info *out);

#endif
