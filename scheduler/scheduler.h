/* scheduler: who runs in the next step, on which pages.
 *
 * What     a pure state machine. sched_step takes events and returns the next step plan: running
 *          sequences first, then waiting ones by arrival or by (priority, arrival), with a bound on
 *          how many pass the one that has waited longest. It has one token budget for decodes and
 *          prefill chunks, admits by physical pages, applies retention at its points, and preempts
 *          when pages are short, by swap to the host tier or by recompute.
 * Owner    the scheduler owns its pkv and the plan; it copies what it needs of requests.
 * Threads  one thread (the engine's). Only sched_check may be called by any thread.
 * Units    tokens, pages, microseconds of the caller's clock (the scheduler has none).
 * Errors   sched_check says why a request can never run. sched_step itself cannot fail: it uses no
 *          clock, socket or lock, and in steady state no heap. */
#ifndef SCHEDULER_SCHEDULER_H
#define SCHEDULER_SCHEDULER_H

#include "backend/backend.h"
#include "paged_kv/map.h"

typedef struct sched sched;
/* A selection of what stays of one sequence, which may be computed on any thread. */
typedef struct sched_selection sched_selection;

/* The retention policy under which a sequence grows to length `end`. A request has one turn. If it
 * continues a session, it also has the session's earlier turns, and a replay goes through them all:
 * measures depend on the tokens alone, so every selection comes out as it did. */
typedef struct sched_turn {
    uint32_t n_prompt;
    uint32_t end; // logical length where the next turn began; UINT32_MAX for the last turn
    retention_policy policy;
} sched_turn;

enum { SCHED_MAX_TURNS = 64 };

/* A session without its pages: all that its state is made of again. */
typedef struct sched_saved {
    uint64_t key[2], owner; // as sched_request has them
    uint64_t salt;          // the request's, mixed with sched_options.salt
    const sched_turn *turns;
    const uint32_t *pressure_drops; // lengths at which pressure retention selected, ascending
    const uint32_t *tokens;
    uint32_t n_turns, n_pressure_drops, n_tokens;
} sched_saved;

/* The order in which requests start. */
typedef enum sched_policy {
    SCHED_FCFS,     // by arrival; sched_check refuses priorities other than 0
    SCHED_PRIORITY, // by priority, the lowest first, then by arrival
} sched_policy;

typedef struct sched_options {
    pkv_geometry geometry;
    uint32_t n_pages;       // page 0 included
    uint32_t n_host_pages;  // of the host tier (backend_info); 0 = every preemption is a replay
    uint32_t max_seqs;      // sequences running at once (--max-batch)
    uint32_t prefill_chunk; // tokens of one prompt in one step; a step's budget is this + max_seqs
    uint32_t max_model_len; // positions of a sequence; prompt + output where it takes one for each
    /* Prompt and output, over the choices of a request, where the positions that a selection leaves
     * close up, so that a sequence takes fewer than it has tokens. Less than max_model_len means
     * max_model_len. */
    uint32_t max_logical_len;
    uint32_t max_requests;   // waiting and running: the queue's limit
    uint32_t max_logit_rows; // most rows with logits or scores in a step (backend_info); 0 = all
    /* The cost of a prompt row with logits that are computed, in hundredths of a plain row
     * (backend_info); less than 100 means 100. Such rows take this much of a step's budget, so the
     * step is as long as one of plain rows. Two things exceed it: a request beside which no other
     * runs or waits is computed in whole chunks, and the rows of a measured window are never
     * divided. */
    uint32_t logit_row_cost;
    uint32_t lacks;         // measures that the backend cannot compute (backend_info)
    uint32_t retrieves;     // what the backend can do of retrieval (backend_info)
    uint64_t note_bytes;    // most that it keeps for requests beside pages (backend_info)
    uint32_t max_in_flight; // from backend_info; 0 means 1, more than 2 means 2
    sched_policy policy;
    /* Ageing under SCHED_PRIORITY: once this many later requests have started before the request
     * whose prompt has waited longest, that request goes before all others. So a request with p
     * older ones before it is passed at most (p + 1) * max_passes times. 0 = 8. */
    uint32_t max_passes;
    /* A selection of retention among at least so many slots, over all tables, is handed out
     * (sched_next_selection) where the backend lets its measures be held; 0 = none. */
    uint64_t hand_out_slots; // below 2^60
    bool prefix_cache;
    uint64_t salt;          // backend_info.identity
    uint32_t max_sessions;  // idle sessions kept at once; 0 = sessions are ignored
    int64_t session_ttl_us; // an idle session is forgotten after this time; 0 = none is
    /* A session was stored: what to keep of it elsewhere, if it is to outlive the scheduler. Valid
     * during the call. NULL: nothing is kept. */
    void (*on_session)(void *ctx, const sched_saved *saved);
    void *on_session_ctx;
    const retention_policy *pressure; // compress before preempt (copied): must drop whole pages and
                                      // have no running sums; NULL = off
    const allocator *alloc;
    void (*on_block)(void *ctx, const pkv_block_event *event);
    void *on_block_ctx;
    /* Whether a store outside of the pool, such as a disk, has the block's K and V, so that they
     * may be loaded (sched_next_load). It answers at once. NULL: there is no store. Used if
     * prefix_cache is set and lost_most is not 0. */
    bool (*has_block)(void *ctx, const pkv_key *key);
    /* Makes the store forget blocks, also those that wait to be written. */
    void (*forget_blocks)(void *ctx, const pkv_key *keys, uint32_t n);
    void *has_block_ctx; // passed to has_block and forget_blocks
    uint32_t lost_most;  // blocks that sched_take_lost tells of at most
} sched_options;

