/* Scored answers, in memory and as lines of OUT/records.jsonl, from which a run is resumed (private
 * to quality/). */
#ifndef QUALITY_RECORDS_H
#define QUALITY_RECORDS_H

#include "quality/methods.h"
#include "quality/score/findings.h"
#include "quality/tasks/sources.h"

/* The arm: which prompt of a question the record answers. */
typedef enum record_arm {
    ARM_SINGLE,  // the only prompt
    ARM_FIRST,   // turn 1 of a session
    ARM_SESSION, // turn 2, continuing the session of turn 1
    ARM_FRESH,   // turn 2 without the session: the method over the whole conversation
    ARM_FULL,    // turn 2 without the session, by the full cache
    ARMS,
} record_arm;

const char *record_arm_name(record_arm arm);

typedef struct record {
    uint32_t row, column; // indices of source and variant
    record_arm arm;
    uint32_t document, question;
    float score;
    float kept, logical; // tokens after the answer
    float depth;
    bool continued; // the session of turn 1 was found
    uint64_t right; // SCORER_NUMBERED: bit i = question i was answered right
    findings findings;
} record;

typedef struct refusal {
    uint32_t row, column; // indices of source and variant
    char *reason;
} refusal;

typedef struct record_store {
    record *items;
    size_t n, capacity;
    refusal *refusals;
    size_t n_refusals;
    size_t n_loaded; // the first ones, sorted: from the run before
    const source_list *sources;
    const variant_list *variants;
    void *file; // FILE
    char path[512];
    strbuf line;
} record_store;

/* header: a line of JSON that must equal the one of the run to be resumed. */
status records_open(const char *folder, bool resume, const char *header, const source_list *sources,
                    const variant_list *variants, record_store *out, error *err);
void records_close(record_store *s);

/* Whether the run before has a record with this key. */
bool records_done(const record_store *s, const record *key);
/* Takes over r with its measures. `answer`, and what the report told about the session, are only
 * written to the line. */
status records_add(record_store *s, record *r, const char *answer, const char *session, error *err);
status records_refuse(record_store *s, uint32_t row, uint32_t column, const char *reason,
                      error *err);
const char *records_refused(const record_store *s, uint32_t row, uint32_t column);
/* Sorts by row, column, arm, document and question. */
void records_sort(record_store *s);
/* The records of a cell, which follow each other once sorted. */
const record *records_cell(const record_store *s, uint32_t row, uint32_t column, record_arm arm,
                           size_t *n);

#endif
