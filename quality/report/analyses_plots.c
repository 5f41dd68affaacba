/* Draws what evictions change by layer, and where heavy hitters lie. */
#include "quality/report/report.h"
#include "quality/report/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ink[] = "#333333", faint[] = "#cccccc";

/* ---- by layer -------------------------------------------------------------------------------- */

enum {
    WIDE = 190,
    HIGH = 120,
    LEFT = 44,
    TOP = 62,
    GAP_X = 30,
    GAP_Y = 34,
    LEGEND = 200,
    KEY_CHARS = 28
};

typedef struct panel {
    const char *title;
    analysis_row row;
} panel;

static const panel panels[] = {
    {"KV L1 loss", ANALYSIS_KV_L1},
    {"attention L1", ANALYSIS_ATTENTION_L1},
    {"attention cosine", ANALYSIS_ATTENTION_COSINE},
    {"eviction loss |y - y^| / |y|", ANALYSIS_LOSS},
    {"cosine of y and y^", ANALYSIS_OUTPUT_COSINE},
};
enum { PANELS = sizeof panels / sizeof panels[0], BUDGETS_MAX = 8 };

typedef struct figure {
    const results *r;
    analysis_means *means; // [variants]
    const char *budgets[BUDGETS_MAX];
    size_t n_budgets;
    double most[PANELS]; // end of each axis, which all budgets share
} figure;

static bool has_changes(const analysis_means *m)
{
    return m->n && !isnan(analysis_mean(m, ANALYSIS_KV_L1));
}

static size_t budget_of(const figure *f, uint32_t column)
{
    size_t i = 0;
    while (i < f->n_budgets && strcmp(f->budgets[i], f->r->variants->items[column].budget) != 0)
        i++;
    return i;
}

static void find_ranges(figure *f)
{
    for (uint32_t i = 0; i < f->r->variants->n; i++) {
        const analysis_means *m = &f->means[i];
        if (!has_changes(m)) continue;
        if (budget_of(f, i) == f->n_budgets && f->n_budgets < BUDGETS_MAX)
            f->budgets[f->n_budgets++] = f->r->variants->items[i].budget;
        for (size_t k = 0; k < PANELS; k++)
            for (uint32_t l = 0; l < m->n_layers; l++)
                f->most[k] = fmax(f->most[k], m->values[(size_t)panels[k].row * m->n_layers + l]);
    }
    for (size_t k = 0; k < PANELS; k++) f->most[k] = f->most[k] > 1 ? f->most[k] : 1;
}

static double panel_x(size_t budget) { return LEFT + (double)budget * (WIDE + GAP_X); }
static double panel_y(size_t k) { return TOP + (double)k * (HIGH + GAP_Y); }

static void put_frame(const figure *f, size_t budget, size_t k, strbuf *svg)
{
    double x = panel_x(budget), y = panel_y(k);
    char text[64];
    for (int i = 0; i <= 4; i++) {
        double at = y + HIGH - HIGH * i / 4.0;
        svg_line(svg, x, at, x + WIDE, at, faint, 0.5, NULL);
        snprintf(text, sizeof text, "%.2f", f->most[k] * i / 4);
        if (budget == 0) svg_text(svg, x - 4, at + 4, SVG_END, 9, 0, ink, text);
    }
    snprintf(text, sizeof text, "%s, budget %s", panels[k].title, f->budgets[budget]);
    svg_text(svg, x, y - 6, SVG_START, 10, 0, ink, text);
}