/* Checks that sched_options.pressure may be this policy. */
status sched_check_pressure(const retention_policy *policy, error *err);
status sched_create(const sched_options *options, sched **out, error *err);
void sched_destroy(sched *s);

/* A prompt that another scheduler has computed and selected in: what its sequence holds. */
typedef struct sched_handed {
    pkv_image image;        // fits (pkv_image_fits), and its length is n_tokens
    const uint32_t *tokens; // [n_tokens], without what the policy cuts off
    uint32_t n_tokens;
    uint32_t first_token; // drawn there
    uint64_t pages_dropped;
    bool budget_raised;
    /* K and V differ by rounding from those computed here: the prefix cache gets none. */
    bool foreign;
} sched_handed;

typedef struct sched_request {
    uint64_t id;             // unique among live requests
    int32_t priority;        // under SCHED_PRIORITY lower runs first
    uint64_t arrival;        // among equals the lower runs first, then the one added first
    const uint32_t *prompt;  // copied, without what the policy cuts off
    uint32_t n_prompt;       // >= 1
    uint32_t max_new_tokens; // >= 1
    bool open_length;        // the client gave none: messages do not name it
    uint32_t n;              // choices, 1 .. max_seqs
    uint64_t salt;           // cache_salt of the caller; mixed with the options' salt
    bool hidden;             // on_block does not get the tokens of its blocks
    bool masked;             // sched_set_mask follows each draw: none is planned before the last
    sample_params params;    // arrays copied
    retention_policy policy;
    /* How rows of generated tokens read; block_tokens 0: everything. What they compute is
     * published to no other request, and such a request has no session. */
    retrieval_spec retrieval;
    bool want_logits; // every prompt row's logits; such a request takes no prefix hit
    /* Without want_logits: scores of every prompt row, as step_seq asks for them. Such a request
     * takes no prefix hit either. */
    uint32_t want_scores;
    /* step_pooling, over the prompt's rows: the result of the share with the last row has
     * POOLING_LAST; that of each share POOLING_SUM, each row once and in order, and such a request
     * takes no prefix hit. */
    uint32_t pooling;
    /* The session that the request continues and stores its pages under: stands for (API key, cache
     * salt, id). {0, 0} = none. */
    uint64_t session[2];
    /* The record of that session (on_session), for when the scheduler has it no more: the
     * request goes on from its tokens, whose K and V the prefix cache or a store has, or which are
     * computed again. NULL = nothing. Valid while the event is taken. */
    const sched_saved *saved;
    /* A reading (n_embeds > 0): the result has an embedding of each prompt row, once and in order,
     * as step_seq.embeds and n_layers say, and nothing is drawn. Behind its last row the request
     * waits for its END. The prefix cache gives it nothing and gets nothing of it. It has n 1 and
     * neither logits, scores, retrieval nor a session. */
    const embed_head *embeds; // [n_embeds], borrowed until the request is forgotten
    uint32_t n_embeds;
    uint32_t n_layers; // of a reading alone; it takes pages for these layers, 0 = all
    /* The pages go to another scheduler (sched_next_export) when the only choice finishes with its
     * first token; see sched_hands_over. Such a request has no session. */
    bool hands_over;
    /* The prompt is taken over instead of computed: once there are pages for it, sched_next_load
     * gives their cells out, and with LOADED the first token is the choice's. Dropped, so that the
     * prompt is computed, where it does not suit the request, or where the request's method cannot
     * leave such an image. NULL = nothing. Borrowed until its load was fetched, rows of the request
     * were computed, or the request has ended. */
    const sched_handed *handed;
    /* Stands for the API key. Room is made by the longest idle session of the owner that has most,
     * so that no owner pushes out the few of another. */
    uint64_t owner;
} sched_request;

