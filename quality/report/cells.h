/* Turns records into numbers (private to quality/). */
#ifndef QUALITY_REPORT_CELLS_H
#define QUALITY_REPORT_CELLS_H

#include "quality/records.h"
#include "quality/report/stats.h"

/* Rows whose prompts are taken together: one row, or the compared rows of a task at all lengths. */
typedef struct row_set {
    const uint32_t *rows;
    size_t n;
} row_set;

typedef struct cell {
    const char *refused; // the reason, when any of the rows was refused
    bool binary;         // Wilson's interval, else a bootstrap's
    stat_mean score;
    stat_mean difference; // paired, to the same prompts under the full cache
    double kept;          // share of the tokens that are kept
    double continued;     // share of turns 2 that found their session; NaN without sessions
} cell;

typedef struct results {
    const record_store *records;
    const source_list *sources;
    const variant_list *variants;
    uint64_t seed;
    uint32_t turns;
    /* For each row, the full cache's score, and whether the score is high enough to compare
     * others. */
    cell *full;
    bool *compared;
    bool *binary;
} results;

status results_create(const record_store *records, uint64_t seed, uint32_t turns, results *out,
                      error *err);
void results_destroy(results *r);
status results_cell(const results *r, row_set rows, uint32_t column, record_arm arm, cell *out,
                    error *err);

/* One past the columns of the method whose first column is `first`. */
uint32_t results_method_end(const results *r, uint32_t first);
/* The first row of the task after the one at `row`, in order. */
uint32_t results_next_task(const results *r, uint32_t row);
/* Lists the rows of the task that begins at `row`, all or only those compared; returns how many. */
size_t results_rows(const results *r, uint32_t row, bool compared_only, uint32_t *out);
/* The arm that is compared: the only one, or the session's. */
record_arm results_arm(const results *r);

#endif
