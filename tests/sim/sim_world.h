/* The simulated world: what a seed makes of it, and the requests that come to it.
 *
 * What     shared by sim_test.c (events, steps, checks) and sim_requests.c (what is asked for).
 * Owner    a world owns everything in it.
 * Threads  one. */
#ifndef TESTS_SIM_SIM_WORLD_H
#define TESTS_SIM_SIM_WORLD_H

#include "tests/sim/sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIXES = 4, EVENTS_MAX = 512, CHOICES_MAX = SIM_CHOICES_MAX, BOOKS = 12 };

typedef struct world_choice {
    bool ended, done; // done: all tokens came, its END is on its way
    bool in_flight;   // its END came while rows that count were with the backend
    bool paused;
    bool due; // its last token came with the last result: it is running, and one token goes on
    uint32_t n_tokens;    // received
    uint32_t stop_at;     // ends after that many
    int64_t end_at;       // turn
    int64_t resume_at;    // turn
    uint32_t passed_over; // steps that ran somebody of worse rank instead
    bool joined;          // a row of it has been planned since its request's choices were born
    uint32_t *presses;    // [max_model_len / 16 + 1] lengths of choices under pressure
    uint32_t n_presses;
} world_choice;

typedef struct world_request {
    sched_request given;   // what the scheduler is told
    sched_request request; // with the prompt that is computed: a method may cut what was given
    sim_story story;
    uint32_t *prompt, *whole; // of request, of given
    sim_answer answer;
    bool started, born;
    uint32_t older, passed; // live ones before it when it came; later ones that started first
    uint64_t born_step;
    uint32_t live;
    uint32_t logit_rows;
    int64_t abort_at; // turn, INT64_MAX = never
    uint32_t book;    // of its session, BOOKS = none
    world_choice choices[CHOICES_MAX];
} world_request;

/* What the world knows of a session. */
typedef struct world_book {
    uint32_t n_turns; // 0 = nothing
    sim_turn turns[SIM_TURNS_MAX];
    uint32_t *tokens; // [max_model_len]
    uint32_t n_tokens;
    uint32_t *presses;
    uint32_t n_presses;
    retention_policy asked; // by the last turn
} world_book;

/* What all worlds got to do with the rare things: none of them may be rare. */
typedef struct tally {
    uint64_t swaps_out, swaps_in;
    uint64_t refused; // found no room there
    uint64_t pages_in, pages_retaken;
    uint64_t stored, continued, ignored, expired, sessions_swapped;
    uint64_t presses, kept_compared;
    uint64_t ahead, wasted, failed_ahead; // steps planned ahead, rows in vain, failures behind them
    uint64_t passed;
    uint64_t cuts;        // prompts that lost tokens before they were computed
    uint64_t joined_late; // choices that waited for a slot, and then had one row to compute
    uint64_t by_preset[64];
} tally;

typedef struct world {
    uint64_t seed;
    rng random;
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
    uint32_t n_plans;
    bool lost; // the step before the oldest one failed: nothing counts that was planned ahead of it
    sched_event events[EVENTS_MAX];
    uint32_t n_events;
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
/* Its prompt is computed row by row, for logits or for scores. */
static inline bool wants_rows(const world_request *r)
{
    return r->request.want_logits || r->request.want_scores;
}
/* Adds the counts of a world's scheduler. */
void tally_add(tally *t, const sched_stats *stats);
/* Prints the counts; false when one of them is below its least. */
bool tally_tell(const tally *t, uint32_t n_requests);
/* Log-normal around the median, within [1, most]. */
uint32_t length(world *w, uint32_t median, uint32_t most);

/* A policy for compression under pressure. */
retention_policy random_pressure(world *w);
/* Fills in the request of that id. */
void make_request(world *w, world_request *r, uint32_t id);
/* Once the scheduler has said what it makes of its session. */
void make_answer(world *w, world_request *r, const char *said);
/* A choice was compressed at that length. */
void note_press(world *w, world_request *r, uint32_t choice, uint32_t at);
/* Its session, if it left one, has so many tokens. 0: nobody knows. */
void note_session(world *w, const world_request *r, uint32_t n_tokens);

#endif
