/* Draws line charts. */
#include "quality/report/chart.h"

#include "quality/report/svg.h"

#include <math.h>
#include <stdio.h>

static const char ink[] = "#333333", faint[] = "#dddddd";

enum {
    LEFT = 64, /* of a panel, for the labels of y */
    TOP = 60,
    WIDTH = 400, /* of the box with the lines */
    HEIGHT = 260,
    GAP = 24,
    BELOW = 48, /* the labels and the title of x */
    ROW = 17,   /* of the legend */
    TICKS = 6,  /* about as many on a linear axis */
    POWERS = 9, /* most powers of two on an axis */
    DECADES = 4 /* a longer logarithmic axis has ticks at powers of ten alone */
};

/* An axis with the range of what it shows. */
typedef struct scale {
    bool log;
    double low, high;    // low < high
    double from, length; // pixels; length is negative for an axis that goes up
} scale;

static bool is_shown(const chart_axis *a, double v) { return isfinite(v) && (!a->log || v > 0); }

static bool is_point(const chart_panel *p, const double *xy)
{
    return is_shown(&p->x, xy[0]) && is_shown(&p->y, xy[1]);
}

/* 1, 2 or 5 times a power of ten, at least v. */
static double round_up(double v)
{
    static const double steps[] = {1, 2, 5};
    double power = pow(10, floor(log10(v)));
    for (int i = 0; i < 3; i++)
        if (steps[i] * power >= v * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

static scale scale_of(const chart_panel *p, int of, double from, double length)
{
    const chart_axis *a = of ? &p->y : &p->x;
    scale s = {.log = a->log, .low = INFINITY, .high = -INFINITY, .from = from, .length = length};
    for (size_t i = 0; i < p->n_lines; i++)
        for (size_t k = 0; k < p->lines[i].n_points; k++) {
            const double *xy = &p->lines[i].xy[2 * k];
            if (!is_point(p, xy)) continue;
            s.low = fmin(s.low, xy[of]);
            s.high = fmax(s.high, xy[of]);
        }
    if (s.low > s.high) s.low = s.high = 1; /* nothing is shown */
    if (!a->log) {
        s.low = fmin(s.low, 0);
        s.high = s.high > s.low ? s.high + (s.high - s.low) * 0.04 : s.low + 1;
    } else if (of || s.low == s.high) {
        s.low = pow(10, floor(log10(s.low) + 1e-9));
        s.high = round_up(s.high * 1.05);
    }
    return s;
}

static double pixel_of(const scale *s, double v)
{
    double at =
        s->log ? log(v / s->low) / log(s->high / s->low) : (v - s->low) / (s->high - s->low);
    return s->from + at * s->length;
}

static void number_text(double v, char *out, size_t size)
{
    double most = fabs(v);
    if (most >= 1e9) snprintf(out, size, "%gG", v / 1e9);
    else if (most >= 1e6) snprintf(out, size, "%gM", v / 1e6);
    else if (most >= 1e4) snprintf(out, size, "%gk", v / 1e3);
    else snprintf(out, size, "%g", v);
}

/* Writes a power of two. */
static void power_text(double v, char *out, size_t size)
{
    if (v >= 1 << 20) snprintf(out, size, "%gM", v / (1 << 20));
    else if (v >= 1 << 14) snprintf(out, size, "%gK", v / (1 << 10));
    else snprintf(out, size, "%g", v);
}

/* ---- axes ------------------------------------------------------------------------------------ */

static void draw_tick(const scale *x, const scale *y, int of, double v, strbuf *svg)
{
    char text[32];
    double at = pixel_of(of ? y : x, v);
    if (x->log && !of) power_text(v, text, sizeof text);
    else number_text(v, text, sizeof text);
    if (of) {
        svg_line(svg, x->from, at, x->from + x->length, at, faint, 1, NULL);
        svg_text(svg, x->from - 6, at + 4, SVG_END, 11, 0, ink, text);
    } else {
        svg_line(svg, at, y->from, at, y->from + y->length, faint, 1, NULL);
        svg_text(svg, at, y->from + 16, SVG_MIDDLE, 11, 0, ink, text);
    }
}

static void draw_ticks(const scale *x, const scale *y, int of, strbuf *svg)
{
    static const double steps[] = {1, 2, 5};
    const scale *s = of ? y : x;
    if (!s->log) {
        double step = round_up((s->high - s->low) / TICKS);
        for (double i = ceil(s->low / step); i * step <= s->high; i++)
            draw_tick(x, y, of, i * step, svg);
        return;
    }
    if (!of) { /* counts, which people choose as powers of two */
        double step = ceil(log2(s->high / s->low) / POWERS);
        for (double p = ceil(log2(s->low) - 1e-9); p <= log2(s->high) + 1e-9; p += step)
            draw_tick(x, y, of, exp2(p), svg);
        return;
    }
    bool few = log10(s->high / s->low) > DECADES;
    for (double power = floor(log10(s->low)); power <= log10(s->high) + 1e-9; power++)
        for (int i = 0; i < (few ? 1 : 3); i++) {
            double v = steps[i] * pow(10, power);
            if (v >= s->low * (1 - 1e-9) && v <= s->high * (1 + 1e-9)) draw_tick(x, y, of, v, svg);
        }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Draws points from `from` on up to one that is not shown; returns where to go on. */
static size_t draw_run(const chart_panel *p, const chart_line *l, const scale *x, const scale *y,
                       size_t from, strbuf *svg)
{
    enum { ROOM = 256 };
    double xy[ROOM][2];
    const char *colour = svg_colour(l->colour), *dash = l->is_bound ? "6 4" : NULL;
    size_t n = 0;
    for (; from + n < l->n_points && n < ROOM && is_point(p, &l->xy[2 * (from + n)]); n++) {
        xy[n][0] = pixel_of(x, l->xy[2 * (from + n)]);
        xy[n][1] = pixel_of(y, l->xy[2 * (from + n) + 1]);
        if (l->without_dots) continue;
        if (!l->is_bound) svg_circle(svg, xy[n][0], xy[n][1], 3, colour);
        else svg_line(svg, xy[n][0] - 5, xy[n][1], xy[n][0] + 5, xy[n][1], colour, 1, NULL);
    }
    if (n > 1) svg_polyline(svg, &xy[0][0], n, colour, dash);
    if (n == 0) return from + 1;
    return n == ROOM ? from + n - 1 : from + n; /* the next part begins where this one ends */
}

static void draw_legend(const chart_line *l, double x, double y, strbuf *svg)
{
    svg_line(svg, x, y - 4, x + 26, y - 4, svg_colour(l->colour), 2, l->is_bound ? "6 4" : NULL);
    svg_text(svg, x + 34, y, SVG_START, 11, 0, ink, l->name);
}

static void draw_panel(const chart_panel *p, double left, strbuf *svg)
{
    scale x = scale_of(p, 0, left + LEFT, WIDTH), y = scale_of(p, 1, TOP + HEIGHT, -HEIGHT);
    draw_ticks(&x, &y, 0, svg);
    draw_ticks(&x, &y, 1, svg);
    svg_line(svg, x.from, y.from, x.from + WIDTH, y.from, ink, 1, NULL);
    svg_line(svg, x.from, y.from, x.from, TOP, ink, 1, NULL);
    svg_text(svg, x.from, TOP - 10, SVG_START, 13, 0, ink, p->title);
    svg_text(svg, x.from + WIDTH / 2.0, y.from + 36, SVG_MIDDLE, 12, 0, ink, p->x.title);
    svg_text(svg, left + 16, TOP + HEIGHT / 2.0, SVG_MIDDLE, 12, -90, ink, p->y.title);
    for (size_t i = 0; i < p->n_lines; i++) {
        for (size_t k = 0; k < p->lines[i].n_points;) k = draw_run(p, &p->lines[i], &x, &y, k, svg);
        draw_legend(&p->lines[i], x.from, y.from + BELOW + ROW * (double)(i + 1), svg);
    }
}

void chart_draw(const char *title, const chart_panel *panels, size_t n_panels, strbuf *out)
{
    size_t rows = 0;
    for (size_t i = 0; i < n_panels; i++)
        if (panels[i].n_lines > rows) rows = panels[i].n_lines;
    double panel = LEFT + WIDTH + GAP;
    svg_begin(out, panel * (double)n_panels, TOP + HEIGHT + BELOW + ROW * (double)rows + 16);
    svg_text(out, 12, 24, SVG_START, 15, 0, ink, title);
    for (size_t i = 0; i < n_panels; i++) draw_panel(&panels[i], panel * (double)i, out);
    svg_end(out);
}

status chart_write(const char *path, const char *title, const chart_panel *panels, size_t n_panels,
                   error *err)
{
    strbuf svg = {0};
    chart_draw(title, panels, n_panels, &svg);
    status st = svg_write(path, &svg, err);
    strbuf_destroy(&svg);
    return st;
}
