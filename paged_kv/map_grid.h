/* paged_kv, private: the grid of a page map. */
#ifndef PAGED_KV_MAP_GRID_H
#define PAGED_KV_MAP_GRID_H

#include "paged_kv/map.h"
#include "paged_kv/state.h"

/* The grid of a picture of `length` tokens (pkv_map). */
typedef struct pkv_grid {
    uint32_t n_rows, n_columns, row_layers, column_tokens;
    uint32_t row_groups; // layer groups of a row
} pkv_grid;
pkv_grid pkv_grid_of(const pkv *p, uint32_t length);

#endif
