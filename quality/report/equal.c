/* Scores at equal kept share. Methods asked for one budget keep different shares (whole pages,
 * windows, chunks), so their scores at that budget do not compare. */
#include "quality/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 64 };

/* A line through the nearest two budgets is trusted this far outside of them. Scores rise ever more
 * slowly with the share, so farther out the line is soon too high. */
static const double reach = 0.05;

bool report_place(const kept_point *points, size_t n, double share, share_place *out)
{
    if (n < 2) return false;
    if (share < points[0].kept * (1 - reach) || share > points[n - 1].kept * (1 + reach))
        return false;
    size_t i = 1;
    while (i + 1 < n && points[i].kept < share) i++;
    const kept_point *a = &points[i - 1], *b = &points[i];
    if (!(b->kept > a->kept)) return false;
    *out = (share_place){a->column, b->column, (share - a->kept) / (b->kept - a->kept)};
    return true;
}

/* ---- the points of a method ------------------------------------------------------------------ */

/* Lists the method's budgets that have answers, by ascending share kept over the rows. */
static status read_points(const results *r, row_set rows, uint32_t first, uint32_t last,
                          kept_point *points, size_t *n, error *err)
{
    *n = 0;
    for (uint32_t column = first; column < last && *n < POINTS_MAX; column++) {
        cell c;
        RETURN_IF_ERROR(results_cell(r, rows, column, results_arm(r), &c, err));
        if (c.refused || c.score.n == 0 || isnan(c.kept)) continue;
        size_t at = (*n)++;
        for (; at > 0 && points[at - 1].kept > c.kept; at--) points[at] = points[at - 1];
        points[at] = (kept_point){c.kept, column};
    }
    return STATUS_IS_OK;
}

/* Lists the ratios that were asked for, ascending. */
static size_t list_shares(const results *r, double *shares)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->variants->n && n < POINTS_MAX; i++) {
        double share = r->variants->items[i].ratio;
        size_t at = 0;
        while (at < n && shares[at] < share) at++;
        if (share <= 0 || (at < n && shares[at] == share)) continue;
        memmove(shares + at + 1, shares + at, (n++ - at) * sizeof *shares);
        shares[at] = share;
    }
    return n;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* A prompt's score, interpolated between two budgets. */
typedef struct line_score {
    uint32_t row, document, question, cluster;
    double score;
} line_score;

typedef struct line {
    line_score *items; // in the order of the rows, then by document and question
    size_t n;
} line;

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static bool is_before(const record *a, const record *b)
{
    return a->document != b->document ? a->document < b->document : a->question < b->question;
}

/* Adds the prompts of a row that were answered at both budgets. */
static void read_row(const results *r, uint32_t row, const share_place *place, line *out)
{
    size_t n_low, n_high, at = 0;
    record_arm arm = results_arm(r);
    const record *low = records_cell(r->records, row, place->low, arm, &n_low);
    const record *high = records_cell(r->records, row, place->high, arm, &n_high);
    bool independent = r->sources->items[row].independent;
    for (size_t i = 0; i < n_low; i++) {
        const record *a = &low[i];
        while (at < n_high && is_before(&high[at], a)) at++;
        if (at == n_high) return;
        if (is_before(a, &high[at])) continue;
        const line_score *last = out->n ? &out->items[out->n - 1] : NULL;
        uint32_t cluster = last ? last->cluster : 0;
        cluster += !last || independent || last->row != row || last->document != a->document;
        double rise = (double)high[at].score - (double)a->score;
        out->items[out->n++] = (line_score){row, a->document, a->question, cluster,
                                            (double)a->score + place->weight * rise};
    }
}

/* Lists the scores of all rows at a place between two budgets. The caller frees out->items. */
static status read_line(const results *r, row_set rows, const share_place *place, line *out,
                        error *err)
{
    size_t most = 1, n;
    for (size_t i = 0; i < rows.n; i++) {
        records_cell(r->records, rows.rows[i], place->low, results_arm(r), &n);
        most += n;
    }
    *out = (line){.items = calloc(most, sizeof *out->items)};
    if (!out->items) return out_of_memory(err);
    for (size_t i = 0; i < rows.n; i++) read_row(r, rows.rows[i], place, out);
    return STATUS_IS_OK;
}

static int compare_scores(const line_score *a, const line_score *b)
{
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    if (a->document != b->document) return a->document < b->document ? -1 : 1;
    return a->question < b->question ? -1 : a->question > b->question;
}

/* The mean of the scores, or with `from` the mean of their differences to those of `from` over
 * prompts that both have. */