/* Whether the request can ever run here: checks lengths, n, window, budget, and its peak of pages
 * against the whole pool. The peak: tables grow from one retention point to the next, where they
 * shrink to what the policy promises to keep; a selection may take fresh pages before it gives any
 * up. */
status sched_check(const sched *s, const sched_request *r, error *err);

/* Pages of all tables that a request takes when it runs alone, as sched_check counts them. */
typedef struct sched_need {
    uint64_t peak;      // most at any moment: the least pool in which it can run
    uint64_t kept;      // after its prompt's selection
    uint64_t most;      // from then on
    uint32_t positions; // that its tokens take, at most: one more than the largest
} sched_need;

/* n_layers as in sched_request. */
sched_need sched_need_of(const pkv_geometry *geometry, uint32_t n_layers,
                         const retention_policy *policy, uint32_t n_prompt,
                         uint32_t max_new_tokens);

/* NULL where requests of this policy can hand their prompt over or take one over, else why not, as
 * the rest of a sentence about it. */
const char *sched_hands_over(const retention_policy *policy);

/* Blocks of one sequence, one behind the other, that are to be loaded into its pages; or all of a
 * prompt that a request takes over. */
typedef struct sched_load {
    const pkv_key *keys;   // [n_blocks]; NULL: a prompt taken over, which counts as one
    const uint32_t *cells; // [n_blocks, pkv_groups]: the cells that they are loaded into
    uint32_t n_blocks;
    uint32_t n_cells; // of a prompt taken over, in the order of pkv_list_cells
    uint64_t request; // of a prompt taken over
} sched_load;

/* A prompt that is handed over, with K and V in the pool's cells until the event EXPORTED. Where
 * memory was out, all but the request is 0. Any thread may read it. */
typedef struct sched_export {
    uint64_t request;
    pkv_image image;        // NULL tables: memory was out
    const uint32_t *tokens; // [n_tokens] of the prompt, then the first token
    uint32_t n_cells, n_tokens;
    uint64_t pages_dropped;
    bool budget_raised;
} sched_export;

/* ---- what happened --------------------------------------------------------------------------- */

enum { SCHED_ALL_CHOICES = UINT32_MAX };

/* The most that one call should take in, in ADD events and in tokens of their prompts: that takes
 * about a millisecond. The caller keeps the others for its next call, so that running sequences
 * never wait for the arrival of thousands. */
enum { SCHED_ADDS_MOST = 256, SCHED_ADD_TOKENS_MOST = 1 << 17 };

