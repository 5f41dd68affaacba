/* The simulated world: a scheduler over a sim backend, and random requests made from a seed.
 *
 * What     shared by sim_test.c (events, steps, reports), sim_check.c (conditions on every step),
 *          sim_requests.c (making requests), sim_select.c and sim_disk.c.
 * Owner    a world owns everything in it.
 * Threads  one. */
#ifndef TESTS_SIM_SIM_WORLD_H
#define TESTS_SIM_SIM_WORLD_H

#include "tests/sim/sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIXES = 4, EVENTS_MAX = 512, CHOICES_MAX = SIM_CHOICES_MAX, BOOKS = 12 };
/* The model's context, and the most tokens of a request whose positions close up. */
enum { CONTEXT = 640, LONGEST = 3 * CONTEXT };
enum { NEVER_AGED = 1 << 30 }; // sched_options.max_passes

typedef struct world_choice {
    bool ended, done; // done: all tokens came, its END event is still to come
    bool in_flight;   // its END came while rows that count were in flight
    bool paused;
    bool due; // its last token came with the last result: it still runs, and one token goes on
    uint32_t n_tokens;    // received
    uint32_t stop_at;     // ends after this many tokens
    int64_t end_at;       // loop iteration
    int64_t resume_at;    // loop iteration
    uint32_t passed_over; // steps that ran a sequence of worse rank instead
    bool joined;          // one of its rows was planned since its request was forked into choices
    uint32_t *pressure_drops; // [LONGEST / 16 + 1] lengths at which choices were compressed
    uint32_t n_pressure_drops;
} world_choice;

/* A prompt that a request handed over, with K and V. */
typedef struct world_record {
    const struct world_request *from; // NULL = none
    pkv_image image;
    uint32_t n_tables, n_cells;
    uint32_t kept[SIM_GROUPS_MAX], slot_pages[SIM_GROUPS_MAX];
    uint32_t *bases[SIM_GROUPS_MAX], *slots[SIM_GROUPS_MAX];
    uint32_t *tokens; // of the prompt, and the first of the answer
    uint8_t *cells;
    uint64_t pages_dropped;
    bool budget_raised;
} world_record;

typedef struct world_request {
    sched_request given;   // as given to the scheduler
    sched_request request; // with the prompt that is computed: its method may have cut it
                           // given one
    sim_story story;
    uint32_t *prompt, *whole; // prompts of request and of given
    sim_answer answer;
    bool started, forked;
    uint32_t older, passed; // live requests before it on arrival; later ones that started first
    uint64_t fork_step;
    uint32_t live;
    uint32_t logit_rows;
    int64_t abort_at; // loop iteration, INT64_MAX = never
    uint32_t book;    // index of its session, BOOKS = none
    bool selecting;   // as after the last sched_step
    uint32_t loading; // choices that wait for a load, as after the last sched_step
    bool arriving;    // the tables of one come back in portions, as after the last sched_step
    bool exports;     // an export of it was promised
    /* The record that the request takes over, if any, and whether it is one of another prompt. */
    world_record record;
    pkv_image_table tables[SIM_GROUPS_MAX];
    sched_handed handed;
    bool foreign;
    world_choice choices[CHOICES_MAX];
} world_request;

/* A session, as the world expects it to be. */
typedef struct world_book {
    uint32_t n_turns; // 0 = no turn yet
    sim_turn turns[SIM_TURNS_MAX];
    uint32_t *tokens; // [LONGEST]
    uint32_t n_tokens;
    uint32_t *pressure_drops;
    uint32_t n_pressure_drops;
    retention_policy asked; // policy of the last turn
} world_book;