static void put_curve(const figure *f, size_t k, uint32_t column, size_t number, strbuf *svg)
{
    const analysis_means *m = &f->means[column];
    size_t n = 0;
    double *xy = malloc(2 * (size_t)m->n_layers * sizeof *xy);
    svg->failed |= !xy;
    for (uint32_t l = 0; xy && l < m->n_layers; l++) {
        double value = m->values[(size_t)panels[k].row * m->n_layers + l];
        if (isnan(value)) continue;
        double step = m->n_layers > 1 ? (double)WIDE / (m->n_layers - 1) : 0;
        xy[2 * n] = panel_x(budget_of(f, column)) + l * step;
        xy[2 * n + 1] = panel_y(k) + HIGH - HIGH * fmax(value, 0) / f->most[k];
        svg_circle(svg, xy[2 * n], xy[2 * n + 1], 2, svg_colour(number));
        n++;
    }
    if (n) svg_polyline(svg, xy, n, svg_colour(number), svg_dash(number));
    free(xy);
}

static void put_key(const figure *f, uint32_t column, size_t number, strbuf *svg)
{
    double x = panel_x(f->n_budgets) - 8, y = TOP + 14.0 * (double)number;
    const variant *v = &f->r->variants->items[column];
    bool whole = v->label_chars <= KEY_CHARS;
    char name[KEY_CHARS + 4];
    snprintf(name, sizeof name, "%.*s%s", whole ? (int)v->label_chars : KEY_CHARS, v->method,
             whole ? "" : "...");
    svg_line(svg, x, y, x + 20, y, svg_colour(number), 2, svg_dash(number));
    svg_text(svg, x + 26, y + 4, SVG_START, 11, 0, ink, name);
}

static status plot_changes(figure *f, uint32_t first_row, const char *folder, error *err)
{
    const char *name = f->r->sources->items[first_row].name;
    size_t number = 0;
    char title[160];
    strbuf svg = {0};
    svg_begin(&svg, panel_x(f->n_budgets) + LEGEND, panel_y(PANELS) + 8);
    snprintf(title, sizeof title, "%.60s: attention over what was kept, by layer", name);
    svg_text(&svg, 8, 20, SVG_START, 14, 0, ink, title);
    svg_text(&svg, 8, 38, SVG_START, 10, 0, ink, "from the first layer, left, to the last");
    for (size_t b = 0; b < f->n_budgets; b++)
        for (size_t k = 0; k < PANELS; k++) put_frame(f, b, k, &svg);
    for (uint32_t i = 0; i < f->r->variants->n; i = results_method_end(f->r, i)) {
        bool any = false;
        for (uint32_t c = i; c < results_method_end(f->r, i); c++)
            for (size_t k = 0; k < PANELS; k++) {
                if (!has_changes(&f->means[c]) || budget_of(f, c) == f->n_budgets) continue;
                put_curve(f, k, c, number, &svg);
                any = true;
            }
        if (any) put_key(f, i, number++, &svg);
    }
    svg_end(&svg);
    status st = plots_write_file(folder, "attention", name, NULL, &svg, err);
    strbuf_destroy(&svg);
    return st;
}

/* ---- heavy hitters --------------------------------------------------------------------------- */

enum { BIN = 9, STRIP = 14, LAYERS_DRAWN = 4, STRIPS = HEAVY_STEPS + 1, NAMES = 70 };

static void put_strip(const analysis_means *m, uint32_t row, uint32_t layer, double x, double y,
                      strbuf *svg)
{
    char colour[8];
    for (uint32_t i = 0; i < HEAVY_BINS; i++) {
        svg_scale(m->values[(size_t)(row + i) * m->n_layers + layer], colour);
        double gap = i < HEAVY_PROMPT_BINS ? 0 : 4; /* a gap where the answer begins */
        svg_rect(svg, x + i * (double)BIN + gap, y, BIN, STRIP - 1, colour);
    }
}

