/* Writes the table, in Markdown. */
#include "quality/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_mean(strbuf *out, const stat_mean *m)
{
    if (m->n) strbuf_printf(out, " %.3f |", m->mean);
    else strbuf_puts(out, " |");
}

static void put_interval(strbuf *out, const stat_mean *m, const char *format)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (m->n > 0 && !isnan(m->low)) strbuf_printf(out, format, m->low, m->high);
    else strbuf_puts(out, " |");
#pragma GCC diagnostic pop
}

/* Lists the labels of --method with the methods that they stand for. */
static void put_labels(const results *r, strbuf *out)
{
    bool any = false;
    for (uint32_t i = 0; i < r->variants->n; i = results_method_end(r, i)) {
        const variant *v = &r->variants->items[i];
        const char *meaning = v->method + v->label_chars;
        if (!*meaning) continue;
        if (!any) strbuf_puts(out, "\nLabels:\n\n");
        any = true;
        strbuf_puts(out, "- ");
        report_put_method(out, v);
        strbuf_printf(out, ": `%s`\n", meaning + 1);
    }
}

static void put_head(const results *r, uint32_t row, uint32_t end, strbuf *out)
{
    const source *s = r->sources->items;
    strbuf_printf(out, "\n## %s\n\nFull cache:", s[row].name);
    for (uint32_t i = row; i < end; i++) {
        const stat_mean *m = &r->full[i].score;
        if (s[i].length) strbuf_printf(out, " %u tokens", s[i].length);
        if (m->n)
            strbuf_printf(out, " %.3f (%.3f to %.3f, %zu prompts of %zu contexts)%s%s", m->mean,
                          m->low, m->high, m->n, m->n_clusters,
                          r->compared[i] ? "" : ": too low, listed but not compared",
                          i + 1 < end ? ";" : "");
        else strbuf_printf(out, " no answers%s", i + 1 < end ? ";" : "");
    }
    strbuf_puts(out, "\n\n| method | budget | kept |");
    for (uint32_t i = row; i < end; i++) {
        if (s[i].length) strbuf_printf(out, " %u%s |", s[i].length, r->compared[i] ? "" : " *");
        else strbuf_puts(out, " score |");
    }
    strbuf_puts(out, " all | 95 % | against full | 95 % |");
    if (r->turns > 1) strbuf_puts(out, " turn 1 | fresh | fresh, full | continued |");
    strbuf_puts(out, "\n| --- | --- | --- |");
    for (uint32_t i = row; i < end; i++) strbuf_puts(out, " --- |");
    strbuf_puts(out, " --- | --- | --- | --- |");
    if (r->turns > 1) strbuf_puts(out, " --- | --- | --- | --- |");
    strbuf_putc(out, '\n');
}

/* Writes the scores of the other arms of two turns, over the same rows. */
static status put_arms(const results *r, row_set rows, uint32_t column, const cell *all,
                       strbuf *out, error *err)
{
    static const record_arm arms[] = {ARM_FIRST, ARM_FRESH, ARM_FULL};
    for (size_t i = 0; i < sizeof arms / sizeof arms[0]; i++) {
        cell c;
        RETURN_IF_ERROR(results_cell(r, rows, column, arms[i], &c, err));
        put_mean(out, &c.score);
    }
    if (isnan(all->continued)) strbuf_puts(out, " |");
    else strbuf_printf(out, " %.0f %% |", 100 * all->continued);
    return STATUS_IS_OK;
}