/* Counts of rare events over all worlds: a test run fails when one of them is too rare. */
typedef struct tally {
    uint64_t swaps_out, swaps_in;
    uint64_t refused; // of these, found no room there
    uint64_t pages_in, pages_retaken;
    uint64_t stored, continued, ignored, expired, sessions_swapped;
    uint64_t pressure_drops, kept_compared;
    uint64_t watched;                     // looks at requests with a row's attention
    uint64_t ahead, wasted, failed_ahead; // steps ahead, rows discarded, failures before them
    /* In steps ahead: shares of several rows, requests that start, and sequences that wait for what
     * follows their rows in flight while others go on. */
    uint64_t ahead_chunks, ahead_starts, left_out;
    uint64_t outlived; // shares that count although the step before theirs failed
    uint64_t passed;
    uint64_t readings;            // that got all their embeddings
    uint64_t readings_of_some;    // of these, by some layers
    uint64_t pooled;              // requests whose prompts were pooled
    uint64_t readings_preempted;  // of all, also of those that were aborted
    uint64_t some_preempted;      // of these, with some layers
    uint64_t costly;              // steps of several requests with rows that cost more than others
    uint64_t beyond;              // prompts longer than the context, whose positions close up
    uint64_t beyond_preempted;    // choices of these that were preempted
    uint64_t cuts;                // prompts that lost tokens before prefill
    uint64_t handed_out, dropped; // selections; of these, their choice ended first
    uint64_t joined_late;         // choices that waited for a slot and then computed one row
    uint64_t saved, loaded;       // blocks
    uint64_t short_loads;         // loads that lacked some of their blocks
    uint64_t orphan_loads;        // loads that came back when their request had ended
    uint64_t beside_loads;        // steps while loads were out
    uint64_t forced;              // tokens that were not drawn
    uint64_t exports, taken;      // prompts that were handed over, and taken over
    uint64_t takings_failed;      // prompts whose pages could not be filled
    uint64_t takings_orphaned;    // prompts whose request ended before its pages were filled
    uint64_t by_preset[64];
} tally;

/* A selection that runs on what would be another thread. */
typedef struct world_selection {
    sched_selection *selection;
    bool has_run;
    int64_t back_at; // loop iteration
} world_selection;

/* A load that is out. Its first n_good blocks will be in their cells, and others hold anything. */
typedef struct world_load {
    const sched_load *load;
    uint8_t *blocks; // [load->n_blocks]
    uint32_t n_good;
    bool written;
    int64_t back_at; // loop iteration
} world_load;

/* An export that is out. */
typedef struct world_export {
    const sched_export *export;
    bool ordered;
    uint64_t after;  // plans that must have been collected when it is read
    int64_t back_at; // loop iteration
} world_export;

/* A load, which is out, of a prompt that is taken over. */
typedef struct world_taking {
    const sched_load *load;
    uint32_t request;
    bool good, written;
    uint64_t after;  // plans that must have been collected when it is written
    int64_t back_at; // loop iteration
} world_taking;

enum { SELECTIONS_MAX = 64, LOADS_MAX = 64, EXPORTS_MAX = 64, TAKINGS_MAX = 64, RECORDS_MAX = 12 };

/* Prompts that are handed over and taken over. */
typedef struct world_hand {
    rng random;
    bool is_on;
    size_t cell_bytes;
    world_record records[RECORDS_MAX];
    world_export exports[EXPORTS_MAX];
    world_taking takings[TAKINGS_MAX];
    uint32_t n_records, n_exports, n_takings;
    uint32_t n_promised; // exports that are to come
} world_hand;

/* The content of a disk: blocks that left memory, and that may go at any time. */
typedef struct world_disk {
    rng random;
    bool is_on;
    size_t block_bytes;
    pkv_key *keys;   // [most]
    uint8_t *blocks; // [most]
    uint32_t n, most;
    world_load loads[LOADS_MAX];
    uint32_t n_loads;
} world_disk;

typedef struct world {
    uint64_t seed;
    rng random, lengths, looks;
    sched_options options;
    retention_policy pressure;
    uint32_t n_requests;
    uint32_t median_prompt, median_output, max_live;
    uint32_t abort_percent, pause_permille, fail_permille, flush_permille, arrival_percent;
    uint32_t retain_percent, session_percent;
    uint32_t check_every;

    uint32_t *prefixes[PREFIXES];
    world_request *requests; // [n_requests]; the id is the index
    world_book books[BOOKS];
    uint32_t first_live, n_arrived, n_live, n_refused;

    sched *s;
    backend b;
    sim_backend *sim;
    const step_plan *plans[2]; // in flight, the oldest first
    bool ahead[2];             // planned while another was in flight
    uint32_t n_plans;
    uint64_t n_submitted, n_collected; // plans
    uint64_t copies_after;             // plans that must be collected before copies which begin now
    const step_plan *failed; // the step before the oldest one, if that failed: shares of its
                             // sequences do not count
    sched_event events[EVENTS_MAX];
    uint32_t n_events;
    world_selection selections[SELECTIONS_MAX]; // handed out
    uint32_t n_selections;
    world_disk disk;
    world_hand hand;
    int64_t turn, now_us;

    uint64_t tokens, max_passed_over, fails, n_retained, n_aborted;
    tally *t;
} world;

