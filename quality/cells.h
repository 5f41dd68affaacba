/* From records to numbers (private to quality/). */
#ifndef QUALITY_CELLS_H
#define QUALITY_CELLS_H

#include "quality/records.h"
#include "quality/stats.h"

/* Rows that belong together: one, or a task at all lengths where it is compared. */
typedef struct row_set {
    const uint32_t *rows;
    size_t n;
} row_set;

typedef struct cell {
    const char *refused; // the reason, when any of the rows was refused
    bool binary;         // Wilson's interval, else bootstrap's
    stat_mean score;
    stat_mean difference; // paired, to the same prompts under the full cache
    double kept;          // share of the tokens
    double continued;     // share of turn 2 that found its session; NaN without sessions
} cell;

typedef struct results {
    const record_store *records;
    const source_list *sources;
    const variant_list *variants;
    uint64_t seed;
    uint32_t turns;
    /* For each row: what the full cache reaches, and whether that is enough to compare. */
    cell *full;
    bool *compared;
    bool *binary;
} results;

status results_create(const record_store *records, uint64_t seed, uint32_t turns, results *out,
                      error *err);
void results_destroy(results *r);
status results_cell(const results *r, row_set rows, uint32_t column, record_arm arm, cell *out,
                    error *err);

/* The columns of one method follow each other: [first, the result). */
uint32_t results_method_end(const results *r, uint32_t first);
/* The different tasks, in order: the first row of each, and its rows from there. */
uint32_t results_next_task(const results *r, uint32_t row);
/* Rows of the task that begins at `row` which are compared (or all), into out; how many. */
size_t results_rows(const results *r, uint32_t row, bool compared_only, uint32_t *out);
/* The arm that is compared first: the only one, or the session's. */
record_arm results_arm(const results *r);

#endif
