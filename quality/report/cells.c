/* Computes the means, differences and shares of cells. */
#include "quality/report/cells.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The values of a cell, collected from its records. */
typedef struct gathered {
    stat_value *scores, *differences;
    size_t n_scores, n_differences;
    uint32_t cluster;
    double kept, logical;
    size_t n_continued;
} gathered;

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* The arm and the column that answered the same prompt with the full cache. */
static record_arm partner(record_arm arm, uint32_t column, uint32_t *partner_column)
{
    bool second = arm == ARM_SESSION || arm == ARM_FRESH || arm == ARM_FULL;
    *partner_column = second ? column : 0;
    if (!second) return arm;
    return column > 0 ? ARM_FULL : ARM_FRESH;
}

static bool same_prompt(const record *a, const record *b)
{
    return a->document == b->document && a->question == b->question;
}

/* Finds the partner of r. Both lists are sorted by document and question. */
static const record *find_partner(const record *r, const record *with, size_t n, size_t *at)
{
    while (*at < n && (with[*at].document < r->document ||
                       (with[*at].document == r->document && with[*at].question < r->question)))
        ++*at;
    return *at < n && same_prompt(&with[*at], r) ? &with[*at] : NULL;
}

static void gather_row(const results *r, uint32_t row, uint32_t column, record_arm arm, gathered *g)
{
    size_t n, n_with, at = 0;
    uint32_t partner_column;
    record_arm partner_arm = partner(arm, column, &partner_column);
    const record *own = records_cell(r->records, row, column, arm, &n);
    const record *with = records_cell(r->records, row, partner_column, partner_arm, &n_with);
    bool independent = r->sources->items[row].independent;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || independent || own[i].document != own[i - 1].document) g->cluster++;
        g->scores[g->n_scores++] = (stat_value){g->cluster, own[i].score};
        g->kept += (double)own[i].kept;
        g->logical += (double)own[i].logical;
        g->n_continued += own[i].continued;
        const record *other = find_partner(&own[i], with, n_with, &at);
        if (other)
            g->differences[g->n_differences++] =
                (stat_value){g->cluster, own[i].score - other->score};
    }
}

static status gather_scores(const results *r, row_set rows, uint32_t column, record_arm arm,
                            gathered *g, error *err)
{
    size_t most = 1, n;
    for (size_t i = 0; i < rows.n; i++) {
        records_cell(r->records, rows.rows[i], column, arm, &n);
        most += n;
    }
    *g = (gathered){.scores = calloc(most, sizeof *g->scores),
                    .differences = calloc(most, sizeof *g->differences)};
    if (!g->scores || !g->differences) return out_of_memory(err);
    for (size_t i = 0; i < rows.n; i++) gather_row(r, rows.rows[i], column, arm, g);
    return STATUS_IS_OK;
}

status results_cell(const results *r, row_set rows, uint32_t column, record_arm arm, cell *out,
                    error *err)
{
    *out = (cell){.binary = true, .kept = NAN, .continued = NAN};
    for (size_t i = 0; i < rows.n; i++) {
        const char *refused = records_refused(r->records, rows.rows[i], column);
        if (refused) out->refused = refused;
        if (r->binary) out->binary &= r->binary[rows.rows[i]];
    }
    gathered g;
    status st = gather_scores(r, rows, column, arm, &g, err);
    if (status_ok(st)) {
        out->score = out->binary ? stat_wilson(g.scores, g.n_scores)
                                 : stat_bootstrap(g.scores, g.n_scores, r->seed);
        out->difference = stat_bootstrap(g.differences, g.n_differences, r->seed);
        if (g.logical > 0) out->kept = g.kept / g.logical;
        if (arm == ARM_SESSION && g.n_scores)
            out->continued = (double)g.n_continued / (double)g.n_scores;
    }
    free(g.scores);
    free(g.differences);
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

record_arm results_arm(const results *r) { return r->turns > 1 ? ARM_SESSION : ARM_SINGLE; }

/* Whether every score of the row is 0 or 1. */
static bool is_binary(const record_store *s, uint32_t row)
{
    for (size_t i = 0; i < s->n; i++) {
        float score = s->items[i].score;
        if (s->items[i].row == row && score > 0 && score < 1) return false;
    }
    return true;
}

status results_create(const record_store *records, uint64_t seed, uint32_t turns, results *out,
                      error *err)
{
    size_t n = records->sources->n;
    *out = (results){
        .records = records,
        .sources = records->sources,
        .variants = records->variants,
        .seed = seed,
        .turns = turns,
        .full = calloc(n, sizeof *out->full),
        .compared = calloc(n, sizeof *out->compared),
        .binary = calloc(n, sizeof *out->binary),
    };
    status st = out->full && out->compared && out->binary ? STATUS_IS_OK : out_of_memory(err);
    for (uint32_t i = 0; status_ok(st) && i < n; i++) {
        out->binary[i] = is_binary(records, i);
        /* With two turns the full cache is judged by turn 2 alone, whose prompt holds the whole
         * context. */
        record_arm arm = turns > 1 ? ARM_FRESH : ARM_SINGLE;
        st = results_cell(out, (row_set){&i, 1}, 0, arm, &out->full[i], err);
        out->compared[i] = out->full[i].score.n > 0 &&
                           out->full[i].score.mean >= (double)out->sources->items[i].floor;
    }
    if (!status_ok(st)) results_destroy(out);
    return st;
}

void results_destroy(results *r)
{
    free(r->full);
    free(r->compared);
    free(r->binary);
    *r = (results){0};
}

uint32_t results_next_task(const results *r, uint32_t row)
{
    const source *rows = r->sources->items;
    uint32_t next = row + 1;
    while (next < r->sources->n && strcmp(rows[next].name, rows[row].name) == 0) next++;
    return next;
}

size_t results_rows(const results *r, uint32_t row, bool compared_only, uint32_t *out)
{
    size_t n = 0;
    for (uint32_t i = row, end = results_next_task(r, row); i < end; i++)
        if (!compared_only || r->compared[i]) out[n++] = i;
    return n;
}

uint32_t results_method_end(const results *r, uint32_t first)
{
    const variant *v = r->variants->items;
    uint32_t end = first + 1;
    while (end < r->variants->n && strcmp(v[end].method, v[first].method) == 0) end++;
    return end;
}
