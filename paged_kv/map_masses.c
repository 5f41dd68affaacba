/* Where the attention of one row went, as a picture like that of map.c: a backend measured a number
 * for each page or slot, in each layer and KV head. */
#include "paged_kv/map_grid.h"
#include "paged_kv/retention/retention.h"

#include <math.h>

/* A table while the numbers of the KV heads that read it are added to a row of cells. */
typedef struct masses_row {
    const pkv_masses *m;
    pkv_mass_map *map;
    uint8_t *levels;     // [n_columns]: 1 where anything was read, until the row is done
    double read;         // tokens, by each head
    const float *values; // [heads, stride] of the table in hand
    uint32_t heads;
} masses_row;

/* The sum over the heads of what they read at page or slot i; *n: how many those are. */
static float value_at(const masses_row *r, uint32_t i, uint32_t *n)
{
    float sum = 0.0f;
    const float *values = r->values + i;
    *n = 0;
    for (uint32_t h = 0; h < r->heads; h++, values += r->m->stride) {
        if (*values < 0.0f) continue;
        sum += *values;
        ++*n;
    }
    return sum;
}

/* Adds n tokens that follow one another in one column, and that `heads` heads read. */
static void add_run(masses_row *r, uint32_t position, uint32_t n, uint32_t heads, float mass)
{
    uint32_t column = position / r->map->column_tokens;
    if (column >= r->map->n_columns || heads == 0) return;
    r->map->mass[column] += mass;
    r->levels[column] = 1;
    r->read += (double)n * heads;
}

/* A page's n tokens from `base` on may lie in two columns, which each have their part. */
static void add_page(masses_row *r, uint32_t base, uint32_t n, uint32_t heads, float mass)
{
    uint32_t wide = r->map->column_tokens, room = wide - base % wide;
    uint32_t first = n < room ? n : room;
    add_run(r, base, first, heads, mass * (float)first / (float)n);
    if (n > first) add_run(r, base + first, n - first, heads, mass * (float)(n - first) / (float)n);
}

/* Adds the mass of a page whose n tokens have positions of their own, those of a column at once. */
static void add_scattered(masses_row *r, const uint32_t *positions, uint32_t n, uint32_t heads,
                          float mass)
{
    uint32_t wide = r->map->column_tokens;
    for (uint32_t from = 0, to = 0; from < n; from = to) {
        uint32_t start = positions[from] - positions[from] % wide;
        while (to < n && positions[to] - start < wide) to++; // one before `start` wraps around
        add_run(r, positions[from], to - from, heads, mass * (float)(to - from) / (float)n);
    }
}

static void add_table(const pkv *p, const pkv_seq *s, uint32_t table, masses_row *r)
{
    const pkv_masses *m = r->m;
    const pkv_table *t = &s->tables[table];
    const uint32_t *bases = seq_bases(s, table);
    uint32_t page_tokens = p->geometry.page_tokens, heads = 0;
    uint32_t kept = t->kept > m->behind ? t->kept - m->behind : 0;
    for (uint32_t i = 0, slot = 0; slot < kept; i++, slot += page_tokens) {
        uint32_t n = kept - slot < page_tokens ? kept - slot : page_tokens;
        bool scattered = i < t->slot_pages;
        if (m->by_slot ? slot + n > m->stride : i >= m->stride) return;
        float mass = m->by_slot ? 0.0f : value_at(r, i, &heads);
        if (!m->by_slot && scattered) add_scattered(r, t->slots + slot, n, heads, mass);
        else if (!m->by_slot) add_page(r, bases[i], n, heads, mass);
        for (uint32_t k = 0; m->by_slot && k < n; k++) {
            float part = value_at(r, slot + k, &heads);
            add_run(r, scattered ? t->slots[slot + k] : bases[i] + k, 1, heads, part);
        }
    }
}

static uint32_t table_of(const pkv *p, const pkv_seq *s, uint32_t layer, uint32_t head)
{
    if (s->grain == PKV_ALL) return 0;
    if (s->grain == PKV_LAYER) return layer / p->geometry.layers_per_group;
    return pkv_group_of(&p->geometry, layer, head);
}

/* A sum that is no number is seen as a small one. */
static uint8_t level_of(float mass)
{
    const float per_octave = 6.0206f; /* levels */
    if (!(mass > 0.0f)) return 1;
    float level = (float)PKV_MASS_LEVELS + per_octave * log2f(mass);
    if (!(level > 1.5f)) return 1;
    return level < (float)PKV_MASS_LEVELS ? (uint8_t)(level + 0.5f) : (uint8_t)PKV_MASS_LEVELS;
}

static void finish_row(const pkv_mass_map *map, float scale, uint8_t *levels)
{
    for (uint32_t c = 0; c < map->n_columns; c++)
        if (levels[c]) levels[c] = level_of(map->mass[c] * scale);
}

/* Draws layers [from, to), and returns how many of them were measured. */
static uint32_t draw_row(const pkv *p, const pkv_seq *s, uint32_t from, uint32_t to, masses_row *r)
{
    const pkv_masses *m = r->m;
    uint32_t heads = p->geometry.n_kv_heads, n = 0;
    r->heads = s->grain == PKV_HEAD ? p->geometry.heads_per_group : heads;
    memset(r->levels, 0, r->map->n_columns);
    memset(r->map->mass, 0, r->map->n_columns * sizeof *r->map->mass);
    for (uint32_t layer = from; layer < to; layer++) {
        uint32_t row = measure_layer_of(&p->geometry, layer, m->layer_step);
        if (row == MEASURE_NO_LAYER) continue;
        n++;
        for (uint32_t head = 0; head < heads; head += r->heads) {
            r->values = m->values + ((size_t)row * heads + head) * m->stride;
            add_table(p, s, table_of(p, s, layer, head), r);
        }
    }
    if (n > 0) finish_row(r->map, 1.0f / (m->whole * (float)n), r->levels);
    return n;
}

uint32_t pkv_seq_most_pages(const pkv *p, uint32_t seq)
{
    const pkv_seq *s = seq_opened(p, seq);
    uint32_t most = 0;
    for (uint32_t g = 0; g < s->groups; g++)
        if (s->tables[g].n_pages > most) most = s->tables[g].n_pages;
    return most;
}

void pkv_seq_map_masses(const pkv *p, uint32_t seq, const pkv_masses *m, pkv_mass_map *out)
{
    const pkv_seq *s = seq_opened(p, seq);
    uint32_t n_layers = p->geometry.n_layers;
    pkv_grid grid = pkv_grid_of(p, s->length > m->behind ? s->length - m->behind : 0);
    out->n_rows = grid.n_rows;
    out->n_columns = grid.n_columns;
    out->row_layers = grid.row_layers;
    out->column_tokens = grid.column_tokens;
    out->layers = 0;
    for (uint32_t i = 0; i < grid.n_rows; i++) {
        masses_row row = {.m = m, .map = out, .levels = out->levels + (size_t)i * grid.n_columns};
        uint32_t from = i * grid.row_layers;
        uint32_t to = n_layers - from < grid.row_layers ? n_layers : from + grid.row_layers;
        uint32_t n = draw_row(p, s, from, to, &row);
        out->read[i] = n > 0 ? (float)(row.read / ((double)n * p->geometry.n_kv_heads)) : -1.0f;
        out->layers += n;
    }
}