typedef struct sched_event {
    enum {
        SCHED_ADD, // a request that passed sched_check. The engine keeps it from exceeding
                   // max_requests (STATUS_QUEUE_FULL). sched_describe does not know it afterwards
                   // if it could not be taken in (queue full, memory out)
        SCHED_RESULT, // the result of the oldest plan in flight
        SCHED_END,    // a choice is finished or aborted, at any moment: its pages are given up at
                      // once, or with the RESULT of the last step in flight that has rows of it.
                      // Unknown ids are ignored
        SCHED_PAUSE,  // its reader is slow: the choice stays but is not planned
        SCHED_RESUME,
        SCHED_SELECTED, // a selection that was handed out has been run
        SCHED_LOADED,   // a load that was handed out has ended
        SCHED_EXPORTED, // the K and V of an export have been read
        SCHED_FORCED,   // tokens behind the last one of a choice, which nobody has to draw: its
                        // request has one choice, and none of its rows is in flight
        SCHED_FLUSH,    // forget every cached block (pkv_flush), at any moment
        SCHED_FORGET,   // forget a session; a request that has it goes on and leaves none
    } kind;
    uint64_t request;    // END, PAUSE, RESUME, FORCED
    uint64_t session[2]; // FORGET
    uint32_t choice;     // or SCHED_ALL_CHOICES
    bool finished;       // END: the choice was not aborted, so its session may be kept
    /* END: the model's numbers for the choice are not finite. K and V that the choice has read
     * leave the prefix cache (pkv_distrust) and the store. */
    bool distrusted;
    const sched_request *add;  // ADD; valid during the call
    const step_result *result; // RESULT
    const uint32_t *forced;    // FORCED: [n_forced]; the request has room for one more behind them
    uint32_t n_forced;
    sched_selection *selection;   // SELECTED
    const sched_load *load;       // LOADED
    const sched_export *exported; // EXPORTED
    uint32_t n_loaded;            // LOADED: its first blocks that are in their cells
} sched_event;

/* Takes events in order, then plans. While a step is in flight (its RESULT not yet given) the plan
 * is empty; with max_in_flight 2 and one step in flight, the plan is the step after it, without the
 * sequences that need its result (ahead.c). A plan without sequences and deltas (sched_plan_empty)
 * means: there is nothing to do until the next event. */
const step_plan *sched_step(sched *s, int64_t now_us, const sched_event *events, size_t n_events);
static inline bool sched_plan_empty(const step_plan *p)
{
    return p->n_seqs == 0 && p->deltas.n_words == 0 && p->deltas.n_moves == 0 && p->n_opens == 0;
}

/* Gives a share of the plan that the last sched_step call returned a mask for its draws; it is
 * borrowed until the plan's result was given. */
void sched_set_mask(sched *s, uint32_t share, const uint32_t *mask, uint32_t n_words);

/* The next selection that the last sched_step call made and leaves to its caller; NULL = no more.
 * It is fetched after every call, before the next submit to the backend, is run once, on any
 * thread, and comes back with an event SELECTED, also when its sequence has ended; so do all before
 * sched_destroy. Meanwhile the sequence has no share of a step. Its results do not depend on when
 * the event comes. An END for it aborts, whatever `finished` says. */
sched_selection *sched_next_selection(sched *s);
uint64_t sched_selection_request(const sched_selection *x); /* request id */
/* Selects. Reads the measures and the sequence's tables, which no call of sched_step changes
 * before the event. */
void sched_selection_run(sched_selection *x);
/* Lets every selection that is handed out run to its end at once, with no result: before
 * sched_destroy. */
void sched_cancel_selections(sched *s);

/* The next load; NULL = no more. Its cells may be written once the moves of the last plan are made,
 * and until its event LOADED is given, which every load that was fetched gets, also when its
 * sequence has ended. Meanwhile the sequence has no share of a step. */
const sched_load *sched_next_load(sched *s);
/* The next prompt that is handed over; NULL = no more. To be fetched after every call: one follows
 * each end that was described as hands_over, in the same call or, where long tables are parked in
 * portions, in a later one. Its cells may be read once the moves of the last plan are made. Its
 * event EXPORTED must be given, except before sched_destroy. */
const sched_export *sched_next_export(sched *s);
/* Writes the export's cells from `first` on, at most n, in the order of pkv_list_cells: how many.
 * On any thread. */
uint32_t sched_export_cells(const sched *s, const sched_export *x, uint32_t first, uint32_t n,
                            uint32_t *to);
/* Blocks that left the prefix cache in the last sched_step call (pkv_take_lost): to be read before
 * its plan is submitted. */
pkv_lost sched_take_lost(sched *s);
/* Blocks that are in the prefix cache, some with each call (pkv_tell_cached). No step is in
 * flight. */
