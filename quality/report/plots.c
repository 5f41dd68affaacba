/* Draws scores over length and depth, scores over the share kept, and the overlap of layers. */
#include "quality/report/report.h"
#include "quality/report/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ink[] = "#333333", faint[] = "#cccccc";

static int label_length(const variant *v, uint32_t most)
{
    return (int)(v->label_chars < most ? v->label_chars : most);
}

/* ---- needles: length across, depth down ------------------------------------------------------ */

enum { CELL_W = 44, CELL_H = 20, LEFT = 52, TOP = 48, GAP = 24, RIGHT = 48, BOTTOM = 44 };

static bool has_depth(const results *r, uint32_t row, uint32_t end, uint32_t column)
{
    size_t total = 0;
    for (uint32_t i = row; i < end; i++) total += report_depth(r, i, column, results_arm(r)).total;
    return total > 0;
}

static void needle_panel(const results *r, uint32_t row, uint32_t end, uint32_t column, double x,
                         strbuf *svg)
{
    char text[64];
    for (uint32_t i = row; i < end; i++) {
        depth_profile p = report_depth(r, i, column, results_arm(r));
        double left = x + (double)(i - row) * CELL_W;
        for (int d = 0; d < DEPTH_BINS; d++) {
            char colour[8];
            svg_scale(p.mean[d], colour);
            svg_rect(svg, left, TOP + d * CELL_H, CELL_W - 1, CELL_H - 1, colour);
            if (!p.n[d]) continue;
            snprintf(text, sizeof text, "%.2f", p.mean[d]);
            svg_text(svg, left + CELL_W / 2.0, TOP + d * CELL_H + 14, SVG_MIDDLE, 10, 0,
                     p.mean[d] > 0.6 ? "#000000" : "#ffffff", text);
        }
        snprintf(text, sizeof text, "%u", r->sources->items[i].length);
        svg_text(svg, left + CELL_W / 2.0, TOP + DEPTH_BINS * CELL_H + 14, SVG_MIDDLE, 11, 0, ink,
                 text);
    }
    snprintf(text, sizeof text, "budget %s", r->variants->items[column].budget);
    svg_text(svg, x, TOP - 6, SVG_START, 11, 0, ink, text);
}

static status plot_needles(const results *r, uint32_t row, uint32_t first, const char *folder,
                           error *err)
{
    uint32_t end = results_next_task(r, row), last = results_method_end(r, first);
    const char *title_of = r->sources->items[row].name;
    const variant *of = &r->variants->items[first];
    bool any = false;
    for (uint32_t i = first; i < last; i++) any |= has_depth(r, row, end, i);
    if (!any) return STATUS_IS_OK;
    double panel = (double)(end - row) * CELL_W + GAP, panels = last - first;
    double width = LEFT + panels * panel + RIGHT;
    double height = TOP + DEPTH_BINS * CELL_H + BOTTOM;
    char title[256];
    strbuf svg = {0};
    svg_begin(&svg, width < 360 ? 360 : width, height);
    snprintf(title, sizeof title, "%s: %.*s, score by length and depth", title_of,
             label_length(of, 150), of->method);
    svg_text(&svg, 8, 20, SVG_START, 14, 0, ink, title);
    for (int d = 0; d <= DEPTH_BINS; d += 2) {
        char text[16];
        snprintf(text, sizeof text, "%d %%", d * 100 / DEPTH_BINS);
        svg_text(&svg, LEFT - 6, TOP + d * CELL_H + 4, SVG_END, 11, 0, ink, text);
    }
    for (uint32_t i = first; i < last; i++)
        needle_panel(r, row, end, i, LEFT + (i - first) * panel, &svg);
    plots_put_scale(&svg, LEFT + panels * panel - 8, TOP, DEPTH_BINS * CELL_H);
    svg_text(&svg, LEFT, height - 8, SVG_START, 11, 0, ink, "tokens of context");
    svg_end(&svg);
    status st = plots_write_file(folder, "niah", title_of, of, &svg, err);
    strbuf_destroy(&svg);
    return st;
}

/* ---- scores over the share kept -------------------------------------------------------------- */

