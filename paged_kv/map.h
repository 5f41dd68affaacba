/* Pictures of a sequence's tables (map.c, map_masses.c): which part of the context it keeps, and
 * where the attention of one row went. */
#ifndef PAGED_KV_MAP_H
#define PAGED_KV_MAP_H

#include "paged_kv/paged_kv.h"

enum {
    PKV_MAP_ROWS_MOST = 128,
    PKV_MAP_COLUMNS_MOST = 1024,
    PKV_MAP_FULL = 8,    // a cell's eighths
    PKV_MAP_SHARED = 16, // a cell's flag
    PKV_MAP_PAGES_MOST = 1 << 16,
};

/* The kept part of a sequence, as a grid of layers by logical indices. A cell says how many eighths
 * of its tokens its tables keep: 0 = none, FULL = all. PKV_MAP_SHARED is set where other tables
 * hold pages of it too. Where a cell has several pages of a table, the first one answers that. */
typedef struct pkv_map {
    uint32_t n_rows, n_columns;
    uint32_t row_layers;    // layers of a row; the last row may have fewer
    uint32_t column_tokens; // logical indices of a column, a multiple of page_tokens
    uint32_t tables;        // of the sequence
    uint32_t tables_seen;   // fewer, where KV heads were left out to look at fewer pages
    uint64_t kept[PKV_MAP_COLUMNS_MOST];                     // scratch
    uint8_t cells[PKV_MAP_ROWS_MOST * PKV_MAP_COLUMNS_MOST]; // [n_rows, n_columns]
} pkv_map;

/* Draws an open sequence. */
void pkv_seq_map(const pkv *p, uint32_t seq, pkv_map *out);

/* A number for each page or slot of a sequence's tables, below 0 where it was not read. */
typedef struct pkv_masses {
    const float *values; // [measured layers, KV heads of the model, stride]
    uint32_t layer_step; // of measure_spec: which layers are measured
    uint32_t stride;
    bool by_slot;
    float whole;     // what the values of a layer add up to, over its KV heads; > 0
    uint32_t behind; // tokens that each table has got since the row was computed
} pkv_masses;

/* A cell's level, in steps of a twentieth of a decade: level n stands for 10^((n - MOST) / 20) of
 * the mass. 1 is also what is less, and 0 is not read. */
enum { PKV_MASS_LEVELS = 91 };

/* Pages of the sequence's longest table. */
uint32_t pkv_seq_most_pages(const pkv *p, uint32_t seq);

/* Where one row's attention went, as a grid like pkv_map's of the row and the tokens before it: a
 * cell has the mean over the layers of its row that were measured. */
typedef struct pkv_mass_map {
    uint32_t n_rows, n_columns, row_layers, column_tokens;
    uint32_t layers;                  // measured
    float read[PKV_MAP_ROWS_MOST];    // tokens read of a table, on average; below 0: not measured
    float mass[PKV_MAP_COLUMNS_MOST]; // scratch
    uint8_t levels[PKV_MAP_ROWS_MOST * PKV_MAP_COLUMNS_MOST]; // [n_rows, n_columns]
} pkv_mass_map;

/* Draws an open sequence, whose tables are those of the row but for what is `behind` it. */
void pkv_seq_map_masses(const pkv *p, uint32_t seq, const pkv_masses *masses, pkv_mass_map *out);

#endif
