/* Line charts as SVG, for commands that measure or plan: panels side by side, each with axes, lines
 * and a legend. Pure but for the file that is written. */
#ifndef QUALITY_REPORT_CHART_H
#define QUALITY_REPORT_CHART_H

#include "base/base.h"

typedef struct chart_axis {
    const char *title; // with the unit
    /* Values that are not above 0 are left out, and x has ticks at powers of two. A linear axis
     * begins at 0. */
    bool log;
} chart_axis;

typedef struct chart_line {
    const char *name;  // in the legend
    const double *xy;  // [n_points, 2] in the order of x; NULL = none
    size_t n_points;   // points with a value that is not finite are left out
    size_t colour;     // lines that belong together have one number
    bool is_bound;     // dashed, as what the other lines cannot pass
    bool without_dots; // for many points
} chart_line;

typedef struct chart_panel {
    const char *title;
    chart_axis x, y;
    const chart_line *lines;
    size_t n_lines;
} chart_panel;

/* Appends a drawing of the panels under a title. */
void chart_draw(const char *title, const chart_panel *panels, size_t n_panels, strbuf *out);
/* Likewise, to a file that is replaced. */
status chart_write(const char *path, const char *title, const chart_panel *panels, size_t n_panels,
                   error *err);

#endif
