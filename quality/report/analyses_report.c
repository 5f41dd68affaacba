/* Reports what evictions change in attention, and heavy hitters: means, tables, JSON. */
#include "quality/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- means ----------------------------------------------------------------------------------- */

static bool add_analysis(analysis_means *m, size_t **counts, const analysis *of)
{
    if (!of->n_layers) return true;
    if (!m->n_layers) {
        size_t n = (size_t)ANALYSIS_ROWS * of->n_layers;
        m->values = calloc(n, sizeof *m->values);
        *counts = calloc(n, sizeof **counts);
        if (!m->values || !*counts) return false;
        m->n_layers = of->n_layers;
    }
    if (m->n_layers != of->n_layers) return true; /* by another model: no run resumes from it */
    m->n++;
    for (size_t i = 0; i < (size_t)ANALYSIS_ROWS * m->n_layers; i++) {
        if (isnan(of->values[i])) continue;
        m->values[i] += (double)of->values[i];
        (*counts)[i]++;
    }
    return true;
}

status report_analyses(const results *r, uint32_t first_row, uint32_t column, analysis_means *out,
                       error *err)
{
    size_t *counts = NULL;
    bool ok = true;
    *out = (analysis_means){0};
    for (uint32_t row = first_row; row < results_next_task(r, first_row); row++) {
        size_t n;
        const record *records = records_cell(r->records, row, column, ARM_SINGLE, &n);
        for (size_t i = 0; ok && i < n; i++)
            ok = add_analysis(out, &counts, &records[i].findings.attention);
    }
    for (size_t i = 0; ok && i < (size_t)ANALYSIS_ROWS * out->n_layers; i++)
        out->values[i] = counts[i] ? out->values[i] / (double)counts[i] : NAN;
    free(counts);
    if (!ok) analysis_means_destroy(out);
    return ok ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
}

void analysis_means_destroy(analysis_means *m)
{
    free(m->values);
    *m = (analysis_means){0};
}

double analysis_mean(const analysis_means *m, uint32_t row)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        double value = m->values[(size_t)row * m->n_layers + l];
        if (isnan(value)) continue;
        sum += value;
        n++;
    }
    return n ? sum / n : NAN;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void put_range(strbuf *out, const analysis_means *m, uint32_t row)
{
    const double *values = m->values + (size_t)row * m->n_layers;
    double least = INFINITY, most = -INFINITY;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        least = fmin(least, values[l]);
        most = fmax(most, values[l]);
    }
    double mean = analysis_mean(m, row);
    if (isnan(mean)) strbuf_puts(out, " |");
    else strbuf_printf(out, " %.3f (%.3f to %.3f) |", mean, least, most);
}

static void put_name(const results *r, uint32_t column, const analysis_means *m, strbuf *out)
{
    strbuf_puts(out, "| ");
    report_put_method(out, &r->variants->items[column]);
    strbuf_printf(out, " | %s | %zu |", r->variants->items[column].budget, m->n);
}