static status mean_of(const line *l, const line *from, uint64_t seed, stat_mean *out, error *err)
{
    stat_value *values = calloc(l->n + 1, sizeof *values);
    if (!values) return out_of_memory(err);
    size_t n = 0, at = 0;
    for (size_t i = 0; i < l->n; i++) {
        const line_score *own = &l->items[i];
        while (from && at < from->n && compare_scores(&from->items[at], own) < 0) at++;
        if (from && (at == from->n || compare_scores(&from->items[at], own) != 0)) continue;
        double other = from ? from->items[at].score : 0;
        values[n++] = (stat_value){own->cluster, (float)(own->score - other)};
    }
    *out = stat_bootstrap(values, n, seed);
    free(values);
    return STATUS_IS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The method that others are compared with, and its scores at each share. */
typedef struct reference {
    const variant *method; // NULL = not found yet
    line lines[POINTS_MAX];
    bool known[POINTS_MAX];
} reference;

static void put_head(const double *shares, size_t n, const variant *against, strbuf *out)
{
    strbuf_puts(out, "\nAt equal kept share, on the line between a method's nearest two shares and "
                     "at most 5 % beside them, with 95 % intervals; and the difference to ");
    report_put_method(out, against);
    strbuf_puts(out, " over the same prompts:\n\n| method |");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, " %g kept | difference |", shares[i]);
    strbuf_puts(out, "\n| --- |");
    for (size_t i = 0; i < n; i++) strbuf_puts(out, " --- | --- |");
    strbuf_putc(out, '\n');
}

/* Limits a share of right answers to [0, 1], which the line may leave. */
static double limit_share(double share) { return fmin(1, fmax(0, share)); }

static void put_score(const stat_mean *m, strbuf *out)
{
    strbuf_printf(out, " %.3f", limit_share(m->mean));
    if (!isnan(m->low))
        strbuf_printf(out, " (%.3f to %.3f)", limit_share(m->low), limit_share(m->high));
    strbuf_puts(out, " |");
}

static void put_difference(const stat_mean *m, strbuf *out)
{
    if (m->n) strbuf_printf(out, " %+.3f", m->mean);
    if (m->n && !isnan(m->low)) strbuf_printf(out, " (%+.3f to %+.3f)", m->low, m->high);
    strbuf_puts(out, " |");
}

/* Writes a method's two cells at a share; those of the first method become the reference. */
static status put_share(const results *r, row_set rows, const share_place *place, bool is_reference,
                        reference *from, size_t share, strbuf *out, error *err)
{
    line own;
    stat_mean score = {0}, difference = {0};
    status st = read_line(r, rows, place, &own, err);
    if (status_ok(st)) st = mean_of(&own, NULL, r->seed, &score, err);
    if (status_ok(st) && !is_reference && from->known[share])
        st = mean_of(&own, &from->lines[share], r->seed, &difference, err);
    if (status_ok(st)) {
        put_score(&score, out);
        put_difference(&difference, out);
    }
    if (status_ok(st) && is_reference) {
        from->lines[share] = own;
        from->known[share] = true;
    } else {
        free(own.items);
    }
    return st;
}

static status put_method(const results *r, row_set rows, uint32_t first, const double *shares,
                         size_t n_shares, reference *from, strbuf *out, error *err)
{
    kept_point points[POINTS_MAX];
    size_t n;
    RETURN_IF_ERROR(read_points(r, rows, first, results_method_end(r, first), points, &n, err));
    if (n < 2) return STATUS_IS_OK;
    const variant *method = &r->variants->items[first];
    bool is_reference = !from->method;
    if (is_reference) {
        from->method = method;
        put_head(shares, n_shares, method, out);
    }
    strbuf_puts(out, "| ");
    report_put_method(out, method);
    strbuf_puts(out, " |");
    for (size_t i = 0; i < n_shares; i++) {
        share_place place;
        if (report_place(points, n, shares[i], &place))
            RETURN_IF_ERROR(put_share(r, rows, &place, is_reference, from, i, out, err));
        else strbuf_puts(out, " | |");
    }
    strbuf_putc(out, '\n');
    return STATUS_IS_OK;
}

status report_equal_kept(const results *r, row_set rows, strbuf *out, error *err)
{
    double shares[POINTS_MAX + 1];
    size_t n_shares = list_shares(r, shares);
    reference *from = calloc(1, sizeof *from);
    if (!from) return out_of_memory(err);
    status st = STATUS_IS_OK;
    for (uint32_t first = 0; status_ok(st) && rows.n > 0 && first < r->variants->n;
         first = results_method_end(r, first))
        st = put_method(r, rows, first, shares, n_shares, from, out, err);
    for (size_t i = 0; i < n_shares; i++) free(from->lines[i].items);
    free(from);
    return st;
}
