/* Answers that were judged: in memory, and as lines of OUT/records.jsonl, from which a run goes on
 * (private to quality/). */
#ifndef QUALITY_RECORDS_H
#define QUALITY_RECORDS_H

#include "quality/findings.h"
#include "quality/methods.h"
#include "quality/sources.h"

/* Which prompt of a question this is. */
typedef enum record_arm {
    ARM_SINGLE,  // the only one
    ARM_FIRST,   // turn 1 of a session
    ARM_SESSION, // turn 2, going on from what turn 1 left
    ARM_FRESH,   // turn 2 without the session: the method over the whole conversation
    ARM_FULL,    // turn 2 without the session, by the full cache
    ARMS,
} record_arm;

const char *record_arm_name(record_arm arm);

typedef struct record {
    uint32_t row, column; // source and variant
    record_arm arm;
    uint32_t document, question;
    float score;
    float kept, logical; // tokens when the answer ended
    float depth;
    bool continued; // the session was found
    uint64_t right; // SCORER_NUMBERED: bit i = question i was answered rightly
    findings findings;
} record;

typedef struct refusal {
    uint32_t row, column; // source and variant
    char *reason;
} refusal;

typedef struct record_store {
    record *items;
    size_t n, capacity;
    refusal *refusals;
    size_t n_refusals;
    size_t n_loaded; // the first ones, sorted: those of the run before
    const source_list *sources;
    const variant_list *variants;
    void *file; // FILE
    char path[512];
    strbuf line;
} record_store;

/* header: one line of JSON that a resumed run must have in common with the one before. */
status records_open(const char *folder, bool resume, const char *header, const source_list *sources,
                    const variant_list *variants, record_store *out, error *err);
void records_close(record_store *s);

/* Whether the run before answered it. */
bool records_done(const record_store *s, const record *key);
/* Takes r with its measures. The answer, and what the report said of the session, go to the line
 * alone. */
status records_add(record_store *s, record *r, const char *answer, const char *session, error *err);
status records_refuse(record_store *s, uint32_t row, uint32_t column, const char *reason,
                      error *err);
const char *records_refused(const record_store *s, uint32_t row, uint32_t column);
/* By row, column, arm, document, question. */
void records_sort(record_store *s);
/* The sorted run of records of a cell. */
const record *records_cell(const record_store *s, uint32_t row, uint32_t column, record_arm arm,
                           size_t *n);

#endif
