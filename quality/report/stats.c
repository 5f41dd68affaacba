/* Means and their intervals. */
#include "quality/report/stats.h"

#include "base/base.h"

#include <math.h>
#include <stdlib.h>

enum { RESAMPLES = 2000 };

static const double z95 = 1.959963984540054;

typedef struct cluster {
    double sum;
    size_t n;
} cluster;

static size_t count_clusters(const stat_value *values, size_t n)
{
    size_t clusters = 0;
    for (size_t i = 0; i < n; i++) clusters += i == 0 || values[i].cluster != values[i - 1].cluster;
    return clusters;
}

static stat_mean plain_mean(const stat_value *values, size_t n)
{
    stat_mean m = {.n = n, .n_clusters = count_clusters(values, n)};
    for (size_t i = 0; i < n; i++) m.mean += (double)values[i].value;
    if (n) m.mean /= (double)n;
    m.low = m.high = m.mean;
    return m;
}

/* Variance of the mean, divided by the variance that independent prompts would have
 * (linearised). */
static double design_effect(const stat_value *values, const stat_mean *m)
{
    if (m->n_clusters < 2) return 1;
    double independent = m->mean * (1 - m->mean) / ((double)m->n - 1), sum = 0;
    if (independent <= 0) return 1;
    for (size_t i = 0; i < m->n;) {
        double off = 0;
        size_t from = i;
        for (; i < m->n && values[i].cluster == values[from].cluster; i++)
            off += (double)values[i].value - m->mean;
        sum += off * off;
    }
    double k = (double)m->n_clusters;
    double clustered = sum * k / (k - 1) / ((double)m->n * (double)m->n);
    return clustered > independent ? clustered / independent : 1;
}

stat_mean stat_wilson(const stat_value *values, size_t n)
{
    stat_mean m = plain_mean(values, n);
    if (n == 0) return m;
    double size = (double)n / design_effect(values, &m), z2 = z95 * z95;
    double middle = (m.mean + z2 / (2 * size)) / (1 + z2 / size);
    double half =
        z95 * sqrt(m.mean * (1 - m.mean) / size + z2 / (4 * size * size)) / (1 + z2 / size);
    m.low = m.mean <= 0 ? 0 : middle - half;
    m.high = m.mean >= 1 ? 1 : middle + half;
    return m;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

stat_mean stat_bootstrap(const stat_value *values, size_t n, uint64_t seed)
{
    stat_mean m = plain_mean(values, n);
    if (m.n_clusters < 2) { /* a single context says nothing about others */
        m.low = m.high = NAN;
        return m;
    }
    cluster *clusters = calloc(m.n_clusters, sizeof *clusters);
    double *means = calloc(RESAMPLES, sizeof *means);
    if (!clusters || !means) {
        free(clusters);
        free(means);
        m.low = m.high = NAN;
        return m;
    }
    for (size_t i = 0, c = 0; i < n; i++) {
        if (i > 0 && values[i].cluster != values[i - 1].cluster) c++;
        clusters[c].sum += (double)values[i].value;
        clusters[c].n++;
    }
    rng r = rng_seed(seed);
    for (int k = 0; k < RESAMPLES; k++) {
        double sum = 0, count = 0;
        for (size_t i = 0; i < m.n_clusters; i++) {
            const cluster *c = &clusters[rng_below(&r, (uint32_t)m.n_clusters)];
            sum += c->sum;
            count += (double)c->n;
        }
        means[k] = sum / count;
    }
    qsort(means, RESAMPLES, sizeof *means, by_value);
    m.low = means[RESAMPLES / 40];
    m.high = means[RESAMPLES - 1 - RESAMPLES / 40];
    free(clusters);
    free(means);
    return m;
}
