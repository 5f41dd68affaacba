/* The results as a table, as JSON, and as drawings (private to quality/). */
#ifndef QUALITY_REPORT_H
#define QUALITY_REPORT_H

#include "quality/cells.h"

status report_table(const results *r, strbuf *out, error *err);
/* settings: members of an object, without its braces. */
status report_json(const results *r, const char *settings, strbuf *out, error *err);

/* What a table calls a method: its label, or all of it where it has none. */
void report_put_method(strbuf *out, const variant *v);

/* ---- at equal kept share --------------------------------------------------------------------- */

/* What a budget keeps, and its column. */
typedef struct kept_point {
    double kept;
    uint32_t column;
} kept_point;

/* A share on the line through two budgets: 1 - weight times `low`, and weight times `high`. */
typedef struct share_place {
    uint32_t low, high; // columns
    double weight;      // below 0 or above 1 where the share lies beside them
} share_place;

/* Where `share` lies between the points, which are by ascending share; false where it is too far
 * from them, or they are fewer than two. */
bool report_place(const kept_point *points, size_t n, double share, share_place *out);
/* The methods with two budgets and more, at the shares that were asked for, and their differences
 * to the first of them, prompt by prompt. */
status report_equal_kept(const results *r, row_set rows, strbuf *out, error *err);

/* ---- what needs more than a mean ------------------------------------------------------------- */

enum { DEPTH_BINS = 10 };

/* Mean scores of a row by depth of the needle; n = 0 where there is none. */
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
    double *chosen;        // [n_layers, n_layers] without forced tokens; NaN where there are none
    double neighbours;     // mean of the layers next to each other, without forced tokens
    double neighbours_all; // and with them
    double *whole, *share; // [n_layers] NaN without a needle
    uint64_t compared, agreed;
    double divergence;
} measure_means;

status report_measures(const results *r, uint32_t first_row, uint32_t column, measure_means *out,
                       error *err);
void measure_means_destroy(measure_means *m);

/* Means of the analyses of a task, over its lengths, and over layers where a number is asked for.
 */
typedef struct analysis_means {
    size_t n;          // prompts; 0 = none
    uint32_t n_layers; // 0 = none
    double *values;    // [ANALYSIS_ROWS, n_layers] NaN where there is nothing to tell
} analysis_means;

status report_analyses(const results *r, uint32_t first_row, uint32_t column, analysis_means *out,
                       error *err);
void analysis_means_destroy(analysis_means *m);
/* Of a row of values, over the layers that have one; NaN where none has. */
double analysis_mean(const analysis_means *m, uint32_t row);
/* Tables of a task, and a member "analyses" of its JSON. Nothing where nothing was looked at. */
status analyses_table(const results *r, uint32_t first_row, strbuf *out, error *err);
status analyses_json(const results *r, uint32_t first_row, strbuf *out, error *err);

/* What other members of the JSON begin with: {"method": …, "budget": … */
void report_begin_column(const results *r, uint32_t column, bool first, strbuf *out);

/* plots.c: writes the drawings into the folder. */
status plots_write(const results *r, const char *folder, error *err);
/* "niah-demo_niah-snapkv_scope_layer.svg" in the folder: letters, digits and dots of the names
 * stay. of: NULL for a drawing of all methods. */
status plots_write_file(const char *folder, const char *kind, const char *title_of,
                        const variant *of, const strbuf *svg, error *err);
void plots_put_scale(strbuf *svg, double x, double y, double height);
/* analyses_plots.c: those of one task. */
status analyses_plot(const results *r, uint32_t first_row, const char *folder, error *err);

#endif
