/* Writes the results as JSON. */
#include "quality/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_number(strbuf *out, const char *name, double value)
{
    if (isnan(value)) strbuf_printf(out, "\"%s\":null", name);
    else strbuf_printf(out, "\"%s\":%.6g", name, value);
}

static void put_mean(strbuf *out, const char *name, const stat_mean *m)
{
    strbuf_printf(out, "\"%s\":{\"n\":%zu,\"contexts\":%zu", name, m->n, m->n_clusters);
    if (m->n) {
        strbuf_putc(out, ',');
        put_number(out, "mean", m->mean);
        strbuf_putc(out, ',');
        put_number(out, "low", m->low);
        strbuf_putc(out, ',');
        put_number(out, "high", m->high);
    }
    strbuf_putc(out, '}');
}

static void put_numbers(strbuf *out, const char *name, const double *values, size_t n)
{
    strbuf_printf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        if (i) strbuf_putc(out, ',');
        if (isnan(values[i])) strbuf_puts(out, "null");
        else strbuf_printf(out, "%.4g", values[i]);
    }
    strbuf_putc(out, ']');
}

static void put_depth(const results *r, uint32_t row, uint32_t column, record_arm arm, strbuf *out)
{
    depth_profile p = report_depth(r, row, column, arm);
    if (p.total) put_numbers(out, "by_depth", p.mean, DEPTH_BINS);
}

/* For tasks that ask many questions in one prompt: the share of right answers by place of the
 * question. */
static void put_places(const results *r, uint32_t row, uint32_t column, record_arm arm, strbuf *out)
{
    enum { PLACES = 64 };
    size_t n;
    double right[PLACES] = {0};
    const record *records = records_cell(r->records, row, column, arm, &n);
    const source *s = &r->sources->items[row];
    if (s->scorer != SCORER_NUMBERED || n == 0) return;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < PLACES; k++)
            right[k] += (double)(records[i].right >> k & 1) / (double)n;
    put_numbers(out, "by_question", right, PLACES);
}

static status put_cells(const results *r, row_set rows, record_arm arm, strbuf *out, error *err)
{
    strbuf_printf(out, "\"%s\":[", record_arm_name(arm));
    for (uint32_t i = 0; i < r->variants->n; i++) {
        cell c;
        RETURN_IF_ERROR(results_cell(r, rows, i, arm, &c, err));
        report_begin_column(r, i, i == 0, out);
        if (c.refused) {
            strbuf_puts(out, ",\"refused\":");
            strbuf_json_string(out, c.refused, strlen(c.refused));
        }
        strbuf_printf(out, ",\"interval\":\"%s\",", c.binary ? "wilson" : "bootstrap");
        put_mean(out, "score", &c.score);
        strbuf_putc(out, ',');
        put_mean(out, "difference", &c.difference);
        strbuf_putc(out, ',');
        put_number(out, "kept", c.kept);
        if (!isnan(c.continued)) {
            strbuf_putc(out, ',');
            put_number(out, "continued", c.continued);
        }
        if (rows.n == 1) {
            put_depth(r, rows.rows[0], i, arm, out);
            put_places(r, rows.rows[0], i, arm, out);
        }
        strbuf_putc(out, '}');
    }
    strbuf_putc(out, ']');
    return STATUS_IS_OK;
}

static status put_arms(const results *r, row_set rows, strbuf *out, error *err)
{
    strbuf_puts(out, "\"cells\":{");
    record_arm first = r->turns > 1 ? ARM_FIRST : ARM_SINGLE;
    record_arm last = r->turns > 1 ? ARM_FULL : ARM_SINGLE;
    for (record_arm arm = first; arm <= last; arm++) {
        if (arm > first) strbuf_putc(out, ',');
        RETURN_IF_ERROR(put_cells(r, rows, arm, out, err));
    }
    strbuf_putc(out, '}');
    return STATUS_IS_OK;
}

static status put_measures(const results *r, uint32_t row, strbuf *out, error *err)
{
    strbuf_puts(out, "\"measures\":[");
    bool any = false;
    for (uint32_t i = 1; i < r->variants->n; i++) {
        measure_means m;
        RETURN_IF_ERROR(report_measures(r, row, i, &m, err));
        if (m.n || m.compared) {
            report_begin_column(r, i, !any, out);
            any = true;
            strbuf_printf(out, ",\"prompts\":%zu,\"layers\":%u,\"compared\":%llu,\"agreed\":%llu,",
                          m.n, m.n_layers, (unsigned long long)m.compared,
                          (unsigned long long)m.agreed);
            put_number(out, "kl_at_least", m.divergence);
            strbuf_putc(out, ',');
            put_number(out, "jaccard_neighbours", m.neighbours_all);
            strbuf_putc(out, ',');
            put_number(out, "jaccard_neighbours_unforced", m.neighbours);
            put_numbers(out, "jaccard", m.jaccard, (size_t)m.n_layers * m.n_layers);
            put_numbers(out, "jaccard_unforced", m.unforced, (size_t)m.n_layers * m.n_layers);
            put_numbers(out, "needle_whole", m.whole, m.n_layers);
            put_numbers(out, "needle_share", m.share, m.n_layers);
            strbuf_putc(out, '}');
        }
        measure_means_destroy(&m);
    }
    strbuf_putc(out, ']');
    return STATUS_IS_OK;
}

static status put_task(const results *r, uint32_t row, uint32_t *room, strbuf *out, error *err)
{
    const source *s = r->sources->items;
    uint32_t end = results_next_task(r, row);
    strbuf_puts(out, "{\"task\":");
    strbuf_json_string(out, s[row].name, strlen(s[row].name));
    strbuf_printf(out, ",\"scorer\":\"%s\",\"lengths\":[", scorer_name(s[row].scorer));
    for (uint32_t i = row; i < end; i++) {
        strbuf_printf(out, "%s\n{\"length\":%u,\"compared\":%s,", i > row ? "," : "", s[i].length,
                      r->compared[i] ? "true" : "false");
        put_mean(out, "full", &r->full[i].score);
        strbuf_putc(out, ',');
        RETURN_IF_ERROR(put_arms(r, (row_set){&i, 1}, out, err));
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "],\n\"all\":{");
    row_set rows = {room, results_rows(r, row, true, room)};
    RETURN_IF_ERROR(put_arms(r, rows, out, err));
    strbuf_puts(out, "},\n");
    RETURN_IF_ERROR(put_measures(r, row, out, err));
    RETURN_IF_ERROR(analyses_json(r, row, out, err));
    strbuf_putc(out, '}');
    return STATUS_IS_OK;
}

status report_json(const results *r, const char *settings, strbuf *out, error *err)
{
    uint32_t *room = calloc(r->sources->n, sizeof *room);
    if (!room) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    strbuf_printf(out, "{%s,\n\"tasks\":[", settings);
    status st = STATUS_IS_OK;
    for (uint32_t row = 0; status_ok(st) && row < r->sources->n; row = results_next_task(r, row)) {
        strbuf_puts(out, row ? ",\n" : "\n");
        st = put_task(r, row, room, out, err);
    }
    strbuf_puts(out, "]}\n");
    free(room);
    if (status_ok(st) && out->failed) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    return st;
}