/* Steps that no answer reached have no strip, and the full cache has none for kept tokens. */
static uint32_t put_layer(const analysis_means *m, uint32_t layer, double x, double y, bool names,
                          strbuf *svg)
{
    static const char *const steps[STRIPS] = {"step 1", "step 300", "step 500", "last step",
                                              "kept"};
    uint32_t n = 0;
    for (uint32_t at = 0; at < STRIPS; at++) {
        bool kept = at == HEAVY_STEPS;
        double there = analysis_mean(m, kept ? ANALYSIS_KEPT : ANALYSIS_ANSWER + at);
        if (isnan(there)) continue;
        double strip_y = y + n++ * (double)STRIP;
        put_strip(m, kept ? ANALYSIS_KEPT : ANALYSIS_HEAVY + at * HEAVY_BINS, layer, x, strip_y,
                  svg);
        if (names) svg_text(svg, x - 4, strip_y + 11, SVG_END, 10, 0, ink, steps[at]);
    }
    return n;
}

static void put_method(const analysis_means *m, const char *budget, double y, strbuf *svg)
{
    char text[64];
    uint32_t drawn = m->n_layers < LAYERS_DRAWN ? m->n_layers : LAYERS_DRAWN;
    for (uint32_t i = 0; i < drawn; i++) {
        uint32_t layer = drawn > 1 ? i * (m->n_layers - 1) / (drawn - 1) : 0;
        double x = NAMES + i * (double)(HEAVY_BINS * BIN + 24);
        snprintf(text, sizeof text, "layer %u, budget %s", layer, budget);
        svg_text(svg, x, y - 4, SVG_START, 11, 0, ink, text);
        put_layer(m, layer, x, y, i == 0, svg);
    }
}

static status plot_heavy(const figure *f, uint32_t first_row, uint32_t first, const char *folder,
                         error *err)
{
    uint32_t last = results_method_end(f->r, first), n = 0;
    const variant *v = &f->r->variants->items[first];
    const char *name = f->r->sources->items[first_row].name;
    for (uint32_t i = first; i < last; i++) n += f->means[i].n > 0;
    if (n == 0) return STATUS_IS_OK;
    enum { BLOCK = STRIPS * STRIP + 28 };
    double width = NAMES + LAYERS_DRAWN * (double)(HEAVY_BINS * BIN + 24);
    char title[256];
    strbuf svg = {0};
    svg_begin(&svg, width + 40, TOP + n * (double)BLOCK);
    snprintf(title, sizeof title, "%.60s: %.*s, share of a place's tokens that are heavy hitters",
             name, v->label_chars < 80 ? (int)v->label_chars : 80, v->method);
    svg_text(&svg, 8, 20, SVG_START, 14, 0, ink, title);
    svg_text(&svg, 8, 38, SVG_START, 10, 0, ink,
             "the prompt from its first token, left, to its last; behind the gap the answer");
    n = 0;
    for (uint32_t i = first; i < last; i++)
        if (f->means[i].n)
            put_method(&f->means[i], f->r->variants->items[i].budget, TOP + n++ * (double)BLOCK,
                       &svg);
    plots_put_scale(&svg, width - 8, TOP, STRIPS * STRIP);
    svg_end(&svg);
    status st = plots_write_file(folder, "heavy", name, v, &svg, err);
    strbuf_destroy(&svg);
    return st;
}

/* ---- the drawings of a task ------------------------------------------------------------------ */

status analyses_plot(const results *r, uint32_t first_row, const char *folder, error *err)
{
    figure f = {.r = r, .means = calloc(r->variants->n, sizeof *f.means)};
    if (!f.means) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = STATUS_IS_OK;
    for (uint32_t i = 0; status_ok(st) && i < r->variants->n; i++)
        st = report_analyses(r, first_row, i, &f.means[i], err);
    find_ranges(&f);
    if (status_ok(st) && f.n_budgets) st = plot_changes(&f, first_row, folder, err);
    for (uint32_t i = 0; status_ok(st) && i < r->variants->n; i = results_method_end(r, i))
        st = plot_heavy(&f, first_row, i, folder, err);
    for (uint32_t i = 0; i < r->variants->n; i++) analysis_means_destroy(&f.means[i]);
    free(f.means);
    return st;
}
