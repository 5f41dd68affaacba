/* References of the pages of a sequence's tables. A long sequence with a table for each head has
 * millions of cells: they are counted layer run by layer run. */
#include "paged_kv/pool.h"

typedef struct ref_change {
    uint32_t refs, parked; // for each page; a number below 0 wraps
} ref_change;

/* Cells of one layer run whose references change together. */
typedef struct cell_batch {
    uint32_t run, n, cells[PAGES_TOGETHER];
} cell_batch;

static void end_batch(pkv *p, pkv_tree *tree, cell_batch *b, ref_change by)
{
    if (b->n > 0) nodes_add_refs(p, tree, b->cells, b->n, by.refs, by.parked);
    b->n = 0;
}

static void add_cell(pkv *p, pkv_tree *tree, cell_batch *b, uint32_t cell, ref_change by)
{
    uint32_t run = node_above(tree, cell);
    if (run != b->run || b->n == PAGES_TOGETHER) end_batch(p, tree, b, by);
    b->run = run;
    b->cells[b->n++] = cell;
}

/* One table after the other: its pages lie together in layer runs. */
static void add_along(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, ref_change by)
{
    cell_batch batch = {0};
    for (uint32_t g = rows.first; g < rows.end; g++) {
        const uint32_t *pages = seq_pages(s, g);
        for (uint32_t i = rows_end(s, rows, g); i-- > rows.from;) {
            if (i >= POOL_AHEAD) tree_expect(tree, PKV_HEAD, pages[i - POOL_AHEAD]);
            add_cell(p, tree, &batch, pages[i], by);
        }
    }
    end_batch(p, tree, &batch, by);
}

/* Pages i of all tables, then pages i - 1: tables that were split share their layer runs. */
static void add_across(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, ref_change by)
{
    cell_batch batch = {0};
    uint32_t to = rows.from;
    for (uint32_t g = rows.first; g < rows.end; g++)
        if (rows_end(s, rows, g) > to) to = rows_end(s, rows, g);
    for (uint32_t i = to; i-- > rows.from;) {
        for (uint32_t g = rows.first; g < rows.end; g++) {
            if (i >= s->tables[g].n_pages) continue;
            const uint32_t *pages = seq_pages(s, g);
            if (i >= POOL_AHEAD) tree_expect(tree, PKV_HEAD, pages[i - POOL_AHEAD]);
            add_cell(p, tree, &batch, pages[i], by);
        }
    }
    end_batch(p, tree, &batch, by);
}

static void add_to_runs(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, ref_change by)
{
    for (uint32_t g = rows.first; g < rows.end; g++) {
        const uint32_t *pages = seq_pages(s, g);
        for (uint32_t i = rows_end(s, rows, g); i-- > rows.from;) {
            uint32_t node = node_of(tree, s->grain, pages[i]);
            if (i >= POOL_AHEAD) tree_expect(tree, s->grain, pages[i - POOL_AHEAD]);
            nodes_add_refs(p, tree, &node, 1, by.refs, by.parked);
        }
    }
}

/* Whether pages of the first table that follow one another lie in one layer run. */
static bool lies_along(const pkv_tree *tree, const pkv_seq *s, table_rows rows)
{
    uint32_t end = rows_end(s, rows, rows.first);
    if (end < rows.from + 2) return true;
    const uint32_t *last = seq_pages(s, rows.first) + end - 1;
    return node_above(tree, last[0]) == node_above(tree, last[-1]);
}

void rows_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, table_rows rows, uint32_t refs,
                   uint32_t parked)
{
    ref_change by = {refs, parked};
    if (s->grain != PKV_HEAD) add_to_runs(p, tree, s, rows, by);
    else (lies_along(tree, s, rows) ? add_along : add_across)(p, tree, s, rows, by);
}

void seq_add_refs(pkv *p, pkv_tree *tree, const pkv_seq *s, uint32_t refs, uint32_t parked)
{
    for (uint32_t g = 0, next; g < s->groups; g = next) {
        next = layer_end(tree, s->grain, g);
        rows_add_refs(p, tree, s, (table_rows){g, next, 0, UINT32_MAX}, refs, parked);
    }
}