static status put_row(const results *r, uint32_t row, uint32_t end, uint32_t column, uint32_t *room,
                      strbuf *out, error *err)
{
    const variant *v = &r->variants->items[column];
    record_arm arm = results_arm(r);
    row_set rows = {room, results_rows(r, row, true, room)};
    const char *refused = NULL;
    for (uint32_t i = row; i < end && !refused; i++)
        refused = records_refused(r->records, i, column);
    cell all;
    RETURN_IF_ERROR(results_cell(r, rows, column, arm, &all, err));
    strbuf_puts(out, "| ");
    report_put_method(out, v);
    strbuf_printf(out, " | %s |", v->budget);
    cell kept = all; /* where nothing is compared, over all rows */
    if (rows.n == 0) {
        rows.n = results_rows(r, row, false, room);
        RETURN_IF_ERROR(results_cell(r, rows, column, arm, &kept, err));
        rows.n = 0;
    }
    if (isnan(kept.kept)) strbuf_puts(out, " |");
    else strbuf_printf(out, " %.3f |", kept.kept);
    for (uint32_t i = row; i < end; i++) {
        cell one;
        RETURN_IF_ERROR(results_cell(r, (row_set){&i, 1}, column, arm, &one, err));
        if (one.refused) strbuf_puts(out, " refused |");
        else put_mean(out, &one.score);
    }
    if (refused) {
        strbuf_puts(out, " refused: ");
        report_put_text(out, refused, strlen(refused));
        strbuf_puts(out, " | | | |\n");
        return STATUS_IS_OK;
    }
    put_mean(out, &all.score);
    put_interval(out, &all.score, " %.3f to %.3f |");
    if (all.difference.n) strbuf_printf(out, " %+.3f |", all.difference.mean);
    else strbuf_puts(out, " |");
    put_interval(out, &all.difference, " %+.3f to %+.3f |");
    if (r->turns > 1) RETURN_IF_ERROR(put_arms(r, rows, column, &all, out, err));
    strbuf_putc(out, '\n');
    return STATUS_IS_OK;
}

static void put_share(strbuf *out, bool known, double share)
{
    if (known && !isnan(share)) strbuf_printf(out, " %.3f |", share);
    else strbuf_puts(out, " |");
}

static bool has_measures(const measure_means *m) { return m->n > 0 || m->compared > 0; }

static double least_of(const double *values, uint32_t n)
{
    double least = values[0];
    for (uint32_t i = 1; i < n; i++)
        if (values[i] < least) least = values[i];
    return least;
}

static double most_of(const double *values, uint32_t n)
{
    double most = values[0];
    for (uint32_t i = 1; i < n; i++)
        if (values[i] > most) most = values[i];
    return most;
}

static status put_measures(const results *r, uint32_t row, strbuf *out, error *err)
{
    bool any = false;
    for (uint32_t column = 1; column < r->variants->n; column++) {
        measure_means m;
        RETURN_IF_ERROR(report_measures(r, row, column, &m, err));
        if (has_measures(&m) && !any) {
            any = true;
            strbuf_puts(
                out, "\n| method | budget | contexts' prompts | Jaccard of neighbouring layers | "
                     "without forced tokens | whole needle kept, worst to best layer | next "
                     "tokens equal | KL at least |\n| --- | --- | --- | --- | --- | --- | --- | "
                     "--- |\n");
        }
        if (has_measures(&m)) {
            strbuf_puts(out, "| ");
            report_put_method(out, &r->variants->items[column]);
            strbuf_printf(out, " | %s | %zu |", r->variants->items[column].budget, m.n);
            put_share(out, m.n > 0, m.neighbours_all);
            put_share(out, m.n > 0, m.neighbours);
            if (m.n && !isnan(m.whole[0]))
                strbuf_printf(out, " %.3f to %.3f |", least_of(m.whole, m.n_layers),
                              most_of(m.whole, m.n_layers));
            else strbuf_puts(out, " |");
            if (m.compared)
                strbuf_printf(out, " %.3f | %.4g |\n", (double)m.agreed / (double)m.compared,
                              m.divergence);
            else strbuf_puts(out, " | |\n");
        }
        measure_means_destroy(&m);
    }
    return STATUS_IS_OK;
}

status report_table(const results *r, strbuf *out, error *err)
{
    uint32_t *room = calloc(r->sources->n, sizeof *room);
    if (!room) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = STATUS_IS_OK;
    for (uint32_t row = 0, end; status_ok(st) && row < r->sources->n; row = end) {
        end = results_next_task(r, row);
        put_head(r, row, end, out);
        for (uint32_t i = 0; status_ok(st) && i < r->variants->n; i++)
            st = put_row(r, row, end, i, room, out, err);
        row_set rows = {room, results_rows(r, row, true, room)};
        if (status_ok(st)) st = report_equal_kept(r, rows, out, err);
        if (status_ok(st)) st = put_measures(r, row, out, err);
        if (status_ok(st)) st = analyses_table(r, row, out, err);
    }
    free(room);
    put_labels(r, out);
    return st;
}
