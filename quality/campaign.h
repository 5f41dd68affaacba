/* The order of work (private to quality/).
 *
 *   document   [ the first prompt, alone ] [ full: all questions ] [ methods: all questions ]
 *
 * The first prompt of a document brings its blocks into the prefix cache. Only then do the other
 * prompts start, all of them before the blocks are evicted. A few documents are in work at once, so
 * that the batch stays full meanwhile. */
#ifndef QUALITY_CAMPAIGN_H
#define QUALITY_CAMPAIGN_H

#include "quality/records.h"

/* The full cache's answer to a prompt, with which the other answers are compared. */
typedef struct full_answer {
    step_sample *samples;
    size_t n;
} full_answer;

/* A prompt of turn 2, and the turn 1 that it continues. */
typedef struct second_turn {
    uint32_t question; // that turn 1 asked
    uint32_t column;
    record_arm arm;
    uint32_t *tokens; // of turn 1: its prompt and its answer
    size_t n_tokens;
    char *answer; // of turn 1, as text
} second_turn;

typedef enum lead_state { LEAD_TO_COME, LEAD_RUNNING, LEAD_DONE } lead_state;

/* A document whose questions are being asked. */
typedef struct live {
    bool used;
    uint64_t serial;     // order in which the documents were made
    document own;        // a generated document
    const document *doc; // own, or one of the user's
    uint32_t row, number;
    uint32_t n_asked; // its first n_asked questions are asked, or with two turns as many pairs
    bool measured;
    lead_state lead;
    uint64_t next, n_units; // a unit of work is (full | method) x question
    uint32_t n_running;
    uint32_t n_full_running; // requests of the full cache, for which the others wait
    full_answer *full;       // [n_asked], when measured
    second_turn *second;     // requests of turn 2 that are to be started
    size_t n_second, second_capacity;
} live;

/* A request in the engine. */
typedef struct job {
    engine_stream *stream; // NULL = free
    live *live;
    uint32_t question, column;
    uint32_t pair; // the question that turn 1 asked; with one turn the same as `question`
    record_arm arm;
    bool is_lead;
    strbuf text;
    step_sample *samples; // kept where they are compared or continued
    size_t n_samples, capacity;
    uint32_t whole_prompt; // rag-bm25: tokens of the prompt before it was shortened
    bool failed;           // out of memory
} job;

enum { LIVE_MAX = 4 };

typedef struct campaign {
    const quality_options *o;
    source_list sources;
    variant_list variants;
    record_store records;
    live lives[LIVE_MAX];
    job *jobs; // [o->in_flight]
    uint32_t n_running;
    /* The next document to be made. */
    uint32_t row, number, n_asked_of_row;
    uint64_t n_made;
    uint64_t n_done, n_expected, n_refused;
    int64_t start_us, logged_us;
    bool stopping;
} campaign;

/* campaign.c */
status campaign_run(campaign *c, error *err);

/* ask.c: fills j, of which live, question, column and arm are set, and submits it. */
status ask_first(campaign *c, job *j, error *err);
status ask_second(campaign *c, job *j, const second_turn *turn, error *err);
/* A count_tokens: the tokens of a prompt of the current row, as the engine will see it. */
status ask_count(void *campaign, const char *text, size_t n, uint32_t *tokens, error *err);

/* judge.c: takes the outputs that can be read. *ended is set when the request has ended; its record
 * is made then. */
status judge_read(campaign *c, job *j, bool *ended, bool *progressed, error *err);
/* Whether a failed submission means that the engine refuses this cell as a whole. If so, the cell
 * is noted as refused; *out tells whether that worked. */
bool judge_refusal(campaign *c, const job *j, status st, const error *why, status *out, error *err);

#endif
