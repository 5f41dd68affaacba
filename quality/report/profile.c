/* Scores by depth, and means of the measures that need no score. */
#include "quality/report/report.h"

#include <math.h>
#include <stdlib.h>

depth_profile report_depth(const results *r, uint32_t row, uint32_t column, record_arm arm)
{
    depth_profile p = {0};
    size_t n;
    const record *records = records_cell(r->records, row, column, arm, &n);
    for (size_t i = 0; i < n; i++) {
        if (records[i].depth < 0) continue;
        int bin = (int)(records[i].depth * DEPTH_BINS);
        if (bin >= DEPTH_BINS) bin = DEPTH_BINS - 1;
        p.mean[bin] += (double)records[i].score;
        p.n[bin]++;
        p.total++;
    }
    for (int i = 0; i < DEPTH_BINS; i++) p.mean[i] = p.n[i] ? p.mean[i] / (double)p.n[i] : NAN;
    return p;
}

/* ---- measures -------------------------------------------------------------------------------- */

/* The number of prompts behind each sum; the sums are those of measure_means. */
typedef struct needle_sums {
    double *whole, *share;
    size_t n;
    size_t *n_unforced; // [n_layers, n_layers]
} needle_sums;

static bool make_room(measure_means *m, needle_sums *s, uint32_t n_layers)
{
    m->n_layers = n_layers;
    m->jaccard = calloc((size_t)n_layers * n_layers, sizeof *m->jaccard);
    m->whole = s->whole = calloc(n_layers, sizeof *m->whole);
    m->share = s->share = calloc(n_layers, sizeof *m->share);
    m->unforced = calloc((size_t)n_layers * n_layers, sizeof *m->unforced);
    s->n_unforced = calloc((size_t)n_layers * n_layers, sizeof *s->n_unforced);
    return m->jaccard && m->unforced && s->n_unforced && m->whole && m->share;
}

static bool add_findings(measure_means *m, needle_sums *s, const findings *of)
{
    if (of->n_compared) {
        m->compared += of->n_compared;
        m->agreed += of->n_agreed;
        m->divergence += (double)of->divergence * of->n_compared;
    }
    if (!of->n_layers) return true;
    if (!m->n_layers && !make_room(m, s, of->n_layers)) return false;
    if (m->n_layers != of->n_layers) return true; /* by another model: no run resumes from it */
    m->n++;
    for (size_t i = 0; i < (size_t)of->n_layers * of->n_layers; i++) {
        m->jaccard[i] += (double)of->jaccard[i];
        if (isnan(of->unforced[i])) continue;
        m->unforced[i] += (double)of->unforced[i];
        s->n_unforced[i]++;
    }
    if (isnan(of->needle_whole[0])) return true;
    s->n++;
    for (uint32_t l = 0; l < of->n_layers; l++) {
        s->whole[l] += (double)of->needle_whole[l];
        s->share[l] += (double)of->needle_share[l];
    }
    return true;
}

/* Mean over adjacent layers. Pairs of layers in which no token was free are left out; NaN when all
 * are. */
static double mean_of_neighbours(const double *pairs, uint32_t layers)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t l = 0; l + 1 < layers; l++) {
        double pair = pairs[(size_t)l * layers + l + 1];
        if (isnan(pair)) continue;
        sum += pair;
        n++;
    }
    return n ? sum / n : NAN;
}

static void divide(measure_means *m, const needle_sums *s)
{
    m->divergence = m->compared ? m->divergence / (double)m->compared : NAN;
    m->neighbours = m->neighbours_all = NAN;
    if (!m->n) return;
    uint32_t layers = m->n_layers;
    for (size_t i = 0; i < (size_t)layers * layers; i++) {
        m->jaccard[i] /= (double)m->n;
        m->unforced[i] = s->n_unforced[i] ? m->unforced[i] / (double)s->n_unforced[i] : NAN;
    }
    for (uint32_t l = 0; l < layers; l++) {
        m->whole[l] = s->n ? m->whole[l] / (double)s->n : NAN;
        m->share[l] = s->n ? m->share[l] / (double)s->n : NAN;
    }
    m->neighbours = mean_of_neighbours(m->unforced, layers);
    m->neighbours_all = mean_of_neighbours(m->jaccard, layers);
}

status report_measures(const results *r, uint32_t first_row, uint32_t column, measure_means *out,
                       error *err)
{
    *out = (measure_means){0};
    needle_sums sums = {0};
    for (uint32_t row = first_row; row < results_next_task(r, first_row); row++) {
        size_t n;
        const record *records = records_cell(r->records, row, column, results_arm(r), &n);
        for (size_t i = 0; i < n; i++) {
            if (add_findings(out, &sums, &records[i].findings)) continue;
            free(sums.n_unforced);
            measure_means_destroy(out);
            return error_set(err, STATUS_NO_MEMORY, "out of memory");
        }
    }
    divide(out, &sums);
    free(sums.n_unforced);
    return STATUS_IS_OK;
}

void measure_means_destroy(measure_means *m)
{
    free(m->jaccard);
    free(m->unforced);
    free(m->whole);
    free(m->share);
    *m = (measure_means){0};
}
