/* The JSON of a bench: members about the whole run, then a list of rows. */
#ifndef CLI_BENCH_BENCH_REPORT_H
#define CLI_BENCH_BENCH_REPORT_H

#include "base/base.h"

typedef struct bench_report {
    strbuf head; // members: "model":"1.1b","rounds":5
    strbuf rows;
    size_t n_rows;
} bench_report;

/* Begins a row: {"what":"decode" */
void bench_report_row(bench_report *r, const char *what);
/* Writes the report to stdout when asked for, and to the file `out` unless that is NULL. */
status bench_report_write(const bench_report *r, bool to_stdout, const char *out, error *err);
void bench_report_destroy(bench_report *r);

#endif
