/* Samples and arrival times. */
#include "cli/bench/bench_serve_stats.h"

#include <math.h>
#include <stdlib.h>

void samples_add(samples *s, double value)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 256;
        double *grown = alloc_resize(NULL, s->values, capacity, sizeof *grown);
        if (!grown) {
            s->failed = true;
            return;
        }
        s->values = grown;
        s->capacity = capacity;
    }
    s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void samples_sort(samples *s)
{
    if (s->n) qsort(s->values, s->n, sizeof *s->values, by_value);
}

double samples_percentile(const samples *s, double p)
{
    if (s->n == 0) return 0;
    double at = p / 100 * (double)(s->n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= s->n) return s->values[s->n - 1];
    double part = at - (double)below;
    return s->values[below] + part * (s->values[below + 1] - s->values[below]);
}

double samples_mean(const samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->values[i];
    return s->n ? sum / (double)s->n : 0;
}

double samples_std(const samples *s)
{
    double mean = samples_mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += (s->values[i] - mean) * (s->values[i] - mean);
    return s->n ? sqrt(sum / (double)s->n) : 0;
}

void samples_destroy(samples *s)
{
    free(s->values);
    *s = (samples){0};
}

/* Uniform in (0, 1), 53 bits: its logarithm is finite. */
static double draw_unit(rng *r) { return ((double)(rng_u64(r) >> 11) + 0.5) * 0x1p-53; }

static double normal(rng *r)
{
    double u = draw_unit(r), v = draw_unit(r);
    return sqrt(-2 * log(u)) * cos(6.28318530717958647692 * v);
}

/* A gamma distributed number with this shape and scale 1 (Marsaglia and Tsang, 2000). */
static double rng_gamma(rng *r, double shape)
{
    /* For a shape below one, a draw with shape + 1 is shrunk by a power of a uniform number. */
    double shrink = shape < 1 ? pow(draw_unit(r), 1 / shape) : 1;
    double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(r), t = 1 + c * x;
        if (t <= 0) continue;
        double v = t * t * t;
        if (log(draw_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v * shrink;
    }
}

double arrival_gap(rng *r, double rate, double burstiness)
{
    return rng_gamma(r, burstiness) / (rate * burstiness);
}