enum { PLOT_W = 520, PLOT_H = 340, PLOT_LEFT = 56, PLOT_TOP = 40, LEGEND = 220, POINTS_MAX = 64 };

/* Shares are drawn on a logarithmic axis, from 1 % to all. */
static double plot_x(double kept)
{
    double at = 1 + log10(kept < 0.01 ? 0.01 : kept) / 2;
    return PLOT_LEFT + at * PLOT_W;
}

static double plot_y(double value) { return PLOT_TOP + (1 - value) * PLOT_H; }

static void plot_axes(strbuf *svg)
{
    static const double marks[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1};
    char text[16];
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        double x = plot_x(marks[i]);
        svg_line(svg, x, PLOT_TOP, x, PLOT_TOP + PLOT_H, faint, 0.5, NULL);
        snprintf(text, sizeof text, "%g %%", marks[i] * 100);
        svg_text(svg, x, PLOT_TOP + PLOT_H + 16, SVG_MIDDLE, 11, 0, ink, text);
    }
    for (int i = 0; i <= 10; i += 2) {
        double y = plot_y(i / 10.0);
        svg_line(svg, PLOT_LEFT, y, PLOT_LEFT + PLOT_W, y, faint, 0.5, NULL);
        snprintf(text, sizeof text, "%.1f", i / 10.0);
        svg_text(svg, PLOT_LEFT - 6, y + 4, SVG_END, 11, 0, ink, text);
    }
    svg_text(svg, PLOT_LEFT + PLOT_W / 2.0, PLOT_TOP + PLOT_H + 34, SVG_MIDDLE, 12, 0, ink,
             "share of the tokens really kept");
    svg_text(svg, 14, PLOT_TOP + PLOT_H / 2.0, SVG_MIDDLE, 12, -90, ink, "score, with 95 %");
}

/* Sorts by the share kept, because budgets may be given in any order. */
static void sort_points(double xy[][2], size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && xy[k - 1][0] > xy[k][0]; k--)
            for (int c = 0; c < 2; c++) {
                double other = xy[k][c];
                xy[k][c] = xy[k - 1][c];
                xy[k - 1][c] = other;
            }
}

static status plot_method(const results *r, row_set rows, uint32_t first, size_t number,
                          strbuf *svg, error *err)
{
    double xy[POINTS_MAX][2];
    size_t n = 0;
    for (uint32_t i = first; i < results_method_end(r, first) && n < POINTS_MAX; i++) {
        cell c;
        RETURN_IF_ERROR(results_cell(r, rows, i, results_arm(r), &c, err));
        if (c.refused || !c.score.n || isnan(c.kept)) continue;
        double x = plot_x(c.kept);
        xy[n][0] = x;
        xy[n++][1] = plot_y(c.score.mean);
        if (!isnan(c.score.low))
            svg_line(svg, x, plot_y(c.score.low), x, plot_y(c.score.high), svg_colour(number), 1,
                     NULL);
        svg_circle(svg, x, plot_y(c.score.mean), 3, svg_colour(number));
    }
    if (n == 0) return STATUS_IS_OK;
    sort_points(xy, n);
    svg_polyline(svg, &xy[0][0], n, svg_colour(number), svg_dash(number));
    double y = PLOT_TOP + 14.0 * (double)number, x = PLOT_LEFT + PLOT_W + 20;
    svg_line(svg, x, y, x + 24, y, svg_colour(number), 2, svg_dash(number));
    char name[40];
    const variant *of = &r->variants->items[first];
    snprintf(name, sizeof name, "%.*s%s", label_length(of, 28), of->method,
             of->label_chars > 28 ? "..." : "");
    svg_text(svg, x + 30, y + 4, SVG_START, 11, 0, ink, name);
    return STATUS_IS_OK;
}