#define FAIL(w, ...)                                                                               \
    do {                                                                                           \
        fprintf(stderr, "sim: seed %llu, turn %lld: ", (unsigned long long)(w)->seed,              \
                (long long)(w)->turn);                                                             \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)

static inline uint32_t between(world *w, uint32_t low, uint32_t high)
{
    return low + rng_below(&w->random, high - low + 1);
}
static inline bool chance(world *w, uint32_t per, uint32_t of)
{
    return rng_below(&w->random, of) < per;
}
/* True when its prompt is computed row by row, for logits or for scores. */
static inline bool wants_rows(const world_request *r)
{
    return r->request.want_logits || r->request.want_scores;
}
/* Whether the step has a share of the sequence that this share is of; no step has none. */
bool has_seq_of(const step_plan *plan, const step_seq *share);
/* Counts what a step planned ahead has, and what it leaves out of the one in flight. */
void tally_ahead(world *w, const step_plan *plan);
/* Notes that a choice of a forked request has a share, and counts those that waited for a slot. */
void tally_joined(world *w, const step_plan *plan, const step_seq *q);
/* Adds the counters of a world's scheduler. */
void tally_add(tally *t, const sched_stats *stats);
/* Prints the counts; false when one of them is below its minimum. */
bool tally_print(const tally *t, uint32_t n_requests);
/* ---- sim_check.c ---- */
/* Whether the plan has a share of the choice, or of the parent before its fork. */
bool in_plan(const step_plan *plan, const world_request *r, uint32_t c);
/* Checks of the plan that sched_step returned: that nobody starves, that requests start in order,
 * and, where it is submitted, that its shares are as they may be. */
void check_progress(world *w, const step_plan *plan);
void check_order(world *w, const step_plan *plan);
void check_plan(world *w, const step_plan *plan);
/* ---- sim_select.c ---- */
void add_event(world *w, sched_event event); // for the next sched_step
/* Takes the selections that the last sched_step made, and looks which requests wait for theirs. */
void take_selections(world *w);
/* Gives those back whose time has come. */
void give_selections(world *w);
/* Whether some sequence waits for a selection, or has ended while one is out. */
bool some_select(const world *w);
/* ---- sim_disk.c ---- */
/* Some worlds with one step in flight have a disk, which an engine too has with such backends
 * alone: sets it in the options, and makes it ready once there is a backend. */
void disk_choose(world *w);
void disk_create(world *w);
void disk_destroy(world *w);
/* After a sched_step and before its submit: takes blocks that left memory, and looks which requests
 * wait for loads. */
void disk_look(world *w);
/* Begins the loads that the scheduler made. */
void disk_begin_loads(world *w);
/* Gives those back whose time has come. */
void disk_give_loads(world *w);
/* Forgets all blocks. */
void disk_flush(world *w);
bool some_load(const world *w);
/* ---- sim_hand.c ---- */
/* In some worlds with one step in flight prompts are handed over. */
void hand_choose(world *w);
void hand_create(world *w);
void hand_destroy(world *w);
/* Perhaps makes the request one that hands its prompt over, or one that takes a prompt over. */
void hand_make(world *w, world_request *r);
/* An export of the request will follow. */
void hand_promise(world *w, world_request *r);
/* Takes the exports that the last sched_step made. */
void hand_look(world *w);
/* The moves before the exports were made, so they may be read. */
void hand_order_exports(world *w);
void hand_begin_load(world *w, const sched_load *load);
/* Gives exports and loads back whose time has come. Returns how many requests got their first token
 * with that, and sets which [TAKINGS_MAX]. */
uint32_t hand_give(world *w, uint32_t *requests);
/* Whether pages are held for an export or a prompt that is taken over. */
bool some_hand(const world *w);
/* A log-normal length around the median, within [1, most]. */
uint32_t length(world *w, uint32_t median, uint32_t most);

/* A policy for compression under pressure. */
retention_policy random_pressure(world *w);
/* Fills in the request with this id. */
void make_request(world *w, world_request *r, uint32_t id);
/* Computes the expected answer, when the scheduler has reported how it resumes the session. */
void make_answer(world *w, world_request *r, const char *note);
/* Records that a choice was compressed at this length. */
void note_pressure_drop(world *w, world_request *r, uint32_t choice, uint32_t at);
/* The session that the request left, if any, has n_tokens. 0: unknown. */
void note_session(world *w, const world_request *r, uint32_t n_tokens);

#endif
