/* Draws what `octavo bench engine` measured: decode by batch and prefill by length, each beside
 * what the machine's limits allow. */
#include "cli/bench/bench_engine_plot.h"

#include "quality/report/chart.h"

#include <stdio.h>
#include <stdlib.h>

enum { LINES_MAX = 2 * BENCH_LIST_MAX }; /* a line of what was measured, and one of its limit */

typedef struct curve {
    uint32_t key; // decode: tokens that each sequence holds; prefill: prompts together
    char name[48], limit_name[48];
    double reached[2 * BENCH_LIST_MAX], limit[2 * BENCH_LIST_MAX];
    size_t n;
} curve;

typedef struct curves {
    curve items[BENCH_LIST_MAX];
    size_t n;
    chart_line lines[LINES_MAX];
} curves;

static curve *find_curve(curves *c, const bench_point *p)
{
    uint32_t key = p->is_prefill ? p->batch : p->tokens;
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].key == key) return &c->items[i];
    if (c->n == BENCH_LIST_MAX) return NULL;
    curve *made = &c->items[c->n++];
    *made = (curve){.key = key};
    const char *what = p->is_prefill ? key == 1 ? "prompt" : "prompts together" : "tokens in each";
    snprintf(made->name, sizeof made->name, "%u %s", key, what);
    snprintf(made->limit_name, sizeof made->limit_name, "at the machine's limits");
    return made;
}

/* Keeps the points in the order of x, because lists may be given in any order. */
static void add_point(curve *c, double x, double reached, double limit)
{
    size_t i = c->n++;
    for (; i > 0 && c->reached[2 * (i - 1)] > x; i--)
        for (size_t k = 0; k < 2; k++) {
            c->reached[2 * i + k] = c->reached[2 * (i - 1) + k];
            c->limit[2 * i + k] = c->limit[2 * (i - 1) + k];
        }
    c->reached[2 * i] = c->limit[2 * i] = x;
    c->reached[2 * i + 1] = reached;
    c->limit[2 * i + 1] = limit;
}

static void fill_curves(const bench *b, bool prefill, curves *out)
{
    for (size_t i = 0; i < b->n_points; i++) {
        const bench_point *p = &b->points[i];
        curve *c = p->is_prefill == prefill ? find_curve(out, p) : NULL;
        if (c && c->n < BENCH_LIST_MAX)
            add_point(c, prefill ? p->tokens : p->batch, p->tokens_s, p->limit_tokens_s);
    }
    for (size_t i = 0; i < out->n; i++) {
        const curve *c = &out->items[i];
        out->lines[2 * i] = (chart_line){c->name, c->reached, c->n, i, false, false};
        out->lines[2 * i + 1] = (chart_line){c->limit_name, c->limit, c->n, i, true, false};
    }
}

status bench_engine_plot(const bench *b, const char *path, error *err)
{
    curves *of = calloc(2, sizeof *of);
    if (!of) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    fill_curves(b, false, &of[0]);
    fill_curves(b, true, &of[1]);
    const chart_panel panels[] = {
        {"Decode",
         {"sequences that decode together", true},
         {"tokens/s", false},
         of[0].lines,
         2 * of[0].n},
        {"Prefill", {"tokens of a prompt", true}, {"tokens/s", false}, of[1].lines, 2 * of[1].n},
    };
    char title[200];
    snprintf(title, sizeof title, "octavo bench engine: %.120s, %s on %u threads", b->title,
             b->model.facts.isa, b->model.facts.n_threads);
    status st = chart_write(path, title, panels, sizeof panels / sizeof panels[0], err);
    free(of);
    return st;
}