pkv_lost sched_tell_cached(sched *s, uint32_t *cursor);

/* The request that the last sched_step call would have planned if there had been memory for its
 * lists; NULL = none. The scheduler tries again in the next step, but when the plan is empty, there
 * may be no further event that causes that step. */
const uint64_t *sched_starved(const sched *s);

/* ---- what can be asked ----------------------------------------------------------------------- */

/* A choice for its report: alive, or as it was when it ended in the last sched_step call. (While a
 * step is in flight its tables already count that step's tokens; those of a sequence that ended do
 * not count tokens that were planned ahead.) */
typedef struct sched_choice_info {
    uint32_t prompt_tokens; // tokens of the client's prompt, also those that its method cut
    uint32_t output_tokens;
    uint32_t cached_tokens; // prefix hit when it was first admitted
    uint32_t preemptions;
    retention_report
        report;        // kept_json malloc'd when the policy asks for positions: the caller frees it
    bool lacks_kept;   // memory was out for kept_json
    bool hands_over;   // it has ended, and an export of it follows
    bool selecting;    // its selection is under way: the report is of the tables before it, or of
                       // those that it has changed so far
    bool loading;      // it waits for blocks that are being loaded, which count as tokens already
    bool arriving;     // its tables come back, or its hit of the cache is taken, in portions
    int64_t queued_us; // arrival to first planned
    /* The part of the report from before the request's choices were forked, which the report of the
     * first choice holds too. */
    uint64_t inherited_pages;
    int64_t inherited_us; // scoring time
    /* The reading of its rows by retrieval; a row counts once, however often it was computed. */
    retrieval_totals reading;
} sched_choice_info;

/* How many of a request's prompt tokens are computed. It never falls: a replay does not count.
 * False when all of them are, or the request is unknown. */
bool sched_prompt_progress(const sched *s, uint64_t request, uint32_t *computed,
                           uint32_t *n_prompt);
/* STATUS_NO_MEMORY: only kept_json is missing. STATUS_NOT_FOUND: *out is untouched. */
status sched_describe(const sched *s, uint64_t request, uint32_t choice, sched_choice_info *out);

/* A request as it is now, for people to see: its first choice that has not ended. */
typedef struct sched_sight {
    uint32_t choice, n_choices; // before the choices are forked, choice 0 stands for all
    bool running;               // its tables are on the device, and `map` shows them
    bool swapped;               // they are in the host tier; else it waits to be computed
    const char *method;         // static
    uint32_t prompt_tokens, output_tokens;
    uint32_t cut;       // the prompt's first tokens that its method cut: none of the map's columns
    double kept_tokens; // that attention still reads
    uint64_t pages_dropped;
    const retrieval_totals *reading; // of its rows; NULL when it reads everything
    /* Where the attention of the last row that was measured went (sched_watch), of whichever choice
     * it was then; NULL: none was yet. */
    const pkv_mass_map *attention;
    uint32_t attention_at; // tokens before that row, with what the method cut
    /* The measure that the backend lacks and would need (retention_measure_name), or NULL. */
    const char *unmeasured;
} sched_sight;

/* False when the request is unknown or has ended. *map is untouched unless it runs. The sight is
 * valid until the next sched_step. */
bool sched_draw_map(const sched *s, uint64_t request, sched_sight *out, pkv_map *map);
/* Somebody watches the request, if it is known and runs: one of its next rows that draw a token
 * has its attention mass measured, for later sights. That changes nothing that is computed, and
 * takes at most about one part in SCHED_WATCH_SHARE of this thread's time, however many are
 * watched. */
enum { SCHED_WATCH_SHARE = 100 };
void sched_watch(sched *s, uint64_t request);
/* Whether this share of the oldest step in flight is measured for a map of pages alone, and no
 * selection reads its measures. The step's result is not yet an event. */
bool sched_measured_for_map(const sched *s, uint32_t share);

/* Everything that a scheduler counts from its creation on. One row is X(field, metric, help). This
 * list makes the fields of sched_stats, the sums of sched_add_counters and the rows of the
 * Prometheus page, so a new counter is one line here. `metric` is the name on that page without its
 * prefix. It is NULL for a counter that has no row of its own: the engine counts its steps itself,
 * and swaps are one metric with a label. */
