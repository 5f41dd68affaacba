/* The results as a table, as JSON, and as drawings (private to quality/). */
#ifndef QUALITY_REPORT_REPORT_H
#define QUALITY_REPORT_REPORT_H

#include "quality/report/cells.h"

status report_table(const results *r, strbuf *out, error *err);
/* settings: members of a JSON object, without its braces. */
status report_json(const results *r, const char *settings, strbuf *out, error *err);

/* ---- names (labels.c) ------------------------------------------------------------------------ */

/* Writes text into a cell of a table; a bar in it, as in JSON, is escaped. */
void report_put_text(strbuf *out, const char *text, size_t n);
/* Appends the method's name in a table: its label, or the whole method without one. */
void report_put_method(strbuf *out, const variant *v);
/* Begins an object of a JSON list: {"method": …, "budget": … */
void report_begin_column(const results *r, uint32_t column, bool first, strbuf *out);

/* ---- at equal kept share --------------------------------------------------------------------- */

/* The share that a budget keeps, and the budget's column. */
typedef struct kept_point {
    double kept;
    uint32_t column;
} kept_point;

/* A share's place on the line between two budgets: (1 - weight) times `low` plus weight times
 * `high`. */
typedef struct share_place {
    uint32_t low, high; // columns
    double weight;      // below 0 or above 1 where the share lies outside of them
} share_place;

/* Finds the place of `share` among points of ascending share; false when it is too far from them,
 * or when there are fewer than two. */
bool report_place(const kept_point *points, size_t n, double share, share_place *out);
/* Reports the methods that have two or more budgets at the shares that were asked for, and their
 * differences to the first of these methods, prompt by prompt. */
status report_equal_kept(const results *r, row_set rows, strbuf *out, error *err);

/* ---- results beyond means -------------------------------------------------------------------- */

enum { DEPTH_BINS = 10 };

/* Mean scores of a row by the depth of the needle; n = 0 where no needle is that deep. */
typedef struct depth_profile {
    double mean[DEPTH_BINS];
    size_t n[DEPTH_BINS], total;
} depth_profile;

depth_profile report_depth(const results *r, uint32_t row, uint32_t column, record_arm arm);

/* Means of the measures of a task, over its lengths. */
typedef struct measure_means {
    size_t n;              // prompts with positions
    uint32_t n_layers;     // 0 = none
    double *jaccard;       // [n_layers, n_layers]
    double *unforced;      // [n_layers, n_layers] without forced tokens; NaN where no other is
    double neighbours;     // mean over adjacent layers, without forced tokens
    double neighbours_all; // mean over adjacent layers, with forced tokens
    double *whole, *share; // [n_layers] NaN without a needle
    uint64_t compared, agreed;
    double divergence;
} measure_means;

status report_measures(const results *r, uint32_t first_row, uint32_t column, measure_means *out,
                       error *err);
void measure_means_destroy(measure_means *m);

/* Means of the analyses of a task over its lengths. */
typedef struct analysis_means {
    size_t n;          // prompts; 0 = none
    uint32_t n_layers; // 0 = none
    double *values;    // [ANALYSIS_ROWS, n_layers] NaN where there is no figure
} analysis_means;

status report_analyses(const results *r, uint32_t first_row, uint32_t column, analysis_means *out,
                       error *err);
void analysis_means_destroy(analysis_means *m);
/* Mean of a row over the layers that have a figure; NaN when none has. */
double analysis_mean(const analysis_means *m, uint32_t row);
/* The tables of a task, and the member "analyses" of its JSON; nothing for a task without
 * analyses. */
status analyses_table(const results *r, uint32_t first_row, strbuf *out, error *err);
status analyses_json(const results *r, uint32_t first_row, strbuf *out, error *err);

/* ---- drawings -------------------------------------------------------------------------------- */

/* plots.c: writes the drawings into the folder. */
status plots_write(const results *r, const char *folder, error *err);
/* analyses_plots.c: writes the drawings of one task. */
status analyses_plot(const results *r, uint32_t first_row, const char *folder, error *err);

/* plot_parts.c: what drawings share. */
/* Writes a file such as "niah-demo_niah-snapkv_scope_layer.svg" into the folder; of the names only
 * letters, digits and dots stay. of: the drawing's variant; NULL = it shows all methods. */
status plots_write_file(const char *folder, const char *kind, const char *title_of,
                        const variant *of, const strbuf *svg, error *err);
void plots_put_scale(strbuf *svg, double x, double y, double height);

#endif
