/* Draws memory and room by context length. */
#include "cli/plan_plot.h"

#include "quality/report/chart.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    LEAST = 256,
    STEPS = 4, /* lengths from one to twice as much */
    POINTS = 31 * STEPS + 2,
};

/* The memory of one policy by context, without lengths that the model or the policy cannot have. */
typedef struct curve {
    double answering[2 * POINTS], peak[2 * POINTS], fit[2 * POINTS];
    size_t n;
    bool has_peak; // the peak is above what the answer takes, for some length
    char answering_name[96], peak_name[96];
} curve;

static double page_mib(const plan_question *q, const plan_answer *a)
{
    return (double)backend_page_bytes(&a->measures, q->model->n_ranks) / (1 << 20);
}

static void add_length(curve *c, const plan_question *q, const plan_line *l, uint32_t context)
{
    error unused;
    plan_answer a = *l->answer;
    plan_question at = *q;
    at.context = context;
    if (at.output > context / 2) at.output = context / 2;
    if (!status_ok(plan_fill(&at, l->policy, &a, &unused)) ||
        !status_ok(plan_check_context(&at, l->policy, &a.room.need, &unused)))
        return;
    double page = page_mib(q, &a);
    size_t i = 2 * c->n++;
    c->answering[i] = c->peak[i] = c->fit[i] = context;
    c->answering[i + 1] = (double)a.room.need.most * page;
    c->peak[i + 1] = (double)a.room.need.peak * page;
    c->fit[i + 1] = (double)a.room.fit;
    c->has_peak |= a.room.need.peak > a.room.need.most;
}

static void fill_curve(curve *c, const plan_question *q, const plan_line *l, uint32_t longest)
{
    for (uint64_t base = LEAST; base < longest; base *= 2)
        for (uint64_t k = 0; k < STEPS; k++)
            if (base + base * k / STEPS < longest)
                add_length(c, q, l, (uint32_t)(base + base * k / STEPS));
    add_length(c, q, l, longest);
    snprintf(c->answering_name, sizeof c->answering_name, "%.60s%s", l->name,
             c->has_peak ? ": while it answers" : "");
    snprintf(c->peak_name, sizeof c->peak_name, "%.60s: at its prompt's end", l->name);
}

/* Longer contexts are drawn where a policy can have them, up to the one that was asked for. */
static uint32_t longest_of(const plan_question *q)
{
    uint32_t model = q->model->max_model_len;
    return q->context > model ? q->context : model;
}

status plan_plot(const char *path, const plan_question *q, const plan_line *lines, size_t n_lines,
                 error *err)
{
    curve *curves = calloc(n_lines, sizeof *curves);
    if (!curves) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    uint32_t longest = longest_of(q);
    double pool = (double)lines[0].answer->pages * page_mib(q, lines[0].answer);
    const double bound[] = {LEAST, pool, longest, pool};
    chart_line memory[2 * PLAN_LINES_MAX + 1], room[PLAN_LINES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < n_lines; i++) {
        curve *c = &curves[i];
        fill_curve(c, q, &lines[i], longest);
        memory[n++] = (chart_line){c->answering_name, c->answering, c->n, i, false, true};
        if (c->has_peak) memory[n++] = (chart_line){c->peak_name, c->peak, c->n, i, true, true};
        room[i] = (chart_line){lines[i].name, c->fit, c->n, i, false, true};
    }
    memory[n++] = (chart_line){"the KV pool", bound, 2, n_lines, true, true};
    const chart_panel panels[] = {
        {"KV pages of one sequence", {"tokens of context", true}, {"MiB", true}, memory, n},
        {"Sequences that fit at once",
         {"tokens of context", true},
         {"sequences", true},
         room,
         n_lines},
    };
    char title[200], one[32];
    format_bytes(one, sizeof one, q->memory);
    snprintf(title, sizeof title, "octavo plan: %.80s, %u x %s, output of up to %u tokens",
             q->model->config.architecture, q->n_devices, one, q->output);
    status st = chart_write(path, title, panels, sizeof panels / sizeof panels[0], err);
    free(curves);
    return st;
}
