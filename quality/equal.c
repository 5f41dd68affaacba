/* Scores at equal kept share. Methods asked for one budget keep different shares (whole pages,
 * windows, chunks), so their scores at that budget do not compare. */
#include "quality/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 64 };

/* How far outside the measured shares a line through the nearest two is still trusted. */
static const double reach = 0.15;

double report_at_share(const kept_score *points, size_t n, double share)
{
    if (n < 2) return NAN;
    if (share < points[0].kept * (1 - reach) || share > points[n - 1].kept * (1 + reach))
        return NAN;
    size_t i = 1;
    while (i + 1 < n && points[i].kept < share) i++;
    const kept_score *a = &points[i - 1], *b = &points[i];
    if (!(b->kept > a->kept)) return NAN;
    double at = a->score + (share - a->kept) / (b->kept - a->kept) * (b->score - a->score);
    return fmin(1, fmax(0, at));
}

/* The scores of a method's budgets over the rows, by ascending share. */
static status read_points(const results *r, row_set rows, uint32_t first, uint32_t last,
                          kept_score *points, size_t *n, error *err)
{
    *n = 0;
    for (uint32_t column = first; column < last && *n < POINTS_MAX; column++) {
        cell c;
        RETURN_IF_ERROR(results_cell(r, rows, column, results_arm(r), &c, err));
        if (c.refused || c.score.n == 0 || isnan(c.kept)) continue;
        size_t at = (*n)++;
        for (; at > 0 && points[at - 1].kept > c.kept; at--) points[at] = points[at - 1];
        points[at] = (kept_score){c.kept, c.score.mean};
    }
    return STATUS_IS_OK;
}

/* The ratios that were asked for, ascending. */
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

static void put_head(const double *shares, size_t n, strbuf *out)
{
    strbuf_puts(out, "\nAt equal kept share, between the shares above and at most 15 % beside "
                     "them:\n\n| method |");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, " %g kept |", shares[i]);
    strbuf_puts(out, "\n| --- |");
    for (size_t i = 0; i < n; i++) strbuf_puts(out, " --- |");
    strbuf_putc(out, '\n');
}

status report_equal_kept(const results *r, row_set rows, strbuf *out, error *err)
{
    double shares[POINTS_MAX + 1];
    kept_score points[POINTS_MAX];
    size_t n_shares = list_shares(r, shares), n;
    bool any = false;
    for (uint32_t first = 0, last; rows.n > 0 && first < r->variants->n; first = last) {
        last = results_method_end(r, first);
        RETURN_IF_ERROR(read_points(r, rows, first, last, points, &n, err));
        if (n < 2) continue;
        if (!any) put_head(shares, n_shares, out);
        any = true;
        strbuf_puts(out, "| ");
        report_put_name(out, r->variants->items[first].method);
        strbuf_puts(out, " |");
        for (size_t i = 0; i < n_shares; i++) {
            double score = report_at_share(points, n, shares[i]);
            if (isnan(score)) strbuf_puts(out, " |");
            else strbuf_printf(out, " %.3f |", score);
        }
        strbuf_putc(out, '\n');
    }
    return STATUS_IS_OK;
}
