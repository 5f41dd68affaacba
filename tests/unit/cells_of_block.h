/* Cells that a block may have, for tests that copy blocks. */
#ifndef TESTS_UNIT_CELLS_OF_BLOCK_H
#define TESTS_UNIT_CELLS_OF_BLOCK_H

#include "backend/backend.h"

enum { GROUPS_MOST = 64 };

/* Sets out [pkv_groups]: equal cells for equal `number`, no two for other ones. */
static inline void cells_of_block(const backend_info *info, uint32_t number, uint32_t *out)
{
    const pkv_geometry *g = &info->geometry;
    uint32_t heads = pkv_head_groups(g), shares = pkv_shares(g), groups = pkv_groups(g);
    uint32_t of_share = pkv_cell_count(g, info->n_pages - 1) / shares;
    for (uint32_t i = 0; i < groups; i++)
        out[i] = i % heads * shares / heads * of_share + 1 + (number * groups + i) % (of_share - 1);
}

#endif