static status plot_curves(const results *r, uint32_t row, uint32_t *room, const char *folder,
                          error *err)
{
    row_set rows = {room, results_rows(r, row, true, room)};
    const char *title_of = r->sources->items[row].name;
    if (rows.n == 0) return STATUS_IS_OK; /* nothing is compared */
    char title[128];
    strbuf svg = {0};
    double tall = PLOT_TOP + PLOT_H + 48, wanted = PLOT_TOP + 14.0 * (double)r->variants->n + 8;
    svg_begin(&svg, PLOT_LEFT + PLOT_W + LEGEND, tall > wanted ? tall : wanted);
    snprintf(title, sizeof title, "%s: score over what is kept", title_of);
    svg_text(&svg, 8, 20, SVG_START, 14, 0, ink, title);
    plot_axes(&svg);
    size_t number = 0;
    cell full;
    status st = results_cell(r, rows, 0, results_arm(r), &full, err);
    if (status_ok(st) && full.score.n)
        svg_line(&svg, PLOT_LEFT, plot_y(full.score.mean), PLOT_LEFT + PLOT_W,
                 plot_y(full.score.mean), svg_colour(0), 1, "4 4");
    for (uint32_t i = 0; status_ok(st) && i < r->variants->n; i = results_method_end(r, i))
        st = plot_method(r, rows, i, number++, &svg, err);
    svg_end(&svg);
    if (status_ok(st)) st = plots_write_file(folder, "curves", title_of, NULL, &svg, err);
    strbuf_destroy(&svg);
    return st;
}

/* ---- overlap of layers ----------------------------------------------------------------------- */

static void layer_panel(const measure_means *m, const char *budget, double x, double step,
                        strbuf *svg)
{
    char text[96], colour[8];
    for (uint32_t a = 0; a < m->n_layers; a++)
        for (uint32_t b = 0; b < m->n_layers; b++) {
            svg_scale(m->unforced[(size_t)a * m->n_layers + b], colour);
            svg_rect(svg, x + b * step, TOP + a * step, step, step, colour);
        }
    snprintf(text, sizeof text, "budget %s, neighbours %.3f", budget, m->neighbours);
    svg_text(svg, x, TOP - 6, SVG_START, 11, 0, ink, text);
}

static status plot_layers(const results *r, uint32_t row, uint32_t first, const char *folder,
                          error *err)
{
    enum { SIDE = 200 };
    uint32_t last = results_method_end(r, first);
    const char *title_of = r->sources->items[row].name;
    const variant *of = &r->variants->items[first];
    char title[256];
    bool any = false;
    strbuf svg = {0};
    svg_begin(&svg, LEFT + (double)(last - first) * (SIDE + GAP) + RIGHT, TOP + SIDE + BOTTOM);
    snprintf(title, sizeof title, "%s: %.*s, Jaccard of what two layers select", title_of,
             label_length(of, 120), of->method);
    svg_text(&svg, 8, 20, SVG_START, 14, 0, ink, title);
    status st = STATUS_IS_OK;
    for (uint32_t i = first; status_ok(st) && i < last; i++) {
        measure_means m;
        st = report_measures(r, row, i, &m, err);
        if (status_ok(st) && m.n) {
            any = true;
            layer_panel(&m, r->variants->items[i].budget, LEFT + (i - first) * (double)(SIDE + GAP),
                        (double)SIDE / m.n_layers, &svg);
        }
        measure_means_destroy(&m);
    }
    plots_put_scale(&svg, LEFT + (double)(last - first) * (SIDE + GAP) - 8, TOP, SIDE);
    svg_text(&svg, LEFT, TOP + SIDE + 18, SVG_START, 11, 0, ink, "layers, from the first on");
    svg_end(&svg);
    if (status_ok(st) && any) st = plots_write_file(folder, "jaccard", title_of, of, &svg, err);
    strbuf_destroy(&svg);
    return st;
}

status plots_write(const results *r, const char *folder, error *err)
{
    uint32_t *room = calloc(r->sources->n, sizeof *room);
    if (!room) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = STATUS_IS_OK;
    for (uint32_t row = 0; status_ok(st) && row < r->sources->n; row = results_next_task(r, row)) {
        st = plot_curves(r, row, room, folder, err);
        for (uint32_t i = 0; status_ok(st) && i < r->variants->n; i = results_method_end(r, i)) {
            st = plot_needles(r, row, i, folder, err);
            if (status_ok(st)) st = plot_layers(r, row, i, folder, err);
        }
        if (status_ok(st)) st = analyses_plot(r, row, folder, err);
    }
    free(room);
    return st;
}
