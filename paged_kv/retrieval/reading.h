/* reading: what rows read by retrieval, counted by the backend and told in reports.
 *
 * What     a backend counts each row that reads by retrieval; the scheduler adds up those of a
 *          choice, and its report is their JSON.
 * Owner    plain values without pointers.
 * Threads  pure functions.
 * Units    tokens and blocks; a list is the blocks that one run of KV heads reads in one layer; a
 *          recall is the share of the softmax mass of full attention that a query head's blocks
 *          hold.
 * Source   docs/retrieval.md, section 7. */
#ifndef PAGED_KV_RETRIEVAL_READING_H
#define PAGED_KV_RETRIEVAL_READING_H

#include "paged_kv/retrieval/retrieval.h"

/* One row, or the part of it that one of several ranks counts: each list and each recall is counted
 * by one rank. Layers that read everything for another reason than its lists are not counted. */
typedef struct retrieval_reading {
    uint32_t context;    // tokens that the row could read, its own included
    uint32_t lists;      // lists that it read by, in all layers
    uint32_t selections; // those of them that were selected by this row's query
    uint64_t tokens;     // sums over the lists
    uint64_t blocks;
    uint32_t audits;     // recalls computed, one for each list's query head; 0: none
    double recall_sum;   // of these
    double least_recall; // of these
    uint32_t exams;      // selections that an exam made (certify.h)
    uint32_t failed;     // those of them that may miss more than epsilon
    double most_missed;  // greatest bound on the share of the mass that one of them misses
} retrieval_reading;

/* Readings added up, in the order of the rows. */
typedef struct retrieval_totals {
    uint64_t rows;
    uint64_t context;         // sum over rows
    uint64_t selections;      // sum over rows
    double tokens, blocks;    // sums over rows of the mean over the row's lists
    uint64_t audited, audits; // rows, recalls
    double recall_sum, least_recall;
    uint64_t exams, failed;
    double most_missed;
} retrieval_totals;

/* Adds the part of a row's reading that another rank counted. */
void retrieval_join_reading(retrieval_reading *row, const retrieval_reading *part);
/* The tokens that a row reads in a layer on average over its lists, all where it has none. */
double retrieval_mean_tokens(const retrieval_reading *row);
void retrieval_add_reading(retrieval_totals *totals, const retrieval_reading *row);
/* Appends the report as a JSON object. */
void retrieval_report_json(const retrieval_totals *totals, strbuf *out);

#endif
