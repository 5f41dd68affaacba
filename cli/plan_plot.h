/* The drawing of `octavo plan` (private to cli/). */
#ifndef CLI_PLAN_PLOT_H
#define CLI_PLAN_PLOT_H

#include "cli/plan_sizes.h"

typedef struct plan_line {
    const char *name;
    const retention_policy *policy;
    const plan_answer *answer; // what plan_measure filled
} plan_line;

enum { PLAN_LINES_MAX = 4 };

/* Draws up to PLAN_LINES_MAX policies: memory of a sequence by its context, and how many fit. */
status plan_plot(const char *path, const plan_question *q, const plan_line *lines, size_t n_lines,
                 error *err);

#endif