#define SCHED_COUNTERS(X)                                                                          \
    X(steps, NULL, "Steps planned.")                                                               \
    X(steps_ahead, NULL, "Steps planned while the one before was in flight.")                      \
    X(preemptions, "num_preemptions_total",                                                        \
      "Sequences that gave up their pages, to be swapped or replayed.")                            \
    X(prompt_tokens, "prompt_tokens_total",                                                        \
      "Prompt tokens of requests taken in, without what truncate cuts.")                           \
    X(prompt_hit_tokens, NULL, "Those of them that the prefix cache had in memory.")               \
    X(prompt_loaded_tokens, NULL, "Those of them that it had on disk.")                            \
    X(prompt_handed_tokens, NULL, "Those of them that another server has computed.")               \
    X(generated_tokens, "generation_tokens_total", "Tokens generated.")                            \
    X(forced_tokens, "forced_tokens_total",                                                        \
      "Generated tokens that the form of the answer forced, so that none was drawn.")              \
    X(replayed_tokens, "replayed_tokens_total", "Tokens computed again after preemptions.")        \
    X(swaps_out, NULL, "Preempted sequences copied to the host tier.")                             \
    X(swaps_in, NULL, "Preempted sequences copied back from the host tier.")                       \
    X(swaps_refused, NULL, "Replays because the host tier had no room or was none.")               \
    X(sessions_stored, "sessions_stored_total", "Sessions that a request left behind.")            \
    X(sessions_continued, "sessions_continued_total", "Requests that went on from a session.")     \
    X(sessions_recalled, "sessions_recalled_total",                                                \
      "Those of them whose session was no longer in memory, but kept on disk.")                    \
    X(sessions_ignored, "sessions_ignored_total",                                                  \
      "Requests that named a session and could not go on from it.")                                \
    X(sessions_expired, "sessions_expired_total",                                                  \
      "Sessions forgotten by time, to make room, or because they were deleted.")                   \
    X(pressure_drops, "pressure_drops_total",                                                      \
      "Choices of retention made because pages were short.")                                       \
    X(loaded_tokens, "disk_cache_hits_total",                                                      \
      "Prompt tokens found in the disk cache, beside those found in memory.")                      \
    X(selections_handed_out, NULL, "Selections of retention made on other threads.")               \
    X(retrieval_seen_tokens, "retrieval_context_tokens_total",                                     \
      "Context tokens of rows that read by retrieval, the rows' own among them.")                  \
    X(retrieval_read_tokens, "retrieval_read_tokens_total",                                        \
      "Those of them that the rows read in a layer that selects, on average over its heads.")      \
    X(retrieval_audits, "retrieval_audits_total",                                                  \
      "Recalls computed by audits of retrieval, one for each layer and query head of a row.")      \
    X(retrieval_missed, "retrieval_missed_millionths_total",                                       \
      "Softmax mass that the audited blocks did not hold, in millionths, summed over recalls.")

#define SCHED_COUNTER_FIELD(field, metric, help) uint64_t field;
typedef struct sched_stats {
    /* Gauges: the state now. */
    uint32_t running, waiting; // choices, requests
    uint32_t sessions_idle;    // on device pages
    uint32_t sessions_swapped; // in the host tier
    uint64_t swapped_tokens;   // seen by sequences in the host tier
    uint64_t logical_tokens;   // seen by sequences that hold pages
    double kept_tokens;        // what attention still reads of them
    /* Counters since sched_create. */
    SCHED_COUNTERS(SCHED_COUNTER_FIELD)
    pkv_counts pages; // gauges and counters
} sched_stats;
#undef SCHED_COUNTER_FIELD

sched_stats sched_get_stats(const sched *s);
/* Adds every counter of `more`, also those of its pages, to `sum`. Gauges stay. */
void sched_add_counters(sched_stats *sum, const sched_stats *more);

/* pkv_check_integrity and the scheduler's own invariants: NULL, or what is wrong. For tests. */
const char *sched_check_integrity(const sched *s);

#endif