static void put_changes(const results *r, uint32_t column, const analysis_means *m, bool *any,
                        strbuf *out)
{
    if (isnan(analysis_mean(m, ANALYSIS_KV_L1))) return; /* the full cache has no such figures */
    if (!*any)
        strbuf_puts(out, "\nAttention over what was kept, mean of the layers (least to most):\n\n"
                         "| method | budget | prompts | KV L1 loss | attention L1 | attention "
                         "cosine | eviction loss | output cosine | heavy hitters kept |\n"
                         "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    *any = true;
    put_name(r, column, m, out);
    for (uint32_t row = 0; row < ANALYSIS_MEASURES; row++) put_range(out, m, row);
    strbuf_putc(out, '\n');
}

static void put_hitters(const results *r, uint32_t column, const analysis_means *m, bool *any,
                        strbuf *out)
{
    if (!*any)
        strbuf_puts(out, "\nHeavy hitters that the answer made, of all (of all tokens seen, so "
                         "many are the answer's):\n\n| method | budget | prompts | step 1 | step "
                         "300 | step 500 | last step |\n| --- | --- | --- | --- | --- | --- | --- "
                         "|\n");
    *any = true;
    put_name(r, column, m, out);
    for (uint32_t at = 0; at < HEAVY_STEPS; at++) {
        double share = analysis_mean(m, ANALYSIS_ANSWER + at);
        if (isnan(share)) strbuf_puts(out, " |");
        else strbuf_printf(out, " %.3f (%.3f) |", share, analysis_mean(m, ANALYSIS_SEEN + at));
    }
    strbuf_putc(out, '\n');
}

typedef void put_line(const results *r, uint32_t column, const analysis_means *m, bool *any,
                      strbuf *out);

static status put_table(const results *r, uint32_t first_row, put_line *put, strbuf *out,
                        error *err)
{
    bool any = false;
    for (uint32_t column = 0; column < r->variants->n; column++) {
        analysis_means m;
        RETURN_IF_ERROR(report_analyses(r, first_row, column, &m, err));
        if (m.n) put(r, column, &m, &any, out);
        analysis_means_destroy(&m);
    }
    return STATUS_IS_OK;
}

status analyses_table(const results *r, uint32_t first_row, strbuf *out, error *err)
{
    RETURN_IF_ERROR(put_table(r, first_row, put_changes, out, err));
    return put_table(r, first_row, put_hitters, out, err);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_values(strbuf *out, const double *values, size_t n)
{
    strbuf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (isnan(values[i])) strbuf_puts(out, i ? ",null" : "null");
        else strbuf_printf(out, i ? ",%.4g" : "%.4g", values[i]);
    }
    strbuf_putc(out, ']');
}

/* Writes n rows [n_layers] as arrays in an array. */
static void put_rows(strbuf *out, const analysis_means *m, uint32_t row, uint32_t n)
{
    strbuf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        if (i) strbuf_putc(out, ',');
        put_values(out, m->values + (size_t)(row + i) * m->n_layers, m->n_layers);
    }
    strbuf_putc(out, ']');
}

static void put_column(const analysis_means *m, strbuf *out)
{
    static const char *const names[ANALYSIS_MEASURES] = {"kv_l1_loss",       "attention_l1",
                                                         "attention_cosine", "eviction_loss",
                                                         "output_cosine",    "heavy_hitters_kept"};
    static const char *const steps[HEAVY_STEPS] = {"1", "300", "500", "last"};
    strbuf_printf(out, ",\"prompts\":%zu", m->n);
    for (uint32_t row = 0; row < ANALYSIS_MEASURES; row++) {
        strbuf_printf(out, ",\"%s\":", names[row]);
        put_values(out, m->values + (size_t)row * m->n_layers, m->n_layers);
    }
    strbuf_puts(out, ",\"kept_by_bin\":");
    put_rows(out, m, ANALYSIS_KEPT, HEAVY_BINS);
    strbuf_puts(out, ",\"steps\":[");
    for (uint32_t at = 0; at < HEAVY_STEPS; at++) {
        strbuf_printf(out, "%s{\"step\":\"%s\",\"of_answer\":", at ? "," : "", steps[at]);
        put_rows(out, m, ANALYSIS_ANSWER + at, 1);
        strbuf_puts(out, ",\"answer_of_seen\":");
        put_rows(out, m, ANALYSIS_SEEN + at, 1);
        strbuf_puts(out, ",\"heavy_by_bin\":");
        put_rows(out, m, ANALYSIS_HEAVY + at * HEAVY_BINS, HEAVY_BINS);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}");
}

status analyses_json(const results *r, uint32_t first_row, strbuf *out, error *err)
{
    bool any = false;
    for (uint32_t column = 0; column < r->variants->n; column++) {
        analysis_means m;
        RETURN_IF_ERROR(report_analyses(r, first_row, column, &m, err));
        if (m.n) {
            if (!any)
                strbuf_printf(out,
                              ",\n\"analyses\":{\"bins_of_prompt\":%d,\"bins_of_answer\":%d,"
                              "\"methods\":[",
                              HEAVY_PROMPT_BINS, HEAVY_ANSWER_BINS);
            report_begin_column(r, column, !any, out);
            put_column(&m, out);
            any = true;
        }
        analysis_means_destroy(&m);
    }
    if (any) strbuf_puts(out, "]}");
    return STATUS_IS_OK;
}
