/* A picture of a sequence's tables for people to look at: a grid of layers by positions. It is
 * drawn beside running steps, so it reads what is there and allocates nothing. It looks at no more
 * than PKV_MAP_PAGES_MOST pages where leaving KV heads out can bring their number down to that. */
#include "paged_kv/map_grid.h"
#include "paged_kv/pool.h"

/* A row while it is drawn. */
typedef struct map_row {
    pkv_map *map;
    uint8_t *cells;  // [n_columns], PKV_MAP_SHARED is set while pages are walked
    uint32_t column; // that a page was last found in, and the logical index where it begins
    uint32_t from;
} map_row;

static uint32_t column_of(map_row *r, uint32_t position)
{
    if (position - r->from >= r->map->column_tokens) {
        r->column = position / r->map->column_tokens;
        r->from = r->column * r->map->column_tokens;
    }
    return r->column;
}

/* Counts n tokens that follow one another. */
static void count_run(map_row *r, uint32_t position, uint32_t n)
{
    while (n > 0) {
        uint32_t column = column_of(r, position);
        uint32_t room = r->from + r->map->column_tokens - position;
        uint32_t part = n < room ? n : room;
        r->map->kept[column] += part;
        position += part;
        n -= part;
    }
}

static void count_slots(map_row *r, const uint32_t *positions, uint32_t n)
{
    for (uint32_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && positions[i + run] == positions[i] + run;) run++;
        count_run(r, positions[i], run);
    }
}

/* Whether other tables hold the page is asked once for each column that a table's pages begin in:
 * pages are shared in long runs, and each question reads memory far from the last. */
static void mark_shared(const pkv *p, const pkv_seq *s, map_row *r, uint32_t page, uint32_t *asked)
{
    if (r->column == *asked) return;
    *asked = r->column;
    if (node_is_shared(&p->pool, node_of(&p->pool, s->grain, page)))
        r->cells[r->column] = PKV_MAP_SHARED;
}

static void draw_table(const pkv *p, const pkv_seq *s, uint32_t table, map_row *r)
{
    const pkv_table *t = &s->tables[table];
    const uint32_t *pages = seq_pages(s, table), *bases = seq_bases(s, table);
    uint32_t page_tokens = p->geometry.page_tokens, asked = UINT32_MAX;
    for (uint32_t i = 0, slot = 0; i < t->n_pages && slot < t->kept; i++, slot += page_tokens) {
        uint32_t n = t->kept - slot < page_tokens ? t->kept - slot : page_tokens;
        bool scattered = i < t->slot_pages;
        if (i + POOL_AHEAD < t->n_pages) pool_expect(p, s->grain, pages[i + POOL_AHEAD]);
        (void)column_of(r, scattered ? t->slots[slot] : bases[i]);
        mark_shared(p, s, r, pages[i], &asked);
        if (scattered) count_slots(r, t->slots + slot, n);
        else count_run(r, bases[i], n);
    }
}

/* The first `kept` of a column's tokens over all tables of the row become eighths. One kept token
 * is seen, and only a column that is kept whole is full. */
static void finish_row(const pkv_map *m, uint32_t length, uint32_t n_tables, uint8_t *cells)
{
    for (uint32_t c = 0; c < m->n_columns; c++) {
        uint32_t left = length - c * m->column_tokens;
        uint64_t all = (uint64_t)(left < m->column_tokens ? left : m->column_tokens) * n_tables;
        uint64_t eighths = m->kept[c] * (uint64_t)PKV_MAP_FULL / all;
        if (m->kept[c] == 0) cells[c] = 0;
        else cells[c] |= eighths > 0 ? (uint8_t)eighths : 1;
    }
}

static uint32_t divided(uint32_t n, uint32_t by) { return n / by + (n % by != 0); }

pkv_grid pkv_grid_of(const pkv *p, uint32_t length)
{
    uint32_t layers = p->pool.n_layers, blocks = pages_for(p, length);
    pkv_grid g = {.row_groups = divided(layers, PKV_MAP_ROWS_MOST)};
    g.n_rows = divided(layers, g.row_groups);
    g.row_layers = g.row_groups * p->geometry.layers_per_group;
    g.column_tokens =
        divided(blocks > 0 ? blocks : 1, PKV_MAP_COLUMNS_MOST) * p->geometry.page_tokens;
    g.n_columns = divided(length, g.column_tokens);
    return g;
}

/* Every how manyth KV head is looked at. */
static uint32_t head_step(const pkv *p, const pkv_seq *s)
{
    uint64_t pages = 0;
    if (s->grain != PKV_HEAD) return 1;
    for (uint32_t g = 0; g < s->groups; g++) pages += s->tables[g].n_pages;
    uint64_t step = (pages + PKV_MAP_PAGES_MOST - 1) / PKV_MAP_PAGES_MOST;
    return step < 1 ? 1 : step < p->pool.n_heads ? (uint32_t)step : p->pool.n_heads;
}

void pkv_seq_map(const pkv *p, uint32_t seq, pkv_map *out)
{
    const pkv_seq *s = seq_opened(p, seq);
    pkv_grid grid = pkv_grid_of(p, s->length);
    uint32_t layers = p->pool.n_layers, length = s->length, row_groups = grid.row_groups;
    uint32_t heads = s->grain == PKV_HEAD ? p->pool.n_heads : 1, step = head_step(p, s);
    out->n_rows = grid.n_rows;
    out->row_layers = grid.row_layers;
    out->column_tokens = grid.column_tokens;
    out->n_columns = grid.n_columns;
    out->tables = s->groups;
    out->tables_seen = 0;
    for (uint32_t i = 0; i < out->n_rows; i++) {
        uint8_t *cells = out->cells + (size_t)i * out->n_columns;
        if (s->grain == PKV_ALL && i > 0) {
            memcpy(cells, out->cells, out->n_columns);
            continue;
        }
        map_row row = {.map = out, .cells = cells};
        memset(cells, 0, out->n_columns);
        memset(out->kept, 0, sizeof out->kept);
        uint32_t from = i * row_groups,
                 to = layers - from < row_groups ? layers : from + row_groups;
        uint32_t n_tables = 0;
        if (s->grain == PKV_ALL) to = from + 1;
        for (uint32_t layer = from; layer < to; layer++)
            for (uint32_t head = 0; head < heads; head += step, n_tables++)
                draw_table(p, s, layer * heads + head, &row);
        finish_row(out, length, n_tables, cells);
        out->tables_seen += n_tables;
    }
}
