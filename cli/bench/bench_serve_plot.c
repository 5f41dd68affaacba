/* Draws a run of `octavo bench serve`: tokens and requests over time, latencies by percentile. */
#include "cli/bench/bench_serve.h"

#include "quality/report/chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 400, PERCENTS = 101, METRICS = 4 };

/* The curves over time, in POINTS bins or fewer of a whole number of seconds each. */
typedef struct timeline {
    double tokens[2 * POINTS], running[2 * POINTS];
    size_t n;
    double bin_s;
} timeline;

/* The last bin ends with the run. */
static double bin_seconds(const timeline *t, const serve_run *run, size_t bin)
{
    double left = run->duration_s - (double)bin * t->bin_s;
    return left < t->bin_s ? left : t->bin_s;
}

static void add_tokens(timeline *t, const serve_run *run)
{
    for (size_t i = 0; i < run->n_seconds; i++) {
        size_t bin = (size_t)((double)i / t->bin_s);
        if (bin < t->n) t->tokens[2 * bin + 1] += run->tokens_by_second[i];
    }
}

/* Each request counts in a bin for the share of the bin in which it is under way. */
static void add_running(timeline *t, const serve_call *c)
{
    double from = c->start_s, to = c->start_s + c->latency_s;
    for (size_t bin = (size_t)(fmax(from, 0) / t->bin_s); bin < t->n; bin++) {
        double begin = (double)bin * t->bin_s, end = begin + t->bin_s;
        if (begin >= to) break;
        t->running[2 * bin + 1] += fmin(to, end) - fmax(from, begin);
    }
}

static void fill_timeline(timeline *t, const serve_run *run)
{
    t->bin_s = fmax(1, ceil(run->duration_s / POINTS));
    t->n = (size_t)ceil(run->duration_s / t->bin_s);
    if (t->n > POINTS) t->n = POINTS;
    add_tokens(t, run);
    for (size_t i = 0; i < run->n_calls; i++) add_running(t, &run->calls[i]);
    /* A short end of the run tells little of its rate. */
    if (t->n > 1 && bin_seconds(t, run, t->n - 1) < t->bin_s / 2) t->n--;
    for (size_t i = 0; i < t->n; i++) {
        double seconds = bin_seconds(t, run, i);
        t->tokens[2 * i] = t->running[2 * i] = (double)i * t->bin_s + seconds / 2;
        t->tokens[2 * i + 1] /= seconds;
        t->running[2 * i + 1] /= seconds;
    }
}

static void fill_percentiles(const samples *ms, double xy[2 * PERCENTS])
{
    for (int i = 0; i < PERCENTS; i++) {
        xy[2 * i] = i;
        xy[2 * i + 1] = samples_percentile(ms, i);
    }
}

status serve_plot(const serve_run *run, const samples ms[4], const char *path, error *err)
{
    static const char *const names[METRICS] = {"time to first token", "time per output token",
                                               "between two tokens", "whole request"};
    timeline *t = calloc(1, sizeof *t);
    if (!t) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    double by_percent[METRICS][2 * PERCENTS];
    chart_line latencies[METRICS];
    fill_timeline(t, run);
    for (size_t m = 0; m < METRICS; m++) {
        fill_percentiles(&ms[m], by_percent[m]);
        latencies[m] = (chart_line){.name = names[m],
                                    .xy = by_percent[m],
                                    .n_points = ms[m].n ? PERCENTS : 0,
                                    .colour = m,
                                    .without_dots = true};
    }
    bool few = t->n <= 60;
    const chart_line tokens = {"tokens a second", t->tokens, t->n, 0, false, !few};
    const chart_line running = {"requests under way", t->running, t->n, 1, false, !few};
    const chart_panel panels[] = {
        {"Generated tokens",
         {"seconds since the run began", false},
         {"tokens/s", false},
         &tokens,
         1},
        {"Requests at once",
         {"seconds since the run began", false},
         {"requests", false},
         &running,
         1},
        {"Latencies of the requests that succeeded",
         {"percentile", false},
         {"ms", true},
         latencies,
         METRICS},
    };
    char title[160];
    snprintf(title, sizeof title, "octavo bench serve: %llu requests in %.4g s",
             (unsigned long long)run->n_calls, run->duration_s);
    status st = chart_write(path, title, panels, sizeof panels / sizeof panels[0], err);
    free(t);
    return st;
}
